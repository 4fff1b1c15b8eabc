//! The threads of a rank: one that leads, and helpers.
//!
//! Launches follow one another within microseconds, which is less than a thread takes to wake up.
//! So helpers look for work for a while before they sleep, and whoever is not there in time is not
//! waited for.
#![expect(unsafe_code, reason = "helpers run what the leader has borrowed, and the leader waits until they have left it")]

use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What the threads do together; each is told its number, of which the leader's is 0.
type Work<'w> = dyn Fn(usize) + Sync + 'w;

/// How long a helper looks for work before it sleeps.
const PATIENCE: Duration = Duration::from_micros(500);

/// Looks at memory between two calls of the system that let other threads run.
const LOOKS: u32 = 64;

/// The parts of a gate: how many helpers are inside, whether others may enter, and the number of
/// the work.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const NUMBER: u32 = 17;

/// Helpers for one thread.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    helpers: usize,
    gate: AtomicU64,
    /// The work that is done while the gate is open or somebody is inside.
    work: AtomicPtr<&'static Work<'static>>,
    /// The first panic of a helper.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
    ends: AtomicBool,
}

thread_local! {
    /// The helpers of a thread that leads, and has nothing for them to do.
    static FREE: Cell<Option<Arc<Shared>>> = const { Cell::new(None) };
}

impl Team {
    /// Starts the helpers of a thread, so that there are `threads` with it.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new(threads: usize, name: impl Fn(usize) -> String) -> Result<Team, Reason> {
        let helpers = threads.saturating_sub(1).min(INSIDE as usize);
        let mut team = Team { shared: Arc::new(Shared { helpers, ..Shared::default() }), helpers: vec![] };
        for number in 1..=helpers {
            let shared = team.shared.clone();
            let helper = thread::Builder::new().name(name(number)).spawn(move || shared.help(number));
            team.helpers.push(helper.map_err(|error| reason!("no threads: {error}"))?);
        }
        Ok(team)
    }

    /// Runs `f`, in which work for several threads is shared with the helpers.
    pub fn lead<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let _before = Before(FREE.replace(Some(self.shared.clone())));
        f()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.ring();
        for helper in self.helpers.drain(..) {
            // A panic of a helper was told to the leader.
            let _ = helper.join();
        }
    }
}

/// The helpers that a thread had before it led others.
struct Before(Option<Arc<Shared>>);

impl Drop for Before {
    fn drop(&mut self) {
        FREE.set(self.0.take());
    }
}

/// The helpers of this thread, taken for one work: what that shares itself is done by each alone.
pub(super) struct Taken(Arc<Shared>);

impl Taken {
    /// Takes them, if the thread leads a team and has given it nothing to do.
    pub fn take() -> Option<Taken> {
        FREE.take().map(Taken)
    }

    /// The threads, the leader too.
    pub fn threads(&self) -> usize {
        self.0.helpers + 1
    }

    /// Runs `work` on this thread, and on each helper that comes before this one is done.
    ///
    /// # Panics
    /// If `work` does, on any thread.
    pub fn run(self, work: &Work<'_>) {
        let shared = &*self.0;
        // A work before this one may have ended in a panic of its own.
        shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: only helpers inside the gate use the reference, and this function ends, however
        // it does, with `Closing`, which waits until the last of them has left. One thread at a
        // time leads a team, and it opens no second gate: who runs work has taken the helpers.
        let work: &'static Work<'static> = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        shared.work.store((&raw const work).cast_mut(), Ordering::Release);
        let closing = Closing(shared);
        let number = (shared.gate.load(Ordering::Relaxed) >> NUMBER) + 1;
        shared.gate.store(number << NUMBER | OPEN, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            shared.ring();
        }
        work(0);
        drop(closing);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        FREE.set(Some(self.0.clone()));
    }
}

/// Closes the gate, and waits until nobody is inside.
struct Closing<'s>(&'s Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0u32;
        while self.0.gate.load(Ordering::Acquire) & INSIDE != 0 {
            looks = looks.wrapping_add(1);
            pause(looks);
        }
    }
}

/// Leaves the gate.
struct Leaving<'s>(&'s Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_sub(1, Ordering::Release);
    }
}

/// Waits a moment; now and then other threads may run.
pub(crate) fn pause(looks: u32) {
    if looks.is_multiple_of(LOOKS) { thread::yield_now() } else { std::hint::spin_loop() }
}

impl Shared {
    /// A helper's life, which begins asleep: most jobs of little work never need it.
    fn help(&self, number: usize) {
        let mut done = 0;
        self.sleep(done);
        while self.wait(&mut done) {
            let _leaving = Leaving(self);
            // SAFETY: this thread is inside the gate, so the leader waits for it, with what the
            // pointer and the reference behind it point to.
            let work = unsafe { *self.work.load(Ordering::Acquire) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(number))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
    }

    /// Waits until this thread is inside, and says whether it is: not where the team ends. `done`
    /// is the number of the last work that it did.
    fn wait(&self, done: &mut u64) -> bool {
        let (mut looks, mut begin) = (0u32, Instant::now());
        loop {
            if self.ends.load(Ordering::Relaxed) {
                return false;
            }
            if self.enter(done) {
                return true;
            }
            looks = looks.wrapping_add(1);
            pause(looks);
            if looks.is_multiple_of(LOOKS) && begin.elapsed() > PATIENCE {
                self.sleep(*done);
                begin = Instant::now();
            }
        }
    }

    /// Whether there is work that was not done.
    fn is_new(gate: u64, done: u64) -> bool {
        gate & OPEN != 0 && gate >> NUMBER != done
    }

    fn enter(&self, done: &mut u64) -> bool {
        let gate = self.gate.load(Ordering::Relaxed);
        if !Shared::is_new(gate, *done) {
            return false;
        }
        let entered = self.gate.compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if entered {
            *done = gate >> NUMBER;
        }
        entered
    }

    /// Sleeps until there is work, or was while this thread woke up: more may follow.
    fn sleep(&self, done: u64) {
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let before = self.gate.load(Ordering::SeqCst);
        let is_idle = |gate: u64| gate >> NUMBER == before >> NUMBER && !Shared::is_new(gate, done);
        while !self.ends.load(Ordering::SeqCst) && is_idle(self.gate.load(Ordering::SeqCst)) {
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes those that sleep.
    fn ring(&self) {
        let _bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.bell.notify_all();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cpu::threads::Threads;
    use std::sync::Barrier;

    /// Runs `f` where so many threads are awake.
    pub fn with_threads<R>(threads: usize, f: impl FnOnce() -> R) -> R {
        let all = Barrier::new(threads);
        team(threads).lead(|| {
            Threads(threads).for_each(usize::MAX, vec![(); threads], |()| {
                all.wait();
            });
            f()
        })
    }

    fn team(threads: usize) -> Team {
        Team::new(threads, |number| format!("helper {number}")).expect("threads")
    }

    #[test]
    fn work_is_done_by_those_that_come() {
        let mut team = team(3);
        let sum = AtomicUsize::new(0);
        for round in 0..20_000 {
            if round % 5_000 == 0 {
                thread::sleep(PATIENCE * 3);
            }
            let rest = AtomicUsize::new(8);
            team.lead(|| {
                Taken::take().expect("a team").run(&|number| {
                    assert!(number < 3 && Taken::take().is_none(), "nobody leads while work is done");
                    while rest.fetch_update(Ordering::AcqRel, Ordering::Acquire, |rest| rest.checked_sub(1)).is_ok() {
                        sum.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
        }
        assert_eq!(sum.into_inner(), 8 * 20_000);
        assert!(Taken::take().is_none(), "a team is led inside `lead`");
    }

    #[test]
    fn a_panic_reaches_the_leader() {
        let mut team = team(2);
        for panics in [0, 1] {
            let both = Barrier::new(2);
            let run = || {
                Taken::take().expect("a team").run(&|number| {
                    both.wait();
                    assert_ne!(number, panics, "on purpose");
                })
            };
            let outcome = team.lead(|| catch_unwind(AssertUnwindSafe(run)));
            let panic = outcome.expect_err("a panic");
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(text.contains("on purpose"), "{text}");
            team.lead(|| Taken::take().expect("a team").run(&|_| ()));
        }
    }
}
