//! Work shared by threads, its results in the order of its parts.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, Builder};

/// The compiler's memory grows with each thread.
const MOST: usize = 8;

/// The stack of a thread: as large as that of a program's first one, for which compilers are made.
const STACK: usize = 8 << 20;

/// `work` for each item, by as many threads as the machine has cores, but at most [`MOST`].
pub fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let run = |sender: mpsc::Sender<(usize, R)>| {
        while let Some((at, item)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, items.get(at)?))) {
            // The other end is there until all is done.
            let _ = sender.send((at, work(item)));
        }
    };
    thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..cores.min(MOST).min(items.len()) {
            let (run, sender) = (&run, sender.clone());
            let thread = Builder::new().name("nvrtc".to_string()).stack_size(STACK);
            started += usize::from(thread.spawn_scoped(scope, move || run(sender)).is_ok());
        }
        // Where the system gives no thread, this one does all.
        if started == 0 {
            run(sender.clone());
        }
    });
    drop(sender);
    let mut results: Vec<(usize, R)> = receiver.into_iter().collect();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
