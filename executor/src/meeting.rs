//! A group of ranks that exchange bytes. Each member has boards, on which it writes, and from which
//! the others read. Threads read one another's boards after a barrier; a process has a copy of the
//! others' boards, of which each of them sends it the parts that it reads. What is combined, and in
//! which order, is the same for both, and so are the bits.

use crate::transfer::{Route, take};
use crate::world::{Gate, Wait, World};
use shardc_ir::kernel::Collective;
use shardc_ir::reason::Reason;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// A group of ranks with memory to exchange.
#[derive(Debug)]
pub struct Meeting {
    members: Vec<u64>,
    purpose: u64,
    pub(crate) gate: Gate<State>,
    /// How often all members have met; it changes under the gate's lock.
    meetings: AtomicU64,
    /// For each board of each member its bytes.
    boards: [Vec<RwLock<Vec<u64>>>; 3],
}

/// A board of each member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Board {
    /// One of two sets that are used in turn: what a member stages.
    Staged(usize),
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
        let boards = || members.iter().map(|_| RwLock::default()).collect();
        Meeting { purpose, gate: Gate::default(), meetings: AtomicU64::new(0), boards: [boards(), boards(), boards()], members }
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Waits as `rank` for all members, so that each can read what the others have written on
    /// `board`; all must come for the same `call`. `parts` says which bytes of its board, from byte
    /// to byte, the first of two members writes for the second.
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
            state = world.sleep(rank, &self.gate, state, Wait::Call(call.kind))?;
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
        let mut sent = Ok(());
        self.read(board, own, |bytes| {
            sent = others().try_for_each(|(member, to)| {
                let ranges = parts(own, member);
                let pieces: Vec<&[u8]> = [&hash[..]].into_iter().chain(ranges.into_iter().map(|range| &bytes[range])).collect();
                world.post(Route { from: rank, to, purpose: self.purpose }, call.dtype, &pieces)
            });
        });
        sent?;
        for (member, from) in others() {
            let route = Route { from, to: rank, purpose: self.purpose };
            let (dtype, message) = take(world, route, Wait::Call(call.kind))?;
            let ranges = parts(member, own);
            let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            let Some(mut rest) = message.strip_prefix(&hash).filter(|rest| rest.len() == bytes && dtype == call.dtype) else {
                return Err(different(world, rank));
            };
            let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
            self.write(board, member, end, |copy| {
                for range in ranges {
                    let (piece, others) = rest.split_at(range.len());
                    copy[range].copy_from_slice(piece);
                    rest = others;
                }
            });
        }
        Ok(())
    }

    /// Lets `fill` write the first `bytes` of a member's board.
    pub fn write(&self, board: Board, member: usize, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let mut words = self.board(board, member).write().unwrap_or_else(PoisonError::into_inner);
        if words.len() * 8 < bytes {
            words.resize(bytes.div_ceil(8), 0);
        }
        fill(&mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
    }

    /// Shows a member's board, perhaps with some bytes behind what was written.
    pub fn read(&self, board: Board, member: usize, f: impl FnOnce(&[u8])) {
        f(bytemuck::cast_slice(&self.board(board, member).read().unwrap_or_else(PoisonError::into_inner)));
    }

    fn board(&self, board: Board, member: usize) -> &RwLock<Vec<u64>> {
        let number = match board {
            Board::Staged(set) => set,
            Board::Combined => 2,
        };
        &self.boards[number][member]
    }
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
