//! Softmax and normalisations over the last dimension, which must be whole, with gradient ops of
//! their own for speed.

use super::captures::Captures;
use super::{Backward, Linear, NoGradient, Raise, Rules, named};
use crate::graph::{Graph, ValueId};
use crate::kernel::{Kernel, RowProgram, Rowwise};
use crate::letters::{Letters, Role};
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// `exp(x) / sum exp(x)` over the last dimension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Softmax {}
named!(Softmax, "softmax");

/// `y, dy -> dx`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxGrad {}
named!(SoftmaxGrad, "softmax_grad");

/// `x, scale, bias -> y, mean, rstd`; scale and bias are vectors, the statistics lack the last
/// dimension. Ba, Kiros, Hinton: Layer Normalization (2016).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}
named!(LayerNorm, "layer_norm");

/// `x, scale, mean, rstd, dy -> dx`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerNormGrad {}
named!(LayerNormGrad, "layer_norm_grad");

/// `x, scale -> y, rstd`. Zhang, Sennrich: Root Mean Square Layer Normalization (2019).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f64,
}
named!(RmsNorm, "rms_norm");

/// `x, scale, rstd, dy -> dx`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RmsNormGrad {}
named!(RmsNormGrad, "rms_norm_grad");

/// The shape of an operand or result.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// `[rows…, width]`
    Rows,
    /// `[width]`
    Vector,
    /// `[rows…]`
    Statistics,
}
use Shape::{Rows, Statistics, Vector};

/// The signature of a row op: all types follow from the first operand.
struct Signature {
    operands: &'static [Shape],
    results: &'static [Shape],
}

impl Signature {
    fn of(shape: Shape, x: &Type) -> Type {
        let width = x.rank() - 1;
        match shape {
            Rows => x.clone(),
            Vector => Type::new(x.dtype, &x.shape[width..]),
            Statistics => Type::new(x.dtype, &x.shape[..width]),
        }
    }

    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let x = operands.first().ok_or("takes operands")?;
        if !x.dtype.is_float() || x.rank() == 0 {
            return Err(reason!("the first operand is {x}"));
        }
        let expected: Vec<Type> = self.operands.iter().map(|s| Signature::of(*s, x)).collect();
        if expected != operands {
            let texts = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
            return Err(reason!("takes {}, not {}", texts(&expected), texts(operands)));
        }
        Ok(self.results.iter().map(|s| Signature::of(*s, x)).collect())
    }

    fn letters(&self, operands: &[Type]) -> Letters {
        let mut letters = Letters::new();
        let (width, rows) = operands[0].shape.split_last().expect("the node was built");
        let rows: Vec<Vec<usize>> = rows.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect();
        let width = vec![letters.letter(*width, Role::Whole)];
        let dims = |shape: &Shape| match shape {
            Rows => rows.iter().cloned().chain([width.clone()]).collect(),
            Vector => vec![width.clone()],
            Statistics => rows.clone(),
        };
        letters.operands = self.operands.iter().map(dims).collect();
        letters.results = self.results.iter().map(dims).collect();
        letters
    }

    fn lower(&self, cx: &LowerContext<'_>, program: RowProgram) -> Lowered {
        let x = &cx.operands[0];
        let width = x.local[x.local.len() - 1];
        let rows = x.local[..x.local.len() - 1].iter().product();
        let kernel = Rowwise { dtype: x.ty.dtype, rows, width, program };
        Lowered::launch(Kernel::Rowwise(kernel), self.operands.len(), self.results.len())
    }
}

macro_rules! row_op {
    ($ty:ty, $operands:expr => $results:expr, $linear:expr, $program:expr, $gradient:expr) => {
        impl Rules for $ty {
            fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
                Signature { operands: &$operands, results: &$results }.result(operands)
            }
            fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
                Signature { operands: &$operands, results: &$results }.letters(operands)
            }
            fn linear(&self, _: &[Type]) -> Linear {
                $linear
            }
            fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
                let gradient: fn(&mut Backward<'_>) -> Result<(), NoGradient> = $gradient;
                gradient(cx)
            }
            fn positions(&self) -> bool {
                false
            }
            fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
                let program: fn(&$ty) -> RowProgram = $program;
                Signature { operands: &$operands, results: &$results }.lower(cx, program(self))
            }
        }
    };
}

row_op!(Softmax, [Rows] => [Rows], Linear::No, |_| RowProgram::Softmax, |cx| {
    let (y, g) = (cx.results[0], cx.grad());
    let dx = cx.b.op(SoftmaxGrad {}, &[y, g]);
    cx.give(0, dx);
    Ok(())
});

row_op!(SoftmaxGrad, [Rows, Rows] => [Rows], Linear::Only(1), |_| RowProgram::SoftmaxGrad, |_| Err(NoGradient::NotOfModels));

row_op!(
    LayerNorm,
    [Rows, Vector, Vector] => [Rows, Statistics, Statistics],
    Linear::No,
    |op| RowProgram::LayerNorm { eps: op.eps },
    |cx| {
        let (x, scale, mean, rstd, g) = (cx.operands[0], cx.operands[1], cx.results[1], cx.results[2], cx.grad());
        if cx.needs[0] {
            let dx = cx.b.op(LayerNormGrad {}, &[x, scale, mean, rstd, g]);
            cx.give(0, dx);
        }
        if cx.needs[1] {
            let mean = column(cx, mean);
            let centered = cx.b.sub(x, mean);
            scale_gradient(cx, centered, rstd, g);
        }
        if cx.needs[2] {
            cx.give(2, g);
        }
        Ok(())
    }
);

row_op!(
    LayerNormGrad,
    [Rows, Vector, Statistics, Statistics, Rows] => [Rows],
    Linear::Only(4),
    |_| RowProgram::LayerNormGrad,
    |_| Err(NoGradient::NotOfModels)
);

row_op!(
    RmsNorm,
    [Rows, Vector] => [Rows, Statistics],
    Linear::No,
    |op| RowProgram::RmsNorm { eps: op.eps },
    |cx| {
        let (x, scale, rstd, g) = (cx.operands[0], cx.operands[1], cx.results[1], cx.grad());
        if cx.needs[0] {
            let dx = cx.b.op(RmsNormGrad {}, &[x, scale, rstd, g]);
            cx.give(0, dx);
        }
        if cx.needs[1] {
            scale_gradient(cx, x, rstd, g);
        }
        Ok(())
    }
);

row_op!(
    RmsNormGrad,
    [Rows, Vector, Statistics, Rows] => [Rows],
    Linear::Only(3),
    |_| RowProgram::RmsNormGrad,
    |_| Err(NoGradient::NotOfModels)
);

/// Gives operand 1 the sum over rows of `g * x * rstd`.
fn scale_gradient(cx: &mut Backward<'_>, x: ValueId, rstd: ValueId, g: ValueId) {
    let rstd = column(cx, rstd);
    let normal = cx.b.mul(x, rstd);
    let product = cx.b.mul(g, normal);
    cx.give(1, product);
}

/// Statistics `[rows…]` as `[rows…, 1]`.
fn column(cx: &mut Backward<'_>, statistics: ValueId) -> ValueId {
    let mut shape = cx.b.ty(statistics).shape.clone();
    shape.push(1);
    cx.b.reshape(statistics, &shape)
}

/// The forms in which exporters write normalisations.
pub const RAISES: &[Raise] = &[
    Raise {
        pattern: "add(mul(div(sub(x, mean(x)), sqrt(add(mean(pow(sub(x, mean(x)), 2)), $eps))), w), b)",
        build: |graph, c| {
            let vectors = is_vector(graph, c, "w") && is_vector(graph, c, "b");
            (vectors && has_eps(c)).then(|| (LayerNorm { eps: c.numbers["eps"] }.into(), vec!["x", "w", "b"]))
        },
    },
    Raise {
        pattern: "mul(w, mul(x, reciprocal(sqrt(add(mean(pow(x, 2)), $eps)))))",
        build: |graph, c| {
            (is_vector(graph, c, "w") && has_eps(c)).then(|| (RmsNorm { eps: c.numbers["eps"] }.into(), vec!["x", "w"]))
        },
    },
    Raise {
        pattern: "mul(w, div(x, sqrt(add(mean(pow(x, 2)), $eps))))",
        build: |graph, c| {
            (is_vector(graph, c, "w") && has_eps(c)).then(|| (RmsNorm { eps: c.numbers["eps"] }.into(), vec!["x", "w"]))
        },
    },
    Raise {
        pattern: "mul(w, mul(x, reciprocal(sqrt(add(mean(mul(x, x)), $eps)))))",
        build: |graph, c| {
            (is_vector(graph, c, "w") && has_eps(c)).then(|| (RmsNorm { eps: c.numbers["eps"] }.into(), vec!["x", "w"]))
        },
    },
];

/// Whether a captured value is a vector over the last dimension of `x`.
fn is_vector(graph: &Graph, captures: &Captures, name: &str) -> bool {
    let x = graph.ty(captures.values["x"]);
    x.rank() > 0 && graph.ty(captures.values[name]).shape == x.shape[x.rank() - 1..]
}

/// Whether the captured epsilon is one: no op has another.
fn has_eps(captures: &Captures) -> bool {
    captures.numbers["eps"].is_finite()
}
