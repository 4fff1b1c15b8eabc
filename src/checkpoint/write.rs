//! Writes what a rank owns as a file of safetensors, and reads it again for the hashes of its
//! pieces.

use super::manifest::{FileRecord, PieceRecord};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardc_executor::data::safetensors_dtype;
use shardc_executor::snapshot::{Copied, Piece};
use shardc_ir::dtype::DType;
use shardc_ir::files;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::to_hex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

/// The file of a rank, and what is in it of each state variable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Written {
    /// The file.
    pub file: FileRecord,
    /// Its pieces, by state variable.
    pub pieces: Vec<(String, PieceRecord)>,
}

/// Bytes that are written, or read and hashed, at once.
const CHUNK: usize = 1 << 18;

/// Writes the pieces of a rank to a new file of `folder`, down to the disk, and reads it again;
/// `None` where it has none. `is_whole` says which are all of their state variable.
///
/// A fault that was asked for leaves `room` for so many bytes.
///
/// # Errors
/// What the machine says of the file, which is then still there; that it has other bytes than were
/// written.
pub fn write(
    folder: &Path,
    copied: &Copied,
    is_whole: impl Fn(&Piece) -> bool,
    room: Option<u64>,
) -> Result<Option<Written>, Reason> {
    if copied.pieces.is_empty() {
        return Ok(None);
    }
    let name = format!("rank-{:05}.safetensors", copied.rank);
    let path = folder.join(&name);
    let cannot = |e: io::Error| reason!("cannot write `{}`: {e}", path.display());
    let tensors = tensor_names(&copied.pieces, is_whole);
    let entries = copied.pieces.iter().zip(&tensors);
    let entries = entries.map(|(piece, name)| (name.as_str(), piece.dtype, &piece.region.shape[..], piece.bytes.clone()));
    let header = header(entries)?;
    let mut file = Disk { file: File::create(&path).map_err(cannot)?, room };
    file.write_all(&header).map_err(cannot)?;
    copied.bytes.chunks(CHUNK).try_for_each(|chunk| file.write_all(chunk)).map_err(cannot)?;
    file.file.sync_all().map_err(cannot)?;
    let mut again = Again::open(&path)?;
    let header_sha256 = again.hash(&header)?;
    let mut pieces = vec![];
    for (piece, tensor) in copied.pieces.iter().zip(tensors) {
        let sha256 = again.hash(&copied.bytes[piece.bytes.clone()])?;
        pieces.push((piece.state.clone(), PieceRecord { file: name.clone(), tensor, region: piece.region.clone(), sha256 }));
    }
    let bytes = (header.len() + copied.bytes.len()) as u64;
    Ok(Some(Written { file: FileRecord { name, bytes, header_sha256 }, pieces }))
}

/// A file that was written, read from its beginning.
struct Again<'a> {
    path: &'a Path,
    file: File,
    chunk: Vec<u8>,
}

impl<'a> Again<'a> {
    fn open(path: &'a Path) -> Result<Again<'a>, Reason> {
        let file = files::open(path).map_err(|e| cannot_again(path, &e))?;
        Ok(Again { path, file, chunk: vec![0; CHUNK] })
    }

    /// The hash, in hexadecimal digits, of the bytes that follow, which are to be those that were
    /// `written`.
    fn hash(&mut self, written: &[u8]) -> Result<String, Reason> {
        let mut hasher = Sha256::new();
        for written in written.chunks(CHUNK) {
            let read = &mut self.chunk[..written.len()];
            self.file.read_exact(read).map_err(|e| cannot_again(self.path, &e))?;
            if read != written {
                return Err(reason!("`{}` has other bytes than were written", self.path.display()));
            }
            hasher.update(read);
        }
        Ok(to_hex(&hasher.finalize()))
    }
}

fn cannot_again(path: &Path, error: &io::Error) -> Reason {
    reason!("cannot read `{}` again: {error}", path.display())
}

/// A file on a disk that may have room for so many bytes only.
struct Disk {
    file: File,
    room: Option<u64>,
}

impl Disk {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(bytes.len() as u64).ok_or_else(|| io::Error::from(io::ErrorKind::StorageFull))?;
        }
        self.file.write_all(bytes)
    }
}

/// The names of pieces as tensors of a file: that of the state variable, and in brackets, where a
/// piece is not all of it, which elements it has.
fn tensor_names(pieces: &[Piece], is_whole: impl Fn(&Piece) -> bool) -> Vec<String> {
    // What the format calls an entry that is no tensor.
    let mut taken = BTreeSet::from(["__metadata__".to_string()]);
    let mut named = |piece: &Piece| {
        let mut name = if is_whole(piece) { piece.state.clone() } else { format!("{}{}", piece.state, piece.region) };
        while !taken.insert(name.clone()) {
            name.push('~');
        }
        name
    };
    pieces.iter().map(&mut named).collect()
}

/// What a file of safetensors begins with: a length, and JSON that names the tensors, filled up so
/// that these begin at a multiple of 8 bytes. Of each tensor it takes name, type, shape, and where
/// its bytes are behind all that.
///
/// # Errors
/// If bytes are not one behind the other.
pub fn header<'a>(tensors: impl Iterator<Item = (&'a str, DType, &'a [u64], Range<usize>)>) -> Result<Vec<u8>, Reason> {
    let entry = |(name, dtype, shape, bytes): (&str, DType, &[u64], Range<usize>)| {
        let shape = shape.iter().map(|size| *size as usize).collect();
        (name.to_string(), TensorInfo { dtype: safetensors_dtype(dtype), shape, data_offsets: (bytes.start, bytes.end) })
    };
    let metadata = Metadata::new(None, tensors.map(entry).collect()).map_err(|e| reason!("its tensors are no file: {e}"))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| reason!("a file's header has no text: {e}"))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes(), &text[..]].concat())
}
