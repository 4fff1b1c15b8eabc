//! The driver: streams, events, modules, launches, captures and graphs.
#![allow(non_snake_case, reason = "names are CUDA's")]

use super::{functions, host, put, text};
use crate::capture::Mode;
use crate::codes::{
    Answer, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_READY, UNKNOWN,
};
use crate::kernel::{Launch, SHARED};
use crate::stream::Event;
use crate::thread;
use crate::world::{drive, lock, pass};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// That a stream may be asked or waited for.
fn not_captured(stream: u64, what: &str) -> Answer {
    let mut world = lock();
    if let Some(capture) = world.streams.get(&stream).and_then(|stream| stream.capture) {
        world.invalidate(capture);
        return world.refuse(CAPTURE_UNSUPPORTED, format!("a captured stream is {what}"));
    }
    world.allowed(&format!("a stream is {what}"))
}

/// An event that may be asked or waited for.
fn event_of(handle: u64, what: &str) -> Result<Event, u32> {
    let mut world = lock();
    let event = world.events.get(&handle).cloned().ok_or(INVALID_HANDLE)?;
    if let Some(capture) = event.capture {
        world.invalidate(capture);
        return world.refuse(CAPTURED_EVENT, format!("an event of a capture is {what}"));
    }
    Ok(event)
}

fn new_stream(stream: *mut u64, flags: c_uint) -> Answer {
    let device = thread::device()?;
    let mut world = lock();
    world.healthy(device)?;
    let new = world.new_stream(device, flags & 1 == 0);
    // SAFETY: the caller gave a place for one.
    unsafe { put(stream, new, INVALID_VALUE) }
}

functions! { UNKNOWN;
    cuStreamCreate(stream: *mut u64, flags: c_uint) {
        new_stream(stream, flags)
    }
    cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, _priority: c_int) {
        new_stream(stream, flags)
    }
    cuStreamDestroy_v2(stream: u64) {
        let mut world = lock();
        if let Some(capture) = world.streams.get(&stream).and_then(|stream| stream.capture) {
            world.invalidate(capture);
        }
        let found = world.streams.get_mut(&stream).filter(|stream| !stream.is_destroyed).ok_or(INVALID_HANDLE)?;
        found.is_destroyed = true;
        Ok(())
    }
    cuStreamSynchronize(stream: u64) {
        let stream = lock().resolve(stream)?;
        not_captured(stream, "waited for")?;
        let device = thread::device()?;
        let (mut world, answer) =
            drive(lock(), device, |world| world.streams.get(&stream).is_none_or(|stream| stream.is_idle()));
        answer?;
        let clock = world.streams.get(&stream).ok_or(INVALID_HANDLE)?.clock.clone();
        world.waited(device, &clock);
        Ok(())
    }
    cuStreamQuery(stream: u64) {
        let stream = lock().resolve(stream)?;
        not_captured(stream, "asked")?;
        let device = thread::device()?;
        let mut world = pass(lock());
        world.healthy(device)?;
        let found = world.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        if !found.is_idle() {
            return Err(NOT_READY);
        }
        let clock = found.clock.clone();
        world.seen(device, &clock);
        Ok(())
    }
    cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        world.wait(stream, event)
    }
    cuEventCreate(event: *mut u64, _flags: c_uint) {
        thread::device()?;
        let mut world = lock();
        let new = world.id();
        world.events.insert(new, Event::default());
        put(event, new, INVALID_VALUE)
    }
    cuEventDestroy_v2(event: u64) {
        lock().events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    }
    cuEventRecord(event: u64, stream: u64) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        world.record(event, stream)
    }
    cuEventQuery(event: u64) {
        let event = event_of(event, "asked")?;
        lock().allowed("an event is asked")?;
        if event.mark == 0 {
            return Ok(());
        }
        let mut world = pass(lock());
        world.healthy(event.device)?;
        if world.pending.contains(&event.mark) {
            return Err(NOT_READY);
        }
        world.seen(event.device, &event.clock);
        Ok(())
    }
    cuEventSynchronize(event: u64) {
        let event = event_of(event, "waited for")?;
        lock().allowed("an event is waited for")?;
        if event.mark == 0 {
            return Ok(());
        }
        let (mut world, answer) = drive(lock(), event.device, |world| !world.pending.contains(&event.mark));
        answer?;
        world.waited(event.device, &event.clock);
        Ok(())
    }
    cuEventElapsedTime_v2(milliseconds: *mut f32, start: u64, end: u64) {
        for event in [start, end] {
            let mark = event_of(event, "asked")?.mark;
            if mark == 0 {
                return Err(INVALID_HANDLE);
            }
            if lock().pending.contains(&mark) {
                return Err(NOT_READY);
            }
        }
        put(milliseconds, 1.0, INVALID_VALUE)
    }
    cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) {
        match cuEventElapsedTime_v2(milliseconds, start, end) {
            0 => Ok(()),
            code => Err(code),
        }
    }
    cuModuleLoadData(module: *mut u64, image: *const c_void) {
        let device = thread::device()?;
        let mut world = lock();
        world.allowed("a module is loaded")?;
        if let Some(code) = world.fault("module") {
            return world.refuse(code, format!("fault {code} of a module was asked for"));
        }
        // Byte by byte, as foreign data may be shorter.
        let mark = crate::nvrtc::MARK;
        if image.is_null() || (0..mark.len()).any(|i| host::read(image as u64 + i as u64, 1) != mark[i..=i]) {
            return world.refuse(INVALID_IMAGE, "a module that this NVRTC has not made".into());
        }
        let length = host::read(image as u64 + mark.len() as u64, 8);
        let length = length.try_into().map(u64::from_le_bytes).map_err(|_| INVALID_IMAGE)?;
        let text = String::from_utf8_lossy(&host::read(image as u64 + mark.len() as u64 + 8, length)).into_owned();
        match world.load(device, &text) {
            Ok(new) => put(module, new, INVALID_VALUE),
            Err(why) => world.refuse(INVALID_IMAGE, why),
        }
    }
    cuModuleUnload(module: u64) {
        let mut world = lock();
        world.allowed("a module is unloaded")?;
        world.unload(module)
    }
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) {
        let found = lock().function(module, &text(name, INVALID_VALUE)?)?;
        put(function, found, INVALID_VALUE)
    }
    cuFuncSetAttribute(function: u64, attribute: c_uint, value: c_int) {
        let mut world = lock();
        let function = world.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        // `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
        if attribute == 8 {
            function.most_shared = u32::try_from(value).ok().filter(|value| *value <= SHARED[1]).ok_or(INVALID_VALUE)?;
        }
        Ok(())
    }
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: u64) {
        let world = lock();
        let function = world.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let found = match attribute {
            0 => function.entry.threads as c_int,
            4 => 32,
            5 | 6 => crate::settings::architecture(),
            8 => function.most_shared as c_int,
            _ => 0,
        };
        put(value, found, INVALID_VALUE)
    }
    cuLaunchKernel(
        function: u64,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint,
        stream: u64,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        let found = world.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let (entry, module) = (found.entry.clone(), found.module);
        let count = entry.operands.len() + entry.numbers;
        if parameters.is_null() && count > 0 {
            return Err(INVALID_VALUE);
        }
        let mut words = Vec::with_capacity(count);
        for i in 0..count {
            words.push((*parameters.add(i)).cast::<u64>().read_unaligned());
        }
        let numbers = words.split_off(entry.operands.len()).into_iter().map(|word| word as i64).collect();
        let launch = Launch {
            entry,
            module,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared,
            pointers: words,
            numbers,
        };
        world.launch(function, stream, launch)
    }
    cuStreamBeginCapture_v2(stream: u64, mode: c_uint) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        let mode = match mode {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(INVALID_VALUE),
        };
        world.begin_capture(stream, mode)
    }
    cuStreamEndCapture(stream: u64, graph: *mut u64) {
        put(graph, 0, INVALID_VALUE)?;
        let mut world = lock();
        let stream = world.resolve(stream)?;
        put(graph, world.end_capture(stream)?, INVALID_VALUE)
    }
    cuStreamIsCapturing(stream: u64, status: *mut c_uint) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        let capture = world.streams.get(&stream).and_then(|stream| stream.capture);
        let is_invalid = capture.and_then(|capture| world.captures.get(&capture)).map(|capture| capture.is_invalid);
        put(status, is_invalid.map_or(0, |is_invalid| 1 + c_uint::from(is_invalid)), INVALID_VALUE)
    }
    cuGraphInstantiateWithFlags(executable: *mut u64, graph: u64, _flags: u64) {
        let new = lock().instantiate(graph)?;
        put(executable, new, INVALID_VALUE)
    }
    cuGraphUpload(executable: u64, stream: u64) {
        let mut world = lock();
        world.resolve(stream)?;
        world.executables.contains_key(&executable).then_some(()).ok_or(INVALID_HANDLE)
    }
    cuGraphLaunch(executable: u64, stream: u64) {
        let mut world = lock();
        let stream = world.resolve(stream)?;
        world.launch_graph(executable, stream)
    }
    cuGraphExecDestroy(executable: u64) {
        lock().executables.remove(&executable).map(|_| ()).ok_or(INVALID_HANDLE)
    }
    cuGraphDestroy(graph: u64) {
        lock().graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
