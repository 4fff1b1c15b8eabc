//! All that the four libraries know together, behind one lock.

use crate::capture::{Capture, Executable, Graph};
use crate::clock::Clock;
use crate::codes::Answer;
use crate::matmul::Objects;
use crate::memory::Memory;
use crate::nccl::Nccl;
use crate::nvrtc::Programs;
use crate::random::Random;
use crate::stream::{Event, Stream};
use crate::trace::Trace;
use crate::{kernel, settings, thread};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::new(settings::number("SEED", 1))));
static CHANGED: Condvar = Condvar::new();

/// The world, locked.
pub type Guard = MutexGuard<'static, World>;

/// How long a thread that waits sleeps at most before it looks again.
const LOOK: Duration = Duration::from_millis(2);

/// What there is.
#[derive(Debug)]
pub struct World {
    /// The number of the world, which `fake_reset` begins anew.
    pub generation: u64,
    /// What chooses among all that may happen next.
    pub random: Random,
    /// The devices that were used.
    pub devices: BTreeMap<usize, Device>,
    /// Their memory, and the host's.
    pub memory: Memory,
    /// Streams.
    pub streams: BTreeMap<u64, Stream>,
    /// Events.
    pub events: HashMap<u64, Event>,
    /// Records of events that have not happened.
    pub pending: BTreeSet<u64>,
    /// Captures that go on.
    pub captures: BTreeMap<u64, Capture>,
    /// Graphs.
    pub graphs: HashMap<u64, Arc<Graph>>,
    /// Graphs that can be launched.
    pub executables: HashMap<u64, Executable>,
    /// Modules that are loaded, with their functions.
    pub modules: HashMap<u64, kernel::Module>,
    /// Functions of modules.
    pub functions: HashMap<u64, kernel::Function>,
    /// Programs of NVRTC.
    pub programs: Programs,
    /// Communicators.
    pub nccl: Nccl,
    /// What cuBLASLt was told.
    pub objects: Objects,
    /// Operations in the order in which they were enqueued.
    pub trace: Trace,
    /// What was found.
    pub reports: Vec<String>,
    /// Calls so far of each kind that faults are counted by.
    counts: HashMap<String, u64>,
    /// When something happened last.
    progress: Instant,
}

/// A device.
#[derive(Debug, Default)]
pub struct Device {
    /// How often its primary context was retained and not released.
    pub retained: u64,
    /// The error that every call gives from now on.
    pub error: Option<u32>,
    /// Its legacy default stream.
    pub legacy: Option<u64>,
    /// Streams so far.
    pub streams: u32,
    /// What the host has waited for, whichever thread.
    waited: Clock,
    /// What each thread has seen that is done.
    seen: BTreeMap<u64, Clock>,
}

/// The world.
pub fn lock() -> Guard {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new world with that seed. Handles of the last one are unknown in it.
pub fn reset(seed: u64) {
    let mut world = lock();
    let generation = world.generation;
    *world = World { generation: generation + 1, ..World::new(seed) };
    CHANGED.notify_all();
}

impl World {
    fn new(seed: u64) -> World {
        World {
            generation: 0,
            random: Random::new(seed),
            devices: BTreeMap::new(),
            memory: Memory::default(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            pending: BTreeSet::new(),
            captures: BTreeMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            programs: Programs::new(),
            nccl: Nccl::default(),
            objects: Objects::default(),
            trace: Trace::default(),
            reports: vec![],
            counts: HashMap::new(),
            progress: Instant::now(),
        }
    }

    /// A new handle, of no other object of any world.
    pub fn id(&mut self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0x100);
        NEXT.fetch_add(1, Ordering::Relaxed) * 16
    }

    /// Something happened.
    pub fn moved(&mut self) {
        self.progress = Instant::now();
        CHANGED.notify_all();
    }

    /// Reports what is wrong; every later call of that device gives the code.
    pub fn complain(&mut self, device: usize, code: u32, text: String) {
        self.report(format!("device {device}: {text}"));
        self.devices.entry(device).or_default().error.get_or_insert(code);
        self.moved();
    }

    /// Reports a call that is refused; the device goes on.
    pub fn refuse<T>(&mut self, code: u32, text: String) -> Result<T, u32> {
        let device = thread::current().map_or_else(|| "no device".to_owned(), |device| format!("device {device}"));
        self.report(format!("{device}: {text}"));
        Err(code)
    }

    /// Reports something.
    pub fn report(&mut self, text: String) {
        eprintln!("fake cuda: {text}");
        self.reports.push(text);
    }

    /// The error of a device that has one.
    pub fn healthy(&self, device: usize) -> Answer {
        self.devices.get(&device).and_then(|device| device.error).map_or(Ok(()), Err)
    }

    /// What comes before all that this thread tells a device now.
    pub fn host_clock(&mut self, device: usize) -> Clock {
        let device = self.devices.entry(device).or_default();
        let mut clock = device.waited.clone();
        if let Some(seen) = device.seen.get(&thread::number()) {
            clock.join(seen);
        }
        clock
    }

    /// A thread has waited for that. Threads are taken to tell one another of waits, as an executor
    /// may hand a device on.
    pub fn waited(&mut self, device: usize, clock: &Clock) {
        let own = self.devices.entry(device).or_default();
        own.waited.join(clock);
        if self.streams.values().all(|stream| stream.device != device || stream.is_idle()) {
            let before = self.devices.entry(device).or_default().waited.clone();
            self.memory.settle(device, &before);
        }
    }

    /// This thread has asked, and it was done. Others do not know: a watchdog that asks is not one
    /// that waits.
    pub fn seen(&mut self, device: usize, clock: &Clock) {
        self.devices.entry(device).or_default().seen.entry(thread::number()).or_default().join(clock);
    }

    /// The fault that `FAKE_CUDA_FAULT=what:n:code,...` asks for at this call of `what`.
    pub fn fault(&mut self, what: &str) -> Option<u32> {
        let asked = settings::text("FAULT")?;
        let mut found = None;
        for fault in asked.split(',').filter_map(|fault| fault.trim().strip_prefix(what)?.strip_prefix(':')) {
            let (n, code) = fault.split_once(':')?;
            let count = self.counts.get(what).copied().unwrap_or(0) + 1;
            if n.parse() == Ok(count) {
                found = code.parse().ok();
            }
        }
        *self.counts.entry(what.to_owned()).or_default() += 1;
        found
    }

    /// Why nothing moves: what each stream waits for.
    fn stuck(&self) -> String {
        let mut heads = vec![];
        let mut streams: Vec<&Stream> = self.streams.values().collect();
        streams.sort_by_key(|stream| (stream.device, stream.shown));
        for stream in streams {
            let Some(item) = stream.queue.front() else { continue };
            let head = format!("device {} stream {} waits for ", stream.device, stream.shown);
            match &item.work {
                crate::work::Work::Nccl(group) => heads.push(head + &self.nccl.describe(group)),
                crate::work::Work::Wait(_) => heads.push(head + "an event"),
                work => heads.push(format!("device {} stream {} could do {}", stream.device, stream.shown, work.name())),
            }
        }
        if heads.is_empty() { "no stream has work".into() } else { heads.join("; ") }
    }
}

/// Does what there is to do, in an order that is drawn, until `done`; or until nothing moved for
/// `FAKE_CUDA_PATIENCE` milliseconds, which is reported and is the device's error.
pub fn drive(mut world: Guard, device: usize, done: impl Fn(&World) -> bool) -> (Guard, Answer) {
    loop {
        if let Err(code) = world.healthy(device) {
            return (world, Err(code));
        }
        if done(&world) {
            return (world, Ok(()));
        }
        let (guard, has_moved) = crate::run::one(world);
        world = guard;
        if !has_moved {
            world = sleep(world);
            if world.impatient(1) {
                let text = format!("nothing moves: {}", world.stuck());
                world.complain(device, crate::codes::LAUNCH_FAILED, text);
            }
        }
    }
}

/// Wakes threads that wait.
pub fn wake() {
    CHANGED.notify_all();
}

/// Waits until something moves, for a moment.
pub fn sleep(world: Guard) -> Guard {
    if crate::nccl::has_come() {
        return world;
    }
    CHANGED.wait_timeout(world, LOOK).unwrap_or_else(PoisonError::into_inner).0
}

impl World {
    /// Whether nothing has moved for so many times the patience.
    pub fn impatient(&self, times: u32) -> bool {
        let patience = Duration::from_millis(settings::number("PATIENCE", 10_000)) * times;
        self.progress.elapsed() > patience && self.streams.values().all(|stream| !stream.is_running)
    }

    /// Every device whose streams have work that nothing can move fails.
    fn give_up(&mut self) {
        let text = format!("nothing moves: {}", self.stuck());
        let devices: BTreeSet<usize> =
            self.streams.values().filter(|stream| !stream.is_idle()).map(|stream| stream.device).collect();
        for device in devices {
            self.complain(device, crate::codes::LAUNCH_FAILED, text.clone());
        }
    }
}

/// A host that only asks may do something else in between: it is so much more patient than one
/// that waits.
const ASKING: u32 = 8;

/// Does a few operations, or none, as time passes between two questions of the host.
pub fn pass(mut world: Guard) -> Guard {
    world.listen();
    let count = [0, 0, 1, 3, 10, 50, 200][world.random.below(7)];
    for _ in 0..count {
        let (guard, has_moved) = crate::run::one(world);
        world = guard;
        if !has_moved {
            if world.impatient(ASKING) {
                world.give_up();
            }
            break;
        }
    }
    world
}
