//! Specs that are wrong in many places, over models of many names.

use super::MODEL_COMMANDS;
use super::case::Case;
use prost::Message;
use shardc_testkit::onnx::{floats, initializer, input, model, node, output, weight};
use std::sync::Arc;
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;

const SPEC: &str = "mesh dp=2 tp=2\nbatch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";

/// The bytes of the lines that a spec has besides.
const BYTES: usize = 150_000;

/// All of them.
pub fn cases() -> Vec<Case> {
    let (short, long) = (names(2_000, 20), names(800, 200));
    let models = [("short", short), ("long", long)].map(|(name, model)| (name, Arc::new(model.encode_to_vec())));
    let mut cases = vec![];
    for (what, text) in specs() {
        let spec = Arc::new(format!("{SPEC}{text}").into_bytes());
        for (length, model) in &models {
            for command in &MODEL_COMMANDS[1..3] {
                let files = vec![("model.onnx", Some(model.clone())), ("job.shard", Some(spec.clone()))];
                cases.push(Case::with(format!("{what} over {length} names"), files, command));
            }
        }
    }
    cases
}

/// `y = x w`, and so many biases, each with a module and a name of at least so many characters.
fn names(number: usize, length: usize) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    node(&mut m, "MatMul", "x w", "n0", vec![]);
    for i in 0..number {
        let name = format!("{}{i}.b", "n".repeat(length));
        initializer(&mut m, floats(&name, &[2], &[i as f32, 1.0]));
        node(&mut m, "Add", &format!("n{i} {name}"), &if i + 1 == number { "y".into() } else { format!("n{}", i + 1) }, vec![]);
    }
    output(&mut m, "y");
    m
}

/// Lines until there are enough bytes of them.
fn lines(line: impl Fn(usize) -> String) -> String {
    let lines = (0..).map(|i| line(i) + "\n");
    let lines = lines.scan(0, |bytes, line| {
        *bytes += line.len();
        (*bytes < BYTES).then_some(line)
    });
    lines.collect()
}

fn specs() -> Vec<(&'static str, String)> {
    let near = "n".repeat(199);
    vec![
        ("unknown statements", "a\n".repeat(BYTES / 2)),
        ("lines that begin with no word", lines(|_| "a=".into())),
        ("unknown axes", format!("data axis=({})\n", "z,".repeat(BYTES / 2))),
        ("unknown axes of a line that is read", format!("data axis=({}z)\n", "z,".repeat(50_000))),
        ("unknown sizes", format!("bind {}\n", (0..12_000).map(|i| format!("s{i}=4 ")).collect::<String>())),
        ("patterns without a match", lines(|i| format!("freeze \"q{i}\""))),
        ("patterns of like names", lines(|i| format!("shard \"{near}{i}\" [-]"))),
        ("patterns with a `*` inside", lines(|i| format!("freeze \"n*q{i}\""))),
        ("initial values without a parameter", lines(|i| format!("init \"q{i}\" auto"))),
        ("ties of nothing", lines(|i| format!("tie \"q{i}\" \"r{i}\""))),
        ("ties of some", lines(|i| format!("tie \"nnnnnnnnnnnnnnnnnnnn{}.b\" \"nnnnnnnnnnnnnnnnnnnn{}.b\"", 2 * i, 2 * i + 1))),
        ("patterns of `untie`", lines(|i| format!("untie \"*.q{i}\""))),
        ("modules of `data`", (0..1000).map(|i| format!("data axis=dp on=\"q{i}\"\n")).collect()),
        ("modules of `zero`", (0..1000).map(|i| format!("zero stage=1 axis=dp on=\"*.q{i}\"\n")).collect()),
        ("modules of `tensor`", lines(|i| format!("tensor axis=tp on=\"{near}{i}\""))),
        ("modules of `recompute`", (0..1000).map(|i| format!("recompute \"q{i}\"\n")).collect()),
    ]
}
