//! NVRTC.
#![allow(non_snake_case, reason = "names are NVIDIA's")]

use super::{functions, host, put, text};
use crate::nvrtc::{ARCHITECTURES, INVALID_INPUT, INVALID_PROGRAM, Program, VERSION};
use crate::world::lock;
use std::ffi::{c_char, c_int};

/// `NVRTC_ERROR_INTERNAL_ERROR`
const INTERNAL: u32 = 11;

/// What a program has, by a function of it.
fn of<T>(program: u64, get: impl FnOnce(&Program) -> Option<T>) -> Result<T, u32> {
    lock().programs.get(&program).and_then(get).ok_or(INVALID_PROGRAM)
}

/// A text with the zero byte behind it.
fn with_end(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}

functions! { INTERNAL;
    nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        put(major, VERSION[0], INVALID_INPUT)?;
        put(minor, VERSION[1], INVALID_INPUT)
    }
    nvrtcGetNumSupportedArchs(count: *mut c_int) {
        put(count, ARCHITECTURES.len() as c_int, INVALID_INPUT)
    }
    nvrtcGetSupportedArchs(archs: *mut c_int) {
        for (i, arch) in ARCHITECTURES.iter().enumerate() {
            put(archs.add(i), *arch, INVALID_INPUT)?;
        }
        Ok(())
    }
    nvrtcCreateProgram(
        program: *mut u64,
        source: *const c_char,
        _name: *const c_char,
        _headers: c_int,
        _texts: *const *const c_char,
        _names: *const *const c_char,
    ) {
        let source = text(source, INVALID_INPUT)?;
        put(program, lock().new_program(source), INVALID_INPUT)
    }
    nvrtcCompileProgram(program: u64, count: c_int, options: *const *const c_char) {
        let mut given = vec![];
        for i in 0..count.max(0) as usize {
            given.push(text(options.add(i).read(), INVALID_INPUT)?);
        }
        lock().programs.get_mut(&program).ok_or(INVALID_PROGRAM)?.compile(&given)
    }
    nvrtcDestroyProgram(program: *mut u64) {
        let handle = if program.is_null() { 0 } else { program.read() };
        lock().programs.remove(&handle).ok_or(INVALID_PROGRAM)?;
        put(program, 0, INVALID_PROGRAM)
    }
    nvrtcGetProgramLogSize(program: u64, bytes: *mut usize) {
        put(bytes, of(program, |program| Some(program.log.len() + 1))?, INVALID_INPUT)
    }
    nvrtcGetProgramLog(program: u64, log: *mut c_char) {
        host::write(log as u64, &with_end(&of(program, |program| Some(program.log.clone()))?));
        Ok(())
    }
    nvrtcGetPTXSize(program: u64, bytes: *mut usize) {
        put(bytes, of(program, |program| program.ptx().map(|ptx| ptx.len() + 1))?, INVALID_INPUT)
    }
    nvrtcGetPTX(program: u64, to: *mut c_char) {
        host::write(to as u64, &with_end(&of(program, |program| program.ptx().map(str::to_string))?));
        Ok(())
    }
    nvrtcGetCUBINSize(program: u64, bytes: *mut usize) {
        put(bytes, of(program, |program| program.cubin.as_ref().map(Vec::len))?, INVALID_INPUT)
    }
    nvrtcGetCUBIN(program: u64, to: *mut c_char) {
        host::write(to as u64, &of(program, |program| program.cubin.clone())?);
        Ok(())
    }
}

/// The name of a code.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(code: u32) -> *const c_char {
    let name = match code {
        0 => c"NVRTC_SUCCESS",
        3 => c"NVRTC_ERROR_INVALID_INPUT",
        4 => c"NVRTC_ERROR_INVALID_PROGRAM",
        5 => c"NVRTC_ERROR_INVALID_OPTION",
        6 => c"NVRTC_ERROR_COMPILATION",
        11 => c"NVRTC_ERROR_INTERNAL_ERROR",
        _ => c"NVRTC_ERROR unknown",
    };
    name.as_ptr()
}
