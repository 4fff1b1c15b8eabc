//! The state of one executor for another of the same model: from rank to rank where both hold the
//! same parts of an array, and as a whole array where they do not.

use super::{ExecutionError, Executor};
use crate::load::LoadedSet;
use crate::worker::Worker;
use shardc_ir::dtype::DType;
use shardc_ir::plan::Buffer;
use shardc_ir::plan::set::Name;
use shardc_ir::reason::Reason;
use shardc_ir::sharding::Sharding;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of whole arrays that are carried at once, so that the copy on their way stays small.
const AT_ONCE: u64 = 32 << 20;

/// How the state variables of one executor come from another.
#[derive(Debug)]
pub struct Following {
    /// Those that go from rank to rank, as many at once as are to be.
    groups: Vec<Arc<Vec<Name>>>,
    /// The others.
    whole: Vec<String>,
    /// Memory of each rank that is here, for what is on its way.
    spare: Vec<Vec<u8>>,
}

impl Following {
    /// Every state variable of `executor`, from `other`. Where ranks are processes, each rank is in
    /// the same process as the same rank of the other.
    ///
    /// # Errors
    /// If a program says nothing of a state of its own.
    pub fn new(executor: &Executor, other: &Executor) -> Result<Following, ExecutionError> {
        let (mut groups, mut whole, mut group, mut bytes) = (vec![], vec![], vec![], 0);
        for (program, state) in executor.programs().states() {
            let name = Name::State(state.name.clone());
            if !is_held_as_in(executor, other, &name) {
                whole.push(state.name.clone());
                continue;
            }
            let buffer = program.buffer(state.buffer).map_err(ExecutionError::before)?;
            bytes += buffer.shape.iter().product::<u64>() * buffer.dtype.bytes();
            group.push(name);
            if bytes >= AT_ONCE {
                groups.push(Arc::new(std::mem::take(&mut group)));
                bytes = 0;
            }
        }
        groups.push(Arc::new(group));
        Ok(Following { groups, whole, spare: vec![vec![]; executor.ranks_here()] })
    }

    /// Sets every state variable of `executor` to what it is in `other`, which is between two
    /// steps; floats are converted. All processes call it between the same two steps.
    ///
    /// # Errors
    /// If the other one lacks a state, or has it in another shape; a failed rank of either.
    pub fn copy(&mut self, executor: &mut Executor, other: &Executor) -> Result<(), ExecutionError> {
        for name in &self.whole {
            let state = Name::State(name.clone());
            let read = state.clone();
            let parts = other.on_all(None, move |worker| Ok(worker.read(&read)?))?;
            executor.set_state(name, &other.whole(&state, parts)?)?;
        }
        for group in &self.groups {
            let read = group.clone();
            let parts = other.on_each_with(std::mem::take(&mut self.spare), move |worker, mut bytes| {
                let ranges = ranges(worker, &read)?;
                bytes.clear();
                bytes.reserve_exact(ranges.iter().map(|range| (range.end - range.start) as usize).sum());
                for range in ranges {
                    bytes.extend_from_slice(&worker.bytes(range)?);
                }
                Ok(bytes)
            })?;
            let written = group.clone();
            self.spare = executor.on_each_with(parts, move |worker, bytes| {
                let mut rest = bytes.as_slice();
                for range in ranges(worker, &written)? {
                    let part = rest.split_off(..(range.end - range.start) as usize);
                    let part = part.ok_or_else(|| Reason::from("a rank has read less of a state than another one holds"))?;
                    worker.fill(range, &mut |to| to.copy_from_slice(part))?;
                }
                Ok(bytes)
            })?;
        }
        Ok(())
    }
}

/// Whether each rank holds the same part of a state as the same rank of the other executor, in the
/// same form.
fn is_held_as_in(executor: &Executor, other: &Executor, state: &Name) -> bool {
    let (mesh, of_other) = (executor.programs().mesh(), other.programs().mesh());
    let here = |of: &Executor| (of.first, of.ranks.len());
    mesh.rank_axes() == of_other.rank_axes()
        && here(executor) == here(other)
        && (0..mesh.world_size()).all(|rank| match (held(&executor.loaded, rank, state), held(&other.loaded, rank, state)) {
            (Some(own), Some(others)) => form(own) == form(others) && !own.sharding.splits(mesh.microbatch_axis()),
            (own, others) => own.is_none() && others.is_none(),
        })
}

/// The buffer of a state on a rank, if that has it.
fn held<'a>(loaded: &'a LoadedSet, rank: u64, state: &Name) -> Option<&'a Buffer> {
    let loaded = loaded.of_rank(rank);
    loaded.program().buffers.get(loaded.names.get(state)?.index())
}

/// Where a rank has its parts of these states, one after another.
fn ranges(worker: &dyn Worker, states: &[Name]) -> Result<Vec<Range<u64>>, Reason> {
    let of = |id| worker.place().ranges(id);
    let all: Vec<Vec<Range<u64>>> = states.iter().filter_map(|state| worker.named(state)).map(of).collect::<Result<_, _>>()?;
    Ok(all.concat())
}

/// What the bytes of a rank's part follow from.
fn form(buffer: &Buffer) -> (DType, &[u64], &Sharding, u64) {
    (buffer.dtype, &buffer.shape, &buffer.sharding, buffer.slots)
}
