//! Small model files that ask for much: what is folded, made or decoded is bounded by what the file
//! holds.

use prost::Message;
use shardc_frontend::onnx::{ImportOptions, Imported, import_bytes};
use shardc_ir::ops::Op;
use shardc_testkit::onnx::*;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A constant that `ops` make of a shape, summed and added to a linear layer.
fn folded(shape: &[i64], ops: &[(&str, &str, &str)], tensors: Vec<pb::TensorProto>) -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 3]);
    initializer(&mut m, floats("w", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    initializer(&mut m, ints("shape", &[shape.len() as i64], shape));
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    node(&mut m, "ConstantOfShape", "shape", "a", vec![]);
    for (op, inputs, outputs) in ops {
        node(&mut m, op, inputs, outputs, vec![]);
    }
    node(&mut m, "ReduceSum", "b", "sum", vec![int("keepdims", 0)]);
    node(&mut m, "MatMul", "x w", "p", vec![]);
    node(&mut m, "Add", "p sum", "y", vec![]);
    output(&mut m, "y");
    m
}

fn one(value: i64) -> pb::TensorProto {
    ints("one", &[1], &[value])
}

/// The bytes of all constants of the graph.
fn constant_bytes(imported: &Imported) -> u64 {
    let constants = imported.graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::Constant(constant) => Some(constant.value.bytes.len() as u64),
        _ => None,
    });
    constants.sum()
}

#[test]
fn what_is_too_much_to_fold_is_left_for_run_time() {
    let cases = [
        ("a product", folded(&[8192, 8192], &[("MatMul", "a a", "b")], vec![])),
        ("a product of small ones", folded(&[1024, 1024], &[("MatMul", "a a", "b")], vec![])),
        ("running sums", folded(&[1 << 26], &[("CumSum", "a one", "b")], vec![one(0)])),
        ("the largest", folded(&[1 << 26], &[("TopK", "a one", "b i")], vec![one(60)])),
        ("one value", folded(&[1 << 28], &[("Identity", "a", "b")], vec![])),
        ("many ops", folded(&[1 << 22], &[("Cos", "a", "c"), ("Sin", "c", "d"), ("Exp", "d", "e"), ("Log", "e", "b")], vec![])),
    ];
    for (name, model) in cases {
        let imported = import_model(&model, &ImportOptions::default()).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        let bytes = constant_bytes(&imported);
        assert!(bytes <= 32 << 20, "{name}: {bytes} bytes of constants");
        let is_summed = imported.graph.nodes().any(|(_, node)| matches!(node.op, Op::Reduce(_)));
        assert!(is_summed, "{name}: the sum of it was folded");
    }
}

#[test]
fn what_has_no_op_at_run_time_is_refused() {
    let range = |m: &mut pb::ModelProto| {
        for (name, value) in [("zero", 0), ("limit", 1 << 28), ("step", 1)] {
            initializer(m, ints(name, &[], &[value]));
        }
    };
    let mut numbers = folded(&[1], &[("Range", "zero limit step", "r"), ("Cast", "r", "b")], vec![]);
    range(&mut numbers);
    graph(&mut numbers).node[2].attribute.push(int("to", 1));
    for (name, model) in [
        ("numbers", numbers),
        ("a diagonal", folded(&[1 << 14, 1 << 14], &[("EyeLike", "a", "b")], vec![])),
        ("a transform", {
            let mut m = folded(&[4, 1 << 13, 1], &[("DFT", "a", "b")], vec![]);
            graph(&mut m).node[1].attribute.push(int("axis", 1));
            m
        }),
    ] {
        let errors = import_model(&model, &ImportOptions::default()).expect_err(name);
        assert!(errors.iter().any(|e| e.message.contains("too much for a model of this size")), "{name}: {errors:?}");
    }
}

/// Shapes are computed from shapes after large constants have used up what there is.
#[test]
fn small_constants_fold_after_large_ones() {
    let mut m = folded(&[1 << 22], &[("Cos", "a", "b")], vec![]);
    graph(&mut m).output.clear();
    let mut last = "b".to_string();
    for i in 0..40 {
        node(&mut m, "Cos", &last, &format!("c{i}"), vec![]);
        last = format!("c{i}");
    }
    initializer(&mut m, ints("two", &[1], &[2]));
    node(&mut m, "Shape", "y", "s", vec![]);
    node(&mut m, "Mul", "s two", "t", vec![]);
    node(&mut m, "Expand", "y s", "z", vec![]);
    node(&mut m, "ReduceSum", &last, "all", vec![int("keepdims", 0)]);
    node(&mut m, "Add", "z all", "out", vec![]);
    output(&mut m, "out");
    import_model(&m, &ImportOptions::default()).unwrap();
}

/// A list of the row that each update goes to would be as long as the table.
#[test]
fn known_updates_are_written_where_they_go() {
    for (op, sizes) in [("ScatterElements", &[1 << 20][..]), ("ScatterND", &[1 << 20, 1][..])] {
        let indices = raw("i", DataType::Uint8, sizes, vec![7; 1 << 20]);
        let model = folded(&[1 << 20], &[(op, "a i a", "b")], vec![indices]);
        let imported = import_model(&model, &ImportOptions::default()).unwrap_or_else(|errors| panic!("{op}: {errors:?}"));
        assert!(constant_bytes(&imported) < 1000, "{op}");
    }
}

/// Two bytes of a file may ask for a thousand of memory.
#[test]
fn empty_messages_are_refused_before_they_are_decoded() {
    // A list that has to grow once more at its end.
    const MANY: usize = (1 << 23) + 1;
    let refused = |what: &str, fields: Vec<u8>| {
        let mut bytes = folded(&[1], &[("Identity", "a", "b")], vec![]).encode_to_vec();
        bytes.extend(fields);
        let errors = import_bytes(Path::new("test.onnx"), bytes, &ImportOptions::default()).expect_err(what);
        assert!(errors[0].message.contains("so many and so small"), "{what}: {errors:?}");
    };
    // The numbers of the fields that lead to the empty ones, from the model on.
    for (what, path) in [
        ("nodes", &[7, 1][..]),
        ("attributes", &[7, 1, 5]),
        ("tensors of one attribute", &[7, 1, 5, 5]),
        ("texts", &[7, 1, 5, 9]),
        ("types", &[7, 1, 5, 15]),
        ("initializers", &[7, 5]),
        ("entries of external data", &[7, 5, 13]),
        ("inputs", &[7, 11]),
        ("dimensions", &[7, 11, 2, 1, 2, 1]),
        ("notes of quantization", &[7, 14, 2]),
        ("entries of metadata", &[14]),
        ("attributes of a training", &[20, 1, 1, 5]),
        ("functions", &[25]),
    ] {
        let (last, outer) = path.split_last().unwrap();
        let empty = delimited(*last, &[]).repeat(MANY);
        refused(what, outer.iter().rev().fold(empty, |inner, number| delimited(*number, &inner)));
    }
}

/// A field of that number, with `body` in it.
fn delimited(number: u64, body: &[u8]) -> Vec<u8> {
    let mut field = vec![];
    prost::encoding::encode_key(number as u32, prost::encoding::WireType::LengthDelimited, &mut field);
    prost::encoding::encode_varint(body.len() as u64, &mut field);
    field.extend_from_slice(body);
    field
}

/// A node of few bytes takes many more once it is read, and is no attack.
#[test]
fn many_small_constants_are_no_empty_messages() {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 3]);
    let mut last = "x".to_string();
    for i in 0..32_000 {
        node(&mut m, "Constant", "", &format!("c{i}"), vec![tensor("value", floats("", &[], &[i as f32]))]);
        node(&mut m, "Add", &format!("{last} c{i}"), &format!("t{i}"), vec![]);
        last = format!("t{i}");
    }
    output(&mut m, &last);
    import_model(&m, &ImportOptions::default()).unwrap();
}

#[test]
fn attributes_that_are_no_finite_numbers_are_refused() {
    for (op, inputs, name) in [
        ("LayerNormalization", "y scale", "epsilon"),
        ("Selu", "y", "gamma"),
        ("Elu", "y", "alpha"),
        ("LeakyRelu", "y", "alpha"),
        ("HardSigmoid", "y", "beta"),
    ] {
        for number in [f32::NAN, f32::INFINITY] {
            let mut m = folded(&[1], &[("Identity", "a", "b")], vec![]);
            graph(&mut m).output.clear();
            initializer(&mut m, floats("scale", &[2], &[1.0, 2.0]));
            node(&mut m, op, inputs, "z", vec![float(name, number)]);
            output(&mut m, "z");
            let errors = import_model(&m, &ImportOptions::default()).expect_err("no number");
            assert!(errors[0].message.contains(&format!("attribute `{name}` is")), "{errors:?}");
        }
    }
}

/// Several layers share what a small file may have written out.
#[test]
fn recurrent_steps_are_bounded_over_all_layers() {
    let layers = |steps: i64, count: usize| {
        let mut m = model(20);
        input(&mut m, "x", DataType::Float, &[steps, 1, 2]);
        for (name, seed) in [("w", 1), ("r", 2)] {
            initializer(&mut m, weight(name, &[1, 2, 2], seed));
        }
        for layer in 0..count {
            node(&mut m, "RNN", "x w r", &format!(" h{layer}"), vec![int("hidden_size", 2)]);
            output(&mut m, &format!("h{layer}"));
        }
        import_model(&m, &ImportOptions::default())
    };
    layers(2000, 2).unwrap();
    let errors = layers(2000, 3).expect_err("6,000 steps");
    assert!(errors[0].message.contains("a sequence of 2000 steps"), "{errors:?}");
}

#[test]
fn a_causal_mask_of_many_tokens_is_little() {
    let mut m = model(23);
    input(&mut m, "x", DataType::Float, &[1, 2, 2048, 4]);
    initializer(&mut m, floats("w", &[4, 4], &[0.5; 16]));
    node(&mut m, "MatMul", "x w", "q", vec![]);
    node(&mut m, "Attention", "q x x", "y", vec![int("is_causal", 1)]);
    output(&mut m, "y");
    let imported = import_model(&m, &ImportOptions::default()).unwrap_or_else(|errors| panic!("{errors:?}"));
    assert_eq!(constant_bytes(&imported) >> 20, 4);
    // Half a gigabyte of them is not.
    graph(&mut m).input[0] = {
        let mut larger = model(23);
        input(&mut larger, "x", DataType::Float, &[1, 2, 1 << 14, 4]);
        graph(&mut larger).input[0].clone()
    };
    let errors = import_model(&m, &ImportOptions::default()).expect_err("it is too large");
    assert!(errors.iter().any(|e| e.message.contains("too much for a model of this size")), "{errors:?}");
}
