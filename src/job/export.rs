//! Writes an exported model. The weights that it keeps beside it go to a file of a new name, so
//! that until the model is there, and afterwards, every model finds its own.

use crate::error::Error;
use crate::replace::write_pieces;
use shardc_frontend::onnx::{self, Export};
use shardc_ir::plan_file::{hash_file, hash_pieces};
use std::fs;
use std::path::{Path, PathBuf};

/// Digits of the hash in the name of a file of weights.
const DIGITS: usize = 16;

/// Writes the model to `to` and its weights beside it, where it keeps them in a file; gives that
/// file. `elements` hands over those of a
/// tensor, as [`onnx::Elements`] says. The weights that the model at `to` had from an export
/// before are removed where no model of the folder, and not the one at `source`, names them.
///
/// # Errors
/// If a file cannot be written, or there are no elements; the model that was at `to` is then still
/// there.
pub fn write(
    export: &Export,
    elements: &mut onnx::Elements<'_, Error>,
    to: &Path,
    source: &Path,
) -> Result<Option<PathBuf>, Error> {
    let before = onnx::external_files(to);
    let mut name = String::new();
    let mut data = None;
    if export.has_data() {
        // The same name for the same weights.
        let hash = hash_pieces(|out| export.write_data(elements, out))?;
        name = format!("{}.{}.data", file_name(to), &hash[..DIGITS]);
        let path = to.with_file_name(&name);
        if hash_file(&path).map_or(true, |there| there != hash) {
            write_pieces(&path, |out| export.write_data(elements, out))?;
        }
        data = Some(path);
    }
    write_pieces(to, |out| export.write_model(&name, elements, out))?;
    let old = before.into_iter().filter(|path| is_of_export(path, to));
    for path in old.filter(|path| !is_named(path, to, source)) {
        // A file that cannot be removed takes room, and nothing else.
        let _ = fs::remove_file(path);
    }
    Ok(data)
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
