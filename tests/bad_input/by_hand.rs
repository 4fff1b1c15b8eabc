//! Bad inputs that somebody thought of.

use super::case::Case;
use super::{DATA_COMMANDS, MODEL_COMMANDS, PLAN_COMMANDS};
use crate::attack::onnx_support::{floats, graph, initializer, input, int, int_list, ints, model, node, output, raw};
use crate::attack::seeds::layer;
use prost::Message;
use shardc_executor::data::{npz_bytes, write_safetensors};
use shardc_executor::tensor::Tensor;
use std::collections::BTreeMap;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

/// All of them.
pub fn cases() -> Vec<Case> {
    [models(), specs(), data(), outputs(), plans(), command_lines()].into_iter().flatten().collect()
}

/// Each model under each command that reads one.
fn models() -> Vec<Case> {
    let all = [broken_graphs(), broken_tensors(), bombs(), functions(), external()].concat();
    let case = |(name, m): &(String, pb::ModelProto)| {
        let bytes = m.encode_to_vec();
        let case = |command: &&str| Case::of(name.clone(), "model.onnx", bytes.clone(), command);
        MODEL_COMMANDS.iter().map(case).collect::<Vec<_>>()
    };
    all.iter().flat_map(case).collect()
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

/// The layer with nodes behind it, `op inputs -> output`, the last of which has the attributes and gives the model's output.
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
    let mut doubled = layer();
    graph(&mut doubled).output.clear();
    let mut last = "w".to_string();
    for i in 0..60 {
        node(&mut doubled, "Concat", &format!("{last} {last}"), &format!("c{i}"), vec![int("axis", 0)]);
        last = format!("c{i}");
    }
    output(&mut doubled, &last);
    all.push(named("doubled sixty times", doubled));
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

/// Each spec under each command that reads one.
fn specs() -> Vec<Case> {
    let good = "mesh dp=2\nbatch 4\ndata axis=dp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";
    let with = |line: &str| format!("{good}{line}\n").into_bytes();
    let without = |word: &str| good.lines().filter(|line| !line.starts_with(word)).fold(String::new(), |all, l| all + l + "\n");
    let replaced = |word: &str, line: &str| [without(word).into_bytes(), line.as_bytes().to_vec()].concat();
    let mut texts: Vec<(String, Vec<u8>)> = vec![];
    for line in [
        "frobnicate",
        "mesh",
        "batch",
        "shard",
        "shard \"w\"",
        "shard \"w\" [dp]",
        "shard \"w\" [dp, dp]",
        "shard \"w\" [tp, -]",
        "shard \"w\" [3*dp, -]",
        "shard \"w\" [(1|1|1)*dp, -]",
        "shard \"w\" [(9223372036854775807|9223372036854775807)*dp, -]",
        "shard \"w\" [[8:dp 32:dp], -]",
        "shard \"w\" [[0:dp], -]",
        "shard \"nothing\" [dp, -]",
        "shard \"w [dp, -]",
        "shard \"w\" [dp, -",
        "freeze \"nothing\"",
        "freeze \"[\"",
        "freeze \"***********************************a\"",
        "train \"*\"\nfreeze \"*\"",
        "tie \"w\" \"b\"",
        "tie \"w\" \"w\"",
        "untie \"*\"",
        "init \"w\" normal std=-1",
        "init \"w\" normal std=1e999",
        "clip norm=NaN",
        "clip norm=0",
        "schedule cosine steps=0",
        "schedule cosine steps=18446744073709551616",
        "seed -1",
        "bind s1=0",
        "bind s1=18446744073709551615",
        "zero stage=3",
        "pipeline axis=dp",
        "precision bf16",
        "device memory=1",
        "device memory=1B",
        "tensor axis=dp",
        "tensor axis=none",
        "sequence axis=dp",
        "batchnorm statistics=microbatch",
        "data axis=dp on=\"nothing\"",
        "\u{0}\u{1}\u{1b}[2J",
        "\u{202e}batch",
        "batch 4 batch 4",
        "# only a remark",
    ] {
        texts.push((format!("a spec with {line:?}"), with(line)));
    }
    for (word, line) in [
        ("mesh", "mesh dp=0\n"),
        ("mesh", "mesh dp=3\n"),
        ("mesh", "mesh dp=-2\n"),
        ("mesh", "mesh dp=18446744073709551615\n"),
        ("mesh", "mesh dp=4294967296 tp=4294967296 pp=2\n"),
        ("mesh", "mesh dp=1000000\n"),
        ("mesh", "mesh dp=2 dp=2\n"),
        ("mesh", "mesh time=2\n"),
        ("batch", "batch 0\n"),
        ("batch", "batch 3\n"),
        ("batch", "batch -4\n"),
        ("batch", "batch 4.5\n"),
        ("batch", "batch 1e9\n"),
        ("batch", "batch 9223372036854775806\n"),
        ("batch", "batch 18446744073709551616\n"),
        ("batch", "batch 4 microbatches=3\n"),
        ("batch", "batch 4 microbatches=0\n"),
        ("loss", "loss mse prediction=nothing labels=t\n"),
        ("loss", "loss frobnicate labels=t\n"),
        ("loss", "loss cross_entropy logits=y labels=t class_axis=99\n"),
        ("loss", "loss output=y\n"),
        ("loss", ""),
        ("optimizer", "optimizer sgd lr=NaN\n"),
        ("optimizer", "optimizer sgd lr=-1\n"),
        ("optimizer", "optimizer sgd\n"),
        ("optimizer", "optimizer adamw lr=0.1 beta1=2\n"),
        ("optimizer", ""),
    ] {
        texts.push((format!("a spec with {line:?} for `{word}`"), replaced(word, line)));
    }
    texts.push(("no spec".into(), vec![]));
    texts.push(("a spec that is no text".into(), vec![0xff; 100]));
    texts.push(("a spec of nothing but zeros".into(), vec![0; 1 << 16]));
    texts.push(("a spec of two megabytes".into(), vec![b'#'; 2 << 20]));
    texts.push(("a spec of many lines".into(), "freeze \"w\"\n".repeat(50_000).into_bytes()));
    texts.push(("a spec of many brackets".into(), with(&format!("shard \"w\" {}", "[".repeat(100_000)))));
    texts.push(("a spec of many braces".into(), with(&format!("shard \"w\" [{}", "(".repeat(100_000)))));
    let commands =
        ["compile model.onnx --spec job.shard -o p", "train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1"];
    let case =
        |(name, text): &(String, Vec<u8>)| commands.map(|command| Case::of(name.clone(), "job.shard", text.clone(), command));
    texts.iter().flat_map(case).collect()
}

/// Data in each form, under each command that reads it.
fn data() -> Vec<Case> {
    let array = |sizes: &[u64]| Tensor::from_f32(sizes, &vec![0.5; sizes.iter().product::<u64>() as usize]);
    let named = |list: &[(&str, Tensor)]| -> BTreeMap<String, Tensor> {
        list.iter().map(|(name, array)| (name.to_string(), array.clone())).collect()
    };
    let good = [("x", array(&[8, 3])), ("t", array(&[8, 2]))];
    let mut cases = vec![];
    for (name, arrays) in [
        ("no arrays", named(&[])),
        ("one array", named(&good[..1])),
        ("fewer samples than a batch", named(&[("x", array(&[3, 3])), ("t", array(&[3, 2]))])),
        ("no samples", named(&[("x", array(&[0, 3])), ("t", array(&[0, 2]))])),
        ("counts that differ", named(&[("x", array(&[8, 3])), ("t", array(&[9, 2]))])),
        ("another shape", named(&[("x", array(&[8, 3, 1])), ("t", array(&[8, 2]))])),
        ("a scalar", named(&[("x", array(&[])), ("t", array(&[8, 2]))])),
        ("integers", named(&[("x", Tensor::from_i64(&[8, 3], &[1; 24])), ("t", array(&[8, 2]))])),
        ("not finite", named(&[("x", Tensor::from_f32(&[8, 3], &[f32::NAN; 24])), ("t", array(&[8, 2]))])),
        ("huge numbers", named(&[("x", Tensor::from_f32(&[8, 3], &[f32::MAX; 24])), ("t", array(&[8, 2]))])),
        ("names of control codes", named(&[("\u{1b}[2J", array(&[8, 3])), ("t", array(&[8, 2]))])),
    ] {
        for command in DATA_COMMANDS {
            cases.push(Case::of(name, "data.npz", npz_bytes(&arrays).expect("arrays"), command));
            let (bytes, command) = (write_safetensors(&arrays).expect("arrays"), command.replace("data.npz", "data.safetensors"));
            cases.push(Case::of(name, "data.safetensors", bytes, &command));
        }
    }
    let npy = |header: &str| {
        [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes(), &[0; 96]].concat()
    };
    let whole = |descr: &str, shape: &str| npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"));
    for (name, bytes) in [
        ("an empty array file", vec![]),
        ("a claimed exabyte", whole("<f4", "(1152921504606846976, 3)")),
        ("claimed elements beyond numbers", whole("<f4", "(18446744073709551615, 18446744073709551615)")),
        ("a negative size", whole("<f4", "(-8, -3)")),
        ("objects", whole("|O", "(8, 3)")),
        ("strings", whole("<U7", "(8, 3)")),
        ("an unknown type", whole("<f3", "(8, 3)")),
        ("a header that is none", npy("{'descr': ")),
        ("a header of brackets", npy(&"(".repeat(60_000))),
        ("too few elements", whole("<f8", "(8, 3, 100)")),
        ("a header longer than the file", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec()),
    ] {
        for command in ["data arrays", "data arrays/x.npy", "eval model.onnx --spec job.shard --data arrays --threads 1"] {
            cases.push(Case::of(name, "arrays/x.npy", bytes.clone(), command));
        }
    }
    let header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &[0; 96]].concat();
    for (name, bytes) in [
        ("a header beyond the file", [0xff; 64].to_vec()),
        ("no header", vec![]),
        ("offsets beyond numbers", header(r#"{"x":{"dtype":"F32","shape":[8,3],"data_offsets":[0,18446744073709551615]}}"#)),
        ("offsets that turn round", header(r#"{"x":{"dtype":"F32","shape":[8,3],"data_offsets":[96,0]}}"#)),
        ("sizes beyond numbers", header(r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,96]}}"#)),
        ("an unknown type", header(r#"{"x":{"dtype":"F3","shape":[8,3],"data_offsets":[0,96]}}"#)),
        ("a name twice", header(r#"{"x":{"dtype":"F32","shape":[8,3],"data_offsets":[0,96]},"x":{}}"#)),
        ("brackets", header(&"[".repeat(100_000))),
        ("a name of a megabyte", header(&format!(r#"{{"{}":1}}"#, "x".repeat(1 << 20)))),
    ] {
        for command in ["data data.safetensors", "eval model.onnx --spec job.shard --data data.safetensors --threads 1"] {
            cases.push(Case::of(name, "data.safetensors", bytes.clone(), command));
        }
    }
    for path in
        ["none.npz", "arrays/none.npy", "/dev/zero", "/dev/stdin", ".", "model.onnx", "job.shard", "text.txt", "text.bin", "p"]
    {
        for command in ["data", "eval model.onnx --spec job.shard --threads 1 --data"] {
            cases.push(Case::with(format!("data at {path}"), vec![], &format!("{command} {path}")));
        }
    }
    cases
}

/// Outputs where they may not or cannot be.
fn outputs() -> Vec<Case> {
    let mut commands = vec![];
    for to in [
        "model.onnx",
        "job.shard",
        ".",
        "..",
        "./",
        "/",
        "p/.",
        "p/..",
        "none/../model.onnx/p",
        "data.npz",
        "arrays",
        "data.npz/p",
        "model.onnx/",
        "/proc/p",
        "/dev/null",
        "/dev/null/p",
        "/dev/full",
        "locked/p",
        "locked/none/p",
    ] {
        commands.push(format!("compile model.onnx --spec job.shard -o {to}"));
    }
    for to in [
        "model.onnx",
        "./model.onnx",
        "arrays/../model.onnx",
        "job.shard",
        "data.npz",
        "arrays",
        "none/t.onnx",
        "p/.",
        "/proc/t.onnx",
        "/dev/full",
        "data.npz/t.onnx",
        ".",
        "",
        "locked/t.onnx",
    ] {
        for option in ["--export", "--metrics"] {
            commands.push(format!("train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1 {option} {to}"));
        }
        commands.push(format!("eval model.onnx --spec job.shard --data data.npz --threads 1 --outputs {to}"));
    }
    for to in ["none/o", "plan/manifest.json", "plan/train.plan", "plan/job.shard", "arrays", "data.npz/o", "", "/dev/full"] {
        commands.push(format!("inspect plan -o {to}"));
    }
    for to in ["plan/train.shir", "plan/manifest.json", "plan/model.onnx", "plan/weights.safetensors", "plan"] {
        commands.push(format!("train plan --data data.npz --steps 1 --threads 1 --export {to}"));
    }
    commands.push("train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1 --export o --metrics o".to_string());
    commands.iter().map(|command| Case::with("an output", vec![], command)).collect()
}

fn plans() -> Vec<Case> {
    let mut cases = vec![];
    for file in
        ["manifest.json", "train.plan", "eval.plan", "train.shir", "eval.shir", "job.shard", "model.onnx", "weights.safetensors"]
    {
        let file = format!("plan/{file}");
        for command in PLAN_COMMANDS {
            cases.push(Case::with(format!("no {file}"), vec![(file.as_str(), None)], command));
            cases.push(Case::of(format!("an empty {file}"), &file, vec![], command));
            cases.push(Case::of(format!("zeros for {file}"), &file, vec![0; 4096], command));
        }
    }
    for (name, text) in [
        ("a manifest of brackets", "[".repeat(100_000)),
        ("a manifest of objects", "{\"a\":".repeat(100_000)),
        ("a manifest of nothing", "{}".to_string()),
        ("a manifest of a long word", format!("\"{}\"", "x".repeat(1 << 20))),
        ("a manifest of another format", "{\"format\":\"\\u001b[2J\"}".to_string()),
    ] {
        for command in PLAN_COMMANDS {
            cases.push(Case::of(name, "plan/manifest.json", text.clone().into_bytes(), command));
        }
    }
    for path in ["none", "arrays", "model.onnx", ".", "/", "/dev/zero", "/proc", "plan/manifest.json", "plan/."] {
        for command in ["inspect", "verify"] {
            cases.push(Case::with(format!("a plan at {path}"), vec![], &format!("{command} {path}")));
        }
    }
    cases
}

fn command_lines() -> Vec<Case> {
    [
        "",
        "frobnicate",
        "compile",
        "compile model.onnx",
        "compile model.onnx --spec job.shard",
        "compile none.onnx --spec job.shard -o p",
        "compile model.onnx --spec none.shard -o p",
        "compile arrays --spec job.shard -o p",
        "compile /dev/zero --spec job.shard -o p",
        "compile model.onnx --spec /dev/zero -o p",
        "compile model.onnx --spec arrays -o p",
        "compile job.shard --spec model.onnx -o p",
        "compile model.onnx --spec job.shard -o p --target cuda",
        "compile model.onnx --spec job.shard --stop-after nothing",
        "compile model.onnx --spec job.shard --dump model.onnx -o p",
        "train model.onnx --data data.npz",
        "train plan --spec job.shard --data data.npz",
        "train plan --data data.npz --steps -1",
        "train plan --data data.npz --steps 18446744073709551616",
        "train plan --data data.npz --threads 0",
        "train plan --data data.npz --threads 99999999",
        "train plan --data data.npz --context 7 --steps 1",
        "train plan --data data.npz --checkpoint c",
        "train plan --data data.npz --device cuda",
        "check plan --data data.npz --batches 0",
        "check plan --data data.npz --batches 99999999999",
        "inspect plan --rank 18446744073709551615",
        "inspect plan --format dot",
        "inspect plan --program nothing",
        "verify",
        "init none.onnx",
        "init job.shard",
        "init arrays",
        "data data.npz --context 0",
        "data text.txt --context 18446744073709551615",
        "help frobnicate",
        "explain y",
    ]
    .iter()
    .map(|line| Case::with("a command line", vec![], line))
    .collect()
}
