//! Collectives among the ranks of one process.
//!
//! Members meet at a barrier that blocks. Parts are combined in the order of the group, so that every member gets the same bits in
//! every run; large sums are shared out, each member combining one slice for all.

use crate::cpu::combine;
use crate::world::{Meeting, World};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind, ReduceKind};
use shardc_ir::mesh::{AxisId, Mesh};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a rank has sent over one set of axes by one kind of collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Calls.
    pub calls: u64,
    /// Bytes that the ring algorithm sends from one rank.
    pub bytes_sent: u64,
}

/// What a rank has sent, by kind and axes.
pub type TrafficTable = BTreeMap<(CollectiveKind, Vec<AxisId>), Traffic>;

/// One rank's end of all its groups.
#[derive(Debug)]
pub struct Communicator {
    world: Arc<World>,
    mesh: Mesh,
    rank: u64,
    groups: BTreeMap<Vec<AxisId>, Member>,
    traffic: TrafficTable,
}

/// A group and this rank's place in it.
#[derive(Debug)]
struct Member {
    rank: u64,
    meeting: Arc<Meeting>,
    index: usize,
    /// Which of the two sets of staging buffers the next exchange uses: those of the last one may still be read.
    parity: usize,
}

/// Bytes that a member stages at a time.
const PIECE: u64 = 4 << 20;
/// Bytes below which every member combines all by itself, which saves a barrier.
const SMALL: usize = 32 << 10;

impl Communicator {
    /// The end of `rank`.
    pub fn new(world: Arc<World>, mesh: Mesh, rank: u64) -> Communicator {
        Communicator { world, mesh, rank, groups: BTreeMap::new(), traffic: BTreeMap::new() }
    }

    /// What was sent so far.
    pub fn traffic(&self) -> &TrafficTable {
        &self.traffic
    }

    /// Runs `collective` from `source` to `destination`; an all-reduce works in the destination alone, and copies a source that
    /// is not empty there first.
    ///
    /// # Errors
    /// If another rank failed, or the members call different collectives.
    pub fn run(&mut self, collective: &Collective, source: &[u8], destination: &mut [u8]) -> Result<(), String> {
        let axes = &collective.axes;
        if !self.groups.contains_key(axes) {
            let members = self.mesh.group(self.rank, axes);
            let index = members.iter().position(|r| *r == self.rank).ok_or("a rank outside its group")?;
            let meeting = self.world.meeting(members)?;
            self.groups.insert(axes.clone(), Member { rank: self.rank, meeting, index, parity: 0 });
        }
        let member = self.groups.get_mut(axes).ok_or("a group that is not there")?;
        let size = member.meeting.size() as u64;
        self.traffic.entry((collective.kind, axes.clone())).or_default().count(collective, size);
        let element = collective.dtype.bytes();
        let bytes = collective.count * element;
        if collective.kind == CollectiveKind::AllReduce && !source.is_empty() {
            destination[..bytes as usize].copy_from_slice(&source[..bytes as usize]);
        }
        let parts = if collective.kind == CollectiveKind::AllReduce { 1 } else { size };
        let step = (PIECE / parts / element).max(1) * element;
        let mut from = 0;
        loop {
            let piece = Piece { from: from as usize, to: (from + step).min(bytes) as usize, count: bytes as usize };
            match collective.kind {
                CollectiveKind::AllReduce => member.all_reduce(&self.world, collective, piece, destination)?,
                CollectiveKind::AllGather => member.all_gather(&self.world, collective, piece, source, destination)?,
                CollectiveKind::ReduceScatter => member.reduce_scatter(&self.world, collective, piece, source, destination)?,
                CollectiveKind::AllToAll => member.all_to_all(&self.world, collective, piece, source, destination)?,
            }
            from += step;
            if from >= bytes {
                return Ok(());
            }
        }
    }
}

impl Traffic {
    /// Adds one call in a group of `size`: the closed forms of the ring algorithms.
    fn count(&mut self, collective: &Collective, size: u64) {
        self.calls += 1;
        self.bytes_sent += collective.bytes_sent(size);
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
    fn of(self, part: usize) -> std::ops::Range<usize> {
        part * self.count + self.from..part * self.count + self.to
    }
}

impl Member {
    fn all_reduce(&mut self, world: &World, call: &Collective, piece: Piece, data: &mut [u8]) -> Result<(), String> {
        let size = self.meeting.size();
        let data = &mut data[piece.of(0)];
        let set = self.stage(world, call, data.len(), |staged| staged.copy_from_slice(data))?;
        if data.len() <= SMALL {
            self.combine(call, set, 0, data);
            return Ok(());
        }
        let share = (data.len() / size).next_multiple_of(64);
        let len = data.len();
        let range = |member: usize| (member * share).min(len)..((member + 1) * share).min(len);
        let own = range(self.index);
        self.meeting.write_result(self.index, own.len(), |result| self.combine(call, set, own.start, result));
        self.meeting.wait(world, self.rank, call)?;
        for member in 0..size {
            let range = range(member);
            self.meeting.read_result(member, range.len(), |result| data[range].copy_from_slice(result));
        }
        Ok(())
    }

    fn all_gather(
        &mut self,
        world: &World,
        call: &Collective,
        piece: Piece,
        source: &[u8],
        destination: &mut [u8],
    ) -> Result<(), String> {
        let set = self.stage(world, call, piece.len(), |staged| staged.copy_from_slice(&source[piece.of(0)]))?;
        for member in 0..self.meeting.size() {
            self.meeting.read(set, member, |staged| destination[piece.of(member)].copy_from_slice(&staged[..piece.len()]));
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        world: &World,
        call: &Collective,
        piece: Piece,
        source: &[u8],
        destination: &mut [u8],
    ) -> Result<(), String> {
        let set = self.stage_parts(world, call, piece, source)?;
        self.combine(call, set, self.index * piece.len(), &mut destination[piece.of(0)]);
        Ok(())
    }

    fn all_to_all(
        &mut self,
        world: &World,
        call: &Collective,
        piece: Piece,
        source: &[u8],
        destination: &mut [u8],
    ) -> Result<(), String> {
        let set = self.stage_parts(world, call, piece, source)?;
        let own = self.index * piece.len()..(self.index + 1) * piece.len();
        for member in 0..self.meeting.size() {
            self.meeting.read(set, member, |staged| destination[piece.of(member)].copy_from_slice(&staged[own.clone()]));
        }
        Ok(())
    }

    /// Stages the piece of every part of `source`, side by side.
    fn stage_parts(&mut self, world: &World, call: &Collective, piece: Piece, source: &[u8]) -> Result<usize, String> {
        let size = self.meeting.size();
        self.stage(world, call, piece.len() * size, |staged| {
            for part in 0..size {
                staged[part * piece.len()..(part + 1) * piece.len()].copy_from_slice(&source[piece.of(part)]);
            }
        })
    }

    /// Puts `bytes` of this member where the others can read them, and waits until all have. Returns the set they are in.
    fn stage(&mut self, world: &World, call: &Collective, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize, String> {
        let set = self.parity;
        self.parity = 1 - set;
        self.meeting.write(set, self.index, bytes, fill);
        self.meeting.wait(world, self.rank, call)?;
        Ok(set)
    }

    /// Combines what all members staged from byte `from` on, in the order of the group.
    fn combine(&self, call: &Collective, set: usize, from: usize, out: &mut [u8]) {
        for member in 0..self.meeting.size() {
            self.meeting.read(set, member, |staged| {
                let staged = &staged[from..from + out.len()];
                if member == 0 {
                    out.copy_from_slice(staged);
                } else {
                    combine_bytes(call.op, call.dtype, out, staged);
                }
            });
        }
    }
}

/// `into = op(into, from)`, element by element. For truth values a sum is an or.
fn combine_bytes(op: ReduceKind, dtype: DType, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F64 => combine::<f64>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::F32 => combine::<f32>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::I64 => combine::<i64>(op, bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from)),
        DType::Bool => {
            for (into, from) in into.iter_mut().zip(from) {
                *into = if op == ReduceKind::Min { *into & *from } else { *into | *from };
            }
        }
    }
}
