//! Weights back into a model file: the data of tensors is replaced, every other byte stays as it
//! was.

use crate::onnx::file::model_file::{ModelFile, Owner, TensorBytes};
use crate::onnx::file::schema;
use crate::onnx::file::tensor::{self, Weight};
use crate::onnx::file::wire::{self, Edit, Length, Piece};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb;

/// External data begins at multiples of this, so that it can be mapped into memory.
const ALIGNMENT: usize = 4096;

/// Hands over the new elements of a tensor in order, in any number of arrays of its element type.
pub type Elements<'e, E> = dyn FnMut(&str, &mut dyn FnMut(Tensor) -> Result<(), E>) -> Result<(), E> + 'e;

/// A model file with new weights, to be written piece by piece: no more than one piece of them is
/// held at a time.
pub struct Export {
    file: ModelFile,
    slots: Vec<Slot>,
}

/// A tensor that is written anew.
struct Slot {
    owner: Owner,
    name: String,
    /// The element type of the file.
    stored: i32,
    /// In bytes.
    length: usize,
    /// The first byte of its data in the file of external data, if it is there.
    offset: Option<usize>,
    contents: Contents,
}

/// The source of a slot's elements.
enum Contents {
    /// New ones, of that type.
    New(Type),
    /// Those that another file holds.
    Old(Weight),
}

impl Length for Slot {
    fn length(&self) -> usize {
        self.length
    }
}

impl Export {
    /// The model in `bytes`, the contents of the file at `path`, with new elements for the tensors
    /// `new`, in the element types that the file stores. If initializers are external, all their
    /// data goes to one new file.
    ///
    /// # Errors
    /// For names that the model does not have, and tensors of other shapes.
    pub fn new(path: &Path, bytes: impl Into<Arc<Vec<u8>>>, new: &BTreeMap<String, Type>) -> Result<Export, Diagnostics> {
        let file = ModelFile::from_bytes(path, bytes)?;
        let mut slots = vec![];
        let mut missing: BTreeSet<&str> = new.keys().map(String::as_str).collect();
        let mut errors = vec![];
        let mut data = 0_usize;
        for (owner, name, proto) in named_tensors(&file) {
            missing.remove(name);
            let external = is_external(proto);
            let contents = match new.get(name) {
                Some(ty) => length(proto, ty).map(|length| (length, Contents::New(ty.clone()))),
                None if external => {
                    let weight = Weight::of(&file, owner, proto, None);
                    weight.and_then(|weight| Ok((in_memory(weight.length())?, Contents::Old(weight))))
                }
                None => continue,
            };
            match contents {
                Ok((length, contents)) => {
                    let offset = external.then(|| data.next_multiple_of(ALIGNMENT));
                    data = offset.map_or(data, |offset| offset + length);
                    slots.push(Slot { owner, name: name.to_string(), stored: proto.data_type, length, offset, contents });
                }
                Err(why) => errors.push(Diagnostic::error(why).at(file.place(format!("initializer \"{name}\"")))),
            }
        }
        for name in missing {
            let message = format!("the model has no initializer `{name}`");
            errors.push(Diagnostic::error(message).at(Place::File(path.to_path_buf())));
        }
        if errors.is_empty() { Ok(Export { file, slots }) } else { Err(errors) }
    }

    /// Whether some of it goes to a file of external data.
    pub fn has_data(&self) -> bool {
        self.slots.iter().any(|slot| slot.offset.is_some())
    }

    /// Gives `out` the file of external data, in order.
    ///
    /// # Errors
    /// Those of `elements` and `out`, and where data cannot be read.
    pub fn write_data<E: From<Diagnostic>>(
        &self,
        elements: &mut Elements<'_, E>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        for (slot, offset) in self.slots.iter().filter_map(|slot| slot.offset.map(|offset| (slot, offset))) {
            out(&vec![0; offset - at])?;
            self.write_slot(slot, elements, out)?;
            at = offset + slot.length;
        }
        Ok(())
    }

    /// Gives `out` the model, in order, which calls the file of external data `data_file`.
    ///
    /// # Errors
    /// As [`Export::write_data`].
    pub fn write_model<E: From<Diagnostic>>(
        &self,
        data_file: &str,
        elements: &mut Elements<'_, E>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let broken = |why| broken(&self.file.path, why);
        let slots: BTreeMap<Owner, &Slot> = self.slots.iter().map(|slot| (slot.owner, slot)).collect();
        let found = self.file.tensors().map_err(broken)?;
        let changed = found.iter().filter_map(|tensor| slots.get(&tensor.owner).map(|slot| (tensor, *slot)));
        let mut edits: Vec<Edit<'_, &Slot>> =
            changed.flat_map(|(t, slot)| replace(&self.file.bytes, t, slot, data_file)).collect();
        edits.sort_by_key(|e| e.at.start);
        for piece in wire::pieces(&self.file.bytes, &edits).map_err(broken)? {
            match piece {
                Piece::New(bytes) => out(&bytes)?,
                Piece::Held(bytes) => out(bytes)?,
                Piece::Later(slot) => self.write_slot(slot, elements, out)?,
            }
        }
        Ok(())
    }

    /// Gives `out` the bytes of a slot, as the file stores them.
    fn write_slot<E: From<Diagnostic>>(
        &self,
        slot: &Slot,
        elements: &mut Elements<'_, E>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let error = |why: Reason| Diagnostic::error(why).at(self.file.place(format!("initializer \"{}\"", slot.name)));
        let mut written = 0;
        let mut add = |bytes: &[u8]| {
            written += bytes.len();
            out(bytes)
        };
        match &slot.contents {
            Contents::Old(weight) => add(&weight.stored()?)?,
            Contents::New(ty) => elements(&slot.name, &mut |piece| {
                if piece.ty.dtype != ty.dtype {
                    return Err(error(reason!("its new values are {}, not {}", piece.ty.dtype, ty.dtype)).into());
                }
                add(&tensor::encode(piece, slot.stored).map_err(error)?)
            })?,
        }
        match written == slot.length {
            true => Ok(()),
            false => Err(error(reason!("it takes {} bytes, but {written} are there", slot.length)).into()),
        }
    }
}

/// The model in `bytes`, the contents of the file at `path`, without the data of the tensors called
/// `names`; [`Export`] puts them back. Other external tensors come into the model where they can be
/// read, so that the result needs no other file.
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
            contents.insert(owner, stored.into_owned());
        }
    }
    let found = file.tensors().map_err(|why| broken(path, why))?;
    let changed = found.iter().filter_map(|t| contents.get(&t.owner).map(|c| (t, c)));
    let edits = changed.flat_map(|(t, c)| if c.is_empty() { emptied(t) } else { inlined(t, c) }).collect();
    Ok(apply(path, &file.bytes, edits)?)
}

/// The model in `bytes` without the data of the tensors called `names`, but for what other files
/// hold; [`Export`] puts them back.
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

/// The bytes of values of type `ty` as the file stores them, in place of those of a tensor.
fn length(proto: &pb::TensorProto, ty: &Type) -> Result<usize, Reason> {
    let same = proto.dims.iter().map(|d| u64::try_from(*d).ok()).eq(ty.shape.iter().map(|n| Some(*n)));
    if !same {
        return Err(reason!("its shape is {:?}, but the new values are {ty}", proto.dims));
    }
    in_memory(ty.elements() * tensor::encoded_bytes(proto.data_type)?)
}

fn in_memory(bytes: u64) -> Result<usize, Reason> {
    usize::try_from(bytes).map_err(|_| reason!("its {bytes} bytes are too many for this machine"))
}

/// The fields that name external data.
fn entries(location: &str, offset: usize, length: usize) -> Vec<u8> {
    let entry = |key: &str, value: &str| {
        let pair = [wire::delimited(schema::entry::KEY, key.as_bytes()), wire::delimited(schema::entry::VALUE, value.as_bytes())]
            .concat();
        let pair: Vec<u8> = pair.iter().flat_map(|p| p.bytes()).copied().collect();
        wire::delimited(schema::tensor::EXTERNAL_DATA, &pair).iter().flat_map(|p| p.bytes().to_vec()).collect::<Vec<u8>>()
    };
    [entry("location", location), entry("offset", &offset.to_string()), entry("length", &length.to_string())].concat()
}

fn is_external(proto: &pb::TensorProto) -> bool {
    proto.data_location == Some(pb::tensor_proto::DataLocation::External as i32)
}

fn is_data(number: u64) -> bool {
    number == schema::tensor::RAW_DATA || schema::tensor::TYPED_DATA.contains(&number)
}

/// Edits that make what a slot holds the data of a tensor: the fields that name external data, or
/// else `raw_data`.
fn replace<'a>(bytes: &'a [u8], tensor: &TensorBytes, slot: &'a Slot, data_file: &str) -> Vec<Edit<'a, &'a Slot>> {
    let with = match slot.offset {
        Some(offset) => vec![Piece::New(entries(data_file, offset, slot.length))],
        None => wire::field_of(schema::tensor::RAW_DATA, Piece::Later(slot)),
    };
    let old = |number: u64| if slot.offset.is_some() { number == schema::tensor::EXTERNAL_DATA } else { is_data(number) };
    let mut edits = removed(tensor, old);
    match (edits.first_mut(), tensor.fields.last()) {
        (Some(first), _) => first.with = with,
        // A tensor without data gets it behind its last field.
        (None, Some(last)) => {
            let kept = Piece::Held(&bytes[last.at.clone()]);
            edits.push(Edit { at: last.at.clone(), with: iter::once(kept).chain(with).collect() });
        }
        (None, None) => {}
    }
    edits
}

/// Edits that leave an empty `raw_data` where a tensor has data; external data stays where it is.
fn emptied<'a>(tensor: &TensorBytes) -> Vec<Edit<'a>> {
    let mut edits = removed(tensor, is_data);
    if let Some(first) = edits.first_mut() {
        first.with = wire::delimited(schema::tensor::RAW_DATA, &[]);
    }
    edits
}

/// Edits that put external data into the tensor.
fn inlined<'a>(tensor: &TensorBytes, contents: &'a [u8]) -> Vec<Edit<'a>> {
    let outside = |number: u64| matches!(number, schema::tensor::EXTERNAL_DATA | schema::tensor::DATA_LOCATION);
    let mut edits = removed(tensor, |number| outside(number) || is_data(number));
    if let Some(first) = edits.first_mut() {
        first.with = wire::delimited(schema::tensor::RAW_DATA, contents);
    }
    edits
}

fn removed<'a, L>(tensor: &TensorBytes, old: impl Fn(u64) -> bool) -> Vec<Edit<'a, L>> {
    tensor.fields.iter().filter(|f| old(f.number)).map(|f| Edit { at: f.at.clone(), with: vec![] }).collect()
}

fn apply(path: &Path, bytes: &[u8], mut edits: Vec<Edit<'_>>) -> Result<Vec<u8>, Diagnostic> {
    edits.sort_by_key(|e| e.at.start);
    wire::apply(bytes, &edits).map_err(|why| broken(path, why))
}

fn broken(path: &Path, why: Reason) -> Diagnostic {
    Diagnostic::error(format!("the model cannot be written: {why}")).at(Place::File(path.to_path_buf()))
}
