//! Arrays in the safetensors format.

use crate::tensor::Tensor;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::dtype::DType;
use std::collections::BTreeMap;

/// Reads all arrays; integers are widened to 64 bits.
pub fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| Diagnostic::error(format!("the file is broken: {e}")))?;
    let mut arrays = BTreeMap::new();
    for (name, view) in file.iter() {
        let shape: Vec<u64> = view.shape().iter().map(|n| *n as u64).collect();
        let array = convert(view.dtype(), &shape, view.data());
        let array = array.ok_or_else(|| {
            Diagnostic::error(format!("`{name}` has elements of type {:?}, not f32, f64, an integer or bool", view.dtype()))
        })?;
        arrays.insert(name.to_string(), array);
    }
    Ok(arrays)
}

/// The bytes of a file with those arrays; the same arrays give the same bytes.
pub fn write_safetensors(arrays: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, Diagnostic> {
    let cannot = |e: SafeTensorError| Diagnostic::error(format!("the arrays cannot be written: {e}"));
    let mut views = vec![];
    for (name, array) in arrays {
        let dtype = match array.dtype {
            DType::F64 => Dtype::F64,
            DType::F32 => Dtype::F32,
            DType::I64 => Dtype::I64,
            DType::Bool => Dtype::BOOL,
        };
        let shape = array.shape.iter().map(|n| *n as usize).collect();
        views.push((name, TensorView::new(dtype, shape, &array.bytes).map_err(cannot)?));
    }
    safetensors::serialize(views, None).map_err(cannot)
}

fn convert(dtype: Dtype, shape: &[u64], data: &[u8]) -> Option<Tensor> {
    macro_rules! integers {
        ($type:ty) => {{
            let values = data.as_chunks().0.iter().map(|b| i64::try_from(<$type>::from_le_bytes(*b)));
            Tensor::from_i64(shape, &values.collect::<Result<Vec<i64>, _>>().ok()?)
        }};
    }
    let floats = |dtype| Tensor { dtype, shape: shape.to_vec(), bytes: data.to_vec() };
    Some(match dtype {
        Dtype::F64 => floats(DType::F64),
        Dtype::F32 => floats(DType::F32),
        Dtype::BOOL => Tensor::from_bool(shape, &data.iter().map(|b| *b != 0).collect::<Vec<_>>()),
        Dtype::I64 => integers!(i64),
        Dtype::I32 => integers!(i32),
        Dtype::I16 => integers!(i16),
        Dtype::I8 => integers!(i8),
        Dtype::U64 => integers!(u64),
        Dtype::U32 => integers!(u32),
        Dtype::U16 => integers!(u16),
        Dtype::U8 => integers!(u8),
        _ => return None,
    })
}
