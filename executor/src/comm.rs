//! Collectives and messages among ranks, which are threads or processes.
//!
//! Members meet, and then read what the others show: copies of a few bytes, and of more the memory
//! itself, until all have read. Parts are combined in the order of the group, so that every member
//! gets the same bits in every run; large sums are shared out, each member combining one slice for
//! all.

use crate::arena::Operands;
use crate::cpu::{combine, combine_halves};
use crate::joined::Joined;
use crate::meeting::{Board, Meeting};
use crate::shown::Part;
use crate::transfer::{Transfer, exchange};
use crate::world::World;
use half::{bf16, f16};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind, CommunicationKind};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The calls and bytes that a rank has sent over one set of axes by one kind of collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Calls.
    pub calls: u64,
    /// Bytes that it would send over a wire: its parts that others take, and what it combines for
    /// them. As many as the ring algorithm sends where all shares are equal, and in any case as
    /// many by all members together. A small piece is combined by every member for itself, which is
    /// sooner done in shared memory, and counted as if it were shared out.
    pub bytes_sent: u64,
}

/// The traffic of a rank, by kind and axes.
pub type TrafficTable = BTreeMap<(CommunicationKind, Vec<AxisId>), Traffic>;

/// One rank's end of all its groups.
#[derive(Debug)]
pub struct Communicator {
    world: Arc<World>,
    mesh: Mesh,
    rank: u64,
    /// By axes of more than one rank: calls over the same members share their boards.
    groups: BTreeMap<Vec<AxisId>, Member>,
    traffic: TrafficTable,
}

/// A group and this rank's place in it.
#[derive(Debug)]
struct Member {
    rank: u64,
    meeting: Arc<Meeting>,
    index: usize,
    /// On which of two boards the next bytes are given: copies on the last one may still be read.
    parity: usize,
    /// Bytes sent so far.
    sent: u64,
}

/// Bytes that a member gives at a time: the last cache keeps them until all have read them.
const PIECE: u64 = 1 << 22;
/// So many bytes are shown as copies, and sums of them made by every member for itself, which saves
/// barriers.
const SMALL: usize = 32 << 10;
/// Bytes that are combined at a time.
const CHUNK: usize = 16 << 10;

impl Communicator {
    /// The end of `rank`.
    pub fn new(world: Arc<World>, mesh: Mesh, rank: u64) -> Communicator {
        Communicator { world, mesh, rank, groups: BTreeMap::new(), traffic: BTreeMap::new() }
    }

    /// How long its rank has slept so far, waiting for others.
    pub fn slept(&self) -> Duration {
        self.world.slept(self.rank)
    }

    /// The traffic so far.
    pub fn traffic(&self) -> &TrafficTable {
        &self.traffic
    }

    /// Runs `collective` from its sources to its destinations; an all-reduce works in the
    /// destinations alone, and copies sources that are not empty there first. The operands of a
    /// call meet as if they were one.
    ///
    /// # Errors
    /// If another rank failed, or the members call different collectives.
    pub fn run(&mut self, collective: &Collective, operands: Operands<'_>) -> Result<(), Reason> {
        let member = group(&mut self.groups, &self.world, &self.mesh, self.rank, &collective.axes)?;
        let sent = member.sent;
        let Operands { reads, writes } = operands;
        if collective.kind == CollectiveKind::AllReduce {
            member.all_reduce(&self.world, collective, &reads, writes)?;
        } else {
            member.exchange(&self.world, collective, &reads, writes)?;
        }
        let traffic = self.traffic.entry((collective.kind.into(), collective.axes.clone())).or_default();
        traffic.calls += 1;
        traffic.bytes_sent += member.sent - sent;
        Ok(())
    }

    /// Waits until all ranks that differ from this one on `axes` alone are here.
    ///
    /// # Errors
    /// If another rank failed, or comes for a call.
    pub fn meet(&mut self, axes: &[AxisId]) -> Result<(), Reason> {
        let (kind, op, dtype) = (CollectiveKind::AllReduce, ReduceKind::Sum, DType::Bool);
        let nothing = Collective { kind, op, axes: axes.to_vec(), dtype, counts: vec![] };
        group(&mut self.groups, &self.world, &self.mesh, self.rank, axes)?.all_reduce(&self.world, &nothing, &[], vec![])
    }

    /// Sends `bytes` to rank `to`.
    ///
    /// # Errors
    /// As [`Communicator::exchange`].
    pub fn send(&mut self, to: u64, dtype: DType, bytes: &[u8]) -> Result<(), Reason> {
        self.exchange(&mut [Transfer::Send { to, dtype, bytes }])
    }

    /// Receives what rank `from` sends next.
    ///
    /// # Errors
    /// As [`Communicator::exchange`].
    pub fn receive(&mut self, from: u64, dtype: DType, bytes: &mut [u8]) -> Result<(), Reason> {
        self.exchange(&mut [Transfer::Receive { from, dtype, bytes }])
    }

    /// Makes several transfers together, so that neighbours may send to one another. Messages are
    /// counted by the axes on which the two ranks differ.
    ///
    /// # Errors
    /// If the two ends of a message differ in type or size, a rank failed, or no rank can go on.
    pub fn exchange(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), Reason> {
        for transfer in &*transfers {
            let (Transfer::Send { to: other, .. } | Transfer::Receive { from: other, .. }) = transfer;
            if *other >= self.mesh.world_size() || *other == self.rank {
                return Err(reason!("rank {} has no messages with rank {other}", self.rank));
            }
        }
        exchange(&self.world, self.rank, transfers)?;
        let own = self.mesh.coordinates(self.rank);
        for transfer in &*transfers {
            let Transfer::Send { to, bytes, .. } = transfer else { continue };
            let its = self.mesh.coordinates(*to);
            let axes = (0..self.mesh.rank_axes().len()).filter(|axis| own[*axis] != its[*axis]).map(|axis| AxisId(axis as u8));
            let traffic = self.traffic.entry((CommunicationKind::Send, axes.collect())).or_default();
            traffic.calls += 1;
            traffic.bytes_sent += bytes.len() as u64;
        }
        Ok(())
    }
}

/// The place of `rank` among those that differ from it on `axes` alone.
fn group<'g>(
    groups: &'g mut BTreeMap<Vec<AxisId>, Member>,
    world: &World,
    mesh: &Mesh,
    rank: u64,
    axes: &[AxisId],
) -> Result<&'g mut Member, Reason> {
    let apart: Vec<AxisId> = axes.iter().copied().filter(|axis| mesh.size(*axis) > 1).collect();
    match groups.entry(apart) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(new) => {
            let members = mesh.group(rank, new.key());
            let index = members.iter().position(|r| *r == rank).ok_or("a rank outside its group")?;
            let purpose = new.key().iter().fold(0, |axes, axis| axes | 1 << axis.index());
            let meeting = world.meeting(members, purpose);
            Ok(new.insert(Member { rank, meeting, index, parity: 0, sent: 0 }))
        }
    }
}

/// Bytes `from..to` of each part, and the bytes of a whole part.
#[derive(Debug, Clone, Copy)]
struct Piece {
    from: usize,
    to: usize,
    count: usize,
}

impl Piece {
    fn len(self) -> usize {
        self.to - self.from
    }

    /// The piece of part `part` in a buffer of several.
    fn of(self, part: usize) -> Range<usize> {
        part * self.count + self.from..part * self.count + self.to
    }
}

/// A piece of an operand, and where it begins among the bytes that are given, its parts one after
/// another.
struct Given {
    operand: usize,
    piece: Piece,
    at: usize,
}

impl Member {
    /// All operands at once, piece by piece.
    fn all_reduce(&mut self, world: &World, call: &Collective, reads: &[&[u8]], writes: Vec<&mut [u8]>) -> Result<(), Reason> {
        let element = call.dtype.bytes();
        let sizes = call.counts.iter().map(|count| (count * element) as usize);
        let mut parts: Vec<&mut [u8]> = writes.into_iter().zip(sizes).map(|(write, size)| &mut write[..size]).collect();
        for (source, part) in reads.iter().zip(&mut parts).filter(|(source, _)| !source.is_empty()) {
            part.copy_from_slice(&source[..part.len()]);
        }
        let mut operands = Joined::of(parts);
        let step = (PIECE / element * element) as usize;
        let mut from = 0;
        loop {
            let to = (from + step).min(operands.len);
            self.reduce_piece(world, call, &mut operands, from..to)?;
            from = to;
            if from >= operands.len {
                return Ok(());
            }
        }
    }

    fn reduce_piece(
        &mut self,
        world: &World,
        call: &Collective,
        operands: &mut Joined<'_>,
        range: Range<usize>,
    ) -> Result<(), Reason> {
        let (size, len, element) = (self.meeting.size(), range.len(), call.dtype.bytes() as usize);
        let share = |member: usize| len / element * member / size * element..len / element * (member + 1) / size * element;
        let own = share(self.index);
        let given = self.next_board();
        // Each other member's share of what is given here, and what is combined here to each of
        // them.
        self.sent += (len - own.len() + (size - 1) * own.len()) as u64;
        if len <= SMALL {
            let [mut all, _] = operands.cut(range, 0..len);
            self.meeting.copy(given, self.index, len, &shared(&all));
            self.meeting.wait(world, self.rank, call, given, |_, _| iter::once(0..len).collect())?;
            return all.iter_mut().try_for_each(|(at, bytes)| self.combine(world, call, given, *at, bytes));
        }
        let [mut combined, mut others] = operands.cut(range, own);
        let whole = |member| iter::once(share(member)).collect();
        self.lend(
            world,
            call,
            given,
            &shared(&others),
            |_, reader| whole(reader),
            || combined.iter_mut().try_for_each(|(at, bytes)| self.combine(world, call, given, *at, bytes)),
        )?;
        self.lend(
            world,
            call,
            Board::Combined,
            &shared(&combined),
            |writer, _| whole(writer),
            || {
                let members = (0..size).filter(|member| *member != self.index);
                others.iter_mut().try_for_each(|(start, bytes)| {
                    members.clone().try_for_each(|member| {
                        let share = share(member);
                        let range = share.start.max(*start)..share.end.min(*start + bytes.len());
                        let to = range.start.saturating_sub(*start);
                        let copy = |at: usize, result: &[u8]| bytes[to + at..][..result.len()].copy_from_slice(result);
                        if range.is_empty() {
                            Ok(())
                        } else {
                            self.meeting.read(world, self.rank, call, (Board::Combined, member), range, copy)
                        }
                    })
                })
            },
        )
    }

    /// The operands of another kind, as many pieces at a time as there is room for.
    fn exchange(&mut self, world: &World, call: &Collective, reads: &[&[u8]], mut writes: Vec<&mut [u8]>) -> Result<(), Reason> {
        let (size, element) = (self.meeting.size(), call.dtype.bytes());
        let parts = if call.kind == CollectiveKind::AllGather { 1 } else { size };
        let step = (PIECE / size as u64 / element).max(1) * element;
        let (mut batch, mut bytes): (Vec<Given>, usize) = (vec![], 0);
        for (operand, count) in call.counts.iter().enumerate() {
            let whole = count * element;
            let mut from = 0;
            loop {
                let piece = Piece { from: from as usize, to: (from + step).min(whole) as usize, count: whole as usize };
                if !batch.is_empty() && (bytes + piece.len() * parts) as u64 > PIECE {
                    self.exchange_batch(world, call, &batch, reads, &mut writes)?;
                    (batch, bytes) = (vec![], 0);
                }
                batch.push(Given { operand, piece, at: bytes });
                bytes += piece.len() * parts;
                from += step;
                if from >= whole {
                    break;
                }
            }
        }
        if batch.is_empty() { Ok(()) } else { self.exchange_batch(world, call, &batch, reads, &mut writes) }
    }

    /// Each member gives a part of every piece to all or one to each of them, and takes, or
    /// combines, what is for it.
    fn exchange_batch(
        &mut self,
        world: &World,
        call: &Collective,
        batch: &[Given],
        reads: &[&[u8]],
        writes: &mut [&mut [u8]],
    ) -> Result<(), Reason> {
        let (size, index) = (self.meeting.size(), self.index);
        let parts = if call.kind == CollectiveKind::AllGather { 1 } else { size };
        let bytes = batch.last().map_or(0, |last| last.at + last.piece.len() * parts);
        let shown: Vec<Part<'_>> = batch
            .iter()
            .flat_map(|Given { operand, piece, at }| {
                let part = move |part: usize| (at + part * piece.len(), &reads[*operand][piece.of(part)]);
                (0..parts).filter(move |part| parts == 1 || *part != index).map(part)
            })
            .collect();
        let read_by = |reader: usize, Given { piece, at, .. }: &Given| {
            let from = if parts == 1 { *at } else { at + reader * piece.len() };
            from..from + piece.len()
        };
        let all_read_by = |_: usize, reader: usize| batch.iter().map(|given| read_by(reader, given)).collect();
        let board = self.next_board();
        self.sent += batch.iter().map(|given| ((size - 1) * given.piece.len()) as u64).sum::<u64>();
        let mut take = || {
            batch.iter().try_for_each(|given| {
                let Given { operand, piece, .. } = given;
                let (from, destination) = (read_by(index, given), &mut writes[*operand]);
                let own = &reads[*operand][piece.of(if parts == 1 { 0 } else { index })];
                if call.kind == CollectiveKind::ReduceScatter {
                    let sums = &mut destination[piece.of(0)];
                    sums.copy_from_slice(own);
                    return self.combine(world, call, board, from.start, sums);
                }
                destination[piece.of(index)].copy_from_slice(own);
                (0..size).filter(|member| *member != index).try_for_each(|member| {
                    let to = &mut destination[piece.of(member)];
                    let copy = |at: usize, bytes: &[u8]| to[at..at + bytes.len()].copy_from_slice(bytes);
                    self.meeting.read(world, self.rank, call, (board, member), from.clone(), copy)
                })
            })
        };
        if bytes <= SMALL {
            self.meeting.copy(board, index, bytes, &shown);
            self.meeting.wait(world, self.rank, call, board, all_read_by)?;
            return take();
        }
        self.lend(world, call, board, &shown, all_read_by, take)
    }

    /// The board on which the next bytes are given.
    fn next_board(&mut self) -> Board {
        self.parity = 1 - self.parity;
        Board::Given(self.parity)
    }

    /// Shows `parts` to the other members, and calls `f` when each shows its own; `read_by` says
    /// which bytes of the first of two members the second reads. Threads return when all have read.
    fn lend(
        &self,
        world: &World,
        call: &Collective,
        board: Board,
        parts: &[Part<'_>],
        read_by: impl Fn(usize, usize) -> Vec<Range<usize>>,
        f: impl FnOnce() -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.meeting.lend(board, self.index, parts, || {
            self.meeting.wait(world, self.rank, call, board, read_by)?;
            f()?;
            self.meeting.part(world, self.rank, call)
        })
    }

    /// Combines, in the order of the group, `own` with what the other members show from byte `from`
    /// on. What is combined stays in the first cache until all members are in it.
    fn combine(&self, world: &World, call: &Collective, board: Board, from: usize, own: &mut [u8]) -> Result<(), Reason> {
        let mut before = vec![0_u64; if self.index > 0 { own.len().min(CHUNK).div_ceil(8) } else { 0 }];
        for (number, own) in own.chunks_mut(CHUNK).enumerate() {
            let (start, len) = (from + number * CHUNK, own.len());
            let before: &mut [u8] = bytemuck::cast_slice_mut(&mut before);
            for member in 0..self.index {
                self.meeting.read(world, self.rank, call, (board, member), start..start + len, |at, part| {
                    let before = &mut before[at..at + part.len()];
                    if member == 0 { before.copy_from_slice(part) } else { combine_bytes(call.op, call.dtype, before, part) }
                })?;
            }
            if self.index > 0 {
                let before = &mut before[..len];
                combine_bytes(call.op, call.dtype, before, own);
                own.copy_from_slice(before);
            }
            for member in self.index + 1..self.meeting.size() {
                self.meeting.read(world, self.rank, call, (board, member), start..start + len, |at, part| {
                    combine_bytes(call.op, call.dtype, &mut own[at..at + part.len()], part);
                })?;
            }
        }
        Ok(())
    }
}

/// The same parts, to be read.
fn shared<'p>(parts: &'p [(usize, &mut [u8])]) -> Vec<Part<'p>> {
    parts.iter().map(|(at, bytes)| (*at, &**bytes)).collect()
}

/// `into = op(into, from)`, element by element. For truth values a sum is an or.
fn combine_bytes(op: ReduceKind, dtype: DType, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F64 => combine::<f64>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::F32 => combine::<f32>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::BF16 => combine_halves::<bf16>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::F16 => combine_halves::<f16>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::I64 => combine::<i64>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::Bool => {
            for (into, from) in into.iter_mut().zip(from) {
                *into = if op == ReduceKind::Min { *into & *from } else { *into | *from };
            }
        }
    }
}
