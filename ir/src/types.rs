//! The type of a value (global shape and element type) and the elements of constants.

use crate::dtype::DType;
use crate::limits::{MAX_ELEMENTS, MAX_RANK};
use half::{bf16, f16};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// A global tensor type: what the value would be on one imaginary device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
}

impl Type {
    /// A tensor type.
    pub fn new(dtype: DType, shape: impl Into<Vec<u64>>) -> Type {
        Type { dtype, shape: shape.into() }
    }

    /// A scalar type.
    pub fn scalar(dtype: DType) -> Type {
        Type { dtype, shape: vec![] }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The same shape with other elements.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        Type { dtype, shape: self.shape.clone() }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        write!(f, "{}[{}]", self.dtype, sizes.join(", "))
    }
}

/// The number of elements of `shape`, or `None` where it exceeds [`MAX_ELEMENTS`], or would if
/// empty dimensions had one element: so every product of some of its sizes is a number. Nor has any
/// shape more than [`MAX_RANK`] dimensions.
pub fn checked_elements(shape: &[u64]) -> Option<u64> {
    if shape.len() > MAX_RANK {
        return None;
    }
    let product = |least: u64| shape.iter().try_fold(1u64, |n, s| n.checked_mul((*s).max(least))).filter(|n| *n <= MAX_ELEMENTS);
    product(1).and_then(|_| product(0))
}

/// The elements of a constant, little-endian and row-major, shared between copies of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: Type,
    /// `ty.elements() * ty.dtype.bytes()` bytes.
    pub bytes: Arc<Vec<u8>>,
}

impl Tensor {
    /// A tensor of floats (or truth values or integers) from numbers; `values.len()` must be the
    /// number of elements.
    pub fn from_f64(ty: Type, values: &[f64]) -> Tensor {
        assert_eq!(ty.elements(), values.len() as u64, "as many values as elements");
        let mut bytes = Vec::with_capacity(values.len() * ty.dtype.bytes() as usize);
        for v in values {
            match ty.dtype {
                DType::F64 => bytes.extend(v.to_le_bytes()),
                DType::F32 => bytes.extend((*v as f32).to_le_bytes()),
                DType::BF16 => bytes.extend(bf16::from_f32(*v as f32).to_le_bytes()),
                DType::F16 => bytes.extend(f16::from_f32(*v as f32).to_le_bytes()),
                DType::I64 => bytes.extend((*v as i64).to_le_bytes()),
                DType::Bool => bytes.push(u8::from(*v != 0.0)),
            }
        }
        Tensor { ty, bytes: Arc::new(bytes) }
    }

    /// A tensor of integers.
    pub fn from_i64(shape: impl Into<Vec<u64>>, values: &[i64]) -> Tensor {
        let ty = Type::new(DType::I64, shape);
        assert_eq!(ty.elements(), values.len() as u64, "as many values as elements");
        let mut bytes = Vec::with_capacity(8 * values.len());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        Tensor { ty, bytes: Arc::new(bytes) }
    }

    /// A scalar.
    pub fn scalar(dtype: DType, value: f64) -> Tensor {
        Tensor::from_f64(Type::scalar(dtype), &[value])
    }

    /// The elements as f64 (truth values as 0 and 1).
    pub fn to_f64(&self) -> Vec<f64> {
        numbers(self.ty.dtype, &self.bytes)
    }

    /// The elements as f64, row by row of the last dimension.
    pub fn rows_of_f64(&self) -> impl Iterator<Item = Vec<f64>> {
        let elements = self.ty.shape.last().map_or(1, |size| *size as usize).max(1);
        let rows = self.bytes.chunks(elements * self.ty.dtype.bytes() as usize);
        rows.map(|row| numbers(self.ty.dtype, row))
    }

    /// The elements of a tensor of integers, one after another, without a list of them. Panics
    /// where they are of another type.
    pub fn integers(&self) -> impl ExactSizeIterator<Item = i64> + Clone {
        assert_eq!(self.ty.dtype, DType::I64, "integers are read");
        self.bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word))
    }

    /// The elements as integers; floats are truncated.
    pub fn to_i64(&self) -> Vec<i64> {
        match self.ty.dtype {
            DType::I64 => self.integers().collect(),
            _ => self.to_f64().into_iter().map(|v| v as i64).collect(),
        }
    }

    /// The one value that every element has, if there is one and a float holds it: integers beyond
    /// 2^53 may not be.
    pub fn splat(&self) -> Option<f64> {
        let width = self.ty.dtype.bytes() as usize;
        let first = self.bytes.get(..width)?;
        if !self.bytes.chunks_exact(width).all(|c| c == first) {
            return None;
        }
        let one = self.element(0);
        let number = one.to_f64()[0];
        (self.ty.dtype.is_float() || i128::from(one.to_i64()[0]) == number as i128).then_some(number)
    }

    /// Element `i` as a scalar. Panics where there is none.
    pub fn element(&self, i: usize) -> Tensor {
        let width = self.ty.dtype.bytes() as usize;
        Tensor { ty: Type::scalar(self.ty.dtype), bytes: Arc::new(self.bytes[i * width..(i + 1) * width].to_vec()) }
    }
}

/// Elements as f64.
fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F64 => bytes.as_chunks().0.iter().map(|c| f64::from_le_bytes(*c)).collect(),
        DType::I64 => bytes.as_chunks().0.iter().map(|c| i64::from_le_bytes(*c) as f64).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|c| f64::from(f32::from_le_bytes(*c))).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|c| bf16::from_le_bytes(*c).to_f64()).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|c| f16::from_le_bytes(*c).to_f64()).collect(),
        DType::Bool => bytes.iter().map(|b| f64::from(u8::from(*b != 0))).collect(),
    }
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.ty, to_hex(&self.bytes)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tensor, D::Error> {
        let (ty, hex): (Type, String) = Deserialize::deserialize(deserializer)?;
        let elements = checked_elements(&ty.shape).ok_or_else(|| serde::de::Error::custom("tensor too large"))?;
        let bytes = from_hex(&hex).filter(|b| b.len() as u64 == elements * ty.dtype.bytes());
        let bytes = bytes.ok_or_else(|| serde::de::Error::custom("tensor bytes do not fit its type"))?;
        Ok(Tensor { ty, bytes: Arc::new(bytes) })
    }
}

/// Two digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |d: u8| char::from(b"0123456789abcdef"[usize::from(d)]);
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

/// The bytes of such a text.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |d: u8| char::from(d).to_digit(16).map(|d| d as u8);
    let (pairs, []) = text.as_bytes().as_chunks() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}
