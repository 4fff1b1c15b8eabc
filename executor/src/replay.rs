//! All ranks' steps in one thread: what the ranks of an [`Executor`] must compute to the bit.
//!
//! Each rank has the chain of its program's turns, and one rank after another takes a turn until
//! all are at calls. A call is made when all of its group are at it: the sources are laid side by
//! side and combined by plain loops in the order of the group; there are no barriers, pieces,
//! shares or boards. Messages wait in a line for each way from one rank to another; a rank passes
//! its exchange when all that it receives is there.

use crate::arena::Operands;
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::load::LoadedSet;
use crate::memory::Memory;
use crate::rank::Rank;
use crate::run::{ExecutionError, Executor};
use crate::tensor::Tensor;
use crate::transfer::Transfer;
use half::{bf16, f16};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::set::Name;
use shardc_ir::plan::{Buffer, Launch, Turn};
use shardc_ir::reason;
use shardc_ir::reduce_kind::ReduceKind;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// The ranks of a mesh, run in turn.
#[derive(Debug)]
pub struct Replay {
    loaded: LoadedSet,
    ranks: Vec<Rank>,
    /// What was sent from one rank to another, and not received.
    lines: BTreeMap<(u64, u64), VecDeque<Vec<u8>>>,
    /// Whether each rank has sent what is to be sent in the exchange that it is at.
    has_sent: Vec<bool>,
}

/// A state variable, and what each rank holds of it.
type Held = (Name, Vec<Option<Vec<u8>>>);

/// The turns that were taken, each with its rank.
pub type Taken = Vec<(u64, Turn)>;

/// The number of things that were compared and are equal.
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

    /// As [`Replay::of`]; ranks on the CPU keep their memories as they are.
    ///
    /// # Errors
    /// As [`Replay::of`].
    pub fn in_place_of(executor: Executor) -> Result<Replay, ExecutionError> {
        let loaded = executor.loaded.clone();
        if let Some(ranks) = executor.give_ranks()? {
            return Ok(Replay::from_ranks(loaded, ranks));
        }
        let states = states(&executor)?;
        drop(executor);
        Replay::from_states(loaded, &states)
    }

    fn from_states(loaded: LoadedSet, states: &[Held]) -> Result<Replay, ExecutionError> {
        let ranks = 0..loaded.programs.mesh().world_size();
        let ranks = ranks.map(|rank| Rank::new(loaded.of_rank(rank).clone(), rank, Threads(1)));
        let mut ranks: Vec<Rank> = ranks.collect::<Result<_, _>>().map_err(ExecutionError::before)?;
        for (state, parts) in states {
            for (rank, part) in ranks.iter_mut().zip(parts) {
                let Some((id, part)) = rank.named(state).zip(part.as_ref()) else { continue };
                rank.set_part(id, part).map_err(ExecutionError::before)?;
            }
        }
        Ok(Replay::from_ranks(loaded, ranks))
    }

    fn from_ranks(loaded: LoadedSet, ranks: Vec<Rank>) -> Replay {
        let has_sent = vec![false; ranks.len()];
        Replay { loaded, ranks, lines: BTreeMap::new(), has_sent }
    }

    /// The ranks.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Runs step `number` (from 0) over a batch: a whole array for each input of the programs, in
    /// their order.
    ///
    /// # Errors
    /// Bad data, with the rank that found it.
    pub fn step(&mut self, number: u64, batch: &[Tensor]) -> Result<(), ExecutionError> {
        self.step_while(number, batch, |_, _| Ok(true))
    }

    /// As [`Replay::step`], but only until `go_on`, which sees all ranks and the turns that were
    /// just taken, says no or what failed on which rank.
    ///
    /// # Errors
    /// As [`Replay::step`], what `go_on` says, and ranks that wait for one another.
    pub fn step_while(
        &mut self,
        number: u64,
        batch: &[Tensor],
        mut go_on: impl FnMut(&Replay, &Taken) -> Result<bool, (u64, Fault)>,
    ) -> Result<(), ExecutionError> {
        let failed = |(rank, Fault { message, of_data })| {
            let (rank, step) = (Some(rank), Some(number));
            ExecutionError { rank, step, message, of_data }
        };
        for (at, rank) in (0..).zip(&mut self.ranks) {
            rank.begin(number, batch).map_err(|fault| failed((at, fault)))?;
        }
        self.lines.clear();
        self.has_sent.fill(false);
        let programs = self.loaded.programs.clone();
        let of = |rank| programs.of_rank(programs.mesh(), rank).turns().peekable();
        let mut chains: Vec<_> = (0..self.ranks.len() as u64).map(of).collect();
        loop {
            let next: Vec<Option<Turn>> = chains.iter_mut().map(|chain| chain.peek().copied()).collect();
            if next.iter().all(Option::is_none) {
                return Ok(());
            }
            let taken = self.round(&next).map_err(failed)?;
            if taken.is_empty() {
                let why = Fault::from("no rank can go on: all wait for others".to_string());
                return Err(failed((0, why)));
            }
            for (rank, _) in &taken {
                chains[*rank as usize].next();
            }
            if !go_on(self, &taken).map_err(failed)? {
                return Ok(());
            }
        }
    }

    /// A turn of every rank that computes next; where none does, the calls that all of a group are
    /// at.
    fn round(&mut self, next: &[Option<Turn>]) -> Result<Taken, (u64, Fault)> {
        let mut taken = vec![];
        // What all have to send is sent before anybody receives.
        for (number, turn) in (0..).zip(next) {
            if let Some(Turn::Exchange(row)) = *turn {
                self.send(number, row).map_err(|fault| (number, fault))?;
            }
        }
        for (number, turn) in (0..).zip(next) {
            let Some(turn) = turn.filter(|turn| self.call(number, *turn).is_none()) else { continue };
            let done = match turn {
                Turn::Launch(launch) => {
                    let rank = &mut self.ranks[number as usize];
                    rank.run(launch, |_, _| Err("a call among kernels".into())).map(|()| true)
                }
                Turn::Exchange(row) => self.receive(number, row),
            };
            if done.map_err(|fault| (number, fault))? {
                taken.push((number, turn));
            }
        }
        if !taken.is_empty() {
            return Ok(taken);
        }
        for (number, turn) in (0..).zip(next) {
            let Some(call) = turn.and_then(|turn| self.call(number, turn)).cloned() else { continue };
            let group = self.loaded.programs.mesh().group(number, &call.axes);
            let at_it = |member: &u64| next[*member as usize].filter(|turn| self.call(*member, *turn) == Some(&call));
            let turns: Vec<Option<Turn>> = group.iter().map(at_it).collect();
            let launch = |turn: Option<Turn>| match turn {
                Some(Turn::Launch(launch)) => Some(launch),
                _ => None,
            };
            let launches: Option<Vec<Launch>> = turns.into_iter().map(launch).collect();
            let Some(launches) = launches.filter(|_| group[0] == number) else { continue };
            let members: Vec<(u64, Launch)> = group.into_iter().zip(launches).collect();
            self.exchange(&call, &members)?;
            taken.extend(members.into_iter().map(|(number, launch)| (number, Turn::Launch(launch))));
        }
        Ok(taken)
    }

    /// Sends what a rank has to send in a row, once.
    fn send(&mut self, number: u64, row: usize) -> Result<(), Fault> {
        if std::mem::replace(&mut self.has_sent[number as usize], true) {
            return Ok(());
        }
        let Replay { ranks, lines, .. } = self;
        ranks[number as usize].exchange(row, |transfers| {
            for transfer in &*transfers {
                let Transfer::Send { to, bytes, .. } = transfer else { continue };
                lines.entry((number, *to)).or_default().push_back(bytes.to_vec());
            }
            Ok(())
        })
    }

    /// Takes what a rank receives in a row; whether all was there.
    fn receive(&mut self, number: u64, row: usize) -> Result<bool, Fault> {
        let Replay { ranks, lines, has_sent, .. } = self;
        let mut all = true;
        ranks[number as usize].exchange(row, |transfers| {
            let mut wanted: BTreeMap<u64, usize> = BTreeMap::new();
            for transfer in &*transfers {
                let Transfer::Receive { from, .. } = transfer else { continue };
                *wanted.entry(*from).or_default() += 1;
            }
            all = wanted.iter().all(|(from, count)| lines.get(&(*from, number)).is_some_and(|line| line.len() >= *count));
            for transfer in transfers.iter_mut().filter(|_| all) {
                let Transfer::Receive { from, bytes, .. } = transfer else { continue };
                let message = lines.get_mut(&(*from, number)).and_then(VecDeque::pop_front).unwrap_or_default();
                if message.len() != bytes.len() {
                    return Err(reason!("{} bytes come for {}", message.len(), bytes.len()));
                }
                bytes.copy_from_slice(&message);
            }
            Ok(())
        })?;
        has_sent[number as usize] = !all;
        Ok(all)
    }

    /// The call that a rank makes in a turn.
    fn call(&self, rank: u64, turn: Turn) -> Option<&Collective> {
        let Turn::Launch(launch) = turn else { return None };
        match &self.ranks[rank as usize].program().step(launch).kernel {
            Kernel::Collective(call) => Some(call),
            _ => None,
        }
    }

    /// A call by all of its group.
    fn exchange(&mut self, call: &Collective, members: &[(u64, Launch)]) -> Result<(), (u64, Fault)> {
        let mut sources: Vec<Vec<Vec<u8>>> = vec![];
        for (number, turn) in members {
            let rank = &mut self.ranks[*number as usize];
            let taken = rank.run(*turn, |_, Operands { reads, writes }| {
                let in_place = |source: &[u8]| call.kind == CollectiveKind::AllReduce && source.is_empty();
                let pairs = reads.into_iter().zip(&writes);
                let own = pairs.map(|(read, write)| if in_place(read) { write.to_vec() } else { read.to_vec() });
                sources.push(own.collect());
                Ok(())
            });
            taken.map_err(|fault| (*number, fault))?;
        }
        for (place, (number, turn)) in members.iter().enumerate() {
            let rank = &mut self.ranks[*number as usize];
            let given = rank.run(*turn, |_, Operands { writes, .. }| {
                for (i, destination) in writes.into_iter().enumerate() {
                    let result = received(call, i, place, &sources);
                    destination.get_mut(..result.len()).ok_or("a destination that is too small")?.copy_from_slice(&result);
                }
                Ok(())
            });
            given.map_err(|fault| (*number, fault))?;
        }
        Ok(())
    }

    /// Compares every output, gradient and state variable on every rank with those of `executor`;
    /// the first difference, if there is one. Not-a-numbers are equal: their signs and payloads are
    /// whatever the machine's instructions leave.
    ///
    /// # Errors
    /// If a rank of the executor failed.
    pub fn compare(&self, executor: &Executor) -> Result<Result<Compared, Difference>, ExecutionError> {
        let mut compared = Compared { ranks: self.ranks.len() as u64, ..Compared::default() };
        for names in executor.together(self.loaded.programs.names()) {
            let parts = executor.parts_of(&names)?;
            for (name, parts) in names.iter().zip(parts) {
                if let Some(difference) = self.compare_parts(name, parts, &mut compared)? {
                    return Ok(Err(difference));
                }
            }
        }
        Ok(Ok(compared))
    }

    /// Compares the parts that ranks have of one array.
    fn compare_parts(
        &self,
        name: &Name,
        parts: Vec<Option<Vec<u8>>>,
        compared: &mut Compared,
    ) -> Result<Option<Difference>, ExecutionError> {
        *match name {
            Name::Output(_) => &mut compared.outputs,
            Name::Gradient(_) => &mut compared.gradients,
            Name::State(_) => &mut compared.states,
        } += 1;
        for ((number, rank), threads) in (0..).zip(&self.ranks).zip(parts) {
            let Some((id, threads)) = rank.named(name).zip(threads) else { continue };
            let found = rank.program().buffer(id).map_err(ExecutionError::before)?;
            let replay = rank.part(id).map_err(ExecutionError::before)?;
            if let Some(difference) = first_difference(found, number, &threads, &replay) {
                return Ok(Some(difference));
            }
            compared.elements += replay.len() as u64 / found.dtype.bytes();
        }
        Ok(None)
    }
}

/// The first element of other bits. The bits of a not-a-number are left to the processor, so any
/// two are equal.
fn first_difference(found: &Buffer, rank: u64, threads: &[u8], replay: &[u8]) -> Option<Difference> {
    let element = found.dtype.bytes() as usize;
    let value = |bytes: &[u8]| Tensor { dtype: found.dtype, shape: vec![], bytes: bytes.to_vec() }.first();
    let is_nan = |bytes: &[u8]| value(bytes).is_some_and(f64::is_nan);
    let differs = |(a, b): (&[u8], &[u8])| a != b && !(is_nan(a) && is_nan(b));
    let at = threads.chunks(element).zip(replay.chunks(element)).position(differs)?;
    let text = |bytes: &[u8]| value(&bytes[at * element..][..element]).map_or_else(String::new, |value| format!("{value:e}"));
    let (buffer, threads, replay) = (found.name.clone(), text(threads), text(replay));
    Some(Difference { buffer, rank, element: at as u64, threads, replay })
}

/// The part of each state variable that each rank holds.
fn states(executor: &Executor) -> Result<Vec<Held>, ExecutionError> {
    let names = executor.programs().states().into_iter().map(|(_, state)| Name::State(state.name.clone()));
    let names: Vec<Name> = names.collect();
    let parts = executor.parts_of(&names)?;
    Ok(names.into_iter().zip(parts).collect())
}

/// The bytes that member `place` of a group receives of operand `i`, from all members' sources.
fn received(call: &Collective, i: usize, place: usize, sources: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let bytes = (call.counts[i] * call.dtype.bytes()) as usize;
    let part = match call.kind {
        CollectiveKind::AllReduce | CollectiveKind::AllGather => 0,
        CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => place * bytes,
    };
    let parts = sources.iter().map(|source| source[i][part..part + bytes].to_vec());
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
        DType::BF16 => each!(bf16, |a, b| a + b, bf16::is_nan),
        DType::F16 => each!(f16, |a, b| a + b, f16::is_nan),
        DType::I64 => each!(i64, i64::wrapping_add, |_| false),
        DType::Bool => a.iter().zip(b).map(|(a, b)| if op == ReduceKind::Min { a & b } else { a | b }).collect(),
    }
}
