//! The binary form of programs: a header that tells a damaged file before anything is decoded, then
//! bincode, packed.
//!
//! ```text
//! magic "SHARDCPL" · version u32 · payload length u64 · SHA-256 of the payload · payload
//! (little-endian)
//! ```

use crate::diagnostic::Diagnostic;
use crate::files;
use crate::packed::{pack, unpack};
use crate::plan::set::PlanSet;
use crate::types::to_hex;
use bincode::config::standard;
use bincode::error::DecodeError;
use bincode::serde::{decode_from_slice, encode_to_vec};
use sha2::{Digest, Sha256};
use std::fmt::Display;
use std::io::{self, BufReader};
use std::path::Path;

const MAGIC: &[u8; 8] = b"SHARDCPL";
const VERSION: u32 = 9;
const HASH_BYTES: usize = 32;
const HEADER_BYTES: usize = MAGIC.len() + 4 + 8 + HASH_BYTES;

/// The bytes of a plan file.
///
/// # Errors
/// If the encoder refuses, which no program gives it reason to.
pub fn encode(programs: &PlanSet) -> Result<Vec<u8>, Diagnostic> {
    let refused =
        |why: &dyn Display| Diagnostic::error(format!("the plan of `{}` cannot be written: {why}", programs.first().name));
    let payload = encode_to_vec(programs, standard()).map_err(|e| refused(&e))?;
    let payload = pack(&payload).map_err(|e| refused(&e))?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(Sha256::digest(&payload));
    bytes.extend(payload);
    Ok(bytes)
}

/// The programs in the bytes of a plan file. Their ids are in range; whether they are right is for
/// [`crate::verify_plan`] to say.
///
/// # Errors
/// The fault of the bytes, without a place.
pub fn decode(bytes: &[u8]) -> Result<PlanSet, Diagnostic> {
    let damaged = |what: &str| Diagnostic::error(format!("this plan file is damaged: {what}")).help("compile the job again");
    let (magic, rest) = bytes.split_first_chunk().ok_or_else(|| damaged("it is too short"))?;
    if magic != MAGIC {
        return Err(Diagnostic::error("this is not a plan file").help("plan files are written by `shardc compile`"));
    }
    let (version, rest) = rest.split_first_chunk().ok_or_else(|| damaged("it is too short"))?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        let message = format!("this plan file has version {version}, this program reads version {VERSION}");
        return Err(Diagnostic::error(message).help("compile the job again"));
    }
    let (length, rest) = rest.split_first_chunk().ok_or_else(|| damaged("it is too short"))?;
    let (hash, payload) = rest.split_first_chunk::<HASH_BYTES>().ok_or_else(|| damaged("it is too short"))?;
    let length = u64::from_le_bytes(*length);
    if length != payload.len() as u64 {
        return Err(damaged(&format!("it should hold {length} bytes and holds {}", payload.len())));
    }
    if Sha256::digest(payload)[..] != hash[..] {
        return Err(damaged("its hash does not fit its contents"));
    }
    let payload = unpack(payload).map_err(|why| damaged(&why.to_string()))?;
    let (programs, read): (PlanSet, usize) = decode_payload(&payload).map_err(|_| damaged("its contents are no programs"))?;
    if read != payload.len() {
        return Err(damaged(&format!("{} bytes follow the programs", payload.len() - read)));
    }
    programs.check_tables().map_err(|what| damaged(&what.to_string()))?;
    Ok(programs)
}

/// The limit counts bytes in memory before they are allocated, so that no forged length asks for
/// much more than the file has.
fn decode_payload(payload: &[u8]) -> Result<(PlanSet, usize), DecodeError> {
    if payload.len() < 1 << 20 {
        decode_from_slice(payload, standard().with_limit::<{ 1 << 24 }>())
    } else if payload.len() < 1 << 26 {
        decode_from_slice(payload, standard().with_limit::<{ 1 << 30 }>())
    } else {
        decode_from_slice(payload, standard().with_limit::<{ 1 << 40 }>())
    }
}

/// SHA-256 in hexadecimal, as manifests name files.
pub fn hash(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// [`hash`] of what `write` gives, piece by piece.
///
/// # Errors
/// Those of `write`.
pub fn hash_pieces<E>(write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>) -> Result<String, E> {
    let mut hasher = Sha256::new();
    write(&mut |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    Ok(to_hex(&hasher.finalize()))
}

/// Bytes that are read of a file at once.
const PIECE: usize = 256 << 10;

/// [`hash`] of the file at `path`, which is read in pieces.
///
/// # Errors
/// If it cannot be read.
pub fn hash_file(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut BufReader::with_capacity(PIECE, files::open(path)?), &mut hasher)?;
    Ok(to_hex(&hasher.finalize()))
}
