//! Arrays in NumPy's formats. Sizes that a header claims are compared with the bytes that are there before anything is allocated.

use crate::tensor::Tensor;
use ndarray::{ArrayViewD, IxDyn};
use ndarray_npy::{NpzWriter, ViewNpyError, ViewNpyExt};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::dtype::DType;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use zip::ZipArchive;

/// Reads the bytes of a `.npy`; integers are widened to 64 bits.
pub fn read_npy(bytes: &[u8]) -> Result<Tensor, String> {
    // Version 2 and later claim the header's length in four bytes.
    if let [0x93, b'N', b'U', b'M', b'P', b'Y', version, _, a, b, c, d, ..] = *bytes
        && version >= 2
        && u32::from_le_bytes([a, b, c, d]) as usize > bytes.len()
    {
        return Err("the array is broken: its header is longer than the file".to_string());
    }
    // A view needs aligned elements; the header's length is a multiple of 16.
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    let aligned = &mut bytemuck::cast_slice_mut(&mut words)[..bytes.len()];
    aligned.copy_from_slice(bytes);
    let bytes = &*aligned;
    macro_rules! as_type {
        ($($type:ty => $to:expr),*) => {
            $(match ArrayViewD::<$type>::view_npy(bytes) {
                Ok(view) => {
                    let shape: Vec<u64> = view.shape().iter().map(|n| *n as u64).collect();
                    return $to(shape, view.iter().copied().collect::<Vec<$type>>());
                }
                Err(ViewNpyError::WrongDescriptor(_)) => {}
                Err(error) => return Err(format!("the array is broken: {error}")),
            })*
        };
    }
    fn widened<T: Into<i64>>(shape: Vec<u64>, values: Vec<T>) -> Result<Tensor, String> {
        Ok(Tensor::from_i64(&shape, &values.into_iter().map(Into::into).collect::<Vec<i64>>()))
    }
    as_type! {
        f32 => |shape: Vec<u64>, values: Vec<f32>| Ok(Tensor::from_f32(&shape, &values)),
        f64 => |shape: Vec<u64>, values: Vec<f64>| Ok(Tensor::from_f64(&shape, &values)),
        i64 => widened,
        i32 => widened,
        u8 => widened,
        bool => |shape: Vec<u64>, values: Vec<bool>| Ok(Tensor::from_bool(&shape, &values)),
        i16 => widened,
        i8 => widened,
        u16 => widened,
        u32 => widened,
        u64 => |shape: Vec<u64>, values: Vec<u64>| {
            let values: Result<Vec<i64>, _> = values.into_iter().map(i64::try_from).collect();
            Ok(Tensor::from_i64(&shape, &values.map_err(|_| "the array has integers beyond 63 bits".to_string())?))
        }
    }
    Err("the array has elements that are no f32, f64, integer or bool".to_string())
}

/// Reads all arrays of a `.npz`.
pub fn read_npz(file: File) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let broken = |e: &dyn std::fmt::Display| Diagnostic::error(format!("the archive is broken: {e}"));
    let mut archive = ZipArchive::new(std::io::BufReader::new(file)).map_err(|e| broken(&e))?;
    let mut arrays = BTreeMap::new();
    for i in 0..archive.len() {
        let entry = archive.by_index(i).map_err(|e| broken(&e))?;
        let Some(name) = entry.name().strip_suffix(".npy").map(str::to_string) else { continue };
        let mut bytes = vec![];
        let claimed = entry.size();
        entry.take(claimed).read_to_end(&mut bytes).map_err(|e| broken(&e))?;
        let array = read_npy(&bytes).map_err(|message| Diagnostic::error(format!("`{name}`: {message}")))?;
        arrays.insert(name, array);
    }
    Ok(arrays)
}

/// Writes arrays as a `.npz`.
pub fn write_npz(path: &Path, arrays: &BTreeMap<String, Tensor>) -> Result<(), Diagnostic> {
    let cannot = |e: &dyn std::fmt::Display| Diagnostic::error(format!("cannot write `{}`: {e}", path.display()));
    let mut writer = NpzWriter::new_compressed(File::create(path).map_err(|e| cannot(&e))?);
    for (name, array) in arrays {
        let shape = IxDyn(&array.shape.iter().map(|n| *n as usize).collect::<Vec<_>>());
        macro_rules! add {
            ($values:expr) => {{
                let values = $values;
                let view = ArrayViewD::from_shape(shape, &values).map_err(|e| cannot(&e))?;
                writer.add_array(name, &view).map_err(|e| cannot(&e))?;
            }};
        }
        match array.dtype {
            DType::F64 => add!(array.to_f64()),
            DType::F32 => add!(array.to_f32()),
            DType::I64 => add!(array.to_i64()),
            DType::Bool => add!(array.bytes.iter().map(|b| *b != 0).collect::<Vec<bool>>()),
        }
    }
    writer.finish().map_err(|e| cannot(&e)).map(drop)
}
