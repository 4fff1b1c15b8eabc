//! Runs the text of a kernel on the host: a C++ compiler builds it, and each access is checked.
//!
//! A thread of the GPU is a fiber. A run ends with the first of these: an access out of bounds,
//! against its direction or misaligned; a race within a block or between blocks; shared memory that
//! is read before it is written; an asynchronous copy that is not waited for; threads that diverge
//! where all must come; a result that is not written whole; an overflow of signed integers; a crash
//! or a hang.

mod build;
mod entries;
mod worker;

use crate::job::{Access, Job};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use worker::{Answer, Complaint, Worker};

/// Operands and numbers that an entry may have together.
const MOST_ARGUMENTS: usize = 512;
/// Operands that an entry may have.
const MOST_OPERANDS: usize = 511;
/// Bytes of shared memory that a block may have on the largest of GPUs.
const MOST_SHARED: u32 = 227 << 10;
/// Bytes that an operand may have.
const MOST_BYTES: usize = (4 << 30) - (4 << 20);

/// Kernels that were built for the host.
#[derive(Debug)]
pub struct Host {
    executable: PathBuf,
    entries: Vec<entries::Entry>,
    seconds: u32,
    /// Processes that wait for work.
    idle: Mutex<Vec<Worker>>,
}

/// The order of blocks, and of the threads of a block between two barriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The lowest number comes first.
    Forward,
    /// The highest number comes first.
    Backward,
    /// The order is drawn from this seed, anew after each barrier.
    Seed(u32),
}

/// The orders that a launch is run in.
pub const ORDERS: [Order; 4] = [Order::Forward, Order::Seed(1), Order::Backward, Order::Seed(2)];

/// What a launch without complaint gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The bytes of each operand after the launch.
    pub operands: Vec<Vec<u8>>,
    /// Whether a thread called `fail`; the results mean nothing then.
    pub faulted: bool,
    /// Loads and stores of operands and of shared memory.
    pub accesses: u64,
    /// A number of these, each with its thread, place, bytes, direction and the barriers before it.
    /// It does not depend on the order of threads.
    pub trace: u64,
}

impl Host {
    /// Whether kernels can be built and run on this machine.
    pub fn available() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let fma = || std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|t| t.contains(" fma ") && t.contains(" f16c "));
            cfg!(all(target_os = "linux", target_arch = "x86_64")) && fma() && build::compiler().is_ok()
        })
    }

    /// Builds kernels in `folder`, which keeps what was compiled for the next time. `math` is put
    /// before each text, and `kernels` are names with texts.
    pub fn build(folder: &Path, math: &str, kernels: &[(String, String)]) -> Result<Host, String> {
        let mut entries: Vec<entries::Entry> = Vec::new();
        for (text, (name, source)) in kernels.iter().enumerate() {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
                return Err(format!("`{name}` is no name for a text"));
            }
            if kernels[..text].iter().any(|(n, _)| n == name) {
                return Err(format!("two texts are called {name}"));
            }
            for entry in entries::of(source).map_err(|e| format!("{name}: {e}"))? {
                if entries.iter().any(|e| e.name == entry.name) {
                    return Err(format!("{name}: the entry {} is there twice", entry.name));
                }
                entries.push(entry);
            }
        }
        let executable = build::build(folder, math, kernels, &entries)?;
        Ok(Host { executable, entries, seconds: 60, idle: Mutex::default() })
    }

    /// Sets the time that a launch may take, in seconds of the processor: 60 where nobody says it.
    pub fn limit(mut self, seconds: u32) -> Host {
        self.seconds = seconds.max(1);
        self
    }

    /// Runs one launch, or says in one line what is the first thing that is wrong with it.
    pub fn run(&self, job: &Job, order: Order) -> Result<Ran, String> {
        let entry = self.fitting(job).map_err(|e| format!("{}: {e}", job.entry))?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut worker = match idle {
            Some(worker) => worker,
            None => Worker::start(&self.executable)?,
        };
        let answer = worker.run(entry, job, order, self.seconds);
        if answer.is_ok() && !worker.ended {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        match answer.map_err(|e| format!("{}: {e}", job.entry))? {
            Answer::Ran(ran) => Ok(ran),
            Answer::Wrong(complaint) => Err(format!("{}: {}", job.entry, self.told(&complaint, job))),
        }
    }

    /// Runs one launch in all of [`ORDERS`], and complains also where the results are not the same.
    pub fn run_orders(&self, job: &Job) -> Result<Ran, String> {
        self.run_in(&ORDERS, job)
    }

    /// The same in these orders, of which there is one at least.
    pub fn run_in(&self, orders: &[Order], job: &Job) -> Result<Ran, String> {
        let (first, others) = orders.split_first().ok_or("there is no order")?;
        let first = self.run(job, *first)?;
        for order in others {
            let other = self.run(job, *order)?;
            if other.faulted != first.faulted {
                return Err(format!("{}: whether it fails depends on the order of threads", job.entry));
            }
            let pairs = first.operands.iter().zip(&other.operands).zip(&job.operands);
            for ((a, b), operand) in pairs.filter(|_| !first.faulted) {
                if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                    let name = &operand.name;
                    let text = "the result depends on the order of threads or on addresses";
                    return Err(format!("{}: {text}, operand {name} byte {at} of {}", job.entry, a.len()));
                }
            }
        }
        Ok(first)
    }

    /// The number of the job's entry, where the job is one that a GPU would take.
    fn fitting(&self, job: &Job) -> Result<usize, String> {
        let at = self.entries.iter().position(|e| e.name == job.entry).ok_or("no text has this entry")?;
        let entry = &self.entries[at];
        let (pointers, numbers) = (job.operands.len(), job.numbers.len());
        if (pointers, numbers) != (entry.pointers, entry.numbers) {
            let (p, n) = (entry.pointers, entry.numbers);
            return Err(format!("the entry has {p} pointers and {n} numbers, the job {pointers} and {numbers}"));
        }
        if pointers > MOST_OPERANDS || pointers + numbers > MOST_ARGUMENTS {
            return Err(format!("{} arguments are too many", pointers + numbers));
        }
        if job.block == 0 || job.block > entry.threads || job.block > 1024 {
            return Err(format!("blocks of {} threads, where the text says {}", job.block, entry.threads));
        }
        let [x, y, z] = job.grid;
        let blocks = u64::from(x) * u64::from(y) * u64::from(z);
        if blocks == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(format!("no GPU takes a grid of {x} x {y} x {z} blocks"));
        }
        if blocks > 1 << 28 {
            return Err(format!("{blocks} blocks are too many to run here"));
        }
        if job.shared > MOST_SHARED {
            return Err(format!("no GPU has {} bytes of shared memory for a block", job.shared));
        }
        if let Some(operand) = job.operands.iter().find(|o| o.bytes.len() > MOST_BYTES) {
            return Err(format!("the operand {} is too large to run here", operand.name));
        }
        if let Some(operand) = job.operands.iter().find(|o| o.past >= 16) {
            return Err(format!("the operand {} lies {} bytes behind a multiple of 16", operand.name, operand.past));
        }
        if let Some(operand) = job.operands.iter().find(|o| o.whole && matches!(o.access, Access::Read | Access::Fault)) {
            return Err(format!("the operand {} cannot be written whole", operand.name));
        }
        Ok(at)
    }

    /// A complaint in one line.
    fn told(&self, complaint: &Complaint, job: &Job) -> String {
        let mut line = complaint.what.clone();
        if let Some(place) = self.place(&complaint.addresses) {
            let _ = write!(line, ", line {} of {}", place.1, place.0);
        }
        match usize::try_from(complaint.slot) {
            Ok(0) => line.push_str(", shared memory"),
            Ok(slot) => {
                let _ = write!(line, ", operand {}", job.operands.get(slot - 1).map_or("?", |o| &o.name));
            }
            Err(_) => {}
        }
        if !complaint.bytes.is_empty() {
            let _ = write!(line, " {}", complaint.bytes);
        }
        if let Some(thread) = complaint.thread {
            let [x, y, z] = complaint.block;
            let _ = write!(line, ", block ({x}, {y}, {z}), thread {thread}");
        }
        line
    }

    /// The text and the line of the first address that lies in a text. An address comes after what
    /// it stands for, and what was put in place of a call has the lines of all that it lies in.
    fn place(&self, addresses: &[u64]) -> Option<(String, u32)> {
        for address in addresses.iter().filter(|a| **a != 0) {
            let mut command = Command::new("addr2line");
            command.arg("-i").arg("-e").arg(&self.executable).arg(format!("{:#x}", address - 1));
            let lines = String::from_utf8(command.output().ok()?.stdout).ok()?;
            for line in lines.lines() {
                let line = line.split(" (").next().unwrap_or(line);
                let Some((file, number)) = line.rsplit_once(':') else { continue };
                let file = file.rsplit('/').next().unwrap_or(file);
                let Some(name) = file.strip_suffix(".cu") else { continue };
                if let Ok(number) = number.parse() {
                    return Some((name.into(), number));
                }
            }
        }
        None
    }
}
