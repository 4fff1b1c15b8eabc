//! Dropout, and the masks that it draws: functions of seed, step and position, so that they are the
//! same under every split.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::dtype::DType;
use crate::kernel::signature::row_major;
use crate::kernel::{Kernel, Random};
use crate::letters::{Letters, Role};
use crate::lower::{LowerContext, Lowered};
use crate::philox::threshold;
use crate::reason;
use crate::reason::Reason;
use crate::types::{Type, checked_elements};
use serde::{Deserialize, Serialize};

/// `x -> x, mask`: dropout as models write it and as evaluation has it, where everything is kept.
/// For training the pass `dropout` puts a mask in its place. Srivastava et al.: Dropout (2014).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The share that training drops, above 0 and below 1.
    pub ratio: f64,
    /// Its stream of random numbers; no other dropout of the model has it.
    pub stream: u32,
}
named!(Dropout, "dropout");

impl Rules for Dropout {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        match operands {
            [x] if x.dtype.is_float() && self.ratio > 0.0 && self.ratio < 1.0 => Ok(vec![x.clone(), x.with_dtype(DType::Bool)]),
            _ => Err(reason!("takes floats, and a ratio between 0 and 1, not {}", self.ratio)),
        }
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let g = cx.grad();
        cx.give(0, g);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::map(Some(cx.operands[0].ty.dtype), 1, |w, x| vec![x[0], w.number(1.0)])
    }
}

/// `seed, step -> mask`: for each element, whether dropout keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeepMask {
    /// The shape of the mask.
    pub shape: Vec<u64>,
    /// The share of elements that are false, 0 to below 1.
    pub ratio: f64,
    /// Its stream of random numbers.
    pub stream: u32,
}
named!(KeepMask, "keep_mask");

impl Rules for KeepMask {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let scalars = [Type::scalar(DType::I64), Type::scalar(DType::F64)];
        if operands != scalars || !(0.0..1.0).contains(&self.ratio) || checked_elements(&self.shape).is_none() {
            return Err("takes a seed and a step, a ratio below 1, and a shape that is not too large".into());
        }
        Ok(vec![Type::new(DType::Bool, self.shape.clone())])
    }

    fn letters(&self, _: &[Type], _: &[Type]) -> Letters {
        let mut letters = Letters::new();
        letters.operands = vec![vec![], vec![]];
        letters.results = vec![self.shape.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect()];
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::Constant)
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let mask = &cx.results[0];
        let kernel = Random {
            shape: mask.local.clone(),
            strides: row_major(&self.shape).into_iter().map(|s| s as u64).collect(),
            origins: (0..self.shape.len()).map(|d| cx.result_origin(0, d)).collect(),
            threshold: threshold(self.ratio),
            stream: self.stream,
        };
        Lowered::launch(Kernel::Random(kernel), 2, 1)
    }
}
