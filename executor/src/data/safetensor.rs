//! Arrays in the safetensors format.

use super::array::{Array, Element, Header};
use crate::tensor::Tensor;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::dtype::DType;
use std::collections::BTreeMap;

/// The names of all arrays.
pub fn names(bytes: &[u8]) -> Result<Vec<String>, Diagnostic> {
    Ok(parse(bytes)?.names().into_iter().map(str::to_string).collect())
}

/// What the array `name` is; an error follows the array's name.
pub fn header(bytes: &[u8], name: &str) -> Result<Header, String> {
    view_header(&view(bytes, name)?)
}

/// Reads the array `name`; an error follows the array's name.
pub fn read(bytes: &[u8], name: &str) -> Result<Array, String> {
    let view = view(bytes, name)?;
    Ok(Array { header: view_header(&view)?, bytes: view.data().to_vec() })
}

/// Passes the elements of the array `name`, and says what it is; an error follows the array's name.
pub fn scan(bytes: &[u8], name: &str, see: &mut impl FnMut(Element, &[u8])) -> Result<Header, String> {
    let view = view(bytes, name)?;
    let header = view_header(&view)?;
    see(header.element, view.data());
    Ok(header)
}

/// Reads all arrays; integers are widened to 64 bits, half floats to 32.
///
/// # Errors
/// If the file is broken, or an array has elements of another type.
pub fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let mut arrays = BTreeMap::new();
    for name in names(bytes)? {
        let array = read(bytes, &name).map_err(|why| Diagnostic::error(format!("`{name}` cannot be read: {why}")))?;
        arrays.insert(name, array.to_tensor());
    }
    Ok(arrays)
}

/// The bytes of a file with those arrays; the same arrays give the same bytes.
///
/// # Errors
/// If an array has not as many bytes as its shape says.
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

fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>, Diagnostic> {
    SafeTensors::deserialize(bytes).map_err(|e| {
        let error = Diagnostic::error(format!("the file is broken: {e}"));
        error.help("it may be cut off, or no `.safetensors`")
    })
}

fn view<'b>(bytes: &'b [u8], name: &str) -> Result<TensorView<'b>, String> {
    SafeTensors::deserialize(bytes).and_then(|file| file.tensor(name)).map_err(|e| e.to_string())
}

fn view_header(view: &TensorView<'_>) -> Result<Header, String> {
    let element = match view.dtype() {
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        Dtype::I8 => Element::I8,
        Dtype::I16 => Element::I16,
        Dtype::I32 => Element::I32,
        Dtype::I64 => Element::I64,
        Dtype::U8 => Element::U8,
        Dtype::U16 => Element::U16,
        Dtype::U32 => Element::U32,
        Dtype::U64 => Element::U64,
        Dtype::BOOL => Element::Bool,
        other => return Err(format!("it has elements of type {other:?}, not floats, integers or bool")),
    };
    Ok(Header { element, shape: view.shape().iter().map(|n| *n as u64).collect() })
}
