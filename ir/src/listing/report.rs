//! A program with nothing left out, as other programs read it: `programs[]` of
//! `inspect --format json`, whose schema is `docs/inspect.schema.json`. The text of a listing is
//! drawn from the same.

use super::names::{Names, Source};
use super::peak::{Peak, peak};
use super::summary::{NamedSizes, bytes_sent};
use crate::kernel::{CollectiveKind, Kernel};
use crate::plan::set::PlanSet;
use crate::plan::{Buffer, BufferKind, Message, Program, Row, Step, Stream, Task, View, When};
use crate::sharding::Sharding;
use crate::waits::{Waits, derive};
use serde::Serialize;

/// One program, and the ranks that run it.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramReport<'p> {
    /// Places on the axes on which programs differ; ranks at one of them run it.
    pub positions: Vec<NamedSizes>,
    /// What is live where most is.
    pub peak: Peak<'p>,
    /// Its tasks, in order.
    pub tasks: Vec<TaskReport<'p>>,
    /// Its buffers; operands name them by position.
    pub buffers: Vec<BufferReport<'p>>,
    /// The order of a step of training.
    pub rows: Vec<RowReport<'p>>,
}

/// A row of the order.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum RowReport<'p> {
    /// A task runs.
    Run(RunReport<'p>),
    /// Messages begin together.
    Exchange {
        /// Each of them.
        exchange: Vec<EndReport<'p>>,
    },
}

/// One end of a message.
#[derive(Debug, Clone, Serialize)]
pub struct EndReport<'p> {
    /// The position, on the pipeline's axis, that it is sent to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// The position that it is received from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The value.
    pub value: &'p str,
    /// Of which micro-batch; none of what is sent once.
    pub micro_batch: Option<u64>,
    /// Its bytes.
    pub bytes: u64,
    /// The buffer, by position.
    pub buffer: u32,
    /// Why it is sent.
    pub reason: Option<&'p str>,
    /// The line of the spec that asked for it.
    pub spec_line: Option<u32>,
}

/// A body of steps.
#[derive(Debug, Clone, Serialize)]
pub struct TaskReport<'p> {
    /// `F`, `B`, `update`.
    pub name: &'p str,
    /// The stage of the pipeline.
    pub stage: u32,
    /// How often it runs in a step of training.
    pub times: u64,
    /// Operations on numbers each time that all of its steps run.
    pub flops: u64,
    /// Its steps.
    pub steps: Vec<StepReport<'p>>,
}

/// A kernel launch or a message.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport<'p> {
    /// Its number among all steps of the program.
    pub number: usize,
    /// The queue.
    pub stream: Stream,
    /// With which micro-batches of its task it runs.
    pub when: When,
    /// The op with its attributes.
    pub op: &'p str,
    /// The kernel form.
    pub form: &'static str,
    /// Its operands.
    pub reads: Vec<Operand>,
    /// Its results.
    pub writes: Vec<Operand>,
    /// The module of the model.
    pub scope: Option<&'p str>,
    /// Why it is there.
    pub reason: Option<&'p str>,
    /// The line of the spec that asked for it.
    pub spec_line: Option<u32>,
    /// The axes over which what it writes is still partial.
    pub partial: Option<String>,
    /// Operations on numbers.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes_touched: u64,
    /// Who takes part, where it is a message.
    pub message: Option<CallReport<'p>>,
    /// The steps and messages of other queues that it waits for.
    pub after: Vec<usize>,
}

/// A part of a buffer.
#[derive(Debug, Clone, Serialize)]
pub struct Operand {
    /// The buffer, by position.
    pub buffer: u32,
    /// What is there: a name that one step or one leaf has.
    pub value: String,
    /// Bytes from the start of the slot.
    pub offset: u64,
    /// Bytes that may be touched.
    pub bytes: u64,
}

/// A call of a communicator.
#[derive(Debug, Clone, Serialize)]
pub struct CallReport<'p> {
    /// Its kind.
    pub kind: CollectiveKind,
    /// The axes of its group, in the order of members.
    pub axes: Vec<&'p str>,
    /// Bytes that each member sends.
    pub bytes_sent: u64,
}

/// A range of the arena.
#[derive(Debug, Clone, Serialize)]
pub struct BufferReport<'p> {
    /// The name of what it holds at first, or of its value.
    pub name: String,
    /// Why it exists.
    pub kind: &'static str,
    /// The element type.
    pub dtype: String,
    /// The shape of the whole value.
    pub shape: &'p [u64],
    /// What a rank has of it.
    pub local: &'p [u64],
    /// How it is split, as graphs have it; empty where it is whole.
    pub sharding: String,
    /// First byte in the arena.
    pub offset: u64,
    /// Bytes of a slot, with padding.
    pub bytes: u64,
    /// Slots, one after another.
    pub slots: u64,
}

/// A row that runs a task.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport<'p> {
    /// The task that runs.
    pub run: &'p str,
    /// Its stage.
    pub stage: u32,
    /// The micro-batch; none of what runs once.
    pub micro_batch: Option<u64>,
}

/// The programs of a set that are `wanted`, by position.
pub fn programs<'p>(set: &'p PlanSet, wanted: &dyn Fn(usize) -> bool) -> Vec<ProgramReport<'p>> {
    let places = set.places(set.mesh());
    let position = |place: &Vec<u64>| {
        let axes = set.axes.iter().map(|axis| (set.mesh().name(*axis).to_string(), place[axis.index()]));
        NamedSizes(axes.collect())
    };
    let report = |(number, program)| {
        let own = places.iter().zip(&set.of).filter(|(_, of)| **of == number);
        let report: ProgramReport<'p> = report(program);
        ProgramReport { positions: own.map(|(place, _)| position(place)).collect(), ..report }
    };
    set.programs.iter().enumerate().filter(|(number, _)| wanted(*number)).map(report).collect()
}

/// One program, on no rank.
pub fn report(program: &Program) -> ProgramReport<'_> {
    let names = Names::of(program);
    let Waits(waits) = derive(program);
    let times = times(program);
    let mut tasks: Vec<TaskReport<'_>> = vec![];
    let mut number = 0;
    for (Task { name, stage, steps }, times) in program.tasks.iter().zip(&times) {
        let waits = waits[number..].iter().cloned();
        let report = |(at, (step, after))| step_report(program, step, at, &names, after);
        let steps: Vec<StepReport<'_>> = (number..).zip(steps.iter().zip(waits)).map(report).collect();
        number += steps.len();
        let flops = steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.flops));
        tasks.push(TaskReport { name, stage: *stage, times: *times, flops, steps });
    }
    let run = |task: usize, time: u64| {
        let (name, stage) = (tasks[task].name, tasks[task].stage);
        RunReport { run: name, stage, micro_batch: (is_part(name) || times[task] > 1).then_some(time) }
    };
    let row = |(at, row): (usize, &Row)| match row {
        Row::Run { task, time } => RowReport::Run(run(*task as usize, *time)),
        Row::Exchange(_) => RowReport::Exchange { exchange: program.exchange(at).map(|end| end_report(program, end)).collect() },
    };
    let rows = program.order.iter().enumerate().map(row).collect();
    let buffers = program.buffers.iter().zip(&names.leaves).map(|(buffer, leaf)| buffer_report(program, buffer, leaf)).collect();
    ProgramReport { positions: vec![], peak: peak(program, &tasks), tasks, buffers, rows }
}

/// Whether the task of that name does a part of the model's work for one micro-batch: `F`, `B`.
pub(super) fn is_part(task: &str) -> bool {
    task.starts_with(|c: char| c.is_ascii_uppercase())
}

/// How often each task runs in a step of training.
fn times(program: &Program) -> Vec<u64> {
    let mut times = vec![0; program.tasks.len()];
    program.runs_of_tasks().for_each(|(task, _)| times[task] += 1);
    times
}

fn end_report<'p>(program: &'p Program, (message, time): (&'p Message, u64)) -> EndReport<'p> {
    let buffer = &program.buffers[message.view.buffer.index()];
    let timed = program.mesh.microbatches() > 1 && buffer.sharding.depends_on(program.mesh.microbatch_axis());
    EndReport {
        to: message.sends.then_some(message.peer),
        from: (!message.sends).then_some(message.peer),
        value: &message.value,
        micro_batch: timed.then_some(time),
        bytes: message.view.bytes,
        buffer: message.view.buffer.0,
        reason: message.provenance.reason.as_deref(),
        spec_line: message.provenance.spec_line,
    }
}

fn step_report<'p>(program: &'p Program, step: &'p Step, number: usize, names: &Names, after: Vec<usize>) -> StepReport<'p> {
    let operand = |source, view: &View| Operand {
        buffer: view.buffer.0,
        value: names.name(source).to_string(),
        offset: view.offset,
        bytes: view.bytes,
    };
    let reads = names.sources[number].iter().zip(&step.reads).map(|(source, view)| operand(*source, view));
    let writes = step.writes.iter().enumerate().map(|(i, view)| operand(Source::Step(number, i), view));
    let message = match &step.kernel {
        Kernel::Collective(call) => Some(CallReport {
            kind: call.kind,
            axes: call.axes.iter().map(|axis| program.mesh.name(*axis)).collect(),
            bytes_sent: bytes_sent(program, call),
        }),
        _ => None,
    };
    let views = step.reads.iter().chain(&step.writes);
    StepReport {
        number,
        stream: step.stream,
        when: step.when,
        op: &step.op,
        form: step.kernel.name(),
        reads: reads.collect(),
        writes: writes.collect(),
        scope: step.provenance.scope.as_deref(),
        reason: step.provenance.reason.as_deref(),
        spec_line: step.provenance.spec_line,
        partial: message.is_none().then(|| partial(program, step)).flatten(),
        flops: step.kernel.flops(),
        bytes_touched: views.fold(0, |sum: u64, view| sum.saturating_add(view.bytes)),
        message,
        after,
    }
}

/// The axes over which what a step writes is still partial.
fn partial(program: &Program, step: &Step) -> Option<String> {
    let buffers = step.writes.iter().map(|view| &program.buffers[view.buffer.index()]);
    let partial = buffers.map(|b| Sharding { partial: b.sharding.partial.clone(), ..Sharding::default() });
    partial.map(|sharding| sharding.text(&[], &program.mesh)).find(|text| !text.is_empty())
}

fn buffer_report<'p>(program: &'p Program, buffer: &'p Buffer, leaf: &str) -> BufferReport<'p> {
    BufferReport {
        name: leaf.to_string(),
        kind: match buffer.kind {
            BufferKind::State(state) => program.states.get(state as usize).map_or("state", |state| state.role.name()),
            _ => buffer.kind.name(),
        },
        dtype: buffer.dtype.to_string(),
        shape: &buffer.shape,
        local: &buffer.local,
        sharding: buffer.sharding.text(&buffer.shape, &program.mesh),
        offset: buffer.offset,
        bytes: buffer.slot_bytes,
        slots: buffer.slots,
    }
}
