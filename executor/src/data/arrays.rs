//! Named arrays from a file or folder, by the ending of its name.

use crate::data::npy::{read_npy, read_npz};
use crate::data::safetensor::read_safetensors;
use crate::tensor::Tensor;
use shardc_ir::diagnostic::{Diagnostic, Place};
use std::collections::BTreeMap;
use std::path::Path;

/// All arrays of `path`, integers widened to 64 bits.
pub fn read_arrays(path: &Path) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let cannot = |e: std::io::Error| Diagnostic::error(format!("cannot read the data: {e}"));
    if path.is_dir() {
        return read_folder(path);
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("npz") => read_npz(std::fs::File::open(path).map_err(cannot)?),
        Some("safetensors") => read_safetensors(&std::fs::read(path).map_err(cannot)?),
        _ => {
            std::fs::metadata(path).map_err(cannot)?;
            let error = Diagnostic::error("the ending of the name says nothing about what the data is");
            Err(error.help("data is a `.npz`, a folder of `.npy`, a `.safetensors`, a `.txt` or a `.bin`"))
        }
    }
}

fn read_folder(path: &Path) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let cannot = |e: std::io::Error| Diagnostic::error(format!("cannot read the data: {e}"));
    let mut arrays = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let file = entry.map_err(cannot)?.path();
        if file.extension().and_then(|e| e.to_str()) != Some("npy") {
            continue;
        }
        let Some(name) = file.file_stem().and_then(|s| s.to_str()) else { continue };
        let bytes = std::fs::read(&file).map_err(cannot)?;
        let array = read_npy(&bytes).map_err(|message| Diagnostic::error(message).at(Place::File(file.clone())))?;
        arrays.insert(name.to_string(), array);
    }
    if arrays.is_empty() {
        return Err(Diagnostic::error("the folder has no `.npy` file"));
    }
    Ok(arrays)
}
