//! The launches of each node by their kernels, so that a step finds its own among thousands at
//! once.

use crate::graph::NodeId;
use crate::kernel::Kernel;
use crate::lower::graph::LoweredGraph;
use crate::lower::{Launch, Lowered, Slot};
use bincode::config::standard;
use bincode::serde::encode_to_vec;
use std::collections::HashMap;

/// The launches of one node.
#[derive(Default)]
pub struct Launches {
    by_kernel: HashMap<Vec<u8>, Vec<usize>>,
    /// The launches that write each tensor, ascending.
    writers: HashMap<Slot, Vec<usize>>,
}

impl Launches {
    fn of(launches: &[Launch]) -> Launches {
        let mut found = Launches::default();
        for (k, launch) in launches.iter().enumerate() {
            if let Some(bits) = bits(&launch.kernel) {
                found.by_kernel.entry(bits).or_default().push(k);
            }
            for slot in &launch.writes {
                found.writers.entry(*slot).or_default().push(k);
            }
        }
        found
    }

    /// The launches with that kernel, to the bit.
    pub fn with_kernel(&self, kernel: &Kernel) -> &[usize] {
        bits(kernel).and_then(|bits| self.by_kernel.get(&bits)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The last launch before launch `k` that writes `slot`.
    pub fn before(&self, k: usize, slot: &Slot) -> Option<usize> {
        let writers = self.writers.get(slot)?;
        writers[..writers.partition_point(|j| *j < k)].last().copied()
    }

    /// Whether a launch after launch `k` writes `slot`.
    pub fn is_written_after(&self, k: usize, slot: &Slot) -> bool {
        self.writers.get(slot).and_then(|writers| writers.last()).is_some_and(|last| *last > k)
    }
}

/// For each node that has them, its launches.
pub fn index(lowered: &LoweredGraph<'_>) -> HashMap<NodeId, Launches> {
    let of = |(id, node): (usize, &Lowered)| match node {
        Lowered::Launches { launches, .. } => Some((NodeId(id as u32), Launches::of(launches))),
        _ => None,
    };
    lowered.nodes.iter().enumerate().filter_map(of).collect()
}

/// The encoding of a kernel, which tells kernels apart to the bit.
fn bits(kernel: &Kernel) -> Option<Vec<u8>> {
    encode_to_vec(kernel, standard()).ok()
}

/// Whether two kernels are the same to the bit.
pub fn same(a: &Kernel, b: &Kernel) -> bool {
    a.name() == b.name() && bits(a).is_some_and(|bits_of_a| bits(b) == Some(bits_of_a))
}
