//! The functions that stand before those of the C library.
//!
//! `open` and its kin take the mode as an argument that may be missing: where it is, a register's
//! contents are handed on, and not looked at.
#![allow(unsafe_code, reason = "callers speak C")]
#![allow(clippy::missing_safety_doc, reason = "conditions are those of the manual's page of that name")]

use crate::c::{File, Real, code, fate, kill, set_errno};
use crate::settings::{Fate, How, Kind};
use libc::{AT_FDCWD, iovec, mode_t, off_t, size_t, ssize_t};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Declares functions, each with the names that the C library has for it. A body is the real call;
/// `half` tells it to move half of its bytes.
macro_rules! functions {
    ($([$($name:ident)+] $function:tt)*) => { $($(function! { $name $function })+)* };
}

macro_rules! function {
    ($name:ident { ($($argument:ident: $type:ty),*) -> $result:ty [$kind:ident, $is_read:expr, $($file:expr),+]
        fails $failed:expr; |$real:ident, $half:ident| $body:expr }) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static REAL: Real = Real::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name"),
            });
            // SAFETY: this is the function's type.
            let $real: unsafe extern "C" fn($($type),*) -> $result = unsafe { REAL.get() };
            // SAFETY: callers pass what the manual says, so that paths end with a zero byte.
            let fate = unsafe { fate(stringify!($name), Kind::$kind, $is_read, &[$($file),+]) };
            // SAFETY: the arguments are the caller's; half of the bytes are some of them.
            let call = |$half: bool| unsafe { $body };
            match fate {
                Fate::Passes => call(false),
                Fate::Fails(how) => $failed(code(how)),
                Fate::IsShort => call(true),
                Fate::Dies(How::Kill) => kill(),
                Fate::Dies(how) => {
                    call(how == How::KillWithin);
                    kill()
                }
            }
        }
    };
}

/// Fails as most functions do.
fn minus<T: From<i8>>(code: c_int) -> T {
    set_errno(code);
    T::from(-1)
}

/// Fails as the functions do that give their code.
fn given(code: c_int) -> c_int {
    code
}

fn nowhere(code: c_int) -> *mut c_void {
    set_errno(code);
    libc::MAP_FAILED
}

fn part(bytes: size_t, half: bool) -> size_t {
    if half { bytes.div_ceil(2) } else { bytes }
}

/// The arrays of which half of the bytes are moved, at least one.
fn arrays(count: c_int, half: bool) -> c_int {
    if half { (count + 1) / 2 } else { count }
}

fn only_reads(flags: c_int) -> bool {
    flags & (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) == 0
}

fn is_anonymous(flags: c_int) -> bool {
    flags & libc::MAP_ANONYMOUS != 0
}

functions! {
    [open open64] { (path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        [Whole, only_reads(flags), File::Named(AT_FDCWD, path)]
        fails minus; |real, _half| real(path, flags, mode) }
    [openat openat64] { (at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        [Whole, only_reads(flags), File::Named(at, path)]
        fails minus; |real, _half| real(at, path, flags, mode) }
    [write] { (fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t
        [Bytes, false, File::Open(fd)]
        fails minus; |real, half| real(fd, from, part(bytes, half)) }
    [pwrite pwrite64] { (fd: c_int, from: *const c_void, bytes: size_t, at: off_t) -> ssize_t
        [Bytes, false, File::Open(fd)]
        fails minus; |real, half| real(fd, from, part(bytes, half), at) }
    [writev] { (fd: c_int, from: *const iovec, count: c_int) -> ssize_t
        [Bytes, false, File::Open(fd)]
        fails minus; |real, half| real(fd, from, arrays(count, half)) }
    [copy_file_range] { (from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint) -> ssize_t
        [Bytes, false, File::Open(to)]
        fails minus; |real, half| real(from, from_at, to, to_at, part(bytes, half), flags) }
    [sendfile sendfile64] { (to: c_int, from: c_int, from_at: *mut off_t, bytes: size_t) -> ssize_t
        [Bytes, false, File::Open(to)]
        fails minus; |real, half| real(to, from, from_at, part(bytes, half)) }
    [ftruncate ftruncate64] { (fd: c_int, bytes: off_t) -> c_int
        [Whole, false, File::Open(fd)]
        fails minus; |real, _half| real(fd, bytes) }
    [posix_fallocate posix_fallocate64] { (fd: c_int, at: off_t, bytes: off_t) -> c_int
        [Whole, false, File::Open(fd)]
        fails given; |real, _half| real(fd, at, bytes) }
    [fsync] { (fd: c_int) -> c_int
        [Whole, false, File::Open(fd)]
        fails minus; |real, _half| real(fd) }
    [fdatasync] { (fd: c_int) -> c_int
        [Whole, false, File::Open(fd)]
        fails minus; |real, _half| real(fd) }
    [fchmod] { (fd: c_int, mode: mode_t) -> c_int
        [Name, false, File::Open(fd)]
        fails minus; |real, _half| real(fd, mode) }
    [rename] { (from: *const c_char, to: *const c_char) -> c_int
        [Name, false, File::Named(AT_FDCWD, to), File::Named(AT_FDCWD, from)]
        fails minus; |real, _half| real(from, to) }
    [renameat] { (at: c_int, from: *const c_char, to_at: c_int, to: *const c_char) -> c_int
        [Name, false, File::Named(to_at, to), File::Named(at, from)]
        fails minus; |real, _half| real(at, from, to_at, to) }
    [renameat2] { (at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint) -> c_int
        [Name, false, File::Named(to_at, to), File::Named(at, from)]
        fails minus; |real, _half| real(at, from, to_at, to, flags) }
    [link] { (from: *const c_char, to: *const c_char) -> c_int
        [Name, false, File::Named(AT_FDCWD, to)]
        fails minus; |real, _half| real(from, to) }
    [linkat] { (at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int) -> c_int
        [Name, false, File::Named(to_at, to)]
        fails minus; |real, _half| real(at, from, to_at, to, flags) }
    [symlink] { (to: *const c_char, path: *const c_char) -> c_int
        [Name, false, File::Named(AT_FDCWD, path)]
        fails minus; |real, _half| real(to, path) }
    [mkdir] { (path: *const c_char, mode: mode_t) -> c_int
        [Name, false, File::Named(AT_FDCWD, path)]
        fails minus; |real, _half| real(path, mode) }
    [rmdir] { (path: *const c_char) -> c_int
        [Name, false, File::Named(AT_FDCWD, path)]
        fails minus; |real, _half| real(path) }
    [unlink] { (path: *const c_char) -> c_int
        [Name, false, File::Named(AT_FDCWD, path)]
        fails minus; |real, _half| real(path) }
    [unlinkat] { (at: c_int, path: *const c_char, flags: c_int) -> c_int
        [Name, false, File::Named(at, path)]
        fails minus; |real, _half| real(at, path, flags) }
    [read] { (fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t
        [Bytes, true, File::Open(fd)]
        fails minus; |real, half| real(fd, to, part(bytes, half)) }
    [pread pread64] { (fd: c_int, to: *mut c_void, bytes: size_t, at: off_t) -> ssize_t
        [Bytes, true, File::Open(fd)]
        fails minus; |real, half| real(fd, to, part(bytes, half), at) }
    [mmap mmap64] { (to: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t) -> *mut c_void
        [Name, true, File::Open(if is_anonymous(flags) { -1 } else { fd })]
        fails nowhere; |real, _half| real(to, bytes, protection, flags, fd, at) }
}
