//! Bad models that somebody thought of: graphs, tensors, what asks for much, functions, external
//! data.

use super::MODEL_COMMANDS;
use super::case::Case;
use crate::attack::seeds::layer;
use prost::Message;
use shardc_testkit::onnx::{floats, graph, initializer, input, int, int_list, ints, model, node, output, raw};
use std::sync::Arc;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

/// Each model under each command that reads one.
pub fn cases() -> Vec<Case> {
    let kinds = [broken_graphs, broken_tensors, bombs, functions, external];
    let models = kinds.into_iter().flat_map(|kind| kind()).map(|(name, m)| (name, m.encode_to_vec()));
    let case = |(name, bytes): (String, Vec<u8>)| {
        let bytes = Arc::new(bytes);
        let case = |command: &&str| Case::of(name.clone(), "model.onnx", bytes.clone(), command);
        MODEL_COMMANDS.iter().map(case).collect::<Vec<_>>()
    };
    models.chain(empty_messages()).flat_map(case).collect()
}

/// The layer with half a million nodes, or inputs of a node, that have nothing in them: two bytes
/// each.
fn empty_messages() -> Vec<(String, Vec<u8>)> {
    const MANY: usize = 500_000;
    let field = |number: u8, bytes: &[u8]| {
        let mut field = vec![number << 3 | 2];
        prost::encode_length_delimiter(bytes.len(), &mut field).expect("there is room");
        [field, bytes.to_vec()].concat()
    };
    // Further fields of a graph are further fields of the same one.
    let behind = |graph: &[u8]| [layer().encode_to_vec(), field(7, graph)].concat();
    let (node, input) = (field(1, &[]), field(1, &[]));
    vec![
        ("many empty nodes".to_string(), behind(&node.repeat(MANY))),
        ("a node of many empty inputs".to_string(), behind(&field(1, &input.repeat(MANY)))),
    ]
}

type Named = (String, pb::ModelProto);

fn named(name: &str, model: pb::ModelProto) -> Named {
    (name.to_string(), model)
}

/// The layer, changed.
fn changed(name: &str, change: impl FnOnce(&mut pb::GraphProto)) -> Named {
    let mut m = layer();
    change(graph(&mut m));
    named(name, m)
}

/// The layer with nodes behind it, `op inputs -> output`, the last of which has the attributes and
/// gives the model's output.
fn behind(name: &str, nodes: &[(&str, &str, &str)], tensors: Vec<pb::TensorProto>, attributes: Vec<pb::AttributeProto>) -> Named {
    let mut m = layer();
    graph(&mut m).output.clear();
    tensors.into_iter().for_each(|tensor| initializer(&mut m, tensor));
    for (op, inputs, outputs) in nodes {
        node(&mut m, op, inputs, outputs, vec![]);
    }
    graph(&mut m).node.last_mut().expect("a node").attribute = attributes;
    output(&mut m, nodes.last().expect("a node").2);
    named(name, m)
}

/// The layer with the sum of a constant added to its output: nodes make `c`, and the last has the
/// attributes.
fn with_constant(
    name: &str,
    nodes: &[(&str, &str, &str)],
    tensors: Vec<pb::TensorProto>,
    attributes: Vec<pb::AttributeProto>,
) -> Named {
    let mut m = layer();
    graph(&mut m).node[2].output[0] = "r".into();
    tensors.into_iter().for_each(|tensor| initializer(&mut m, tensor));
    for (op, inputs, output) in nodes {
        node(&mut m, op, inputs, output, vec![]);
    }
    graph(&mut m).node.last_mut().expect("a node").attribute = attributes;
    node(&mut m, "ReduceSum", "c", "sum", vec![int("keepdims", 0)]);
    node(&mut m, "Add", "r sum", "y", vec![]);
    named(name, m)
}

fn broken_graphs() -> Vec<Named> {
    vec![
        named("no graph", pb::ModelProto { graph: None, ..layer() }),
        named("nothing", pb::ModelProto::default()),
        named("no op set", pb::ModelProto { opset_import: vec![], ..layer() }),
        named("an old op set", pb::ModelProto { opset_import: model(1).opset_import, ..layer() }),
        named("a future op set", pb::ModelProto { opset_import: model(i64::MAX).opset_import, ..layer() }),
        changed("an empty graph", |g| *g = pb::GraphProto::default()),
        changed("an unknown op", |g| g.node[2].op_type = "Frobnicate".into()),
        changed("an op of control codes", |g| g.node[2].op_type = "\u{1b}[2J\u{7}\r\n".into()),
        changed("an op of a long name", |g| g.node[2].op_type = "x".repeat(1 << 20)),
        changed("many unknown ops", |g| {
            g.node.extend((0..3000).map(|i| {
                let name = format!("v{i}");
                pb::NodeProto { op_type: format!("Op{i}"), input: vec!["y".into()], output: vec![name], ..Default::default() }
            }));
            g.output.extend((0..3000).map(|i| pb::ValueInfoProto { name: format!("v{i}"), ..Default::default() }));
        }),
        changed("a cycle", |g| g.node[0].input[0] = "s".into()),
        changed("a node that reads itself", |g| g.node[2].input[0] = "y".into()),
        changed("an input that nothing defines", |g| g.node[1].input[1] = "nothing".into()),
        changed("an output that nothing defines", |g| g.output[0].name = "nothing".into()),
        changed("an output of no name", |g| g.output[0].name.clear()),
        changed("a missing input", |g| g.node[1].input.truncate(1)),
        changed("no inputs", |g| g.node[0].input.clear()),
        changed("too many inputs", |g| g.node[2].input.extend(std::iter::repeat_n("w".to_string(), 5000))),
        changed("too many outputs", |g| g.node[2].output.extend((0..5000).map(|i| format!("o{i}")))),
        changed("a name twice", |g| g.node[1].output[0] = "p".into()),
        changed("two inputs of a name", |g| g.input.push(g.input[0].clone())),
        changed("two weights of a name", |g| g.initializer.push(g.initializer[0].clone())),
        changed("two outputs of a name", |g| g.output.push(g.output[0].clone())),
        changed("an unknown attribute", |g| g.node[2].attribute.push(int("slope", 1))),
        changed("an input of no type", |g| g.input[0].r#type = None),
        behind("a wrong rank", &[("Transpose", "y", "z")], vec![], vec![int_list("perm", vec![0, 1, 2, 3])]),
        behind("a permutation that is none", &[("Transpose", "y", "z")], vec![], vec![int_list("perm", vec![0, 0])]),
        behind("an axis that is not there", &[("Softmax", "y", "z")], vec![], vec![int("axis", i64::MAX)]),
        behind("an axis below all", &[("Concat", "y y", "z")], vec![], vec![int("axis", i64::MIN)]),
        behind("shapes that do not fit", &[("MatMul", "y y", "z")], vec![], vec![]),
        behind("integers for floats", &[("MatMul", "y i", "z")], vec![ints("i", &[2, 2], &[1; 4])], vec![]),
        behind("no group", &[("Conv", "y w", "z")], vec![], vec![int("group", 0)]),
        behind(
            "a kernel of absurd size",
            &[("Reshape", "y s", "r"), ("MaxPool", "r", "z")],
            vec![ints("s", &[4], &[1, 1, -1, 2])],
            vec![int_list("kernel_shape", vec![1 << 40, 1 << 40])],
        ),
        behind("a reshape to nowhere", &[("Reshape", "y s", "z")], vec![ints("s", &[3], &[-1, -1, 7])], vec![]),
        behind("a gather from outside", &[("Gather", "w i", "z")], vec![ints("i", &[1], &[1 << 40])], vec![]),
        behind("a split of nothing", &[("Split", "y", "z")], vec![], vec![int("num_outputs", 0)]),
        changed("an input of a negative size", |g| {
            let mut other = model(20);
            input(&mut other, "x", DataType::Float, &[-1, 3]);
            g.input = other.graph.unwrap_or_default().input;
            if let Some(pb::type_proto::Value::TensorType(tensor)) = g.input[0].r#type.as_mut().and_then(|t| t.value.as_mut()) {
                let dim = &mut tensor.shape.get_or_insert_default().dim[1];
                dim.value = Some(pb::tensor_shape_proto::dimension::Value::DimValue(i64::MIN));
            }
        }),
        {
            let mut m = layer();
            let mut other = model(20);
            input(&mut other, "x", DataType::Float, &[1 << 31, 1 << 31, 1 << 31]);
            graph(&mut m).input = other.graph.unwrap_or_default().input;
            named("an input larger than numbers", m)
        },
        {
            let mut m = model(20);
            input(&mut m, "x", DataType::Float, &[-1, 1 << 30]);
            initializer(&mut m, floats("b", &[1], &[0.5]));
            node(&mut m, "Mul", "x b", "y", vec![]);
            output(&mut m, "y");
            named("an input larger than memory", m)
        },
        {
            let mut m = layer();
            let mut last = "y".to_string();
            graph(&mut m).output.clear();
            for i in 0..20_000 {
                node(&mut m, "Relu", &last, &format!("d{i}"), vec![]);
                last = format!("d{i}");
            }
            output(&mut m, &last);
            named("a long chain", m)
        },
    ]
}

fn broken_tensors() -> Vec<Named> {
    let weight = |name: &str, change: &dyn Fn(&mut pb::TensorProto)| changed(name, |g| change(&mut g.initializer[0]));
    vec![
        weight("too few bytes", &|t| t.raw_data.truncate(5)),
        weight("too many bytes", &|t| t.raw_data.extend([0; 1000])),
        weight("no bytes", &|t| t.raw_data.clear()),
        weight("a claimed terabyte", &|t| t.dims = vec![1 << 20, 1 << 18]),
        weight("claimed elements beyond numbers", &|t| t.dims = vec![i64::MAX; 4]),
        weight("a negative size", &|t| t.dims = vec![-3, -2]),
        weight("a size of none", &|t| t.dims = vec![0, 2]),
        weight("a thousand dimensions", &|t| t.dims = vec![1; 1000]),
        weight("no type", &|t| t.data_type = 0),
        weight("an unknown type", &|t| t.data_type = 99),
        weight("a type of strings", &|t| t.data_type = DataType::String as i32),
        weight("a type of complex numbers", &|t| t.data_type = DataType::Complex64 as i32),
        weight("a weight of integers", &|t| t.data_type = DataType::Int32 as i32),
        weight("a segment", &|t| t.segment = Some(pb::tensor_proto::Segment { begin: -1, end: i64::MAX })),
        weight("elements in two fields", &|t| t.float_data = vec![1.0; 6]),
        weight("no name", &|t| t.name.clear()),
        weight("a name of a megabyte", &|t| t.name = "w".repeat(1 << 20)),
        changed("a sparse weight", |g| {
            g.sparse_initializer.push(pb::SparseTensorProto { values: Some(g.initializer[0].clone()), ..Default::default() });
        }),
        changed("not finite", |g| g.initializer[0] = floats("w", &[3, 2], &[f32::NAN, f32::INFINITY, 0.0, 0.0, 0.0, 0.0])),
        changed("truth values that are none", |g| g.initializer.push(raw("t", DataType::Bool, &[4], vec![7; 4]))),
    ]
}

/// A few bytes that ask for much.
fn bombs() -> Vec<Named> {
    let shape = |sizes: &[i64]| vec![ints("n", &[sizes.len() as i64], sizes)];
    let filled = ("ConstantOfShape", "n", "a");
    let mut all = vec![
        behind("a constant of a terabyte", &[filled, ("ReduceSum", "a", "b"), ("Add", "y b", "z")], shape(&[1 << 38]), vec![]),
        behind("a constant of a gigabyte", &[filled, ("Cos", "a", "b"), ("ReduceSum", "b", "z")], shape(&[1 << 28]), vec![]),
        behind("a constant beyond numbers", &[filled, ("ReduceSum", "a", "z")], shape(&[1 << 40, 1 << 40]), vec![]),
        behind("a constant of 16 megabytes", &[filled, ("Cos", "a", "b"), ("Sin", "b", "z")], shape(&[1 << 22]), vec![]),
        behind(
            "a product of constants",
            &[filled, ("MatMul", "a a", "b"), ("ReduceSum", "b", "z")],
            shape(&[4096, 4096]),
            vec![],
        ),
        behind(
            "sums of a constant",
            &[filled, ("CumSum", "a k", "b"), ("ReduceSum", "b", "z")],
            [shape(&[1 << 26]), vec![ints("k", &[], &[0])]].concat(),
            vec![],
        ),
        behind("a diagonal", &[filled, ("EyeLike", "a", "b"), ("ReduceSum", "b", "z")], shape(&[1 << 14, 1 << 14]), vec![]),
        behind("tiles", &[("Tile", "y n", "z")], shape(&[1 << 31, 1 << 31]), vec![]),
        behind("an expansion", &[("Expand", "y n", "z")], shape(&[1 << 40, 1, 1]), vec![]),
        behind("a pad of terabytes", &[("Pad", "y n", "z")], shape(&[0, 0, 1 << 40, 1 << 40]), vec![]),
        behind(
            "a one-hot of terabytes",
            &[("OneHot", "i n v", "z")],
            [shape(&[1 << 40]), vec![ints("i", &[4], &[1; 4]), ints("v", &[2], &[0, 1])]].concat(),
            vec![],
        ),
        behind(
            "a range without end",
            &[("Range", "f t s", "r"), ("Cast", "r", "z")],
            vec![ints("f", &[], &[0]), ints("t", &[], &[i64::MAX]), ints("s", &[], &[1])],
            vec![int("to", 1)],
        ),
        behind("a window", &[("HannWindow", "n", "z")], vec![ints("n", &[], &[1 << 40])], vec![]),
        behind("an attribute of a million numbers", &[("Transpose", "y", "z")], vec![], vec![int_list("perm", vec![1; 1 << 20])]),
    ];
    // What is folded costs about what it reads and writes.
    let pool = vec![int_list("kernel_shape", vec![3, 3])];
    all.push(with_constant("a pool of a constant", &[filled, ("MaxPool", "a", "c")], shape(&[1, 1, 1 << 9, 1 << 10]), pool));
    let image = raw("i", DataType::Uint8, &[1, 1, 1 << 10, 1 << 10], vec![7; 1 << 20]);
    let kernel = raw("j", DataType::Uint8, &[1, 1, 3, 3], vec![1; 9]);
    let casts = [("Cast", "i", "a"), ("Cast", "j", "k"), ("Conv", "a k", "c")];
    let (name, mut convolved) = with_constant("a convolution of constants", &casts, vec![image, kernel], vec![]);
    graph(&mut convolved).node[3..5].iter_mut().for_each(|cast| cast.attribute = vec![int("to", 1)]);
    all.push((name, convolved));
    let mut doubled = layer();
    graph(&mut doubled).output.clear();
    let mut last = "w".to_string();
    for i in 0..60 {
        node(&mut doubled, "Concat", &format!("{last} {last}"), &format!("c{i}"), vec![int("axis", 0)]);
        last = format!("c{i}");
    }
    output(&mut doubled, &last);
    all.push(named("doubled sixty times", doubled));
    for (name, size) in [("thirty waves of a constant", 1 << 24), ("thirty short waves of a constant", 1 << 22)] {
        let mut waves = behind(name, &[filled], shape(&[size]), vec![]).1;
        let mut last = "a".to_string();
        for i in 0..30 {
            node(&mut waves, if i % 2 == 0 { "Cos" } else { "Sin" }, &last, &format!("w{i}"), vec![]);
            last = format!("w{i}");
        }
        node(&mut waves, "ReduceSum", &last, "z", vec![]);
        graph(&mut waves).output.clear();
        output(&mut waves, "z");
        all.push(named(name, waves));
    }
    all
}

fn functions() -> Vec<Named> {
    let call = |op: &str, from: &str, to: &str| pb::NodeProto {
        op_type: op.into(),
        domain: "local".into(),
        input: vec![from.into()],
        output: vec![to.into()],
        ..Default::default()
    };
    let function = |name: &str, node: Vec<pb::NodeProto>| pb::FunctionProto {
        name: Some(name.into()),
        domain: Some("local".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node,
        opset_import: layer().opset_import,
        ..Default::default()
    };
    let calling = |name: &str, functions: Vec<pb::FunctionProto>| {
        let mut m = layer();
        m.functions = functions;
        m.opset_import.push(pb::OperatorSetIdProto { domain: "local".into(), version: 1 });
        graph(&mut m).output.clear();
        graph(&mut m).node.push(call("f0", "y", "z"));
        output(&mut m, "z");
        named(name, m)
    };
    let identity = |name: &str| {
        let node =
            pb::NodeProto { op_type: "Identity".into(), input: vec!["a".into()], output: vec!["b".into()], ..Default::default() };
        function(name, vec![node])
    };
    // Each calls the next one twice.
    let laughs = (0..64).map(|i| {
        let next = format!("f{}", i + 1);
        function(&format!("f{i}"), vec![call(&next, "a", "m"), call(&next, "m", "b")])
    });
    let deep = (0..5000).map(|i| function(&format!("f{i}"), vec![call(&format!("f{}", i + 1), "a", "b")]));
    let mut nested = layer();
    for _ in 0..200 {
        let inner = nested.graph.clone();
        graph(&mut nested).node.truncate(3);
        let branch = |name: &str| {
            let mut attribute =
                pb::AttributeProto { name: name.into(), r#type: AttributeType::Graph as i32, ..Default::default() };
            attribute.g = inner.clone().filter(|_| name == "then_branch");
            attribute
        };
        node(&mut nested, "If", "y", "z", vec![branch("then_branch"), branch("else_branch")]);
    }
    vec![
        calling("a missing function", vec![]),
        calling("a function that calls itself", vec![function("f0", vec![call("f0", "a", "b")])]),
        calling(
            "functions that call each other",
            vec![function("f0", vec![call("f1", "a", "b")]), function("f1", vec![call("f0", "a", "b")])],
        ),
        calling("functions that double", laughs.chain([identity("f64")]).collect()),
        calling("functions in functions", deep.chain([identity("f5000")]).collect()),
        calling("a function twice", vec![function("f0", vec![]), function("f0", vec![])]),
        calling("a function without nodes", vec![function("f0", vec![])]),
        named("branches in branches", nested),
    ]
}

/// Weights in other files; `weights.data` has 24 bytes, `short.data` has 3.
fn external() -> Vec<Named> {
    let cases = [
        ("none.data", "0", "24"),
        ("short.data", "0", "24"),
        ("weights.data", "8", "24"),
        ("weights.data", "-1", "24"),
        ("weights.data", "18446744073709551615", "24"),
        ("weights.data", "0", "99999999999999999999"),
        ("weights.data", "0", "1099511627776"),
        ("weights.data", "x", "y"),
        ("../weights.data", "0", "24"),
        ("a/../../weights.data", "0", "24"),
        ("/etc/passwd", "0", "24"),
        ("/dev/zero", "0", "24"),
        ("arrays", "0", "24"),
        (".", "0", "24"),
        ("", "0", "24"),
        ("model.onnx", "0", "24"),
        ("link.data", "0", "24"),
    ];
    let case = |(location, offset, length): &(&str, &str, &str)| {
        changed(&format!("external data at {location:?} {offset} {length}"), |g| {
            let entry = |key: &str, value: &str| pb::StringStringEntryProto { key: key.into(), value: value.into() };
            let tensor = &mut g.initializer[0];
            tensor.raw_data.clear();
            tensor.data_location = Some(1);
            tensor.external_data = vec![entry("location", location), entry("offset", offset), entry("length", length)];
        })
    };
    cases.iter().map(case).collect()
}
