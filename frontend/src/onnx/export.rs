//! Weights back into a model file: the data of tensors is replaced, every other byte stays as it was.

use super::model_file::{ModelFile, Owner, TensorBytes, tensor_field};
use super::tensor::{self, Weight};
use super::wire::{self, Edit, Piece};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::types::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb;

/// A model file with new weights.
#[derive(Debug)]
pub struct Exported {
    /// The model.
    pub model: Vec<u8>,
    /// The file beside it with the data of all initializers that were external, if any were.
    pub data: Option<Vec<u8>>,
}

/// External data begins at multiples of this, so that it can be mapped into memory.
const ALIGNMENT: usize = 4096;

/// The model in `bytes`, the contents of the file at `path`, with the tensors of `new` as initializers, in the element types
/// that the file stores. Where initializers are external, all their data goes to one new file, which the model calls by the name that
/// `data_file` gives to it.
///
/// # Errors
/// For names that the model does not have, tensors of other shapes, and external data that cannot be read.
pub fn export(
    path: &Path,
    bytes: impl Into<Arc<Vec<u8>>>,
    new: &BTreeMap<String, Tensor>,
    data_file: &dyn Fn(&[u8]) -> String,
) -> Result<Exported, Diagnostics> {
    let file = ModelFile::from_bytes(path, bytes)?;
    let mut data = vec![];
    let mut places: Vec<(Owner, usize, usize)> = vec![];
    let mut contents: BTreeMap<Owner, Vec<u8>> = BTreeMap::new();
    let mut missing: BTreeSet<&str> = new.keys().map(String::as_str).collect();
    let mut errors = vec![];
    for (owner, name, proto) in named_tensors(&file) {
        missing.remove(name);
        let external = is_external(proto);
        let place = || file.place(format!("initializer \"{name}\""));
        let stored = match new.get(name) {
            Some(tensor) => stored(proto, tensor).map_err(|why| Diagnostic::error(why).at(place())),
            None if external => {
                Weight::of(&file, owner, proto, None).map_err(|why| Diagnostic::error(why).at(place())).and_then(|w| w.stored())
            }
            None => continue,
        };
        match stored {
            Ok(bytes) if external => {
                data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
                places.push((owner, data.len(), bytes.len()));
                data.extend(bytes);
            }
            Ok(bytes) => {
                contents.insert(owner, bytes);
            }
            Err(error) => errors.push(error),
        }
    }
    for name in missing {
        let message = format!("the model has no initializer `{name}`");
        errors.push(Diagnostic::error(message).at(Place::File(path.to_path_buf())));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if !places.is_empty() {
        let location = data_file(&data);
        contents.extend(places.into_iter().map(|(owner, offset, length)| (owner, entries(&location, offset, length))));
    }
    let found = file.tensors().map_err(|why| broken(path, why))?;
    let changed = found.iter().filter_map(|t| contents.get(&t.owner).map(|c| (t, c)));
    let edits = changed.flat_map(|(t, c)| replace(&file.bytes, t, c)).collect();
    let model = apply(path, &file.bytes, edits)?;
    Ok(Exported { model, data: if data.is_empty() { None } else { Some(data) } })
}

/// The model in `bytes`, the contents of the file at `path`, without the data of the tensors called `names`; [`export`] puts them
/// back. What else is external comes into the model where it can be read, so that the result needs no other file.
///
/// # Errors
/// If `bytes` are not a model.
pub fn strip_weights(path: &Path, bytes: impl Into<Arc<Vec<u8>>>, names: &BTreeSet<String>) -> Result<Vec<u8>, Diagnostics> {
    let file = ModelFile::from_bytes(path, bytes)?;
    let mut contents: BTreeMap<Owner, Vec<u8>> = BTreeMap::new();
    for (owner, name, proto) in named_tensors(&file) {
        if names.contains(name) {
            contents.insert(owner, vec![]);
        } else if is_external(proto)
            && let Ok(weight) = Weight::of(&file, owner, proto, None)
            && let Ok(stored) = weight.stored()
        {
            contents.insert(owner, stored);
        }
    }
    let found = file.tensors().map_err(|why| broken(path, why))?;
    let changed = found.iter().filter_map(|t| contents.get(&t.owner).map(|c| (t, c)));
    let edits = changed.flat_map(|(t, c)| if c.is_empty() { emptied(t) } else { inlined(t, c) }).collect();
    Ok(apply(path, &file.bytes, edits)?)
}

/// The model in `bytes` without the data of the tensors called `names`, but for what other files hold; [`export`] puts them back.
///
/// # Errors
/// If `bytes` are not a model.
pub fn forget_weights(path: &Path, bytes: Arc<Vec<u8>>, names: &BTreeSet<String>) -> Result<Vec<u8>, Diagnostics> {
    let file = ModelFile::from_bytes(path, bytes)?;
    let named: BTreeSet<Owner> =
        named_tensors(&file).into_iter().filter(|(_, name, _)| names.contains(*name)).map(|(owner, ..)| owner).collect();
    let found = file.tensors().map_err(|why| broken(path, why))?;
    let edits = found.iter().filter(|t| named.contains(&t.owner)).flat_map(emptied).collect();
    Ok(apply(path, &file.bytes, edits)?)
}

/// Initializers by their names, and the tensors of constant nodes by the names of their outputs.
fn named_tensors(file: &ModelFile) -> Vec<(Owner, &str, &pb::TensorProto)> {
    let graph = file.graph();
    let initializers = graph.initializer.iter().enumerate().map(|(i, t)| (Owner::Initializer(i), t.name.as_str(), t));
    let nodes = graph.node.iter().enumerate().filter(|(_, n)| n.op_type == "Constant" && n.output.len() == 1);
    let values = nodes.flat_map(|(n, node)| {
        let tensors = node.attribute.iter().enumerate().filter(|(_, a)| a.name == "value");
        tensors.filter_map(move |(i, a)| a.t.as_ref().map(|t| (Owner::Attribute(n, i), node.output[0].as_str(), t)))
    });
    initializers.chain(values).collect()
}

/// The bytes of `tensor` as the file stores the initializer.
fn stored(proto: &pb::TensorProto, tensor: &Tensor) -> Result<Vec<u8>, String> {
    let same = proto.dims.iter().map(|d| u64::try_from(*d).ok()).eq(tensor.ty.shape.iter().map(|n| Some(*n)));
    if !same {
        return Err(format!("its shape is {:?}, but the new values are {}", proto.dims, tensor.ty));
    }
    tensor::encode(tensor, proto.data_type)
}

/// The fields that name external data.
fn entries(location: &str, offset: usize, length: usize) -> Vec<u8> {
    let entry = |key: &str, value: &str| {
        let pair = [wire::delimited(1, key.as_bytes()), wire::delimited(2, value.as_bytes())].concat();
        let pair: Vec<u8> = pair.iter().flat_map(|p| p.bytes()).copied().collect();
        wire::delimited(tensor_field::EXTERNAL_DATA, &pair).iter().flat_map(|p| p.bytes().to_vec()).collect::<Vec<u8>>()
    };
    [entry("location", location), entry("offset", &offset.to_string()), entry("length", &length.to_string())].concat()
}

pub(super) fn is_external(proto: &pb::TensorProto) -> bool {
    proto.data_location == Some(pb::tensor_proto::DataLocation::External as i32)
}

fn is_data(number: u64) -> bool {
    number == tensor_field::RAW_DATA || tensor_field::TYPED_DATA.contains(&number)
}

/// Edits that make `contents` the data of a tensor: the fields that name external data, or else `raw_data`.
fn replace<'a>(bytes: &'a [u8], tensor: &TensorBytes, contents: &'a [u8]) -> Vec<Edit<'a>> {
    let external = tensor.fields.iter().any(|f| f.number == tensor_field::EXTERNAL_DATA);
    let with = if external { vec![Piece::Held(contents)] } else { wire::delimited(tensor_field::RAW_DATA, contents) };
    let old = |number: u64| if external { number == tensor_field::EXTERNAL_DATA } else { is_data(number) };
    let mut edits = removed(tensor, old);
    match (edits.first_mut(), tensor.fields.last()) {
        (Some(first), _) => first.with = with,
        // A tensor without data gets it behind its last field.
        (None, Some(last)) => {
            let kept = Piece::Held(&bytes[last.at.clone()]);
            edits.push(Edit { at: last.at.clone(), with: [vec![kept], with].concat() });
        }
        (None, None) => {}
    }
    edits
}

/// Edits that leave an empty `raw_data` where a tensor has data; external data stays where it is.
fn emptied<'a>(tensor: &TensorBytes) -> Vec<Edit<'a>> {
    let mut edits = removed(tensor, is_data);
    if let Some(first) = edits.first_mut() {
        first.with = wire::delimited(tensor_field::RAW_DATA, &[]);
    }
    edits
}

/// Edits that put external data into the tensor.
fn inlined<'a>(tensor: &TensorBytes, contents: &'a [u8]) -> Vec<Edit<'a>> {
    let outside = |number: u64| matches!(number, tensor_field::EXTERNAL_DATA | tensor_field::DATA_LOCATION);
    let mut edits = removed(tensor, |number| outside(number) || is_data(number));
    if let Some(first) = edits.first_mut() {
        first.with = wire::delimited(tensor_field::RAW_DATA, contents);
    }
    edits
}

fn removed<'a>(tensor: &TensorBytes, old: impl Fn(u64) -> bool) -> Vec<Edit<'a>> {
    tensor.fields.iter().filter(|f| old(f.number)).map(|f| Edit { at: f.at.clone(), with: vec![] }).collect()
}

fn apply(path: &Path, bytes: &[u8], mut edits: Vec<Edit<'_>>) -> Result<Vec<u8>, Diagnostic> {
    edits.sort_by_key(|e| e.at.start);
    wire::apply(bytes, &edits).map_err(|why| broken(path, why))
}

fn broken(path: &Path, why: String) -> Diagnostic {
    Diagnostic::error(format!("the model cannot be written: {why}")).at(Place::File(path.to_path_buf()))
}
