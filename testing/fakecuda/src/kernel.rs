//! Kernels: modules, functions and launches, which run on the host with every access checked.

mod library;
mod text;

pub use library::{load, run};
pub use text::{Entry, entries, split};

use crate::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::memory::{Toucher, Way};
use crate::run::{Problem, failed, illegal};
use crate::work::Work;
use crate::world::World;
use shardc_cuda_testing::job::{Access, Job, Operand};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of shared memory of a block without being asked for, and at most.
pub const SHARED: [u32; 2] = [48 << 10, 227 << 10];

/// A module.
#[derive(Debug)]
pub struct Module {
    functions: BTreeMap<String, u64>,
    device: usize,
}

/// A function of a module.
#[derive(Debug)]
pub struct Function {
    /// Its text says this of it.
    pub entry: Arc<Entry>,
    /// The module.
    pub module: u64,
    /// The most bytes of shared memory that its launches may ask for.
    pub most_shared: u32,
}

/// A launch.
#[derive(Debug)]
pub struct Launch {
    /// The function.
    pub entry: Arc<Entry>,
    /// Its module.
    pub module: u64,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory.
    pub shared: u32,
    /// The pointers that it takes.
    pub pointers: Vec<u64>,
    /// The numbers.
    pub numbers: Vec<i64>,
}

impl World {
    /// `cuModuleLoadData` of a text.
    pub fn load(&mut self, device: usize, text: &str) -> Result<u64, String> {
        let entries = load(text)?;
        let module = self.id();
        let mut functions = BTreeMap::new();
        for entry in entries {
            let function = self.id();
            functions.insert(entry.name.clone(), function);
            self.functions.insert(function, Function { entry, module, most_shared: SHARED[0] });
        }
        self.modules.insert(module, Module { functions, device });
        Ok(module)
    }

    /// `cuModuleUnload`
    pub fn unload(&mut self, module: u64) -> Answer {
        let module = self.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        for function in module.functions.values() {
            self.functions.remove(function);
        }
        Ok(())
    }

    /// `cuModuleGetFunction`
    pub fn function(&self, module: u64, name: &str) -> Result<u64, u32> {
        self.modules.get(&module).ok_or(INVALID_HANDLE)?.functions.get(name).copied().ok_or(NOT_FOUND)
    }

    /// `cuLaunchKernel`
    pub fn launch(&mut self, function: u64, stream: u64, launch: Launch) -> Answer {
        let most = self.functions.get(&function).ok_or(INVALID_HANDLE)?.most_shared;
        let device = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.device;
        if self.modules.get(&launch.module).is_some_and(|module| module.device != device) {
            return self.refuse(INVALID_HANDLE, format!("kernel {} was loaded on another device", launch.entry.name));
        }
        let [x, y, z] = launch.block;
        let threads = u64::from(x) * u64::from(y) * u64::from(z);
        let wrong =
            if launch.grid.contains(&0) || launch.grid[0] > i32::MAX as u32 || launch.grid[1..].iter().any(|n| *n > 65_535) {
                Some(format!("a grid of {:?} blocks", launch.grid))
            } else if threads == 0 || threads > u64::from(launch.entry.threads) {
                Some(format!("blocks of {threads} threads, where {} are the most", launch.entry.threads))
            } else if y != 1 || z != 1 {
                Some("blocks of more than one dimension, which the host run lacks".to_owned())
            } else if launch.shared > most {
                Some(format!("{} bytes of shared memory, where {most} are the most", launch.shared))
            } else {
                None
            };
        if let Some(wrong) = wrong {
            return self.refuse(INVALID_VALUE, format!("kernel {}: {wrong}", launch.entry.name));
        }
        self.enqueue(stream, Work::Kernel(Arc::new(launch)))
    }

    /// What a launch works on, once its operands were looked at.
    pub fn prepare_kernel(&mut self, device: usize, by: &Toucher<'_>, launch: &Launch) -> Result<Job, Problem> {
        if let Some(code) = self.fault("launch") {
            return Err((code, format!("fault {code} was asked for")));
        }
        if !self.modules.contains_key(&launch.module) {
            return Err(failed("its module was unloaded".into()));
        }
        let named = |name: &str, (code, text): Problem| (code, format!("operand {name}: {text}"));
        let pairs = || launch.entry.operands.iter().zip(&launch.pointers);
        for (i, (operand, at)) in pairs().enumerate() {
            for (other, start) in pairs().skip(i + 1) {
                let meet = *at < start + other.bytes && *start < at + operand.bytes;
                if meet && (operand.access != Access::Read || other.access != Access::Read) {
                    return Err(failed(format!("operands {} and {} share memory", operand.name, other.name)));
                }
            }
        }
        let mut operands = vec![];
        for (operand, at) in pairs() {
            let ways: &[Way] = match operand.access {
                Access::Read => &[Way::Reads],
                Access::Write => &[Way::Writes],
                Access::Update => &[Way::Reads, Way::Writes],
                Access::Fault => &[Way::Marks],
            };
            for way in ways {
                self.touch(device, by, *at, operand.bytes, *way).map_err(|problem| named(&operand.name, problem))?;
            }
            let bytes = self.memory.read(device, *at, operand.bytes).map_err(illegal)?;
            let past = (*at % 16) as u32;
            operands.push(Operand { name: operand.name.clone(), access: operand.access, whole: false, past, bytes });
        }
        Ok(Job {
            entry: launch.entry.name.clone(),
            grid: launch.grid,
            block: launch.block[0],
            shared: launch.shared,
            operands,
            numbers: launch.numbers.clone(),
        })
    }

    /// Writes what a launch made.
    pub fn finish_kernel(
        &mut self,
        device: usize,
        launch: &Launch,
        found: Result<Arc<Vec<Option<Vec<u8>>>>, String>,
    ) -> Result<(), Problem> {
        let found = found.map_err(|text| match text.contains("out of bounds") || text.contains("outside the operands") {
            true => illegal(text),
            false => failed(text),
        })?;
        for (at, bytes) in launch.pointers.iter().zip(&*found) {
            if let Some(bytes) = bytes {
                self.memory.write(device, *at, bytes).map_err(illegal)?;
            }
        }
        Ok(())
    }
}
