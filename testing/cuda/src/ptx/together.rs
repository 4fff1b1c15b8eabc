//! What the lanes of a warp do together: shuffles, votes, tiles, and copies that go on beside.

use super::decode::{Op, Shuffle, Vote};
use super::exact::{bf16_to, f16_to};
use super::kinds::low;
use super::lanes::{Lanes, WARP, lanes_of};
use super::launch::Block;
use super::memory::{Space, Use, number_of, shared};
use super::warp::{Copy, Fault, Warp};

impl Block<'_> {
    pub(super) fn together(&mut self, warp: &mut Warp, op: &Op, run: u32) -> Result<(), Fault> {
        let r = &mut warp.registers;
        match op {
            Op::Shuffle { how, to, there, from, by, bounds, .. } => {
                let (x, by, bounds) = (r.lanes[*from], r.lanes[*by], r.lanes[*bounds]);
                let mut values = [0; WARP];
                let mut inside = 0;
                for l in lanes_of(run) {
                    let (source, valid) = source_lane(*how, l as u32, by[l] as u32, bounds[l] as u32);
                    if run >> source & 1 == 0 {
                        return Err((l, format!("it reads from lane {source}, which takes no part")));
                    }
                    values[l] = low(x[source as usize], 4);
                    inside |= u32::from(valid) << l;
                }
                r.put(*to, run, &values);
                r.put_predicate(*there, run, inside);
            }
            Op::Vote { how, to, of, .. } => {
                let yes = r.holds(*of) & run;
                let bits = |x: bool| if x { !0 } else { 0 };
                match how {
                    Vote::Ballot => r.put(*to, run, &[u64::from(yes); WARP]),
                    Vote::All => r.put_predicate(*to, run, bits(yes == run)),
                    Vote::Any => r.put_predicate(*to, run, bits(yes != 0)),
                    Vote::Same => r.put_predicate(*to, run, bits(yes == run || yes == 0)),
                }
            }
            Op::Active(to) => r.put(*to, run, &[u64::from(run); WARP]),
            Op::CopyAsync { to, from, bytes, there } => {
                let (places, sources) = (warp.addresses(to), warp.addresses(from));
                let wanted = there.map(|t| warp.registers.lanes[t].map(|n| low(n, 4)));
                let wanted = wanted.unwrap_or([*bytes as u64; WARP]);
                let read = lanes_of(run).filter(|l| wanted[*l] != 0).fold(0, |m, l| m | 1 << l);
                self.count(Space::Shared, &places, run, *bytes, false)?;
                if read != 0 {
                    self.count(Space::Global, &sources, read, *bytes, true)?;
                }
                for l in lanes_of(run) {
                    let n = usize::try_from(wanted[l]).ok().filter(|n| n <= bytes);
                    let n = n.ok_or_else(|| (l, format!("it copies {} of {bytes} bytes", wanted[l])))?;
                    let mut data = if n == 0 {
                        Vec::new()
                    } else {
                        self.memory.global(sources[l], n, Use::Load).map_err(|e| (l, e))?.to_vec()
                    };
                    data.resize(*bytes, 0);
                    warp.copies[l].open.push(Copy { to: places[l], bytes: data });
                }
            }
            Op::Commit => {
                for l in lanes_of(run) {
                    let open = std::mem::take(&mut warp.copies[l].open);
                    warp.copies[l].closed.push(open);
                }
            }
            Op::Wait(left) => {
                for l in lanes_of(run) {
                    let copies = &mut warp.copies[l];
                    let mut left = *left;
                    if left == usize::MAX {
                        copies.closed.push(std::mem::take(&mut copies.open));
                        left = 0;
                    }
                    let done = copies.closed.len().saturating_sub(left);
                    for copy in copies.closed.drain(..done).flatten() {
                        let to = shared(&mut self.shared, copy.to, copy.bytes.len(), Use::Store).map_err(|e| (l, e))?;
                        to.copy_from_slice(&copy.bytes);
                    }
                }
            }
            Op::LoadTiles { at, to, turned } => {
                let places = warp.addresses(at);
                let rows = 8 * to.len();
                self.count(Space::Shared, &places, low(u64::MAX, rows / 8) as u32, 16, true)?;
                let mut elements = [[0; 8]; WARP];
                for l in 0..rows {
                    let row = shared(&mut self.shared, places[l], 16, Use::Load).map_err(|e| (l, e))?;
                    for (x, bytes) in elements[l].iter_mut().zip(row.chunks_exact(2)) {
                        *x = number_of(bytes);
                    }
                }
                for (i, slot) in to.iter().enumerate() {
                    let element = |row: usize, column: usize| {
                        if *turned { elements[8 * i + column][row] } else { elements[8 * i + row][column] }
                    };
                    let values: Lanes = std::array::from_fn(|l| element(l / 4, l % 4 * 2) | element(l / 4, l % 4 * 2 + 1) << 16);
                    warp.registers.put(*slot, run, &values);
                }
            }
            Op::Multiply { d, a, b, c, bf16 } => {
                let half = |slot: usize, l: usize, i: usize| {
                    let x = (r.lanes[slot][l] >> (16 * i)) as u16;
                    f64::from(if *bf16 { bf16_to(x) } else { f16_to(x) })
                };
                let (mut left, mut right, mut sums) = ([[0.0; 16]; 16], [[0.0; 8]; 16], [[0.0; 8]; 16]);
                for l in 0..WARP {
                    let (row, column) = (l / 4, l % 4 * 2);
                    for i in 0..8 {
                        left[row + i / 2 % 2 * 8][column + i % 2 + i / 4 * 8] = half(a[i / 2], l, i % 2);
                    }
                    for i in 0..4 {
                        right[column + i % 2 + i / 2 * 8][row] = half(b[i / 2], l, i % 2);
                        sums[row + i / 2 * 8][column + i % 2] = f64::from(f32::from_bits(r.lanes[c[i]][l] as u32));
                    }
                }
                for (sums, left) in sums.iter_mut().zip(&left) {
                    for (x, right) in left.iter().zip(&right) {
                        for (sum, y) in sums.iter_mut().zip(right) {
                            *sum += x * y;
                        }
                    }
                }
                for (i, slot) in d.iter().enumerate() {
                    let values =
                        std::array::from_fn(|l| super::kinds::Lane::bits(sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] as f32));
                    r.put(*slot, run, &values);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The lane that a shuffle reads, and whether it is within the bounds.
fn source_lane(how: Shuffle, lane: u32, by: u32, bounds: u32) -> (u32, bool) {
    let (by, clamp, segment) = (by & 31, bounds & 31, bounds >> 8 & 31);
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (source, valid) = match how {
        Shuffle::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= most as i32),
        Shuffle::Down => (lane + by, lane + by <= most),
        Shuffle::Xor => (lane ^ by, lane ^ by <= most),
        Shuffle::Index => (least | by & !segment, least | by & !segment <= most),
    };
    if valid { (source & 31, true) } else { (lane, false) }
}
