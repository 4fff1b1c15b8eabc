//! Event files of TensorBoard: numbers by step, without TensorFlow.
//!
//! A file is TFRecords: the length of the record in 8 bytes, its checksum, the record, its
//! checksum. A record is a message `Event` of protocol buffers. Sources:
//! `tensorflow/core/util/event.proto`, `tensorflow/core/framework/summary.proto` and
//! `tensorflow/core/lib/io/record_writer.h`.
//!
//! ```no_run
//! let mut writer = shardc::tensorboard::Writer::create(std::path::Path::new("runs/first"))?;
//! writer.scalar("loss", 1, std::time::SystemTime::now(), 2.5)?;
//! writer.flush()?;
//! # std::io::Result::Ok(())
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the first event says.
const VERSION: &str = "brain.Event:2";

/// The numbers of fields of `Event`, `Summary` and `Summary.Value`.
mod field {
    pub const WALL_TIME: u8 = 1;
    pub const STEP: u8 = 2;
    pub const FILE_VERSION: u8 = 3;
    pub const SUMMARY: u8 = 5;
    pub const VALUE: u8 = 1;
    pub const TAG: u8 = 1;
    pub const SIMPLE_VALUE: u8 = 2;
}

/// How the bytes of a field are laid out.
mod wire {
    pub const VARINT: u8 = 0;
    pub const FIXED64: u8 = 1;
    pub const BYTES: u8 = 2;
    pub const FIXED32: u8 = 5;
}

/// An event file that is written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Writer {
    /// A new file in `folder`, which is made if it is not there. Its name has the time, the host
    /// and the process, as TensorBoard expects it; a name that is taken gets a number more.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub fn create(folder: &Path) -> io::Result<Writer> {
        fs::create_dir_all(folder)?;
        let now = SystemTime::now();
        let name = format!("events.out.tfevents.{}.{}.{}", since_1970(now).as_secs(), host(), std::process::id());
        let names = (0..).map(|more| if more == 0 { name.clone() } else { format!("{name}.{more}") });
        for path in names.map(|name| folder.join(name)) {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let mut writer = Writer { path, file: BufWriter::new(file) };
                    writer.event(now, &bytes(field::FILE_VERSION, VERSION.as_bytes()))?;
                    writer.flush()?;
                    return Ok(writer);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a number of a step; TensorBoard shows those of a `tag` as a line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn scalar(&mut self, tag: &str, step: u64, wall_time: SystemTime, value: f64) -> io::Result<()> {
        let number = (value as f32).to_le_bytes();
        let value = [bytes(field::TAG, tag.as_bytes()), key(field::SIMPLE_VALUE, wire::FIXED32), number.to_vec()].concat();
        let summary = bytes(field::SUMMARY, &bytes(field::VALUE, &value));
        self.event(wall_time, &[key(field::STEP, wire::VARINT), varint(step), summary].concat())
    }

    /// Gives everything to the system: who reads the file then finds whole events.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn event(&mut self, wall_time: SystemTime, rest: &[u8]) -> io::Result<()> {
        let seconds = since_1970(wall_time).as_secs_f64().to_le_bytes();
        let event = [&key(field::WALL_TIME, wire::FIXED64)[..], &seconds, rest].concat();
        let length = (event.len() as u64).to_le_bytes();
        let record = [&length[..], &masked(&length), &event, &masked(&event)].concat();
        self.file.write_all(&record)
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The name of this machine, in characters of file names.
fn host() -> String {
    let told = fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let told = told.or_else(|| std::env::var("COMPUTERNAME").ok()).unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let name: String = told.trim().chars().filter(plain).take(64).collect();
    if name.is_empty() { "localhost".to_string() } else { name }
}

/// What stands before a field.
fn key(number: u8, wire: u8) -> Vec<u8> {
    vec![number << 3 | wire]
}

/// A field of bytes, of text or of a message.
fn bytes(number: u8, contents: &[u8]) -> Vec<u8> {
    [&key(number, wire::BYTES)[..], &varint(contents.len() as u64), contents].concat()
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn varint(mut number: u64) -> Vec<u8> {
    let mut out = vec![];
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// The checksum of a record: CRC-32C turned by 15 bits, with a constant added, so that a checksum
/// of bytes that hold one is another number.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// CRC-32C (Castagnoli), bit by bit: events are short.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc: u32, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, B.4, and the usual check.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn numbers_have_seven_bits_a_byte() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }
}
