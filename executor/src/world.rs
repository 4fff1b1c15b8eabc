//! The meeting places of the ranks of one process: what they wait for, barriers with staging
//! memory, and the news that one of them failed.
//!
//! A rank that has to wait sleeps at a gate. When every rank that still runs sleeps, none can wake
//! another: that is an error, which says what each of them waits for.

use crate::fault::Fault;
use crate::random::Stream;
use crate::transfer::Channel;
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The first rank that failed.
    pub rank: u64,
    /// The fault that it reported.
    pub fault: Fault,
}

/// All ranks of one process.
#[derive(Debug, Default)]
pub struct World {
    meetings: Mutex<BTreeMap<Vec<u64>, Arc<Meeting>>>,
    channels: Mutex<BTreeMap<(u64, u64), Arc<Channel>>>,
    failure: Mutex<Option<Failure>>,
    failed: AtomicBool,
    activity: Mutex<Activity>,
    delays: Option<Delays>,
    strict: bool,
    /// For each rank how long it has slept.
    slept: Mutex<BTreeMap<u64, Duration>>,
}

/// The event that a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The other members of a call.
    Call(CollectiveKind),
    /// That a rank receives what was sent to it.
    Send(u64),
    /// That a rank sends something.
    Receive(u64),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Call(kind) => write!(f, "in a collective ({kind:?})"),
            Wait::Send(to) => write!(f, "to send to rank {to}"),
            Wait::Receive(from) => write!(f, "to receive from rank {from}"),
        }
    }
}

/// Which ranks run, and which of them sleep.
#[derive(Debug, Default)]
struct Activity {
    /// Ranks that have begun and not ended; 0 where nobody counts them.
    running: u64,
    /// For each rank that sleeps the address of its gate, and why.
    asleep: BTreeMap<u64, (usize, Wait)>,
}

/// Random pauses, which must change nothing.
#[derive(Debug)]
struct Delays {
    seed: u64,
    longest: Duration,
    drawn: Mutex<BTreeMap<u64, u64>>,
}

/// A state that ranks wait at.
#[derive(Debug, Default)]
pub struct Gate<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Gate<T> {
    /// The state.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.state)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl World {
    /// A world in which every rank pauses for random times, up to `longest`, wherever it meets
    /// others; the same `seed` gives the same times.
    pub fn with_delays(seed: u64, longest: Duration) -> World {
        World { delays: Some(Delays { seed, longest, drawn: Mutex::default() }), ..World::default() }
    }

    /// The same world, in which a message has been received when its sender goes on.
    pub fn strict(self) -> World {
        World { strict: true, ..self }
    }

    /// Whether a sender waits until its message has been received.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// `ranks` ranks begin to run; each is going to [`World::end`].
    pub fn begin(&self, ranks: u64) {
        *lock(&self.activity) = Activity { running: ranks, asleep: BTreeMap::new() };
    }

    /// `rank` will wake nobody any more.
    pub fn end(&self, rank: u64) {
        let stuck = {
            let mut activity = lock(&self.activity);
            activity.running = activity.running.saturating_sub(1);
            activity.stuck()
        };
        if let Some(message) = stuck {
            self.fail(rank, message);
        }
    }

    /// The meeting of `members`, the same for each of them.
    pub fn meeting(&self, members: Vec<u64>) -> Arc<Meeting> {
        let mut meetings = lock(&self.meetings);
        meetings.entry(members).or_insert_with_key(|members| Arc::new(Meeting::new(members.len()))).clone()
    }

    /// The way from one rank to another, the same for both.
    pub fn channel(&self, from: u64, to: u64) -> Arc<Channel> {
        lock(&self.channels).entry((from, to)).or_default().clone()
    }

    /// Ends the run: every rank that waits, or is going to, gets an error. The first failure is
    /// kept.
    pub fn fail(&self, rank: u64, fault: impl Into<Fault>) {
        lock(&self.failure).get_or_insert(Failure { rank, fault: fault.into() });
        self.failed.store(true, Ordering::SeqCst);
        for meeting in lock(&self.meetings).values() {
            let _held = meeting.gate.lock();
            meeting.gate.changed.notify_all();
        }
        for channel in lock(&self.channels).values() {
            let _held = channel.gate.lock();
            channel.gate.changed.notify_all();
        }
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Whether there was one.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Sleeps as `rank` until the state at `gate` may have changed.
    ///
    /// # Errors
    /// If a rank failed, or every rank sleeps.
    pub fn sleep<'g, T>(
        &self,
        rank: u64,
        gate: &'g Gate<T>,
        state: MutexGuard<'g, T>,
        why: Wait,
    ) -> Result<MutexGuard<'g, T>, Reason> {
        let stuck = {
            let mut activity = lock(&self.activity);
            activity.asleep.insert(rank, (gate.address(), why));
            activity.stuck()
        };
        if let Some(message) = stuck {
            drop(state);
            self.fail(rank, message);
            return Err(self.reason().into());
        }
        if self.has_failed() {
            return Err(self.reason().into());
        }
        let start = Instant::now();
        let state = gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        *lock(&self.slept).entry(rank).or_default() += start.elapsed();
        Ok(state)
    }

    /// How long `rank` has slept so far.
    pub fn slept(&self, rank: u64) -> Duration {
        lock(&self.slept).get(&rank).copied().unwrap_or_default()
    }

    /// Wakes all ranks that sleep at `gate`, whose state has changed.
    pub fn wake<T>(&self, gate: &Gate<T>, _changed: &MutexGuard<'_, T>) {
        lock(&self.activity).asleep.retain(|_, (at, _)| *at != gate.address());
        gate.changed.notify_all();
    }

    /// Pauses, where delays are wanted.
    pub fn pause(&self, rank: u64) {
        let Some(Delays { seed, longest, drawn }) = &self.delays else { return };
        let position = {
            let mut drawn = lock(drawn);
            let position = drawn.entry(rank).or_default();
            *position += 1;
            *position
        };
        let nanoseconds = Stream::new(*seed, "delays").part(rank).below(position, longest.as_nanos() as u64 + 1);
        thread::sleep(Duration::from_nanos(nanoseconds));
    }

    fn reason(&self) -> String {
        self.failure().map_or_else(|| "another rank failed".to_string(), |failure| failure.fault.message)
    }
}

impl Activity {
    /// The error, in words, that no running rank can go on, with what each of them waits for.
    fn stuck(&self) -> Option<String> {
        if self.running == 0 || (self.asleep.len() as u64) < self.running {
            return None;
        }
        let each: Vec<String> = self.asleep.iter().map(|(rank, (_, why))| format!("rank {rank} waits {why}")).collect();
        Some(format!("no rank can go on: {}", each.join(", ")))
    }
}

/// A group of ranks with memory to exchange.
#[derive(Debug)]
pub struct Meeting {
    size: usize,
    gate: Gate<State>,
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
        Meeting { size, gate: Gate::default(), staged: [buffers(), buffers()], results: buffers() }
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Waits as `rank` for all members; all must come for the same `call`.
    pub fn wait(&self, world: &World, rank: u64, call: &Collective) -> Result<(), Reason> {
        world.pause(rank);
        let mut state = self.gate.lock();
        if state.call.get_or_insert_with(|| call.clone()) != call {
            drop(state);
            let message = "members of a group call different collectives".to_string();
            world.fail(rank, message.clone());
            return Err(message.into());
        }
        state.arrived += 1;
        if state.arrived == self.size {
            *state = State { arrived: 0, generation: state.generation + 1, call: None };
            world.wake(&self.gate, &state);
        } else {
            let generation = state.generation;
            while state.generation == generation {
                state = world.sleep(rank, &self.gate, state, Wait::Call(call.kind))?;
            }
        }
        drop(state);
        world.pause(rank);
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
