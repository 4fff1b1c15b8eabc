//! Which elementwise values are computed inside their readers' kernels. [`fused`] defines the
//! kernel that has others inside.
//!
//! Before: `%s = add %p, %b`, `%a = gelu_tanh %s`. After: one map kernel `add, gelu_tanh` that
//! reads `%p` and `%b`. A value is inlined if all its readers are elementwise or reducing kernels
//! over as many elements, it is no root, and either they all end in one kernel or it is cheap to
//! compute again, together with what would be inlined into it. A value that lets go of more bytes
//! than it has, as the rounded one of a wide product does, is kept instead. What a scatter sums up
//! and only one addition reads is added as it is scattered.
//!
//! [`fused`]: shardc_ir::lower::fused

use shardc_ir::graph::{NodeId, ValueId};
use shardc_ir::kernel::ONTO;
use shardc_ir::lower::Lowered;
use shardc_ir::lower::fused::{Fused, Space, fuse};
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::lower::onto;
use shardc_ir::position::Origin;

/// Programs that cost more than this are not computed twice.
const CHEAP: u32 = 8;

/// What all that is computed again for one value may cost: more is dearer than to write the value
/// and read it back.
const AGAIN: u32 = 10;

/// A kernel's program grows to about this many instructions.
const LONGEST: usize = 256;

/// For each node, whether it is computed inside its readers.
pub struct Fusion {
    inlined: Vec<bool>,
    /// The kernels that each node ends in: itself, or those it is inlined into.
    kernels: Vec<Vec<NodeId>>,
    /// For each addition, whether it is a scatter onto a table.
    scatters: Vec<bool>,
}

impl Fusion {
    /// Decides for all nodes that run here; `loops` says which run for each micro-batch.
    pub fn new(lowered: &LoweredGraph<'_>, loops: &[bool]) -> Fusion {
        let count = lowered.graph.node_count();
        // What is sent away ends with the message.
        let kernels = lowered.graph.nodes().map(|(id, _)| vec![id]).collect();
        let mut fusion = Fusion { inlined: vec![false; count], kernels, scatters: vec![false; count] };
        let mut length = vec![0; count];
        let mut origins: Vec<Vec<(u16, Origin)>> = vec![vec![]; count];
        let (chains, freed) = (chains(lowered), freed(lowered));
        for (id, node) in lowered.nodes_here().rev() {
            let Lowered::Map(map) = lowered.node(id) else { continue };
            if fusion.scatters(lowered, id, loops) {
                continue;
            }
            length[id.index()] = map.program.code.len();
            origins[id.index()] = map.origins.clone();
            let [result] = node.results[..] else { continue };
            let storage = lowered.stored_in(result);
            let readers = &lowered.readers[storage.index()];
            if readers.is_empty() || lowered.is_root[storage.index()] {
                continue;
            }
            let mut ends: Vec<NodeId> = readers.iter().flat_map(|r| fusion.kernels[r.index()].iter().copied()).collect();
            ends.sort();
            ends.dedup();
            let same_pace = ends.iter().all(|e| loops[e.index()] == loops[id.index()]);
            let instructions = map.program.code.len().max(1);
            let short = ends.iter().all(|e| length[e.index()] + instructions <= LONGEST);
            let again = chains[id.index()].saturating_mul(ends.len() as u32 - 1);
            let is_cheap = map.program.cost() <= CHEAP && again <= AGAIN && freed[id.index()] <= bytes(lowered, result);
            let wanted = short && (ends.len() == 1 && same_pace || is_cheap);
            if !wanted || !readers.iter().all(|r| fusion.fits(lowered, id, *r, &origins)) {
                continue;
            }
            fusion.inlined[id.index()] = true;
            for end in &ends {
                length[end.index()] += instructions;
                let space = Space::of(lowered, *end).expect("it fits");
                origins[end.index()].extend(space.origins(lowered, id).expect("it fits"));
            }
            fusion.kernels[id.index()] = ends;
        }
        fusion
    }

    /// Makes an addition a scatter onto a table, if it is the only reader of what is scattered.
    fn scatters(&mut self, lowered: &LoweredGraph<'_>, id: NodeId, loops: &[bool]) -> bool {
        let is_sole = |scatter: NodeId| {
            let summed = lowered.stored_in(lowered.graph.node(scatter).results[0]).index();
            lowered.readers[summed][..] == [id] && !lowered.is_root[summed] && lowered.is_here(scatter)
        };
        let same_pace = |fused: &Fused| {
            let table = lowered.graph.value(fused.reads[ONTO]).node;
            fused.nodes.iter().chain([&table]).all(|node| loops[node.index()] == loops[id.index()])
        };
        let Some(fused) = onto::scatter(lowered, id, &is_sole).filter(same_pace) else { return false };
        for inside in fused.nodes.iter().filter(|inside| **inside != id) {
            self.inlined[inside.index()] = true;
            self.kernels[inside.index()] = vec![id];
        }
        self.scatters[id.index()] = true;
        true
    }

    /// Whether an addition is a scatter onto a table, which is made as often.
    pub fn is_scatter(&self, id: NodeId) -> bool {
        self.scatters[id.index()]
    }

    /// Whether a node is computed inside its readers.
    pub fn is_inlined(&self, id: NodeId) -> bool {
        self.inlined[id.index()]
    }

    /// The kernels that a node is computed in.
    pub fn kernels(&self, id: NodeId) -> &[NodeId] {
        &self.kernels[id.index()]
    }

    /// The kernel of an elementwise or reducing node with everything that is inlined into it.
    pub fn kernel(&self, lowered: &LoweredGraph<'_>, end: NodeId) -> Fused {
        fuse(lowered, end, &|id| self.is_inlined(id)).expect("checked when it was inlined")
    }

    /// Whether `id` can be computed inside `reader`, in all kernels that it ends in. Kernels know
    /// one origin for a dimension.
    fn fits(&self, lowered: &LoweredGraph<'_>, id: NodeId, reader: NodeId, known: &[Vec<(u16, Origin)>]) -> bool {
        let value = lowered.graph.node(id).results[0];
        self.kernels[reader.index()].iter().all(|end| {
            let Some(space) = Space::of(lowered, *end).filter(|_| !self.scatters[end.index()]) else { return false };
            let agrees = |own: &[(u16, Origin)]| {
                let contradicts = |(dim, origin): &(u16, Origin)| known[end.index()].iter().any(|(d, o)| d == dim && o != origin);
                !own.iter().any(contradicts)
            };
            space.takes(lowered, id)
                && space.reads_whole(lowered, reader, value)
                && space.origins(lowered, id).is_some_and(|own| agrees(&own))
        })
    }
}

/// For each elementwise node what it costs with all that could be computed inside its kernel.
fn chains(lowered: &LoweredGraph<'_>) -> Vec<u32> {
    let mut chains = vec![0u32; lowered.graph.node_count()];
    let is_fused = |reader: &NodeId| matches!(lowered.node(*reader), Lowered::Map(_) | Lowered::Reduce { .. });
    let all_fused: Vec<bool> = lowered.readers.iter().map(|readers| readers.iter().all(is_fused)).collect();
    for (id, node) in lowered.nodes_here() {
        let Lowered::Map(map) = lowered.node(id) else { continue };
        let elements = |value: ValueId| lowered.extent(value).elements();
        let all = elements(node.results[0]);
        let within = |value: &ValueId| {
            let stored = lowered.stored_in(*value);
            let at = stored.index();
            let fits = elements(stored) == all && !lowered.is_root[at] && all_fused[at];
            if fits { chains[lowered.graph.value(stored).node.index()] } else { 0 }
        };
        let inside: u32 = node.operands.iter().map(within).fold(0, u32::saturating_add);
        chains[id.index()] = inside.saturating_add(map.program.cost());
    }
    chains
}

/// For each elementwise node the bytes of what nobody but its kernel reads, and which are free once
/// its result is there.
fn freed(lowered: &LoweredGraph<'_>) -> Vec<u64> {
    let mut freed = vec![0u64; lowered.graph.node_count()];
    for (id, node) in lowered.nodes_here() {
        let Lowered::Map(_) = lowered.node(id) else { continue };
        let mut own: Vec<ValueId> = node.operands.iter().map(|operand| lowered.stored_in(*operand)).collect();
        own.sort();
        own.dedup();
        own.retain(|value| lowered.readers[value.index()][..] == [id] && !lowered.is_root[value.index()]);
        let of = |value: ValueId| {
            let source = lowered.graph.value(value).node;
            if matches!(lowered.node(source), Lowered::Map(_)) { freed[source.index()] } else { bytes(lowered, value) }
        };
        freed[id.index()] = own.into_iter().map(of).fold(0, u64::saturating_add);
    }
    freed
}

fn bytes(lowered: &LoweredGraph<'_>, value: ValueId) -> u64 {
    lowered.extent(value).elements().saturating_mul(lowered.graph.ty(value).dtype.bytes())
}
