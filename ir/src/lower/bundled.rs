//! Bundles: what fused kernels are together as one, row by row.
//!
//! The planner chooses which kernels go together; what that choice means is defined here alone, so
//! that it can be proven of a plan.

use super::fused::fuse;
use super::graph::LoweredGraph;
use crate::graph::{NodeId, ValueId};
use crate::kernel::{Bundle, Kernel, Member, MemberKernel, Source};
use std::collections::HashMap;

/// A bundle, the values that it reads and writes, and the nodes that it carries out.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundled {
    /// The bundle.
    pub bundle: Bundle,
    /// The storage read by each operand.
    pub reads: Vec<ValueId>,
    /// The results, those of the first end first.
    pub writes: Vec<ValueId>,
    /// The nodes of each member, in program order; its end is the last.
    pub nodes: Vec<Vec<NodeId>>,
}

/// The bundle of `rows` rows of the kernels that end in `ends`, each with the nodes that `inside`
/// names computed in it; `None` where one of them is no kernel of a bundle.
pub fn bundle(lowered: &LoweredGraph<'_>, rows: u64, ends: &[NodeId], inside: &dyn Fn(NodeId) -> bool) -> Option<Bundled> {
    let mut all = Bundled { bundle: Bundle { rows, members: vec![] }, reads: vec![], writes: vec![], nodes: vec![] };
    let mut known: HashMap<ValueId, Source> = HashMap::new();
    for end in ends {
        let fused = fuse(lowered, *end, inside)?;
        let kernel = match fused.kernel {
            Kernel::Map(map) => MemberKernel::Map(map),
            Kernel::Reduce(reduce) => MemberKernel::Reduce(reduce),
            _ => return None,
        };
        let mut source = |value: &ValueId| {
            *known.entry(*value).or_insert_with(|| {
                all.reads.push(*value);
                Source::Read(all.reads.len() as u32 - 1)
            })
        };
        let reads = fused.reads.iter().map(&mut source).collect();
        all.bundle.members.push(Member { kernel, reads });
        for result in &lowered.graph.node(*end).results {
            known.insert(lowered.stored_in(*result), Source::Write(all.writes.len() as u32));
            all.writes.push(*result);
        }
        all.nodes.push(fused.nodes);
    }
    Some(all)
}
