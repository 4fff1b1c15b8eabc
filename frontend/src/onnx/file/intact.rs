//! Whether a model file says everything once, and its external data are what it says they are.

use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::model_file::initializers;
use crate::onnx::file::node::node_text;
use crate::onnx::file::tensor;
use sha1::{Digest, Sha1};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::reason::Reason;
use shardc_ir::types::to_hex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use tract_onnx::pb;

/// All that contradicts itself.
pub(in crate::onnx) fn contradictions(file: &ModelFile) -> Diagnostics {
    let mut errors = op_sets(file);
    errors.extend(file.graph().node.iter().filter_map(|node| twice(file, node)));
    errors.extend(shared(file));
    errors
}

/// Elements of a file of external data may be those of two tensors, and so much may be of more.
const FREE: u64 = 64 << 20;

/// Files of external data of which tensors together have far more bytes than there are: each costs
/// memory of its own.
fn shared(file: &ModelFile) -> Diagnostics {
    let mut paths: BTreeMap<&str, Option<PathBuf>> = BTreeMap::new();
    let mut claims: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let constants = file.graph().node.iter().flat_map(|node| &node.attribute).filter_map(|attribute| attribute.t.as_ref());
    for tensor in initializers(file).map(|(_, tensor)| tensor).chain(constants) {
        let Some((location, bytes)) = tensor::external_bytes(tensor) else { continue };
        let locate = || tensor::locate(file.path.parent().unwrap_or(file.path.as_ref()), location, 0, 0).ok();
        if let Some(path) = paths.entry(location).or_insert_with(locate) {
            let claimed = claims.entry(path.clone()).or_default();
            *claimed = claimed.saturating_add(bytes);
        }
    }
    let error = |(path, claimed): (PathBuf, u64)| {
        let held = path.metadata().ok()?.len();
        let error = Diagnostic::error(format!("tensors of the model have {claimed} bytes of this file, which has {held}"));
        let error = error.at(Place::File(path));
        (claimed > held.saturating_mul(2).saturating_add(FREE)).then(|| error.help("give each elements of its own"))
    };
    claims.into_iter().filter_map(error).collect()
}

/// Op sets of one domain in several versions, in the model or in one of its functions.
fn op_sets(file: &ModelFile) -> Diagnostics {
    let functions =
        file.model.functions.iter().map(|f| (format!("function \"{}\"", f.name.as_deref().unwrap_or_default()), &f.opset_import));
    let mut errors = vec![];
    for (what, imports) in [("model".to_string(), &file.model.opset_import)].into_iter().chain(functions) {
        let mut versions: BTreeMap<&str, i64> = BTreeMap::new();
        for import in imports {
            let domain = if import.domain.is_empty() { "ai.onnx" } else { &import.domain };
            let first = *versions.entry(domain).or_insert(import.version);
            if first != import.version {
                let message = format!("op set `{domain}` is imported in version {first} and in version {}", import.version);
                errors.push(Diagnostic::error(message).at(file.place(what.clone())));
            }
        }
    }
    errors
}

fn twice(file: &ModelFile, node: &pb::NodeProto) -> Option<Diagnostic> {
    let mut seen = BTreeSet::new();
    let name = &node.attribute.iter().find(|attribute| !seen.insert(&attribute.name))?.name;
    Some(Diagnostic::error(format!("attribute `{name}` is given twice")).at(file.place(node_text(node))))
}

/// Files of external data that are not what their checksum, an SHA-1 of the whole file, says.
pub(in crate::onnx) fn damaged(file: &ModelFile) -> Diagnostics {
    let mut claims: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (_, tensor) in initializers(file) {
        let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        if let (Some(location), Some(checksum)) = (entry("location"), entry("checksum")) {
            claims.entry((location, checksum)).or_insert(&tensor.name);
        }
    }
    let damage = |((location, checksum), name): (&(&str, &str), &&str)| {
        let found = sha1(file, location).ok()?;
        let message =
            format!("`{location}` is not the file that the model was saved with: its SHA-1 is {found}, not `{checksum}`");
        let help = "copy model and data together, or export the model again";
        let error =
            Diagnostic::error(message).at(Place::Model { file: file.path.clone(), what: format!("initializer \"{name}\"") });
        (found != checksum.to_ascii_lowercase()).then(|| error.help(help))
    };
    claims.iter().filter_map(damage).collect()
}

/// The SHA-1 of a file in the model's folder, in hexadecimal digits.
fn sha1(file: &ModelFile, location: &str) -> Result<String, Reason> {
    let path = tensor::locate(file.path.parent().unwrap_or(file.path.as_ref()), location, 0, 0)?;
    let mut hash = Sha1::new();
    let mut data = File::open(path).map_err(|e| e.to_string())?;
    io::copy(&mut data, &mut hash).map_err(|e| e.to_string())?;
    Ok(to_hex(&hash.finalize()))
}
