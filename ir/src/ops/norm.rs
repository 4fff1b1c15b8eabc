//! Softmax and normalisations over the last dimension, which must be whole, with gradient ops of
//! their own for speed.

use super::captures::Captures;
use super::{Backward, Linear, NoGradient, Raise, Rules, named};
use crate::dtype::DType;
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
    /// The type of `y` where it is not that of `x`: it may be rounded to 16 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}
named!(LayerNorm, "layer_norm");

/// `x, scale, mean, rstd, dy -> dx`; `dy` may have 16 bits where `x` is f32
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerNormGrad {}
named!(LayerNormGrad, "layer_norm_grad");

/// `x, scale -> y, rstd`. Zhang, Sennrich: Root Mean Square Layer Normalization (2019).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// The type of `y` where it is not that of `x`: it may be rounded to 16 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}
named!(RmsNorm, "rms_norm");

/// `x, scale, rstd, dy -> dx`; `dy` may have 16 bits where `x` is f32
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RmsNormGrad {}
named!(RmsNormGrad, "rms_norm_grad");

/// The shape of an operand or result.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// `[rows…, width]`
    Rows,
    /// The same, of 16 bits where the op says so
    Flow,
    /// `[width]`
    Vector,
    /// `[rows…]`
    Statistics,
}
use Shape::{Flow, Rows, Statistics, Vector};

/// The signature of a row op: all types follow from the first operand.
struct Signature {
    operands: &'static [Shape],
    results: &'static [Shape],
}

impl Signature {
    /// The type of a shape, of which `flow` is that of what flows.
    fn of(shape: Shape, x: &Type, flow: DType) -> Type {
        let width = x.rank() - 1;
        match shape {
            Rows => x.clone(),
            Flow => x.with_dtype(flow),
            Vector => Type::new(x.dtype, &x.shape[width..]),
            Statistics => Type::new(x.dtype, &x.shape[..width]),
        }
    }

    fn result(&self, operands: &[Type], dtype: Option<DType>) -> Result<Vec<Type>, Reason> {
        let x = operands.first().ok_or("takes operands")?;
        if !x.dtype.is_float() || x.rank() == 0 {
            return Err(reason!("the first operand is {x}"));
        }
        let is_rounding = |dtype: &DType| dtype.is_half() && dtype.computed() == x.dtype;
        let read = self.operands.iter().zip(operands).find(|(shape, _)| **shape == Flow).map(|(_, ty)| ty.dtype);
        let flow = read.filter(is_rounding).unwrap_or(x.dtype);
        let expected: Vec<Type> = self.operands.iter().map(|s| Signature::of(*s, x, flow)).collect();
        if expected != operands {
            let texts = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
            return Err(reason!("takes {}, not {}", texts(&expected), texts(operands)));
        }
        if let Some(dtype) = dtype.filter(|dtype| !is_rounding(dtype)) {
            return Err(reason!("{dtype} is no rounding of {}", x.dtype));
        }
        Ok(self.results.iter().map(|s| Signature::of(*s, x, dtype.unwrap_or(x.dtype))).collect())
    }

    fn letters(&self, operands: &[Type]) -> Letters {
        let mut letters = Letters::new();
        let (width, rows) = operands[0].shape.split_last().expect("the node was built");
        let rows: Vec<Vec<usize>> = rows.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect();
        let width = vec![letters.letter(*width, Role::Whole)];
        let dims = |shape: &Shape| match shape {
            Rows | Flow => rows.iter().cloned().chain([width.clone()]).collect(),
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
        let all = self.operands.iter().zip(cx.operands).chain(self.results.iter().zip(cx.results));
        let flow = { all }.find(|(shape, _)| **shape == Flow).map_or(x.ty.dtype, |(_, extent)| extent.ty.dtype);
        let kernel = Rowwise { dtype: x.ty.dtype, flow, rows, width, program };
        Lowered::launch(Kernel::Rowwise(kernel), self.operands.len(), self.results.len())
    }
}

macro_rules! row_op {
    ($ty:ty, $operands:expr => $results:expr, $dtype:expr, $linear:expr, $program:expr, $gradient:expr) => {
        impl Rules for $ty {
            fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
                let dtype: fn(&$ty) -> Option<DType> = $dtype;
                Signature { operands: &$operands, results: &$results }.result(operands, dtype(self))
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

row_op!(Softmax, [Rows] => [Rows], |_| None, Linear::No, |_| RowProgram::Softmax, |cx| {
    let (y, g) = (cx.results[0], cx.grad());
    let dx = cx.b.op(SoftmaxGrad {}, &[y, g]);
    cx.give(0, dx);
    Ok(())
});

row_op!(
    SoftmaxGrad,
    [Rows, Rows] => [Rows],
    |_| None,
    Linear::Only(1),
    |_| RowProgram::SoftmaxGrad,
    |_| Err(NoGradient::NotOfModels)
);

row_op!(
    LayerNorm,
    [Rows, Vector, Vector] => [Flow, Statistics, Statistics],
    |op| op.dtype,
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
    [Rows, Vector, Statistics, Statistics, Flow] => [Rows],
    |_| None,
    Linear::Only(4),
    |_| RowProgram::LayerNormGrad,
    |_| Err(NoGradient::NotOfModels)
);

row_op!(
    RmsNorm,
    [Rows, Vector] => [Flow, Statistics],
    |op| op.dtype,
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
    [Rows, Vector, Statistics, Flow] => [Rows],
    |_| None,
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
            (vectors && has_eps(c)).then(|| (LayerNorm { eps: c.numbers["eps"], dtype: None }.into(), vec!["x", "w", "b"]))
        },
    },
    Raise {
        pattern: "mul(w, mul(x, reciprocal(sqrt(add(mean(pow(x, 2)), $eps)))))",
        build: |graph, c| {
            (is_vector(graph, c, "w") && has_eps(c))
                .then(|| (RmsNorm { eps: c.numbers["eps"], dtype: None }.into(), vec!["x", "w"]))
        },
    },
    Raise {
        pattern: "mul(w, div(x, sqrt(add(mean(pow(x, 2)), $eps))))",
        build: |graph, c| {
            (is_vector(graph, c, "w") && has_eps(c))
                .then(|| (RmsNorm { eps: c.numbers["eps"], dtype: None }.into(), vec!["x", "w"]))
        },
    },
    Raise {
        pattern: "mul(w, mul(x, reciprocal(sqrt(add(mean(mul(x, x)), $eps)))))",
        build: |graph, c| {
            (is_vector(graph, c, "w") && has_eps(c))
                .then(|| (RmsNorm { eps: c.numbers["eps"], dtype: None }.into(), vec!["x", "w"]))
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
