//! The largest element under a window, and its gradient. (A mean under a window is a convolution
//! with a constant kernel.)

use super::window::Window;
use super::{Backward, Linear, NoGradient, Rules, named};
use crate::kernel::{self, Kernel, WindowDim};
use crate::letters::{Letters, Role};
use crate::lower::{Extent, LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::types::{Type, checked_elements};
use serde::{Deserialize, Serialize};

/// The largest element under a window that moves over the dimensions after the first two:
/// `[n, c, …]`. If one of them is not-a-number, so is the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPool {
    /// The size of the window.
    pub kernel: Vec<u64>,
    /// How it moves.
    pub window: Window,
}
named!(MaxPool, "max_pool");

impl MaxPool {
    fn output(&self, x: &Type) -> Result<(Type, Vec<WindowDim>), Reason> {
        if !x.dtype.is_float() || x.rank() < 3 {
            return Err(reason!("a pool over {x}"));
        }
        let window = self.window.over(&x.shape[2..], &self.kernel)?;
        let shape: Vec<u64> = x.shape[..2].iter().copied().chain(window.iter().map(|d| d.output)).collect();
        checked_elements(&shape).ok_or_else(|| reason!("a result of {shape:?} is too large"))?;
        Ok((Type::new(x.dtype, shape), window))
    }

    /// Letters of a tensor like `x` and one like `y`: the first two dimensions are theirs together.
    fn letters_of(x: &Type, y: &Type) -> (Letters, [Vec<Vec<usize>>; 2]) {
        let mut letters = Letters::new();
        let planes = [letters.letter(x.shape[0], Role::Kept), letters.letter(x.shape[1], Role::Kept)];
        let dims = [x, y].map(|ty| {
            let whole = ty.shape[2..].iter().map(|size| letters.letter(*size, Role::Whole));
            planes.into_iter().chain(whole).map(|letter| vec![letter]).collect()
        });
        (letters, dims)
    }

    fn form(&self, x: &Extent) -> kernel::MaxPool {
        let (_, window) = self.output(&x.ty).expect("the node was built");
        kernel::MaxPool { dtype: x.ty.dtype, planes: x.local[0] * x.local[1], window }
    }
}

impl Rules for MaxPool {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        Ok(vec![self.output(x)?.0])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let (mut letters, [x, y]) = MaxPool::letters_of(&operands[0], &results[0]);
        (letters.operands, letters.results) = (vec![x], vec![y]);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, g) = (cx.operands[0], cx.grad());
        let dx = cx.b.op(MaxPoolGrad { of: self.clone() }, &[x, g]);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::launch(Kernel::MaxPool(self.form(&cx.operands[0])), 1, 1)
    }
}

/// The gradient of [`MaxPool`]: each output's goes to the first of its largest inputs. Operands:
/// the input, the output's gradient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPoolGrad {
    /// The pool.
    pub of: MaxPool,
}
named!(MaxPoolGrad, "max_pool_grad");

impl Rules for MaxPoolGrad {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x, dy] = operands else { return Err("takes an input and a gradient".into()) };
        let (y, _) = self.of.output(x)?;
        if y == *dy { Ok(vec![x.clone()]) } else { Err(reason!("a pool over {x} gives {y}, not {dy}")) }
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        let (mut letters, [x, y]) = MaxPool::letters_of(&operands[0], &operands[1]);
        (letters.operands, letters.results) = (vec![x.clone(), y], vec![x]);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Only(1)
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::NotOfModels)
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::launch(Kernel::MaxPoolGrad(kernel::MaxPoolGrad(self.of.form(&cx.operands[0]))), 2, 1)
    }
}
