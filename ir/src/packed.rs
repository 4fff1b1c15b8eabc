//! Bytes as they lie on disk: packed with gzip, so that `zcat` shows what is text.
//!
//! Unpacked bytes are at most [`RATIO`] times as many as packed ones, so that no small file asks
//! for much memory; bytes that would shrink further are stored as they are.

use crate::reason;
use crate::reason::Reason;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, Read, Write};

/// How many times as large as its packed form something may be.
const RATIO: u64 = 200;

/// More bytes than this are packed in a third of the time, to about a tenth more.
const MANY: usize = 8 << 20;

/// The packed form of `bytes`; equal for equal bytes.
///
/// # Errors
/// If the encoder refuses, which no bytes give it reason to.
pub fn pack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let with = |level: Compression| {
        let mut encoder = GzEncoder::new(vec![], level);
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    let packed = with(if bytes.len() > MANY { Compression::new(2) } else { Compression::default() })?;
    if bytes.len() as u64 > most(&packed) { with(Compression::none()) } else { Ok(packed) }
}

/// The bytes whose packed form is `packed`.
///
/// # Errors
/// If it is no packed form of anything, or of more than it may be.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, Reason> {
    let mut bytes = vec![];
    let mut decoder = GzDecoder::new(packed);
    let most = most(packed);
    let read = decoder.by_ref().take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| reason!("it is not packed with gzip, or damaged: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(reason!("it is more than {RATIO} times as large as its packed form"));
    }
    match decoder.into_inner().is_empty() {
        true => Ok(bytes),
        false => Err("something follows what is packed".into()),
    }
}

fn most(packed: &[u8]) -> u64 {
    RATIO * packed.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let text = b"%a = relu %b : f32[2, 3]\n".repeat(100);
        for bytes in [&b""[..], b"x", &text, &vec![0; 1 << 20]] {
            let packed = pack(bytes).expect("bytes can be packed");
            assert_eq!(unpack(&packed).expect("it is packed"), bytes);
            assert_eq!(packed, pack(bytes).expect("bytes can be packed"));
        }
        assert!(pack(&text).expect("bytes can be packed").len() * 10 < text.len());
    }

    #[test]
    fn forged_bytes_are_refused() {
        let mut bomb = GzEncoder::new(vec![], Compression::best());
        bomb.write_all(&vec![0; 20 << 20]).expect("memory takes it");
        let bomb = bomb.finish().expect("memory takes it");
        assert!(bomb.len() * RATIO as usize * 4 < 20 << 20);
        assert!(unpack(&bomb).is_err_and(|why| why.to_string().contains("200 times")));
        let good = pack(b"a graph").expect("bytes can be packed");
        assert!(unpack(&good[..good.len() - 1]).is_err());
        assert!(unpack(&[&good[..], b"x"].concat()).is_err());
        assert!(unpack(b"graph @x").is_err());
    }
}
