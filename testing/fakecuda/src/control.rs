//! What a test asks of the software CUDA that its process has loaded. Without one, on a machine
//! with GPUs, there is nothing to begin anew, and nothing was seen.
#![allow(unsafe_code, reason = "the library is one of C")]

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

/// The library that stands for the driver.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let open = || {
        // SAFETY: the driver's code, or that of this crate, is trusted.
        let library = unsafe { Library::new("libcuda.so") }.ok()?;
        // SAFETY: the symbol is not called.
        let is_software = unsafe { library.get::<unsafe extern "C" fn()>(b"fake_reset") }.is_ok();
        is_software.then_some(library)
    };
    LIBRARY.get_or_init(open).as_ref()
}

/// Whether CUDA is the software one.
pub fn is_software() -> bool {
    library().is_some()
}

/// Begins a new world, in which work is done in the order of a seed.
pub fn reset(seed: u64) {
    let Some(library) = library() else { return };
    // SAFETY: the function is this crate's, of that type.
    if let Ok(reset) = unsafe { library.get::<unsafe extern "C" fn(u64) -> u32>(b"fake_reset") } {
        // SAFETY: it takes a number.
        unsafe { reset(seed) };
    }
}

/// Sets a setting, for the worlds that follow.
pub fn set(name: &str, value: &str) {
    let Some(library) = library() else { return };
    let ([Ok(name), Ok(value)], Ok(set)) = (
        [name, value].map(CString::new),
        // SAFETY: the function is this crate's, of that type.
        unsafe { library.get::<unsafe extern "C" fn(*const c_char, *const c_char) -> u32>(b"fake_set") },
    ) else {
        return;
    };
    // SAFETY: it takes two texts.
    unsafe { set(name.as_ptr(), value.as_ptr()) };
}

/// What was found to be wrong, a line each.
pub fn reports() -> String {
    text(b"fake_reports")
}

/// What the devices were told, a [`crate::trace::Row`] a line.
pub fn trace() -> String {
    text(b"fake_trace")
}

fn text(name: &[u8]) -> String {
    let Some(library) = library() else { return String::new() };
    // SAFETY: the functions are this crate's, of that type.
    let give: Symbol<'_, unsafe extern "C" fn(*mut c_char, usize) -> usize> = match unsafe { library.get(name) } {
        Ok(give) => give,
        Err(_) => return String::new(),
    };
    let mut room: Vec<u8> = vec![];
    loop {
        // SAFETY: it writes as many bytes as there is room for, and gives how many there are.
        let length = unsafe { give(room.as_mut_ptr().cast(), room.len()) };
        if length <= room.len() {
            room.truncate(length);
            return String::from_utf8_lossy(&room).into_owned();
        }
        room = vec![0u8; length];
    }
}
