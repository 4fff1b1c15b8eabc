//! Checks a program before it runs, and makes its kernels ready.
//!
//! Nothing in a program is believed: every view must lie in its buffer and every buffer in the
//! arena, kernels must stay inside their views, and what a step writes must not overlap what it
//! reads, except where the kernel works in place.

use crate::cpu;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Kernel;
use shardc_ir::kernel::signature::Operand;
use shardc_ir::plan::overlaps::{Overlap, overlap};
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_ir::plan::{Buffer, BufferId, Message, Program, StateVariable, Step, View};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The programs of a mesh, all of them safe to run.
#[derive(Debug, Clone)]
pub struct LoadedSet {
    /// The programs.
    pub programs: Arc<PlanSet>,
    /// Each of them, ready.
    loaded: Vec<Arc<Loaded>>,
    /// The state variables that are each initializer, or blocks of it.
    pub initializers: Arc<HashMap<String, Vec<StateVariable>>>,
}

/// A program that was found safe to run.
#[derive(Debug)]
pub struct Loaded {
    /// All programs of the mesh.
    pub programs: Arc<PlanSet>,
    /// Which of them it is.
    at: usize,
    /// For each task its steps.
    pub tasks: Vec<Vec<ReadyStep>>,
    /// For each message its range.
    pub messages: Vec<ArenaRange>,
    /// The positions of its inputs' arrays among those of a batch, which has them for all programs.
    pub inputs: Vec<usize>,
    /// The buffers that the host asks for by name.
    pub names: HashMap<Name, BufferId>,
}

/// A step with its kernel ready.
#[derive(Debug)]
pub struct ReadyStep {
    /// The kernel; `None` for a collective.
    pub kernel: Option<Box<dyn cpu::Launch>>,
    /// The ranges of the operands read.
    pub reads: Vec<ArenaRange>,
    /// The ranges of the operands written.
    pub writes: Vec<ArenaRange>,
    /// For each read, which write is the same memory.
    pub in_place: Vec<Option<usize>>,
}

/// The range of an operand in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRange {
    /// Element type.
    pub dtype: DType,
    /// First byte, in slot 0.
    start: u64,
    /// Bytes.
    bytes: u64,
    /// Bytes from one slot to the next.
    slot: u64,
    /// Slots, at least one.
    slots: u64,
}

impl ArenaRange {
    /// The bytes at micro-batch `time`.
    pub fn at(&self, time: u64) -> Range<u64> {
        let start = self.start + self.slot * (time % self.slots);
        start..start + self.bytes
    }
}

impl LoadedSet {
    /// Checks programs and makes their kernels ready.
    ///
    /// # Errors
    /// The fault, with the step's text.
    pub fn new(programs: impl Into<PlanSet>) -> Result<LoadedSet, Reason> {
        let programs = Arc::new(programs.into());
        programs.check_tables()?;
        let inputs = programs.inputs().into_iter().map(|(_, input)| input.name.as_str());
        let inputs: HashMap<&str, usize> = inputs.zip(0..).collect();
        let load = |at: usize| Loaded::new(&programs, at, &inputs).map(Arc::new);
        let loaded = (0..programs.programs.len()).map(load).collect::<Result<_, _>>()?;
        let mut initializers: HashMap<String, Vec<StateVariable>> = HashMap::new();
        for (_, state) in programs.states() {
            initializers.entry(state.initializer().to_string()).or_default().push(state.clone());
        }
        Ok(LoadedSet { programs, loaded, initializers: Arc::new(initializers) })
    }

    /// The program of `rank`.
    pub fn of_rank(&self, rank: u64) -> &Arc<Loaded> {
        &self.loaded[self.programs.at(self.programs.mesh(), rank)]
    }

    /// A buffer that has that name, as it is in the first program that has one.
    pub fn named(&self, name: &Name) -> Option<&Buffer> {
        self.loaded.iter().find_map(|loaded| Some(&loaded.program().buffers[loaded.names.get(name)?.index()]))
    }
}

impl Loaded {
    fn new(programs: &Arc<PlanSet>, at: usize, inputs: &HashMap<&str, usize>) -> Result<Loaded, Reason> {
        let program = &programs.programs[at];
        let mut tasks = vec![];
        for task in &program.tasks {
            let ready = |step: &Step| {
                ready(program, step).map_err(|e| reason!("step `{}` of task {}: {e}", program.text_of(step), task.name))
            };
            tasks.push(task.steps.iter().map(ready).collect::<Result<_, _>>()?);
        }
        let inputs = program.inputs.iter().map(|input| inputs[input.name.as_str()]).collect();
        let message = |message: &Message| whole(program, &message.view).map_err(|e| reason!("message `{}`: {e}", message.value));
        let messages = program.messages.iter().map(message).collect::<Result<_, _>>()?;
        Ok(Loaded { programs: programs.clone(), at, tasks, messages, inputs, names: program.names().collect() })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.programs.programs[self.at]
    }
}

/// Checks a step and makes its kernel ready.
pub(crate) fn ready(program: &Program, step: &Step) -> Result<ReadyStep, Reason> {
    let signature = step.kernel.signature(&program.mesh)?;
    let places = |operands: &[Operand], views: &[View]| -> Result<Vec<ArenaRange>, Reason> {
        operands.iter().zip(views).map(|(operand, view)| place(program, operand, view)).collect()
    };
    let (reads, writes) = (places(&signature.reads, &step.reads)?, places(&signature.writes, &step.writes)?);
    let in_place = program.in_place(step);
    for time in [0, program.mesh.microbatches() - 1] {
        check_overlaps(&reads, &writes, &in_place, time)?;
    }
    let kernel = match &step.kernel {
        Kernel::Collective(_) => None,
        kernel => Some(cpu::prepare(kernel, &in_place)?),
    };
    Ok(ReadyStep { kernel, reads, writes, in_place })
}

/// All of a view.
fn whole(program: &Program, view: &View) -> Result<ArenaRange, Reason> {
    let dtype = program.buffer(view.buffer)?.dtype;
    place(program, &Operand { dtype, elements: view.bytes / dtype.bytes() }, view)
}

/// The part of a view that an operand needs.
fn place(program: &Program, operand: &Operand, view: &View) -> Result<ArenaRange, Reason> {
    let found = program.buffer(view.buffer)?;
    let inside = view.offset.checked_add(view.bytes).is_some_and(|end| end <= found.slot_bytes);
    let needed = operand.elements.checked_mul(operand.dtype.bytes());
    if !inside || !view.offset.is_multiple_of(operand.dtype.bytes()) {
        return Err(reason!("a view leaves buffer `{}`, or is not aligned", found.name));
    }
    let bytes = needed.filter(|needed| *needed <= view.bytes);
    let bytes = bytes.ok_or_else(|| {
        format!("it needs {} elements of `{}`, the view has {}", operand.elements, found.name, view.bytes / operand.dtype.bytes())
    })?;
    let (start, slot, slots) = (found.offset + view.offset, found.slot_bytes, found.slots);
    Ok(ArenaRange { dtype: operand.dtype, start, bytes, slot, slots })
}

fn check_overlaps(reads: &[ArenaRange], writes: &[ArenaRange], in_place: &[Option<usize>], time: u64) -> Result<(), Reason> {
    let bytes = |places: &[ArenaRange]| places.iter().map(|place| place.at(time)).collect::<Vec<_>>();
    match overlap(&bytes(reads), &bytes(writes), |r, w| in_place[r] == Some(w)) {
        None => Ok(()),
        Some(Overlap::Writes(..)) => Err("it writes some bytes twice".into()),
        Some(Overlap::ReadAndWrite(..)) => Err("it writes what it reads".into()),
    }
}
