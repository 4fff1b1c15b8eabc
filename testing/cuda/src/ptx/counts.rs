//! How well accesses of warps use the memory's sectors and banks.

use super::lanes::{Lanes, WARP, lanes_of};
use super::memory::operand_at;

/// The sectors of 32 bytes of an operand that accesses of warps touched.
///
/// Bytes that several lanes share count once. A load in which all active lanes read one address is
/// left out: the hardware sends one value to all of them, and nothing is wasted that another order
/// of lanes would use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sectors {
    /// The sectors, each as often as an access touched it.
    pub touched: u64,
    /// The bytes of them that were used.
    pub bytes: u64,
}

/// What a launch did.
///
/// Shared memory has 32 banks of 4 bytes. Lanes whose words fill the banks once are a phase: 32
/// lanes of up to 4 bytes, 16 of 8, or 8 of 16. A phase takes as many wavefronts as the most
/// words that its lanes want of one bank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The instructions that warps ran.
    pub instructions: u64,
    /// What accesses touched of each operand of the job.
    pub operands: Vec<Sectors>,
    /// The phases of accesses to shared memory.
    pub phases: u64,
    /// The wavefronts that those took.
    pub wavefronts: u64,
}

impl Sectors {
    /// The part of the touched sectors' bytes that were used; 1 where nothing was touched.
    pub fn used(&self) -> f64 {
        if self.touched == 0 { 1.0 } else { self.bytes as f64 / (32 * self.touched) as f64 }
    }
}

impl Counts {
    /// Nothing done yet with so many operands.
    pub(super) fn of(operands: usize) -> Counts {
        Counts { operands: vec![Sectors::default(); operands], ..Counts::default() }
    }

    /// The wavefronts of a phase, on average; 1 where there was none.
    pub fn wavefronts_each(&self) -> f64 {
        if self.phases == 0 { 1.0 } else { self.wavefronts as f64 / self.phases as f64 }
    }

    /// Counts an access to global memory at addresses that are multiples of `bytes`. What is not in
    /// an operand counts for none.
    pub(super) fn global(&mut self, at: &Lanes, mask: u32, bytes: usize, load: bool) {
        let mut all = [0; WARP];
        let mut n = 0;
        for l in lanes_of(mask) {
            all[n] = at[l];
            n += 1;
        }
        let all = &mut all[..n];
        if load && all.windows(2).all(|w| w[0] == w[1]) {
            return;
        }
        if !all.is_sorted() {
            all.sort_unstable();
        }
        let distinct = |f: fn(u64) -> u64| 1 + all.windows(2).filter(|w| f(w[0]) != f(w[1])).count() as u64;
        let first = all.first().and_then(|address| operand_at(*address));
        if let Some(operand) = first.and_then(|operand| self.operands.get_mut(operand)) {
            operand.bytes += bytes as u64 * distinct(|a| a);
            operand.touched += distinct(|a| a / 32);
        }
    }

    /// Counts an access to shared memory at addresses that are multiples of `bytes`.
    pub(super) fn shared(&mut self, at: &Lanes, mask: u32, bytes: usize) {
        let each = bytes.div_ceil(4).max(1);
        let together = (WARP / each).max(1);
        for first in (0..WARP).step_by(together) {
            let part = mask & (((1u64 << together) - 1) << first) as u32;
            if part == 0 {
                continue;
            }
            let mut words = [0; WARP];
            let mut n = 0;
            for l in lanes_of(part) {
                for w in 0..each {
                    words[n] = at[l] / 4 + w as u64;
                    n += 1;
                }
            }
            self.phases += 1;
            self.wavefronts += wavefronts(&mut words[..n]);
        }
    }
}

fn wavefronts(words: &mut [u64]) -> u64 {
    let mut first = [u64::MAX; WARP];
    if words.iter().all(|w| {
        let bank = &mut first[(w % 32) as usize];
        let free = *bank == u64::MAX || *bank == *w;
        *bank = *w;
        free
    }) {
        return 1;
    }
    words.sort_unstable();
    let mut of_bank = [0; WARP];
    for (i, w) in words.iter().enumerate() {
        if i == 0 || words[i - 1] != *w {
            of_bank[(w % 32) as usize] += 1;
        }
    }
    of_bank.into_iter().max().unwrap_or(1)
}
