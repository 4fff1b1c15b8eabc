//! Writes an exported model. The weights that it keeps beside it go to a file of a new name, so that until the model is there, and
//! afterwards, every model finds its own.

use super::output::write_whole;
use crate::failure::Failure;
use shardc_frontend::onnx::{self, Exported};
use shardc_ir::plan_file::hash;
use std::fs;
use std::path::{Path, PathBuf};

/// Digits of the hash in the name of a file of weights.
const DIGITS: usize = 16;

/// The name of the file with the weights `data` of the model at `to`: the same for the same weights.
pub fn data_name(to: &Path, data: &[u8]) -> String {
    format!("{}.{}.data", file_name(to), &hash(data)[..DIGITS])
}

/// Writes the model to `to` and its weights beside it; gives their file, if they have one. The weights that the model at `to` had from an
/// export before are removed where no model of the folder, and not the one at `source`, names them.
///
/// # Errors
/// If a file cannot be written; the model that was at `to` is then still there.
pub fn write(exported: &Exported, to: &Path, source: &Path) -> Result<Option<PathBuf>, Failure> {
    let before = onnx::external_files(to);
    let written = exported.data.as_ref().map(|data| (to.with_file_name(data_name(to, data)), data));
    if let Some((path, data)) = &written
        && fs::read(path).map_or(true, |there| there != **data)
    {
        write_whole(path, data)?;
    }
    write_whole(to, &exported.model)?;
    let old = before.into_iter().filter(|path| is_of_export(path, to));
    for path in old.filter(|path| !is_named(path, to, source)) {
        // What cannot be removed takes room, and nothing else.
        let _ = fs::remove_file(path);
    }
    Ok(written.map(|(path, _)| path))
}

/// Whether the name is one that an export to `to` gives.
fn is_of_export(path: &Path, to: &Path) -> bool {
    let name = file_name(path);
    let digits = name.strip_prefix(&format!("{}.", file_name(to))).and_then(|rest| rest.strip_suffix(".data"));
    let is_hash = digits.is_some_and(|digits| digits.len() == DIGITS && digits.chars().all(|c| c.is_ascii_hexdigit()));
    is_hash && path.parent() == to.parent()
}

/// Whether a model beside `to`, or the one at `source`, names the file of weights at `path`.
fn is_named(path: &Path, to: &Path, source: &Path) -> bool {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = fs::read_dir(folder) else { return true };
    let models = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "onnx"));
    let file = path.canonicalize();
    let is_it = |named: PathBuf| matches!((named.canonicalize(), &file), (Ok(named), Ok(file)) if named == *file);
    models.chain([source.to_path_buf()]).any(|model| onnx::external_files(&model).into_iter().any(is_it))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
