//! The functions that C sees. Everything behind them is safe Rust, and no panic leaves them.
#![allow(unsafe_code, reason = "callers speak C")]

mod control;
mod cublaslt;
mod device;
pub mod host;
mod memory;
mod nccl;
mod nvrtc;
mod work;

use crate::codes::Answer;
use crate::world::lock;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Declares functions that give a code: 0 where the body gives `Ok`, `$panic` where it panics.
/// `FAKE_CUDA_FAULT` knows them by their names.
macro_rules! functions {
    ($panic:expr; $($name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, clippy::missing_safety_doc, reason = "some functions read no pointer")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: callers pass what CUDA's manual says of the function of this name.
            crate::c::guarded(stringify!($name), $panic, move || unsafe { $body })
        }
    )* };
}
use functions;

/// Runs the body of a function.
fn guarded(name: &str, panic: u32, body: impl FnOnce() -> Answer) -> u32 {
    let body = || {
        if crate::settings::text("FAULT").is_some() {
            let fault = lock().fault(name);
            if let Some(code) = fault {
                lock().report(format!("fault {code} of {name} was asked for"));
                return Err(code);
            }
        }
        body()
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => {
            lock().report(format!("a fault of the fake itself in {name}"));
            panic
        }
    }
}

/// Writes what a function gives.
///
/// # Safety
/// The pointer is null, or to a place for one.
unsafe fn put<T>(to: *mut T, value: T, missing: u32) -> Answer {
    if to.is_null() {
        return Err(missing);
    }
    // SAFETY: as above; `T` may lie at any address.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// A text of C.
///
/// # Safety
/// The pointer is null, or to a text that ends with a zero byte.
unsafe fn text(from: *const std::ffi::c_char, missing: u32) -> Result<String, u32> {
    if from.is_null() {
        return Err(missing);
    }
    // SAFETY: as above.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy().into_owned())
}
