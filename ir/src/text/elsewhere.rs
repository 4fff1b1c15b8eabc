//! Constants whose bytes stand elsewhere: a text names them by their hash.

use crate::plan::Program;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// Constants of fewer bytes stand in the text itself.
const LEAST: usize = 4096;

/// SHA-256 of the bytes of a constant.
pub(super) type Hash = [u8; 32];

/// Constants by the hash of their bytes.
#[derive(Debug, Clone, Default)]
pub struct Elsewhere(HashMap<Hash, Arc<Vec<u8>>>);

impl Elsewhere {
    /// The large constants of `programs`.
    pub fn of<'p>(programs: impl IntoIterator<Item = &'p Program>) -> Elsewhere {
        let constants = programs.into_iter().flat_map(|program| &program.constants).map(|constant| &constant.bytes);
        Elsewhere(constants.filter(|bytes| bytes.len() >= LEAST).map(|bytes| (hash(bytes), bytes.clone())).collect())
    }

    /// The hash of a constant, if it is one of these.
    pub(super) fn hash_of(&self, bytes: &[u8]) -> Option<Hash> {
        let may_be = bytes.len() >= LEAST && !self.0.is_empty();
        may_be.then(|| hash(bytes)).filter(|hash| self.0.contains_key(hash))
    }

    /// The constant of that hash.
    pub(super) fn get(&self, hash: &[u8]) -> Option<Arc<Vec<u8>>> {
        self.0.get(hash).cloned()
    }
}

fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}
