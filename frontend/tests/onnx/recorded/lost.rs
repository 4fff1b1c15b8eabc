//! Parameters that the exporter lost are found, and told with ways out.

use super::export::{Export, SIGNATURE, exported, trained, turned};
use shardc_frontend::onnx::{ImportOptions, import_bytes};
use shardc_testkit::onnx::*;
use std::path::Path;

#[test]
fn what_a_call_takes_and_no_initializer_holds_is_lost() {
    let nodes = [("MatMul", "x w", "y", "aten.linear.default(%x, %p_w, %p_b) -> y")];
    assert_eq!(exported(&nodes, vec![weight("w", &[6, 2], 1)]).parameters("w b").lost(), ["b"]);
}

#[test]
fn what_the_optimizer_replaced_no_longer_says_that_it_is_a_parameter() {
    let nodes = [
        ("MatMul", "x a", "h", "aten.matmul.default(%x, %p_a) -> h"),
        ("MatMul", "h b", "y", "aten.matmul.default(%h, %p_b) -> y"),
    ];
    let export = || exported(&nodes, vec![weight("a", &[6, 6], 1), weight("b", &[6, 6], 2)]).parameters("a b");
    assert_eq!(export().without_kind("b").lost(), ["b"]);
    // If no value says anything, the exporter is one that does not say it.
    assert_eq!(export().without_kind("b").without_kind("a").trained(), ["a", "b"]);
}

/// A net that uses `a` and `b`, of a module that has more.
fn two() -> Export {
    let nodes =
        [("MatMul", "x a", "h", "aten.matmul.default(%x, %p_a) -> h"), ("Add", "h b", "y", "aten.add.Tensor(%h, %p_b) -> y")];
    exported(&nodes, vec![weight("a", &[6, 6], 1), weight("b", &[6], 2)]).parameters("a b")
}

#[test]
fn the_second_name_of_a_tie_and_what_is_not_used_are_not_lost() {
    assert_eq!(two().parameters("tied unused").trained(), ["a", "b"]);
    // Unless something comes from nowhere,
    let mut nowhere = two().parameters("unused");
    initializer(&mut nowhere.model, weight("c", &[6], 3));
    graph(&mut nowhere.model).node[1].input[1] = "c".into();
    assert_eq!(nowhere.lost(), ["unused"]);
    // or no call is told,
    let mut silent = two().parameters("unused");
    silent.notes.nodes.clear();
    assert_eq!(silent.lost(), ["unused"]);
    // or the result of a product is gone.
    let mut gone = two().parameters("gain");
    gone.notes.nodes[1].2 = gone.notes.nodes[1].2.replace("%h", "%mul");
    assert_eq!(gone.lost(), ["gain"]);
    // A dropout's may be.
    let mut idle = two().parameters("unused");
    idle.notes.nodes[1].2 = idle.notes.nodes[1].2.replace("%h", "%clone_1");
    assert_eq!(idle.trained(), ["a", "b"]);
    let mut last = two().parameters("gain");
    last.notes.nodes[1].2 = last.notes.nodes[1].2.replace("%y :", "%add :");
    last.notes.graph = vec![(SIGNATURE.into(), last.signature().replace("y: USER_OUTPUT", "mul: USER_OUTPUT"))];
    let bytes = noted(&last.model, &last.notes);
    assert!(import_bytes(Path::new("test.onnx"), bytes, &ImportOptions::default()).is_err());
}

/// Two sums, each with the vector that its call takes; the file has the first vector alone.
fn merged_vectors(first: &str, second: &str, values: &[f32]) -> Export {
    let call = |a: &str, taken: &str, to: &str| format!("aten.add.Tensor(%{a}, %{taken}) -> {to}");
    let nodes = [
        ("MatMul", "x w", "g", "aten.matmul.default(%x, %p_w) -> g"),
        ("Add", &*format!("g {first}"), "h", &*call("g", first.strip_prefix("b_").unwrap_or(first), "h")),
        ("Relu", "h", "r", "aten.relu.default(%h) -> r"),
        ("Add", &*format!("r {first}"), "y", &*call("r", second, "y")),
    ];
    exported(&nodes, vec![weight("w", &[6, 6], 1), floats(first, &[6], values)]).parameters("w")
}

#[test]
fn a_tensor_in_place_of_an_equal_one_hides_a_parameter() {
    let ones = [1.0; 6];
    let (varied, other) = (noise(6, 3), noise(6, 4));
    // A view of `b` was equal to that of `a`, whatever the values.
    for values in [&ones[..], &varied] {
        let export = merged_vectors("view", "view_1", values).parameters("a b").folded("view", "a val_1");
        assert_eq!(export.lost(), ["b"]);
    }
    // The same view of one parameter is that parameter again.
    assert_eq!(merged_vectors("view", "view_1", &ones).parameters("a").folded("view", "a").trained(), ["w", "view"]);
    // Zeros and ones that are made of no parameter may be equal to one; others are not.
    let constant = |values: &[f32]| merged_vectors("full", "select", values).parameters("b").folded("full", "val_1");
    assert_eq!(constant(&ones).lost(), ["b"]);
    assert_eq!(constant(&other).trained(), ["w"]);
}

#[test]
fn equal_parts_of_a_parameter_are_not_one() {
    let part = |second: &str| merged_vectors("select", second, &[0.0; 6]).parameters("rows").folded("select", "rows val_1");
    assert_eq!(part("select").trained(), ["w", "select"]);
    assert_eq!(part("select_1").lost(), ["rows"]);
    // Both are there.
    let nodes = [
        ("Add", "x select", "h", "aten.add.Tensor(%x, %select) -> h"),
        ("Mul", "h select_1", "y", "aten.mul.Tensor(%h, %select_1) -> y"),
    ];
    let tensors = vec![floats("select", &[6], &[1.0; 6]), floats("select_1", &[6], &[1.0; 6])];
    let export = exported(&nodes, tensors).parameters("rows").folded("select", "rows").folded("select_1", "rows");
    assert_eq!(export.lost(), ["rows"]);
}

#[test]
fn equal_calls_that_were_merged_lose_parameters() {
    // `layer_norm_1` of the second norm was equal to `layer_norm`, and is gone.
    let with = |second: &str| {
        let call = format!("aten.mul.Tensor(%layer_norm, %{second}) -> mul");
        let nodes = [
            ("LayerNormalization", "x n.weight", "layer_norm", "aten.layer_norm.default(%x, [6], %p_n_weight) -> layer_norm"),
            ("Mul", "layer_norm layer_norm", "y", &*call),
        ];
        exported(&nodes, vec![floats("n.weight", &[6], &[1.0; 6])])
    };
    let lost = with("layer_norm_1").parameters("n.weight m.weight").lost();
    assert!(lost.contains(&"m.weight".to_string()), "{lost:?}");
    assert_eq!(with("layer_norm").parameters("n.weight m.weight").trained(), ["n.weight"]);
    // Without another parameter it is one module, called twice.
    assert_eq!(with("layer_norm_1").parameters("n.weight").trained(), ["n.weight"]);
}

#[test]
fn the_refusal_names_the_first_and_both_ways_out() {
    let names: Vec<String> = (0..40).map(|i| format!("layers.{i}.norm.weight")).collect();
    let takes: String = names.iter().map(|name| format!(", %p_{}", name.replace('.', "_"))).collect();
    let call = format!("aten.linear.default(%x, %p_w{takes}) -> y");
    let export =
        exported(&[("MatMul", "x w", "y", &*call)], vec![weight("w", &[6, 2], 1)]).parameters("w").parameters(&names.join(" "));
    let errors = export.import_with(&ImportOptions::default()).unwrap_err();
    let text = errors.iter().map(|e| e.to_string()).collect::<String>();
    assert_eq!(export.lost(), names[..20]);
    assert!(text.contains("the export has lost 40 of the 41 parameters"), "{text}");
    let ways = [text.find("optimize=False"), text.find("accept lost=parameters")];
    assert!(ways[0].is_some() && ways[0] < ways[1], "{text}");
    let label = errors[0].label.as_deref().unwrap();
    assert!(label.lines().count() > 5 && label.lines().all(|line| line.len() <= 104), "{label}");
    assert!(label.ends_with("… and 20 more"), "{label}");
    // Either word is enough.
    let accept = ImportOptions { accept_lost: true, ..ImportOptions::default() };
    let evaluate = ImportOptions { training: false, ..ImportOptions::default() };
    for options in [accept, evaluate] {
        assert_eq!(trained(&export.import_with(&options).unwrap()), ["w"]);
    }
}

#[test]
fn a_transpose_in_place_of_an_equal_one_is_a_loss() {
    // `q` is equal to `p`: its transpose `t_1` is gone, and the transpose `t` of `p` stands for it.
    let nodes = |second: &'static str| {
        [
            ("MatMul", "x t", "a", "aten.matmul.default(%x, %t) -> a"),
            ("MatMul", "a t", "b", second),
            ("MatMul", "b q", "y", "aten.matmul.default(%b, %p_q) -> y"),
        ]
    };
    let (p, other) = (noise(36, 1), noise(36, 2));
    let lost = |second, q: &[f32]| {
        let tensors = vec![floats("t", &[6, 6], &turned(&p, 6)), floats("q", &[6, 6], q)];
        exported(&nodes(second), tensors).parameters("p q").folded("t", "p").lost()
    };
    assert!(lost("aten.matmul.default(%a, %t) -> b", &p).is_empty());
    assert_eq!(lost("aten.matmul.default(%a, %t_1) -> b", &p), ["p"]);
    // Of another matrix it cannot be.
    assert!(lost("aten.matmul.default(%a, %t_1) -> b", &other).is_empty());
}
