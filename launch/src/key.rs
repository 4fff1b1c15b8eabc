//! The key that the ranks of a run share. Who has it proves so without sending it.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;

/// A shared key; empty where ranks of one machine were started by hand without one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Key(Vec<u8>);

/// Bytes of a proof, of a hash and of a number that is used once.
pub const BYTES: usize = 32;

/// The fewest bytes of a key that a network may hear proofs of: shorter ones can be guessed.
pub const FEWEST: usize = 16;

impl Key {
    /// The key of that text.
    pub fn of_text(text: &str) -> Key {
        Key(text.as_bytes().to_vec())
    }

    /// A key that nobody can guess, as a text for [`Key::of_text`].
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random_text() -> Result<String, String> {
        Ok(random()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether it is of no use against anybody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its bytes, how many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What only a holder of the key can make of `parts`, whose lengths are fixed by their places.
    pub(crate) fn proof(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of `parts`, in a time that does not tell how much of it is right.
    pub(crate) fn proves(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

/// Keys are not printed.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// Random bytes of the system.
pub(crate) fn random() -> Result<[u8; BYTES], String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|e| format!("the system has no random numbers: {e}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn proofs_are_those_of_the_standard() {
        let key = Key::of_text("Jefe");
        let proof = key.proof(&[b"what do ya want ", b"for nothing?"]);
        let text: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert!(key.proves(&[b"what do ya want for nothing?"], &proof));
        assert!(!key.proves(&[b"what do ya want for nothing?"], &proof[..31]));
        assert!(!Key::default().proves(&[b"what do ya want for nothing?"], &proof));
    }

    #[test]
    fn keys_differ_and_are_not_printed() {
        let text = Key::random_text().unwrap();
        assert_ne!(text, Key::random_text().unwrap());
        assert_eq!(format!("{:?}", Key::of_text(&text)), "Key(64 bytes)");
    }
}
