//! Ends that depend on nobody: what leaves NVIDIA's libraries gets some seconds, and then the
//! process ends without them.
#![allow(unsafe_code, reason = "a process ends at once by a call of the system")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a communicator may take to end: then another rank is dead, or the network.
const PATIENCE: Duration = Duration::from_secs(5);

/// The exit code of the machine's failures.
const MACHINE: i32 = 3;

/// Does `leave`, or ends the process with `message` and the exit code of the machine's failures
/// where that does not come back.
pub fn within_patience(message: String, leave: impl FnOnce()) {
    let (done, waits) = mpsc::channel::<()>();
    let watch = thread::Builder::new().name("watchdog".into()).spawn(move || {
        if waits.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("error: {message}");
            end();
        }
    });
    leave();
    drop(done);
    if let Ok(watch) = watch {
        // It only waits for the channel.
        let _ = watch.join();
    }
}

/// Ends the process at once: libraries have functions that run at an ordinary end, which may hang.
fn end() -> ! {
    // SAFETY: the call takes a number, and does not come back.
    unsafe { libc::_exit(MACHINE) }
}
