//! NumPy's archives: zip files with one `.npy` for each array, stored or deflated.

use super::array::{Array, Element, Header};
use super::npy::{self, Beginning};
use crate::tensor::Tensor;
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// More than deflate can blow bytes up: what claims more is no archive.
const LARGEST_RATIO: u64 = 1100;

/// An archive whose arrays are read one by one.
#[derive(Debug)]
pub struct Npz {
    archive: ZipArchive<BufReader<File>>,
    /// The bytes of its file.
    length: u64,
    /// The arrays that were read, and the bytes that they claim together.
    claims: (HashSet<String>, u64),
}

impl Npz {
    /// Reads the archive's list of files.
    ///
    /// # Errors
    /// If it is no archive, or a broken one.
    pub fn open(file: File) -> Result<Npz, Diagnostic> {
        let length = file.metadata().map_err(|error| Diagnostic::error(format!("it cannot be read: {error}")))?.len();
        let mut reader = BufReader::new(file);
        let mut start = [0; 6];
        let is_array = reader.read_exact(&mut start).is_ok() && start == *npy::MAGIC;
        if is_array {
            let error = Diagnostic::error("this is a single array, not an archive of arrays");
            return Err(error.help("write it with `np.savez(\"data.npz\", NAME=array, …)`"));
        }
        if !has_end(&mut reader).unwrap_or(false) {
            let error = Diagnostic::error("the archive is broken: its end, which lists its arrays, is missing");
            return Err(error.help("it may be cut off, or no `.npz`; write it again with `np.savez`"));
        }
        let archive = ZipArchive::new(reader).map_err(|e| {
            let error = Diagnostic::error(format!("the archive is broken: {}", words(e)));
            error.help("it may be cut off, or no `.npz`; write it again with `np.savez`")
        })?;
        Ok(Npz { archive, length, claims: Default::default() })
    }

    /// The names of its arrays.
    pub fn names(&self) -> Vec<String> {
        self.archive.file_names().filter_map(|name| name.strip_suffix(".npy")).map(str::to_string).collect()
    }

    /// The type and shape of the array.
    ///
    /// # Errors
    /// The fault of the array, in words that follow the array's name.
    pub fn header(&mut self, name: &str) -> Result<Header, Reason> {
        self.beginning(name).map(|(beginning, _)| beginning.header)
    }

    /// Reads the array.
    ///
    /// # Errors
    /// The fault of the array, in words that follow the array's name.
    pub fn read(&mut self, name: &str) -> Result<Array, Reason> {
        let (beginning, mut entry) = self.beginning(name)?;
        beginning.read(&mut entry)
    }

    /// Passes the elements of the array in pieces, in any order, and says what it is.
    ///
    /// # Errors
    /// The fault of the array, in words that follow the array's name.
    pub fn scan(&mut self, name: &str, see: &mut impl FnMut(Element, &[u8])) -> Result<Header, Reason> {
        let (beginning, mut entry) = self.beginning(name)?;
        beginning.scan(&mut entry, see)
    }

    fn beginning(&mut self, name: &str) -> Result<(Beginning, ZipFile<'_, BufReader<File>>), Reason> {
        let mut entry = self.archive.by_name(&format!("{name}.npy")).map_err(words)?;
        if entry.size() / LARGEST_RATIO > entry.compressed_size() {
            return Err(reason!("it claims {} bytes, of {} compressed ones", entry.size(), entry.compressed_size()));
        }
        let length = entry.size();
        let (read, claimed) = &mut self.claims;
        if read.insert(name.to_string()) {
            *claimed = claimed.saturating_add(length);
        }
        // Entries may share compressed bytes.
        if *claimed / LARGEST_RATIO > self.length {
            return Err(reason!("the arrays up to it claim {claimed} bytes, in an archive of {}", self.length));
        }
        Ok((npy::read_beginning(&mut entry, length)?, entry))
    }
}

/// Whether a list of files ends the archive, where alone it may stand: behind it is a comment of at
/// most 65,535 bytes, and before it the files' entries, where it says.
fn has_end(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    const SIGNATURE: &[u8; 4] = b"PK\x05\x06";
    const OF_ENTRY: &[u8; 4] = b"PK\x01\x02";
    const RECORD: usize = 22;
    /// It stands in place of numbers that are elsewhere, in archives of more than 4 GiB or 65,535
    /// files.
    const ELSEWHERE: u64 = u32::MAX as u64;
    let length = file.seek(SeekFrom::End(0))?;
    let mut tail = vec![];
    let start = length.saturating_sub(RECORD as u64 + u64::from(u16::MAX));
    file.seek(SeekFrom::Start(start))?;
    file.read_to_end(&mut tail)?;
    let number =
        |record: &[u8], at: usize, bytes: usize| record[at..at + bytes].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let mut found = false;
    for (at, record) in tail.windows(RECORD).enumerate().filter(|(_, record)| record.starts_with(SIGNATURE)) {
        let (files, size, offset, comment) =
            (number(record, 10, 2), number(record, 12, 4), number(record, 16, 4), number(record, 20, 2));
        if (at + RECORD) as u64 + comment != tail.len() as u64 {
            continue;
        }
        let mut entry = [0; 4];
        let is_there = files == 0 || offset == ELSEWHERE || {
            file.seek(SeekFrom::Start(offset))?;
            offset + size <= start + at as u64 && file.read_exact(&mut entry).is_ok() && entry == *OF_ENTRY
        };
        found |= is_there;
    }
    file.rewind()?;
    Ok(found)
}

/// The words for an error; the archive's own for an error of the file say nothing.
fn words(error: ZipError) -> String {
    if let ZipError::Io(error) = error { error.to_string() } else { error.to_string() }
}

/// Reads all arrays of a `.npz`; integers are widened to 64 bits, half floats to 32.
///
/// # Errors
/// If the archive or one of its arrays is broken.
pub fn read_npz(file: File) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let mut archive = Npz::open(file)?;
    let mut arrays = BTreeMap::new();
    for name in archive.names() {
        let array = archive.read(&name).map_err(|why| Diagnostic::error(format!("`{name}` cannot be read: {why}")))?;
        arrays.insert(name, array.to_tensor());
    }
    Ok(arrays)
}

/// The bytes of a `.npz` with those arrays.
///
/// # Errors
/// If an array is larger than the format can say.
pub fn npz_bytes(arrays: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, Diagnostic> {
    let cannot = |e: ZipError| Diagnostic::error(format!("the arrays cannot be written: {}", words(e)));
    let mut writer = ZipWriter::new(Cursor::new(vec![]));
    for (name, array) in arrays {
        let header = npy::written_header(array.dtype, &array.shape);
        let is_large = header.len() + array.bytes.len() >= u32::MAX as usize;
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).large_file(is_large);
        writer.start_file(format!("{name}.npy"), options).map_err(cannot)?;
        let written = writer.write_all(&header).and_then(|()| writer.write_all(&array.bytes));
        written.map_err(|e| cannot(ZipError::Io(e)))?;
    }
    writer.finish().map(Cursor::into_inner).map_err(cannot)
}

/// Writes arrays as a `.npz`.
///
/// # Errors
/// If the file cannot be written.
pub fn write_npz(path: &Path, arrays: &BTreeMap<String, Tensor>) -> Result<(), Diagnostic> {
    let cannot = |e: io::Error| Diagnostic::error(format!("cannot write `{}`: {e}", path.display()));
    std::fs::write(path, npz_bytes(arrays)?).map_err(cannot)
}
