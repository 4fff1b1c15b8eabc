//! A warp: which of its lanes run, and the accesses that they make.

use super::decode::{Op, Place};
use super::kinds::{Kind, low, widen};
use super::lanes::{Lanes, Registers, WARP, lanes_of};
use super::launch::{Block, Kernel};
use super::memory::{Space, Use, local, number_of, shared};
use super::names::{LaneMask, Special};
use crate::job::Job;

/// Lanes that are at one place in the code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) at: usize,
    pub(super) mask: u32,
    /// Whether they need lanes that are elsewhere.
    pub(super) waits: bool,
}

/// A copy from global to shared memory that a lane has begun.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) to: u64,
    pub(super) bytes: Vec<u8>,
}

/// The copies of a lane: those of each group that it has closed, and those since.
#[derive(Debug, Clone, Default)]
pub(super) struct Copies {
    pub(super) closed: Vec<Vec<Copy>>,
    pub(super) open: Vec<Copy>,
}

/// A warp at work.
pub(super) struct Warp {
    pub(super) first: usize,
    threads: u32,
    pub(super) registers: Registers,
    pub(super) live: u32,
    groups: Vec<Group>,
    local: Vec<u8>,
    local_bytes: usize,
    pub(super) copies: Vec<Copies>,
    /// The barrier that it waits at.
    pub(super) waiting: Option<usize>,
}

/// Why a launch stopped: the instruction, the thread of the block, and what is wrong.
pub(super) struct Stop {
    pub(super) at: usize,
    pub(super) thread: usize,
    pub(super) text: String,
}

impl Stop {
    pub(super) fn told(&self, kernel: &Kernel, [x, y, z]: [u32; 3]) -> String {
        let (warp, lane) = (self.thread / WARP, self.thread % WARP);
        let code = kernel.code.get(self.at).map_or("", |i| i.text.as_str());
        format!(", block ({x}, {y}, {z}), warp {warp}, lane {lane}, at '{code}': {}", self.text)
    }
}

/// What goes wrong in a lane.
pub(super) type Fault = (usize, String);

impl Warp {
    pub(super) fn new(first: usize, threads: usize, slots: usize, predicates: usize, local_bytes: usize) -> Warp {
        let count = (threads - first).min(WARP);
        Warp {
            first,
            threads: (u64::MAX >> (64 - count)) as u32,
            registers: Registers { lanes: vec![[0; WARP]; slots], predicates: vec![0; predicates] },
            live: 0,
            groups: Vec::new(),
            local: vec![0xff; local_bytes * WARP],
            local_bytes,
            copies: vec![Copies::default(); WARP],
            waiting: None,
        }
    }

    /// Makes the warp ready for a block.
    pub(super) fn start(&mut self, specials: &[(Special, usize)], block: [u32; 3], job: &Job, parameters: &[u64]) {
        self.live = self.threads;
        self.groups = vec![Group { at: 0, mask: self.live, waits: false }];
        self.local.fill(0xff);
        self.copies.fill(Copies::default());
        for (special, at) in specials {
            self.registers.lanes[*at] = std::array::from_fn(|l| match *special {
                Special::Thread => (self.first + l) as u64,
                Special::Lane => l as u64,
                Special::Warp => (self.first / WARP) as u64,
                Special::Block(axis) => u64::from(block[axis]),
                Special::Blocks(axis) => u64::from(job.grid[axis]),
                Special::Threads => u64::from(job.block),
                Special::Parameter(i) => parameters[i],
                Special::Lanes(which) => {
                    let (same, below) = (1u64 << l, (1u64 << l) - 1);
                    low(
                        match which {
                            LaneMask::Same => same,
                            LaneMask::Below => below,
                            LaneMask::NotAbove => below | same,
                            LaneMask::NotBelow => !below,
                            LaneMask::Above => !(below | same),
                        },
                        4,
                    )
                }
            });
        }
    }

    /// The group that goes on, and whether every other one waits for it too.
    fn next(&mut self) -> Option<(usize, bool)> {
        if let [only] = self.groups.as_slice() {
            return Some((0, only.waits));
        }
        let mut i = 0;
        while i < self.groups.len() {
            let group = self.groups[i];
            if let Some(j) = (i + 1..self.groups.len()).find(|j| self.groups[*j].at == group.at) {
                let other = self.groups.swap_remove(j);
                self.groups[i].mask |= other.mask;
                self.groups[i].waits = false;
            } else {
                i += 1;
            }
        }
        let least =
            |waits: bool| (0..self.groups.len()).filter(|i| self.groups[*i].waits == waits).min_by_key(|i| self.groups[*i].at);
        least(false).map(|i| (i, false)).or_else(|| least(true).map(|i| (i, true)))
    }

    fn drop_empty(&mut self) {
        self.groups.retain(|g| g.mask != 0);
    }

    /// The addresses of an access.
    pub(super) fn addresses(&self, place: &Place) -> Lanes {
        let narrow = place.base.bytes == 4;
        self.registers.lanes[place.base.at].map(|x| {
            let at = x.wrapping_add(place.offset);
            if narrow { at & 0xffff_ffff } else { at }
        })
    }
}

impl Block<'_> {
    /// Runs a warp until it waits at a barrier or ends.
    pub(super) fn until_barrier(&mut self, warp: &mut Warp) -> Result<(), Stop> {
        let kernel = self.kernel;
        while warp.waiting.is_none() {
            let Some((i, last)) = warp.next() else { return Ok(()) };
            let Group { at, mask, .. } = warp.groups[i];
            let inst = &kernel.code[at];
            let run = match inst.guard {
                None => mask,
                Some(p) => mask & warp.registers.holds(p),
            };
            let stop = |lane: usize, text: String| Stop { at, thread: warp.first + lane, text };
            let lanes = u64::from(mask.count_ones());
            if lanes > self.left {
                return Err(stop(mask.trailing_zeros() as usize, "the launch does not end".to_string()));
            }
            self.left -= lanes;
            self.counts.instructions += 1;
            warp.groups[i].at = at + 1;
            if run == 0 {
                continue;
            }
            let needed = match &inst.op {
                Op::Compute(step) => {
                    step(&mut warp.registers, run);
                    continue;
                }
                Op::Branch(to) => {
                    if run == mask {
                        warp.groups[i].at = *to;
                    } else {
                        warp.groups[i].mask = mask & !run;
                        warp.groups.push(Group { at: *to, mask: run, waits: false });
                    }
                    continue;
                }
                Op::BranchTo { index, targets } => {
                    warp.groups[i].mask = mask & !run;
                    for l in lanes_of(run) {
                        let index = low(warp.registers.lanes[*index][l], 4) as usize;
                        let Some(to) = targets.get(index) else {
                            return Err(stop(l, format!("there is no target {index}")));
                        };
                        warp.groups.push(Group { at: *to, mask: 1 << l, waits: false });
                    }
                    warp.drop_empty();
                    continue;
                }
                Op::Exit => {
                    warp.live &= !run;
                    warp.groups[i].mask = mask & !run;
                    warp.drop_empty();
                    continue;
                }
                Op::Barrier => warp.live,
                Op::LoadTiles { .. } | Op::Multiply { .. } => !0,
                Op::WarpBarrier(members) | Op::Shuffle { members, .. } | Op::Vote { members, .. } => {
                    let members = warp.registers.lanes[*members];
                    match lanes_of(run).find(|l| members[*l] as u32 >> l & 1 == 0) {
                        Some(l) => return Err(stop(l, "the lane is not in its mask".to_string())),
                        None => lanes_of(run).fold(0, |all, l| all | members[l] as u32),
                    }
                }
                _ => run,
            };
            let missing = needed & !run;
            if missing != 0 {
                if last || missing & warp.live & !mask == 0 {
                    let lane = run.trailing_zeros() as usize;
                    let what = if matches!(inst.op, Op::Barrier) { "the barrier is not reached" } else { "it is not run" };
                    let others: Vec<String> = lanes_of(missing).map(|l| l.to_string()).collect();
                    return Err(stop(lane, format!("{what} by lanes {} of the warp", others.join(", "))));
                }
                self.counts.instructions -= 1;
                self.left += lanes;
                warp.groups[i] = Group { at, mask, waits: true };
                continue;
            }
            // Lanes that waited for these have been waited for in vain or not at all.
            warp.groups[i].waits = false;
            if let Op::Barrier = inst.op {
                warp.waiting = Some(at);
                continue;
            }
            if let Err((lane, text)) = self.execute(warp, &inst.op, run) {
                return Err(Stop { at, thread: warp.first + lane, text });
            }
        }
        Ok(())
    }

    fn execute(&mut self, warp: &mut Warp, op: &Op, run: u32) -> Result<(), Fault> {
        match op {
            Op::Load { at, kind, to, fixed } => {
                let how = if *fixed { Use::Fixed } else { Use::Load };
                let bytes = kind.bytes();
                let places = warp.addresses(at);
                self.count(at.space, &places, run, bytes * to.len(), true)?;
                for l in lanes_of(run) {
                    let mut values = [0; 4];
                    let from = self.bytes(warp, l, at.space, places[l], bytes * to.len(), how).map_err(|e| (l, e))?;
                    for (value, from) in values.iter_mut().zip(from.chunks_exact(bytes)) {
                        *value = number_of(from);
                    }
                    for (slot, value) in to.iter().zip(values) {
                        warp.registers.lanes[slot.at][l] = extended(value, *kind, slot.bytes);
                    }
                }
            }
            Op::Store { at, bytes, from } => {
                let places = warp.addresses(at);
                self.count(at.space, &places, run, bytes * from.len(), false)?;
                for l in lanes_of(run) {
                    let mut values = [0; 4];
                    for (value, slot) in values.iter_mut().zip(from) {
                        *value = warp.registers.lanes[*slot][l];
                    }
                    let to = self.bytes(warp, l, at.space, places[l], bytes * from.len(), Use::Store).map_err(|e| (l, e))?;
                    for (to, value) in to.chunks_exact_mut(*bytes).zip(values) {
                        to.copy_from_slice(&value.to_le_bytes()[..*bytes]);
                    }
                }
            }
            Op::Trap => return Err((run.trailing_zeros() as usize, "the kernel stops here".to_string())),
            op => self.together(warp, op, run)?,
        }
        Ok(())
    }

    /// Counts an access, whose addresses are multiples of its bytes.
    pub(super) fn count(&mut self, space: Space, at: &Lanes, run: u32, bytes: usize, load: bool) -> Result<(), Fault> {
        if let Some(l) = lanes_of(run).find(|l| !at[*l].is_multiple_of(bytes as u64)) {
            return Err((l, format!("the address {:#x} is not a multiple of {bytes}", at[l])));
        }
        let first = run.trailing_zeros() as usize % WARP;
        match split(space, at[first]).0 {
            Space::Global => self.counts.global(at, run, bytes, load),
            Space::Shared => self.counts.shared(at, run, bytes),
            _ => {}
        }
        Ok(())
    }

    /// The bytes that a lane's access is to.
    pub(super) fn bytes<'b>(
        &'b mut self,
        warp: &'b mut Warp,
        lane: usize,
        space: Space,
        at: u64,
        n: usize,
        how: Use,
    ) -> Result<&'b mut [u8], String> {
        match split(space, at) {
            (Space::Shared, at) => shared(&mut self.shared, at, n, how),
            (Space::Local, at) => local(&mut warp.local, warp.local_bytes, lane, at, n, how),
            (Space::Const, at) if how != Use::Store => {
                // A copy, because constants are shared by launches.
                let bytes = self.memory.constant(at, n)?.to_vec();
                self.scratch = bytes;
                Ok(&mut self.scratch)
            }
            (Space::Const, _) => Err("store to a constant".to_string()),
            (_, at) => self.memory.global(at, n, how),
        }
    }
}

/// The space of an address and the address within it.
fn split(space: Space, at: u64) -> (Space, u64) {
    if space != Space::Generic {
        return (space, at);
    }
    match at >> 60 {
        1 => (Space::Shared, at - Space::Shared.window()),
        2 => (Space::Local, at - Space::Local.window()),
        4.. => (Space::Const, at),
        _ => (Space::Global, at),
    }
}

fn extended(value: u64, kind: Kind, width: usize) -> u64 {
    if kind.signed() { widen(value, kind.bytes(), width, true) } else { value }
}
