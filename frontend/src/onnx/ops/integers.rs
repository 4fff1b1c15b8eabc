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

/// Whether a type has no sign.
fn is_unsigned(kind: DataType) -> bool {
    matches!(kind, DataType::Uint8 | DataType::Uint16 | DataType::Uint32 | DataType::Uint64)
}

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
    // To the right no number grows.
    if !GROWING.contains(&op) || (op == "BitShift" && c.attribute_string("direction", "")? == "RIGHT") {
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

/// Refuses a cast of `x`, the first input, to uint64 where a number may be none of those below
/// 2^63, which are all that can be held.
pub(in crate::onnx) fn check_uint64(c: &mut Call<'_, '_>, x: &Value) -> Result<(), Reason> {
    let kind = c.kind(0);
    if c.ty(x)?.dtype == DType::Bool || kind.is_some_and(is_unsigned) {
        return Ok(());
    }
    let Value::Known(tensor) = x else {
        let kind = kind.map_or("numbers of an unknown type".to_string(), |kind| kind.as_str_name().to_lowercase());
        let why = reason!("it casts {kind} to uint64, and what is negative would be 2^63 or more, which is not held");
        return Err(c.refused(why, "cast to int64, or through uint32 if all numbers are below 2^32"));
    };
    let lost = match tensor.ty.dtype {
        DType::I64 => tensor.integers().find(|n| *n < 0).map(|n| n.to_string()),
        // A float is truncated first.
        _ => tensor.to_f64().into_iter().find(|n| *n <= -1.0 || *n >= 2f64.powi(63)).map(|n| n.to_string()),
    };
    match lost {
        Some(n) => Err(c.refused(reason!("it casts {n} to uint64, of which only numbers below 2^63 are held"), "cast to int64")),
        None => Ok(()),
    }
}

/// Bits moved left or right
pub(in crate::onnx) fn bit_shift(c: &mut Call<'_, '_>) -> Outputs {
    let (x, distance) = (c.input(0)?, c.input(1)?);
    integers(c, &[&x, &distance])?;
    if let Some(kind) = [c.kind(0), c.kind(1)].into_iter().find(|kind| !kind.is_some_and(is_unsigned)) {
        let kind = kind.map_or("integers of an unknown type".to_string(), |kind| kind.as_str_name().to_lowercase());
        let help = "cast to an unsigned type, such as uint32, before the shift, and back behind it";
        return Err(c.refused(reason!("it shifts {kind}; ONNX shifts unsigned integers only"), help));
    }
    // Further than that nothing is left: each number is below 2^63, or has at most 32 bits.
    let distance = c.with_number(Binary::Min, &distance, 63.0)?;
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
