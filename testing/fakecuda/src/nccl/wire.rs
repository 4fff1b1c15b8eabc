//! Values on a socket: their length in 8 bytes, then the bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Error, Read, Write};

/// The most bytes of one value.
const MOST: u64 = 4 << 30;

/// Writes a value.
pub fn write(to: &mut impl Write, value: &impl Serialize) -> Result<(), Error> {
    let bytes = bincode::serde::encode_to_vec(value, bincode::config::standard()).map_err(Error::other)?;
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(&bytes)
}

/// Reads a value.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, Error> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST {
        return Err(Error::other("a value that is too long"));
    }
    // As much is reserved as has come.
    let mut bytes = vec![];
    from.take(length).read_to_end(&mut bytes)?;
    let (value, _) = bincode::serde::decode_from_slice(&bytes, bincode::config::standard()).map_err(Error::other)?;
    Ok(value)
}
