//! All ranks' steps in lockstep, in one thread: what the ranks of an [`Executor`] must compute to
//! the bit.
//!
//! Each turn of a step is taken by one rank after another. In a collective the ranks' sources are
//! laid side by side and combined by plain loops in the order of each group; there are no barriers,
//! pieces, shares or staging buffers.

use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::load::Loaded;
use crate::rank::Rank;
use crate::run::{ExecutionError, Executor};
use crate::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::plan::{BufferId, BufferKind, Program, Turn};
use shardc_ir::reduce_kind::ReduceKind;
use std::fmt;
use std::sync::Arc;

/// The ranks of a program, run in turn.
#[derive(Debug)]
pub struct Replay {
    loaded: Arc<Loaded>,
    ranks: Vec<Rank>,
}

/// A buffer, and what each rank holds of it.
type Held = (BufferId, Vec<Vec<u8>>);

/// What was compared and is equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compared {
    /// Ranks.
    pub ranks: u64,
    /// Outputs, on every rank.
    pub outputs: usize,
    /// Gradients.
    pub gradients: usize,
    /// State variables after the step.
    pub states: usize,
    /// Elements of all of them on all ranks.
    pub elements: u64,
}

/// The first element that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The buffer's name.
    pub buffer: String,
    /// The rank.
    pub rank: u64,
    /// Its position in the rank's part, slot after slot.
    pub element: u64,
    /// Its value where ranks ran at once.
    pub threads: String,
    /// Its value where they ran in turn.
    pub replay: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { buffer, rank, element, threads, replay } = self;
        write!(f, "element {element} of `{buffer}` on rank {rank} is {threads}, in the replay {replay}")
    }
}

impl Replay {
    /// The ranks of `executor` with its state as it is now, and nothing else in their memories.
    ///
    /// # Errors
    /// If the machine lacks memory, or a rank of the executor failed.
    pub fn of(executor: &Executor) -> Result<Replay, ExecutionError> {
        Replay::from_states(executor.loaded.clone(), &states(executor)?)
    }

    /// As [`Replay::of`], in the memory that the ranks of `executor` had.
    ///
    /// # Errors
    /// As [`Replay::of`].
    pub fn in_place_of(executor: Executor) -> Result<Replay, ExecutionError> {
        let (loaded, states) = (executor.loaded.clone(), states(&executor)?);
        drop(executor);
        Replay::from_states(loaded, &states)
    }

    fn from_states(loaded: Arc<Loaded>, states: &[Held]) -> Result<Replay, ExecutionError> {
        let ranks = (0..loaded.program.mesh.world_size()).map(|rank| Rank::new(loaded.clone(), rank, Threads(1)));
        let mut ranks: Vec<Rank> = ranks.collect::<Result<_, _>>().map_err(ExecutionError::before)?;
        for (state, parts) in states {
            for (rank, part) in ranks.iter_mut().zip(parts) {
                rank.set_part(*state, part).map_err(ExecutionError::before)?;
            }
        }
        Ok(Replay { loaded, ranks })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.loaded.program
    }

    /// The ranks.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Runs step `number` (from 0) over a batch: a whole array for each of the program's inputs, in
    /// their order.
    ///
    /// # Errors
    /// Bad data, with the rank that found it.
    pub fn step(&mut self, number: u64, batch: &[Tensor]) -> Result<(), ExecutionError> {
        self.step_while(number, batch, |_, _| Ok(true))
    }

    /// As [`Replay::step`], but only until `go_on`, which sees all ranks after each turn, says no
    /// or what failed on which rank.
    ///
    /// # Errors
    /// As [`Replay::step`], and what `go_on` says.
    pub fn step_while(
        &mut self,
        number: u64,
        batch: &[Tensor],
        mut go_on: impl FnMut(&Replay, Turn) -> Result<bool, (u64, Fault)>,
    ) -> Result<(), ExecutionError> {
        let loaded = self.loaded.clone();
        let failed = |(rank, Fault { message, of_data })| {
            let (rank, step) = (Some(rank), Some(number));
            ExecutionError { rank, step, message, of_data }
        };
        self.each(|rank| rank.begin(number, batch)).map_err(failed)?;
        for turn in loaded.program.turns() {
            self.turn(turn).map_err(failed)?;
            if !go_on(self, turn).map_err(failed)? {
                break;
            }
        }
        Ok(())
    }

    /// One turn on every rank.
    fn turn(&mut self, turn: Turn) -> Result<(), (u64, Fault)> {
        let loaded = self.loaded.clone();
        let mut call = None;
        let mut sources = vec![];
        self.each(|rank| {
            rank.run(turn, |collective, source, destination| {
                let in_place = collective.kind == CollectiveKind::AllReduce && source.is_empty();
                sources.push(if in_place { destination.to_vec() } else { source.to_vec() });
                call = Some(collective.clone());
                Ok(())
            })
        })?;
        let Some(call) = call else { return Ok(()) };
        for (number, rank) in (0..).zip(&mut self.ranks) {
            let group = loaded.program.mesh.group(number, &call.axes);
            let result = received(&call, number, &group, &sources);
            rank.run(turn, |_, _, destination| {
                destination.get_mut(..result.len()).ok_or("a destination that is too small")?.copy_from_slice(&result);
                Ok(())
            })
            .map_err(|message| (number, message))?;
        }
        Ok(())
    }

    /// Compares every output, gradient and state variable on every rank with those of `executor`;
    /// the first difference, if there is one. What is not a number is equal: its sign and payload
    /// are whatever the machine's instructions leave.
    ///
    /// # Errors
    /// If a rank of the executor failed.
    pub fn compare(&self, executor: &Executor) -> Result<Result<Compared, Difference>, ExecutionError> {
        let mut compared = Compared { ranks: self.ranks.len() as u64, ..Compared::default() };
        for (i, found) in self.loaded.program.buffers.iter().enumerate() {
            let count = match found.kind {
                BufferKind::Output(_) => &mut compared.outputs,
                BufferKind::Gradient(_) => &mut compared.gradients,
                BufferKind::State(_) => &mut compared.states,
                _ => continue,
            };
            *count += 1;
            let id = BufferId(i as u32);
            for ((number, rank), threads) in (0..).zip(&self.ranks).zip(executor.parts(id)?) {
                let replay = rank.part(id).map_err(ExecutionError::before)?;
                if let Some(difference) = self.first_difference(id, number, &threads, &replay)? {
                    return Ok(Err(difference));
                }
                compared.elements += replay.len() as u64 / found.dtype.bytes();
            }
        }
        Ok(Ok(compared))
    }

    fn first_difference(
        &self,
        id: BufferId,
        rank: u64,
        threads: &[u8],
        replay: &[u8],
    ) -> Result<Option<Difference>, ExecutionError> {
        let found = self.loaded.program.buffer(id).map_err(ExecutionError::before)?;
        let element = found.dtype.bytes() as usize;
        let value = |bytes: &[u8]| Tensor { dtype: found.dtype, shape: vec![], bytes: bytes.to_vec() }.first();
        let is_nan = |bytes: &[u8]| value(bytes).is_some_and(f64::is_nan);
        let differs = |(a, b): (&[u8], &[u8])| a != b && !(is_nan(a) && is_nan(b));
        let Some(at) = threads.chunks(element).zip(replay.chunks(element)).position(differs) else { return Ok(None) };
        let text = |bytes: &[u8]| value(&bytes[at * element..][..element]).map_or_else(String::new, |value| format!("{value:e}"));
        let (buffer, threads, replay) = (found.name.clone(), text(threads), text(replay));
        Ok(Some(Difference { buffer, rank, element: at as u64, threads, replay }))
    }

    /// One rank after the other; the first that fails, and why.
    fn each(&mut self, mut f: impl FnMut(&mut Rank) -> Result<(), Fault>) -> Result<(), (u64, Fault)> {
        (0..).zip(&mut self.ranks).try_for_each(|(number, rank)| f(rank).map_err(|message| (number, message)))
    }
}

/// What each rank holds of each state variable.
fn states(executor: &Executor) -> Result<Vec<Held>, ExecutionError> {
    let states = executor.program().states.iter();
    states.map(|state| Ok((state.buffer, executor.parts(state.buffer)?))).collect()
}

/// What rank `number` gets of its group's call, from all ranks' sources.
fn received(call: &Collective, number: u64, group: &[u64], sources: &[Vec<u8>]) -> Vec<u8> {
    let bytes = (call.count * call.dtype.bytes()) as usize;
    let place = group.iter().position(|member| *member == number).unwrap_or(0);
    let part = match call.kind {
        CollectiveKind::AllReduce | CollectiveKind::AllGather => 0,
        CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => place * bytes,
    };
    let parts = group.iter().map(|member| sources[*member as usize][part..part + bytes].to_vec());
    match call.kind {
        CollectiveKind::AllGather | CollectiveKind::AllToAll => parts.collect::<Vec<_>>().concat(),
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => {
            parts.reduce(|sum, part| combined(call.op, call.dtype, &sum, &part)).unwrap_or_default()
        }
    }
}

/// `op(a, b)`, element by element. Not a number is larger, and smaller, than any other; a sum of
/// truth values is an or.
fn combined(op: ReduceKind, dtype: DType, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! each {
        ($number:ty, $add:expr, $unordered:expr) => {{
            let pairs = a.as_chunks().0.iter().zip(b.as_chunks().0);
            let numbers = pairs.map(|(a, b)| (<$number>::from_le_bytes(*a), <$number>::from_le_bytes(*b)));
            let f = |(a, b): ($number, $number)| match op {
                ReduceKind::Sum => $add(a, b),
                ReduceKind::Max if a > b || $unordered(a) => a,
                ReduceKind::Min if a < b || $unordered(a) => a,
                ReduceKind::Max | ReduceKind::Min => b,
            };
            numbers.flat_map(|pair| f(pair).to_le_bytes()).collect()
        }};
    }
    match dtype {
        DType::F64 => each!(f64, |a, b| a + b, f64::is_nan),
        DType::F32 => each!(f32, |a, b| a + b, f32::is_nan),
        DType::I64 => each!(i64, i64::wrapping_add, |_| false),
        DType::Bool => a.iter().zip(b).map(|(a, b)| if op == ReduceKind::Min { a & b } else { a | b }).collect(),
    }
}
