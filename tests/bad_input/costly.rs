//! Models of a few hundred kilobytes whose parts meet many others: each with each, that took
//! seconds or gigabytes.

use super::case::Case;
use prost::Message;
use shardc_testkit::onnx::{floats, graph, initializer, input, int, ints, model, node, output, weight};
use std::sync::Arc;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};

const SPEC: &str = "batch 4\nloss mse prediction=y labels=t\noptimizer adam lr=0.1\n";
const INIT: &str = "init model.onnx";
const COMPILE: &str = "compile model.onnx --spec job.shard -o p";
const PROPAGATE: &str = "compile model.onnx --spec job.shard --stop-after propagate --no-certificate";
const ZERO: &str = "compile model.onnx --spec job.shard --stop-after zero --no-certificate";
const PLAN: &str = "plan model.onnx --spec job.shard --ranks 2";

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![];
    let long_axis = format!("mesh {}=2\n", "a".repeat(100_000));
    for (name, model, lines, commands) in [
        ("many calls of a function of many inputs", file(calls(4_000)), "", &[INIT, COMPILE][..]),
        ("outputs of a function that are its inputs", file(outputs_of_inputs(20_000)), "", &[INIT, COMPILE]),
        ("a long name of a branch", file(long_branch(100_000)), "", &[INIT, COMPILE]),
        ("nested branches", file(nested(10_000)), "", &[INIT, COMPILE]),
        ("many readers of what many make", file(meeting(2_000)), "", &[INIT, COMPILE]),
        ("an addition of many", file(with_op("Add", 30_000)), "", &[INIT, COMPILE]),
        ("an equation of many", file(with_op("Einsum", 10_000)), "", &[INIT, COMPILE]),
        ("a list that grows", file(list(3_000)), "", &[INIT, COMPILE]),
        ("a long name of a recurrence", file(recurrence(100_000)), "", &[INIT]),
        ("a long name of an axis", file(sums_of_pairs(20)), long_axis.as_str(), &[COMPILE]),
        ("splits that move one op a sweep", file(sums_of_pairs(1_500)), "mesh tp=2\nshard \"c0\" [tp, -]\n", &[PROPAGATE]),
        ("many parameters", file(biases(3_000)), "mesh dp=2\ndata axis=dp\nzero stage=1 axis=dp\n", &[ZERO]),
        (
            "blocks that meet others, and so on",
            file(sums_of_pairs(200)),
            "mesh tp=1\nshard \"c0\" [(3|1)*tp, -]\ntrain \"*\"\n",
            &[COMPILE],
        ),
        ("a parameter that is doubled over and over", file(doubled(24)), "train \"c\"\n", &[PLAN]),
    ] {
        let spec = Arc::new(format!("{lines}{SPEC}").into_bytes());
        for command in commands {
            let files = vec![("model.onnx", Some(model.clone())), ("job.shard", Some(spec.clone()))];
            cases.push(Case::with(name, files, command));
        }
    }
    cases
}

/// The file of a model, which is let go at once.
fn file(model: ModelProto) -> Arc<Vec<u8>> {
    Arc::new(model.encode_to_vec())
}

/// `y = x w`, behind what `other` makes.
fn beside(other: impl FnOnce(&mut ModelProto)) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    other(&mut m);
    node(&mut m, "MatMul", "x w", "y", vec![]);
    output(&mut m, "y");
    m
}

/// `y = x w + s`, for the `s` that `other` makes.
fn plus(other: impl FnOnce(&mut ModelProto)) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    node(&mut m, "MatMul", "x w", "p", vec![]);
    other(&mut m);
    node(&mut m, "Add", "p s", "y", vec![]);
    output(&mut m, "y");
    m
}

/// A function of the model, called by a node of its name.
fn function(m: &mut ModelProto, inputs: Vec<String>, outputs: Vec<String>) {
    m.opset_import.push(OperatorSetIdProto { domain: "d".into(), version: 1 });
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 20 }];
    let (name, domain) = (Some("f".into()), Some("d".into()));
    m.functions.push(FunctionProto { name, domain, input: inputs, output: outputs, opset_import, ..Default::default() });
}

fn call(m: &mut ModelProto, output: Vec<String>) {
    let call = NodeProto { op_type: "f".into(), domain: "d".into(), output, ..Default::default() };
    graph(m).node.push(call);
}

fn calls(n: usize) -> ModelProto {
    beside(|m| {
        function(m, (0..n).map(|i| format!("{i:x}")).collect(), vec![]);
        (0..n).for_each(|_| call(m, vec![]));
    })
}

fn outputs_of_inputs(n: usize) -> ModelProto {
    beside(|m| {
        let names = |letter: char| (0..n).map(|i| format!("{letter}{i:x}")).collect::<Vec<_>>();
        function(m, names('i'), names('i').into_iter().rev().collect());
        call(m, names('q'));
    })
}

/// An `If` over a constant, with these branches.
fn branches(condition: &str, output: String, then: GraphProto, or: GraphProto) -> NodeProto {
    let branch = |name: &str, g: GraphProto| AttributeProto { name: name.into(), r#type: 5, g: Some(g), ..Default::default() };
    let attribute = vec![branch("then_branch", then), branch("else_branch", or)];
    NodeProto { op_type: "If".into(), input: vec![condition.into()], output: vec![output], attribute, ..Default::default() }
}

/// A branch that gives `x` as `z`, beside `others`.
fn branch(others: Vec<NodeProto>, initializer: Vec<tract_onnx::pb::TensorProto>) -> GraphProto {
    let (input, output) = (vec!["x".into()], vec!["z".into()]);
    let mut node = others;
    if !node.iter().any(|node| node.op_type == "If") {
        node.push(NodeProto { op_type: "Identity".into(), input, output, ..Default::default() });
    }
    let output = vec![ValueInfoProto { name: "z".into(), ..Default::default() }];
    GraphProto { name: "g".into(), node, initializer, output, ..Default::default() }
}

fn condition(m: &mut ModelProto) {
    initializer(m, shardc_testkit::onnx::raw("c", DataType::Bool, &[], vec![1]));
}

fn long_branch(n: usize) -> ModelProto {
    beside(|m| {
        condition(m);
        let weights = (0..n / 50).map(|i| floats(&format!("{i:x}"), &[0], &[])).collect();
        graph(m).node.push(branches("c", "q".repeat(n), branch(vec![], weights), branch(vec![], vec![])));
    })
}

fn nested(n: usize) -> ModelProto {
    beside(|m| {
        condition(m);
        let mut inner = branch(vec![NodeProto::default(); n], vec![]);
        for _ in 0..30 {
            inner = branch(vec![branches("c", "z".into(), inner, branch(vec![], vec![]))], vec![]);
        }
        graph(m).node.extend(inner.node);
    })
}

/// Many parameters in one value, which many nodes read.
fn meeting(n: usize) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    (0..n).for_each(|i| initializer(&mut m, floats(&format!("w{i}"), &[1], &[i as f32])));
    let all: Vec<String> = (0..n).map(|i| format!("w{i}")).collect();
    node(&mut m, "Concat", &all.join(" "), "all", vec![int("axis", 0)]);
    node(&mut m, "ReduceMax", "all", "s", vec![int("keepdims", 0)]);
    node(&mut m, "MatMul", "x w", "p0", vec![]);
    (0..n).for_each(|i| node(&mut m, "Add", &format!("p{i} s"), &format!("p{}", i + 1), vec![]));
    node(&mut m, "Neg", &format!("p{n}"), "y", vec![]);
    output(&mut m, "y");
    m
}

/// An op of many operands.
fn with_op(op: &str, n: usize) -> ModelProto {
    plus(|m| {
        initializer(m, floats("k", &[2], &[1.0, 1.0]));
        let attributes = match op {
            "Einsum" => vec![shardc_testkit::onnx::string("equation", &format!("{}a->a", "a,".repeat(n - 1)))],
            _ => vec![],
        };
        node(m, op, &vec!["k"; n].join(" "), "s", attributes);
    })
}

/// A list that gets one tensor more, over and over; none of them is let go.
fn list(n: usize) -> ModelProto {
    plus(|m| {
        node(m, "SequenceEmpty", "", "s0", vec![]);
        (0..n).for_each(|i| node(m, "SequenceInsert", &format!("s{i} p"), &format!("s{}", i + 1), vec![]));
        (0..n).for_each(|i| node(m, "SequenceLength", &format!("s{}", i + 1), &format!("l{i}"), vec![]));
        let all: Vec<String> = (0..n).map(|i| format!("l{i}")).collect();
        node(m, "Sum", &all.join(" "), "l", vec![]);
        node(m, "Cast", "l", "s", vec![int("to", 1)]);
    })
}

fn recurrence(n: usize) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[64, -1, 3]);
    initializer(&mut m, weight("W", &[1, 2, 3], 1));
    initializer(&mut m, weight("R", &[1, 2, 2], 1));
    initializer(&mut m, ints("zero", &[1], &[0]));
    node(&mut m, "RNN", "x W R", &format!("{} h", "r".repeat(n)), vec![int("hidden_size", 2)]);
    node(&mut m, "Squeeze", "h zero", "y", vec![]);
    output(&mut m, "y");
    m
}

/// The sum of products of each parameter of a row with the next one, so ordered that a split moves
/// from one to the next in no sweep further than to the next.
fn sums_of_pairs(n: usize) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    (0..=n).for_each(|i| initializer(&mut m, weight(&format!("c{i}"), &[4, 2], i as u64)));
    let order: Vec<usize> = (0..n).rev().filter(|i| i % 2 == 0).chain((0..n).rev().filter(|i| i % 2 == 1)).collect();
    for i in &order {
        node(&mut m, "Mul", &format!("c{i} c{}", i + 1), &format!("d{i}"), vec![]);
        node(&mut m, "ReduceSum", &format!("d{i}"), &format!("e{i}"), vec![int("keepdims", 0)]);
    }
    let all: Vec<String> = order.iter().map(|i| format!("e{i}")).collect();
    node(&mut m, "Sum", &all.join(" "), "s", vec![]);
    node(&mut m, "MatMul", "x w", "p", vec![]);
    node(&mut m, "Mul", "p s", "y", vec![]);
    output(&mut m, "y");
    m
}

fn biases(n: usize) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    node(&mut m, "MatMul", "x w", "v0", vec![]);
    for i in 0..n {
        initializer(&mut m, weight(&format!("b{i}"), &[2], i as u64));
        node(&mut m, "Add", &format!("v{i} b{i}"), &format!("v{}", i + 1), vec![]);
    }
    node(&mut m, "Relu", &format!("v{n}"), "y", vec![]);
    output(&mut m, "y");
    m
}

/// A parameter times itself, and that times itself, and so on, which all of a row of nodes read.
fn doubled(n: usize) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    initializer(&mut m, weight("c", &[2], 1));
    node(&mut m, "Mul", "c c", "a0", vec![]);
    (1..n).for_each(|i| node(&mut m, "Mul", &format!("a{0} a{0}", i - 1), &format!("a{i}"), vec![]));
    node(&mut m, "MatMul", "x w", "v0", vec![]);
    (0..8).for_each(|i| node(&mut m, "Mul", &format!("v{i} a{}", n - 1), &format!("v{}", i + 1), vec![]));
    node(&mut m, "Relu", "v8", "y", vec![]);
    output(&mut m, "y");
    m
}
