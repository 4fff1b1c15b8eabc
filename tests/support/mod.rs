//! What tests of the command line and of plans share: folders of their own, the program, the jobs of `examples/`.
#![allow(dead_code, reason = "each test crate uses some of what is here")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A folder that only one test uses; it is empty at first.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
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

/// What the program did.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// What it printed as results.
    pub out: String,
    /// What it said to people.
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardc"));
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1");
    command
}

/// What a finished program did.
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

/// A stream of numbers that is the same in every run (Steele, Lea, Flood: SplitMix64, 2014).
pub struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// A number between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of some items, if there are any.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(items[self.below(items.len())].clone()) }
    }
}
