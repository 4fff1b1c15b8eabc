//! Convolutions (cross-correlations, as in every framework) and their gradients, which are closed:
//! the gradient of each of the three ops is built from the other two.
//!
//! Letters: `x[n, (g c), …]`, `w[(g o), c, …]`, `y[n, (g o), …]`; a group `g` is there only where
//! there are several. Spatial dimensions are whole. A bias is an addition of its own, so that it is
//! never added once for each part of a split sum.

use super::window::Window;
use super::{Backward, Linear, NoGradient, Rules, named};
use crate::kernel::{self, ConvResult, Kernel, WindowDim};
use crate::letters::{Letter, Letters, Role};
use crate::lower::{Extent, LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::types::{Type, checked_elements};
use serde::{Deserialize, Serialize};

/// `y`, from `x` and `w`: each output channel is the sum, over its group's input channels and the
/// taps of the window, of products.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv {
    /// How the kernel moves over the input.
    pub window: Window,
    /// Independent groups of channels.
    pub groups: u64,
}
named!(Conv, "conv");

impl Conv {
    /// The type of the output and the window over the input.
    fn output(&self, x: &Type, w: &Type) -> Result<(Type, Vec<WindowDim>), Reason> {
        if x.dtype != w.dtype || !x.dtype.is_float() || x.rank() < 3 || x.rank() != w.rank() {
            return Err(reason!("{x} and a kernel of {w}"));
        }
        let channels = self.groups.checked_mul(w.shape[1]);
        if self.groups == 0 || channels != Some(x.shape[1]) || !w.shape[0].is_multiple_of(self.groups) {
            return Err(reason!("{x} and a kernel of {w} in {} groups", self.groups));
        }
        let window = self.window.over(&x.shape[2..], &w.shape[2..])?;
        let shape: Vec<u64> = [x.shape[0], w.shape[0]].into_iter().chain(window.iter().map(|d| d.output)).collect();
        checked_elements(&shape).ok_or_else(|| reason!("a result of {shape:?} is too large"))?;
        Ok((Type::new(x.dtype, shape), window))
    }

    /// `y` is what a convolution of `x` with `w` gives.
    fn check(&self, x: &Type, w: &Type, y: &Type) -> Result<(), Reason> {
        let (expected, _) = self.output(x, w)?;
        if expected == *y { Ok(()) } else { Err(reason!("a convolution of {x} with {w} gives {expected}, not {y}")) }
    }

    /// The letters of `x`, `w` and `y`, in this order.
    fn letters_of(&self, x: &Type, w: &Type, y: &Type, result: ConvResult) -> (Letters, [Vec<Vec<Letter>>; 3]) {
        let mut letters = Letters::new();
        let role = |sum: ConvResult| if sum == result { Role::Reduced(ReduceKind::Sum) } else { Role::Kept };
        let n = letters.letter(x.shape[0], role(ConvResult::Weight));
        let g: Vec<Letter> = (self.groups > 1).then(|| letters.letter(self.groups, Role::Kept)).into_iter().collect();
        let o = letters.letter(w.shape[0] / self.groups, role(ConvResult::Input));
        let c = letters.letter(w.shape[1], role(ConvResult::Output));
        let with_group = |letter: Letter| g.iter().copied().chain([letter]).collect::<Vec<Letter>>();
        let mut dims = [vec![vec![n], with_group(c)], vec![with_group(o), vec![c]], vec![vec![n], with_group(o)]];
        for (dims, ty) in dims.iter_mut().zip([x, w, y]) {
            dims.extend(ty.shape[2..].iter().map(|size| vec![letters.letter(*size, Role::Whole)]));
        }
        (letters, dims)
    }

    fn lower_from(&self, x: &Extent, w: &Extent, y: &Extent, result: ConvResult) -> Lowered {
        let (_, window) = self.output(&x.ty, &w.ty).expect("the node was built");
        let inputs = w.local[1];
        let groups = x.local[1].checked_div(inputs).unwrap_or(0);
        let kernel = kernel::Conv {
            dtype: x.ty.dtype,
            result,
            batch: x.local[0],
            groups,
            inputs,
            outputs: y.local[1].checked_div(groups).unwrap_or(0),
            window,
        };
        Lowered::launch(Kernel::Conv(kernel), 2, 1)
    }
}

impl Rules for Conv {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x, w] = operands else { return Err("takes an input and a kernel".into()) };
        Ok(vec![self.output(x, w)?.0])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let (mut letters, [x, w, y]) = self.letters_of(&operands[0], &operands[1], &results[0], ConvResult::Output);
        (letters.operands, letters.results) = (vec![x, w], vec![y]);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Each
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, w, g) = (cx.operands[0], cx.operands[1], cx.grad());
        if cx.needs[0] {
            let sizes = cx.b.ty(x).shape[2..].to_vec();
            let dx = cx.b.op(ConvInput { of: self.clone(), sizes }, &[g, w]);
            cx.give(0, dx);
        }
        if cx.needs[1] {
            let kernel = cx.b.ty(w).shape[2..].to_vec();
            let dw = cx.b.op(ConvWeight { of: self.clone(), kernel }, &[x, g]);
            cx.give(1, dw);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        self.lower_from(&cx.operands[0], &cx.operands[1], &cx.results[0], ConvResult::Output)
    }
}

/// `x`, from `y` and `w`: the transpose of a convolution in its input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvInput {
    /// The convolution.
    pub of: Conv,
    /// The spatial sizes of `x`, which `y` does not say where the window moves by more than one.
    pub sizes: Vec<u64>,
}
named!(ConvInput, "conv_input");

impl Rules for ConvInput {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [y, w] = operands else { return Err("takes an output and a kernel".into()) };
        if y.rank() < 3 || w.rank() != y.rank() {
            return Err(reason!("{y} and a kernel of {w}"));
        }
        let channels = self.of.groups.checked_mul(w.shape[1]).ok_or("too many groups")?;
        let shape: Vec<u64> = [y.shape[0], channels].iter().chain(&self.sizes).copied().collect();
        checked_elements(&shape).ok_or_else(|| reason!("a result of {shape:?} is too large"))?;
        let x = Type::new(y.dtype, shape);
        self.of.check(&x, w, y)?;
        Ok(vec![x])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let (mut letters, [x, w, y]) = self.of.letters_of(&results[0], &operands[1], &operands[0], ConvResult::Input);
        (letters.operands, letters.results) = (vec![y, w], vec![x]);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Each
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (y, w, g) = (cx.operands[0], cx.operands[1], cx.grad());
        if cx.needs[0] {
            let dy = cx.b.op(self.of.clone(), &[g, w]);
            cx.give(0, dy);
        }
        if cx.needs[1] {
            let kernel = cx.b.ty(w).shape[2..].to_vec();
            let dw = cx.b.op(ConvWeight { of: self.of.clone(), kernel }, &[g, y]);
            cx.give(1, dw);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        self.of.lower_from(&cx.results[0], &cx.operands[1], &cx.operands[0], ConvResult::Input)
    }
}

/// `w`, from `x` and `y`: the transpose of a convolution in its kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvWeight {
    /// The convolution.
    pub of: Conv,
    /// The spatial sizes of `w`.
    pub kernel: Vec<u64>,
}
named!(ConvWeight, "conv_weight");

impl Rules for ConvWeight {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x, y] = operands else { return Err("takes an input and an output".into()) };
        if x.rank() < 3 || y.rank() != x.rank() || self.of.groups == 0 {
            return Err(reason!("{x} and {y} in {} groups", self.of.groups));
        }
        let shape: Vec<u64> = [y.shape[1], x.shape[1] / self.of.groups].iter().chain(&self.kernel).copied().collect();
        checked_elements(&shape).ok_or_else(|| reason!("a result of {shape:?} is too large"))?;
        let w = Type::new(x.dtype, shape);
        self.of.check(x, &w, y)?;
        Ok(vec![w])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let (mut letters, [x, w, y]) = self.of.letters_of(&operands[0], &results[0], &operands[1], ConvResult::Weight);
        (letters.operands, letters.results) = (vec![x, y], vec![w]);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Each
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, y, g) = (cx.operands[0], cx.operands[1], cx.grad());
        if cx.needs[0] {
            let sizes = cx.b.ty(x).shape[2..].to_vec();
            let dx = cx.b.op(ConvInput { of: self.of.clone(), sizes }, &[y, g]);
            cx.give(0, dx);
        }
        if cx.needs[1] {
            let dy = cx.b.op(self.of.clone(), &[x, g]);
            cx.give(1, dy);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        self.of.lower_from(&cx.operands[0], &cx.results[0], &cx.operands[1], ConvResult::Weight)
    }
}
