//! The tools that tests of the command line and of plans share: folders of their own, the program,
//! the jobs of `examples/`.
#![allow(dead_code, unused_imports, reason = "each test crate uses some of what is here")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Where the test finds what it needs if it runs elsewhere than where it was built: the folder that
/// `tests/gpu.sh --build` makes.
pub const HOME: &str = "SHARDC_TEST_HOME";

/// The root of the repository, or of what stands for it.
pub fn home() -> PathBuf {
    std::env::var_os(HOME).map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// Where tests write.
pub fn scratch() -> PathBuf {
    std::env::var_os(HOME).map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), |home| Path::new(&home).join("scratch"))
}

/// Where what the C++ compiler made of kernels is kept, for all tests and the next time: many have
/// the same kernels.
pub fn objects() -> PathBuf {
    scratch().join("cuda-objects")
}

/// The program.
pub fn program() -> PathBuf {
    std::env::var_os(HOME).map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_shardc")), |home| Path::new(&home).join("shardc"))
}

/// A folder that only one test uses; it is empty at first.
pub fn folder(name: &str) -> PathBuf {
    let path = scratch().join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("an old folder can be removed");
    }
    fs::create_dir_all(&path).expect("a folder can be made");
    path
}

/// A file of `examples/`.
pub fn example(name: &str) -> String {
    format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A run of the program.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// The results that it printed.
    pub out: String,
    /// Its messages to people.
    pub err: String,
    /// How long it took.
    pub took: Duration,
}

/// Runs `shardc` with `arguments` in `folder`.
pub fn shardc(folder: &Path, arguments: &[&str]) -> Ran {
    let start = Instant::now();
    let output = command(folder, arguments).output().expect("the program starts");
    ran(output, start.elapsed())
}

/// The program with its arguments, not yet started.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1");
    command
}

/// The run of a finished program.
pub fn ran(output: Output, took: Duration) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program prints UTF-8");
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr), took }
}

impl Ran {
    /// Panics unless the exit code is `code`; returns itself.
    pub fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "exit code\nstdout: {}\nstderr: {}", self.out, self.err);
        self
    }
}
