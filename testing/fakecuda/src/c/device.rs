//! The driver: initialisation, devices, contexts, names of errors.
#![allow(non_snake_case, reason = "names are CUDA's")]

use super::{functions, put};
use crate::codes::{INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NAMES, NO_DEVICE, UNKNOWN};
use crate::world::{drive, lock};
use crate::{kernel, settings, thread};
use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Handles of contexts: that of device `d` is this and `d`.
const CONTEXT: u64 = 0xc0_0000;

fn ordinal(device: c_int) -> Result<usize, u32> {
    usize::try_from(device).ok().filter(|device| *device < settings::devices()).ok_or(INVALID_DEVICE)
}

/// A context's device; the null context is none.
fn of_context(context: u64) -> Result<Option<usize>, u32> {
    if context == 0 {
        return Ok(None);
    }
    let device = context.checked_sub(CONTEXT).map(|device| device as usize).filter(|device| *device < settings::devices());
    let device = device.ok_or(INVALID_CONTEXT)?;
    match lock().devices.get(&device).is_some_and(|device| device.retained > 0) {
        true => Ok(Some(device)),
        false => Err(INVALID_CONTEXT),
    }
}

/// `CUdevice_attribute`
fn attribute(number: c_uint) -> c_int {
    match number {
        1..=4 => [1024, 1024, 1024, 64][number as usize - 1],
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => kernel::SHARED[0] as c_int,
        10 => 32,
        12 | 82 => 65_536,
        13 => 1_000_000,
        16 => 132,
        36 => 2_000_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        40 => 3,
        41 => 1,
        75 => settings::architecture() / 10,
        76 => settings::architecture() % 10,
        81 => 228 << 10,
        97 => kernel::SHARED[1] as c_int,
        _ => 0,
    }
}

functions! { UNKNOWN;
    cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if settings::devices() == 0 { Err(NO_DEVICE) } else { Ok(()) }
    }
    cuDriverGetVersion(version: *mut c_int) {
        put(version, settings::number("DRIVER_VERSION", 13_000) as c_int, INVALID_VALUE)
    }
    cuDeviceGetCount(count: *mut c_int) {
        put(count, settings::devices() as c_int, INVALID_VALUE)
    }
    cuDeviceGet(device: *mut c_int, number: c_int) {
        put(device, ordinal(number)? as c_int, INVALID_VALUE)
    }
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) {
        ordinal(device)?;
        for (i, byte) in b"Fake GPU\0".iter().enumerate().take(length.max(0) as usize) {
            put(name.add(i), *byte as c_char, INVALID_VALUE)?;
        }
        Ok(())
    }
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        ordinal(device)?;
        put(bytes, settings::memory() as usize, INVALID_VALUE)
    }
    cuDeviceGetAttribute(value: *mut c_int, number: c_uint, device: c_int) {
        let device = ordinal(device)?;
        // Each is alone on its bus.
        put(value, if number == 33 { device as c_int + 1 } else { attribute(number) }, INVALID_VALUE)
    }
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let mut bytes = *b"fake cuda gpu   ";
        bytes[15] = ordinal(device)? as u8;
        put(uuid, bytes, INVALID_VALUE)
    }
    cuDeviceGetPCIBusId(name: *mut c_char, length: c_int, device: c_int) {
        let text = format!("0000:{:02X}:00.0\0", ordinal(device)? + 1);
        for (i, byte) in text.bytes().enumerate().take(length.max(0) as usize) {
            put(name.add(i), byte as c_char, INVALID_VALUE)?;
        }
        Ok(())
    }
    cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) {
        let device = ordinal(device)?;
        lock().devices.entry(device).or_default().retained += 1;
        put(context, CONTEXT + device as u64, INVALID_VALUE)
    }
    cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let device = ordinal(device)?;
        let mut world = lock();
        let Some(retained) = world.devices.get_mut(&device).filter(|device| device.retained > 0) else {
            return world.refuse(INVALID_CONTEXT, "a primary context is released that nobody retains".into());
        };
        retained.retained -= 1;
        if retained.retained == 0 {
            let (mut world, answer) = drive(world, device, |world| {
                world.streams.values().all(|stream| stream.device != device || stream.is_idle())
            });
            world.memory.forget(device);
            world.streams.retain(|_, stream| stream.device != device);
            world.devices.remove(&device);
            return answer;
        }
        Ok(())
    }
    cuCtxSetCurrent(context: u64) {
        thread::set_current(of_context(context)?);
        Ok(())
    }
    cuCtxGetCurrent(context: *mut u64) {
        put(context, thread::current().map_or(0, |device| CONTEXT + device as u64), INVALID_VALUE)
    }
    cuCtxGetDevice(device: *mut c_int) {
        put(device, thread::device()? as c_int, INVALID_VALUE)
    }
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        put(least, 0, INVALID_VALUE)?;
        put(greatest, -5, INVALID_VALUE)
    }
    cuCtxSynchronize() {
        let device = thread::device()?;
        let mut world = lock();
        world.allowed("all streams are waited for")?;
        let (mut world, answer) = drive(world, device, |world| {
            world.streams.values().all(|stream| stream.device != device || stream.is_idle())
        });
        answer?;
        let mut clock = crate::clock::Clock::default();
        world.streams.values().filter(|stream| stream.device == device).for_each(|stream| clock.join(&stream.clock));
        world.waited(device, &clock);
        Ok(())
    }
    cuGetErrorName(code: c_uint, name: *mut *const c_char) {
        put(name, told(code).0, INVALID_VALUE)
    }
    cuGetErrorString(code: c_uint, name: *mut *const c_char) {
        put(name, told(code).1, INVALID_VALUE)
    }
}

/// The name of a code and what it means, as texts of C that live on.
fn told(code: u32) -> (*const c_char, *const c_char) {
    type Texts = std::collections::HashMap<u32, [CString; 2]>;
    static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let [name, meaning] = texts.entry(code).or_insert_with(|| {
        let known = NAMES.iter().find(|(known, ..)| *known == code);
        let (name, meaning) = known.map_or(("CUDA_ERROR", "unknown error"), |(_, name, meaning)| (name, meaning));
        [name, meaning].map(|text| CString::new(text).unwrap_or_default())
    });
    (name.as_ptr(), meaning.as_ptr())
}
