//! The files beside a model that hold the elements of its tensors. The model is read as a stream,
//! its own tensors passed over.

use crate::onnx::file::model_file::MAX_BYTES;
use crate::onnx::file::schema::{self, Message, entry};
use crate::onnx::file::wire;
use shardc_ir::files;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use tract_onnx::pb::tensor_proto::DataLocation;

/// Every file that the model at `path` names as external data, wherever in the model; none where
/// there is no model to read.
pub fn external_files(path: &Path) -> Vec<PathBuf> {
    let locations = || {
        let file = files::open(path)?;
        let length = Some(file.metadata()?.len()).filter(|length| *length <= MAX_BYTES).ok_or_else(broken)?;
        let mut scan = Scan { file: BufReader::new(file), at: 0, locations: BTreeSet::new() };
        scan.message(Message::Model, length, 0)?;
        Ok::<_, io::Error>(scan.locations)
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    locations().unwrap_or_default().into_iter().map(|location| folder.join(location)).collect()
}

/// Messages lie no deeper in one another in a model that can be read.
const DEPTH: usize = 100;

/// The longest entry of external data that is read.
const ENTRY: u64 = 1 << 16;

/// A model that is being read.
struct Scan {
    file: BufReader<File>,
    at: u64,
    locations: BTreeSet<String>,
}

impl Scan {
    /// Reads the fields of a message up to the byte `end`.
    fn message(&mut self, message: Message, end: u64, depth: usize) -> io::Result<()> {
        if depth > DEPTH {
            return Err(broken());
        }
        let (mut location, mut is_external) = (None, false);
        while self.at < end {
            let tag = self.varint()?;
            let (number, kind) = (tag >> 3, tag & 7);
            if number == 0 {
                return Err(broken());
            }
            let length = match kind {
                0 => {
                    let value = self.varint()?;
                    let is_place = message == Message::Tensor && number == schema::tensor::DATA_LOCATION;
                    is_external |= is_place && value == DataLocation::External as u64;
                    continue;
                }
                1 => 8,
                2 => self.varint()?,
                5 => 4,
                _ => return Err(broken()),
            };
            let field_end = self.at.checked_add(length).filter(|field_end| *field_end <= end).ok_or_else(broken)?;
            if kind != 2 {
                self.pass_over(field_end)?;
            } else if let Some(inner) = message.of_field(number) {
                self.message(inner, field_end, depth + 1)?;
            } else if message == Message::Tensor && number == schema::tensor::EXTERNAL_DATA && length <= ENTRY {
                let found = self.entry(length)?;
                location = location.or(found);
            }
            self.pass_over(field_end)?;
        }
        self.locations.extend(location.filter(|_| is_external));
        Ok(())
    }

    /// Reads an entry of external data of so many bytes; gives its value if it is the location.
    fn entry(&mut self, length: u64) -> io::Result<Option<String>> {
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes)?;
        self.at += length;
        let (mut key, mut value) = (&b""[..], &b""[..]);
        for field in wire::walk(&bytes, 0..bytes.len()) {
            let field = field.map_err(|_| broken())?;
            match field.number {
                entry::KEY => key = &bytes[field.body],
                entry::VALUE => value = &bytes[field.body],
                _ => {}
            }
        }
        Ok((key == b"location").then(|| String::from_utf8_lossy(value).into_owned()))
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0;
        for i in 0..10 {
            let mut byte = [0];
            self.file.read_exact(&mut byte)?;
            self.at += 1;
            value |= u64::from(byte[0] & 0x7f) << (7 * i).min(63);
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(broken())
    }

    /// Goes on at the byte `end`.
    fn pass_over(&mut self, end: u64) -> io::Result<()> {
        let bytes = i64::try_from(end.checked_sub(self.at).ok_or_else(broken)?).map_err(|_| broken())?;
        self.at = end;
        self.file.seek_relative(bytes)
    }
}

fn broken() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "this is not an ONNX model")
}
