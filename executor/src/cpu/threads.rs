//! The threads of one rank.

use crate::cpu::team::{Taken, Team};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// How many threads a rank has. They are there where a [`Team`] is led; a
/// rank with a single thread needs none.
///
/// How work is cut into items may depend on this number, what an item computes may not.
#[derive(Debug, Clone, Copy)]
pub struct Threads(pub usize);

/// Work (in simple vector operations on one element, of which a core does about 20 in a nanosecond)
/// below which telling another thread of it costs more than it saves.
const WORTH_SHARING: usize = 60_000;

impl Threads {
    /// Into how many parts to cut work of that size.
    pub fn parts(self, work: usize) -> usize {
        if self.0 == 1 || work < WORTH_SHARING { 1 } else { (work / (WORTH_SHARING / 4)).min(self.0 * 4) }
    }

    /// Runs `f` on every item; on several threads if the whole `work` is worth it. A thread begins
    /// with its share of the items, whose data may still be near it, and goes on with those of
    /// others.
    pub fn for_each<I: Send>(self, work: usize, items: Vec<I>, f: impl Fn(I) + Sync) {
        let is_shared = self.0 > 1 && items.len() > 1 && work >= WORTH_SHARING;
        let Some(team) = is_shared.then(Taken::take).flatten() else {
            items.into_iter().for_each(f);
            return;
        };
        let items: Vec<Mutex<Option<I>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
        let threads = team.threads();
        let begin = |thread: usize| thread * items.len() / threads;
        let next: Vec<AtomicUsize> = (0..threads).map(|thread| AtomicUsize::new(begin(thread))).collect();
        team.run(&|number| {
            for share in (number..threads).chain(0..number) {
                let taken = || next[share].fetch_add(1, Ordering::Relaxed);
                for item in std::iter::repeat_with(taken).take_while(|item| *item < begin(share + 1)) {
                    let item = items[item].lock().unwrap_or_else(PoisonError::into_inner).take();
                    item.into_iter().for_each(&f);
                }
            }
        });
    }
}

/// Runs `f` on every item, by as many threads as the machine has cores. Where the system gives
/// none, this one does all.
pub fn by_all_cores<I: Send>(items: Vec<I>, f: impl Fn(I) + Sync) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    match Team::new(threads, |helper| format!("core {helper}")) {
        Ok(mut team) => team.lead(|| Threads(threads).for_each(usize::MAX, items, f)),
        Err(_) => items.into_iter().for_each(f),
    }
}
