//! What ends a process early. Of Ctrl-C the first asks the work to end after the current step, the second ends the process.

use super::foot;
use super::output::note;
use crate::failure::Failure;
use signal_hook::consts::SIGABRT;
use signal_hook::flag;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// The exit code of a failure of the machine.
const MACHINE: i32 = 3;

/// Set after the first Ctrl-C.
pub fn requested() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            foot::end();
            process::exit(INTERRUPTED);
        }
        note("stopping after this step; press Ctrl-C again to abort");
    };
    ctrlc::set_handler(handler).map_err(|e| Failure::Machine(format!("cannot watch for Ctrl-C: {e}")))?;
    Ok(stop)
}

/// Where memory lacks, the allocator says how much, and aborts: from now on that ends as a failure of the machine does.
pub fn end_without_memory() {
    let always = Arc::new(AtomicBool::new(true));
    // Without it only the exit code would be another.
    let _ = flag::register_conditional_shutdown(SIGABRT, MACHINE, always);
}
