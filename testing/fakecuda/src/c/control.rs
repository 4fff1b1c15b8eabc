//! What tests call: a new world, what was found, what was done, settings.

use super::{functions, host, text};
use crate::world::{lock, reset};
use std::ffi::c_char;

/// Writes as much of a text as there is room for, and gives its whole length.
fn give(text: &str, to: *mut c_char, room: usize) -> usize {
    if !to.is_null() {
        host::write(to as u64, &text.as_bytes()[..text.len().min(room)]);
    }
    text.len()
}

functions! { 1;
    fake_reset(seed: u64) {
        reset(seed);
        Ok(())
    }
    fake_finish() {
        loop {
            let (world, has_moved) = crate::run::one(lock());
            if !has_moved && world.streams.values().all(|stream| !stream.is_running) {
                return if world.streams.values().all(|stream| stream.is_idle()) { Ok(()) } else { Err(1) };
            }
        }
    }
    fake_set(name: *const c_char, value: *const c_char) {
        crate::settings::set(&text(name, 1)?, &text(value, 1)?);
        Ok(())
    }
}

/// The text of all reports so far, a line each: its length, and as much of it as there is room for.
#[unsafe(no_mangle)]
pub extern "C" fn fake_reports(to: *mut c_char, room: usize) -> usize {
    give(&lock().reports.iter().map(|line| format!("{line}\n")).collect::<String>(), to, room)
}

/// The trace in the same way.
#[unsafe(no_mangle)]
pub extern "C" fn fake_trace(to: *mut c_char, room: usize) -> usize {
    give(&lock().trace.text(), to, room)
}
