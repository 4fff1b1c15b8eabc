//! Plans of a pipeline with many messages, tasks or steps: in one row, over ranges that overlap, or
//! once more in each of many micro-batches.

use super::case::Case;
use super::forged;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Kernel, Move};
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Message, Program, Provenance, Row, Step, Task, View, When};
use shardc_ir::plan_file::{decode, encode};
use shardc_ir::position::Offset;
use shardc_testkit::onnx::{initializer, input, ints, model, node, output, weight};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;

/// The spec of the pipeline.
pub const SPEC: &str = "mesh pp=2\nbatch 4\npipeline axis=pp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";

/// The spec of a pipeline with many micro-batches.
pub const MANY: &str =
    "mesh pp=2\nbatch 8192 microbatches=8192\npipeline axis=pp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";

/// So many ranges overlap.
const COPIES: u32 = 8_000;

/// In so many buffers an input is kept, each with a slot for every micro-batch.
const KEPT: u32 = 500;

/// `y = mean(relu(x v) w)`, where `x` is wide, so that a message of 1 MiB goes between two stages.
pub fn wide() -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 1 << 16]);
    initializer(&mut m, weight("v", &[1], 1));
    initializer(&mut m, weight("w", &[1], 2));
    node(&mut m, "Mul", "x v", "p", vec![]);
    node(&mut m, "Relu", "p", "r", vec![]);
    node(&mut m, "Mul", "r w", "q", vec![]);
    initializer(&mut m, ints("axis", &[1], &[1]));
    node(&mut m, "ReduceMean", "q axis", "y", vec![]);
    output(&mut m, "y");
    m
}

/// All of them, for the good pipelines in `folder`.
pub fn cases(folder: &Path) -> Vec<Case> {
    let mut cases = vec![];
    for (name, plan, change) in [
        ("one message very often in a row", "stages", repeated as fn(&mut Program)),
        ("messages into ranges that overlap", "stages", received),
        ("tasks that write ranges that overlap", "stages", computed),
        ("one value very often in each micro-batch", "many", kept),
        ("one value in many slots", "many", kept_once),
    ] {
        let good = |name: &str| fs::read(folder.join(plan).join(name)).expect("a file of the good plan");
        let (programs, manifest) = (good("train.plan"), good("manifest.json"));
        let mut forgery = decode(&programs).expect("a plan");
        change(&mut forgery.programs[0]);
        let bytes = encode(&forgery).expect("a plan can be written");
        let (manifest, bytes) = (Arc::new(forged(&manifest, &programs, &bytes)), Arc::new(bytes));
        for command in ["verify", "inspect"] {
            let [manifest_file, programs_file] = ["manifest.json", "train.plan"].map(|file| format!("{plan}/{file}"));
            let files = vec![(&*manifest_file, Some(manifest.clone())), (&*programs_file, Some(bytes.clone()))];
            cases.push(Case::with(name, files, &format!("{command} {plan}")));
        }
    }
    cases
}

/// The first message that is sent, or received, with its micro-batch and the position of its row.
fn first(program: &Program, sends: bool) -> (usize, (u32, u64)) {
    let is_such = |(message, _): &&(u32, u64)| program.messages[*message as usize].sends == sends;
    let of_row = |(at, row): (usize, &Row)| match row {
        Row::Exchange(messages) => Some((at, *messages.iter().find(is_such)?)),
        Row::Run { .. } => None,
    };
    program.order.iter().enumerate().find_map(of_row).expect("such a message")
}

fn repeated(program: &mut Program) {
    let (at, message) = first(program, true);
    program.order[at] = Row::Exchange(vec![message; 200_000]);
}

/// The message once more for each of many new buffers, which lie 64 bytes behind one another.
fn spread(program: &mut Program, message: u32) -> impl Iterator<Item = (u32, BufferId)> + use<> {
    let message = program.messages[message as usize].clone();
    let buffer = program.buffers[message.view.buffer.index()].clone();
    let (messages, buffers) = (program.messages.len() as u32, program.buffers.len() as u32);
    for i in 0..COPIES {
        let mut buffer = buffer.clone();
        buffer.offset = program.arena_bytes + 64 * u64::from(i);
        let view = View { buffer: BufferId(buffers + i), ..message.view };
        program.buffers.push(buffer);
        program.messages.push(Message { view, ..message.clone() });
    }
    program.arena_bytes += 64 * u64::from(COPIES - 1) + buffer.slot_bytes;
    (0..COPIES).map(move |i| (messages + i, BufferId(buffers + i)))
}

fn received(program: &mut Program) {
    let (at, (message, time)) = first(program, false);
    let rows: Vec<Row> = spread(program, message).map(|(message, _)| Row::Exchange(vec![(message, time)])).collect();
    program.order.splice(at..at, rows);
}

/// The step that makes what is sent, once more for each buffer, in a task of its own.
fn computed(program: &mut Program) {
    let (at, (message, time)) = first(program, true);
    let sent = program.messages[message as usize].view.buffer;
    let mut steps = program.tasks.iter().flat_map(|task| &task.steps);
    let step = steps.find(|step| step.writes.iter().any(|view| view.buffer == sent)).expect("a step makes it").clone();
    let mut rows = vec![];
    for (message, buffer) in spread(program, message) {
        let mut step = step.clone();
        step.writes[0].buffer = buffer;
        rows.extend([Row::Run { task: program.tasks.len() as u32, time }, Row::Exchange(vec![(message, time)])]);
        program.tasks.push(Task { name: "F".into(), stage: 0, steps: vec![step] });
    }
    program.order.splice(at..at, rows);
}

/// Steps that copy an input into each of many new buffers, and others that copy it from there.
fn copies(program: &mut Program) -> [Vec<Step>; 2] {
    let is_input = |buffer: &&Buffer| matches!(buffer.kind, BufferKind::Input(_));
    let (x, input) = (0..).zip(&program.buffers).find(|(_, buffer)| is_input(buffer)).expect("an input");
    let (shape, input) = (input.local.clone(), Buffer { kind: BufferKind::Activation, ..input.clone() });
    let stream = program.tasks.iter().find_map(|task| Some(task.steps.first()?.stream)).expect("a step");
    let copy = |from: BufferId, to: BufferId| {
        let view = |buffer| View { buffer, offset: 0, bytes: shape.iter().product::<u64>() * input.dtype.bytes() };
        let strides = row_major(&shape);
        let (src_offset, src_strides, dst_offset) = (Offset::default(), strides.clone(), Offset::default());
        let copy = Move { dtype: input.dtype, shape: shape.clone(), src_offset, src_strides, dst_offset, dst_strides: strides };
        Step {
            stream,
            kernel: Kernel::Move(copy),
            reads: vec![view(from)],
            writes: vec![view(to)],
            op: String::new(),
            results: vec![input.name.clone()],
            provenance: Provenance { ops: vec![input.name.clone()], ..Provenance::default() },
            when: When::Each,
        }
    };
    let spare = BufferId(program.buffers.len() as u32);
    for _ in 0..=KEPT {
        program.buffers.push(Buffer { offset: program.arena_bytes, ..input.clone() });
        program.arena_bytes += input.slot_bytes * input.slots;
    }
    let new = (1..=KEPT).map(|i| BufferId(spare.0 + i));
    [new.clone().map(|new| copy(BufferId(x), new)).collect(), new.map(|new| copy(new, spare)).collect()]
}

/// An input is kept once more in each of many buffers, with every micro-batch.
fn kept(program: &mut Program) {
    for (name, steps) in ["F", "B"].into_iter().zip(copies(program)) {
        program.tasks.iter_mut().find(|task| task.name == name).expect("such a task").steps.extend(steps);
    }
}

/// As [`kept`], with one micro-batch alone, by tasks of their own; the slots are there for all.
fn kept_once(program: &mut Program) {
    for (at, steps) in copies(program).into_iter().enumerate() {
        program.order.insert(at, Row::Run { task: program.tasks.len() as u32, time: 0 });
        program.tasks.push(Task { name: "F".into(), stage: 0, steps });
    }
}
