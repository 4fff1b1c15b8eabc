//! Communicators: made, split, finalized, destroyed and aborted.

use super::calls::Late;
use super::hub::{Heard, Hub, Member, Told, Which};
use super::line::{self, Line};
use super::{CUDA, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, SYSTEM, server, thread};
use crate::c::host;
use crate::codes::{Answer, LAUNCH_FAILED};
use crate::world::{Guard, World, drive, lock, sleep};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All communicators of this process.
#[derive(Debug, Default)]
pub struct Nccl {
    /// By their handles.
    pub comms: HashMap<u64, Comm>,
    /// Where ranks of this process meet.
    pub hub: Hub,
    /// Calls that are not under way yet.
    pub late: Vec<Late>,
    /// Splits that are not done, by the parent and their number.
    splits: HashMap<(u64, u64), Split>,
}

/// A communicator on one rank.
#[derive(Debug)]
pub struct Comm {
    /// The name and the rank.
    pub member: Member,
    /// Its ranks.
    pub size: usize,
    /// The device.
    pub device: usize,
    /// Its number in the trace.
    pub shown: u32,
    /// Where its ranks meet, if that is not this process.
    pub line: Option<Arc<Line>>,
    /// How far it is.
    pub state: State,
    /// The asynchronous error.
    pub error: u32,
    /// Whether it does nothing any more, because of that error.
    pub is_stopped: bool,
    /// Whether it was split off another one.
    pub is_part: bool,
    /// Whether it was aborted.
    pub is_aborted: bool,
    /// Whether calls wait until they are done.
    pub is_blocking: bool,
    /// The stream that came to it last, and the operation's number there.
    pub last: Option<(u64, u64)>,
    /// Collectives so far.
    pub collectives: u64,
    /// Messages so far, by the other rank and whether they are sent.
    pub messages: HashMap<(usize, bool), u64>,
    /// Splits so far.
    pub splits: u64,
    /// Calls that all ranks have come to, with what they give.
    pub done: HashMap<Which, Vec<u8>>,
}

/// How far a communicator is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not all ranks are known to be there.
    Joining,
    /// It can be called.
    Ready,
    /// It can be destroyed only.
    Finalized,
    /// It was given up on this rank.
    Leaving,
    /// It was given up on all.
    Left,
}

/// A split that this rank asked for.
#[derive(Debug)]
struct Split {
    /// The handle of the new communicator, or none for no color.
    new: Option<u64>,
    /// Where the caller wants it, which is written when all ranks have split.
    slot: u64,
}

impl World {
    /// Tells the other ranks something.
    pub fn tell(&mut self, comm: u64, told: Told) {
        let Some(found) = self.nccl.comms.get(&comm) else { return };
        let member = found.member.clone();
        if let Some(line) = &found.line {
            line.tell(&member, &told);
        } else {
            let heard = self.nccl.hub.tell(&member, told);
            for (member, heard) in heard {
                self.hear(&member, heard);
            }
        }
        self.moved();
    }

    /// Hears what has come from other processes.
    pub fn listen(&mut self) {
        while let Some((number, come)) = line::next() {
            match come {
                Some((member, heard)) => self.hear(&member, heard),
                None => {
                    let is_of = |comm: &&mut Comm| comm.line.as_ref().is_some_and(|line| line.number == number);
                    let mut is_missed = false;
                    for comm in self.nccl.comms.values_mut().filter(is_of) {
                        if comm.state == State::Leaving {
                            comm.state = State::Left;
                        } else if comm.state != State::Left && !comm.is_aborted {
                            comm.error = REMOTE;
                            comm.is_stopped = true;
                            is_missed = true;
                        }
                    }
                    if is_missed {
                        self.report("nccl: the connection to the other ranks has ended".into());
                    }
                }
            }
            self.moved();
        }
    }

    /// A rank of this process hears something.
    pub fn hear(&mut self, member: &Member, heard: Heard) {
        let found = self.nccl.comms.iter().find(|(_, comm)| comm.member == *member).map(|(id, _)| *id);
        let Some(id) = found else { return };
        let Some(comm) = self.nccl.comms.get_mut(&id) else { return };
        match heard {
            Heard::Joined if comm.state == State::Joining => comm.state = State::Ready,
            Heard::Joined => {}
            Heard::Done { which, output } => {
                comm.done.insert(which, output);
            }
            Heard::Left => comm.state = State::Left,
            Heard::Gone(_) if comm.state == State::Leaving => comm.state = State::Left,
            Heard::Gone(rank) => {
                comm.error = REMOTE;
                comm.is_stopped = true;
                let own = comm.member.rank;
                self.report(format!("nccl: rank {own}: rank {rank} is gone"));
            }
            Heard::Wrong(text) => {
                comm.error = INVALID_USAGE;
                comm.is_stopped = true;
                let device = comm.device;
                self.complain(device, LAUNCH_FAILED, format!("nccl: {text}"));
            }
            Heard::Split { number, new } => {
                let split = self.nccl.splits.remove(&(id, number));
                if let (Some(Split { new: Some(handle), slot }), Some((member, size))) = (split, new) {
                    host::write(slot, &handle.to_ne_bytes());
                    if let Some(comm) = self.nccl.comms.get_mut(&handle) {
                        comm.member = member;
                        comm.size = size;
                        comm.state = State::Ready;
                    }
                }
            }
        }
    }

    /// `ncclCommInitRank`: gives the handle at once; it is ready when all ranks are there.
    pub fn join(&mut self, clique: &str, size: usize, rank: usize, device: usize, is_blocking: bool) -> Result<u64, u32> {
        if size == 0 || rank >= size {
            return self.refuse(INVALID_ARGUMENT, format!("nccl: rank {rank} of {size}"));
        }
        if let Some(code) = self.fault("nccl_init") {
            self.report(format!("nccl: fault {code} of a communicator was asked for"));
            return Err(code);
        }
        let member = Member { clique: clique.into(), rank };
        if self.nccl.comms.values().any(|comm| comm.member == member && !comm.is_aborted) {
            return self.refuse(INVALID_USAGE, format!("nccl: rank {rank} joins a communicator twice"));
        }
        let line = match clique.strip_prefix("tcp ").and_then(|rest| rest.split_once(' ')) {
            None => None,
            Some((address, _)) => match Line::open(address) {
                Ok(line) => Some(line),
                Err(why) => return self.refuse(SYSTEM, format!("nccl: {why}")),
            },
        };
        let id = self.new_comm(member, size, device, is_blocking, line);
        self.tell(id, Told::Joins { size });
        Ok(id)
    }

    fn new_comm(&mut self, member: Member, size: usize, device: usize, is_blocking: bool, line: Option<Arc<Line>>) -> u64 {
        let id = self.id();
        let shown = self.nccl.comms.values().filter(|comm| comm.device == device).count() as u32;
        let comm = Comm {
            member,
            size,
            device,
            shown,
            line,
            state: State::Joining,
            error: 0,
            is_stopped: false,
            is_part: false,
            is_aborted: false,
            is_blocking,
            last: None,
            collectives: 0,
            messages: HashMap::new(),
            splits: 0,
            done: HashMap::new(),
        };
        self.nccl.comms.insert(id, comm);
        id
    }

    /// `ncclCommSplit`: the handle of the new communicator, or none without a color. It is written
    /// to `slot` of the host when all ranks have split, which may be later.
    pub fn split(
        &mut self,
        comm: u64,
        color: Option<i32>,
        key: i32,
        is_blocking: Option<bool>,
        slot: u64,
    ) -> Result<Option<u64>, u32> {
        self.usable(comm)?;
        let Some(parent) = self.nccl.comms.get_mut(&comm) else { return Err(INVALID_ARGUMENT) };
        let number = parent.splits;
        parent.splits += 1;
        let (size, device, is_blocking) = (parent.size, parent.device, is_blocking.unwrap_or(parent.is_blocking));
        let line = parent.line.clone();
        // Its name and rank are known when all ranks have split.
        let unknown = Member { clique: format!("{comm}.{number}"), rank: 0 };
        let new = color.map(|_| self.new_comm(unknown, 1, device, is_blocking, line));
        if let Some(new) = new.and_then(|new| self.nccl.comms.get_mut(&new)) {
            new.is_part = true;
        }
        self.nccl.splits.insert((comm, number), Split { new, slot });
        self.tell(comm, Told::Splits { size, number, color, key });
        Ok(new)
    }

    /// Whether a split or the making of a communicator is done.
    pub fn is_made(&self, comm: u64) -> bool {
        self.nccl.comms.get(&comm).is_none_or(|comm| comm.state != State::Joining || comm.error != 0)
    }

    /// Whether all splits of a communicator are done.
    pub fn has_split(&self, comm: u64) -> bool {
        !self.nccl.splits.keys().any(|(parent, _)| *parent == comm)
    }

    /// `ncclCommGetAsyncError`
    pub fn state_of(&mut self, comm: u64) -> Result<u32, u32> {
        let has_split = self.has_split(comm);
        let found = self.nccl.comms.get(&comm).ok_or(INVALID_ARGUMENT)?;
        if found.is_aborted {
            return self.refuse(INVALID_ARGUMENT, "nccl: a communicator is asked that was aborted".into());
        }
        if found.error != 0 {
            return Ok(found.error);
        }
        if let Err(state) = self.asked(comm) {
            return Ok(state);
        }
        let found = self.nccl.comms.get(&comm).ok_or(INVALID_ARGUMENT)?;
        let is_late = found.state == State::Joining || !has_split || (found.state == State::Finalized && self.has_work(comm));
        Ok(if is_late { IN_PROGRESS } else { 0 })
    }

    /// Whether streams have calls of it.
    pub fn has_work(&self, comm: u64) -> bool {
        self.streams.values().any(|stream| stream.queue.iter().any(|item| item.work.is_call_of(comm)))
    }

    /// `ncclCommFinalize`
    pub fn finalize(&mut self, comm: u64) -> Answer {
        self.usable(comm)?;
        if let Some(comm) = self.nccl.comms.get_mut(&comm) {
            comm.state = State::Finalized;
        }
        Ok(())
    }

    /// `ncclCommAbort`: calls that streams wait in end, and leave anything.
    pub fn abort(&mut self, comm: u64) -> Answer {
        let found = self.nccl.comms.get_mut(&comm).filter(|comm| !comm.is_aborted).ok_or(INVALID_ARGUMENT)?;
        found.is_aborted = true;
        self.tell(comm, Told::Leaves);
        Ok(())
    }

    /// Why a communicator is not made.
    fn lacks(&self, comm: u64) -> String {
        let Some(comm) = self.nccl.comms.get(&comm) else { return "a communicator is gone".into() };
        let Member { clique, rank } = &comm.member;
        if comm.line.is_some() {
            return format!("rank {rank} of {} waits for other processes to make a communicator", comm.size);
        }
        let joined = self.nccl.hub.joined(clique);
        format!("rank {rank} of {} waits for a communicator, and ranks {joined:?} are there", comm.size)
    }
}

/// Waits until communicators are made, or nothing moves.
pub fn made(mut world: Guard, comms: &[u64]) -> (Guard, Answer) {
    loop {
        if let Some(late) = comms.iter().find(|comm| !world.is_made(**comm)).copied() {
            let (guard, has_moved) = crate::run::one(world);
            world = guard;
            if has_moved {
                continue;
            }
            world = sleep(world);
            if world.impatient(1) {
                let text = format!("nothing moves: {}", world.lacks(late));
                world.report(text);
                return (world, Err(SYSTEM));
            }
            continue;
        }
        let error = comms.iter().filter_map(|comm| world.nccl.comms.get(comm)).map(|comm| comm.error).find(|error| *error != 0);
        return (world, error.map_or(Ok(()), Err));
    }
}

/// `ncclGroupEnd`
pub fn group_end(mut world: Guard) -> (Guard, Answer) {
    let Some((calls, joins)) = thread::end() else {
        let refused = world.refuse(INVALID_USAGE, "nccl: a group ends that was not begun".into());
        return (world, refused);
    };
    let waits: Vec<u64> =
        joins.into_iter().filter(|comm| world.nccl.comms.get(comm).is_some_and(|comm| comm.is_blocking)).collect();
    let (mut world, made) = made(world, &waits);
    let answer = made.and_then(|()| world.calls(calls));
    (world, answer)
}

/// `ncclCommSplit` behind its beginning: a communicator that waits does so for all ranks.
pub fn has_split(mut world: Guard, comm: u64, new: Option<u64>) -> Answer {
    if thread::is_open() {
        new.into_iter().for_each(thread::join);
        return Ok(());
    }
    let is_blocking = |id: u64| world.nccl.comms.get(&id).is_some_and(|comm| comm.is_blocking);
    if !is_blocking(new.unwrap_or(comm)) {
        return if world.has_split(comm) { Ok(()) } else { Err(IN_PROGRESS) };
    }
    while !world.has_split(comm) {
        let (guard, has_moved) = crate::run::one(world);
        world = guard;
        if !has_moved {
            world = sleep(world);
            if world.impatient(1) {
                let rank = world.nccl.comms.get(&comm).map_or(0, |comm| comm.member.rank);
                world.report(format!("nothing moves: nccl: rank {rank} waits for others to split a communicator"));
                return Err(SYSTEM);
            }
        }
    }
    Ok(())
}

/// `ncclCommFinalize` behind its beginning.
pub fn flushed(world: Guard, comm: u64) -> Answer {
    let Some(found) = world.nccl.comms.get(&comm) else { return Err(INVALID_ARGUMENT) };
    let (device, is_blocking) = (found.device, found.is_blocking);
    if !is_blocking {
        return if world.has_work(comm) { Err(IN_PROGRESS) } else { Ok(()) };
    }
    drive(world, device, |world| !world.has_work(comm)).1.map_err(|_| CUDA)
}

/// `ncclCommDestroy`
pub fn destroyed(world: Guard, comm: u64) -> Answer {
    let Some(found) = world.nccl.comms.get(&comm) else { return Err(INVALID_ARGUMENT) };
    let (device, is_aborted) = (found.device, found.is_aborted);
    if is_aborted {
        let mut world = world;
        return world.refuse(INVALID_USAGE, "nccl: a communicator is destroyed that was aborted".into());
    }
    if world.holds_calls(comm) {
        let mut world = world;
        // NCCL waits for these graphs to end, whatever the host does meanwhile.
        return world.refuse(INVALID_USAGE, "nccl: a communicator is destroyed before graphs that hold calls of it".into());
    }
    let (mut world, mut answer) = drive(world, device, |world| !world.has_work(comm));
    if let Some(comm) = world.nccl.comms.get_mut(&comm) {
        comm.state = State::Leaving;
    }
    world.tell(comm, Told::Leaves);
    // Where ranks meet ends with its process, so no process leaves before all have.
    let is_left = |world: &World| {
        let comm = world.nccl.comms.get(&comm);
        comm.is_none_or(|comm| comm.state == State::Left || comm.error != 0 || comm.line.is_none() || comm.is_part)
    };
    if answer.is_ok() {
        (world, answer) = drive(world, device, is_left);
    }
    world.nccl.comms.remove(&comm);
    answer.map_err(|_| CUDA)
}

/// The name of a new communicator.
pub fn unique_id() -> Result<String, u32> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    if !server::is_asked_for() {
        return Ok(format!("local {number}"));
    }
    server::address()
        .map(|address| format!("tcp {address} {number}"))
        .or_else(|why| lock().refuse(SYSTEM, format!("nccl: {why}")))
}
