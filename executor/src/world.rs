//! Where ranks of one process meet: barriers with staging memory, and the news that one of them failed.

use shardc_ir::kernel::Collective;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The first rank that failed.
    pub rank: u64,
    /// What it said.
    pub message: String,
}

/// All ranks of one process.
#[derive(Debug, Default)]
pub struct World {
    meetings: Mutex<BTreeMap<Vec<u64>, Arc<Meeting>>>,
    failure: Mutex<Option<Failure>>,
    failed: AtomicBool,
}

impl World {
    /// The meeting of `members`, the same for each of them.
    pub fn meeting(&self, members: Vec<u64>) -> Result<Arc<Meeting>, String> {
        let mut meetings = lock(&self.meetings);
        let meeting = meetings.entry(members).or_insert_with_key(|members| Arc::new(Meeting::new(members.len()))).clone();
        Ok(meeting)
    }

    /// Ends the run: every rank that waits, or is going to, gets an error. The first failure is kept.
    pub fn fail(&self, rank: u64, message: String) {
        lock(&self.failure).get_or_insert(Failure { rank, message });
        self.failed.store(true, Ordering::SeqCst);
        for meeting in lock(&self.meetings).values() {
            let _held = lock(&meeting.state);
            meeting.all_here.notify_all();
        }
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }
}

/// A group of ranks with memory to exchange.
#[derive(Debug)]
pub struct Meeting {
    size: usize,
    state: Mutex<State>,
    all_here: Condvar,
    /// Two sets, used in turn: for each member what it stages.
    staged: [Vec<RwLock<Vec<u64>>>; 2],
    /// For each member the slice that it combined.
    results: Vec<RwLock<Vec<u64>>>,
}

#[derive(Debug, Default)]
struct State {
    arrived: usize,
    generation: u64,
    call: Option<Collective>,
}

impl Meeting {
    fn new(size: usize) -> Meeting {
        let buffers = || (0..size).map(|_| RwLock::default()).collect();
        Meeting { size, state: Mutex::default(), all_here: Condvar::new(), staged: [buffers(), buffers()], results: buffers() }
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Waits as `rank` for all members; all must come for the same `call`.
    pub fn wait(&self, world: &World, rank: u64, call: &Collective) -> Result<(), String> {
        let mut state = lock(&self.state);
        if state.call.get_or_insert_with(|| call.clone()) != call {
            drop(state);
            let message = "members of a group call different collectives".to_string();
            world.fail(rank, message.clone());
            return Err(message);
        }
        state.arrived += 1;
        if state.arrived == self.size {
            *state = State { arrived: 0, generation: state.generation + 1, call: None };
            self.all_here.notify_all();
            return Ok(());
        }
        let generation = state.generation;
        while state.generation == generation {
            if world.failed.load(Ordering::SeqCst) {
                return Err("another rank failed".to_string());
            }
            state = self.all_here.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Lets `fill` write the `bytes` that `member` stages.
    pub fn write(&self, set: usize, member: usize, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        write(&self.staged[set][member], bytes, fill);
    }

    /// Shows what `member` staged, perhaps with some bytes behind it.
    pub fn read(&self, set: usize, member: usize, f: impl FnOnce(&[u8])) {
        f(bytemuck::cast_slice(&self.staged[set][member].read().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Lets `fill` write the `bytes` that `member` combined.
    pub fn write_result(&self, member: usize, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        write(&self.results[member], bytes, fill);
    }

    /// Shows the `bytes` that `member` combined.
    pub fn read_result(&self, member: usize, bytes: usize, f: impl FnOnce(&[u8])) {
        let words = self.results[member].read().unwrap_or_else(PoisonError::into_inner);
        f(&bytemuck::cast_slice(&words)[..bytes]);
    }
}

fn write(buffer: &RwLock<Vec<u64>>, bytes: usize, fill: impl FnOnce(&mut [u8])) {
    let mut words = buffer.write().unwrap_or_else(PoisonError::into_inner);
    if words.len() * 8 < bytes {
        words.resize(bytes.div_ceil(8), 0);
    }
    fill(&mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
