//! Tables of global indices, which launches of a kernel share.

use crate::cpu::number::Number;
use shardc_ir::position::Origin;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The ranks and micro-batches of a program that share a kernel have few offsets; more than these
/// are forgotten.
const OFFSETS: usize = 64;

/// The global indices along a dimension, for each offset that a launch had.
#[derive(Debug)]
pub struct Table {
    origin: Origin,
    size: u64,
    known: Mutex<BTreeMap<i64, Arc<dyn Any + Send + Sync>>>,
}

impl Table {
    /// For `size` local indices.
    pub fn new(origin: Origin, size: u64) -> Table {
        Table { origin, size, known: Mutex::default() }
    }

    /// The indices at the mesh `coordinates`, converted by `from`, which is the same for all
    /// launches.
    pub fn at<T: Number>(&self, coordinates: &[u64], from: impl Fn(i64) -> T) -> Arc<Vec<T>> {
        let offset = self.origin.offset.at(coordinates);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Ok(table)) = known.get(&offset).cloned().map(Arc::downcast) {
            return table;
        }
        if known.len() >= OFFSETS {
            known.clear();
        }
        let table: Arc<Vec<T>> = Arc::new((0..self.size).map(|i| from(self.origin.global(i, coordinates))).collect());
        known.insert(offset, table.clone());
        table
    }
}
