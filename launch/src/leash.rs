//! A process that a launcher has started ends with it: the launcher holds the other end of its
//! standard input, whatever ends the launcher.

use std::io::{self, Read};
use std::{env, process, thread};

/// The variable that says that standard input is such an end.
pub const LEASH: &str = "SHARDC_LEASH";

/// The exit code of a process whose launcher is gone.
const ALONE: i32 = 3;

/// Ends this process from now on when its launcher does, if it has one. To be called before the
/// work begins.
pub fn hold() {
    if env::var_os(LEASH).is_none() {
        return;
    }
    // A process that is stopped reads nothing; the system ends it all the same, where it can.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let wait = || {
        let mut input = io::stdin().lock();
        while input.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        process::exit(ALONE);
    };
    // Without the thread only the system ends it.
    let _ = thread::Builder::new().name("leash".to_string()).spawn(wait);
}
