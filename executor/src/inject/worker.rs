//! A rank with faults: what it does is what another one does, but for them.

use super::OnRank;
use crate::comm::TrafficTable;
use crate::fault::Fault;
use crate::memory::{Bytes, Memory, Place};
use crate::rank::Rank;
use crate::transfer::{Route, take};
use crate::worker::{Asked, Stepped, Worker};
use crate::world::{Wait, World};
use shardc_ir::plan::set::Name;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The ranks of `world`, of which some have its faults; the others stay as they are.
pub(crate) fn inject(workers: Vec<Box<dyn Worker>>, world: &Arc<World>) -> Vec<Box<dyn Worker>> {
    let with_faults = |worker: Box<dyn Worker>| -> Box<dyn Worker> {
        let faults = world.injections().of_rank(worker.place().number());
        if faults.is_empty() { worker } else { Box::new(Faulty { worker, faults, world: world.clone() }) }
    };
    workers.into_iter().map(with_faults).collect()
}

#[derive(Debug)]
struct Faulty {
    worker: Box<dyn Worker>,
    faults: Vec<OnRank>,
    world: Arc<World>,
}

impl Faulty {
    /// Takes no part in anything any more; the error that this ends in.
    fn fall_silent(&self) -> Fault {
        if self.world.is_of_processes() {
            signal(Death::Stopped);
        }
        // Nobody sends what it waits for, which is found as any other wait without an end.
        let rank = self.place().number();
        let received = take(&self.world, Route { from: rank, to: rank, purpose: 0 }, Wait::Receive(rank));
        received.err().map_or_else(|| "a message came from nobody".into(), Fault::from)
    }

    /// Changes a bit of this rank's part of a state variable.
    fn flip(&mut self, state: &str, bit: u64) -> Result<(), Fault> {
        let id = self.worker.named(&Name::State(state.to_string()));
        let id = id.ok_or_else(|| reason!("no bit to flip: this rank has no state variable `{state}`"))?;
        let ranges = self.worker.place().ranges(id)?;
        let range = ranges.into_iter().next().ok_or_else(|| reason!("no bit to flip: `{state}` has no memory"))?;
        let mut bytes = self.worker.bytes(range.clone())?.into_owned();
        let bits = bytes.len() as u64 * 8;
        let byte = bytes.get_mut((bit / 8) as usize);
        let byte = byte.ok_or_else(|| reason!("no bit {bit} to flip: this rank's part of `{state}` has {bits} bits, from 0"))?;
        *byte ^= 1 << (bit % 8);
        Ok(self.worker.fill(range, &mut |memory| memory.copy_from_slice(&bytes))?)
    }
}

impl Memory for Faulty {
    fn place(&self) -> &Place {
        self.worker.place()
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Reason> {
        self.worker.bytes(range)
    }

    fn fill(&mut self, range: Range<u64>, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Reason> {
        self.worker.fill(range, fill)
    }
}

impl Worker for Faulty {
    fn step(&mut self, asked: &Asked) -> Result<Stepped, Fault> {
        let number = asked.number + 1;
        for fault in &self.faults {
            match fault {
                OnRank::Delay { step, milliseconds } if *step == number => thread::sleep(Duration::from_millis(*milliseconds)),
                OnRank::Kill(step) if *step == number => signal(Death::Killed),
                OnRank::Drop(step) if *step == number => return Err(self.fall_silent()),
                _ => {}
            }
        }
        let begun = Instant::now();
        let stepped = self.worker.step(asked)?;
        let took = begun.elapsed();
        for fault in self.faults.clone() {
            match fault {
                OnRank::Slow(factor) => thread::sleep(took.mul_f64(factor - 1.0)),
                OnRank::Flip { step, state, bit } if step == number && !stepped.given_up => self.flip(&state, bit)?,
                _ => {}
            }
        }
        Ok(stepped)
    }

    fn traffic(&self) -> TrafficTable {
        self.worker.traffic()
    }

    fn memory(&self) -> Option<(u64, u64)> {
        self.worker.memory()
    }

    fn in_common(&self) -> u64 {
        self.worker.in_common()
    }

    fn give_rank(&mut self) -> Result<Option<Rank>, Reason> {
        self.worker.give_rank()
    }
}

/// What becomes of this process.
#[derive(Clone, Copy)]
enum Death {
    Killed,
    Stopped,
}

#[cfg(unix)]
fn signal(death: Death) {
    use rustix::process::{Signal, getpid, kill_process};
    let signal = match death {
        Death::Killed => Signal::KILL,
        Death::Stopped => Signal::STOP,
    };
    // A process may do that to itself.
    let _ = kill_process(getpid(), signal);
}

#[cfg(not(unix))]
fn signal(_: Death) {
    std::process::abort();
}
