//! Broken and hostile model files: each gives a diagnostic that names the trouble, none a panic.

use prost::Message;
use shardc_frontend::onnx::{ImportOptions, import, import_bytes};
use shardc_testkit::onnx::*;
use std::collections::BTreeMap;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// `y = relu(x w + b)` with a reshape that goes through a constant.
fn good() -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 3]);
    initializer(&mut m, floats("w", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    initializer(&mut m, floats("b", &[2], &[0.5, -0.5]));
    initializer(&mut m, ints("shape", &[2], &[2, -1]));
    node(&mut m, "MatMul", "x w", "p", vec![]);
    node(&mut m, "Add", "p b", "s", vec![]);
    node(&mut m, "Relu", "s", "r", vec![]);
    node(&mut m, "Reshape", "r shape", "y", vec![]);
    output(&mut m, "y");
    m
}

/// The good model with `op` behind it, whose inputs are `y` and `inputs`.
fn with(op: &str, inputs: &str, attributes: Vec<pb::AttributeProto>, tensors: Vec<pb::TensorProto>) -> pb::ModelProto {
    let mut m = good();
    graph(&mut m).output.clear();
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    node(&mut m, op, inputs, "z", attributes);
    output(&mut m, "z");
    m
}

/// An image of 2 channels and 2 x 3 elements that goes into `op`; a convolution has a kernel of 2 x
/// 2 for 2 channels.
fn conv(op: &str, attributes: Vec<pb::AttributeProto>) -> pb::ModelProto {
    let mut m = good();
    graph(&mut m).output.clear();
    initializer(&mut m, ints("image", &[4], &[1, 2, 2, 3]));
    input(&mut m, "i", DataType::Float, &[1, 12]);
    node(&mut m, "Reshape", "i image", "v", vec![]);
    let kernel = op.starts_with("Conv");
    if kernel {
        initializer(&mut m, floats("k", &[2, 2, 2, 2], &[0.5; 16]));
    }
    node(&mut m, op, if kernel { "v k" } else { "v" }, "z", attributes);
    output(&mut m, "z");
    m
}

/// A recurrent layer of 2 values over 2 steps of 2 samples, with `inputs` behind its weights.
fn recurrent(op: &str, gates: i64, inputs: &str, bias: &[i64]) -> pb::ModelProto {
    let mut m = with("Reshape", "y sizes", vec![], vec![ints("sizes", &[3], &[2, 2, 2])]);
    graph(&mut m).output.clear();
    for name in ["input", "recurrence"] {
        initializer(&mut m, floats(name, &[1, 2 * gates, 2], &vec![0.5; 4 * gates as usize]));
    }
    initializer(&mut m, floats("bias", bias, &vec![0.5; bias.iter().product::<i64>() as usize]));
    node(&mut m, op, &format!("z input recurrence {inputs}"), "last", vec![int("hidden_size", 2)]);
    output(&mut m, "last");
    m
}

fn change(f: impl Fn(&mut pb::GraphProto)) -> pb::ModelProto {
    let mut m = good();
    f(graph(&mut m));
    m
}

fn weight(f: impl Fn(&mut pb::TensorProto)) -> pb::ModelProto {
    change(|g| f(&mut g.initializer[0]))
}

fn external(entries: &[(&str, &str)]) -> pb::ModelProto {
    weight(|w| {
        w.raw_data.clear();
        w.data_location = Some(1);
        w.external_data =
            entries.iter().map(|(k, v)| pb::StringStringEntryProto { key: k.to_string(), value: v.to_string() }).collect();
    })
}

fn errors(m: &pb::ModelProto) -> Vec<String> {
    match import_model(m, &ImportOptions::default()) {
        Ok(_) => vec![],
        Err(errors) => errors.iter().map(|e| e.to_string()).collect(),
    }
}

#[test]
fn the_good_model_imports() {
    assert_eq!(errors(&good()), Vec::<String>::new());
}

#[test]
fn each_broken_model_is_refused_with_its_reason() {
    let huge = 1 << 40;
    let dim = |d: i64| ints("d", &[2], &[d, d]);
    let cases: Vec<(&str, pb::ModelProto)> = vec![
        ("has no graph", pb::ModelProto { graph: None, ..good() }),
        ("names no op set", pb::ModelProto { opset_import: vec![], ..good() }),
        ("op set 6", pb::ModelProto { opset_import: model(6).opset_import, ..good() }),
        ("op set 99", pb::ModelProto { opset_import: model(99).opset_import, ..good() }),
        ("has no outputs", change(|g| g.output.clear())),
        ("`w` is defined twice", change(|g| g.initializer.push(g.initializer[0].clone()))),
        ("`x` is defined twice", change(|g| g.input.push(g.input[0].clone()))),
        ("`p` is defined twice", change(|g| g.node[1].output[0] = "p".into())),
        ("`x` is defined twice", change(|g| g.node[3].output.push("x".into()))),
        ("two outputs of this name", change(|g| g.output.push(g.output[0].clone()))),
        ("depends on its own result", change(|g| g.node[0].input[0] = "r".into())),
        ("depends on its own result", change(|g| g.node[2].input[0] = "r".into())),
        ("`nothing` is read, but nothing defines it", change(|g| g.node[1].input[1] = "nothing".into())),
        ("`nothing` is read, but nothing defines it", change(|g| g.output[0].name = "nothing".into())),
        (
            "input 1 is missing",
            change(|g| {
                g.node[1].input.pop();
            }),
        ),
        ("op `Frobnicate` is not supported", change(|g| g.node[2].op_type = "Frobnicate".into())),
        ("op `my.domain:Relu` is not supported", change(|g| g.node[2].domain = "my.domain".into())),
        ("attribute `slope` is not supported", change(|g| g.node[2].attribute.push(float("slope", 0.1)))),
        ("not of type int", change(|g| g.node[3].attribute.push(float("allowzero", 0.0)))),
        (
            "refers to one of a function",
            change(|g| {
                g.node[3].attribute.push(pb::AttributeProto { ref_attr_name: "a".into(), ..int("allowzero", 0) });
            }),
        ),
        ("output 1 is not supported", change(|g| g.node[2].output.push("extra".into()))),
        ("the input is not a tensor", change(|g| g.input[0].r#type = None)),
        (
            "dimension 0 is 0",
            change(|g| {
                g.input.clear();
                input_zero(g);
            }),
        ),
        ("its shape is [-3, 2]", weight(|w| w.dims = vec![-3, 2])),
        ("too large", weight(|w| w.dims = vec![1 << 62, 1 << 62])),
        ("take 24 bytes, but 20 are there", weight(|w| w.raw_data.truncate(20))),
        ("take 4000000 bytes", weight(|w| w.dims = vec![1000, 1000])),
        ("take 24 bytes, but 0 are there", weight(|w| w.raw_data.clear())),
        ("element type 77 is not known", weight(|w| w.data_type = 77)),
        ("elements of type string", weight(|w| w.data_type = DataType::String as i32)),
        ("elements of type complex64", weight(|w| w.data_type = DataType::Complex64 as i32)),
        ("operands are f32 and i64", weight(|w| w.data_type = DataType::Int32 as i32)),
        ("`z` is 3 and 6", weight(|w| w.dims = vec![6])),
        ("`z` is 3 and 2", weight(|w| w.dims = vec![2, 3])),
        ("has no location", external(&[])),
        ("not a path inside the model's folder", external(&[("location", "../w.bin")])),
        ("not a path inside the model's folder", external(&[("location", "/etc/passwd")])),
        ("not a path inside the model's folder", external(&[("location", "")])),
        ("cannot be read", external(&[("location", "no-such-file.bin")])),
        ("offset `-1`", external(&[("location", "w.bin"), ("offset", "-1")])),
        ("length `many`", external(&[("location", "w.bin"), ("length", "many")])),
        ("does not reshape", change(|g| g.initializer[2] = ints("shape", &[2], &[3, -1]))),
        ("does not reshape", change(|g| g.initializer[2] = ints("shape", &[2], &[-1, -1]))),
        ("its shape is [2, -5]", change(|g| g.initializer[2] = ints("shape", &[2], &[2, -5]))),
        ("too large", change(|g| g.initializer[2] = ints("shape", &[2], &[1 << 40, 1 << 40]))),
        ("not a list of integers", change(|g| g.initializer[2] = floats("shape", &[2], &[2.0, -1.0]))),
        ("depends on an input's values", with("Reshape", "y i", vec![], vec![]).with_input("i")),
        ("too large", with("Expand", "y d", vec![], vec![ints("d", &[4], &[huge, huge, 2, 4])])),
        ("too large", with("Tile", "y d", vec![], vec![dim(huge)])),
        ("too large", with("Tile", "y d", vec![], vec![dim(i64::MAX)])),
        ("pads", with("Pad", "y d", vec![], vec![ints("d", &[4], &[i64::MIN, 0, i64::MIN, 0])])),
        ("too large", with("Pad", "y d", vec![], vec![ints("d", &[4], &[i64::MAX, 0, i64::MAX, 0])])),
        ("group", conv("Conv", vec![int("group", 0)])),
        ("in 3 groups", conv("Conv", vec![int("group", 3)])),
        ("in 9223372036854775807 groups", conv("Conv", vec![int("group", i64::MAX)])),
        ("`strides` is [0, 1]", conv("Conv", vec![int_list("strides", vec![0, 1])])),
        ("`strides` is [1, -1]", conv("MaxPool", vec![int_list("kernel_shape", vec![1, 1]), int_list("strides", vec![1, -1])])),
        ("`dilations` is [1]", conv("Conv", vec![int_list("dilations", vec![1])])),
        ("`pads` is [0, 0, 0, -1]", conv("Conv", vec![int_list("pads", vec![0, 0, 0, -1])])),
        ("`pads` is", conv("ConvTranspose", vec![int_list("pads", vec![i64::MAX; 4])])),
        ("fits nowhere", conv("Conv", vec![int_list("dilations", vec![1 << 30, 1 << 30])])),
        ("too many", conv("Conv", vec![int_list("pads", vec![1 << 30; 4])])),
        ("its output would have -", conv("ConvTranspose", vec![int_list("pads", vec![9; 4])])),
        ("too large", conv("ConvTranspose", vec![int_list("strides", vec![1 << 30, 1 << 30])])),
        ("`auto_pad` is `SOME`", conv("Conv", vec![string("auto_pad", "SOME")])),
        ("`kernel_shape` is [3, 2]", conv("Conv", vec![int_list("kernel_shape", vec![3, 2])])),
        ("`kernel_shape` is missing", conv("MaxPool", vec![])),
        ("fits nowhere", conv("AveragePool", vec![int_list("kernel_shape", vec![5, 1])])),
        ("pads of 2 and 0", conv("MaxPool", vec![int_list("kernel_shape", vec![2, 2]), int_list("pads", vec![2, 0, 0, 0])])),
        (
            "too many taps",
            conv("AveragePool", vec![int_list("kernel_shape", vec![1 << 30; 2]), int_list("pads", vec![(1 << 30) - 1; 4])]),
        ),
        ("`Indices`", {
            let mut m = conv("MaxPool", vec![int_list("kernel_shape", vec![1, 1])]);
            graph(&mut m).node.last_mut().unwrap().output.push("indices".into());
            m
        }),
        ("without spatial dimensions", with("GlobalAveragePool", "y", vec![], vec![])),
        ("negative size", with("ConstantOfShape", "d", vec![], vec![dim(-1)])),
        ("too large", with("ConstantOfShape", "d", vec![], vec![dim(huge)])),
        (
            "too much for a model",
            with(
                "Range",
                "from to by",
                vec![],
                vec![ints("from", &[], &[0]), ints("to", &[], &[i64::MAX]), ints("by", &[], &[1])],
            ),
        ),
        (
            "it runs from",
            with("Range", "from to by", vec![], vec![ints("from", &[], &[0]), ints("to", &[], &[9]), ints("by", &[], &[0])]),
        ),
        ("a step is 0", with("Slice", "y d d d d", vec![], vec![ints("d", &[1], &[0])])),
        ("axis 7 of 2 dimensions", with("Softmax", "y", vec![int("axis", 7)], vec![])),
        ("axis -9223372036854775808", with("Softmax", "y", vec![int("axis", i64::MIN)], vec![])),
        ("index 9 of 2 elements", with("Gather", "y d", vec![], vec![ints("d", &[1], &[9])])),
        ("no order of the dimensions", with("Transpose", "y", vec![int_list("perm", vec![0, 0])], vec![])),
        ("divided by 0", with("Div", "d e", vec![], vec![ints("d", &[1], &[1]), ints("e", &[1], &[0])])),
        ("parts of", with("Split", "y d", vec![], vec![ints("d", &[1], &[9])])),
        ("2 parts in 1 output", with("Split", "y d", vec![], vec![ints("d", &[2], &[1, 9])])),
        ("its bias has shape [] for a direction, not [12]", recurrent("GRU", 3, "bias", &[1])),
        ("its bias has shape [16, 1] for a direction", recurrent("LSTM", 4, "bias", &[1, 16, 1])),
        ("its first state has shape [4] for a direction, not [2, 2]", recurrent("LSTM", 4, "bias - y", &[1, 16])),
        ("in 3 parts", with("Split", "y", vec![int("num_outputs", 3)], vec![])),
        ("no element type", with("Cast", "y", vec![int("to", i64::MAX)], vec![])),
        ("elements of type string", with("Cast", "y", vec![int("to", 8)], vec![])),
        ("its value is of a kind", with("Constant", "", vec![], vec![])),
        ("is missing", with("Concat", "y y", vec![], vec![])),
        ("do not broadcast", with("Add", "y d", vec![], vec![floats("d", &[3], &[1.0, 2.0, 3.0])])),
        ("operands are f32 and i64", with("Add", "y d", vec![], vec![ints("d", &[1], &[1])])),
        ("a sequence stands where a tensor", sequence("Relu", "q")),
        ("a tensor stands where a sequence", with("SequenceAt", "y d", vec![], vec![ints("d", &[], &[0])])),
        ("position 9 of 2", sequence("SequenceAt", "q nine")),
        (
            "it drops a share of 1",
            with(
                "Dropout",
                "y ratio training",
                vec![],
                vec![floats("ratio", &[], &[1.0]), raw("training", DataType::Bool, &[], vec![1])],
            ),
        ),
        ("mode `mirror`", with("Pad", "y d", vec![string("mode", "mirror")], vec![ints("d", &[4], &[1, 1, 1, 1])])),
        ("too much for a model", with("Pad", "y d", vec![string("mode", "edge")], vec![ints("d", &[4], &[0, 0, 0, 1 << 60])])),
        ("too large", with("Pad", "y d", vec![string("mode", "wrap")], vec![ints("d", &[4], &[0, 0, i64::MAX, 1])])),
        ("too large", with("CenterCropPad", "y d", vec![], vec![dim(i64::MAX)])),
        ("`2` of its equation", with("Einsum", "y y", vec![string("equation", "i2,ij->i")], vec![])),
        ("is for 1 operands", with("Einsum", "y y", vec![string("equation", "ij->i")], vec![])),
        ("`k` of its result", with("Einsum", "y y", vec![string("equation", "ij,ij->k")], vec![])),
        ("occurs twice", with("Einsum", "y y", vec![string("equation", "ij,ij->ii")], vec![])),
        ("does not fit", with("Einsum", "y y", vec![string("equation", "ijk...,ij")], vec![])),
        ("`i` is 2 and 4", with("Einsum", "y", vec![string("equation", "ii->i")], vec![])),
        ("the 9223372036854775807 largest", with("TopK", "y d", vec![], vec![ints("d", &[1], &[i64::MAX])])),
        ("the 0 largest", with("TopK", "y d", vec![], vec![ints("d", &[1], &[0])])),
        ("its targets", with("SoftmaxCrossEntropyLoss", "y d", vec![], vec![ints("d", &[3], &[0, 0, 0])])),
        (
            "reduction `mul`",
            with("ScatterElements", "y d y", vec![string("reduction", "mul")], vec![ints("d", &[2, 4], &[0; 8])]),
        ),
        ("index 5 of 2 elements", with("ScatterElements", "y d y", vec![], vec![ints("d", &[2, 4], &[5; 8])])),
        ("do not fit", with("ScatterND", "y d y", vec![], vec![ints("d", &[1, 1], &[0])])),
        ("input 1 is not supported", with("Relu", "y y", vec![], vec![])),
        ("do not index", with("GatherND", "y d", vec![], vec![ints("d", &[1, 3], &[0, 0, 0])])),
        ("has neither three nor four", with("Attention", "y y y", vec![], vec![])),
        ("either scales or sizes", with("Resize", "y", vec![], vec![])),
        ("`mode` `magic`", with("Resize", "y - - d", vec![string("mode", "magic")], vec![ints("d", &[2], &[3, 4])])),
        ("`coordinate_transformation_mode` `tf_crop_and_resize`", {
            let mode = string("coordinate_transformation_mode", "tf_crop_and_resize");
            with("Resize", "y - - d", vec![mode], vec![ints("d", &[2], &[3, 4])])
        }),
        ("would have 0", with("Resize", "y - - d", vec![], vec![ints("d", &[2], &[0, 4])])),
        ("would have -2", with("Resize", "y - d", vec![], vec![floats("d", &[2], &[-1.0, 4.0])])),
        ("too much for a model of this size", with("Resize", "y - - d", vec![], vec![ints("d", &[2], &[900_000_000, 4])])),
        ("`blocksize` is 0", conv("DepthToSpace", vec![])),
        ("in blocks of 4 x 4", conv("SpaceToDepth", vec![int("blocksize", 4)])),
    ];
    assert!(cases.len() > 60);
    let wrong: Vec<String> = cases
        .iter()
        .map(|(reason, m)| (reason, errors(m)))
        .filter(|(reason, found)| !found.iter().any(|e| e.contains(*reason)))
        .map(|(reason, found)| format!("no `{reason}` in {found:?}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn input_zero(g: &mut pb::GraphProto) {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[0, 3]);
    g.input = graph(&mut m).input.clone();
}

/// A sequence `q` of two tensors that `op` reads.
fn sequence(op: &str, inputs: &str) -> pb::ModelProto {
    let mut m = good();
    graph(&mut m).output.clear();
    initializer(&mut m, ints("nine", &[], &[9]));
    node(&mut m, "SequenceConstruct", "y r", "q", vec![]);
    node(&mut m, op, inputs, "z", vec![]);
    output(&mut m, "z");
    m
}

trait WithInput {
    fn with_input(self, name: &str) -> Self;
}

impl WithInput for pb::ModelProto {
    fn with_input(mut self, name: &str) -> Self {
        input(&mut self, name, DataType::Int64, &[2]);
        self
    }
}

#[test]
fn all_errors_of_a_file_come_together() {
    let m = change(|g| {
        g.node[0].op_type = "Alpha".into();
        g.node[2].op_type = "Beta".into();
    });
    assert_eq!(errors(&m).len(), 2);
    let mut m = good();
    node(&mut m, "Softmax", "y", "z", vec![int("axis", 5)]);
    node(&mut m, "Gelu", "y", "v", vec![string("approximate", "cubic")]);
    node(&mut m, "Add", "z v", "u", vec![]);
    output(&mut m, "u");
    let found = errors(&m);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("(node \"z\" (Softmax))"), "{found:#?}");
}

#[test]
fn sizes_that_nobody_says_are_asked_for() {
    let mut m = good();
    graph(&mut m).input.clear();
    input(&mut m, "x", DataType::Float, &[-1, -2]);
    let text = errors(&m).join("\n");
    assert!(text.contains("dimension 0 is `s1`") && text.contains("batch N"), "{text}");
    assert!(text.contains("dimension 1 is `s2`") && text.contains("bind s2=N"), "{text}");
    let bound = |batch: Option<u64>, sizes: &[(&str, u64)]| {
        let bindings: BTreeMap<String, u64> = sizes.iter().map(|(n, s)| (n.to_string(), *s)).collect();
        let result = import_model(&m, &ImportOptions { batch, bindings, ..ImportOptions::default() });
        result.map_err(|e| e[0].to_string()).map(|i| i.graph.ty(i.graph.outputs[0].value).shape.clone())
    };
    assert_eq!(bound(Some(6), &[("s2", 3)]), Ok(vec![2, 6]));
    assert_eq!(bound(None, &[("s1", 8), ("s2", 3)]), Ok(vec![2, 8]));
    assert!(bound(Some(6), &[("s1", 8), ("s2", 3)]).unwrap_err().contains("bound to 8, but the batch is 6"));
    assert!(bound(Some(6), &[("s2", 3), ("s3", 3)]).unwrap_err().contains("no symbolic dimension `s3`"));
}

#[test]
fn a_baked_batch_stays_what_the_model_says() {
    let options = ImportOptions { batch: Some(8), ..ImportOptions::default() };
    let graph = import_model(&good(), &options).unwrap().graph;
    assert_eq!(graph.ty(graph.named("x").unwrap()).shape, [4, 3]);
}

#[test]
fn every_truncation_and_many_flips_end_in_a_diagnostic_or_a_graph() {
    let mut m = good();
    node(&mut m, "LayerNormalization", "s b b", "n", vec![int("axis", -1), float("epsilon", 1e-5)]);
    node(&mut m, "Slice", "n shape shape", "c", vec![]);
    output(&mut m, "n");
    output(&mut m, "c");
    let bytes = m.encode_to_vec();
    let path = Path::new("test.onnx");
    for end in 0..bytes.len() {
        let _ = import_bytes(path, bytes[..end].to_vec(), &ImportOptions::default());
    }
    let mut state = 1u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut broken = bytes.clone();
        for _ in 0..1 + next(3) {
            let at = next(broken.len());
            broken[at] = next(256) as u8;
        }
        refused += usize::from(import_bytes(path, broken, &ImportOptions::default()).is_err());
    }
    assert!(refused > 5_000, "{refused}");
}

#[test]
fn a_file_of_zeros_is_no_model() {
    let errors = import_bytes(Path::new("test.onnx"), vec![0; 64], &ImportOptions::default()).unwrap_err();
    assert!(errors[0].message.contains("breaks off at byte 0"), "{errors:?}");
}

#[test]
fn folders_devices_and_missing_files_are_refused() {
    for path in ["/", "/dev/zero", "/no/such/model.onnx"] {
        let errors = import(Path::new(path), &ImportOptions::default()).unwrap_err();
        assert_eq!(errors.len(), 1, "{path}");
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_and_short_files_are_refused() {
    let base = std::env::temp_dir().join(format!("shardc-links-{}", std::process::id()));
    let folder = base.join("model");
    std::fs::create_dir_all(folder.join("folder")).unwrap();
    std::fs::write(base.join("outside.bin"), [0; 64]).unwrap();
    std::fs::write(folder.join("short.bin"), [0; 20]).unwrap();
    std::os::unix::fs::symlink(base.join("outside.bin"), folder.join("link.bin")).unwrap();
    let refused = |location: &str, offset: &str| {
        let m = external(&[("location", location), ("offset", offset)]);
        let errors = import_bytes(&folder.join("m.onnx"), m.encode_to_vec(), &ImportOptions::default()).unwrap_err();
        errors[0].to_string()
    };
    assert!(refused("link.bin", "0").contains("a link that leaves"), "{}", refused("link.bin", "0"));
    assert!(refused("folder", "0").contains("not a file"));
    assert!(refused("short.bin", "0").contains("24 bytes from byte 0 of `short.bin`, which has 20"));
    assert!(refused("short.bin", &u64::MAX.to_string()).contains("which has 20"));
    std::fs::remove_dir_all(&base).unwrap();
}

#[test]
fn what_versions_of_onnx_define_differently_is_refused() {
    let attention = |outputs: &str, more: Vec<pb::AttributeProto>| {
        let mut m = model(23);
        input(&mut m, "x", DataType::Float, &[1, 1, 2, 2]);
        node(&mut m, "Attention", "x x x", outputs, [vec![int("qk_matmul_output_mode", 1)], more].concat());
        outputs.split(' ').for_each(|name| output(&mut m, name));
        import_model(&m, &ImportOptions::default()).err().unwrap_or_default()
    };
    let cap = || vec![float("softcap", 1.0)];
    for more in [cap(), vec![int("is_causal", 1)]] {
        let refused = attention("y k v scores", more);
        assert_eq!(refused.len(), 1);
        assert!(refused[0].message.contains("mean different things in ONNX 1.18 and later"), "{}", refused[0].message);
    }
    assert!(attention("y k v scores", vec![]).is_empty());
    assert!(attention("y", cap()).is_empty());
}
