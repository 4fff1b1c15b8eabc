//! Which buffer each value is stored in. Leaves have their own; updates, all-reduces and outputs
//! share where nothing is lost.

use super::fuse::Fusion;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{NodeId, Part, ValueId};
use shardc_ir::kernel::ONTO;
use shardc_ir::lower::Lowered;
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::ops::Op;
use shardc_ir::plan::{
    Buffer, BufferId, BufferKind, HostScalar, ProgramConstant, ProgramInput, ProgramOutput, StateVariable, aligned,
};
use shardc_ir::sharding::Sharding;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The buffers of a program under construction.
pub struct Buffers<'a, 'g> {
    lowered: &'a LoweredGraph<'g>,
    /// All buffers.
    pub all: Vec<Buffer>,
    /// The buffer of each storage that has one.
    of: Vec<Option<BufferId>>,
    /// The buffer of each scalar that the host writes, however often it is read.
    scalars: HashMap<HostScalar, BufferId>,
    /// Inputs and labels.
    pub inputs: Vec<ProgramInput>,
    /// Constants that some kernel reads.
    pub constants: Vec<ProgramConstant>,
    /// State variables.
    pub states: Vec<StateVariable>,
    /// Results for the host.
    pub outputs: Vec<ProgramOutput>,
    /// Values to copy into buffers of their own: (value, buffer).
    pub copies: Vec<(ValueId, BufferId)>,
}

impl<'a, 'g> Buffers<'a, 'g> {
    /// Claims the buffers of states, gradients and outputs, and lets others share them.
    pub fn new(lowered: &'a LoweredGraph<'g>, fusion: &Fusion, runs: &[Option<(usize, usize)>]) -> Buffers<'a, 'g> {
        let mut buffers = Buffers {
            lowered,
            all: vec![],
            of: vec![None; lowered.graph.value_count()],
            scalars: HashMap::new(),
            inputs: vec![],
            constants: vec![],
            states: vec![],
            outputs: vec![],
            copies: vec![],
        };
        buffers.claim_leaves();
        buffers.claim_states(fusion, runs);
        buffers.claim_gradients();
        buffers.claim_outputs();
        buffers.share_reductions();
        buffers.share_tables(fusion);
        buffers
    }

    /// The buffer of a value; made on the first question.
    pub fn of(&mut self, value: ValueId) -> BufferId {
        let storage = self.lowered.stored_in(value);
        if let Some(buffer) = self.of[storage.index()] {
            return buffer;
        }
        let node = self.lowered.graph.value(storage).node;
        let kind = match &self.lowered.graph.node(node).op {
            Op::Constant(constant) => {
                let buffer = BufferId(self.all.len() as u32);
                self.constants.push(ProgramConstant { buffer, bytes: constant.value.bytes.clone() });
                BufferKind::Constant(self.constants.len() as u32 - 1)
            }
            Op::Host(host) => match self.scalars.entry(host.scalar) {
                Entry::Occupied(there) => return *self.of[storage.index()].insert(*there.get()),
                Entry::Vacant(free) => {
                    free.insert(BufferId(self.all.len() as u32));
                    BufferKind::Scalar(host.scalar)
                }
            },
            _ => BufferKind::Activation,
        };
        let slots = if matches!(kind, BufferKind::Constant(_)) { self.slots(storage) } else { 1 };
        self.make(storage, kind, slots)
    }

    /// The slots of a buffer that the host fills or reads: one for each micro-batch if the value is
    /// split over them.
    fn slots(&self, value: ValueId) -> u64 {
        let graph = self.lowered.graph;
        if graph.sharding(value).splits(graph.mesh.microbatch_axis()) { graph.mesh.microbatches() } else { 1 }
    }

    /// A buffer for scratch of a collective.
    pub fn scratch(&mut self, name: &str, dtype: DType, elements: u64) -> BufferId {
        self.push(Buffer {
            name: format!("{name}.scratch"),
            kind: BufferKind::Communication,
            dtype,
            shape: vec![elements],
            sharding: Sharding::replicated(1),
            local: vec![elements],
            slots: 1,
            offset: 0,
            slot_bytes: aligned(elements * dtype.bytes()),
        })
    }

    fn claim_leaves(&mut self) {
        for (_, node) in self.lowered.nodes_here() {
            let Op::Input(input) = &node.op else { continue };
            let value = node.results[0];
            let buffer = self.make(value, BufferKind::Input(self.inputs.len() as u32), self.slots(value));
            self.inputs.push(ProgramInput { name: input.name.clone(), buffer, range: None, except: None });
        }
    }

    /// Every state has a buffer. Its update is written into it where the old value is not read
    /// later, else copied at the end.
    fn claim_states(&mut self, fusion: &Fusion, runs: &[Option<(usize, usize)>]) {
        let graph = self.lowered.graph;
        let reads = graph.state_reads();
        for (i, state) in graph.states.iter().enumerate() {
            let Some(read) = reads[i].filter(|read| self.is_here(*read)) else { continue };
            let buffer = self.make(read, BufferKind::State(self.states.len() as u32), 1);
            self.all[buffer.index()].name = state.name.clone();
            let (name, init, block) = (state.name.clone(), state.init.clone(), state.block.clone());
            self.states.push(StateVariable { name, buffer, role: state.role, init, block });
            let Some(update) = state.update else { continue };
            let storage = self.lowered.stored_in(update);
            if storage == read {
                continue;
            }
            if self.of[storage.index()].is_none() && self.may_overwrite(read, storage, fusion, runs) {
                self.of[storage.index()] = Some(buffer);
            } else {
                self.copies.push((update, buffer));
            }
        }
    }

    /// Whether nothing reads `old` when `update` is written: an elementwise kernel may be the last
    /// that does, in place; a call that gathers or moves it comes after all that do.
    fn may_overwrite(&self, old: ValueId, update: ValueId, fusion: &Fusion, runs: &[Option<(usize, usize)>]) -> bool {
        let graph = self.lowered.graph;
        let id = graph.value(update).node;
        let in_update = |n: NodeId| graph.node(n).origin.part == Part::Update;
        let ends_before = |at: NodeId| {
            let Some((begins, _)) = runs[at.index()] else { return false };
            let has_ended = |kernel: &NodeId| match runs[kernel.index()] {
                Some((_, last)) => (last, *kernel) <= (begins, at),
                None => !in_update(*kernel) || *kernel <= at,
            };
            let mut kernels = self.lowered.readers[old.index()].iter().flat_map(|reader| fusion.kernels(*reader));
            kernels.all(has_ended)
        };
        let is_call = |op: &Op| matches!(op, Op::AllGather(_) | Op::FlatGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_));
        in_update(id)
            && match self.lowered.node(id) {
                Lowered::Map(_) => !fusion.is_inlined(id) && ends_before(id),
                _ => is_call(&graph.node(id).op) && !self.lowered.readers[old.index()].contains(&id) && ends_before(id),
            }
    }

    fn claim_gradients(&mut self) {
        let graph = self.lowered.graph;
        let places: HashMap<String, u32> = (0..).zip(&self.states).map(|(place, state)| (state.name.clone(), place)).collect();
        for state in &graph.states {
            if let (Some(gradient), Some(place)) = (state.gradient, places.get(&state.name)) {
                self.claim(gradient, BufferKind::Gradient(*place), format!("gradient of {}", state.name), 1);
            }
        }
    }

    fn claim_outputs(&mut self) {
        let graph = self.lowered.graph;
        let lowered = self.lowered;
        let is_here = |output: &&shardc_ir::graph::Output| lowered.is_here(graph.value(output.value).node);
        for output in graph.outputs.iter().filter(is_here) {
            let kind = BufferKind::Output(self.outputs.len() as u32);
            let buffer = self.claim(output.value, kind, output.name.clone(), self.slots(output.value));
            self.outputs.push(ProgramOutput { name: output.name.clone(), buffer });
        }
    }

    /// Gives a value's storage a buffer of that kind, or, where it has one or is a leaf's, a copy
    /// in a new one.
    fn claim(&mut self, value: ValueId, kind: BufferKind, name: String, slots: u64) -> BufferId {
        let storage = self.lowered.stored_in(value);
        let node = self.lowered.graph.value(storage).node;
        let is_leaf = matches!(self.lowered.node(node), Lowered::Leaf) && !self.is_received(node);
        let free = self.of[storage.index()].is_none() && !is_leaf;
        let buffer = self.make(value, kind, slots);
        self.all[buffer.index()].name = name;
        if free {
            self.of[storage.index()] = Some(buffer);
        } else {
            self.copies.push((value, buffer));
        }
        buffer
    }

    /// An all-reduce works in place where nobody else reads its operand.
    fn share_reductions(&mut self) {
        let graph = self.lowered.graph;
        for (id, node) in self.lowered.nodes_here().rev() {
            let Op::AllReduce(_) = node.op else { continue };
            let operand = self.lowered.stored_in(node.operands[0]);
            let definer = graph.value(operand).node;
            let sole = self.lowered.readers[operand.index()] == [id] && !self.lowered.is_root[operand.index()];
            if sole && self.of[operand.index()].is_none() && !matches!(self.lowered.node(definer), Lowered::Leaf) {
                let result = self.of(node.results[0]);
                self.of[operand.index()] = Some(result);
            }
        }
    }

    /// A scatter adds in place to a table that nobody else reads.
    fn share_tables(&mut self, fusion: &Fusion) {
        for (id, node) in self.lowered.nodes_here().rev() {
            if !fusion.is_scatter(id) {
                continue;
            }
            let table = fusion.kernel(self.lowered, id).reads[ONTO];
            let definer = self.lowered.graph.value(table).node;
            let sole = self.lowered.readers[table.index()] == [id] && !self.lowered.is_root[table.index()];
            if sole && self.of[table.index()].is_none() && !matches!(self.lowered.node(definer), Lowered::Leaf) {
                let result = self.of(node.results[0]);
                self.of[table.index()] = Some(result);
            }
        }
    }

    fn is_here(&self, value: ValueId) -> bool {
        self.lowered.is_here(self.lowered.graph.value(value).node)
    }

    /// Whether a message brings what the node makes.
    fn is_received(&self, id: NodeId) -> bool {
        matches!(self.lowered.graph.node(id).op, Op::Transfer(_))
    }

    fn make(&mut self, value: ValueId, kind: BufferKind, slots: u64) -> BufferId {
        let storage = self.lowered.stored_in(value);
        let extent = self.lowered.extent(value);
        let buffer = self.push(Buffer {
            name: self.lowered.graph.value(value).name.to_string(),
            kind,
            dtype: extent.ty.dtype,
            shape: extent.ty.shape.clone(),
            sharding: extent.sharding.clone(),
            local: extent.local.clone(),
            slots,
            offset: 0,
            slot_bytes: aligned(extent.elements() * extent.ty.dtype.bytes()),
        });
        if self.of[storage.index()].is_none()
            && !matches!(self.all[buffer.index()].kind, BufferKind::Gradient(_) | BufferKind::Output(_))
        {
            self.of[storage.index()] = Some(buffer);
        }
        buffer
    }

    fn push(&mut self, buffer: Buffer) -> BufferId {
        self.all.push(buffer);
        BufferId(self.all.len() as u32 - 1)
    }
}
