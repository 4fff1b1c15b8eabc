//! A function of a text while it is written, with what its launch says.

use crate::body::declared;
use crate::generated::{Accesses, Generated, Launch, Memory, Parameter};
use crate::text::{NAME, Text, element, register};
use shardc_ir::dtype::DType;
use shardc_ir::position::Offset;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

/// The most blocks along x, y and z on every architecture. Source: CUDA C++ Programming Guide,
/// Technical Specifications per Compute Capability.
pub const MAX_GRID: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];

/// Threads of a block where nothing asks for another number.
pub const THREADS: u64 = 256;

/// One function, and its launch.
#[derive(Debug)]
pub struct Function {
    form: &'static str,
    /// The lines so far.
    pub text: Text,
    /// The pointers that it takes.
    pub parameters: Vec<Parameter>,
    declarations: Vec<String>,
    contracts: Vec<String>,
    accesses: Vec<Accesses>,
    /// The numbers that it takes behind them, `n0`, `n1`...
    pub numbers: Vec<Offset>,
    /// Blocks of its launch.
    pub grid: [u64; 3],
    /// Threads of a block.
    pub block: u64,
    /// Bytes of shared memory.
    pub shared: u32,
    launches: Vec<(usize, Launch)>,
    workspace: u64,
}

impl Function {
    /// The first function of a text for `form`.
    pub fn new(form: &'static str) -> Function {
        Function {
            form,
            text: Text::default(),
            parameters: vec![],
            declarations: vec![],
            contracts: vec![],
            accesses: vec![],
            numbers: vec![],
            grid: [1; 3],
            block: THREADS,
            shared: 0,
            launches: vec![],
            workspace: 0,
        }
    }

    /// Adds a pointer to elements of `dtype`, and the elements touched through it.
    pub fn takes(&mut self, parameter: Parameter, dtype: DType, accesses: Vec<Accesses>) {
        self.declare(declared(&parameter, dtype), (element(dtype), dtype.bytes()), parameter, accesses);
    }

    /// Adds the operand that the form reads as `at`.
    pub fn reads(&mut self, name: &str, at: usize, dtype: DType, elements: u64, accesses: Accesses) {
        let memory = Memory::Read(at);
        let bytes = elements * dtype.bytes();
        let accesses = vec![Accesses { is_write: false, ..accesses }];
        self.takes(
            Parameter { name: name.into(), memory, bytes, is_read: true, is_written: false, whole: false },
            dtype,
            accesses,
        );
    }

    /// Adds the operand that the form writes as `at`.
    pub fn writes(&mut self, name: &str, at: usize, dtype: DType, elements: u64, whole: bool, accesses: Accesses) {
        let memory = Memory::Write(at);
        let bytes = elements * dtype.bytes();
        let accesses = vec![Accesses { is_write: true, ..accesses }];
        self.takes(Parameter { name: name.into(), memory, bytes, is_read: false, is_written: true, whole }, dtype, accesses);
    }

    /// Adds the room for `elements` partial results that registers of `dtype` hold, which are
    /// written by one launch and read by the next.
    pub fn works_in(&mut self, dtype: DType, elements: u64, is_written: bool) {
        let (kind, size) = (register(dtype), dtype.computed().bytes());
        let bytes = elements * size;
        self.workspace = self.workspace.max(bytes);
        let constant = if is_written { "" } else { "const " };
        let accesses = vec![Accesses { is_write: is_written, ..Accesses::over(&[(elements, 1)]) }];
        let parameter = Parameter {
            name: "part".into(),
            memory: Memory::Workspace,
            bytes,
            is_read: !is_written,
            is_written,
            whole: is_written,
        };
        self.declare(format!("{constant}{kind}* __restrict__ part"), (kind, size), parameter, accesses);
    }

    /// Adds the word that says whether the data are wrong.
    pub fn may_fail(&mut self) {
        let memory = Memory::Fault;
        let parameter = Parameter { name: "fault".into(), memory, bytes: 4, is_read: false, is_written: true, whole: false };
        self.declare("u32* __restrict__ fault".into(), ("u32", 4), parameter, vec![]);
    }

    fn declare(&mut self, declaration: String, (kind, bytes): (&str, u64), parameter: Parameter, accesses: Vec<Accesses>) {
        let way = match (parameter.is_read, parameter.is_written) {
            (true, true) => "updated",
            (_, true) => "written",
            _ => "read",
        };
        self.contracts.push(format!("//@ {} {way} {kind} {} bytes", parameter.name, parameter.bytes));
        self.declarations.push(declaration);
        let at = self.parameters.len();
        self.parameters.push(parameter);
        self.accesses.extend(accesses.into_iter().map(|accesses| Accesses { parameter: at, bytes, ..accesses }));
    }

    /// As many blocks along x as `threads` need.
    pub fn threads_over(&mut self, threads: u64) {
        self.grid[0] = threads.div_ceil(self.block);
    }

    /// Writes the contract and the head of the function.
    pub fn begin(&mut self, threads: u64) {
        let numbers = (0..self.numbers.len()).map(|n| format!("i64 n{n}"));
        let parameters: Vec<String> = self.declarations.drain(..).chain(numbers).collect();
        let contracts: Vec<String> = self.contracts.drain(..).collect();
        self.block = threads;
        self.text.lines(contracts);
        self.text.line(format!("KERNEL({threads}) {NAME}_{}({}) {{", self.launches.len(), parameters.join(", ")));
    }

    /// Ends the function; what comes next is another one of the same text.
    ///
    /// # Errors
    /// If its launch has more blocks than any GPU takes.
    pub fn next(&mut self) -> Result<(), Reason> {
        let number = self.launches.len();
        if let Some((blocks, most)) = self.grid.into_iter().zip(MAX_GRID).find(|(blocks, most)| blocks > most) {
            return Err(reason!("{blocks} blocks are more than the {most} that a GPU takes along one dimension"));
        }
        let grid = self.grid.map(|blocks| blocks as u32);
        let launch = Launch {
            entry: String::new(),
            grid: if grid.contains(&0) { [0; 3] } else { grid },
            block: self.block as u32,
            shared: self.shared,
            parameters: std::mem::take(&mut self.parameters),
            numbers: std::mem::take(&mut self.numbers),
            accesses: std::mem::take(&mut self.accesses),
        };
        self.launches.push((number, launch));
        (self.grid, self.block, self.shared) = ([1; 3], THREADS, 0);
        Ok(())
    }

    /// The text and its launches.
    ///
    /// # Errors
    /// As [`Function::next`].
    pub fn finish(mut self) -> Result<Generated, Reason> {
        self.next()?;
        let (text, name) = self.text.named(self.form);
        let named = |(number, launch): (usize, Launch)| Launch { entry: format!("{name}_{number}"), ..launch };
        let launches = self.launches.into_iter().map(named).collect();
        Ok(Generated { name, text, launches, workspace: self.workspace })
    }
}
