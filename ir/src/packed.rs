//! Bytes as they lie on disk: packed with gzip, so that `zcat` shows what is text.
//!
//! Unpacked bytes are at most [`RATIO`] times as many as packed ones and [`FREE`], so that no small
//! file asks for much memory. Of bytes that would shrink further, the first are a member of their
//! own that is stored and not compressed.

use crate::reason;
use crate::reason::Reason;
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, Read, Write};

/// How many times as large as its packed form something may be.
const RATIO: usize = 10;

/// So many bytes something may have beyond that.
const FREE: usize = 256 << 10;

/// More bytes than this are packed in a third of the time, to about a tenth more.
const MANY: usize = 8 << 20;

/// The packed form of `bytes`; equal for equal bytes.
///
/// # Errors
/// If the encoder refuses, which no bytes give it reason to.
pub fn pack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let packed = compressed(bytes, vec![])?;
    if bytes.len() <= most(&packed) {
        return Ok(packed);
    }
    let (first, rest) = bytes.split_at((bytes.len() - FREE).div_ceil(RATIO));
    compressed(rest, member(first, Compression::none(), vec![])?)
}

/// `bytes` as a compressed member behind others.
fn compressed(bytes: &[u8], behind: Vec<u8>) -> io::Result<Vec<u8>> {
    member(bytes, if bytes.len() > MANY { Compression::new(2) } else { Compression::default() }, behind)
}

/// `bytes` as a member behind others.
fn member(bytes: &[u8], level: Compression, behind: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(behind, level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The bytes whose packed form is `packed`.
///
/// # Errors
/// If it is no packed form of anything, or of more than it may be.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, Reason> {
    let mut bytes = vec![];
    let most = most(packed);
    let read = MultiGzDecoder::new(packed).take(most as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| reason!("it is not packed with gzip, or damaged: {error}"))?;
    if bytes.len() > most {
        return Err(reason!("it is more than {RATIO} times as large as its packed form and {} KiB", FREE >> 10));
    }
    Ok(bytes)
}

/// The most bytes of which `packed` may be the packed form.
fn most(packed: &[u8]) -> usize {
    packed.len().saturating_mul(RATIO).saturating_add(FREE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let text = b"%a = relu %b : f32[2, 3]\n".repeat(100);
        let same = vec![7; MANY + 1];
        for bytes in [&b""[..], b"x", &text, &same, &same[..FREE], &same[..2 * FREE]] {
            let packed = pack(bytes).expect("bytes can be packed");
            assert!(unpack(&packed).expect("it is packed") == bytes);
            assert!(packed.len() <= bytes.len() / RATIO + (8 << 10));
            assert_eq!(packed, pack(bytes).expect("bytes can be packed"));
        }
        assert!(pack(&text).expect("bytes can be packed").len() * 10 < text.len());
    }

    #[test]
    fn forged_bytes_are_refused() {
        let bomb = member(&vec![0; 20 << 20], Compression::best(), vec![]).expect("memory takes it");
        assert!(most(&bomb) < 1 << 20);
        assert!(unpack(&bomb).is_err_and(|why| why.to_string().contains("10 times")));
        let good = pack(b"a graph").expect("bytes can be packed");
        assert!(unpack(&[&good[..], &bomb].concat()).is_err_and(|why| why.to_string().contains("10 times")));
        for follows in [&b"x"[..], b"a graph that is not packed", &good[..9], &good[..good.len() - 1], &[0x1f]] {
            assert!(unpack(&[&good[..], follows].concat()).is_err(), "{follows:?}");
        }
        assert!(unpack(&good[..good.len() - 1]).is_err());
        assert!(unpack(b"graph @x").is_err() && unpack(b"").is_err());
    }
}
