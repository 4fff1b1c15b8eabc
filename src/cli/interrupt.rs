//! Early ends of a process. Of Ctrl-C and the signal that asks a process to end, the first asks the
//! work to end after the current step, the second ends the process. If memory lacks, the process
//! ends with words; a file that may not grow is an error like any other.

use super::failure::Failure;
use super::foot;
use super::output::note;
use shardc_ir::reason::Reason;
use signal_hook::consts::SIGABRT;
use signal_hook::flag;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver};

/// The signal that asked for the end, if one did so far.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    /// Watches from now on.
    ///
    /// # Errors
    /// If the machine lets nobody watch.
    pub fn watch() -> Result<Interrupt, Failure> {
        let received = Arc::new(AtomicI32::new(0));
        let first = received.clone();
        let handler = move |signal: i32| {
            if first.swap(signal, Ordering::Relaxed) != 0 {
                foot::end();
                process::exit(Failure::Interrupted(signal).code().into());
            }
            note("stopping after this step; press Ctrl-C again to abort");
        };
        watch(handler)?;
        Ok(Interrupt(received))
    }

    /// The number of the first signal, which is 0 until there was one.
    pub fn number(&self) -> Arc<AtomicI32> {
        self.0.clone()
    }

    /// The first signal, if there was one.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// All signals from now on, for who does with them what it wants.
///
/// # Errors
/// As [`Interrupt::watch`].
pub fn received() -> Result<Receiver<i32>, Failure> {
    let (sender, receiver) = mpsc::channel();
    watch(move |signal| {
        // Who no longer receives them is at its end.
        let _ = sender.send(signal);
    })?;
    Ok(receiver)
}

fn watch(handler: impl Fn(i32) + Send + 'static) -> Result<(), Failure> {
    on_signals(handler).map_err(|why| Failure::Machine(format!("cannot watch for Ctrl-C: {why}")))
}

/// A thread of its own takes the signals.
#[cfg(unix)]
fn on_signals(handler: impl Fn(i32) + Send + 'static) -> Result<(), Reason> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(|e| e.to_string())?;
    let work = move || signals.forever().for_each(handler);
    std::thread::Builder::new().name("signals".to_string()).spawn(work).map(drop).map_err(|e| e.to_string().into())
}

#[cfg(not(unix))]
fn on_signals(handler: impl Fn(i32) + Send + 'static) -> Result<(), Reason> {
    /// The number of Ctrl-C.
    const INTERRUPT: i32 = 2;
    ctrlc::set_handler(move || handler(INTERRUPT)).map_err(|e| e.to_string())
}

/// The exit code of a failure of the machine.
pub const MACHINE: i32 = 3;

/// If memory lacks, the allocator says how much, and aborts: from now on that ends as a failure of
/// the machine does.
pub fn end_without_memory() {
    let always = Arc::new(AtomicBool::new(true));
    // Without it only the exit code would be another.
    let _ = flag::register_conditional_shutdown(SIGABRT, MACHINE, always);
}

/// A write beyond the largest size that a file may have fails from now on, and ends nothing.
#[cfg(unix)]
pub fn survive_large_files() {
    // Without it a process under such a limit ends without words.
    let _ = flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

#[cfg(not(unix))]
pub fn survive_large_files() {}
