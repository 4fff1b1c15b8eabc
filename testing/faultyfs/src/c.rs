//! What the hooks ask of the C library: its own functions, the environment, paths, a counter.
#![allow(unsafe_code, reason = "the C library is asked")]

use crate::path::{MOST, Path};
use crate::settings::{Fate, Fault, How, Kind};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::mem::transmute_copy;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// What was asked for.
struct Settings {
    folder: Path,
    fault: Option<Fault>,
    reads: bool,
    /// Where calls are counted.
    count: &'static AtomicU64,
    /// The descriptor that gets a line for each call.
    trace: Option<c_int>,
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// The count of a process that counts for itself.
static OWN: AtomicU64 = AtomicU64::new(0);

/// A function of the C library that this library stands before.
pub struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function, as a pointer of type `F`.
    ///
    /// # Safety
    /// `F` is the type of pointers to the function of that name.
    pub unsafe fn get<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name ends with a zero byte.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if found.is_null() {
                die("the C library lacks a function that was called");
            }
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: it is a pointer to the function, whose type the caller knows.
        unsafe { transmute_copy(&found) }
    }
}

/// The file that a call is about.
#[derive(Clone, Copy)]
pub enum File {
    /// The one of a descriptor.
    Open(c_int),
    /// A path, from the folder of a descriptor on.
    Named(c_int, *const c_char),
}

/// Counts a call that only reads, if that is wanted, and one that writes. What becomes of it.
///
/// # Safety
/// Paths are null or end with a zero byte.
pub unsafe fn fate(name: &str, kind: Kind, is_read: bool, files: &[File]) -> Fate {
    let errno = errno();
    let Some(settings) = SETTINGS.get_or_init(read_settings) else { return Fate::Passes };
    if is_read && !settings.reads {
        return Fate::Passes;
    }
    // SAFETY: as above.
    let mut paths = files.iter().filter_map(|file| unsafe { path_of(*file) });
    let Some(path) = paths.find(|path| path.is_in(&settings.folder)) else {
        set_errno(errno);
        return Fate::Passes;
    };
    let number = settings.count.fetch_add(1, Ordering::SeqCst) + 1;
    if let Some(to) = settings.trace {
        trace(to, number, name, &path);
    }
    set_errno(errno);
    settings.fault.map_or(Fate::Passes, |fault| fault.fate(number, kind))
}

/// The code of a fault.
pub fn code(how: How) -> c_int {
    match how {
        How::Enospc => libc::ENOSPC,
        How::Eintr => libc::EINTR,
        _ => libc::EIO,
    }
}

/// Ends this process at once.
pub fn kill() -> ! {
    // SAFETY: the calls have no conditions.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        // SAFETY: as above.
        unsafe { libc::pause() };
    }
}

/// Ends this process because it was asked for what does not exist.
fn die(why: &str) -> ! {
    let mut line = Text::new();
    // A line that is too long is cut.
    let _ = writeln!(line, "faultyfs: {why}");
    system_write(2, line.bytes());
    // SAFETY: the call has no conditions.
    unsafe { libc::_exit(112) }
}

pub fn errno() -> c_int {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(code: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = code }
}

/// The variable `name`, which ends with a zero byte.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the environment that a process begins with stays where it is.
    unsafe { libc::getenv(name.as_ptr()).as_ref().map(|text| CStr::from_ptr(text)) }
}

fn read_settings() -> Option<Settings> {
    let mut folder = Path::ROOT;
    folder.join(variable(c"FAULTY_FOLDER")?.to_bytes())?;
    let at = variable(c"FAULTY_AT").map(|text| {
        let number = text.to_str().ok().and_then(|text| text.parse().ok());
        number.unwrap_or_else(|| die("FAULTY_AT is no number"))
    });
    let is_set = |name| variable(name).is_some_and(|value| value == c"1");
    let how = || variable(c"FAULTY_HOW").and_then(|name| How::of(name.to_bytes()));
    let how = || how().unwrap_or_else(|| die("FAULTY_HOW is no fault"));
    let fault = at.map(|at| Fault { at, forever: is_set(c"FAULTY_FOREVER"), how: how() });
    let trace = variable(c"FAULTY_TRACE").map(|file| open(file, libc::O_WRONLY | libc::O_APPEND));
    let count = variable(c"FAULTY_COUNT").map_or(&OWN, shared);
    Some(Settings { folder, fault, reads: is_set(c"FAULTY_READS"), count, trace })
}

/// A counter in a file, which all processes share that have it.
fn shared(file: &CStr) -> &'static AtomicU64 {
    let descriptor = open(file, libc::O_RDWR);
    let (bytes, protection) = (size_of::<AtomicU64>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the file gets as many bytes as are mapped, which nobody takes away, and which are
    // read and written as an atomic number only; pages are aligned.
    unsafe {
        if libc::syscall(libc::SYS_ftruncate, descriptor, bytes) != 0 {
            die("FAULTY_COUNT is no file that can be written");
        }
        let (nowhere, flags) = (ptr::null_mut::<c_void>(), libc::MAP_SHARED);
        let at = libc::syscall(libc::SYS_mmap, nowhere, bytes, protection, flags, descriptor, 0);
        if at == -1 {
            die("FAULTY_COUNT cannot be mapped");
        }
        &*(at as *const AtomicU64)
    }
}

/// Opens a file of this library's own.
fn open(file: &CStr, flags: c_int) -> c_int {
    let flags = flags | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero byte.
    let descriptor = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, file.as_ptr(), flags, 0o644) };
    if descriptor < 0 {
        die("FAULTY_COUNT or FAULTY_TRACE cannot be opened");
    }
    descriptor as c_int
}

/// Writes by the system's own call, which nobody counts.
fn system_write(to: c_int, bytes: &[u8]) {
    // SAFETY: the bytes are there. What cannot be told is not.
    unsafe { libc::syscall(libc::SYS_write, to, bytes.as_ptr(), bytes.len()) };
}

fn trace(to: c_int, number: u64, name: &str, path: &Path) {
    let mut line = Text::new();
    // A line that is too long is cut.
    let _ = write!(line, "{number} {name} ");
    line.put(path.bytes());
    line.put(b"\n");
    system_write(to, line.bytes());
}

/// Where a file is, as far as the system tells it.
///
/// # Safety
/// A path is null or ends with a zero byte.
unsafe fn path_of(file: File) -> Option<Path> {
    let mut path = Path::ROOT;
    let (folder, name) = match file {
        File::Open(descriptor) => (descriptor, None),
        // SAFETY: as above.
        File::Named(folder, name) => (folder, Some(unsafe { CStr::from_ptr(name.as_ref()?) }.to_bytes())),
    };
    if name.is_none_or(|name| name.first() != Some(&b'/')) {
        join_open(&mut path, folder)?;
    }
    path.join(name.unwrap_or_default())?;
    Some(path)
}

/// Sets `path` to that of a descriptor, if it has one.
fn join_open(path: &mut Path, descriptor: c_int) -> Option<()> {
    let mut link = Text::new();
    match descriptor {
        libc::AT_FDCWD => write!(link, "/proc/self/cwd\0").ok()?,
        open => write!(link, "/proc/self/fd/{open}\0").ok()?,
    }
    let mut target = [0u8; MOST];
    // SAFETY: the link ends with a zero byte, and the target has room for as many as are said.
    let length = unsafe { libc::readlink(link.bytes.as_ptr().cast(), target.as_mut_ptr().cast(), MOST) };
    let target = target.get(..usize::try_from(length).ok()?)?;
    // Pipes and sockets have names of another kind.
    if target.first() == Some(&b'/') { path.join(target) } else { None }
}

/// A short text in memory of a fixed size.
struct Text {
    bytes: [u8; MOST + 64],
    length: usize,
}

impl Text {
    fn new() -> Text {
        Text { bytes: [0; MOST + 64], length: 0 }
    }

    /// As much as there is room for.
    fn put(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.length..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
