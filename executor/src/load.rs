//! Checks a program before it runs, and makes its kernels ready.
//!
//! Nothing in a program is believed: every view must lie in its buffer and every buffer in the arena, kernels must stay inside
//! their views, and what a step writes must not overlap what it reads, except where the kernel works in place.

use crate::cpu::{self, Prepared, signature::Operand, signature::product};
use shardc_ir::diagnostic::counted;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::{Buffer, BufferId, Program, Step, View};
use shardc_ir::sharding::{degree, well_formed};
use shardc_ir::verify_plan::tables::blocks;
use std::ops::Range;

/// A program that was found safe to run.
#[derive(Debug)]
pub struct Loaded {
    /// The program.
    pub program: Program,
    /// For each task its launches.
    pub tasks: Vec<Vec<Launch>>,
}

/// A step with its kernel ready.
#[derive(Debug)]
pub struct Launch {
    /// The kernel; `None` for a collective.
    pub kernel: Option<Prepared>,
    /// Where the operands read are.
    pub reads: Vec<Place>,
    /// Where the operands written are.
    pub writes: Vec<Place>,
    /// For each read, which write is the same memory.
    pub in_place: Vec<Option<usize>>,
}

/// Where an operand is in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Element type.
    pub dtype: DType,
    /// First byte, in slot 0.
    start: u64,
    /// Bytes.
    bytes: u64,
    /// Bytes from one micro-batch's slot to the next.
    slot: u64,
}

impl Place {
    /// The bytes at micro-batch `time`.
    pub fn at(&self, time: u64) -> Range<u64> {
        let start = self.start + self.slot * time;
        start..start + self.bytes
    }
}

impl Loaded {
    /// Checks `program` and makes its kernels ready.
    ///
    /// # Errors
    /// What is wrong, with the step's text.
    pub fn new(program: Program) -> Result<Loaded, String> {
        check_mesh(&program.mesh)?;
        for buffer in &program.buffers {
            check_buffer(buffer, &program).map_err(|e| format!("buffer `{}`: {e}", buffer.name))?;
        }
        check_tables(&program)?;
        let mut tasks = vec![];
        for task in &program.tasks {
            let launch =
                |step: &Step| launch(&program, step).map_err(|e| format!("step `{}` of task {}: {e}", step.text, task.name));
            tasks.push(task.steps.iter().map(launch).collect::<Result<_, _>>()?);
        }
        Ok(Loaded { program, tasks })
    }
}

/// The buffer with that id, which a checked program has.
pub fn buffer(program: &Program, id: BufferId) -> Result<&Buffer, String> {
    program.buffers.get(id.index()).ok_or_else(|| format!("there is no buffer {}", id.0))
}

fn check_mesh(mesh: &Mesh) -> Result<(), String> {
    let sizes: Vec<u64> = mesh.axes().iter().map(|a| a.size).collect();
    if sizes.is_empty() || sizes.len() > 64 || sizes.contains(&0) || product(&sizes).is_err() {
        return Err("the mesh has no sensible axes".to_string());
    }
    if mesh.world_size() > 1 << 16 || mesh.microbatches() > 1 << 20 {
        return Err("the mesh has too many positions".to_string());
    }
    Ok(())
}

fn check_buffer(buffer: &Buffer, program: &Program) -> Result<(), String> {
    let mesh = &program.mesh;
    let all: Vec<_> = buffer.sharding.dims.iter().flatten().collect();
    let axes_once =
        all.iter().enumerate().all(|(i, s)| s.axis.index() < mesh.axes().len() && all[..i].iter().all(|t| t.axis != s.axis));
    if buffer.sharding.dims.len() != buffer.shape.len() || !axes_once {
        return Err("its sharding does not fit its shape".to_string());
    }
    product(&buffer.shape)?;
    for (splits, size) in buffer.sharding.dims.iter().zip(&buffer.shape) {
        if !well_formed(splits, *size, mesh) || !size.is_multiple_of(degree(splits, mesh)) {
            return Err(format!("a dimension of {size} cannot be split so"));
        }
    }
    if buffer.local != buffer.sharding.local(&buffer.shape, mesh) {
        return Err("its local shape is not what its sharding says".to_string());
    }
    let bytes = product(&buffer.local)?.checked_mul(buffer.dtype.bytes());
    if bytes.is_none_or(|bytes| bytes > buffer.slot_bytes)
        || !buffer.offset.is_multiple_of(64)
        || !buffer.slot_bytes.is_multiple_of(64)
    {
        return Err("its slots do not hold its elements, or are not aligned".to_string());
    }
    if buffer.slots != 1 && buffer.slots != mesh.microbatches() {
        return Err(format!("it has {}, not one or one for each micro-batch", counted(buffer.slots, "slot")));
    }
    let end = buffer.slot_bytes.checked_mul(buffer.slots).and_then(|n| n.checked_add(buffer.offset));
    if end.is_none_or(|end| end > program.arena_bytes) {
        return Err("it reaches beyond the arena".to_string());
    }
    Ok(())
}

/// Every entry of the program's tables names a buffer, and constants have their bytes.
fn check_tables(program: &Program) -> Result<(), String> {
    let buffers = (program.states.iter().map(|s| s.buffer))
        .chain(program.inputs.iter().map(|i| i.buffer))
        .chain(program.constants.iter().map(|c| c.buffer))
        .chain(program.outputs.iter().map(|o| o.buffer));
    for id in buffers {
        buffer(program, id)?;
    }
    for state in &program.states {
        let found = buffer(program, state.buffer)?;
        if found.slots != 1 || found.sharding.splits(program.mesh.time()) {
            return Err(format!("state `{}` is split over micro-batches", state.name));
        }
    }
    blocks(program)?;
    for constant in &program.constants {
        let found = buffer(program, constant.buffer)?;
        if product(&found.shape)? * found.dtype.bytes() != constant.bytes.len() as u64 {
            return Err(format!("constant `{}` has {} bytes, not what its shape says", found.name, constant.bytes.len()));
        }
    }
    for (name, id) in
        (program.inputs.iter().map(|i| (&i.name, i.buffer))).chain(program.outputs.iter().map(|o| (&o.name, o.buffer)))
    {
        let found = buffer(program, id)?;
        let split = found.sharding.splits(program.mesh.time());
        if !found.sharding.partial.is_empty() || (split && found.slots != program.mesh.microbatches()) {
            return Err(format!("`{name}` is partial, or has no slot for each micro-batch"));
        }
    }
    Ok(())
}

fn launch(program: &Program, step: &Step) -> Result<Launch, String> {
    let signature = cpu::signature(&step.kernel, &program.mesh)?;
    if signature.reads.len() != step.reads.len() || signature.writes.len() != step.writes.len() {
        let (reads, writes) = (signature.reads.len(), signature.writes.len());
        return Err(format!("{} takes {reads} operands and gives {writes}", step.kernel.form()));
    }
    let places = |operands: &[Operand], views: &[View]| -> Result<Vec<Place>, String> {
        operands.iter().zip(views).map(|(operand, view)| place(program, operand, view)).collect()
    };
    let (reads, writes) = (places(&signature.reads, &step.reads)?, places(&signature.writes, &step.writes)?);
    let mut in_place = vec![None; reads.len()];
    for (r, read) in reads.iter().enumerate() {
        let same = |write: &Place| write.start == read.start && write.slot == read.slot && write.bytes > 0 && read.bytes > 0;
        in_place[r] = writes.iter().position(same).filter(|w| cpu::may_be_in_place(&step.kernel, r, *w));
    }
    for time in [0, program.mesh.microbatches() - 1] {
        check_overlaps(&reads, &writes, &in_place, time)?;
    }
    let kernel = match &step.kernel {
        Kernel::Collective(_) => None,
        kernel => Some(Prepared::new(kernel, &in_place)?),
    };
    Ok(Launch { kernel, reads, writes, in_place })
}

/// The part of a view that an operand needs.
fn place(program: &Program, operand: &Operand, view: &View) -> Result<Place, String> {
    let found = buffer(program, view.buffer)?;
    let inside = view.offset.checked_add(view.bytes).is_some_and(|end| end <= found.slot_bytes);
    let needed = operand.elements.checked_mul(operand.dtype.bytes());
    if !inside || !view.offset.is_multiple_of(operand.dtype.bytes()) {
        return Err(format!("a view leaves buffer `{}`, or is not aligned", found.name));
    }
    let bytes = needed.filter(|needed| *needed <= view.bytes);
    let bytes = bytes.ok_or_else(|| {
        format!("it needs {} elements of `{}`, the view has {}", operand.elements, found.name, view.bytes / operand.dtype.bytes())
    })?;
    let slot = if found.slots > 1 { found.slot_bytes } else { 0 };
    Ok(Place { dtype: operand.dtype, start: found.offset + view.offset, bytes, slot })
}

fn check_overlaps(reads: &[Place], writes: &[Place], in_place: &[Option<usize>], time: u64) -> Result<(), String> {
    let overlap = |a: &Place, b: &Place| {
        let (a, b) = (a.at(time), b.at(time));
        a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
    };
    for (w, write) in writes.iter().enumerate() {
        if writes[..w].iter().any(|other| overlap(write, other)) {
            return Err("it writes some bytes twice".to_string());
        }
        if reads.iter().zip(in_place).any(|(read, same)| *same != Some(w) && overlap(read, write)) {
            return Err("it writes what it reads".to_string());
        }
    }
    Ok(())
}
