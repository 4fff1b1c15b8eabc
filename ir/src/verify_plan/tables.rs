//! The first check of a program: every id is in range and every size is sensible, so that what follows may index.

use crate::diagnostic::counted;
use crate::kernel::{Kernel, Offset};
use crate::mesh::Mesh;
use crate::plan::{ALIGNMENT, Block, Buffer, BufferId, BufferKind, Program};
use crate::types::checked_elements;
use std::collections::BTreeMap;

/// The most ranks and the most micro-batches of a mesh.
const MAX_POSITIONS: u64 = 1 << 20;
/// The most bytes of an arena.
const MAX_ARENA: u64 = 1 << 50;

/// Checks the tables of a program.
///
/// # Errors
/// The first thing that is out of range, in words.
pub fn check(program: &Program) -> Result<(), String> {
    mesh(&program.mesh)?;
    if program.arena_bytes > MAX_ARENA {
        return Err("the arena is too large".into());
    }
    for b in &program.buffers {
        buffer(b, program).map_err(|why| format!("buffer `{}`: {why}", b.name))?;
    }
    let referred = (program.states.iter().map(|s| s.buffer))
        .chain(program.inputs.iter().map(|i| i.buffer))
        .chain(program.constants.iter().map(|c| c.buffer))
        .chain(program.outputs.iter().map(|o| o.buffer));
    for id in referred {
        in_range(id, program)?;
    }
    blocks(program)?;
    for step in program.tasks.iter().flat_map(|t| &t.steps) {
        for view in step.reads.iter().chain(&step.writes) {
            in_range(view.buffer, program).map_err(|why| format!("step `{}`: {why}", step.text))?;
        }
        axes(&step.kernel, &program.mesh).map_err(|why| format!("step `{}`: {why}", step.text))?;
    }
    Ok(())
}

/// Checks that the blocks of an initializer lie side by side and are all of it; the buffers of states are in range.
///
/// # Errors
/// The first initializer of which that is not so.
pub fn blocks(program: &Program) -> Result<(), String> {
    let mut initializers: BTreeMap<&str, Vec<(&Block, &[u64])>> = BTreeMap::new();
    for state in &program.states {
        let Some(block) = &state.block else { continue };
        let shape = &program.buffers[state.buffer.index()].shape;
        if !block.is_inside(shape) {
            return Err(format!("state `{}` is no block of its initializer", state.name));
        }
        initializers.entry(&block.of).or_default().push((block, shape));
    }
    for (name, mut blocks) in initializers {
        blocks.sort_by_key(|(block, _)| block.start);
        let (first, shape) = blocks[0];
        let whole = first.whole_shape(shape);
        let end = blocks.iter().try_fold(0, |end, (block, shape)| {
            let beside = block.start == end && block.axis == first.axis && block.whole_shape(shape) == whole;
            beside.then(|| end + shape[block.axis])
        });
        if end != Some(first.whole) {
            return Err(format!("the blocks of `{name}` are not all of it"));
        }
    }
    Ok(())
}

fn mesh(mesh: &Mesh) -> Result<(), String> {
    let sizes = mesh.axes().iter().map(|a| a.size);
    let positions = sizes.clone().try_fold(1u64, |n, size| n.checked_mul(size));
    if mesh.axes().is_empty() || mesh.axes().len() > 64 || positions.is_none_or(|n| n == 0 || n > MAX_POSITIONS) {
        return Err("the mesh has no sensible axes".into());
    }
    Ok(())
}

fn buffer(b: &Buffer, program: &Program) -> Result<(), String> {
    let known = |axis: crate::mesh::AxisId| axis.index() < program.mesh.axes().len();
    let splits = b.sharding.dims.iter().flatten().map(|s| s.axis);
    if !splits.chain(b.sharding.partial.iter().map(|p| p.axis)).all(known) {
        return Err("its sharding names an axis that the mesh does not have".into());
    }
    if b.sharding.dims.len() != b.shape.len() || b.local.len() != b.shape.len() {
        return Err("its sharding does not fit its shape".into());
    }
    if checked_elements(&b.shape).is_none() || checked_elements(&b.local).is_none() {
        return Err("it is too large".into());
    }
    if b.slots != 1 && b.slots != program.mesh.microbatches() {
        return Err(format!("it has {}, not one or one for each micro-batch", counted(b.slots, "slot")));
    }
    if b.local.iter().product::<u64>() * b.dtype.bytes() > b.slot_bytes {
        return Err("it is too small for its elements".into());
    }
    if !b.offset.is_multiple_of(ALIGNMENT) || !b.slot_bytes.is_multiple_of(ALIGNMENT) {
        return Err("its slots are not aligned".into());
    }
    let end = b.slot_bytes.checked_mul(b.slots).and_then(|bytes| bytes.checked_add(b.offset));
    if end.is_none_or(|end| end > program.arena_bytes) {
        return Err("it reaches beyond the arena".into());
    }
    let table = |index: u32, len: usize| (index as usize) < len;
    let there = match b.kind {
        BufferKind::State(i) | BufferKind::Gradient(i) => table(i, program.states.len()),
        BufferKind::Input(i) => table(i, program.inputs.len()),
        BufferKind::Constant(i) => table(i, program.constants.len()),
        BufferKind::Output(i) => table(i, program.outputs.len()),
        BufferKind::Scalar(_) | BufferKind::Activation | BufferKind::Communication => true,
    };
    if there { Ok(()) } else { Err("its entry in the program's tables is missing".into()) }
}

fn in_range(id: BufferId, program: &Program) -> Result<(), String> {
    if id.index() < program.buffers.len() { Ok(()) } else { Err(format!("there is no buffer {}", id.0)) }
}

/// The axes that a kernel names are the mesh's.
fn axes(kernel: &Kernel, mesh: &Mesh) -> Result<(), String> {
    let offset = |o: &Offset| o.terms.iter().all(|(axis, _)| axis.index() < mesh.axes().len());
    let known = match kernel {
        Kernel::Map(map) => map.origins.iter().all(|(_, o)| offset(&o.offset)),
        Kernel::Reduce(reduce) => reduce.map.origins.iter().all(|(_, o)| offset(&o.offset)),
        Kernel::Move(m) => offset(&m.src_offset) && offset(&m.dst_offset),
        Kernel::Gather(g) | Kernel::ScatterAdd(g) => offset(&g.origin.offset),
        Kernel::Random(random) => random.origins.iter().all(|o| offset(&o.offset)),
        Kernel::Collective(c) => c.axes.iter().all(|axis| axis.index() < mesh.rank_axes().len()),
        _ => true,
    };
    if known { Ok(()) } else { Err("it names an axis that the mesh does not have".into()) }
}
