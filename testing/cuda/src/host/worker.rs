//! A process that runs launches, one after another.

use super::{Order, Ran};
use crate::job::{Access, Job};
use std::io::{BufReader, BufWriter, Error, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process of the executable, which has no launch left to answer.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Whether the process takes no more launches.
    pub ended: bool,
}

/// What a process says of a launch.
pub(super) enum Answer {
    Ran(Ran),
    Wrong(Complaint),
}

/// The first thing that is wrong with a launch.
pub(super) struct Complaint {
    pub what: String,
    /// Which bytes of the memory it is, in words.
    pub bytes: String,
    /// 0 is shared memory, 1 the first operand; a negative number is none.
    pub slot: i32,
    pub block: [u32; 3],
    pub thread: Option<u32>,
    /// Addresses in the executable, the best first.
    pub addresses: [u64; 2],
}

impl Worker {
    pub fn start(executable: &Path) -> Result<Worker, String> {
        let mut command = Command::new(executable);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| format!("{}: {e}", executable.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the host run has no pipes".into());
        };
        Ok(Worker { child, input: BufWriter::new(input), output: BufReader::new(output), ended: false })
    }

    /// Runs the entry with that number. After an error the process is of no more use.
    pub fn run(&mut self, entry: usize, job: &Job, order: Order, seconds: u32) -> Result<Answer, String> {
        let asked = self.ask(entry, job, order, seconds);
        match asked.and_then(|()| self.answer(job)) {
            Ok(answer) => Ok(answer),
            Err(e) => {
                let _ = self.child.kill();
                let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                Err(format!("the host run ended without an answer: {e}, {status}"))
            }
        }
    }

    fn ask(&mut self, entry: usize, job: &Job, order: Order, seconds: u32) -> Result<(), Error> {
        let (kind, seed) = match order {
            Order::Forward => (0, 0),
            Order::Backward => (1, 0),
            Order::Seed(seed) => (2, seed),
        };
        let [x, y, z] = job.grid;
        let (operands, numbers) = (job.operands.len() as u32, job.numbers.len() as u32);
        for word in [entry as u32, kind, seed, seconds, x, y, z, job.block, job.shared, operands, numbers] {
            self.input.write_all(&word.to_le_bytes())?;
        }
        for operand in &job.operands {
            let access: u32 = match operand.access {
                Access::Read => 0,
                Access::Write => 1,
                Access::Update => 2,
                Access::Fault => 3,
            };
            self.input.write_all(&access.to_le_bytes())?;
            self.input.write_all(&u32::from(operand.whole).to_le_bytes())?;
            self.input.write_all(&operand.past.to_le_bytes())?;
            self.input.write_all(&(operand.bytes.len() as u64).to_le_bytes())?;
            self.input.write_all(&operand.bytes)?;
        }
        for number in &job.numbers {
            self.input.write_all(&number.to_le_bytes())?;
        }
        self.input.flush()
    }

    fn answer(&mut self, job: &Job) -> Result<Answer, Error> {
        let status = self.word()?;
        if status != 0 {
            self.ended = status == 2;
            let slot = self.word()? as i32;
            let thread = Some(self.word()?).filter(|t| *t != u32::MAX);
            let block = [self.word()?, self.word()?, self.word()?];
            let addresses = [self.long()?, self.long()?];
            let (what, bytes) = (self.text()?, self.text()?);
            return Ok(Answer::Wrong(Complaint { what, bytes, slot, block, thread, addresses }));
        }
        let faulted = self.word()? != 0;
        let (accesses, trace) = (self.long()?, self.long()?);
        let mut operands = Vec::with_capacity(job.operands.len());
        for operand in &job.operands {
            let mut bytes = operand.bytes.clone();
            if operand.access != Access::Read {
                self.output.read_exact(&mut bytes)?;
            }
            operands.push(bytes);
        }
        Ok(Answer::Ran(Ran { operands, faulted, accesses, trace }))
    }

    fn word(&mut self) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.output.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn long(&mut self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.output.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Result<String, Error> {
        let mut bytes = vec![0; self.word()? as usize];
        self.output.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
