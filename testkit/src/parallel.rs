//! Independent jobs over all cores, each taken when a thread is free.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, Builder};

/// What `job` gives for each number below `count`, in their order. A panic of a job is the
/// caller's. There are two threads for each core, as a job may wait for ranks or for a process.
pub fn map<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = 2 * thread::available_parallelism().map_or(1, |n| n.get());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = vec![];
        loop {
            let number = next.fetch_add(1, Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, job(number)));
        }
    };
    // A panic is told with the name of the test, and folders may be named after it.
    let name = thread::current().name().unwrap_or("parallel").to_string();
    let mut all: Vec<(usize, T)> = thread::scope(|scope| {
        let thread = || Builder::new().name(name.clone()).spawn_scoped(scope, work).expect("a thread starts");
        let threads: Vec<_> = (0..threads.min(count)).map(|_| thread()).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|why| resume_unwind(why))).collect()
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, one)| one).collect()
}
