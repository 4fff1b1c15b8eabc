//! ONNX's ops on the bits of integers, and the arithmetic of integers narrower than the 64 bits in
//! which all are held.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::dtype::DType;
use shardc_ir::ops::elementwise::broadcast_shape;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::Tensor;
use tract_onnx::pb::tensor_proto::DataType;

type Outputs = Result<Vec<Value>, Reason>;

/// An integer type narrower than 64 bits.
#[derive(Clone, Copy)]
pub(in crate::onnx) struct Narrow {
    bits: u32,
    signed: bool,
}

impl Narrow {
    /// The type of that name, if it is one.
    pub fn of(kind: DataType) -> Option<Narrow> {
        let (bits, signed) = match kind {
            DataType::Int8 => (8, true),
            DataType::Uint8 => (8, false),
            DataType::Int16 => (16, true),
            DataType::Uint16 => (16, false),
            DataType::Int32 => (32, true),
            DataType::Uint32 => (32, false),
            _ => return None,
        };
        Some(Narrow { bits, signed })
    }

    /// Integers modulo the number of values of the type.
    pub fn wrap(self, c: &mut Call<'_, '_>, x: &Value) -> Result<Value, Reason> {
        let count = (1u64 << self.bits) as f64;
        let low = if self.signed { count / 2.0 } else { 0.0 };
        let shifted = if self.signed { c.with_number(Binary::Add, x, low)? } else { x.clone() };
        let rest = c.with_number(Binary::Mod, &shifted, count)?;
        if self.signed { c.with_number(Binary::Sub, &rest, low) } else { Ok(rest) }
    }
}

/// Ops whose result may be outside the range of its integer type.
const GROWING: [&str; 23] = [
    "Abs",
    "Add",
    "BitShift",
    "BitwiseNot",
    "ConvInteger",
    "CumSum",
    "Div",
    "Einsum",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "Mul",
    "Neg",
    "Pow",
    "ReduceL1",
    "ReduceL2",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "ScatterElements",
    "ScatterND",
    "Sub",
    "Sum",
];

/// The integers among the results of a node, as far as their types hold them.
pub(in crate::onnx) fn wrapped(c: &mut Call<'_, '_>, mut values: Vec<Value>) -> Outputs {
    let op = c.node.op_type.as_str();
    if !GROWING.contains(&op) {
        return Ok(values);
    }
    for (i, value) in values.iter_mut().enumerate() {
        let kind = c.result_kind(i).filter(|_| c.ty(value).is_ok_and(|ty| ty.dtype == DType::I64));
        match kind {
            Some(DataType::Uint64) => return Err("arithmetic of uint64 is not supported".into()),
            Some(kind) => {
                if let Some(narrow) = Narrow::of(kind) {
                    *value = narrow.wrap(c, value)?;
                }
            }
            None => {}
        }
    }
    Ok(values)
}

/// Bits moved left or right
pub(in crate::onnx) fn bit_shift(c: &mut Call<'_, '_>) -> Outputs {
    let (x, distance) = (c.input(0)?, c.input(1)?);
    integers(c, &[&x, &distance])?;
    let two = c.number(&distance, 2.0)?;
    let factor = c.binary(Binary::Pow, &two, &distance)?;
    match c.attribute_string("direction", "")?.as_str() {
        "LEFT" => Ok(vec![c.binary(Binary::Mul, &x, &factor)?]),
        "RIGHT" => Ok(vec![c.binary(Binary::Div, &x, &factor)?]),
        other => Err(reason!("its direction is `{other}`")),
    }
}

/// Every bit turned over
pub(in crate::onnx) fn bitwise_not(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    integers(c, &[&x])?;
    let negative = c.unary(Unary::Neg, &x)?;
    Ok(vec![c.with_number(Binary::Sub, &negative, 1.0)?])
}

/// Bits that are in both
pub(in crate::onnx) fn bitwise_and(c: &mut Call<'_, '_>) -> Outputs {
    bitwise(c, |a, b| a & b)
}

/// Bits that are in either
pub(in crate::onnx) fn bitwise_or(c: &mut Call<'_, '_>) -> Outputs {
    bitwise(c, |a, b| a | b)
}

/// Bits that are in one only
pub(in crate::onnx) fn bitwise_xor(c: &mut Call<'_, '_>) -> Outputs {
    bitwise(c, |a, b| a ^ b)
}

fn bitwise(c: &mut Call<'_, '_>, f: fn(i64, i64) -> i64) -> Outputs {
    let operands = [c.known(0, "first operand")?, c.known(1, "second operand")?];
    integers(c, &[&Value::Known(operands[0].clone()), &Value::Known(operands[1].clone())])?;
    let shape = broadcast_shape(&operands[0].ty.shape, &operands[1].ty.shape)?;
    let [a, b] = operands.map(|x| c.broadcast(&Value::Known(x), shape.clone()));
    let (Some(a), Some(b)) = (a?.tensor(), b?.tensor()) else { return Err(reason!("{shape:?} is too large")) };
    let bits: Vec<i64> = a.to_i64().into_iter().zip(b.to_i64()).map(|(a, b)| f(a, b)).collect();
    Ok(vec![Value::Known(Tensor::from_i64(shape, &bits))])
}

fn integers(c: &Call<'_, '_>, operands: &[&Value]) -> Result<(), Reason> {
    for operand in operands {
        if c.ty(operand)?.dtype != DType::I64 {
            return Err(reason!("an operand is {}, not integers", c.ty(operand)?));
        }
    }
    Ok(())
}
