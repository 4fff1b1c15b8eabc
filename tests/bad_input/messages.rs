//! Plans of a pipeline whose messages are many: in one row, or into ranges of bytes that overlap.

use super::case::Case;
use super::forged;
use shardc_ir::plan::{BufferId, Message, Program, Row, View};
use shardc_ir::plan_file::{decode, encode};
use shardc_testkit::onnx::{initializer, input, ints, model, node, output, weight};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;

/// The spec of the pipeline.
pub const SPEC: &str = "mesh pp=2\nbatch 4\npipeline axis=pp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";

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

/// All of them, for the good pipeline in `folder`.
pub fn cases(folder: &Path) -> Vec<Case> {
    let good = |name: &str| fs::read(folder.join("stages").join(name)).expect("a file of the good plan");
    let (plan, manifest) = (good("train.plan"), good("manifest.json"));
    let mut cases = vec![];
    for (name, change) in
        [("one message very often in a row", repeated as fn(&mut Program)), ("messages into ranges that overlap", overlapping)]
    {
        let mut programs = decode(&plan).expect("a plan");
        programs.programs.iter_mut().for_each(change);
        let bytes = encode(&programs).expect("a plan can be written");
        let (manifest, bytes) = (Arc::new(forged(&manifest, &plan, &bytes)), Arc::new(bytes));
        for command in ["verify stages", "inspect stages"] {
            let files = vec![("stages/manifest.json", Some(manifest.clone())), ("stages/train.plan", Some(bytes.clone()))];
            cases.push(Case::with(name, files, command));
        }
    }
    cases
}

/// The first row that exchanges something, and the message and micro-batch that it begins with.
fn first_exchange(program: &Program) -> (usize, (u32, u64)) {
    let begins = |(at, row): (usize, &Row)| match row {
        Row::Exchange(messages) => Some((at, *messages.first()?)),
        Row::Run { .. } => None,
    };
    program.order.iter().enumerate().find_map(begins).expect("it exchanges something")
}

fn repeated(program: &mut Program) {
    let (at, first) = first_exchange(program);
    program.order[at] = Row::Exchange(vec![first; 200_000]);
}

/// The message once more for each of many ranges, which lie 64 bytes behind one another.
fn overlapping(program: &mut Program) {
    let (at, (message, time)) = first_exchange(program);
    let message = program.messages[message as usize].clone();
    let buffer = program.buffers[message.view.buffer.index()].clone();
    let (messages, buffers) = (program.messages.len() as u32, program.buffers.len() as u32);
    let count = 8_000;
    for i in 0..count {
        let mut buffer = buffer.clone();
        buffer.offset = program.arena_bytes + 64 * u64::from(i);
        let view = View { buffer: BufferId(buffers + i), ..message.view };
        program.buffers.push(buffer);
        program.messages.push(Message { view, ..message.clone() });
    }
    program.arena_bytes += 64 * u64::from(count) + buffer.slot_bytes;
    program.order.splice(at..at, (0..count).map(|i| Row::Exchange(vec![(messages + i, time)])));
}
