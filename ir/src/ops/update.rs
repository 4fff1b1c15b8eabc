//! Optimizer updates: elementwise programs over a parameter, its gradient and its moments, done in
//! place.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::dtype::DType;
use crate::letters::{Letters, Role};
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::scalar::{ProgramWriter, Reg, ScalarProgram, Unary};
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// Stochastic gradient descent as PyTorch's `SGD`: `g += decay * w; m = momentum * m + g; w -= lr *
/// (m, or g + momentum * m)`. Operands: w, g, lr, and m where momentum is not 0; results: w, `[m]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    /// The share of the old moment.
    pub momentum: f64,
    /// Look ahead by one moment.
    pub nesterov: bool,
    /// Coupled weight decay.
    pub weight_decay: f64,
    /// Whether a last operand, a truth value, says that the step counts: else nothing changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips: bool,
}
named!(Sgd, "sgd");

/// Adam and AdamW as PyTorch's. Operands: w, g, lr, c1, c2, m, v with `c = 1 - beta^step`; results:
/// w, m, v. Kingma, Ba: Adam (2014); Loshchilov, Hutter: Decoupled Weight Decay Regularization
/// (2017).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    /// The share of the old first moment.
    pub beta1: f64,
    /// The share of the old second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Whether decay shrinks the parameter (AdamW) instead of joining the gradient (Adam).
    pub decoupled: bool,
    /// Whether a last operand, a truth value, says that the step counts: else nothing changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips: bool,
}
named!(Adam, "adam");

/// Types of an update: operands `w, g`, then `scalars` scalars, then `moments`; results w and the
/// moments.
fn update_types(operands: &[Type], scalars: usize, moments: usize, skips: bool) -> Result<Vec<Type>, Reason> {
    let operands = match operands.split_last() {
        Some((last, others)) if skips && *last == Type::scalar(DType::Bool) => others,
        _ if skips => return Err("the last operand is no truth value".into()),
        _ => operands,
    };
    if operands.len() != 2 + scalars + moments {
        return Err(reason!("takes {} operands", 2 + scalars + moments));
    }
    let w = &operands[0];
    let scalar = Type::scalar(w.dtype);
    for (i, ty) in operands.iter().enumerate() {
        let expected = if (2..2 + scalars).contains(&i) { &scalar } else { w };
        if ty != expected {
            return Err(reason!("operand {i} is {ty}, not {expected}"));
        }
    }
    Ok(vec![w.clone(); 1 + moments])
}

/// New values where the step counts, else the old ones.
fn kept_unless(p: &mut ProgramWriter, skips: bool, operands: &[Reg], old: &[Reg], new: Vec<Reg>) -> Vec<Reg> {
    match operands.last() {
        Some(counts) if skips => new.into_iter().zip(old).map(|(new, old)| p.select(*counts, new, *old)).collect(),
        _ => new,
    }
}

fn update_letters(operands: &[Type], results: usize) -> Letters {
    let mut letters = Letters::new();
    let dims: Vec<Vec<usize>> = operands[0].shape.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect();
    let same = operands[0].rank();
    letters.operands = operands.iter().map(|t| if t.rank() == same { dims.clone() } else { vec![] }).collect();
    letters.results = vec![dims; results];
    letters
}

impl Sgd {
    fn moments(&self) -> usize {
        usize::from(self.momentum != 0.0)
    }

    /// The update of an element, over the operands.
    pub fn program(&self) -> ScalarProgram {
        ProgramWriter::program(3 + self.moments() + usize::from(self.skips), |p, x| {
            let (w, mut g, lr) = (x[0], x[1], x[2]);
            if self.weight_decay != 0.0 {
                let decay = p.scale(w, self.weight_decay);
                g = p.add(g, decay);
            }
            if self.momentum == 0.0 {
                let step = p.mul(lr, g);
                let w = p.sub(w, step);
                return kept_unless(p, self.skips, x, &x[..1], vec![w]);
            }
            let kept = p.scale(x[3], self.momentum);
            let m = p.add(kept, g);
            let direction = if self.nesterov {
                let ahead = p.scale(m, self.momentum);
                p.add(g, ahead)
            } else {
                m
            };
            let step = p.mul(lr, direction);
            let w = p.sub(w, step);
            kept_unless(p, self.skips, x, &[x[0], x[3]], vec![w, m])
        })
    }
}

impl Rules for Sgd {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        update_types(operands, 1, self.moments(), self.skips)
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        update_letters(operands, results.len())
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::NotOfModels)
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::program(Some(cx.operands[0].ty.dtype), self.program())
    }
}

impl Adam {
    /// The update of an element, over the operands.
    pub fn program(&self) -> ScalarProgram {
        ProgramWriter::program(7 + usize::from(self.skips), |p, x| {
            let [mut w, mut g, lr, c1, c2, m, v] = [x[0], x[1], x[2], x[3], x[4], x[5], x[6]];
            if self.weight_decay != 0.0 && self.decoupled {
                let decay = p.scale(lr, self.weight_decay);
                let one = p.number(1.0);
                let keep = p.sub(one, decay);
                w = p.mul(w, keep);
            } else if self.weight_decay != 0.0 {
                let decay = p.scale(w, self.weight_decay);
                g = p.add(g, decay);
            }
            let old_m = p.scale(m, self.beta1);
            let new_m = p.scale(g, 1.0 - self.beta1);
            let m = p.add(old_m, new_m);
            let square = p.mul(g, g);
            let old_v = p.scale(v, self.beta2);
            let new_v = p.scale(square, 1.0 - self.beta2);
            let v = p.add(old_v, new_v);
            let first = p.binary(crate::scalar::Binary::Div, m, c1);
            let second = p.binary(crate::scalar::Binary::Div, v, c2);
            let root = p.unary(Unary::Sqrt, second);
            let eps = p.number(self.eps);
            let denominator = p.add(root, eps);
            let direction = p.binary(crate::scalar::Binary::Div, first, denominator);
            let step = p.mul(lr, direction);
            let w = p.sub(w, step);
            kept_unless(p, self.skips, x, &[x[0], x[5], x[6]], vec![w, m, v])
        })
    }
}

impl Rules for Adam {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        update_types(operands, 3, 2, self.skips)
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        update_letters(operands, results.len())
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::NotOfModels)
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::program(Some(cx.operands[0].ty.dtype), self.program())
    }
}
