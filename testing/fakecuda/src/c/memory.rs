//! The driver: memory, and copies.
#![allow(non_snake_case, reason = "names are CUDA's")]

use super::{functions, host, put};
use crate::codes::{Answer, CAPTURE_UNSUPPORTED, INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN};
use crate::work::{End, Work};
use crate::world::{Guard, drive, lock};
use crate::{settings, thread};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// Waits for a stream, as a call does whose bytes are the host's.
fn finish(world: Guard, stream: u64) -> Answer {
    let device = thread::device()?;
    let (mut world, answer) = drive(world, device, |world| world.streams.get(&stream).is_none_or(|s| s.is_idle()));
    answer?;
    if let Some(clock) = world.streams.get(&stream).map(|stream| stream.clock.clone()) {
        world.waited(device, &clock);
    }
    Ok(())
}

/// A copy to the device. Pageable memory is taken at once, pinned memory when the copy happens.
fn to_device(to: u64, from: u64, bytes: u64, stream: u64, waits: bool) -> Answer {
    let mut world = lock();
    let stream = world.resolve(stream)?;
    if waits {
        world.allowed("a copy is waited for")?;
    }
    if bytes == 0 {
        return Ok(());
    }
    if world.memory.is_of_a_device(from) {
        return world.refuse(INVALID_VALUE, "a copy to the device comes from an address of the device".into());
    }
    let is_pinned = world.memory.pinned(from).is_some();
    if !is_pinned && world.streams.get(&stream).is_some_and(|s| s.capture.is_some()) {
        world.allowed("a copy from pageable memory is asked for")?;
        return world.refuse(CAPTURE_UNSUPPORTED, "a copy from pageable memory in a capture".into());
    }
    let from = if is_pinned { End::Pinned(from) } else { End::Taken(Arc::new(host::read(from, bytes))) };
    world.enqueue(stream, Work::Copy { to: End::Device(to), from, bytes })?;
    if waits && is_pinned { finish(world, stream) } else { Ok(()) }
}

/// A copy to the host. Pageable memory is waited for.
fn to_host(to: u64, from: u64, bytes: u64, stream: u64, waits: bool) -> Answer {
    let mut world = lock();
    let stream = world.resolve(stream)?;
    if waits {
        world.allowed("a copy is waited for")?;
    }
    if bytes == 0 {
        return Ok(());
    }
    if world.memory.is_of_a_device(to) {
        return world.refuse(INVALID_VALUE, "a copy to the host goes to an address of the device".into());
    }
    let is_pinned = world.memory.pinned(to).is_some();
    let is_captured = world.streams.get(&stream).is_some_and(|s| s.capture.is_some());
    if !is_pinned && is_captured {
        world.allowed("a copy to pageable memory is asked for")?;
        return world.refuse(CAPTURE_UNSUPPORTED, "a copy to pageable memory in a capture".into());
    }
    let end = if is_pinned { End::Pinned(to) } else { End::Waiting(to) };
    world.enqueue(stream, Work::Copy { to: end, from: End::Device(from), bytes })?;
    if waits || !is_pinned { finish(world, stream) } else { Ok(()) }
}

fn on_device(to: u64, from: u64, bytes: u64, stream: u64) -> Answer {
    let mut world = lock();
    let stream = world.resolve(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    if let Some(at) = [to, from].into_iter().find(|at| !world.memory.is_of_a_device(*at)) {
        return world.refuse(INVALID_VALUE, format!("a copy on the device has the address {at:#x}, which is none of it"));
    }
    world.enqueue(stream, Work::Copy { to: End::Device(to), from: End::Device(from), bytes })
}

functions! { UNKNOWN;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let device = thread::device()?;
        let all = settings::memory();
        put(total, all as usize, INVALID_VALUE)?;
        put(free, all.saturating_sub(lock().memory.used(device)) as usize, INVALID_VALUE)
    }
    cuMemAlloc_v2(at: *mut u64, bytes: usize) {
        let device = thread::device()?;
        let mut world = lock();
        world.allowed("memory is allocated")?;
        world.healthy(device)?;
        if let Some(code) = world.fault("alloc") {
            return world.refuse(code, format!("fault {code} of an allocation was asked for"));
        }
        if bytes == 0 {
            return world.refuse(INVALID_VALUE, "an allocation of nothing".into());
        }
        let new = world.memory.allocate(device, bytes as u64, settings::memory()).ok_or(OUT_OF_MEMORY)?;
        put(at, new, INVALID_VALUE)
    }
    cuMemFree_v2(at: u64) {
        let device = thread::device()?;
        let mut world = lock();
        world.allowed("memory is freed")?;
        if at == 0 {
            return Ok(());
        }
        match world.memory.free(device, at) {
            Ok(()) => Ok(()),
            Err(why) => world.refuse(INVALID_VALUE, why),
        }
    }
    cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        thread::device()?;
        let mut world = lock();
        world.allowed("memory of the host is allocated")?;
        if let Some(code) = world.fault("host_alloc") {
            return world.refuse(code, format!("fault {code} of an allocation of the host was asked for"));
        }
        let new = host::allocate(bytes as u64).ok_or(OUT_OF_MEMORY)?;
        world.memory.pin(new, bytes as u64);
        put(at, new as *mut c_void, INVALID_VALUE)
    }
    cuMemFreeHost(at: *mut c_void) {
        let mut world = lock();
        world.allowed("memory of the host is freed")?;
        match world.memory.unpin(at as u64) {
            Some(bytes) => {
                host::free(at as u64, bytes);
                Ok(())
            }
            None => world.refuse(INVALID_VALUE, "memory of the host is freed that is not pinned".into()),
        }
    }
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        to_device(to, from as u64, bytes as u64, 0, true)
    }
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        to_host(to as u64, from, bytes as u64, 0, true)
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) {
        to_device(to, from as u64, bytes as u64, stream, false)
    }
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) {
        to_host(to as u64, from, bytes as u64, stream, false)
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        on_device(to, from, bytes as u64, stream)
    }
    cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: u64) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        world.enqueue(stream, Work::Set { to, value, bytes: bytes as u64 })
    }
}
