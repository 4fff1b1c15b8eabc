//! Reads and writes that end by a moment, whatever the other side does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Fills `bytes` by `deadline`.
pub fn read_by(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes[done..]) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(more) => done += more,
            Err(e) if is_wait(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes `bytes` by `deadline`.
pub fn write_by(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(more) => bytes = &bytes[more..],
            Err(e) if is_wait(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether the call may be made again.
pub fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The time to `deadline`, which is not over.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(ErrorKind::TimedOut, "it took too long")) } else { Ok(left) }
}

/// Bytes that are taken field by field.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(field)
    }

    /// The next bytes, as many as the array has.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next number.
    pub fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
