//! A group of ranks that exchange bytes. Each member has boards, on which it shows what the others
//! read. Threads read one another's boards after a barrier; a process has copies of the others'
//! boards, of which each of them sends it the parts that it reads. What is combined, and in which
//! order, is the same for both, and so are the bits.

use crate::shown::{Part, Shown};
use crate::transfer::{Route, take};
use crate::world::{Gate, Wait, World};
use shardc_ir::kernel::Collective;
use shardc_ir::reason::Reason;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A group of ranks with memory to exchange.
#[derive(Debug)]
pub struct Meeting {
    members: Vec<u64>,
    purpose: u64,
    pub(crate) gate: Gate<State>,
    /// How often all members have met; it changes under the gate's lock.
    meetings: AtomicU64,
    /// What each member shows on each board.
    boards: [Vec<Shown>; 3],
}

/// A board of each member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Board {
    /// What a member gives, on one of two boards that are used in turn.
    Given(usize),
    /// The slice that a member has combined.
    Combined,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    arrived: usize,
    call: Option<Collective>,
}

impl Meeting {
    pub(crate) fn new(members: Vec<u64>, purpose: u64) -> Meeting {
        let boards = || members.iter().map(|_| Shown::default()).collect();
        Meeting { purpose, gate: Gate::default(), meetings: AtomicU64::new(0), boards: [boards(), boards(), boards()], members }
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Waits as `rank` for all members, so that each can read what the others show on `board`; all
    /// must come for the same `call`. `parts` says which bytes of its board, from byte to byte, the
    /// first of two members shows to the second.
    ///
    /// # Errors
    /// If another rank failed, or comes for another call.
    pub fn wait(
        &self,
        world: &World,
        rank: u64,
        call: &Collective,
        board: Board,
        parts: impl Fn(usize, usize) -> Vec<Range<usize>>,
    ) -> Result<(), Reason> {
        world.pause(rank);
        if world.is_of_processes() {
            self.pass(world, rank, call, board, parts)?;
        } else {
            self.gather(world, rank, call)?;
        }
        world.pause(rank);
        Ok(())
    }

    /// Waits as `rank` until all members have read what they wanted to of the memory that is shown
    /// to them. Processes read copies.
    ///
    /// # Errors
    /// As [`Meeting::wait`].
    pub fn part(&self, world: &World, rank: u64, call: &Collective) -> Result<(), Reason> {
        world.pause(rank);
        if world.is_of_processes() { Ok(()) } else { self.gather(world, rank, call) }
    }

    /// The barrier of threads.
    fn gather(&self, world: &World, rank: u64, call: &Collective) -> Result<(), Reason> {
        let mut state = self.gate.lock();
        if state.call.get_or_insert_with(|| call.clone()) != call {
            drop(state);
            return Err(different(world, rank));
        }
        state.arrived += 1;
        let met = self.meetings.load(Ordering::Acquire);
        if state.arrived == self.size() {
            *state = State::default();
            self.meetings.store(met + 1, Ordering::Release);
            world.wake(&self.gate, &state);
            return Ok(());
        }
        drop(state);
        if world.happens_soon(rank, || self.meetings.load(Ordering::Acquire) != met) {
            return Ok(());
        }
        state = self.gate.lock();
        while self.meetings.load(Ordering::Acquire) == met {
            state = world.sleep(rank, &self.gate, state, wait_of(call))?;
        }
        Ok(())
    }

    /// Sends to each other member what it reads of this one's board, and takes what this one reads
    /// of theirs. Each message begins with a hash of the call.
    fn pass(
        &self,
        world: &World,
        rank: u64,
        call: &Collective,
        board: Board,
        parts: impl Fn(usize, usize) -> Vec<Range<usize>>,
    ) -> Result<(), Reason> {
        let own = self.members.iter().position(|member| *member == rank).ok_or("a rank outside its group")?;
        let hash = hash(call);
        let others = || self.members.iter().copied().enumerate().filter(|(member, _)| *member != own);
        for (member, to) in others() {
            let ranges = parts(own, member);
            let mut message = Vec::with_capacity(hash.len() + ranges.iter().map(ExactSizeIterator::len).sum::<usize>());
            message.extend_from_slice(&hash);
            for range in ranges {
                self.read(world, rank, call, (board, own), range, |_, bytes| message.extend_from_slice(bytes))?;
            }
            world.post(Route { from: rank, to, purpose: self.purpose }, call.dtype, &[&message])?;
        }
        for (member, from) in others() {
            let route = Route { from, to: rank, purpose: self.purpose };
            let (dtype, message) = take(world, route, Wait::Call(call.kind))?;
            let ranges = parts(member, own);
            let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            let Some(mut rest) = message.strip_prefix(&hash).filter(|rest| rest.len() == bytes && dtype == call.dtype) else {
                return Err(different(world, rank));
            };
            let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
            self.board(board, member).copy(end, |copy| {
                for range in ranges {
                    let (piece, others) = rest.split_at(range.len());
                    copy[range].copy_from_slice(piece);
                    rest = others;
                }
            });
        }
        Ok(())
    }

    /// Shows a copy of `parts` of `bytes` bytes on a member's board.
    pub fn copy(&self, board: Board, member: usize, bytes: usize, parts: &[Part<'_>]) {
        self.board(board, member).copy(bytes, |copy| {
            parts.iter().for_each(|(start, part)| copy[*start..][..part.len()].copy_from_slice(part));
        });
    }

    /// Shows `parts` themselves on a member's board while `f` runs, which is not to end before all
    /// have [parted](Meeting::part).
    pub fn lend<R>(&self, board: Board, member: usize, parts: &[Part<'_>], f: impl FnOnce() -> R) -> R {
        self.board(board, member).lend(parts, f)
    }

    /// Calls `f` as `rank` with the bytes of `range` of a member's board, part by part, each with
    /// its position in the range.
    ///
    /// # Errors
    /// If they are not there any more: a rank failed, or is about to say so.
    pub fn read(
        &self,
        world: &World,
        rank: u64,
        call: &Collective,
        (board, member): (Board, usize),
        range: Range<usize>,
        f: impl FnMut(usize, &[u8]),
    ) -> Result<(), Reason> {
        if self.board(board, member).each(range, f) {
            return Ok(());
        }
        let mut state = self.gate.lock();
        loop {
            state = world.sleep(rank, &self.gate, state, Wait::Call(call.kind))?;
        }
    }

    fn board(&self, board: Board, member: usize) -> &Shown {
        let number = match board {
            Board::Given(set) => set,
            Board::Combined => 2,
        };
        &self.boards[number][member]
    }
}

/// What is waited for where members meet; a call without operands is none.
fn wait_of(call: &Collective) -> Wait {
    if call.counts.is_empty() { Wait::Update } else { Wait::Call(call.kind) }
}

/// The error that members have come for different calls.
fn different(world: &World, rank: u64) -> Reason {
    let message = "members of a group call different collectives".to_string();
    world.fail(rank, message.clone());
    message.into()
}

/// Equal for equal calls, in all processes of this program.
fn hash(call: &Collective) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    format!("{call:?}").hash(&mut hasher);
    hasher.finish().to_le_bytes()
}
