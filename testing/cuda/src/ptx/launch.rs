//! A launch: an entry made ready, and its blocks one after another.

use super::Ran;
use super::counts::Counts;
use super::decode::{Instruction, Op, Problem, decode};
use super::kinds::{Kind, low};
use super::lanes::{Guard, WARP};
use super::memory::{ARRAYS, CONSTANTS, Memory, operand_address};
use super::names::{Names, Special};
use super::parse::{Entry, Item, Variable};
use super::warp::{Stop, Warp};
use crate::job::Job;
use std::collections::{BTreeSet, HashMap};

/// The instructions of lanes that a launch may run.
pub(super) const MOST: u64 = 1 << 33;

/// The arrays of a module.
pub(super) struct Data {
    arrays: Vec<u8>,
    constants: Vec<u8>,
}

impl Data {
    pub(super) fn of(variables: &[Variable]) -> (Data, HashMap<String, u64>) {
        let mut data = Data { arrays: Vec::new(), constants: Vec::new() };
        let mut addresses = HashMap::new();
        for v in variables {
            let (bytes, window) = match v.space.as_str() {
                "global" => (&mut data.arrays, ARRAYS),
                "const" => (&mut data.constants, CONSTANTS),
                _ => continue,
            };
            let at = bytes.len().next_multiple_of(v.align);
            bytes.resize(at, 0);
            bytes.extend_from_slice(&v.start);
            bytes.resize(at + v.bytes, 0);
            addresses.insert(v.name.clone(), window + at as u64);
        }
        (data, addresses)
    }
}

/// An entry made ready.
pub(super) struct Kernel {
    pub(super) name: String,
    parameters: Vec<Kind>,
    pub(super) code: Vec<Instruction>,
    slots: usize,
    predicates: usize,
    constants: Vec<(u64, usize)>,
    specials: Vec<(Special, usize)>,
    /// Bytes of shared memory before those of the launch.
    shared: usize,
    /// Bytes of local memory of a thread.
    local: usize,
}

impl Kernel {
    pub(super) fn of(
        entry: &Entry,
        outside: &[Variable],
        addresses: &HashMap<String, u64>,
        unknown: &mut BTreeSet<String>,
    ) -> Result<Kernel, String> {
        let mut names = Names::new();
        names.addresses = addresses.clone();
        for (i, p) in entry.parameters.iter().enumerate() {
            if p.bytes != p.kind.bytes() {
                return Err(format!("parameter '{}' is not a number", p.name));
            }
            names.parameters.insert(p.name.clone(), i);
        }
        let named = |name: &str| entry.body.iter().any(|i| matches!(i, Item::Instruction(s) if s.text.contains(name)));
        let mut inside: Vec<&Variable> = outside.iter().filter(|v| v.space == "shared" && named(&v.name)).collect();
        inside.extend(entry.body.iter().filter_map(|i| if let Item::Variable(v) = i { Some(v) } else { None }));
        // What the launch gives lies behind what has a size.
        inside.sort_by_key(|v| v.open);
        let (mut shared, mut local) = (0, 0);
        for v in inside {
            let bytes = if v.space == "shared" { &mut shared } else { &mut local };
            *bytes = usize::next_multiple_of(*bytes, v.align);
            names.addresses.insert(v.name.clone(), *bytes as u64);
            *bytes += v.bytes;
        }
        let mut count = 0;
        for item in &entry.body {
            match item {
                Item::Label(name) => {
                    names.labels.insert(name.clone(), count);
                }
                Item::Targets { name, labels } => {
                    names.targets.insert(name.clone(), labels.clone());
                }
                Item::Instruction(_) => count += 1,
                _ => {}
            }
        }
        let mut code = Vec::with_capacity(count + 1);
        for item in &entry.body {
            match item {
                Item::Open => names.open(),
                Item::Close => names.close(),
                Item::Registers { kind, names: all } => all.iter().for_each(|(n, count)| names.declare(*kind, n, *count)),
                Item::Instruction(s) => {
                    let guard = match &s.guard {
                        None => None,
                        Some((p, negated)) => {
                            let predicate = names.predicate_name(p).map_err(|e| format!("'{}': {e}", s.text))?;
                            Some(Guard { predicate, negated: *negated })
                        }
                    };
                    let op = match decode(s, &mut names) {
                        Ok(op) => op,
                        Err(Problem::Wrong(e)) => return Err(format!("'{}': {e}", s.text)),
                        Err(Problem::Unknown) => {
                            let inexact = s.opcode.contains(".approx");
                            unknown.insert(format!("{}{}", s.opcode, if inexact { " (not exact)" } else { "" }));
                            Op::Trap
                        }
                    };
                    code.push(Instruction { guard, op, text: s.text.clone() });
                }
                _ => {}
            }
        }
        code.push(Instruction { guard: None, op: Op::Exit, text: "the end".to_string() });
        Ok(Kernel {
            name: entry.name.clone(),
            parameters: entry.parameters.iter().map(|p| p.kind).collect(),
            code,
            slots: names.slots,
            predicates: names.predicates,
            constants: names.constants.into_iter().collect(),
            specials: names.specials,
            shared,
            local,
        })
    }

    fn parameters(&self, job: &Job) -> Result<Vec<u64>, String> {
        let mut values: Vec<u64> = job.operands.iter().enumerate().map(|(i, operand)| operand_address(i, operand)).collect();
        values.extend(job.numbers.iter().map(|n| *n as u64));
        if values.len() != self.parameters.len() {
            return Err(format!(" has {} parameters, and the job has {}", self.parameters.len(), values.len()));
        }
        for (i, (kind, value)) in self.parameters.iter().zip(&mut values).enumerate() {
            let pointer = i < job.operands.len();
            if kind.float() || pointer && kind.bytes() != 8 {
                return Err(format!(": parameter {i} has the type {kind:?}"));
            }
            *value = low(*value, kind.bytes());
        }
        Ok(values)
    }
}

/// A block at work.
pub(super) struct Block<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) memory: Memory<'a>,
    pub(super) shared: Vec<u8>,
    pub(super) counts: Counts,
    /// The instructions of lanes that may still run.
    pub(super) left: u64,
    /// A copy of the constants that a lane reads.
    pub(super) scratch: Vec<u8>,
}

pub(super) fn run(kernel: &Kernel, data: &Data, job: &Job, most: u64) -> Result<Ran, String> {
    let parameters = kernel.parameters(job)?;
    if job.block == 0 || job.block > 1024 {
        return Err(format!(": a block has {} threads", job.block));
    }
    let shared = kernel.shared + job.shared as usize;
    if shared > 1 << 20 || kernel.local > 1 << 20 {
        return Err(format!(": a block has {shared} bytes of shared memory and a thread {} of its own", kernel.local));
    }
    let mut block = Block {
        kernel,
        memory: Memory {
            operands: &job.operands,
            bytes: job.operands.iter().map(|o| o.bytes.clone()).collect(),
            arrays: data.arrays.clone(),
            constants: &data.constants,
        },
        shared: vec![0xff; shared],
        counts: Counts::of(job.operands.len()),
        left: most,
        scratch: Vec::new(),
    };
    let mut warps: Vec<Warp> = (0..job.block as usize)
        .step_by(WARP)
        .map(|first| {
            let mut warp = Warp::new(first, job.block as usize, kernel.slots, kernel.predicates, kernel.local);
            for (x, at) in &kernel.constants {
                warp.registers.lanes[*at] = [*x; WARP];
            }
            warp
        })
        .collect();
    for z in 0..job.grid[2] {
        for y in 0..job.grid[1] {
            for x in 0..job.grid[0] {
                let at = [x, y, z];
                for warp in &mut warps {
                    warp.start(&kernel.specials, at, job, &parameters);
                }
                block.shared.fill(0xff);
                block.run(&mut warps).map_err(|stop| stop.told(kernel, at))?;
            }
        }
    }
    Ok(Ran { operands: block.memory.bytes, counts: block.counts })
}

impl Block<'_> {
    fn run(&mut self, warps: &mut [Warp]) -> Result<(), Stop> {
        loop {
            for warp in warps.iter_mut() {
                self.until_barrier(warp)?;
            }
            let mut waiting = warps.iter().filter_map(|w| w.waiting.map(|at| (at, w)));
            let Some((at, _)) = waiting.next() else { return Ok(()) };
            if let Some((other, warp)) = waiting.find(|(other, _)| *other != at) {
                let first = &self.kernel.code[at].text;
                let text = format!("its warp waits at another barrier than those before it, which wait at '{first}'");
                return Err(Stop { at: other, thread: warp.first, text });
            }
            drop(waiting);
            warps.iter_mut().for_each(|w| w.waiting = None);
        }
    }
}
