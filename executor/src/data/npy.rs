//! NumPy's format for one array. The claims of a header are compared with the bytes that are there
//! before anything is allocated. Source: "A Simple File Format for NumPy Arrays", NEP 1, versions 1
//! to 3.

use super::array::{Array, Element, Header};
use shardc_ir::diagnostic::counted;
use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::checked_elements;
use std::io::{ErrorKind, Read};

/// The first bytes of every file.
pub const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The longest header that is read; NumPy's own reader stops at 10,000 bytes.
const LONGEST_HEADER: usize = 1 << 16;
/// Bytes that are set aside on the word of a header; what is beyond follows as it is read.
const TRUSTED: u64 = 1 << 20;

/// The header of an array whose elements follow in row-major order, little-endian; its bytes are a
/// multiple of 64, as NumPy writes them.
pub fn written_header(dtype: DType, shape: &[u64]) -> Vec<u8> {
    let element = match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        // NumPy has no name for it; two bytes that it does not interpret.
        DType::BF16 => "|V2",
        DType::I64 => "<i8",
        DType::Bool => "|b1",
    };
    let shape: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut text = format!("{{'descr': '{element}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    // Version 2 has four bytes for the length of the text, which ends with a line.
    let before = MAGIC.len() + 2 + 4;
    let blanks = (before + text.len() + 1).next_multiple_of(64) - (before + text.len() + 1);
    text.extend(std::iter::repeat_n(' ', blanks));
    text.push('\n');
    [MAGIC, &[2, 0][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// The beginning of a file: what the array is, and how it is laid out.
#[derive(Debug)]
pub struct Beginning {
    /// Element type and shape.
    pub header: Header,
    /// Bytes of the elements.
    pub size: u64,
    big_endian: bool,
    column_major: bool,
}

/// Reads the header of a file whose bytes are `length` in all.
///
/// # Errors
/// The fault of the header, in words that follow the array's name.
pub fn read_beginning(file: &mut impl Read, length: u64) -> Result<Beginning, Reason> {
    let mut start = [0; 8];
    read_all(file, &mut start)?;
    if start[..6] != *MAGIC {
        return Err("it is no `.npy`".into());
    }
    if !(1..=3).contains(&start[6]) || start[7] != 0 {
        return Err(reason!("it is of version {}.{} of the format; 1.0, 2.0 and 3.0 are read", start[6], start[7]));
    }
    let mut lengths = [0; 4];
    let of_length = if start[6] == 1 { 2 } else { 4 };
    read_all(file, &mut lengths[..of_length])?;
    let header_length = Some(u32::from_le_bytes(lengths) as usize).filter(|n| *n <= LONGEST_HEADER);
    let mut text = vec![0; header_length.ok_or("its header is longer than a header can be")?];
    read_all(file, &mut text)?;
    let there = length.saturating_sub((8 + of_length + text.len()) as u64);
    let beginning = parse(&String::from_utf8_lossy(&text))?;
    if beginning.size != there {
        let Header { element, shape } = &beginning.header;
        return Err(reason!(
            "its header says {element}{shape:?}, {}, but {} follow",
            counted(beginning.size, "byte"),
            counted(there, "byte")
        ));
    }
    Ok(beginning)
}

fn read_all(file: &mut impl Read, bytes: &mut [u8]) -> Result<(), Reason> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "it ends inside its header".into(),
        _ => error.to_string().into(),
    })
}

/// Reads a header: a literal of Python such as `{'descr': '<f4', 'fortran_order': False, 'shape':
/// (3, 4), }`.
fn parse(text: &str) -> Result<Beginning, Reason> {
    let descr = field(text, "descr")?;
    let (big_endian, element) = element(descr)?;
    let column_major = match field(text, "fortran_order")? {
        order if order.starts_with("True") => true,
        order if order.starts_with("False") => false,
        _ => return Err("its header has no order of elements".into()),
    };
    let sizes = field(text, "shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let sizes = sizes.ok_or("its header has no shape")?.0;
    // Python 2 wrote long integers as `3L`.
    let sizes = sizes.split(',').map(|size| size.trim().trim_end_matches('L')).filter(|size| !size.is_empty());
    let shape: Option<Vec<u64>> = sizes.map(|size| size.parse().ok()).collect();
    let shape = shape.ok_or("its header has a shape that is not of whole numbers")?;
    let size = checked_elements(&shape).and_then(|n| n.checked_mul(element.bytes()));
    let size = size.ok_or_else(|| reason!("its header claims a shape of {shape:?}"))?;
    Ok(Beginning { header: Header { element, shape }, size, big_endian, column_major })
}

/// The text after the key in the header.
fn field<'t>(text: &'t str, key: &str) -> Result<&'t str, Reason> {
    let at = ["'", "\""].iter().find_map(|quote| {
        let (_, rest) = text.split_once(&format!("{quote}{key}{quote}"))?;
        rest.trim_start().strip_prefix(':')
    });
    at.map(str::trim_start).ok_or_else(|| reason!("its header has no `{key}`"))
}

/// The order of bytes and the type of elements that `descr` begins with.
fn element(descr: &str) -> Result<(bool, Element), Reason> {
    let quote = descr.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let Some(code) = quote.and_then(|quote| descr[1..].split_once(quote)).map(|(code, _)| code) else {
        return Err("it has records of several fields; save each field as an array of its own".into());
    };
    let element = match code.trim_start_matches(['<', '>', '|', '=']) {
        "f2" => Element::F16,
        "f4" => Element::F32,
        "f8" => Element::F64,
        "i1" => Element::I8,
        "i2" => Element::I16,
        "i4" => Element::I32,
        "i8" => Element::I64,
        "u1" => Element::U8,
        "u2" => Element::U16,
        "u4" => Element::U32,
        "u8" => Element::U64,
        "b1" => Element::Bool,
        object if object.starts_with('O') => {
            let message =
                "it holds Python objects, which only Python can read; convert it, for example by `.astype(\"float32\")`";
            return Err(message.to_string().into());
        }
        text if text.starts_with(['U', 'S']) => return Err("it holds text, not numbers".into()),
        _ => return Err(reason!("it has elements of type `{code}`, not floats, integers or bool")),
    };
    Ok((code.starts_with('>'), element))
}

impl Beginning {
    /// Reads the elements that follow.
    ///
    /// # Errors
    /// If there are fewer, or the file cannot be read.
    pub fn read(self, file: &mut impl Read) -> Result<Array, Reason> {
        let mut bytes = Vec::with_capacity(self.size.min(TRUSTED) as usize);
        // One byte more, so that the end of the file is met, where an archive compares its
        // checksum.
        file.take(self.size + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 != self.size {
            return Err(reason!("it has {}, not {}", counted(bytes.len(), "byte"), self.size));
        }
        let width = self.header.element.bytes() as usize;
        if self.big_endian {
            bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        if self.column_major && self.header.shape.len() > 1 {
            bytes = row_major(&bytes, &self.header.shape, width);
        }
        bytes.shrink_to_fit();
        Ok(Array { header: self.header, bytes })
    }
}

impl Beginning {
    /// Passes the elements that follow to `see`, little-endian, in pieces and in the order of the
    /// file.
    ///
    /// # Errors
    /// If there are fewer, or the file cannot be read.
    pub fn scan(self, file: &mut impl Read, see: &mut impl FnMut(Element, &[u8])) -> Result<Header, Reason> {
        let Header { element, .. } = self.header;
        // A piece is whole elements, which are at most 8 bytes.
        let mut piece = vec![0; TRUSTED.min(self.size) as usize];
        let mut left = self.size;
        while left > 0 {
            let piece = &mut piece[..TRUSTED.min(left) as usize];
            file.read_exact(piece).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => format!("it has fewer than {} bytes", self.size),
                _ => error.to_string(),
            })?;
            if self.big_endian {
                piece.chunks_exact_mut(element.bytes() as usize).for_each(<[u8]>::reverse);
            }
            see(element, piece);
            left -= piece.len() as u64;
        }
        // The end of the file is met, where an archive compares its checksum.
        match file.read(&mut [0]).map_err(|error| error.to_string())? {
            0 => Ok(self.header),
            _ => Err(reason!("it has more than {} bytes", self.size)),
        }
    }
}

/// The elements, `width` bytes each, of which the first index ran fastest, with the last one
/// fastest.
fn row_major(bytes: &[u8], shape: &[u64], width: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut strides = vec![width; shape.len()];
    for d in 1..shape.len() {
        strides[d] = strides[d - 1] * shape[d - 1] as usize;
    }
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    while out.len() < bytes.len() {
        out.extend_from_slice(&bytes[at..at + width]);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            at += strides[d];
            if index[d] < shape[d] {
                break;
            }
            at -= strides[d] * shape[d] as usize;
            index[d] = 0;
        }
    }
    out
}
