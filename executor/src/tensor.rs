//! Whole arrays on the host: what comes from files, and what a run gives back.

use half::{bf16, f16};
use shardc_ir::dtype::DType;

/// A row-major array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
}

impl From<shardc_ir::types::Tensor> for Tensor {
    fn from(tensor: shardc_ir::types::Tensor) -> Tensor {
        Tensor { dtype: tensor.ty.dtype, shape: tensor.ty.shape, bytes: std::sync::Arc::unwrap_or_clone(tensor.bytes) }
    }
}

impl From<Tensor> for shardc_ir::types::Tensor {
    fn from(tensor: Tensor) -> Self {
        let ty = shardc_ir::types::Type::new(tensor.dtype, tensor.shape);
        Self { ty, bytes: std::sync::Arc::new(tensor.bytes) }
    }
}

/// Reads little-endian elements as another type; the cast is Rust's, which saturates and truncates
/// toward zero.
macro_rules! elements_as {
    ($tensor:expr, $to:ty) => {
        match $tensor.dtype {
            DType::F64 => $tensor.bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as $to).collect(),
            DType::F32 => $tensor.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b) as $to).collect(),
            DType::BF16 => $tensor.bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32() as $to).collect(),
            DType::F16 => $tensor.bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32() as $to).collect(),
            DType::I64 => $tensor.bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as $to).collect(),
            DType::Bool => $tensor.bytes.iter().map(|b| u8::from(*b != 0) as $to).collect(),
        }
    };
}

impl Tensor {
    /// All zeros.
    pub fn zeros(dtype: DType, shape: &[u64]) -> Tensor {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        Tensor { dtype, shape: shape.to_vec(), bytes: vec![0; bytes as usize] }
    }

    /// From elements in row-major order, as many as `shape` has.
    pub fn from_f64(shape: &[u64], values: &[f64]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor { dtype: DType::F64, shape: shape.to_vec(), bytes }
    }

    /// From elements in row-major order, as many as `shape` has.
    pub fn from_f32(shape: &[u64], values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor { dtype: DType::F32, shape: shape.to_vec(), bytes }
    }

    /// From elements in row-major order, as many as `shape` has.
    pub fn from_i64(shape: &[u64], values: &[i64]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor { dtype: DType::I64, shape: shape.to_vec(), bytes }
    }

    /// From truth values in row-major order, as many as `shape` has.
    pub fn from_bool(shape: &[u64], values: &[bool]) -> Tensor {
        Tensor { dtype: DType::Bool, shape: shape.to_vec(), bytes: values.iter().map(|v| u8::from(*v)).collect() }
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements `start..start + size` along `axis`, which the array has.
    pub fn block(&self, axis: usize, start: u64, size: u64) -> Tensor {
        let mut shape = self.shape.clone();
        shape[axis] = size;
        let mut block = Tensor::zeros(self.dtype, &shape);
        let (from, to) = (self.row_bytes(axis), block.row_bytes(axis));
        let first = start as usize * self.row_bytes(axis + 1);
        for (whole, part) in self.bytes.chunks_exact(from.max(1)).zip(block.bytes.chunks_exact_mut(to.max(1))) {
            part.copy_from_slice(&whole[first..first + to]);
        }
        block
    }

    /// Puts `block` in the place from `start` on along `axis`: the inverse of [`Tensor::block`].
    pub fn set_block(&mut self, axis: usize, start: u64, block: &Tensor) {
        let (to, from) = (self.row_bytes(axis), block.row_bytes(axis));
        let first = start as usize * self.row_bytes(axis + 1);
        for (whole, part) in self.bytes.chunks_exact_mut(to.max(1)).zip(block.bytes.chunks_exact(from.max(1))) {
            whole[first..first + from].copy_from_slice(part);
        }
    }

    /// The bytes of the dimensions from `axis` on.
    fn row_bytes(&self, axis: usize) -> usize {
        (self.shape[axis..].iter().product::<u64>() * self.dtype.bytes()) as usize
    }

    /// All elements as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        elements_as!(self, f64)
    }

    /// All elements as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        elements_as!(self, f32)
    }

    /// All elements as i64; floats truncate.
    pub fn to_i64(&self) -> Vec<i64> {
        elements_as!(self, i64)
    }

    /// The first element as f64: the value of a scalar.
    pub fn first(&self) -> Option<f64> {
        let bytes = self.bytes.get(..self.dtype.bytes() as usize)?.to_vec();
        Tensor { dtype: self.dtype, shape: vec![], bytes }.to_f64().first().copied()
    }

    /// The same values as floats of 16 bits.
    fn narrowed(&self, dtype: DType, bits: impl Fn(f32) -> u16) -> Tensor {
        let bytes = self.to_f32().into_iter().flat_map(|x| bits(x).to_le_bytes()).collect();
        Tensor { dtype, shape: self.shape.clone(), bytes }
    }

    /// As [`Tensor::cast`], itself where it is of that type.
    pub fn into_dtype(self, dtype: DType) -> Tensor {
        if dtype == self.dtype { self } else { self.cast(dtype) }
    }

    /// The same values as another type; to bool, what is not 0 is true.
    pub fn cast(&self, dtype: DType) -> Tensor {
        if dtype == self.dtype {
            return self.clone();
        }
        match dtype {
            DType::F64 => Tensor::from_f64(&self.shape, &self.to_f64()),
            DType::F32 => Tensor::from_f32(&self.shape, &self.to_f32()),
            DType::BF16 => self.narrowed(dtype, |x| bf16::from_f32(x).to_bits()),
            DType::F16 => self.narrowed(dtype, |x| f16::from_f32(x).to_bits()),
            DType::I64 => Tensor::from_i64(&self.shape, &self.to_i64()),
            DType::Bool => Tensor::from_bool(&self.shape, &self.to_f64().iter().map(|v| *v != 0.0).collect::<Vec<_>>()),
        }
    }
}
