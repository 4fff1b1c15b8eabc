//! Where ranks meet: what they wait for, and the news that one of them failed. Ranks are threads of
//! one process, or the one that is here has ways to others.
//!
//! A rank that has to wait sleeps at a gate. When every rank that still runs sleeps, none can wake
//! another: that is an error, which says what each of them waits for.

use crate::cpu::team::pause;
use crate::fault::Fault;
use crate::inject::Injections;
use crate::meeting::Meeting;
use crate::random::Stream;
use crate::transfer::{Channel, Route, deliver};
use crate::wires::Wires;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::CollectiveKind;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a rank looks before it sleeps.
const SOON: Duration = Duration::from_millis(2);

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The first rank that failed.
    pub rank: u64,
    /// The fault that it reported.
    pub fault: Fault,
}

/// All ranks of one process, and the ways to those of others.
#[derive(Debug, Default)]
pub struct World {
    meetings: Mutex<BTreeMap<Vec<u64>, Arc<Meeting>>>,
    channels: Mutex<BTreeMap<Route, Arc<Channel>>>,
    wires: OnceLock<Box<dyn Wires>>,
    failure: Mutex<Option<Failure>>,
    failed: AtomicBool,
    activity: Mutex<Activity>,
    delays: Option<Delays>,
    injections: Injections,
    strict: bool,
    together: bool,
    /// Whether each rank has a core, so that it may look for what it waits for.
    looks: AtomicBool,
    /// For each rank how long it has waited.
    slept: Mutex<BTreeMap<u64, Duration>>,
}

/// The event that a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The other members of a call.
    Call(CollectiveKind),
    /// The other ranks that hold state variables in common, at the beginning or end of their
    /// update.
    Update,
    /// That a rank receives what was sent to it.
    Send(u64),
    /// That a rank sends something.
    Receive(u64),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Call(kind) => write!(f, "in a collective ({kind:?})"),
            Wait::Update => write!(f, "to update what ranks hold in common"),
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

    fn notify(&self) {
        let _held = self.lock();
        self.changed.notify_all();
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

    /// The same world, whose ranks hold in common the state variables that would be the same on
    /// each of them (see [`crate::common`]), if they are threads: less memory is used, and a
    /// replica cannot differ from another.
    pub fn together(self) -> World {
        World { together: true, ..self }
    }

    /// Whether ranks hold state variables in common. Not where bits of one of them are to change.
    pub fn is_together(&self) -> bool {
        self.together && !self.injections.flip()
    }

    /// The same world, whose ranks have faults.
    pub fn with_faults(self, injections: Injections) -> World {
        World { injections, ..self }
    }

    /// The faults of its ranks.
    pub fn injections(&self) -> &Injections {
        &self.injections
    }

    /// Whether a sender waits until its message has been received.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// `ranks` ranks begin to run; each is going to [`World::end`].
    pub fn begin(&self, ranks: u64) {
        *lock(&self.activity) = Activity { running: ranks, asleep: BTreeMap::new() };
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        self.looks.store(ranks <= cores as u64, Ordering::Relaxed);
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

    /// The meeting of `members`, the same for each of them; `purpose` is that of the messages by
    /// which they meet where they are processes.
    pub fn meeting(&self, members: Vec<u64>, purpose: u64) -> Arc<Meeting> {
        let mut meetings = lock(&self.meetings);
        meetings.entry(members).or_insert_with_key(|members| Arc::new(Meeting::new(members.clone(), purpose))).clone()
    }

    /// The channel of a route, the same for both ends.
    pub fn channel(&self, route: Route) -> Arc<Channel> {
        lock(&self.channels).entry(route).or_default().clone()
    }

    /// All other ranks are processes from now on, which `wires` lead to.
    pub fn connect(&self, wires: Box<dyn Wires>) {
        // They are laid once.
        let _ = self.wires.set(wires);
    }

    /// Whether each rank is a process.
    pub fn is_of_processes(&self) -> bool {
        self.wires.get().is_some()
    }

    /// Sends `parts`, one after another, as one message.
    ///
    /// # Errors
    /// If the receiver is gone.
    pub fn post(&self, route: Route, dtype: DType, parts: &[&[u8]]) -> Result<(), Reason> {
        match self.wires.get() {
            Some(wires) => wires.send(self, route, dtype, parts),
            None => {
                deliver(self, route, dtype, parts.concat());
                Ok(())
            }
        }
    }

    /// Ends the run: every rank that waits, or is going to, gets an error. The first failure is
    /// kept.
    pub fn fail(&self, rank: u64, fault: impl Into<Fault>) {
        lock(&self.failure).get_or_insert(Failure { rank, fault: fault.into() });
        self.failed.store(true, Ordering::SeqCst);
        lock(&self.meetings).values().for_each(|meeting| meeting.gate.notify());
        lock(&self.channels).values().for_each(|channel| channel.gate.notify());
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Whether there was one.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Looks for a moment, before `rank` sleeps, whether something happens: to be woken takes
    /// longer than most others take to come.
    pub fn happens_soon(&self, rank: u64, happened: impl Fn() -> bool) -> bool {
        if !self.looks.load(Ordering::Relaxed) {
            return happened();
        }
        let start = Instant::now();
        let mut looks = 0_u32;
        while !happened() && start.elapsed() < SOON {
            looks = looks.wrapping_add(1);
            pause(looks);
        }
        *lock(&self.slept).entry(rank).or_default() += start.elapsed();
        happened()
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

    /// How long `rank` has waited so far.
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

    pub(crate) fn reason(&self) -> String {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
