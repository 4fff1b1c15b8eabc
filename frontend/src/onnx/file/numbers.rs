//! The elements of a weight as numbers, read where the file has them.

use super::tensor::Weight;
use half::{bf16, f16};
use shardc_ir::dtype::DType;
use std::borrow::Cow;
use tract_onnx::pb::tensor_proto::DataType;

/// The elements of a weight, row-major, each made a number when it is asked for.
#[derive(Debug)]
pub struct Numbers<'w> {
    bytes: Cow<'w, [u8]>,
    stored: DataType,
    is_rounded: bool,
    width: usize,
}

impl<'w> Numbers<'w> {
    /// The elements of `weight`; none where they cannot be had.
    pub fn of(weight: &'w Weight) -> Option<Numbers<'w>> {
        weight.check().ok()?;
        let (stored, bytes) = (weight.stored_as(), weight.stored().ok()?);
        let is_rounded = stored == DataType::Double && weight.ty.dtype == DType::F32;
        let width = bytes.len().checked_div(usize::try_from(weight.ty.elements()).ok()?).unwrap_or(1).max(1);
        Some(Numbers { bytes, stored, is_rounded, width })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// The element at a place; 0 where there is none.
    pub fn at(&self, place: usize) -> f64 {
        let data = self.bytes.get(place * self.width..).unwrap_or_default();
        self.number(data)
    }

    /// All elements in their order.
    pub fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        self.bytes.chunks_exact(self.width).map(|data| self.number(data))
    }

    fn number(&self, data: &[u8]) -> f64 {
        fn word<const N: usize>(data: &[u8]) -> [u8; N] {
            data.first_chunk().copied().unwrap_or([0; N])
        }
        match self.stored {
            DataType::Float => f32::from_le_bytes(word(data)).into(),
            DataType::Double if self.is_rounded => (f64::from_le_bytes(word(data)) as f32).into(),
            DataType::Double => f64::from_le_bytes(word(data)),
            DataType::Float16 => f16::from_le_bytes(word(data)).to_f64(),
            DataType::Bfloat16 => bf16::from_le_bytes(word(data)).to_f64(),
            DataType::Bool => f64::from(u8::from(word::<1>(data) != [0])),
            DataType::Int8 => i8::from_le_bytes(word(data)).into(),
            DataType::Uint8 => u8::from_le_bytes(word(data)).into(),
            DataType::Int16 => i16::from_le_bytes(word(data)).into(),
            DataType::Uint16 => u16::from_le_bytes(word(data)).into(),
            DataType::Int32 => i32::from_le_bytes(word(data)).into(),
            DataType::Uint32 => u32::from_le_bytes(word(data)).into(),
            DataType::Uint64 => u64::from_le_bytes(word(data)) as f64,
            _ => i64::from_le_bytes(word(data)) as f64,
        }
    }
}
