//! Copies of all state variables at one moment, each element once over all ranks, as boxes of whole
//! arrays: what a checkpoint is made of.

use crate::cpu::threads::by_all_cores;
use crate::memory::Bytes;
use crate::run::{ExecutionError, Executor};
use crate::worker::Worker;
use shardc_ir::dtype::DType;
use shardc_ir::memory;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Program};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::region::{Held, Region, held};
use std::ops::Range;
use std::sync::Arc;

/// A piece of a state variable that a rank owns: of those that hold the same it is the one that
/// writes it.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The state variable.
    pub state: String,
    /// Its element type.
    pub dtype: DType,
    /// Which elements of the whole array.
    pub region: Region,
    /// Where its bytes are among those of all pieces of the rank.
    pub bytes: Range<usize>,
    buffer: BufferId,
    /// Where it lies in the part that dimensions leave to the rank, and that one's shape.
    local: Region,
    part: Vec<u64>,
    /// The element of the part that the rank's memory begins with.
    begin: u64,
}

/// The pieces of a rank, and their bytes.
#[derive(Debug)]
pub struct Copied {
    /// The rank.
    pub rank: u64,
    /// What it owns.
    pub pieces: Arc<Vec<Piece>>,
    /// Their elements, each piece as a row-major array.
    pub bytes: Vec<u8>,
}

/// The pieces that each rank of `programs` owns. Of replicas another one owns each state variable,
/// so that all have about as much to write.
///
/// # Errors
/// If a program names what it does not have, or some elements are owned by nobody.
pub fn owned(programs: &PlanSet) -> Result<Vec<Vec<Piece>>, Reason> {
    let mesh = programs.mesh();
    let mut ranks: Vec<Vec<Piece>> = (0..mesh.world_size()).map(|_| vec![]).collect();
    let coordinates: Vec<Vec<u64>> = (0..mesh.world_size()).map(|rank| mesh.coordinates(rank)).collect();
    for (number, (program, state)) in programs.states().into_iter().enumerate() {
        let name = &state.name;
        let has = |program: &Program| program.states.iter().find(|own| own.name == *name).map(|own| own.buffer);
        let having: Vec<Option<BufferId>> = programs.programs.iter().map(has).collect();
        let buffer = program.buffer(state.buffer)?;
        let sharding = &buffer.sharding;
        // Ranks that differ on these axes hold the same.
        let axes: Vec<usize> = (0..mesh.rank_axes().len()).filter(|axis| !sharding.splits(AxisId(*axis as u8))).collect();
        let key = |rank: usize| -> Vec<u64> { axes.iter().map(|axis| coordinates[rank][*axis]).collect() };
        let holders: Vec<usize> =
            (0..coordinates.len()).filter(|rank| having[programs.at(mesh, *rank as u64)].is_some()).collect();
        let mut keys: Vec<Vec<u64>> = holders.iter().map(|rank| key(*rank)).collect();
        keys.sort();
        keys.dedup();
        let Some(owner) = keys.get(number % keys.len().max(1)) else { return Err(reason!("`{name}` is held by no rank")) };
        let mut elements = 0;
        for rank in holders.into_iter().filter(|rank| key(*rank) == *owner) {
            let Some(own) = having[programs.at(mesh, rank as u64)] else { continue };
            let part = held(sharding, &buffer.shape, mesh, &coordinates[rank]);
            for Held { global, local } in part.boxes {
                let count = global.elements().unwrap_or(0);
                elements += count;
                let at = ranks[rank].last().map_or(0, |last| last.bytes.end);
                let bytes = at..at + (count * buffer.dtype.bytes()) as usize;
                ranks[rank].push(Piece {
                    state: name.clone(),
                    dtype: buffer.dtype,
                    region: global,
                    bytes,
                    buffer: own,
                    local,
                    part: part.shape.clone(),
                    begin: part.begin,
                });
            }
        }
        if elements != buffer.shape.iter().product::<u64>() {
            return Err(reason!("not every element of `{name}` is held by a rank"));
        }
    }
    Ok(ranks)
}

impl Piece {
    /// Copies it from the bytes of the whole array.
    ///
    /// # Panics
    /// If these are not so many as `shape` says, or `to` is not as long as the piece.
    pub fn copy_of_whole(&self, whole: &[u8], shape: &[u64], to: &mut [u8]) {
        let size = self.dtype.bytes() as usize;
        self.region.for_each_run(shape, |from, at, count| {
            let (from, at, count) = (from as usize * size, at as usize * size, count as usize * size);
            to[at..at + count].copy_from_slice(&whole[from..from + count]);
        });
    }

    /// Copies it from the bytes that the rank holds of the array.
    fn copy(&self, held: &[u8], to: &mut [u8]) {
        let size = self.dtype.bytes() as usize;
        self.local.for_each_run(&self.part, |from, at, count| {
            let (from, at, count) = ((from - self.begin) as usize * size, at as usize * size, count as usize * size);
            to[at..at + count].copy_from_slice(&held[from..from + count]);
        });
    }
}

/// What is copied of each rank that is here, again and again, into the same memory.
#[derive(Debug)]
pub struct Snapshots {
    pieces: Vec<Arc<Vec<Piece>>>,
    spare: Vec<Vec<u8>>,
}

impl Snapshots {
    /// Of the ranks of `executor` that are here.
    ///
    /// # Errors
    /// If some state is held by nobody, or there is no memory for a copy.
    pub fn new(executor: &Executor) -> Result<Snapshots, ExecutionError> {
        let all = owned(executor.programs()).map_err(ExecutionError::before)?;
        let here = all.into_iter().map(Arc::new).skip(executor.first_rank() as usize).take(executor.ranks_here());
        let mut snapshots = Snapshots { pieces: here.collect(), spare: vec![] };
        // Memory that was never used comes page by page, which would take longer than the copy.
        let copies = snapshots.memory(executor)?;
        snapshots.give_back(copies.into_iter().map(|copied| copied.bytes));
        Ok(snapshots)
    }

    /// Memory for a copy of each rank that is here.
    fn memory(&mut self, executor: &Executor) -> Result<Vec<Copied>, ExecutionError> {
        let mut copies = vec![];
        for (rank, pieces) in (executor.first_rank()..).zip(&self.pieces) {
            let size = pieces.last().map_or(0, |last| last.bytes.end);
            let mut bytes = self.spare.pop().unwrap_or_default();
            let lacks = |_| ExecutionError::before(format!("there is no memory for a copy of rank {rank}'s state: {size} bytes"));
            let missing = size.saturating_sub(bytes.len());
            memory::reserve(&mut bytes, missing).map_err(lacks)?;
            bytes.resize(size, 0);
            copies.push(Copied { rank, pieces: pieces.clone(), bytes });
        }
        Ok(copies)
    }

    /// Copies all state variables as they are between two steps. Where ranks are processes, each
    /// copies what its own rank owns.
    ///
    /// # Errors
    /// If a rank failed, or there is no memory for the copy.
    pub fn take(&mut self, executor: &Executor) -> Result<Vec<Copied>, ExecutionError> {
        let copies = self.memory(executor)?;
        executor.on_each_with(copies, |worker, mut copied| {
            copy(worker, &mut copied)?;
            Ok(copied)
        })
    }

    /// Takes the memory of a snapshot back.
    pub fn give_back(&mut self, copies: impl IntoIterator<Item = Vec<u8>>) {
        self.spare.extend(copies);
    }
}

/// A piece, the bytes that the rank holds of its array, and where it goes.
type Copying<'a> = (&'a Piece, Bytes<'a>, &'a mut [u8]);

/// More bytes are copied by all cores.
const LARGE: usize = 1 << 20;

/// Copies the pieces of a rank.
fn copy(worker: &dyn Worker, copied: &mut Copied) -> Result<(), Reason> {
    let Copied { pieces, bytes, .. } = copied;
    let is_large = bytes.len() > LARGE;
    let mut rest = bytes.as_mut_slice();
    let mut work: Vec<Copying<'_>> = vec![];
    for piece in pieces.iter() {
        let Some(range) = worker.place().ranges(piece.buffer)?.into_iter().next() else {
            return Err(reason!("`{}` has no memory", piece.state));
        };
        let (to, others) = rest.split_at_mut(piece.bytes.len());
        rest = others;
        work.push((piece, worker.bytes(range)?, to));
    }
    let copy = |(piece, held, to): Copying<'_>| piece.copy(&held, to);
    if is_large {
        by_all_cores(work, copy)
    } else {
        work.into_iter().for_each(copy)
    }
    Ok(())
}
