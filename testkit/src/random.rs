//! Numbers that are the same in every run, and the damage that they do to bytes.

/// A stream of numbers that is the same in every run (Steele, Lea, Flood: SplitMix64, 2014).
pub struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// A number between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of some items, if there are any.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(items[self.below(items.len())].clone()) }
    }
}

/// `bytes` with a few things wrong, half of them near the beginning, where headers are.
pub fn damaged(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..[1, 1, 1, 2, 5][random.below(5)] {
        if out.is_empty() {
            break;
        }
        let reach = if random.below(2) == 0 { out.len().min(4096) } else { out.len() };
        let at = random.below(reach);
        let end = (at + 1 + random.below(16)).min(out.len());
        match random.below(10) {
            0 | 1 => out.truncate(at),
            2..=5 => out[at] ^= 1 << random.below(8),
            6 => out[at] = [0, 255, 127, 128][random.below(4)],
            7 => {
                let number = [1 << 63, u64::MAX, 1 << 40, 1 << 31, 0][random.below(5)];
                out[at..end].iter_mut().zip(number.to_le_bytes()).for_each(|(byte, new)| *byte = new);
            }
            8 => drop(out.drain(at..end)),
            _ => {
                let piece = out[at..end].to_vec();
                let into = random.below(out.len());
                out.splice(into..into, piece).for_each(drop);
            }
        }
    }
    out
}
