//! The loss scale: gradients are divided by it before anything reads them, and a dynamic one
//! follows what they are.
//!
//! A step whose gradients are not all finite changes no state variable but the scale. The flag is
//! the norm of all gradients, which is reduced over every rank as it is and is finite only if all
//! of them are, so all ranks skip the same steps. Source: Micikevicius et al., Mixed Precision
//! Training (2018); PyTorch's `GradScaler`.

use crate::differentiate::scaling_state;
use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Output, State, StateId, ValueId};
use shardc_ir::plan::StateRole;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::spec::{LossScale, Spec};
use shardc_ir::train::{LEAST_LOSS_SCALE, LOSS_SCALE, STEPS_TAKEN, StateInit};
use std::collections::HashMap;

/// The loss scale does not rise above this, however small gradients are.
const MOST: f64 = (1u64 << 40) as f64;

/// How the loss is scaled.
pub struct Scaling {
    rule: Option<LossScale>,
    dynamic: Option<Dynamic>,
}

/// What dynamic scaling remembers, and reads of it.
struct Dynamic {
    scale: (StateId, ValueId),
    /// Good steps in a row.
    streak: (StateId, ValueId),
    /// Good steps in all, which are what an optimizer counts.
    steps: (StateId, ValueId),
    /// Whether the step changes anything.
    counts: Option<ValueId>,
}

impl Scaling {
    /// As the spec has it.
    pub fn of(b: &mut Builder, spec: &Spec) -> Scaling {
        let rule = spec.precision.as_ref().and_then(|line| line.value.scaling());
        let dynamic = matches!(rule, Some(LossScale::Dynamic { .. })).then(|| {
            let is_scale = |state: &State| state.role == StateRole::Scaling;
            let of_scale = b.graph().states.iter().position(is_scale).expect("the loss is scaled by it");
            let scale = StateId(of_scale as u32);
            let read = b.graph().state_reads()[of_scale].expect("the loss is scaled by it");
            Dynamic {
                scale: (scale, read),
                streak: scaling_state(b, "loss_scale.streak", DType::F64, StateInit::Zeros),
                steps: scaling_state(b, STEPS_TAKEN, DType::F64, StateInit::Zeros),
                counts: None,
            }
        });
        Scaling { rule, dynamic }
    }

    /// Gradients in the types of their parameters, and not scaled.
    pub fn unscaled(
        &self,
        b: &mut Builder,
        gradients: &[(StateId, ValueId)],
        stages: &[Option<u32>],
    ) -> HashMap<StateId, ValueId> {
        let mut inverses: HashMap<DType, ValueId> = HashMap::new();
        let mut unscaled = HashMap::new();
        for (state, gradient) in gradients {
            let dtype = b.graph().states[state.index()].ty.dtype;
            b.origin.stage = None;
            let inverse = match (inverses.get(&dtype), self.rule) {
                (Some(inverse), _) => Some(*inverse),
                (None, Some(_)) => self.inverse(b, dtype),
                (None, None) => None,
            };
            inverse.map(|inverse| inverses.insert(dtype, inverse));
            b.origin.stage = stages[state.index()];
            let wide = b.cast(*gradient, dtype);
            unscaled.insert(*state, inverse.map_or(wide, |inverse| b.mul(wide, inverse)));
        }
        unscaled
    }

    fn inverse(&self, b: &mut Builder, dtype: DType) -> Option<ValueId> {
        match (self.rule?, &self.dynamic) {
            (LossScale::Constant(scale), _) => Some(b.number(dtype, 1.0 / scale)),
            (_, Some(Dynamic { scale: (_, scale), .. })) => {
                let scale = b.cast(*scale, dtype);
                Some(b.unary(Unary::Reciprocal.into(), scale))
            }
            _ => None,
        }
    }

    /// A step counts if the norm of its gradients is finite.
    pub fn watch(&mut self, b: &mut Builder, norm: ValueId) {
        let Some(dynamic) = &mut self.dynamic else { return };
        let infinity = b.number(DType::F64, f64::INFINITY);
        dynamic.counts = Some(b.binary(Binary::Lt, norm, infinity));
    }

    /// Whether the step counts, if it may not.
    pub fn counts(&self) -> Option<ValueId> {
        self.dynamic.as_ref()?.counts
    }

    /// The number of good steps before this one, if not all are.
    pub fn steps(&self) -> Option<ValueId> {
        Some(self.dynamic.as_ref()?.steps.1)
    }

    /// Renews what it remembers, and keeps every other state variable where the step does not
    /// count.
    pub fn end(self, b: &mut Builder, stages: &[Option<u32>]) {
        let (Some(LossScale::Dynamic { interval, .. }), Some(dynamic)) = (self.rule, self.dynamic) else { return };
        let Some(counts) = dynamic.counts else { return };
        for (i, stage) in stages.iter().enumerate() {
            let state = &b.graph().states[i];
            let (StateRole::Statistic, Some(new)) = (state.role, state.update) else { continue };
            let Some(old) = b.graph().state_reads()[i] else { continue };
            b.origin.stage = *stage;
            let kept = b.select(counts, new, old);
            b.graph_mut().states[i].update = Some(kept);
        }
        b.origin.stage = None;
        let Dynamic { scale: (scale, old_scale), streak: (streak, old_streak), steps: (steps, old_steps), .. } = dynamic;
        let next = b.offset(old_streak, 1.0);
        let interval = b.number(DType::F64, interval as f64);
        let is_full = b.binary(Binary::Le, interval, next);
        let zero = b.number(DType::F64, 0.0);
        let good = b.select(is_full, zero, next);
        let new_streak = b.select(counts, good, zero);
        let (twice, half) = (b.scale(old_scale, 2.0), b.scale(old_scale, 0.5));
        let (most, least) = (b.number(DType::F32, MOST), b.number(DType::F32, LEAST_LOSS_SCALE));
        let twice = b.binary(Binary::Min, twice, most);
        let half = b.binary(Binary::Max, half, least);
        let good = b.select(is_full, twice, old_scale);
        let new_scale = b.select(counts, good, half);
        let more = b.offset(old_steps, 1.0);
        let new_steps = b.select(counts, more, old_steps);
        for (state, value) in [(scale, new_scale), (streak, new_streak), (steps, new_steps)] {
            let name = format!("{}.new", b.graph().states[state.index()].name);
            b.rename(value, &name);
            b.graph_mut().states[state.index()].update = Some(value);
        }
        let told = b.cast(old_scale, DType::F64);
        b.rename(told, LOSS_SCALE);
        b.graph_mut().outputs.push(Output { name: LOSS_SCALE.into(), value: told });
    }
}
