//! What an executor asks of a rank, on whatever it computes; and the rank that computes on the CPU.

use crate::comm::{Communicator, TrafficTable};
use crate::common::Member;
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::guard::Guard;
use crate::load::Loaded;
use crate::memory::{Bytes, Memory, Place};
use crate::profile::{Stopwatch, Timed};
use crate::rank::Rank;
use crate::tensor::Tensor;
use crate::world::World;
use shardc_ir::plan::Turn;
use shardc_ir::plan::set::Name;
use shardc_ir::reason::Reason;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A rank: memory, and steps over it.
pub trait Worker: Memory + Send + Debug {
    /// Runs a step. Its results are read behind it, or where it was given up.
    ///
    /// # Errors
    /// Bad data, or what failed on this rank or another.
    fn step(&mut self, step: &Asked) -> Result<Stepped, Fault>;

    /// What it has sent so far, by kind and axes; a backend that counts nothing has an empty table.
    fn traffic(&self) -> TrafficTable;

    /// The bytes of memory that it has taken for the arena, and those up to the last that was used;
    /// `None` where the backend does not see what is used.
    fn memory(&self) -> Option<(u64, u64)>;

    /// The bytes of its memory that it holds in common with other ranks.
    fn in_common(&self) -> u64 {
        0
    }

    /// Gives its rank away, and has no memory from then on; `None` where it is not on the CPU.
    ///
    /// # Errors
    /// If it holds memory in common with others, which is being changed.
    fn give_rank(&mut self) -> Result<Option<Rank>, Reason> {
        Ok(None)
    }
}

/// A step that is asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Its number, from 0.
    pub number: u64,
    /// A whole array for each input of all programs, in their order.
    pub batch: Arc<Vec<Tensor>>,
    /// The results that are wanted.
    pub outputs: Arc<Vec<Name>>,
    /// Where to give the step up, for each program, if the norm of the gradients is not finite.
    pub guards: Option<Arc<Vec<Guard>>>,
    /// When the step began, where its turns are to be timed.
    pub timed_from: Option<Instant>,
}

impl Asked {
    /// Where a rank of `place` gives up.
    pub fn guard(&self, place: &Place) -> Option<&Guard> {
        let at = || place.loaded.programs.at(&place.program().mesh, place.number());
        self.guards.as_ref().map(|guards| &guards[at()])
    }
}

/// What a step came to on one rank.
#[derive(Debug, Clone, Default)]
pub struct Stepped {
    /// For each result that was asked for this rank's part, as [`Memory::read`] gives it.
    pub outputs: Vec<Option<Vec<u8>>>,
    /// Whether it was given up.
    pub given_up: bool,
    /// The times of its turns, where they were asked for and the backend has them.
    pub timed: Option<Vec<Timed>>,
}

/// Rank `rank` on the CPU, in `world`; its memory is zero but for the constants.
///
/// # Errors
/// If the machine lacks memory.
pub fn on_cpu(loaded: Arc<Loaded>, rank: u64, threads: Threads, world: Arc<World>) -> Result<Box<dyn Worker>, Reason> {
    Ok(Box::new(CpuWorker::new(loaded, rank, threads, world)?))
}

/// A rank on the CPU, and its end of the communicators.
#[derive(Debug)]
pub(crate) struct CpuWorker {
    rank: Rank,
    pub(crate) communicator: Communicator,
}

impl CpuWorker {
    /// Rank `rank` in `world`.
    pub fn new(loaded: Arc<Loaded>, rank: u64, threads: Threads, world: Arc<World>) -> Result<CpuWorker, Reason> {
        let communicator = Communicator::new(world, loaded.program().mesh.clone(), rank);
        Ok(CpuWorker { rank: Rank::new(loaded, rank, threads)?, communicator })
    }

    /// The same, which holds some of its memory in common with others.
    pub fn joined(self, common: Option<Member>) -> CpuWorker {
        CpuWorker { rank: self.rank.joined(common), ..self }
    }
}

impl Memory for CpuWorker {
    fn place(&self) -> &Place {
        self.rank.place()
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Reason> {
        self.rank.bytes(range)
    }

    fn fill(&mut self, range: Range<u64>, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Reason> {
        self.rank.fill(range, fill)
    }
}

impl Worker for CpuWorker {
    fn step(&mut self, asked: &Asked) -> Result<Stepped, Fault> {
        let CpuWorker { rank, communicator } = self;
        rank.begin(asked.number, &asked.batch)?;
        rank.common().map_or(Ok(()), Member::begin)?;
        let loaded = rank.place().loaded.clone();
        let mut watch = asked.timed_from.map(Stopwatch::new);
        let guard = asked.guard(rank.place());
        let mut given_up = false;
        for (i, turn) in loaded.program().turns().enumerate() {
            if let Some(guard) = guard.filter(|guard| guard.turn == i)
                && !rank.is_finite(guard.norm)?
            {
                given_up = true;
                break;
            }
            let begun = watch.as_ref().map(|watch| watch.begin(communicator.slept()));
            rank.common().map_or(Ok(()), |common| common.before(i, |axes| communicator.meet(axes)))?;
            match turn {
                Turn::Launch(launch) => rank.run(launch, |call, operands| communicator.run(call, operands))?,
                Turn::Exchange(row) => rank.exchange(row, |transfers| communicator.exchange(transfers))?,
            }
            rank.common().map_or(Ok(()), |common| common.behind(i, |axes| communicator.meet(axes)))?;
            if let Some((watch, begun)) = watch.as_mut().zip(begun) {
                watch.end(turn, rank.shared_by(turn), begun, communicator.slept());
            }
        }
        rank.common().into_iter().for_each(Member::end);
        let outputs = asked.outputs.iter().map(|name| rank.read(name)).collect::<Result<_, _>>()?;
        Ok(Stepped { outputs, given_up, timed: watch.map(Stopwatch::timed) })
    }

    fn traffic(&self) -> TrafficTable {
        self.communicator.traffic().clone()
    }

    fn memory(&self) -> Option<(u64, u64)> {
        Some(self.rank.memory())
    }

    fn in_common(&self) -> u64 {
        self.rank.in_common()
    }

    fn give_rank(&mut self) -> Result<Option<Rank>, Reason> {
        self.rank.moved().map(Some)
    }
}
