//! What each part of a program becomes, without its waits.

use super::products::{self, Second};
use super::tf32::Rounded;
use super::{FAULT_BYTES, Part, Pointer, ROOM_ALIGNMENT, Range, Row, Run, Section, Work};
use crate::Launch;
use crate::generated::{Memory, Parameter};
use crate::matmul::Matmul;
use crate::program::Kernels;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{BufferId, BufferKind, Program, Row as Turn, Step, Stream, View, Way, When};
use std::collections::BTreeMap;

/// The sections of a program, and the order of them. Steps without a kernel have no rows, and
/// `kernels` says which they are.
pub fn of(program: &Program, kernels: &mut Kernels) -> (Vec<Section>, Vec<Run>) {
    let (messages, order) = order(program);
    let rounded = Rounded::of(program);
    let mut sections = vec![Section { part: Part::Begin, rows: begin(program) }];
    for (at, task) in (0..).zip(&program.tasks) {
        let seconds = products::of(program, task, kernels, &rounded);
        let is_second = |number: usize| seconds.values().any(|second| second.step == number);
        let mut rows = vec![];
        for (number, step) in task.steps.iter().enumerate().filter(|(number, _)| !is_second(*number)) {
            let second = seconds.get(&number);
            rows.extend(works(program, step, second, kernels, &rounded).into_iter().map(|work| Row {
                step: Some(number as u32),
                second: second.map(|second| second.step as u32),
                stream: step.stream,
                when: step.when,
                waits: vec![],
                work,
            }));
        }
        sections.push(Section { part: Part::Task(at), rows });
    }
    for (way, messages) in messages {
        let ranges = messages.iter().map(|m| range(program, &program.messages[*m as usize].view)).collect();
        let row = row(Stream::Messages(way), Work::Messages { way, ranges });
        sections.push(Section { part: Part::Messages(messages), rows: vec![row] });
    }
    sections.push(Section { part: Part::End, rows: ending(program) });
    (sections, order)
}

/// Each set of messages that go one way together, and the order of the sections.
fn order(program: &Program) -> (Vec<(Way, Vec<u32>)>, Vec<Run>) {
    let mut sets: Vec<(Way, Vec<u32>)> = vec![];
    let mut known: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
    let mut order = vec![Run { section: 0, times: vec![0] }];
    for (at, turn) in program.order.iter().enumerate() {
        if let Turn::Run { task, time } = turn {
            order.push(Run { section: 1 + task, times: vec![*time] });
        }
        for (way, messages) in program.exchanged_by_way(at) {
            let (set, times): (Vec<u32>, Vec<u64>) = messages.into_iter().map(|(message, time)| (message as u32, time)).unzip();
            let number = *known.entry(set.clone()).or_insert(sets.len());
            if number == sets.len() {
                sets.push((way, set));
            }
            order.push(Run { section: (1 + program.tasks.len() + number) as u32, times });
        }
    }
    order.push(Run { section: (1 + program.tasks.len() + sets.len()) as u32, times: vec![0] });
    (sets, order)
}

fn row(stream: Stream, work: Work) -> Row {
    Row { step: None, second: None, stream, when: When::Each, waits: vec![], work }
}

/// What the host writes: the word for wrong data, inputs, numbers.
fn begin(program: &Program) -> Vec<Row> {
    let inputs = (0..).zip(&program.inputs).map(|(input, of)| Work::CopyInput { input, to: whole(program, of.buffer) });
    let scalars = (0..).zip(&program.buffers).filter_map(|(id, buffer)| match buffer.kind {
        BufferKind::Scalar(scalar) => Some(Work::CopyScalar { scalar, to: whole(program, BufferId(id)) }),
        _ => None,
    });
    let clear = Work::Clear { to: fault(program) };
    [clear].into_iter().chain(inputs).chain(scalars).map(|work| row(Stream::Main, work)).collect()
}

/// What the host reads: the word for wrong data, results.
fn ending(program: &Program) -> Vec<Row> {
    let outputs = (0..).zip(&program.outputs).map(|(output, of)| Work::CopyOutput { output, from: whole(program, of.buffer) });
    let word = Work::CopyFault { from: fault(program) };
    [word].into_iter().chain(outputs).map(|work| row(Stream::Main, work)).collect()
}

/// The rows' work of a step, with a second one; none where its kernel has no text.
fn works(program: &Program, step: &Step, second: Option<&Second>, kernels: &mut Kernels, rounded: &Rounded) -> Vec<Work> {
    let ranges = |views: &[View]| views.iter().map(|view| range(program, view)).collect();
    if let Kernel::Collective(call) = &step.kernel {
        return vec![Work::Call { call: call.clone(), reads: ranges(&step.reads), writes: ranges(&step.writes) }];
    }
    if let Some(product) = products::own(step, kernels, rounded) {
        return vec![multiplied(program, step, product, second)];
    }
    let Some((used, launches)) = kernels.add_step(program, step) else { return vec![] };
    let name = &used.generated.name;
    launches.iter().map(|launch| launched(program, step, name, launch)).collect()
}

/// A contraction that cuBLASLt computes, with a second step. It is told how far operands are
/// aligned: `C` begins where `D` does, or at no less than the elements of both.
fn multiplied(program: &Program, step: &Step, product: Matmul, second: Option<&Second>) -> Work {
    let product = second.map_or(product, |second| second.product.clone());
    let own = |view: &View| range(program, view);
    let [a, b] = [step.reads[0], step.reads[1]].map(|view| own(&view));
    let d = own(second.map_or(&step.writes[0], |second| &second.result));
    let added = second.and_then(|second| second.added.as_ref()).map(own);
    let vector = second.and_then(|second| second.vector.as_ref()).map(own);
    let alignment = |range: &Range| range.start | if range.slots > 1 { range.slot_bytes } else { 0 };
    let results = alignment(&d) | added.as_ref().map_or(0, alignment);
    let product = product.aligned([alignment(&a), alignment(&b), results]);
    let room = alone(workspace(program), product.workspace);
    let [a, b] = if product.swapped { [b, a] } else { [a, b] };
    Work::Product { product: Box::new(product), a, b, d, added, vector, room }
}

fn launched(program: &Program, step: &Step, kernel: &str, launch: &Launch) -> Work {
    let pointer = |parameter: &Parameter| {
        let operand = |view: &View| Range { bytes: parameter.bytes, ..range(program, view) };
        let range = match parameter.memory {
            Memory::Read(at) => operand(&step.reads[at]),
            Memory::Write(at) => operand(&step.writes[at]),
            Memory::Workspace => alone(workspace(program), parameter.bytes),
            Memory::Fault => alone(program.arena_bytes, parameter.bytes),
        };
        Pointer::of(parameter, range)
    };
    Work::Launch {
        kernel: kernel.to_owned(),
        entry: launch.entry.clone(),
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        pointers: launch.parameters.iter().map(pointer).collect(),
        numbers: launch.numbers.clone(),
    }
}

/// The first byte behind the arena and the word for wrong data from which on partial results lie.
pub fn workspace(program: &Program) -> u64 {
    (program.arena_bytes + FAULT_BYTES).next_multiple_of(ROOM_ALIGNMENT)
}

fn fault(program: &Program) -> Range {
    alone(program.arena_bytes, FAULT_BYTES)
}

fn alone(start: u64, bytes: u64) -> Range {
    Range { start, bytes, slots: 1, slot_bytes: 0 }
}

/// All slots of a buffer.
fn whole(program: &Program, id: BufferId) -> Range {
    let buffer = &program.buffers[id.index()];
    alone(buffer.offset, buffer.slot_bytes * buffer.slots)
}

fn range(program: &Program, view: &View) -> Range {
    let buffer = &program.buffers[view.buffer.index()];
    let slot_bytes = if buffer.slots > 1 { buffer.slot_bytes } else { 0 };
    Range { start: buffer.offset + view.offset, bytes: view.bytes, slots: buffer.slots, slot_bytes }
}
