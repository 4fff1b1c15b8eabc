//! Elementwise ops with numpy broadcasting.

use super::{Backward, Linear, NoGradient, Raise, Rules, named, named_by_function};
use crate::builder::Builder;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::letters::Letters;
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::scalar::{Binary, Instr, ProgramWriter, Reg, Rounding, ScalarProgram, Unary};
use crate::types::Type;
use serde::{Deserialize, Serialize};

pub use super::functions::UnaryFn;

/// `f(x)`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UnaryOp {
    /// The function.
    pub f: UnaryFn,
}
named_by_function!(UnaryOp, UnaryFn);

impl Rules for UnaryOp {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        if !x.dtype.is_float() && self.f.integer(0).is_none() {
            return Err(reason!("takes floats, not {x}"));
        }
        Ok(vec![if self.f.is_logical() { x.with_dtype(DType::Bool) } else { x.clone() }])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        if self.f == UnaryFn::Scalar(Unary::Neg) { Linear::Together } else { Linear::No }
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let derivative = self.f.derivative().ok_or(NoGradient::Constant)?;
        let program = ProgramWriter::program(3, |w, x| vec![derivative(w, [x[0], x[1], x[2]])]);
        let arguments = [cx.operands[0], cx.results[0], cx.grad()];
        let dx = nodes(cx.b, &program, &arguments);
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

/// The one result of a scalar program as nodes over whole values.
fn nodes(b: &mut Builder, program: &ScalarProgram, arguments: &[ValueId]) -> ValueId {
    let mut registers = arguments.to_vec();
    let at = |registers: &[ValueId], register: Reg| registers[register as usize];
    for instr in &program.code {
        let value = match *instr {
            Instr::Const(number) => b.number_like(arguments[0], number),
            Instr::Unary(f, x) => b.unary(f.into(), at(&registers, x)),
            Instr::Binary(f, x, y) => b.binary(f, at(&registers, x), at(&registers, y)),
            Instr::Select(c, x, y) => b.select(at(&registers, c), at(&registers, x), at(&registers, y)),
            Instr::Index(_) | Instr::Round(..) => unreachable!("a derivative has no positions and no roundings"),
        };
        registers.push(value);
    }
    at(&registers, program.outputs[0])
}

/// `f(a, b)`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BinaryOp {
    /// The function.
    pub f: Binary,
}
named_by_function!(BinaryOp, Binary);

impl Rules for BinaryOp {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [a, b] = operands else { return Err("takes two operands".into()) };
        if a.dtype != b.dtype {
            return Err(reason!("operands are {} and {}", a.dtype, b.dtype));
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
pub fn broadcast_shape(a: &[u64], b: &[u64]) -> Result<Vec<u64>, Reason> {
    let rank = a.len().max(b.len());
    let size = |s: &[u64], d: usize| if d + s.len() >= rank { s[d + s.len() - rank] } else { 1 };
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (1, n) | (n, 1) => Ok(n),
            (m, n) if m == n => Ok(n),
            _ => Err(reason!("shapes {a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

/// `a` where the condition holds, else `b`; operands are condition, a, b.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Where {}
named!(Where, "where");

impl Rules for Where {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [c, a, b] = operands else { return Err("takes three operands".into()) };
        if c.dtype != DType::Bool || a.dtype != b.dtype {
            return Err(reason!("operands are {}, {} and {}", c.dtype, a.dtype, b.dtype));
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

/// The same numbers as another element type: floats to integers truncate, to truth values compare
/// with 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    /// The result's element type.
    pub dtype: DType,
}
named!(Cast, "cast");

impl Rules for Cast {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        Ok(vec![x.with_dtype(self.dtype)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    /// Rounding aside; which sums are rounded before they are complete is decided where reductions
    /// are placed.
    fn linear(&self, operands: &[Type]) -> Linear {
        if self.dtype.is_float() && operands[0].dtype.is_float() { Linear::Together } else { Linear::No }
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let dtype = cx.b.ty(cx.operands[0]).dtype;
        if !self.dtype.is_float() || !dtype.is_float() {
            return Err(NoGradient::Constant);
        }
        let g = cx.grad();
        let dx = cx.b.cast(g, dtype.computed());
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

/// The nearest numbers of a format that memory does not hold, in the type of the operand. What
/// flows back is rounded where it is read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundTo {
    /// The format.
    pub format: Rounding,
}
named!(RoundTo, "round_to");

impl Rules for RoundTo {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        match operands {
            [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
            _ => Err("takes one float operand".into()),
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
        Lowered::map(Some(cx.operands[0].ty.dtype), 1, |w, x| vec![w.round(self.format, x[0])])
    }
}

/// The same value, but nothing flows back through it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Detach {}
named!(Detach, "detach");

impl Rules for Detach {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
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
