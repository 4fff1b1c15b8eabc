//! What the library keeps for each thread of the host: its number and its current device.

use crate::codes::INVALID_CONTEXT;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static DEVICE: Cell<Option<usize>> = const { Cell::new(None) };
    static NUMBER: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// The thread's number.
pub fn number() -> u64 {
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

/// The device whose context is current, else the error of a call that needs one.
pub fn device() -> Result<usize, u32> {
    current().ok_or(INVALID_CONTEXT)
}

/// The device whose context is current.
pub fn current() -> Option<usize> {
    DEVICE.try_with(Cell::get).unwrap_or(None)
}

/// Makes a device's context current.
pub fn set_current(device: Option<usize>) {
    // A thread that ends has no current device.
    let _ = DEVICE.try_with(|current| current.set(device));
}
