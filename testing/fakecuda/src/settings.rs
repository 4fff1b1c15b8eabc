//! Settings: variables of the environment, and what a test sets while it runs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

static SET: Mutex<Option<HashMap<String, String>>> = Mutex::new(None);

/// The value of `FAKE_CUDA_` and `name`.
pub fn text(name: &str) -> Option<String> {
    let set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    let found = set.as_ref().and_then(|set| set.get(name).cloned());
    found.or_else(|| std::env::var(format!("FAKE_CUDA_{name}")).ok()).filter(|value| !value.is_empty())
}

/// The same as a number; `or` where there is none.
pub fn number(name: &str, or: u64) -> u64 {
    text(name).and_then(|value| value.trim().parse().ok()).unwrap_or(or)
}

/// Puts a value in place of the environment's; an empty one is none.
pub fn set(name: &str, value: &str) {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    set.get_or_insert_default().insert(name.into(), value.into());
}

/// The devices that there are.
pub fn devices() -> usize {
    number("DEVICES", 2) as usize
}

/// The bytes of memory of each device.
pub fn memory() -> u64 {
    number("MEMORY", 1 << 30)
}

/// The architecture of every device: 90 for `sm_90`.
pub fn architecture() -> i32 {
    number("ARCH", 90) as i32
}
