//! Elementwise ops with numpy broadcasting.

use super::{Backward, Linear, NoGradient, Raise, Rules, named, named_by_function};
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::letters::Letters;
use crate::lower::{LowerContext, Lowered};
use crate::scalar::{Binary, Instr, Unary};
use crate::types::Type;
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

pub use super::functions::UnaryFn;

/// `f(x)`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UnaryOp {
    /// The function.
    pub f: UnaryFn,
}
named_by_function!(UnaryOp, UnaryFn);

impl Rules for UnaryOp {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [x] = operands else { return Err("takes one operand".into()) };
        Ok(vec![if self.f.is_logical() { x.with_dtype(DType::Bool) } else { x.clone() }])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        if self.f == UnaryFn::Scalar(Unary::Neg) { Linear::Together } else { Linear::No }
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, y, g) = (cx.operands[0], cx.results[0], cx.grad());
        let b = &mut *cx.b;
        let dx = match self.f {
            UnaryFn::Scalar(f) => match f {
                Unary::Neg => b.unary(Unary::Neg.into(), g),
                Unary::Abs => {
                    let sign = b.unary(Unary::Sign.into(), x);
                    b.mul(g, sign)
                }
                Unary::Exp => b.mul(g, y),
                Unary::Log => b.div(g, x),
                Unary::Sqrt => {
                    let half = b.scale(g, 0.5);
                    b.div(half, y)
                }
                Unary::Reciprocal => {
                    let square = b.mul(y, y);
                    let product = b.mul(g, square);
                    b.unary(Unary::Neg.into(), product)
                }
                Unary::Sin => {
                    let cos = b.unary(Unary::Cos.into(), x);
                    b.mul(g, cos)
                }
                Unary::Cos => {
                    let sin = b.unary(Unary::Sin.into(), x);
                    let product = b.mul(g, sin);
                    b.unary(Unary::Neg.into(), product)
                }
                Unary::Atan => {
                    let square = b.mul(x, x);
                    let divisor = b.offset(square, 1.0);
                    b.div(g, divisor)
                }
                Unary::Tanh => {
                    let slope = one_minus_square(b, y);
                    b.mul(g, slope)
                }
                Unary::Erf => {
                    let bell = bell(b, x, -1.0);
                    let slope = b.scale(bell, FRAC_2_SQRT_PI);
                    b.mul(g, slope)
                }
                Unary::Sigmoid => {
                    let square = b.mul(y, y);
                    let slope = b.sub(y, square);
                    b.mul(g, slope)
                }
                Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not | Unary::IsNan => {
                    return Err(NoGradient::Constant);
                }
            },
            UnaryFn::Relu => {
                let zero = b.number_like(x, 0.0);
                let positive = b.binary(Binary::Lt, zero, x);
                b.select(positive, g, zero)
            }
            UnaryFn::Gelu => {
                let scaled = b.scale(x, FRAC_1_SQRT_2);
                let erf = b.unary(Unary::Erf.into(), scaled);
                let sum = b.offset(erf, 1.0);
                let cdf = b.scale(sum, 0.5);
                let bell = bell(b, x, -0.5);
                let density = b.scale(bell, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
                let tail = b.mul(x, density);
                let slope = b.add(cdf, tail);
                b.mul(g, slope)
            }
            UnaryFn::GeluTanh => {
                let slope = gelu_tanh_slope(b, x);
                b.mul(g, slope)
            }
            UnaryFn::Silu => {
                let s = b.unary(Unary::Sigmoid.into(), x);
                // s (1 + x (1 - s)) = s + y - y s
                let ys = b.mul(y, s);
                let sum = b.add(s, y);
                let slope = b.sub(sum, ys);
                b.mul(g, slope)
            }
            UnaryFn::Softplus => {
                let s = b.unary(Unary::Sigmoid.into(), x);
                b.mul(g, s)
            }
        };
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::map(Some(cx.operands[0].ty.dtype), 1, |w, x| vec![self.f.write(w, x[0])])
    }
}

fn one_minus_square(b: &mut crate::builder::Builder, y: ValueId) -> ValueId {
    let square = b.mul(y, y);
    let negative = b.unary(Unary::Neg.into(), square);
    b.offset(negative, 1.0)
}

/// `exp(factor * x^2)`
fn bell(b: &mut crate::builder::Builder, x: ValueId, factor: f64) -> ValueId {
    let square = b.mul(x, x);
    let scaled = b.scale(square, factor);
    b.unary(Unary::Exp.into(), scaled)
}

fn gelu_tanh_slope(b: &mut crate::builder::Builder, x: ValueId) -> ValueId {
    let c = (2.0 / PI).sqrt();
    let square = b.mul(x, x);
    let cubic = b.scale(square, 0.044715 * c);
    let factor = b.offset(cubic, c);
    let inner = b.mul(x, factor);
    let tanh = b.unary(Unary::Tanh.into(), inner);
    let triple = b.scale(square, 3.0 * 0.044715 * c);
    let inner_slope = b.offset(triple, c);
    let tanh_slope = one_minus_square(b, tanh);
    let chain = b.mul(tanh_slope, inner_slope);
    let tail = b.mul(x, chain);
    let sum = b.add(tanh, tail);
    let plus_one = b.offset(sum, 1.0);
    b.scale(plus_one, 0.5)
}

/// `f(a, b)`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BinaryOp {
    /// The function.
    pub f: Binary,
}
named_by_function!(BinaryOp, Binary);

impl Rules for BinaryOp {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [a, b] = operands else { return Err("takes two operands".into()) };
        if a.dtype != b.dtype {
            return Err(format!("operands are {} and {}", a.dtype, b.dtype));
        }
        let shape = broadcast_shape(&a.shape, &b.shape)?;
        Ok(vec![Type::new(if self.f.is_logical() { DType::Bool } else { a.dtype }, shape)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, operands: &[Type]) -> Linear {
        match self.f {
            Binary::Add | Binary::Sub => Linear::Together,
            Binary::Mul => Linear::Each,
            // Integers are truncated.
            Binary::Div if operands[0].dtype.is_float() => Linear::Only(0),
            _ => Linear::No,
        }
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (x, y, z, g) = (cx.operands[0], cx.operands[1], cx.results[0], cx.grad());
        let (wants_x, wants_y) = (cx.needs[0], cx.needs[1]);
        let b = &mut *cx.b;
        let (dx, dy) = match self.f {
            Binary::Add => (Some(g), Some(g)),
            Binary::Sub => (Some(g), wants_y.then(|| b.unary(Unary::Neg.into(), g))),
            Binary::Mul => (wants_x.then(|| b.mul(g, y)), wants_y.then(|| b.mul(g, x))),
            Binary::Div => {
                let quotient = b.div(g, y);
                let dy = wants_y.then(|| {
                    let product = b.mul(quotient, z);
                    b.unary(Unary::Neg.into(), product)
                });
                (Some(quotient), dy)
            }
            Binary::Pow => {
                let dx = wants_x.then(|| {
                    let less = b.offset(y, -1.0);
                    let power = b.binary(Binary::Pow, x, less);
                    let slope = b.mul(y, power);
                    b.mul(g, slope)
                });
                let dy = wants_y.then(|| {
                    let log = b.unary(Unary::Log.into(), x);
                    let slope = b.mul(z, log);
                    b.mul(g, slope)
                });
                (dx, dy)
            }
            Binary::Max | Binary::Min => {
                let (low, high) = if self.f == Binary::Max { (y, x) } else { (x, y) };
                let first = b.binary(Binary::Le, low, high);
                let zero = b.number_like(g, 0.0);
                (Some(b.select(first, g, zero)), Some(b.select(first, zero, g)))
            }
            Binary::Mod => {
                let dy = wants_y.then(|| {
                    let quotient = b.div(x, y);
                    let whole = b.unary(Unary::Floor.into(), quotient);
                    let product = b.mul(g, whole);
                    b.unary(Unary::Neg.into(), product)
                });
                (Some(g), dy)
            }
            Binary::Eq | Binary::Lt | Binary::Le | Binary::And | Binary::Or | Binary::Xor => {
                return Err(NoGradient::Constant);
            }
        };
        for (i, gradient, wanted) in [(0, dx, wants_x), (1, dy, wants_y)] {
            if let (Some(gradient), true) = (gradient, wanted) {
                cx.give(i, gradient);
            }
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::map(Some(cx.operands[0].ty.dtype), 2, |w, x| vec![w.binary(self.f, x[0], x[1])])
    }
}

/// The shape that both broadcast to.
pub fn broadcast_shape(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
    let rank = a.len().max(b.len());
    let size = |s: &[u64], d: usize| if d + s.len() >= rank { s[d + s.len() - rank] } else { 1 };
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (1, n) | (n, 1) => Ok(n),
            (m, n) if m == n => Ok(n),
            _ => Err(format!("shapes {a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

/// `a` where the condition holds, else `b`; operands are condition, a, b.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Where {}
named!(Where, "where");

impl Rules for Where {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [c, a, b] = operands else { return Err("takes three operands".into()) };
        if c.dtype != DType::Bool || a.dtype != b.dtype {
            return Err(format!("operands are {}, {} and {}", c.dtype, a.dtype, b.dtype));
        }
        let shape = broadcast_shape(&broadcast_shape(&c.shape, &a.shape)?, &b.shape)?;
        Ok(vec![Type::new(a.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Branches
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (condition, g) = (cx.operands[0], cx.grad());
        let zero = cx.b.number_like(g, 0.0);
        if cx.needs[1] {
            let da = cx.b.select(condition, g, zero);
            cx.give(1, da);
        }
        if cx.needs[2] {
            let db = cx.b.select(condition, zero, g);
            cx.give(2, db);
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::map(Some(cx.operands[1].ty.dtype), 3, |w, x| vec![w.push(Instr::Select(x[0], x[1], x[2]))])
    }
}

/// The same numbers as another element type: floats to integers truncate, to truth values compare with 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    /// The result's element type.
    pub dtype: DType,
}
named!(Cast, "cast");

impl Rules for Cast {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [x] = operands else { return Err("takes one operand".into()) };
        Ok(vec![x.with_dtype(self.dtype)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let dtype = cx.b.ty(cx.operands[0]).dtype;
        if !self.dtype.is_float() || !dtype.is_float() {
            return Err(NoGradient::Constant);
        }
        let g = cx.grad();
        let dx = cx.b.cast(g, dtype);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let from = cx.operands[0].ty.dtype;
        let compute = match (from, self.dtype) {
            (DType::F64, _) | (_, DType::F64) => DType::F64,
            (DType::I64, DType::I64 | DType::Bool) | (DType::Bool, DType::I64) => DType::I64,
            _ => DType::F32,
        };
        Lowered::map(Some(compute), 1, |w, x| {
            if self.dtype != DType::Bool || from == DType::Bool {
                return vec![x[0]];
            }
            let zero = w.number(0.0);
            let is_zero = w.binary(Binary::Eq, x[0], zero);
            vec![w.unary(Unary::Not, is_zero)]
        })
    }
}

/// The same value, but nothing flows back through it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Detach {}
named!(Detach, "detach");

impl Rules for Detach {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [x] = operands else { return Err("takes one operand".into()) };
        Ok(vec![x.clone()])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::Constant)
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, _: &LowerContext<'_>) -> Lowered {
        Lowered::Alias(0)
    }
}

/// The forms in which exporters write activations.
pub const RAISES: &[Raise] = &[
    Raise {
        pattern: "mul(mul(x, 0.5), add(tanh(mul(add(x, mul(pow(x, 3), 0.044715)), 0.7978845608)), 1))",
        build: |_, _| Some((UnaryOp { f: UnaryFn::GeluTanh }.into(), vec!["x"])),
    },
    Raise {
        pattern: "mul(x, mul(add(tanh(mul(add(x, mul(pow(x, 3), 0.044715)), 0.7978845608)), 1), 0.5))",
        build: |_, _| Some((UnaryOp { f: UnaryFn::GeluTanh }.into(), vec!["x"])),
    },
    Raise {
        pattern: "mul(mul(x, add(erf(div(x, 1.41421356)), 1)), 0.5)",
        build: |_, _| Some((UnaryOp { f: UnaryFn::Gelu }.into(), vec!["x"])),
    },
    Raise {
        pattern: "mul(mul(x, 0.5), add(erf(mul(x, 0.70710678)), 1))",
        build: |_, _| Some((UnaryOp { f: UnaryFn::Gelu }.into(), vec!["x"])),
    },
    Raise {
        pattern: "mul(x, mul(add(erf(div(x, 1.41421356)), 1), 0.5))",
        build: |_, _| Some((UnaryOp { f: UnaryFn::Gelu }.into(), vec!["x"])),
    },
    Raise { pattern: "mul(x, sigmoid(x))", build: |_, _| Some((UnaryOp { f: UnaryFn::Silu }.into(), vec!["x"])) },
];
