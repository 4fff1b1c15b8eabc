//! Arrays in the safetensors format.

use super::array::{Array, Element, Header};
use crate::tensor::Tensor;
use safetensors::tensor::{Metadata, TensorInfo, TensorView, View};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::dtype::DType;
use shardc_ir::files;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::Type;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The length of the header, before it.
const LENGTH: usize = 8;

/// No header is longer.
const LONGEST: u64 = 100_000_000;

/// Reads the bytes of a file that begins as one of arrays does, before which no memory is taken for
/// it.
///
/// # Errors
/// If it does not, or cannot be read.
pub fn read(mut file: File) -> Result<Vec<u8>, Diagnostic> {
    let Beginning { mut bytes, length, .. } = begin(&mut file)?;
    bytes.reserve_exact(usize::try_from(length).unwrap_or(0).saturating_sub(bytes.len()));
    file.read_to_end(&mut bytes).map_err(unread)?;
    Ok(bytes)
}

/// The types of the arrays that [`read_safetensors`] would read from the file at `path`, of which
/// this reads the header alone.
///
/// # Errors
/// If the file is broken, or an array has elements of another type.
pub fn safetensors_types(path: &Path) -> Result<BTreeMap<String, Type>, Diagnostic> {
    let mut file = files::open(path).map_err(unread)?;
    let Beginning { bytes, header, length } = begin(&mut file)?;
    let mut text = bytes[LENGTH..].to_vec();
    file.take(header.saturating_sub(text.len() as u64)).read_to_end(&mut text).map_err(unread)?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(broken)?;
    if (LENGTH as u64 + header).checked_add(metadata.data_len() as u64) != Some(length) {
        return Err(broken("its arrays have another number of bytes than it has"));
    }
    let mut types = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        let header = header_of(info).map_err(|why| unreadable(&name, &why))?;
        types.insert(name, header.widened());
    }
    Ok(types)
}

/// How a file begins.
struct Beginning {
    /// The bytes of the header's length, and the first of the header.
    bytes: Vec<u8>,
    /// The header's length.
    header: u64,
    /// The file's.
    length: u64,
}

fn begin(file: &mut File) -> Result<Beginning, Diagnostic> {
    let length = file.metadata().map_err(unread)?.len();
    let mut bytes = vec![0; LENGTH + 1];
    let begins = file.read_exact(&mut bytes).is_ok() && bytes[LENGTH] == b'{';
    let header = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    match begins && header <= LONGEST.min(length) {
        true => Ok(Beginning { bytes, header, length }),
        false => Err(broken("it does not begin with a header that fits into it")),
    }
}

fn unread(error: io::Error) -> Diagnostic {
    Diagnostic::error(format!("cannot read the data: {error}"))
}

fn unreadable(name: &str, why: &Reason) -> Diagnostic {
    Diagnostic::error(format!("`{name}` cannot be read: {why}"))
}

fn broken(why: impl Display) -> Diagnostic {
    Diagnostic::error(format!("the file is broken: {why}")).help("it may be cut off, or no `.safetensors`")
}

/// The bytes of a file, and where in them the arrays are.
#[derive(Debug)]
pub struct Arrays<B> {
    bytes: B,
    data: usize,
    metadata: Metadata,
}

impl<B: AsRef<[u8]>> Arrays<B> {
    /// Reads the header of the file in `bytes`.
    ///
    /// # Errors
    /// If it is broken.
    pub fn open(bytes: B) -> Result<Arrays<B>, Diagnostic> {
        let (header, metadata) = SafeTensors::read_metadata(bytes.as_ref()).map_err(broken)?;
        Ok(Arrays { bytes, data: LENGTH + header, metadata })
    }

    /// The names of all arrays.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The type and shape of the array `name`; an error follows the array's name.
    pub fn header(&self, name: &str) -> Result<Header, Reason> {
        header_of(self.info(name)?)
    }

    /// Reads the array `name`; an error follows the array's name.
    pub fn read(&self, name: &str) -> Result<Array, Reason> {
        Ok(Array { header: self.header(name)?, bytes: self.data(name)?.to_vec() })
    }

    /// Passes the elements of the array `name`, and says what it is; an error follows the array's
    /// name.
    pub fn scan(&self, name: &str, see: &mut impl FnMut(Element, &[u8])) -> Result<Header, Reason> {
        let header = self.header(name)?;
        see(header.element, self.data(name)?);
        Ok(header)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, Reason> {
        self.metadata.info(name).ok_or_else(|| "it is not there".into())
    }

    fn data(&self, name: &str) -> Result<&[u8], Reason> {
        let (start, end) = self.info(name)?.data_offsets;
        self.bytes.as_ref().get(self.data + start..self.data + end).ok_or_else(|| "it is cut off".into())
    }
}

/// Reads all arrays; integers are widened to 64 bits, half floats to 32.
///
/// # Errors
/// If the file is broken, or an array has elements of another type.
pub fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let (file, mut arrays) = (Arrays::open(bytes)?, BTreeMap::new());
    for name in file.names() {
        let array = file.read(&name).map_err(|why| unreadable(&name, &why))?;
        arrays.insert(name, array.to_tensor());
    }
    Ok(arrays)
}

/// The bytes of a file with those arrays; the same arrays give the same bytes.
///
/// # Errors
/// If an array has not as many bytes as its shape says.
pub fn write_safetensors(arrays: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, Diagnostic> {
    let mut views = vec![];
    for (name, array) in arrays {
        views.push((name, TensorView::new(dtype(array.dtype), sizes(&array.shape), &array.bytes).map_err(cannot)?));
    }
    safetensors::serialize(views, None).map_err(cannot)
}

/// Writes the arrays of those names and types to a file, as [`write_safetensors`] would; `load`
/// gives one after another.
///
/// # Errors
/// The first of `load`, or what `unwritten` makes of what the machine says.
pub fn save_safetensors<E: From<Diagnostic>>(
    path: &Path,
    types: &BTreeMap<&str, &Type>,
    load: impl Fn(&str) -> Result<Tensor, Diagnostic>,
    unwritten: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let failed = RefCell::new(None);
    let load = |name: &str| match load(name) {
        Ok(tensor) => tensor.bytes,
        Err(error) => {
            failed.borrow_mut().get_or_insert(error);
            vec![]
        }
    };
    let views = types.iter().map(|(name, ty)| {
        let bytes = (ty.elements() * ty.dtype.bytes()) as usize;
        (*name, Lazy { name, dtype: dtype(ty.dtype), shape: sizes(&ty.shape), bytes, load: &load })
    });
    let written = safetensors::serialize_to_file(views, None, path);
    match (failed.take(), written) {
        (Some(error), _) => Err(error.into()),
        (None, Err(SafeTensorError::IoError(error))) => Err(unwritten(error)),
        (None, written) => Ok(written.map_err(cannot)?),
    }
}

/// An array that is loaded when it is written.
struct Lazy<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: usize,
    load: &'a dyn Fn(&str) -> Vec<u8>,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned((self.load)(self.name))
    }

    fn data_len(&self) -> usize {
        self.bytes
    }
}

fn cannot(error: SafeTensorError) -> Diagnostic {
    Diagnostic::error(format!("the arrays cannot be written: {error}"))
}

/// The format's type of elements.
pub fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I64 => Dtype::I64,
        DType::Bool => Dtype::BOOL,
    }
}

fn sizes(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|n| *n as usize).collect()
}

fn header_of(info: &TensorInfo) -> Result<Header, Reason> {
    let element = match info.dtype {
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
        other => return Err(reason!("it has elements of type {other:?}, not floats, integers or bool")),
    };
    Ok(Header { element, shape: info.shape.iter().map(|n| *n as u64).collect() })
}
