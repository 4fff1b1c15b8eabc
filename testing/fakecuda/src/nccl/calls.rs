//! Calls of communicators on streams.

use super::hub::{Called, Told, Which};
use super::{CUDA, Comm, Dtype, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Kind, Nccl, Op, thread};
use crate::codes::Answer;
use crate::memory::{Toucher, Way};
use crate::run::{Problem, failed, illegal};
use crate::trace;
use crate::work::Work;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};

/// A call on one rank.
#[derive(Debug, Clone)]
pub struct Call {
    /// The communicator.
    pub comm: u64,
    /// What is called.
    pub kind: Kind,
    /// The source.
    pub from: u64,
    /// The destination.
    pub to: u64,
    /// Elements, as the call counts them.
    pub count: u64,
    /// Their type.
    pub dtype: Dtype,
    /// How they are reduced.
    pub op: Option<Op>,
    /// Its number among those that it is matched with.
    pub number: u64,
}

/// Calls of communicators that do not block: they are under way after some questions for the state.
#[derive(Debug)]
pub struct Late {
    comms: BTreeSet<u64>,
    questions: usize,
    works: Vec<(u64, Work)>,
}

/// Calls that go together.
#[derive(Debug, Clone)]
pub struct Group {
    /// The calls.
    pub calls: Vec<Call>,
}

impl Group {
    /// The name in reports.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.calls.iter().map(|call| call.kind.name()).collect();
        format!("nccl {}", names.join(" and "))
    }
}

impl Call {
    /// Bytes that are read and written, of a communicator of `size` ranks.
    fn bytes(&self, size: usize) -> [u64; 2] {
        let (own, all) = (self.count * self.dtype.bytes(), self.count * self.dtype.bytes() * size as u64);
        match self.kind {
            Kind::AllReduce | Kind::Broadcast(_) => [own, own],
            Kind::AllGather => [own, all],
            Kind::ReduceScatter => [all, own],
            Kind::Send(_) => [own, 0],
            Kind::Recv(_) => [0, own],
        }
    }

    /// The same, as the rank of `comm` does: only the root of a broadcast reads.
    fn touches(&self, comm: &Comm) -> [u64; 2] {
        let [read, written] = self.bytes(comm.size);
        match self.kind {
            Kind::Broadcast(root) if root != comm.member.rank => [0, written],
            _ => [read, written],
        }
    }

    /// That what is read and what is written are apart, or as NCCL takes it in place.
    fn apart(&self, comm: &Comm) -> Result<(), String> {
        let [read, written] = self.touches(comm);
        let meet = self.from < self.to + written && self.to < self.from + read;
        let own = self.count * self.dtype.bytes() * comm.member.rank as u64;
        let is_in_place = match self.kind {
            Kind::AllGather => self.from == self.to + own,
            Kind::ReduceScatter => self.to == self.from + own,
            _ => self.from == self.to,
        };
        match meet && !is_in_place {
            true => Err(format!("{} reads and writes the same memory otherwise than in place", self.kind.name())),
            false => Ok(()),
        }
    }

    fn which(&self, comm: &Comm) -> Which {
        let (rank, number) = (comm.member.rank, self.number);
        match self.kind {
            Kind::Send(to) => Which::Message { from: rank, to, number },
            Kind::Recv(from) => Which::Message { from, to: rank, number },
            _ => Which::All(number),
        }
    }
}

impl Nccl {
    /// Numbers calls as they are enqueued: each launch of a graph makes new ones.
    pub fn number(&mut self, group: &mut Group) {
        for call in &mut group.calls {
            let Some(comm) = self.comms.get_mut(&call.comm) else { continue };
            let count = match call.kind {
                Kind::Send(to) => comm.messages.entry((to, true)).or_default(),
                Kind::Recv(from) => comm.messages.entry((from, false)).or_default(),
                _ => &mut comm.collectives,
            };
            call.number = *count;
            *count += 1;
        }
    }

    /// Whether a stream may go on behind calls: they are done, or given up.
    pub fn is_complete(&self, group: &Group) -> bool {
        group.calls.iter().all(|call| match self.comms.get(&call.comm) {
            None => true,
            Some(comm) if comm.is_aborted => true,
            Some(comm) => {
                let which = call.which(comm);
                let is_self = matches!(which, Which::Message { from, to, .. } if from == to);
                (is_self && matches!(call.kind, Kind::Send(_))) || comm.done.contains_key(&which)
            }
        })
    }

    /// What calls wait for.
    pub fn describe(&self, group: &Group) -> String {
        let one = |call: &Call| {
            let Some(comm) = self.comms.get(&call.comm) else { return "a communicator that is gone".to_owned() };
            let (rank, size, which) = (comm.member.rank, comm.size, call.which(comm));
            let here = match &comm.line {
                None => format!("ranks {:?} have come", self.hub.here(&comm.member.clique, &which)),
                Some(_) => "other processes".to_owned(),
            };
            let peer = call.kind.peer().map_or(String::new(), |peer| format!(" (rank {peer})"));
            let number = call.number;
            format!("rank {rank} of {size} in {}{peer} number {number} of {}, {here}", call.kind.name(), call.count)
        };
        group
            .calls
            .iter()
            .filter(|call| !self.is_complete(&Group { calls: vec![(*call).clone()] }))
            .map(one)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Calls as the trace has them.
    pub fn traced(&self, group: &Group) -> Vec<trace::Called> {
        let address = |at: u64, bytes: u64| (bytes > 0).then_some(at);
        let one = |call: &Call| {
            let comm = self.comms.get(&call.comm)?;
            let [read, written] = call.touches(comm);
            Some(trace::Called {
                call: call.kind.name().into(),
                comm: comm.shown,
                rank: comm.member.rank,
                size: comm.size,
                peer: call.kind.peer(),
                from: address(call.from, read),
                to: address(call.to, written),
                count: call.count,
                dtype: format!("{:?}", call.dtype).to_lowercase(),
                op: call.op.map(|op| format!("{op:?}").to_lowercase()),
            })
        };
        group.calls.iter().filter_map(one).collect()
    }
}

impl World {
    /// A call on a stream: enqueued alone, or kept until its group ends.
    pub fn call(&mut self, stream: u64, call: Call) -> Answer {
        self.usable(call.comm)?;
        let comm = &self.nccl.comms[&call.comm];
        if self.streams.get(&stream).is_none_or(|stream| stream.device != comm.device) {
            return self.refuse(INVALID_ARGUMENT, "a stream of another device than the communicator's".into());
        }
        if call.kind.peer().is_some_and(|peer| peer >= comm.size) {
            return self.refuse(INVALID_ARGUMENT, format!("rank {:?} of {}", call.kind.peer(), comm.size));
        }
        if thread::is_open() {
            thread::add(stream, call);
            return Ok(());
        }
        self.calls(vec![(stream, call)])
    }

    /// Enqueues the calls of a group: those of one stream are one operation.
    pub fn calls(&mut self, calls: Vec<(u64, Call)>) -> Answer {
        let mut streams: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
        let mut order = vec![];
        for (stream, call) in calls {
            if !streams.contains_key(&stream) {
                order.push(stream);
            }
            streams.entry(stream).or_default().push(call);
        }
        let mut works = vec![];
        let mut comms = BTreeSet::new();
        for stream in order {
            let calls = streams.remove(&stream).unwrap_or_default();
            comms.extend(calls.iter().map(|call| call.comm));
            if let Some(code) = self.fault("nccl") {
                for call in &calls {
                    if let Some(comm) = self.nccl.comms.get_mut(&call.comm) {
                        comm.error = code;
                        comm.is_stopped = true;
                    }
                }
                self.report(format!("nccl fault {code} was asked for"));
            }
            works.push((stream, Work::Nccl(Group { calls })));
        }
        let may_be_late = comms.iter().all(|comm| self.nccl.comms.get(comm).is_some_and(|comm| !comm.is_blocking));
        if may_be_late && !works.is_empty() && self.random.below(3) == 0 {
            let questions = 1 + self.random.below(3);
            self.nccl.late.push(Late { comms, questions, works });
            return Err(IN_PROGRESS);
        }
        self.under_way(works)
    }

    /// Enqueues calls.
    fn under_way(&mut self, works: Vec<(u64, Work)>) -> Answer {
        // What CUDA refuses is `ncclUnhandledCudaError`.
        works.into_iter().try_for_each(|(stream, work)| self.enqueue(stream, work).map_err(|_| CUDA))
    }

    /// A question for the state of a communicator: calls that are late may be under way now.
    pub fn asked(&mut self, comm: u64) -> Answer {
        let Some(at) = self.nccl.late.iter().position(|late| late.comms.contains(&comm)) else { return Ok(()) };
        self.nccl.late[at].questions -= 1;
        if self.nccl.late[at].questions > 0 {
            return Err(IN_PROGRESS);
        }
        let late = self.nccl.late.remove(at);
        self.under_way(late.works)
    }

    /// A stream has come to calls: what they read goes to the other ranks.
    pub fn begin(&mut self, device: usize, by: &Toucher<'_>, group: &Group) -> Result<(), Problem> {
        for call in &group.calls {
            let Some(comm) = self.nccl.comms.get_mut(&call.comm) else {
                return Err(failed("its communicator was destroyed".into()));
            };
            if comm.is_aborted || comm.is_stopped {
                continue;
            }
            if comm.last.is_some_and(|(stream, number)| !by.clock.covers(stream, number)) {
                let text = "its communicator is in use by another stream, which it does not wait for";
                return Err(failed(text.into()));
            }
            comm.last = Some((by.stream, by.number));
            let ([read, written], which, size) = (call.touches(comm), call.which(comm), comm.size);
            call.apart(comm).map_err(failed)?;
            if written > 0 {
                self.memory.check(device, call.to, written).map_err(illegal)?;
            }
            let mut input = vec![];
            if read > 0 {
                self.touch(device, by, call.from, read, Way::Reads)?;
                input = self.memory.read(device, call.from, read).map_err(illegal)?;
            }
            let called = Called { kind: call.kind, count: call.count, dtype: call.dtype, op: call.op };
            self.tell(call.comm, Told::Comes { size, which, called, input });
        }
        Ok(())
    }

    /// Calls are done: what ranks gave is written.
    pub fn finish(&mut self, device: usize, by: &Toucher<'_>, group: &Group) -> Result<(), Problem> {
        for call in &group.calls {
            let Some(comm) = self.nccl.comms.get_mut(&call.comm) else { continue };
            let ([_, written], which) = (call.touches(comm), call.which(comm));
            let is_self_send = matches!((&which, call.kind), (Which::Message { from, to, .. }, Kind::Send(_)) if from == to);
            if is_self_send {
                continue;
            }
            let output = comm.done.remove(&which);
            if written == 0 {
                continue;
            }
            self.touch(device, by, call.to, written, Way::Writes)?;
            // What is given up leaves anything.
            let output = output.unwrap_or_else(|| vec![crate::memory::POISON; written as usize]);
            self.memory.write(device, call.to, &output).map_err(illegal)?;
        }
        Ok(())
    }

    /// That a communicator can be called now.
    pub fn usable(&mut self, comm: u64) -> Answer {
        let Some(found) = self.nccl.comms.get(&comm) else { return Err(INVALID_ARGUMENT) };
        let problem = match found.state {
            super::State::Joining => "is called before all its ranks are there",
            super::State::Finalized | super::State::Leaving | super::State::Left => "is called after it was finalized",
            super::State::Ready if found.is_aborted => "is called after it was aborted",
            super::State::Ready if self.nccl.late.iter().any(|late| late.comms.contains(&comm)) => {
                "is called while its last call is in progress"
            }
            super::State::Ready => return Ok(()),
        };
        let rank = found.member.rank;
        self.refuse(INVALID_USAGE, format!("nccl: a communicator (rank {rank}) {problem}"))
    }
}
