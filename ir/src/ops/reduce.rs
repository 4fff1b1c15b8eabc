//! Reductions over whole dimensions, which disappear.

use super::{Backward, Linear, NoGradient, Rules, named, named_by_function};
use crate::dtype::DType;
use crate::letters::{Letters, Role};
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, ProgramWriter, ScalarProgram};
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// How elements combine, by the op's name in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceName(pub ReduceKind);

impl ReduceName {
    const ALL: [ReduceName; 3] = [ReduceName(ReduceKind::Sum), ReduceName(ReduceKind::Max), ReduceName(ReduceKind::Min)];

    fn name(self) -> &'static str {
        match self.0 {
            ReduceKind::Sum => "sum",
            ReduceKind::Max => "reduce_max",
            ReduceKind::Min => "reduce_min",
        }
    }
}

impl Serialize for ReduceName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for ReduceName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ReduceName, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = ReduceName::ALL.into_iter().find(|f| f.name() == name);
        found.ok_or_else(|| serde::de::Error::custom(format!("there is no reduction `{name}`")))
    }
}

/// The combination of all elements along `axes`, which disappear.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// How they combine.
    pub f: ReduceName,
    /// The dimensions, ascending.
    pub axes: Vec<usize>,
    /// The result's type where it is not that of the operand: a sum may be rounded to 16 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}
named_by_function!(Reduce, ReduceName);

impl Reduce {
    /// The reduction of that kind.
    pub fn new(kind: ReduceKind, axes: Vec<usize>) -> Reduce {
        Reduce { f: ReduceName(kind), axes, dtype: None }
    }
}

impl Rules for Reduce {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        if !x.dtype.is_float() && x.dtype != DType::I64 {
            return Err(reason!("the operand is {}", x.dtype));
        }
        if self.axes.iter().any(|a| *a >= x.rank()) || self.axes.windows(2).any(|w| w[0] >= w[1]) {
            return Err(reason!("axes {:?} of {x}", self.axes));
        }
        let is_rounding = |dtype: &DType| self.f.0 == ReduceKind::Sum && dtype.is_half() && dtype.computed() == x.dtype;
        if let Some(dtype) = self.dtype.filter(|dtype| !is_rounding(dtype)) {
            return Err(reason!("{dtype} is no rounding of {}", x.dtype));
        }
        let shape: Vec<u64> = (0..x.rank()).filter(|d| !self.axes.contains(d)).map(|d| x.shape[d]).collect();
        Ok(vec![Type::new(self.dtype.unwrap_or(x.dtype), shape)])
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        reduce_letters(&operands[0], self.f.0, |d| self.axes.contains(&d))
    }

    /// Rounding aside, as of casts.
    fn linear(&self, _: &[Type]) -> Linear {
        if self.f.0 == ReduceKind::Sum { Linear::Together } else { Linear::No }
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let x = cx.operands[0];
        let (shape, g, y) = (cx.b.ty(x).shape.clone(), cx.grad(), cx.results[0]);
        let kept: Vec<u64> = (0..shape.len()).map(|d| if self.axes.contains(&d) { 1 } else { shape[d] }).collect();
        let g = cx.b.reshape(g, &kept);
        let dx = if self.f.0 == ReduceKind::Sum {
            cx.b.broadcast(g, &shape)
        } else {
            // Equal extremes share the gradient.
            let y = cx.b.reshape(y, &kept);
            let extreme = cx.b.binary(Binary::Eq, x, y);
            let dtype = cx.b.ty(x).dtype;
            let hits = cx.b.cast(extreme, dtype);
            let count = cx.b.sum(hits, &self.axes);
            let count = cx.b.reshape(count, &kept);
            let share = cx.b.div(g, count);
            cx.b.mul(hits, share)
        };
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let rank = cx.operands[0].ty.rank();
        Lowered::Reduce {
            kind: self.f.0,
            before: ScalarProgram::identity(),
            reduced: (0..rank).map(|d| self.axes.contains(&d)).collect(),
            accumulate: cx.operands[0].ty.dtype,
        }
    }
}

fn reduce_letters(operand: &Type, kind: ReduceKind, reduced: impl Fn(usize) -> bool) -> Letters {
    let mut letters = Letters::new();
    let dims: Vec<usize> = (0..operand.rank())
        .map(|d| letters.letter(operand.shape[d], if reduced(d) { Role::Reduced(kind) } else { Role::Kept }))
        .collect();
    letters.operands.push(dims.iter().map(|l| vec![*l]).collect());
    letters.results.push((0..operand.rank()).filter(|d| !reduced(*d)).map(|d| vec![dims[d]]).collect());
    letters
}

/// The sum of the squares of all elements, in f64: the part of one gradient in the global norm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SquareSum {}
named!(SquareSum, "square_sum");

impl Rules for SquareSum {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        match operands {
            [x] if x.dtype.is_float() => Ok(vec![Type::scalar(DType::F64)]),
            _ => Err("takes one float operand".into()),
        }
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        reduce_letters(&operands[0], ReduceKind::Sum, |_| true)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, g) = (cx.operands[0], cx.grad());
        let dtype = cx.b.ty(x).dtype;
        let g = cx.b.cast(g, dtype);
        let twice = cx.b.scale(x, 2.0);
        let dx = cx.b.mul(twice, g);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::Reduce {
            kind: ReduceKind::Sum,
            before: ProgramWriter::program(1, |w, x| vec![w.mul(x[0], x[0])]),
            reduced: vec![true; cx.operands[0].ty.rank()],
            accumulate: DType::F64,
        }
    }
}
