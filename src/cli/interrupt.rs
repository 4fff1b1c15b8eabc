//! Ctrl-C: the first asks the work to end after the current step, the second ends the process.

use super::foot;
use super::output::note;
use crate::failure::Failure;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

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
