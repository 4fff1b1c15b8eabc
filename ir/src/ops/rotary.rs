//! Rotary position embeddings: pairs of a head's elements turned by an angle that depends on the
//! position.

use super::attention::HeadLayout;
use super::captures::Captures;
use super::{Backward, Linear, NoGradient, Raise, Rules, named};
use crate::graph::{Graph, ValueId};
use crate::kernel::{Kernel, RowProgram, Rowwise};
use crate::letters::{Letters, Role};
use crate::lower::{LowerContext, Lowered};
use crate::ops::Op;
use crate::reason;
use crate::reason::Reason;
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// `y = x * cos + turn(x) * sin` with `turn(x) = (-second half, first half)` of the last dimension;
/// transposed, the same map's transpose. Operands: x (four dimensions), cos and sin
/// `[positions, width]`. Su et al.: RoFormer (2021).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    /// The layout of x.
    pub layout: HeadLayout,
    /// Whether the transpose is applied, as in the gradient.
    pub transposed: bool,
}
named!(Rotary, "rotary");

impl Rotary {
    /// The dimension of positions.
    fn position(self) -> usize {
        match self.layout {
            HeadLayout::HeadMajor => 2,
            HeadLayout::TokenMajor => 1,
        }
    }

    /// `turn(x)`, or its transpose: the map with cosines 0 and sines 1.
    fn turned(self, cx: &mut Backward<'_>, x: ValueId) -> ValueId {
        let table = cx.b.ty(cx.operands[1]).shape.clone();
        let [zeros, ones] = [0.0, 1.0].map(|v| {
            let number = cx.b.number_like(x, v);
            cx.b.broadcast(number, &table)
        });
        cx.b.op(self, &[x, zeros, ones])
    }

    /// Summed over all but positions and width.
    fn give_table(self, cx: &mut Backward<'_>, operand: usize, product: ValueId) {
        let axes: Vec<usize> = (0..3).filter(|d| *d != self.position()).collect();
        let sum = cx.b.sum(product, &axes);
        let table = cx.b.ty(cx.operands[operand]).shape.clone();
        let sum = cx.b.reshape(sum, &table);
        cx.give(operand, sum);
    }
}

impl Rules for Rotary {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x, cos, sin] = operands else { return Err("takes x, cos and sin".into()) };
        let fits = x.rank() == 4 && x.dtype.is_float() && x.shape[3].is_multiple_of(2) && cos == sin && cos.dtype == x.dtype;
        if fits && is_table(&cos.shape, x.shape[self.position()], x.shape[3]) {
            Ok(vec![x.clone()])
        } else {
            Err(reason!("{x} by {cos} and {sin}"))
        }
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        let mut letters = Letters::new();
        let role = |d| if d == 3 { Role::Whole } else { Role::Kept };
        let dims: Vec<Vec<usize>> = (0..4).map(|d| vec![letters.letter(operands[0].shape[d], role(d))]).collect();
        let mut table = vec![vec![]; operands[1].rank() - 2];
        table.extend([dims[self.position()].clone(), dims[3].clone()]);
        letters.operands = vec![dims.clone(), table.clone(), table];
        letters.results = vec![dims];
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Only(0)
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, g) = (cx.operands[0], cx.grad());
        let other = Rotary { transposed: !self.transposed, ..*self };
        if cx.needs[0] {
            let dx = cx.b.op(other, &[g, cx.operands[1], cx.operands[2]]);
            cx.give(0, dx);
        }
        if cx.needs[1] {
            let product = cx.b.mul(g, x);
            self.give_table(cx, 1, product);
        }
        if cx.needs[2] {
            // The sines stand on the side of `turn` where the halves are not yet exchanged in the
            // transpose.
            let product = if self.transposed {
                let turned = other.turned(cx, g);
                cx.b.mul(x, turned)
            } else {
                let turned = self.turned(cx, x);
                cx.b.mul(g, turned)
            };
            self.give_table(cx, 2, product);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let x = &cx.operands[0];
        let period = x.local[self.position()];
        let repeat = x.local[self.position() + 1..3].iter().product();
        let kernel = Rowwise {
            flow: cx.operands[0].ty.dtype,
            dtype: x.ty.dtype,
            rows: x.local[..3].iter().product(),
            width: x.local[3],
            program: RowProgram::Rotary { repeat, period, transposed: self.transposed },
        };
        Lowered::launch(Kernel::Rowwise(kernel), 3, 1)
    }
}

/// The form in which exporters write it: tables `[1, 1, positions, width]` over heads before
/// positions.
pub const RAISES: &[Raise] = &[Raise {
    pattern: "add(mul(x, cos), mul(turned@concat(neg(second@slice(x)), first@slice(x)), sin))",
    build: |graph, c| {
        turns(graph, c).then(|| {
            let op = Rotary { layout: HeadLayout::HeadMajor, transposed: false };
            (op.into(), vec!["x", "cos", "sin"])
        })
    },
}];

/// Whether a shape is `[positions, width]`, whatever sizes of 1 stand before.
fn is_table(shape: &[u64], positions: u64, width: u64) -> bool {
    shape.ends_with(&[positions, width]) && shape[..shape.len() - 2].iter().all(|n| *n == 1)
}

/// Whether x and its tables fit, and the halves of its last dimension are joined with the second
/// one first.
fn turns(graph: &Graph, captures: &Captures) -> bool {
    let operands = ["x", "cos", "sin"].map(|n| graph.ty(captures.values[n]).clone());
    if (Rotary { layout: HeadLayout::HeadMajor, transposed: false }).result(&operands).is_err() {
        return false;
    }
    let half = operands[0].shape[3] / 2;
    let op = |name: &str| &graph.def(captures.values[name]).op;
    let slices =
        |name: &str, from: u64| matches!(op(name), Op::Slice(s) if (s.axis, s.start, s.step, s.size) == (3, from, 1, half));
    matches!(op("turned"), Op::Concat(c) if c.axis == 3) && slices("second", half) && slices("first", 0)
}
