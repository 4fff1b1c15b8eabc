//! The decisions by the record of PyTorch's exporter, on models and records written by hand: which
//! initializers are trained, which hold parameters in another form, which parameters are lost, and
//! that no damage to a record does harm.

mod damaged;
mod export;
mod lost;

use self::export::{CALL, Export, alias, exported, trained, turned};
use shardc_frontend::initializers::StoredCopy;
use shardc_frontend::onnx::{ImportOptions, import_bytes};
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::types::Tensor;
use shardc_testkit::onnx::*;
use std::collections::BTreeMap;
use std::path::Path;
use tract_onnx::pb::tensor_proto::DataType;

#[test]
fn what_is_listed_is_what_it_is_listed_as() {
    let nodes = [
        ("MatMul", "x w", "a", "aten.matmul.default(%x, %p_w) -> a"),
        ("Add", "a bias", "b", "aten.add.Tensor(%a, %b_bias) -> b"),
        ("MatMul", "b projection", "c", "aten.matmul.default(%b, %b_projection) -> c"),
        ("Mul", "c temperature", "d", "aten.mul.Tensor(%c, %p_temperature) -> d"),
        ("Mul", "d table", "e", "aten.mul.Tensor(%d, %c_table) -> e"),
        ("Sin", "speed", "s", "aten.sin.default(%p_speed) -> s"),
        ("Mul", "e s", "f", "aten.mul.Tensor(%e, %s) -> f"),
        ("Add", "f extra", "y", "aten.add.Tensor(%f, %extra) -> y"),
    ];
    let tensors = vec![
        weight("w", &[6, 6], 1),
        weight("bias", &[6], 2),
        weight("projection", &[6, 6], 3),
        weight("temperature", &[], 4),
        weight("table", &[6], 5),
        weight("speed", &[6], 6),
        weight("extra", &[6], 7),
    ];
    let export = exported(&nodes, tensors)
        .parameters("w temperature speed")
        .lists("BUFFER", "bias projection")
        .lists("CONSTANT_TENSOR", "table");
    let imported = export.import();
    let found: Vec<(&str, bool, &str)> =
        imported.decisions.iter().map(|d| (d.name.as_str(), d.trained, d.why.split(" by ").next().unwrap())).collect();
    let (parameter, buffer) = ("a parameter", "a buffer");
    let expected = [
        ("w", true, parameter),
        ("bias", false, buffer),
        ("projection", false, buffer),
        ("temperature", true, parameter),
        ("table", false, "a constant"),
        ("speed", true, parameter),
        ("extra", false, "made of no parameter"),
    ];
    assert_eq!(found, expected);

    // The spec has the last word.
    let train = ImportOptions { train: &|n| n == "bias" || n == "w", freeze: &|n| n != "speed", ..ImportOptions::default() };
    let imported = export.import_with(&train).unwrap();
    assert_eq!(trained(&imported), ["w", "bias", "speed"]);
    let states: Vec<(&str, StateRole)> = imported.graph.states.iter().map(|s| (s.name.as_str(), s.role)).collect();
    let (parameter, frozen) = (StateRole::Parameter, StateRole::Frozen);
    assert_eq!(states, [("w", parameter), ("bias", parameter), ("temperature", frozen), ("speed", parameter)]);
}

#[test]
fn equal_parameters_are_two_and_raise_no_question() {
    let values = noise(36, 1);
    let nodes = [
        ("MatMul", "x a", "h", "aten.matmul.default(%x, %p_a) -> h"),
        ("MatMul", "h b", "y", "aten.matmul.default(%h, %p_b) -> y"),
    ];
    for b in [values.clone(), turned(&values, 6)] {
        let export = exported(&nodes, vec![floats("a", &[6, 6], &values), floats("b", &[6, 6], &b)]).parameters("a b");
        let imported = export.import();
        assert_eq!((trained(&imported), imported.graph.states.len()), (vec!["a".into(), "b".into()], 2));
        assert!(imported.copies.is_empty() && imported.warnings.is_empty(), "{:?}", imported.warnings);
    }
}

#[test]
fn a_transpose_holds_its_parameter() {
    let nodes = [("MatMul", "x val_3", "y", "aten.linear.default(%x, %p_fc_weight) -> linear")];
    let tensors = vec![weight("val_3", &[6, 5], 1)];
    let imported = exported(&nodes, tensors.clone()).parameters("fc.weight").folded("val_3", "fc.weight").import();
    assert_eq!(trained(&imported), ["val_3"]);
    assert_eq!(alias(&imported, "val_3"), Some("fc.weight"));
    assert_eq!(imported.decisions[0].why, "it holds `fc.weight` by the exporter's record");
    // The spec knows it by that name.
    let freeze = ImportOptions { freeze: &|n| n == "fc.weight", ..ImportOptions::default() };
    let export = exported(&nodes, tensors.clone()).parameters("fc.weight").folded("val_3", "fc.weight");
    assert_eq!(export.import_with(&freeze).unwrap().graph.states[0].role, StateRole::Frozen);

    // Of another call nobody knows what it computes with its weight.
    let other = [("MatMul", "x val_3", "y", "aten.cosine_similarity.default(%x, %p_fc_weight) -> y")];
    assert_eq!(exported(&other, tensors.clone()).parameters("fc.weight").folded("val_3", "fc.weight").lost(), ["fc.weight"]);
    // A tensor that is named after a move is a moved one.
    for (name, from, lost) in
        [("t", "w", 0), ("permute_2", "w val_1", 0), ("view", "w t", 0), ("t", "w mul", 1), ("mul_1", "w", 1)]
    {
        let call = format!("aten.matmul.default(%x, %{name}) -> y");
        let nodes = [("MatMul", &*format!("x {name}"), "y", &*call)];
        let export = exported(&nodes, vec![weight(name, &[6, 5], 1)]).parameters("w").folded(name, from);
        assert_eq!(export.lost().len(), lost, "{name} of {from}");
    }
}

#[test]
fn a_second_copy_is_a_view_that_is_exported_with_it() {
    let values = noise(36, 1);
    let with = |copy: &[f32], sizes: &[i64]| {
        let nodes = [
            ("MatMul", "x w", "h", "aten.matmul.default(%x, %p_w) -> h"),
            ("MatMul", "h val_3", "y", "aten.linear.default(%h, %p_w) -> y"),
        ];
        exported(&nodes, vec![floats("w", &[6, 6], &values), floats("val_3", sizes, copy)]).parameters("w").folded("val_3", "w")
    };
    for (copy, transposed) in [(turned(&values, 6), true), (values.clone(), false)] {
        let export = with(&copy, &[6, 6]);
        let imported = export.import();
        assert_eq!((trained(&imported), imported.graph.states.len()), (vec!["w".into()], 1));
        assert_eq!(imported.copies, [StoredCopy { name: "val_3".into(), of: "w".into(), transposed }]);
        // After training both are written, and the file is the same kind of thing.
        let new: Vec<f64> = noise(36, 2).into_iter().map(f64::from).collect();
        let new = Tensor::from_f64(imported.weights["w"].ty.clone(), &new);
        let both: BTreeMap<String, Tensor> = [("w".to_string(), new.clone())]
            .into_iter()
            .chain(imported.copies.iter().map(|c| (c.name.clone(), c.elements(&new).unwrap())))
            .collect();
        let written = export_bytes(&export, &both);
        let again = import_bytes(Path::new("test.onnx"), written, &ImportOptions::default()).unwrap();
        assert_eq!((trained(&again), &again.copies), (vec!["w".into()], &imported.copies));
        // The view follows what the spec says of the parameter.
        let freeze = ImportOptions { freeze: &|n| n == "w", ..ImportOptions::default() };
        assert_eq!(export.import_with(&freeze).unwrap().copies.len(), 1);
    }
    let mut unequal = turned(&values, 6);
    unequal[35] += 1e-6;
    assert_eq!(with(&unequal, &[6, 6]).lost(), ["w"]);
}

fn export_bytes(model: &Export, new: &BTreeMap<String, Tensor>) -> Vec<u8> {
    written(Path::new("test.onnx"), model.bytes(), new, "data").unwrap().model
}

#[test]
fn a_lookup_whose_rows_differ_is_the_table() {
    let with = |values: &[f32], from: &str| {
        let nodes = [("Add", "x embedding_1", "y", "aten.add.Tensor(%x, %embedding_1) -> y")];
        exported(&nodes, vec![floats("embedding_1", &[4, 6], values)]).parameters("wpe.weight").folded("embedding_1", from)
    };
    let differ = noise(24, 1);
    let imported = with(&differ, "add arange unsqueeze wpe.weight val_4").import();
    assert_eq!((trained(&imported), alias(&imported, "embedding_1")), (vec!["embedding_1".into()], Some("wpe.weight")));
    let mut equal = differ.clone();
    equal.copy_within(0..6, 18);
    assert_eq!(with(&equal, "arange wpe.weight").lost(), ["wpe.weight"]);
    // A row of zeros may be one that is never trained, `padding_idx`: the lookup that told so is
    // gone.
    let mut padded = differ.clone();
    padded[6..12].fill(0.0);
    assert_eq!(with(&padded, "arange wpe.weight").lost(), ["wpe.weight"]);
    assert_eq!(with(&differ, "arange mul wpe.weight").lost(), ["wpe.weight"]);
    // The values of the file count, whatever the spec makes of them.
    let init = ImportOptions { init: &|_| true, ..ImportOptions::default() };
    assert!(with(&differ, "arange wpe.weight").import_with(&init).is_ok());
}

/// An LSTM of 6 features to 3, whose weights are joined as ONNX wants them.
fn lstm(takes: &str) -> Export {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 1, 6]);
    let tensors = [weight("val_1", &[1, 12, 6], 1), weight("val_2", &[1, 12, 3], 2), weight("val_3", &[1, 24], 3)];
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    node(&mut m, "LSTM", "x val_1 val_2 val_3", "y", vec![int("hidden_size", 3)]);
    output(&mut m, "y");
    let text =
        format!("%y : [num_users=1] = call_function[target=torch.ops.aten.lstm.input](args = (%x, [{takes}]), kwargs = {{}})");
    let notes = Notes { nodes: vec![(0, CALL.into(), text)], ..Notes::default() };
    Export { model: m, listed: vec![], notes }
        .parameters("r.ih r.hh r.bih r.bhh")
        .folded("val_1", "r.ih val_0 zeros")
        .folded("val_2", "r.hh val_0 zeros")
        .folded("val_3", "r.bih r.bhh val_0 zeros")
}

#[test]
fn what_a_recurrent_call_joins_holds_its_parameters() {
    let imported = lstm("%p_r_ih, %p_r_hh, %p_r_bih, %p_r_bhh").import();
    assert_eq!(trained(&imported), ["val_1", "val_2", "val_3"]);
    assert_eq!(alias(&imported, "val_3"), Some("r.bih"));
    assert_eq!(imported.decisions[2].why, "it holds `r.bih`, `r.bhh` by the exporter's record");
    // An operand that is not the parameter itself was computed before the call.
    assert_eq!(lstm("%p_r_ih, %mul, %p_r_bih, %p_r_bhh").lost(), ["r.hh"]);
}

#[test]
fn what_is_computed_of_a_parameter_is_not_the_parameter() {
    let nodes =
        [("MatMul", "x w", "h", "aten.matmul.default(%x, %p_w) -> h"), ("Mul", "h exp", "y", "aten.mul.Tensor(%h, %exp) -> y")];
    let export = exported(&nodes, vec![weight("w", &[6, 2], 1), weight("exp", &[], 2)])
        .parameters("logit_scale w")
        .folded("exp", "logit_scale");
    assert_eq!(export.lost(), ["logit_scale"]);
    // A name that the optimizer made up says nothing of what was computed.
    let nodes = [("MatMul", "x val_7", "y", "aten.linear.default(%x, %p_w) -> y")];
    let tensors = || vec![weight("val_7", &[6, 2], 1)];
    assert_eq!(exported(&nodes, tensors()).parameters("w").folded("val_7", "w exp").lost(), ["w"]);
    assert_eq!(exported(&nodes, tensors()).parameters("w g").folded("val_7", "w g").lost(), ["w", "g"]);
    // The tensors that are left are judged by their use.
    let accept = ImportOptions { accept_lost: true, ..ImportOptions::default() };
    let imported = exported(&nodes, tensors()).parameters("w").folded("val_7", "w exp").import_with(&accept).unwrap();
    assert_eq!(trained(&imported), ["val_7"]);
}

#[test]
fn what_a_lookup_does_with_gradients_is_done_or_told() {
    let lookup = |more: &str| {
        let call = format!("aten.embedding.default(%p_table, %ids{more}) -> a");
        let nodes = [
            ("Gather", "table ids", "a", &*call),
            ("MatMul", "x w", "b", ""),
            ("Add", "a b", "y", "aten.add.Tensor(%a, %b) -> y"),
        ];
        // Of rows that are known, too: also where the whole table is read.
        let tensors = vec![weight("table", &[4, 6], 1), weight("w", &[6, 6], 2), ints("ids", &[4], &[0, 1, 2, 3])];
        let imported = exported(&nodes, tensors).parameters("table w").import();
        let untrained = imported.graph.nodes().find_map(|(_, node)| match &node.op {
            Op::Gather(gather) => Some(gather.untrained),
            _ => None,
        });
        (untrained, imported.warnings.iter().map(|w| w.message.clone()).collect::<Vec<_>>())
    };
    assert_eq!(lookup(", 3"), (Some(Some(3)), vec![]));
    // A table that is read whole and in order needs no lookup.
    assert_eq!(lookup(""), (None, vec![]));
    let warning =
        "`table` has `scale_grad_by_freq`: PyTorch divides each row's gradient by how often the row occurs, and this does not";
    assert_eq!(lookup(", -1, True"), (None, vec![warning.to_string()]));
}

#[test]
fn a_view_that_is_frozen_freezes_its_parameter() {
    let values = noise(36, 1);
    let nodes = [
        ("MatMul", "x w", "a", "aten.matmul.default(%x, %p_w) -> a"),
        ("MatMul", "a val_0", "y", "aten.linear.default(%a, %p_w) -> y"),
    ];
    let tensors = vec![floats("w", &[6, 6], &values), floats("val_0", &[6, 6], &turned(&values, 6))];
    let export = exported(&nodes, tensors).parameters("w").folded("val_0", "w");
    assert_eq!(export.trained(), ["w"]);
    let freeze = |name: &str| name == "val_0";
    let frozen = export.import_with(&ImportOptions { freeze: &freeze, ..ImportOptions::default() }).unwrap();
    assert!(trained(&frozen).is_empty());
    assert_eq!((frozen.graph.states.len(), frozen.copies.len()), (1, 1));
}
