//! Tensors of a model: their types, and their elements once somebody asks for them.

use crate::onnx::file::model_file::{ModelFile, Owner};
use half::{bf16, f16};
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type, checked_elements};
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// The elements of an initializer, which stay in the file until they are needed.
#[derive(Debug, Clone)]
pub struct Weight {
    /// The initializer's name.
    pub name: String,
    /// Its type in the graph.
    pub ty: Type,
    stored: DataType,
    source: Source,
    place: Place,
}

#[derive(Debug, Clone)]
enum Source {
    Raw(Arc<Vec<u8>>, Range<usize>),
    Typed(Arc<pb::TensorProto>),
    External { folder: PathBuf, location: String, offset: u64, length: Option<u64> },
}

/// The element type that stands for an ONNX element type; `float` replaces every float type.
pub(in crate::onnx) fn dtype(onnx: i32, float: Option<DType>) -> Result<DType, Reason> {
    let kind = kind(onnx)?;
    match kind {
        DataType::Float | DataType::Float16 | DataType::Bfloat16 => Ok(float.unwrap_or(DType::F32)),
        DataType::Double => Ok(float.unwrap_or(DType::F64)),
        DataType::Bool => Ok(DType::Bool),
        _ if bytes(kind).is_some() => Ok(DType::I64),
        _ => Err(reason!("elements of type {} are not supported", kind.as_str_name().to_lowercase())),
    }
}

/// Bytes of one stored element.
fn bytes(kind: DataType) -> Option<u64> {
    match kind {
        DataType::Bool | DataType::Int8 | DataType::Uint8 => Some(1),
        DataType::Int16 | DataType::Uint16 | DataType::Float16 | DataType::Bfloat16 => Some(2),
        DataType::Int32 | DataType::Uint32 | DataType::Float => Some(4),
        DataType::Int64 | DataType::Uint64 | DataType::Double => Some(8),
        _ => None,
    }
}

impl Weight {
    /// The tensor that `owner` holds in `file`.
    pub(in crate::onnx) fn of(
        file: &ModelFile,
        owner: Owner,
        proto: &pb::TensorProto,
        float: Option<DType>,
    ) -> Result<Weight, Reason> {
        let shape: Result<Vec<u64>, _> = proto.dims.iter().map(|d| u64::try_from(*d)).collect();
        let shape = shape.map_err(|_| reason!("its shape is {:?}", proto.dims))?;
        checked_elements(&shape).ok_or_else(|| reason!("its shape is {shape:?}, which is too large"))?;
        let ty = Type::new(dtype(proto.data_type, float)?, shape);
        let stored = DataType::try_from(proto.data_type).map_err(|e| e.to_string())?;
        let source = if proto.data_location == Some(pb::tensor_proto::DataLocation::External as i32) {
            external(file, proto)?
        } else if let Some(range) = file.raw.get(&owner) {
            Source::Raw(file.bytes.clone(), range.clone())
        } else {
            Source::Typed(Arc::new(proto.clone()))
        };
        let what = match owner {
            Owner::Initializer(_) => format!("initializer \"{}\"", proto.name),
            Owner::Attribute(node, _) => crate::onnx::file::node::node_text(&file.graph().node[node]),
        };
        Ok(Weight { name: proto.name.clone(), ty, stored, source, place: file.place(what) })
    }

    /// The same elements under another name.
    pub(in crate::onnx) fn named(self, name: &str) -> Weight {
        Weight { name: name.to_string(), ..self }
    }

    /// The type of half precision that the file stores the elements in, if it is one.
    pub fn stored_half(&self) -> Option<&'static str> {
        match self.stored {
            DataType::Float16 => Some("f16"),
            DataType::Bfloat16 => Some("bf16"),
            _ => None,
        }
    }

    /// The external file that holds the elements, as the model names it.
    pub fn external_file(&self) -> Option<&str> {
        match &self.source {
            Source::External { location, .. } => Some(location),
            _ => None,
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// If they are missing, in a file that may not be read, or not as many as the shape says.
    pub fn load(&self) -> Result<Tensor, Diagnostic> {
        self.decode(&self.stored()?).map_err(|why| self.error(why))
    }

    /// The bytes of [`Weight::stored`].
    pub(in crate::onnx) fn length(&self) -> u64 {
        match self.source {
            Source::External { length: Some(length), .. } => length,
            _ => self.stored_bytes(),
        }
    }

    /// The elements as the file stores them.
    pub(in crate::onnx) fn stored(&self) -> Result<Cow<'_, [u8]>, Diagnostic> {
        match &self.source {
            Source::Raw(file, range) => Ok(file[range.clone()].into()),
            Source::Typed(proto) => Ok(typed_bytes(proto, self.stored).into()),
            Source::External { folder, location, offset, .. } => {
                let bytes = read_external(folder, location, *offset, self.length());
                bytes.map(Cow::from).map_err(|e| self.external_error(e))
            }
        }
    }

    /// The type of the elements in the file.
    pub(in crate::onnx) fn stored_as(&self) -> DataType {
        self.stored
    }

    /// The elements at those places, row-major, without reading all; none if they cannot be read.
    pub(in crate::onnx) fn elements_at(&self, places: &[u64]) -> Option<Vec<f64>> {
        let width = bytes(self.stored)?;
        let one = Weight { ty: Type::scalar(self.ty.dtype), ..self.clone() };
        let element = |data: &[u8]| one.decode(data).ok()?.to_f64().first().copied();
        let within = |data: &[u8]| {
            let range = |p: &u64| Some((p.checked_mul(width)? as usize)..(p.checked_add(1)?.checked_mul(width)? as usize));
            places.iter().map(|p| element(data.get(range(p)?)?)).collect()
        };
        match &self.source {
            Source::Raw(file, range) => within(&file[range.clone()]),
            Source::Typed(proto) => within(&typed_bytes(proto, self.stored)),
            Source::External { folder, location, offset, length } => {
                let path = locate(folder, location, *offset, length.unwrap_or(self.stored_bytes())).ok()?;
                let mut file = File::open(path).ok()?;
                let mut read = |p: &u64| {
                    let mut data = vec![0; width as usize];
                    file.seek(SeekFrom::Start(offset.checked_add(p.checked_mul(width)?)?)).ok()?;
                    file.read_exact(&mut data).ok()?;
                    element(&data)
                };
                places.iter().map(&mut read).collect()
            }
        }
    }

    /// Whether the elements are there, as far as can be said without reading them.
    ///
    /// # Errors
    /// As [`Weight::load`].
    pub fn check(&self) -> Result<(), Diagnostic> {
        let held = match &self.source {
            Source::Raw(_, range) => range.len() as u64,
            Source::Typed(proto) => typed_bytes(proto, self.stored).len() as u64,
            Source::External { folder, location, offset, length } => {
                let length = length.unwrap_or(self.stored_bytes());
                locate(folder, location, *offset, length).map_err(|e| self.external_error(e))?;
                length
            }
        };
        if held == self.stored_bytes() { Ok(()) } else { Err(self.error(self.wrong_length(held))) }
    }

    fn error(&self, why: Reason) -> Diagnostic {
        Diagnostic::error(why).at(self.place.clone())
    }

    fn external_error(&self, why: Reason) -> Diagnostic {
        self.error(why).help("keep the file beside the model, or compile with `--no-weights` for a plan without weights")
    }

    fn wrong_length(&self, held: u64) -> Reason {
        reason!("elements of {} take {} bytes, but {held} are there", self.ty, self.stored_bytes())
    }

    fn stored_bytes(&self) -> u64 {
        self.ty.elements() * bytes(self.stored).unwrap_or(1)
    }

    fn decode(&self, data: &[u8]) -> Result<Tensor, Reason> {
        if data.len() as u64 != self.stored_bytes() {
            return Err(self.wrong_length(data.len() as u64));
        }
        if self.stored == DataType::Uint64
            && let Some(n) = data.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).find(|n| i64::try_from(*n).is_err())
        {
            return Err(reason!("an element is {n}; of type uint64 only numbers below 2^63 are held"));
        }
        let native = match (self.stored, self.ty.dtype) {
            (DataType::Float, DType::F32) | (DataType::Double, DType::F64) | (DataType::Int64, DType::I64) => data.to_vec(),
            (DataType::Bool, _) => data.iter().map(|b| u8::from(*b != 0)).collect(),
            (_, DType::I64) => integers(self.stored, data),
            (_, DType::F32) => floats(self.stored, data, |v| (v as f32).to_le_bytes()),
            _ => floats(self.stored, data, f64::to_le_bytes),
        };
        Ok(Tensor { ty: self.ty.clone(), bytes: Arc::new(native) })
    }
}

/// The elements of a float tensor as a file stores elements of type `onnx`.
pub(in crate::onnx) fn encode(tensor: Tensor, onnx: i32) -> Result<Vec<u8>, Reason> {
    encoded_bytes(onnx)?;
    let kind = kind(onnx)?;
    let native = matches!((kind, tensor.ty.dtype), (DataType::Float, DType::F32) | (DataType::Double, DType::F64));
    let values = || tensor.to_f64().into_iter();
    match kind {
        _ if native => Ok(Arc::unwrap_or_clone(tensor.bytes)),
        DataType::Float => Ok(values().flat_map(|v| (v as f32).to_le_bytes()).collect()),
        DataType::Double => Ok(values().flat_map(f64::to_le_bytes).collect()),
        DataType::Float16 => Ok(values().flat_map(|v| f16::from_f64(v).to_le_bytes()).collect()),
        _ => Ok(values().flat_map(|v| bf16::from_f64(v).to_le_bytes()).collect()),
    }
}

/// The bytes of an element that [`encode`] writes in that type.
pub(in crate::onnx) fn encoded_bytes(onnx: i32) -> Result<u64, Reason> {
    match kind(onnx)? {
        DataType::Float16 | DataType::Bfloat16 => Ok(2),
        DataType::Float => Ok(4),
        DataType::Double => Ok(8),
        other => Err(reason!("elements of type {} are not trained", other.as_str_name().to_lowercase())),
    }
}

fn kind(onnx: i32) -> Result<DataType, Reason> {
    DataType::try_from(onnx).map_err(|_| reason!("element type {onnx} is not known"))
}

/// The elements that begin every `N` bytes, as `M` bytes each.
fn words<const N: usize, const M: usize>(data: &[u8], f: impl Fn([u8; N]) -> [u8; M]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len() / N * M);
    data.as_chunks().0.iter().for_each(|word| bytes.extend(f(*word)));
    bytes
}

fn floats<const M: usize>(kind: DataType, data: &[u8], f: impl Fn(f64) -> [u8; M]) -> Vec<u8> {
    match kind {
        DataType::Float16 => words(data, |w| f(f16::from_le_bytes(w).to_f64())),
        DataType::Bfloat16 => words(data, |w| f(bf16::from_le_bytes(w).to_f64())),
        DataType::Double => words(data, |w| f(f64::from_le_bytes(w))),
        _ => words(data, |w| f(f64::from(f32::from_le_bytes(w)))),
    }
}

fn integers(kind: DataType, data: &[u8]) -> Vec<u8> {
    match kind {
        DataType::Int8 => words(data, |w| i64::from(i8::from_le_bytes(w)).to_le_bytes()),
        DataType::Uint8 => words(data, |w| i64::from(u8::from_le_bytes(w)).to_le_bytes()),
        DataType::Int16 => words(data, |w| i64::from(i16::from_le_bytes(w)).to_le_bytes()),
        DataType::Uint16 => words(data, |w| i64::from(u16::from_le_bytes(w)).to_le_bytes()),
        DataType::Int32 => words(data, |w| i64::from(i32::from_le_bytes(w)).to_le_bytes()),
        DataType::Uint32 => words(data, |w| i64::from(u32::from_le_bytes(w)).to_le_bytes()),
        _ => data.to_vec(),
    }
}

/// The elements of the field for their type, as `raw_data` holds them.
fn typed_bytes(proto: &pb::TensorProto, kind: DataType) -> Vec<u8> {
    if !proto.raw_data.is_empty() {
        return proto.raw_data.clone();
    }
    let narrow = |width: usize| proto.int32_data.iter().flat_map(move |v| v.to_le_bytes().into_iter().take(width)).collect();
    match kind {
        DataType::Float => proto.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DataType::Double => proto.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DataType::Int64 => proto.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DataType::Uint64 => proto.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DataType::Uint32 => proto.uint64_data.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        _ => narrow(bytes(kind).unwrap_or(1) as usize),
    }
}

fn external(file: &ModelFile, proto: &pb::TensorProto) -> Result<Source, Reason> {
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str| {
        entry(key).map(|v| v.trim().parse::<u64>().map_err(|_| reason!("its external data has the {key} `{v}`"))).transpose()
    };
    Ok(Source::External {
        folder: file.path.parent().map(Path::to_path_buf).unwrap_or_default(),
        location: entry("location").ok_or("its external data has no location")?.to_string(),
        offset: number("offset")?.unwrap_or(0),
        length: number("length")?,
    })
}

/// The file of external data that a tensor is in, and the bytes that it has of it.
pub(in crate::onnx) fn external_bytes(proto: &pb::TensorProto) -> Option<(&str, u64)> {
    if proto.data_location != Some(pb::tensor_proto::DataLocation::External as i32) {
        return None;
    }
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let elements = || proto.dims.iter().try_fold(1u64, |n, size| n.checked_mul(u64::try_from(*size).ok()?));
    let stored = || elements()?.checked_mul(bytes(DataType::try_from(proto.data_type).ok()?)?);
    let length = entry("length").and_then(|length| length.trim().parse().ok()).or_else(stored)?;
    Some((entry("location")?, length))
}

/// Bytes of a file in the model's folder.
fn read_external(folder: &Path, location: &str, offset: u64, length: u64) -> Result<Vec<u8>, Reason> {
    let path = locate(folder, location, offset, length)?;
    let fail = |e: std::io::Error| format!("its external data cannot be read from `{location}`: {e}");
    let mut file = File::open(&path).map_err(fail)?;
    file.seek(SeekFrom::Start(offset)).map_err(fail)?;
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(length).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

/// The file in the model's folder that has those bytes. Paths and links that leave the folder are
/// refused.
pub(in crate::onnx) fn locate(folder: &Path, location: &str, offset: u64, length: u64) -> Result<PathBuf, Reason> {
    let inside = Path::new(location).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside || location.is_empty() {
        return Err(reason!("its external data is in `{location}`, which is not a path inside the model's folder"));
    }
    let fail = |e: std::io::Error| format!("its external data cannot be read from `{location}`: {e}");
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = folder.canonicalize().map_err(fail)?;
    let path = folder.join(location).canonicalize().map_err(fail)?;
    if !path.starts_with(&folder) {
        return Err(reason!("its external data is in `{location}`, a link that leaves the model's folder"));
    }
    let metadata = fs::metadata(&path).map_err(fail)?;
    if !metadata.is_file() {
        return Err(reason!("its external data is in `{location}`, which is not a file"));
    }
    let end = offset.checked_add(length).filter(|end| *end <= metadata.len());
    end.map(|_| path).ok_or_else(|| {
        reason!("its external data is {length} bytes from byte {offset} of `{location}`, which has {}", metadata.len())
    })
}
