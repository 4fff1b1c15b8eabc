//! The first check of a program: every id is in range, every size is sensible, and every kernel is
//! well formed, so that whoever comes after may index and add. Plan files, the loader and the proof
//! all begin here.

use super::{ALIGNMENT, Block, Buffer, BufferId, BufferKind, Program, Row, Step};
use crate::diagnostic::counted;
use crate::limits::MAX_ARENA;
use crate::mesh::AxisId;
use crate::reason;
use crate::reason::Reason;
use crate::sharding::{degree, well_formed};
use crate::types::checked_elements;
use std::collections::{BTreeMap, HashSet};

impl Program {
    /// Checks mesh, buffers, tables and steps, each by itself.
    ///
    /// # Errors
    /// The first thing that is out of range, in words.
    pub fn check_tables(&self) -> Result<(), Reason> {
        self.mesh.check()?;
        if self.arena_bytes > MAX_ARENA {
            return Err("the arena is too large".into());
        }
        for b in &self.buffers {
            self.check_buffer(b).map_err(|why| reason!("buffer `{}`: {why}", b.name))?;
        }
        self.check_entries()?;
        self.check_blocks()?;
        self.check_order()?;
        for message in &self.messages {
            self.buffer(message.view.buffer)?;
            if message.axis.index() >= self.mesh.rank_axes().len() || message.peer >= self.mesh.size(message.axis) {
                return Err(reason!("message `{}` is for a rank that the mesh does not have", message.value));
            }
        }
        for task in &self.tasks {
            for step in &task.steps {
                self.check_step(step).map_err(|why| reason!("step `{}` of task {}: {why}", self.text_of(step), task.name))?;
            }
        }
        Ok(())
    }

    /// The buffer with that id.
    ///
    /// # Errors
    /// If there is none.
    pub fn buffer(&self, id: BufferId) -> Result<&Buffer, Reason> {
        self.buffers.get(id.index()).ok_or_else(|| reason!("there is no buffer {}", id.0))
    }

    fn check_order(&self) -> Result<(), Reason> {
        let microbatches = self.mesh.microbatches();
        let mut runs = vec![false; self.tasks.len()];
        let mut ran = HashSet::new();
        for row in &self.order {
            match row {
                Row::Run { task, time } if *task as usize >= self.tasks.len() || *time >= microbatches => {
                    return Err(reason!("the order runs task {task} for micro-batch {time}, which is not there"));
                }
                Row::Exchange(messages) => {
                    let absent =
                        |(message, time): &&(u32, u64)| *message as usize >= self.messages.len() || *time >= microbatches;
                    if let Some((message, time)) = messages.iter().find(absent) {
                        return Err(reason!("the order exchanges message {message} of micro-batch {time}, which is not there"));
                    }
                    if messages.is_empty() {
                        return Err("the order exchanges nothing".into());
                    }
                }
                Row::Run { task, time } if !ran.insert((*task, *time)) => {
                    return Err(reason!("the order runs task {task} for micro-batch {time} twice"));
                }
                Row::Run { task, .. } => runs[*task as usize] = true,
            }
        }
        match runs.iter().position(|runs| !runs) {
            Some(task) => Err(reason!("the order never runs task {task}, `{}`", self.tasks[task].name)),
            None => Ok(()),
        }
    }

    fn check_buffer(&self, b: &Buffer) -> Result<(), Reason> {
        let mesh = &self.mesh;
        let known = |axis: AxisId| axis.index() < mesh.axes().len();
        let splits: Vec<AxisId> = b.sharding.dims.iter().flatten().map(|s| s.axis).chain(b.sharding.flat.clone()).collect();
        if !splits.iter().copied().chain(b.sharding.partial.iter().map(|p| p.axis)).all(known) {
            return Err("its sharding names an axis that the mesh does not have".into());
        }
        if splits.iter().enumerate().any(|(i, axis)| splits[..i].contains(axis)) {
            return Err("its sharding splits it twice over one axis".into());
        }
        if b.sharding.dims.len() != b.shape.len() {
            return Err("its sharding does not fit its shape".into());
        }
        if checked_elements(&b.shape).is_none() {
            return Err("it is too large".into());
        }
        if let Some(at) = &b.sharding.at
            && (at.axis.index() >= mesh.rank_axes().len()
                || !at.positions.is_sorted_by(|a, b| a < b)
                || at.positions.last().is_none_or(|position| *position >= mesh.size(at.axis)))
        {
            return Err("it is held at positions that the mesh does not have".into());
        }
        for (splits, size) in b.sharding.dims.iter().zip(&b.shape) {
            if !well_formed(splits, *size, mesh) || !size.is_multiple_of(degree(splits, mesh)) {
                return Err(reason!("a dimension of {size} cannot be split so"));
            }
        }
        if b.local != b.sharding.local(&b.shape, mesh) {
            return Err("its local shape is not what its sharding says".into());
        }
        if b.slots == 0 || b.slots > mesh.microbatches() {
            return Err(reason!("it has {} for {}", counted(b.slots, "slot"), counted(mesh.microbatches(), "micro-batch")));
        }
        if b.local.iter().product::<u64>() * b.dtype.bytes() > b.slot_bytes {
            return Err("it is too small for its elements".into());
        }
        if !b.offset.is_multiple_of(ALIGNMENT) || !b.slot_bytes.is_multiple_of(ALIGNMENT) {
            return Err("its slots are not aligned".into());
        }
        let end = b.slot_bytes.checked_mul(b.slots).and_then(|bytes| bytes.checked_add(b.offset));
        if end.is_none_or(|end| end > self.arena_bytes) {
            return Err("it reaches beyond the arena".into());
        }
        let table = |index: u32, len: usize| (index as usize) < len;
        let there = match b.kind {
            BufferKind::State(i) | BufferKind::Gradient(i) => table(i, self.states.len()),
            BufferKind::Input(i) => table(i, self.inputs.len()),
            BufferKind::Constant(i) => table(i, self.constants.len()),
            BufferKind::Output(i) => table(i, self.outputs.len()),
            BufferKind::Scalar(_) | BufferKind::Activation | BufferKind::Communication => true,
        };
        if there { Ok(()) } else { Err("its entry in the program's tables is missing".into()) }
    }

    /// Every entry of the tables names a buffer that can be what it says.
    fn check_entries(&self) -> Result<(), Reason> {
        for state in &self.states {
            let found = self.buffer(state.buffer)?;
            if found.slots != 1 || found.sharding.splits(self.mesh.microbatch_axis()) {
                return Err(reason!("state `{}` is split over micro-batches", state.name));
            }
        }
        for (i, constant) in self.constants.iter().enumerate() {
            let found = self.buffer(constant.buffer)?;
            if found.kind != BufferKind::Constant(i as u32) {
                return Err(reason!("constant {i} is for `{}`, which is another buffer's", found.name));
            }
            if found.shape.iter().product::<u64>() * found.dtype.bytes() != constant.bytes.len() as u64 {
                let bytes = constant.bytes.len();
                return Err(reason!("constant `{}` has {bytes} bytes, not what its shape says", found.name));
            }
        }
        let inputs = self.inputs.iter().map(|i| (&i.name, i.buffer));
        for (name, id) in inputs.chain(self.outputs.iter().map(|o| (&o.name, o.buffer))) {
            let found = self.buffer(id)?;
            let split = found.sharding.splits(self.mesh.microbatch_axis());
            if !found.sharding.partial.is_empty() || (split && found.slots != self.mesh.microbatches()) {
                return Err(reason!("`{name}` is partial, or has no slot for each micro-batch"));
            }
        }
        Ok(())
    }

    /// Each block lies in its initializer.
    fn check_blocks(&self) -> Result<(), Reason> {
        for state in &self.states {
            let shape = &self.buffers[state.buffer.index()].shape;
            if state.block.as_ref().is_some_and(|block| !block.is_inside(shape)) {
                return Err(reason!("state `{}` is no block of its initializer", state.name));
            }
        }
        Ok(())
    }

    /// A kernel is well formed, and has as many operands as its form takes.
    fn check_step(&self, step: &Step) -> Result<(), Reason> {
        for view in step.reads.iter().chain(&step.writes) {
            self.buffer(view.buffer)?;
        }
        let signature = step.kernel.signature(&self.mesh)?;
        let (reads, writes) = (signature.reads.len(), signature.writes.len());
        if (reads, writes) != (step.reads.len(), step.writes.len()) {
            return Err(reason!("{} takes {reads} operands and gives {writes}", step.kernel.name()));
        }
        Ok(())
    }
}

/// The blocks of an initializer, whichever programs hold them, lie side by side and are all of it.
/// The tables of each program are right.
///
/// # Errors
/// The first initializer whose blocks are not.
pub fn check_blocks(programs: &[&Program]) -> Result<(), Reason> {
    let mut initializers: BTreeMap<&str, BTreeMap<&str, (&Block, &[u64])>> = BTreeMap::new();
    for (program, state) in programs.iter().flat_map(|program| program.states.iter().map(move |state| (program, state))) {
        let Some(block) = &state.block else { continue };
        let shape = &program.buffers[state.buffer.index()].shape;
        initializers.entry(&block.of).or_default().insert(&state.name, (block, shape));
    }
    for (name, blocks) in initializers {
        let mut blocks: Vec<(&Block, &[u64])> = blocks.into_values().collect();
        blocks.sort_by_key(|(block, _)| block.start);
        let (first, shape) = blocks[0];
        let whole = first.whole_shape(shape);
        let end = blocks.iter().try_fold(0, |end, (block, shape)| {
            let beside = block.start == end && block.axis == first.axis && block.whole_shape(shape) == whole;
            beside.then(|| end + shape[block.axis])
        });
        if end != Some(first.whole) {
            return Err(reason!("the blocks of `{name}` are not all of it"));
        }
    }
    Ok(())
}
