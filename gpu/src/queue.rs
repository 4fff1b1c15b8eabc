//! A launch table with every address and handle of one rank: what is left is to make the calls, in
//! this order.

use crate::device::{Call, Comm, Function, Launch, Message};
use crate::groups::Groups;
use crate::staging::Staging;
use shardc_codegen::matmul::Matmul;
use shardc_codegen::table::{Part, Ran, Range, Table, Work as Row};
use shardc_cublaslt::Operands;
use shardc_executor::comm::TrafficTable;
use shardc_executor::memory::Place;
use shardc_ir::kernel::{Collective, CollectiveKind, CommunicationKind};
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::{Stream, Turn, Way};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range as Bytes;

/// One row of a table, run once.
#[derive(Debug, Clone, PartialEq)]
pub struct Queued {
    /// The row's number.
    pub number: usize,
    /// The stream.
    pub stream: Stream,
    /// The rows of other streams that it waits for, of those in the same part of the step.
    pub waits: Vec<usize>,
    /// What is done.
    pub work: Work,
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// Several, one after another; none where a grid has no blocks.
    Each(Vec<Work>),
    /// A kernel is launched.
    Launch(Launch),
    /// Matrices are multiplied: the position of the product in [`Queue::products`].
    Multiply(usize, Operands),
    /// A communicator is called, for each operand once, as one.
    Call(Vec<Call>, Comm),
    /// Messages are exchanged as one.
    Exchange(Vec<Message>, Comm),
    /// Bytes are copied within the device: what a call of one rank is.
    Copy {
        /// The address of the destination.
        to: u64,
        /// The address of the source.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A range of pinned memory is copied in.
    CopyIn {
        /// The address.
        to: u64,
        /// The range.
        from: Bytes<usize>,
    },
    /// Zeros are written.
    Clear {
        /// The address.
        to: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A range of pinned memory is written.
    CopyOut {
        /// The range.
        to: Bytes<usize>,
        /// The address.
        from: u64,
    },
}

/// All that a rank is told in one step.
#[derive(Debug, Default)]
pub struct Queue {
    /// The rows, run after run.
    pub all: Vec<Queued>,
    /// The parts of the step, each to be told at once; between two the host looks at the norm.
    pub parts: Vec<Bytes<usize>>,
    /// Whether the host has all results when the first part has ended.
    pub has_results: bool,
    /// The rows that others wait for.
    pub awaited: BTreeSet<usize>,
    /// Each product, with the address of its vector.
    pub products: Vec<(Matmul, u64)>,
    /// Where pinned memory holds what the host writes and reads.
    pub pinned: Staging,
    /// What the rank sends in a step: of calls as many bytes as the ring algorithms.
    pub traffic: TrafficTable,
}

/// What rows become calls with.
pub struct Resolver<'a> {
    /// The rank.
    pub place: &'a Place,
    /// Where its memory begins.
    pub memory: u64,
    /// Kernels by their names.
    pub functions: &'a HashMap<String, Function>,
    /// Its communicators.
    pub groups: &'a Groups,
}

impl Resolver<'_> {
    /// The calls of a table; `cut` is the turn of the program before which the host looks at the
    /// norm of the gradients. What the host reads is copied out before that, where it is there.
    ///
    /// # Errors
    /// If the table names what there is not.
    pub fn queue(&self, table: &Table, cut: Option<usize>) -> Result<Queue, Reason> {
        let program = self.place.program();
        let mut queue = Queue::default();
        let turns = Turns::of(self.place, table);
        let mut runs: Vec<Ran<'_>> = table.runs(program.mesh.microbatches()).collect();
        let first = cut.and_then(|cut| turns.0.iter().position(|turn| *turn >= cut));
        let moved = first.map_or(0, |first| results_first(&mut runs[first..]));
        queue.has_results = moved > 0;
        let cut = first.map(|first| first + moved);
        let mut rows_of_part = BTreeSet::new();
        let mut begin = 0;
        for (at, ran) in runs.into_iter().enumerate() {
            if cut == Some(at) {
                queue.parts.push(begin..queue.all.len());
                begin = queue.all.len();
                rows_of_part.clear();
            }
            let waits: Vec<usize> =
                ran.row.waits.iter().map(|row| *row as usize).filter(|row| rows_of_part.contains(row)).collect();
            queue.awaited.extend(&waits);
            rows_of_part.insert(ran.number);
            let work = self.work(&ran, &mut queue)?;
            queue.all.push(Queued { number: ran.number, stream: ran.row.stream, waits, work });
        }
        queue.parts.push(begin..queue.all.len());
        Ok(queue)
    }

    fn work(&self, ran: &Ran<'_>, queue: &mut Queue) -> Result<Work, Reason> {
        let time = ran.times.first().copied().unwrap_or(0);
        let at = |range: &Range| self.memory + range.at(time).start;
        Ok(match &ran.row.work {
            Row::Launch { grid, .. } if grid.contains(&0) => Work::Each(vec![]),
            Row::Launch { entry, grid, block, shared, pointers, numbers, .. } => {
                let mut coordinates = self.place.coordinates.clone();
                *coordinates.last_mut().ok_or("a mesh without axes")? = time;
                let function = *self.functions.get(entry).ok_or_else(|| reason!("there is no kernel `{entry}`"))?;
                let numbers = numbers.iter().map(|number| number.at(&coordinates) as u64);
                let parameters = pointers.iter().map(|pointer| at(&pointer.range)).chain(numbers).collect();
                Work::Launch(Launch { function, grid: *grid, block: *block, shared: *shared, parameters })
            }
            Row::Product { product, a, b, d, added, vector, room } => {
                let vector = vector.as_ref().map_or(0, at);
                let known = queue.products.iter().position(|known| known.0 == **product && known.1 == vector);
                let number = known.unwrap_or(queue.products.len());
                if known.is_none() {
                    queue.products.push(((**product).clone(), vector));
                }
                let (alpha, beta, d) = (product.alpha, product.beta, at(d));
                let c = added.as_ref().map_or(d, at);
                let (a, b, room_bytes) = (at(a), at(b), room.bytes);
                Work::Multiply(number, Operands { alpha, beta, a, b, c, d, room: at(room), room_bytes })
            }
            Row::Call { call, reads, writes } => {
                queue.count(call, &self.place.program().mesh);
                let addresses: Vec<(u64, u64)> = reads.iter().map(at).zip(writes.iter().map(at)).collect();
                self.call(call, &addresses)?
            }
            Row::Messages { way, ranges } => {
                queue.count_messages(*way, ranges);
                self.messages(*way, ranges, ran.times)?
            }
            Row::CopyInput { input, to } => {
                let from = queue.pinned.take(to);
                queue.pinned.inputs.push((*input, from.clone()));
                Work::CopyIn { to: at(to), from }
            }
            Row::CopyScalar { scalar, to } => {
                let from = queue.pinned.take(to);
                queue.pinned.scalars.push((*scalar, to.start, from.clone()));
                Work::CopyIn { to: at(to), from }
            }
            Row::Clear { to } => Work::Clear { to: at(to), bytes: to.bytes },
            Row::CopyOutput { output, from } => {
                let to = queue.pinned.take(from);
                queue.pinned.outputs.push((*output, to.clone()));
                Work::CopyOut { to, from: at(from) }
            }
            Row::CopyFault { from } => {
                queue.pinned.fault = queue.pinned.take(from);
                Work::CopyOut { to: queue.pinned.fault.clone(), from: at(from) }
            }
        })
    }

    /// A call, each of whose operands has a source and a destination.
    fn call(&self, call: &Collective, addresses: &[(u64, u64)]) -> Result<Work, Reason> {
        let mesh = &self.place.program().mesh;
        let Collective { kind, op, dtype, .. } = *call;
        let operands = call.counts.iter().zip(addresses).filter(|(count, _)| **count > 0);
        if call.axes.iter().all(|axis| mesh.size(*axis) == 1) {
            let apart = operands.filter(|(_, (from, to))| from != to);
            let copies = apart.map(|(count, (from, to))| Work::Copy { to: *to, from: *from, bytes: count * dtype.bytes() });
            return Ok(Work::Each(copies.collect()));
        }
        let comm = self.groups.along(mesh, &call.axes)?;
        if kind != CollectiveKind::AllToAll {
            let calls = operands.map(|(count, (from, to))| Call { kind, op, dtype, count: *count, from: *from, to: *to });
            return Ok(Work::Call(calls.collect(), comm));
        }
        let members = mesh.group(self.place.number(), &call.axes).len() as u64;
        let of = |(count, (from, to)): (&u64, &(u64, u64))| {
            let (from, to, bytes) = (*from, *to, count * dtype.bytes());
            (0..members).flat_map(move |peer| {
                let end = |sends, start: u64| Message { sends, peer: peer as u32, at: start + peer * bytes, bytes };
                [end(true, from), end(false, to)]
            })
        };
        Ok(Work::Exchange(operands.flat_map(of).collect(), comm))
    }

    fn messages(&self, way: Way, ranges: &[Range], times: &[u64]) -> Result<Work, Reason> {
        let (comm, peer) = self.groups.of_way(&self.place.program().mesh, self.place.number(), way)?;
        let message = |(range, time): (&Range, &u64)| {
            let at = self.memory + range.at(*time).start;
            Message { sends: way.sends, peer, at, bytes: range.bytes }
        };
        Ok(Work::Exchange(ranges.iter().zip(times).map(message).collect(), comm))
    }
}

impl Queue {
    fn count(&mut self, call: &Collective, mesh: &Mesh) {
        let members = call.axes.iter().map(|axis| mesh.size(*axis)).product();
        let sent = self.traffic.entry((call.kind.into(), call.axes.clone())).or_default();
        sent.calls += 1;
        sent.bytes_sent += call.bytes_sent(members);
    }

    fn count_messages(&mut self, way: Way, ranges: &[Range]) {
        if way.sends {
            let sent = self.traffic.entry((CommunicationKind::Send, vec![way.axis])).or_default();
            sent.calls += ranges.len() as u64;
            sent.bytes_sent += ranges.iter().map(|range| range.bytes).sum::<u64>();
        }
    }
}

/// Moves the rows by which the host gets results before all others, if none of these writes what
/// they read. How many they are.
fn results_first(runs: &mut [Ran<'_>]) -> usize {
    let others = runs.iter().position(|ran| matches!(ran.part, Part::End)).unwrap_or(runs.len());
    let (before, results) = runs.split_at(others);
    let written: Vec<Bytes<u64>> = before.iter().flat_map(|ran| ran.touches()[1].clone()).collect();
    let mut read = results.iter().flat_map(|ran| ran.touches()[0].clone());
    let meet = |a: &Bytes<u64>, b: &Bytes<u64>| a.start.max(b.start) < a.end.min(b.end);
    if read.any(|read| written.iter().any(|written| meet(&read, written))) {
        return 0;
    }
    let count = results.len();
    runs.rotate_right(count);
    count
}

/// For each run of a table's rows the number of the program's turns before it.
struct Turns(Vec<usize>);

impl Turns {
    fn of(place: &Place, table: &Table) -> Turns {
        let program = place.program();
        let mut next = program.turns().enumerate().peekable();
        let mut turns = vec![];
        // Messages of the exchange whose rows run that are still to come.
        let mut left = 0;
        for ran in table.runs(program.mesh.microbatches()) {
            let is_of = |turn: &Turn| match (turn, ran.part) {
                (Turn::Launch(launch), Part::Task(task)) => {
                    (launch.task, Some(launch.step as u32), launch.time) == (*task as usize, ran.row.step, ran.times[0])
                }
                (Turn::Exchange(_), Part::Messages(_)) => true,
                _ => false,
            };
            let turn = match ran.part {
                Part::Begin => 0,
                Part::End => usize::MAX,
                // Rows of one step follow one another; steps that another one's row carries out
                // have none.
                Part::Task(_) | Part::Messages(_) => {
                    while next.peek().is_some_and(|(_, turn)| !is_of(turn)) {
                        next.next();
                    }
                    next.peek().map_or(usize::MAX, |(at, _)| *at)
                }
            };
            turns.push(turn);
            if let (Part::Messages(messages), Some((_, Turn::Exchange(row)))) = (ran.part, next.peek()) {
                left = if left == 0 { program.exchanged(*row).count() } else { left }.saturating_sub(messages.len());
                if left == 0 {
                    next.next();
                }
            }
        }
        Turns(turns)
    }
}
