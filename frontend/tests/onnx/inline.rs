//! Model-local functions and branches of `If` become plain nodes; recursion and bombs are refused.

use shardc_frontend::onnx::ImportOptions;
use shardc_ir::graph::Graph;
use shardc_testkit::onnx::*;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

fn plain(op: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<pb::AttributeProto>) -> pb::NodeProto {
    let names = |list: &[&str]| list.iter().map(|n| n.to_string()).collect();
    pb::NodeProto {
        op_type: op.into(),
        input: names(inputs),
        output: names(outputs),
        attribute: attributes,
        ..Default::default()
    }
}

fn call(name: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<pb::AttributeProto>) -> pb::NodeProto {
    pb::NodeProto { domain: "local".into(), name: format!("/net/{name}/call"), ..plain(name, inputs, outputs, attributes) }
}

fn refer(name: &str, to: &str, kind: AttributeType) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), ref_attr_name: to.into(), r#type: kind as i32, ..Default::default() }
}

fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<pb::NodeProto>) -> pb::FunctionProto {
    let names = |list: &[&str]| list.iter().map(|n| n.to_string()).collect();
    pb::FunctionProto {
        name: Some(name.into()),
        domain: Some("local".into()),
        input: names(inputs),
        output: names(outputs),
        node: nodes,
        opset_import: vec![pb::OperatorSetIdProto { domain: String::new(), version: 18 }],
        ..Default::default()
    }
}

fn with(functions: Vec<pb::FunctionProto>, nodes: Vec<pb::NodeProto>) -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[2, 3]);
    initializer(&mut m, floats("w", &[3, 3], &[1.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.0, 1.0]));
    graph(&mut m).node = nodes;
    m.functions = functions;
    output(&mut m, "y");
    m
}

fn graph_of(m: &pb::ModelProto) -> Graph {
    import_model(m, &ImportOptions::default()).unwrap_or_else(|errors| panic!("{errors:#?}")).graph
}

fn ops(graph: &Graph) -> Vec<&str> {
    graph.nodes().map(|(_, n)| n.op.name()).filter(|n| !["input", "state", "constant"].contains(n)).collect()
}

fn refusal(m: &pb::ModelProto) -> String {
    import_model(m, &ImportOptions::default()).map(|i| i.decisions).unwrap_err().iter().map(|e| format!("{e}\n")).collect()
}

#[test]
fn calls_become_the_nodes_of_their_functions() {
    let linear = function(
        "Linear",
        &["a", "weight", "bias"],
        &["out", "in_again"],
        vec![
            plain("MatMul", &["a", "weight"], &["p"], vec![]),
            plain("LeakyRelu", &["p"], &["out"], vec![refer("alpha", "slope", AttributeType::Float)]),
        ],
    );
    let linear = pb::FunctionProto { output: vec!["out".into(), "a".into()], attribute: vec!["slope".into()], ..linear };
    let twice = function(
        "Twice",
        &["v", "m"],
        &["r"],
        vec![
            call("Linear", &["v", "m"], &["p", "q"], vec![refer("slope", "steep", AttributeType::Float)]),
            call("Linear", &["p", "m", ""], &["s"], vec![]),
            plain("Add", &["s", "q"], &["r"], vec![]),
        ],
    );
    let m = with(
        vec![twice, linear],
        vec![call("Twice", &["x", "w"], &["p"], vec![float("steep", 0.25)]), call("Twice", &["p", "w"], &["y"], vec![])],
    );
    let graph = graph_of(&m);
    assert_eq!(ops(&graph).iter().filter(|n| **n == "contract").count(), 4);
    assert_eq!(graph.states.len(), 1);
    let scopes: Vec<&str> = graph.nodes().filter_map(|(_, n)| n.origin.scope.as_deref()).collect();
    assert!(scopes.iter().all(|scope| scope.starts_with("net.Twice")), "{scopes:?}");
}

#[test]
fn functions_called_for_the_output_of_another_keep_their_names() {
    // Both have a `t` of their own, and the inner one makes the output of the outer one.
    let inner =
        function("Inner", &["a"], &["b"], vec![plain("Neg", &["a"], &["t"], vec![]), plain("Exp", &["t"], &["b"], vec![])]);
    let outer =
        function("Outer", &["c"], &["d"], vec![plain("Tanh", &["c"], &["t"], vec![]), call("Inner", &["t"], &["d"], vec![])]);
    let m = with(vec![inner, outer], vec![call("Outer", &["x"], &["y"], vec![])]);
    assert_eq!(ops(&graph_of(&m)), ["tanh", "neg", "exp"]);
}

#[test]
fn functions_that_do_not_end_are_refused() {
    let again = function("Again", &["a"], &["b"], vec![call("Other", &["a"], &["b"], vec![])]);
    let other = function("Other", &["a"], &["b"], vec![call("Again", &["a"], &["b"], vec![])]);
    let m = with(vec![again, other], vec![call("Again", &["x"], &["y"], vec![])]);
    assert!(refusal(&m).contains("calls itself"));
    // Each calls the one before twice: 2^40 nodes.
    let step = |i: usize| {
        let before = format!("F{}", i - 1);
        let nodes = vec![call(&before, &["a"], &["p"], vec![]), call(&before, &["p"], &["b"], vec![])];
        function(&format!("F{i}"), &["a"], &["b"], nodes)
    };
    let first = function("F0", &["a"], &["b"], vec![plain("Relu", &["a"], &["b"], vec![])]);
    let bomb = [first].into_iter().chain((1..40).map(step)).collect();
    assert!(refusal(&with(bomb, vec![call("F39", &["x"], &["y"], vec![])])).contains("make more than"));
    let deep =
        (1..100).map(|i| function(&format!("F{i}"), &["a"], &["b"], vec![call(&format!("F{}", i - 1), &["a"], &["b"], vec![])]));
    let first = function("F0", &["a"], &["b"], vec![plain("Relu", &["a"], &["b"], vec![])]);
    let deep = [first].into_iter().chain(deep).collect();
    assert!(refusal(&with(deep, vec![call("F99", &["x"], &["y"], vec![])])).contains("deep"));
    let twice = vec![function("F", &["a"], &["b"], vec![]), function("F", &["a"], &["b"], vec![])];
    assert!(refusal(&with(twice, vec![call("F", &["x"], &["y"], vec![])])).contains("defined twice"));
    let empty = vec![function("F", &["a"], &["b"], vec![])];
    assert!(refusal(&with(empty, vec![call("F", &["x"], &["y"], vec![])])).contains("nothing defines it"));
}

fn branch(name: &str, nodes: Vec<pb::NodeProto>, output: &str, initializers: Vec<pb::TensorProto>) -> pb::AttributeProto {
    let graph = pb::GraphProto {
        name: name.into(),
        node: nodes,
        initializer: initializers,
        output: vec![pb::ValueInfoProto { name: output.into(), ..Default::default() }],
        ..Default::default()
    };
    pb::AttributeProto { name: name.into(), r#type: AttributeType::Graph as i32, g: Some(graph), ..Default::default() }
}

/// `y = relu(x w)` where the rank of `x` is `rank`, else something that no import can do.
fn chosen(rank: i64) -> pb::ModelProto {
    let then = branch("then_branch", vec![plain("Relu", &["p"], &["z"], vec![])], "z", vec![]);
    let inner = branch("then_branch", vec![plain("Frobnicate", &["p"], &["z"], vec![])], "z", vec![]);
    let other = branch("else_branch", vec![plain("Add", &["p", "one"], &["z"], vec![])], "z", vec![floats("one", &[], &[1.0])]);
    let nested = plain("If", &["small"], &["z"], vec![inner, other]);
    let or_else = branch("else_branch", vec![nested], "z", vec![]);
    let mut m = with(
        vec![],
        vec![
            plain("MatMul", &["x", "w"], &["p"], vec![]),
            plain("If", &["fits"], &["y"], vec![then, or_else]),
            plain("Less", &["rank", "zero"], &["small"], vec![]),
            plain("Shape", &["p"], &["sizes"], vec![]),
            plain("Size", &["sizes"], &["rank"], vec![]),
            plain("Equal", &["rank", "wanted"], &["fits"], vec![]),
        ],
    );
    initializer(&mut m, ints("wanted", &[], &[rank]));
    initializer(&mut m, ints("zero", &[], &[0]));
    m
}

#[test]
fn only_the_branch_that_is_taken_is_imported() {
    assert_eq!(ops(&graph_of(&chosen(2))), ["contract", "relu"]);
    assert_eq!(ops(&graph_of(&chosen(3))), ["contract", "add"]);
    let mut m = chosen(3);
    graph(&mut m).initializer[2] = ints("zero", &[], &[9]);
    assert!(refusal(&m).contains("not supported"), "{}", refusal(&m));
    let mut m = chosen(2);
    input(&mut m, "fits", DataType::Bool, &[]);
    graph(&mut m).node.pop();
    assert!(refusal(&m).contains("its condition depends on an input's values"), "{}", refusal(&m));
}

#[test]
fn a_function_with_a_branch_reads_its_own_names() {
    // Also one that is no input of the function, and that the graph has too.
    let then = branch("then_branch", vec![plain("Mul", &["a", "t"], &["b"], vec![])], "b", vec![]);
    let or_else = branch("else_branch", vec![plain("Neg", &["t"], &["b"], vec![])], "b", vec![]);
    let square = function(
        "Square",
        &["a"],
        &["r"],
        vec![
            pb::NodeProto {
                attribute: vec![refer("value_int", "really", AttributeType::Int)],
                ..plain("Constant", &[], &["n"], vec![])
            },
            plain("Cast", &["n"], &["c"], vec![int("to", 9)]),
            plain("Tanh", &["a"], &["t"], vec![]),
            plain("If", &["c"], &["r"], vec![then, or_else]),
        ],
    );
    let m = with(
        vec![square],
        vec![
            plain("MatMul", &["x", "w"], &["p"], vec![]),
            plain("Sin", &["p"], &["t"], vec![]),
            call("Square", &["p"], &["q"], vec![int("really", 1)]),
            call("Square", &["q"], &["y"], vec![int("really", 0)]),
        ],
    );
    assert_eq!(ops(&graph_of(&m)), ["contract", "tanh", "mul", "tanh", "neg"]);
    // The branch has the call's name for a value of its own.
    let own = || vec![plain("Neg", &["a"], &["p"], vec![]), plain("Add", &["a", "p"], &["b"], vec![])];
    let [then, or_else] = ["then_branch", "else_branch"].map(|name| branch(name, own(), "b", vec![]));
    let nodes = vec![
        plain("Constant", &[], &["c"], vec![tensor("value", raw("", DataType::Bool, &[], vec![1]))]),
        plain("If", &["c"], &["r"], vec![then, or_else]),
    ];
    let m = with(
        vec![function("Own", &["a"], &["r"], nodes)],
        vec![plain("MatMul", &["x", "w"], &["p"], vec![]), call("Own", &["p"], &["y"], vec![])],
    );
    assert_eq!(ops(&graph_of(&m)), ["contract", "neg", "add"]);
}

#[test]
fn bombs_of_functions_are_refused_before_they_burst() {
    // Each calls the one before twice.
    let nested = |first: pb::FunctionProto, depth: usize| {
        let step = |i: usize| {
            let before = format!("F{}", i - 1);
            let nodes = vec![call(&before, &["a"], &["p"], vec![]), call(&before, &["p"], &["b"], vec![])];
            function(&format!("F{i}"), &["a"], &["b"], nodes)
        };
        let functions = [first].into_iter().chain((1..depth).map(step)).collect();
        with(functions, vec![call(&format!("F{}", depth - 1), &["x"], &["y"], vec![])])
    };
    let adds = |constant: pb::TensorProto| {
        let constant = plain("Constant", &[], &["c"], vec![tensor("value", constant)]);
        function("F0", &["a"], &["b"], vec![constant, plain("Add", &["a", "c"], &["b"], vec![])])
    };
    let large = adds(weight("", &[1 << 18], 1));
    let long = "n".repeat(10_000);
    let long =
        function("F0", &["a"], &["b"], vec![plain("Neg", &["a"], &[&long], vec![]), plain("Neg", &[&long], &["b"], vec![])]);
    for (bomb, depth) in [(large, 12), (long, 16), (adds(floats("", &[], &[1.0])), 20)] {
        assert!(refusal(&nested(bomb, depth)).contains("make more than 20 times the bytes of the model and 64 MiB"));
    }
    // Every node inside would have the name of the call as its module.
    let chain = |i: usize| plain("Neg", &[&format!("n{i}")], &[&format!("n{}", i + 1)], vec![]);
    let ends = [plain("Neg", &["a"], &["n0"], vec![]), plain("Neg", &["n500"], &["b"], vec![])];
    let body = function("Chain", &["a"], &["b"], ends.into_iter().chain((0..500).map(chain)).collect());
    let named = |name: String| {
        let graph = graph_of(&with(vec![body.clone()], vec![pb::NodeProto { name, ..call("Chain", &["x"], &["y"], vec![]) }]));
        let lengths = graph.nodes().filter_map(|(_, node)| node.origin.scope.as_ref().map(|scope| scope.len())).max();
        lengths.unwrap_or_default()
    };
    assert_eq!(
        (named(format!("/{}/call", "n".repeat(9))), named(format!("/{}/call", "n".repeat(100_000)))),
        (9, 1),
        "else that of its own name, `y`"
    );
    // One attribute of a call that many of a body refer to.
    let many = (0..2000).map(|i| pb::AttributeProto { name: format!("a{i}"), ..refer("", "v", AttributeType::String) }).collect();
    let body = pb::NodeProto { attribute: many, ..plain("Neg", &["a"], &["b"], vec![]) };
    let copies = function("Copies", &["a"], &["b"], vec![body]);
    let m = with(vec![copies], vec![call("Copies", &["x"], &["y"], vec![string("v", &"v".repeat(100_000))])]);
    assert!(refusal(&m).contains("make more than 20 times the bytes of the model and 64 MiB"));
    // A call takes its name from its first output; these have none.
    let nothing = function("Nothing", &["a"], &[], vec![plain("Neg", &["a"], &["n"], vec![])]);
    let many = (0..20_000).map(|_| call("Nothing", &["x"], &[], vec![]));
    let m = with(vec![nothing], many.chain([plain("MatMul", &["x", "w"], &["y"], vec![])]).collect());
    assert_eq!(ops(&graph_of(&m)), ["contract"]);
}

#[test]
fn loops_and_other_ops_are_named_together_with_help() {
    let m = with(
        vec![],
        vec![
            plain("Loop", &["", ""], &["a"], vec![]),
            plain("QuantizeLinear", &["a", "w"], &["b"], vec![]),
            plain("Frobnicate", &["b"], &["c"], vec![]),
            plain("Frobnicate", &["c"], &["y"], vec![]),
        ],
    );
    let text = refusal(&m);
    assert!(text.contains("`Loop`") && text.contains("unrolls the loop") && text.contains("before it is quantised"), "{text}");
    assert!(text.contains("op `Frobnicate` is not supported, also used by node \"y\""), "{text}");
}

#[test]
fn what_is_trained_inside_a_branch_is_refused() {
    let nodes = || vec![plain("MatMul", &["x", "v"], &["z"], vec![])];
    let then = branch("then_branch", nodes(), "z", vec![floats("v", &[3, 3], &[0.5; 9])]);
    let or_else = branch("else_branch", vec![plain("Relu", &["x"], &["z"], vec![])], "z", vec![]);
    let mut m = with(vec![], vec![plain("If", &["yes"], &["y"], vec![then, or_else])]);
    initializer(&mut m, raw("yes", DataType::Bool, &[], vec![1]));
    assert!(refusal(&m).contains("inside a function or a branch"));
    let freeze = ImportOptions { freeze: &|_| true, ..ImportOptions::default() };
    let graph = import_model(&m, &freeze).unwrap().graph;
    assert_eq!(graph.states.len(), 0);
}
