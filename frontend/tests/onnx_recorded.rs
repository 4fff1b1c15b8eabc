//! What the record of PyTorch's exporter decides, on models and records written by hand: which
//! initializers are trained, which hold parameters in another form, which parameters are lost, and
//! that no damage to a record does harm.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod onnx_support;

use onnx_support::*;
use shardc_frontend::onnx::{Copy, ImportOptions, Imported, import_bytes};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::types::Tensor;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";
const FOLDED: &str = "pkg.onnxscript.optimizer.folded_from";
const CALL: &str = "pkg.torch.onnx.fx_node";

/// The transpose of a matrix of `rows` rows.
fn turned(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    (0..values.len()).map(|at| values[(at % rows) * columns + at / rows]).collect()
}

/// A model as the exporter writes it, with its record.
#[derive(Clone)]
struct Export {
    model: pb::ModelProto,
    listed: Vec<(&'static str, String)>,
    notes: Notes,
}

/// An export of the input `x[4, 6]`, nodes `(op, inputs, outputs, call)` and the output `y`. A call
/// is `function(%x, %p_w) -> result`.
fn exported(nodes: &[(&str, &str, &str, &str)], tensors: Vec<pb::TensorProto>) -> Export {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 6]);
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    let mut notes = Notes::default();
    for (at, (op, inputs, outputs, call)) in nodes.iter().enumerate() {
        node(&mut m, op, inputs, outputs, vec![]);
        if let Some((call, result)) = call.split_once(" -> ") {
            let (function, arguments) = call.split_once('(').unwrap();
            let text = format!(
                "%{result} : [num_users=1] = call_function[target=torch.ops.{function}](args = ({arguments}, kwargs = {{}})"
            );
            notes.nodes.push((at, CALL.into(), text));
        }
    }
    output(&mut m, "y");
    Export { model: m, listed: vec![], notes }
}

impl Export {
    /// Lists tensors of the module as `kind`; each that the file has says so of its value.
    fn lists(mut self, kind: &'static str, names: &str) -> Export {
        for name in names.split_whitespace() {
            self.listed.push((kind, name.to_string()));
            if self.model.graph.as_ref().unwrap().initializer.iter().any(|t| t.name == name) {
                self.notes.values.push((name.into(), KIND.into(), kind.into()));
            }
        }
        self
    }

    fn parameters(self, names: &str) -> Export {
        self.lists("PARAMETER", names)
    }

    /// Says that the optimizer computed `name` from all that is in `from`.
    fn folded(mut self, name: &str, from: &str) -> Export {
        let list: Vec<String> = from.split_whitespace().map(|name| format!("'{name}'")).collect();
        self.notes.values.push((name.into(), FOLDED.into(), format!("[{}]", list.join(", "))));
        self
    }

    /// Forgets what the value `name` says of itself.
    fn without_kind(mut self, name: &str) -> Export {
        self.notes.values.retain(|(of, key, _)| of != name || key != KIND);
        self
    }

    fn signature(&self) -> String {
        let line = |(kind, name): &(&str, String)| {
            let first = kind.chars().next().unwrap_or('x').to_ascii_lowercase();
            format!("{first}_{}: {kind} target='{name}'\n", name.replace('.', "_"))
        };
        let lines: String = self.listed.iter().map(line).collect();
        format!("\n# inputs\n{lines}x: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n")
    }

    fn notes(&self) -> Notes {
        Notes { graph: vec![(SIGNATURE.into(), self.signature())], ..self.notes.clone() }
    }

    fn bytes(&self) -> Vec<u8> {
        noted(&self.model, &self.notes())
    }

    fn import_with(&self, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
        import_bytes(Path::new("test.onnx"), self.bytes(), options)
    }

    fn import(&self) -> Imported {
        self.import_with(&ImportOptions::default()).unwrap_or_else(|errors| panic!("{errors:#?}"))
    }

    fn trained(&self) -> Vec<String> {
        trained(&self.import())
    }

    /// The parameters that a refusal names; none if there is no refusal.
    fn lost(&self) -> Vec<String> {
        match self.import_with(&ImportOptions::default()) {
            Ok(_) => vec![],
            Err(errors) => {
                assert_eq!(errors.len(), 1, "{errors:#?}");
                let text = format!("{errors:?}");
                assert!(text.contains("the export has lost"), "{text}");
                let label = text.split("folded into others:").nth(1).unwrap().split("help").next().unwrap();
                label.split('`').skip(1).step_by(2).map(String::from).collect()
            }
        }
    }
}

fn trained(imported: &Imported) -> Vec<String> {
    imported.decisions.iter().filter(|d| d.trained).map(|d| d.name.clone()).collect()
}

fn alias<'i>(imported: &'i Imported, name: &str) -> Option<&'i str> {
    imported.decisions.iter().find(|d| d.name == name).unwrap().alias.as_deref()
}

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
    // What is called after a move is one.
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
        assert_eq!(imported.copies, [Copy { name: "val_3".into(), of: "w".into(), transposed }]);
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
    // What the call takes of something else was computed before.
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
    // What is left is judged by its use.
    let accept = ImportOptions { accept_lost: true, ..ImportOptions::default() };
    let imported = exported(&nodes, tensors()).parameters("w").folded("val_7", "w exp").import_with(&accept).unwrap();
    assert_eq!(trained(&imported), ["val_7"]);
}

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
    // Where no value says anything the exporter is one that does not say it.
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
fn kinds_without_a_signature_decide_for_each_tensor_alone() {
    let nodes = [
        ("MatMul", "x w", "a", "aten.linear.default(%x, %p_w, %p_gone) -> a"),
        ("Add", "a bias", "b", "aten.add.Tensor(%a, %b_bias) -> b"),
        ("MatMul", "b untold", "y", "aten.matmul.default(%b, %p_untold) -> y"),
    ];
    let tensors = vec![weight("w", &[6, 6], 1), weight("bias", &[6], 2), weight("untold", &[6, 6], 3)];
    let export = exported(&nodes, tensors).parameters("w").lists("BUFFER", "bias");
    let bytes = noted(&export.model, &Notes { graph: vec![], ..export.notes });
    let imported = import_bytes(Path::new("test.onnx"), bytes, &ImportOptions::default()).unwrap();
    assert_eq!(trained(&imported), ["w", "untold"]);
}

/// Texts with something wrong in them.
fn damages(text: &str) -> Vec<String> {
    let cuts = text.char_indices().map(|(at, _)| at).step_by(text.len().div_ceil(60).max(1));
    let mut found: Vec<String> = cuts.flat_map(|at| [text[..at].to_string(), text[at..].to_string()]).collect();
    for mark in ["'", "\"", ": ", "%", "[", "]", "(", "target=", " ", "\n", "torch.ops.", "_"] {
        found.push(text.replace(mark, ""));
        found.push(text.replace(mark, &mark.repeat(3)));
        found.push(text.replace(mark, "é\u{0}"));
    }
    found.push(text.replace("w", &"n".repeat(1 << 20)));
    found.push(text.repeat(3000));
    found.push("'".repeat(100_000));
    found.push("%".repeat(100_000));
    found.push("[[target=".repeat(30_000));
    found.push("_1".repeat(50_000));
    found.push(String::new());
    found
}

#[test]
fn a_damaged_record_never_does_harm() {
    let values = noise(36, 1);
    let nodes = [
        ("MatMul", "x w", "h", "aten.matmul.default(%x, %p_w) -> h"),
        ("MatMul", "h val_3", "i", "aten.linear.default(%h, %p_w) -> i"),
        ("Add", "i select", "y", "aten.add.Tensor(%clone, %select, 3) -> y"),
    ];
    let tensors = vec![floats("w", &[6, 6], &values), floats("val_3", &[6, 6], &turned(&values, 6)), weight("select", &[6], 2)];
    let sound = exported(&nodes, tensors)
        .parameters("w rows unused")
        .lists("BUFFER", "offset")
        .folded("val_3", "w")
        .folded("select", "rows val_1");
    let notes = sound.notes();
    let read = |notes: &Notes| import_bytes(Path::new("test.onnx"), noted(&sound.model, notes), &ImportOptions::default());
    assert_eq!(trained(&read(&notes).unwrap()), ["w", "select"]);
    let refused = Cell::new(0);
    let check = |notes: &Notes| match read(notes) {
        Ok(imported) => assert!(imported.decisions.len() <= 3),
        Err(errors) => {
            assert!(!errors.is_empty());
            refused.set(refused.get() + 1);
        }
    };
    for text in damages(&notes.graph[0].1) {
        check(&Notes { graph: vec![(SIGNATURE.into(), text)], ..notes.clone() });
    }
    for i in 0..notes.nodes.len() {
        for text in damages(&notes.nodes[i].2) {
            let mut notes = notes.clone();
            notes.nodes[i].2 = text;
            check(&notes);
        }
    }
    for i in 0..notes.values.len() {
        for text in damages(&notes.values[i].2) {
            let mut notes = notes.clone();
            notes.values[i].2 = text;
            check(&notes);
        }
    }
    assert!(refused.get() > 20, "{refused:?}");
    // The keys are those of others, too, and may come twice.
    let mut swapped = notes.clone();
    swapped.graph.push((FOLDED.into(), "['w']".into()));
    swapped.nodes.push((0, KIND.into(), "PARAMETER".into()));
    swapped.values.push(("x".into(), FOLDED.into(), "['w']".into()));
    swapped.values.push(("y".into(), KIND.into(), "PARAMETER".into()));
    check(&swapped);
    // The file is cut, at every length.
    let bytes = noted(&sound.model, &notes);
    for length in (0..bytes.len()).step_by(7) {
        let _ = import_bytes(Path::new("test.onnx"), bytes[..length].to_vec(), &ImportOptions::default());
    }
}

#[test]
fn a_record_of_thousands_is_read_in_moments() {
    let count = 3000;
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[2, 2]);
    let mut export = Export { model: m, listed: vec![], notes: Notes::default() };
    let mut last = "x".to_string();
    for i in 0..count {
        let (held, out) = (format!("val_{i}"), if i + 1 == count { "y".to_string() } else { format!("linear_{i}") });
        initializer(&mut export.model, weight(&held, &[2, 2], i));
        node(&mut export.model, "MatMul", &format!("{last} {held}"), &out, vec![]);
        let call = format!(
            "%{out} : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%{last}, %p_l_{i}_w), kwargs = {{}})"
        );
        export.notes.nodes.push((i as usize, CALL.into(), call));
        export.listed.push(("PARAMETER", format!("l.{i}.w")));
        export.notes.values.push((held.clone(), FOLDED.into(), format!("['l.{i}.w', 'val_{count}']")));
        last = out;
    }
    output(&mut export.model, "y");
    let bytes = export.bytes();
    let start = std::time::Instant::now();
    let imported = import_bytes(Path::new("test.onnx"), bytes, &ImportOptions::default()).unwrap();
    assert_eq!(trained(&imported).len(), count as usize);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn a_result_with_the_name_of_a_tensor_is_told_from_it() {
    let nodes = [
        ("MatMul", "x w", "a", "aten.matmul.default(%x, %p_w) -> a"),
        ("Add", "a mean", "b", "aten.add.Tensor(%a, %b_mean) -> b"),
        ("Tanh", "b", "mean", "aten.tanh.default(%b) -> mean"),
        ("Sub", "mean mean", "c", "aten.sub.Tensor(%mean, %b_mean) -> c"),
        ("Mul", "c mean", "y", "aten.mul.Tensor(%c, %b_mean) -> y"),
    ];
    let tensors = || vec![weight("w", &[6, 6], 1), weight("mean", &[6], 2)];
    let export = exported(&nodes, tensors()).parameters("w").lists("BUFFER", "mean");
    let graph = export.import().graph;
    let operands = |op: &str| {
        let (_, node) = graph.nodes().find(|(_, node)| node.op.name() == op).unwrap();
        let made = node.operands.iter().map(|v| graph.def(*v).op.name());
        made.collect::<Vec<_>>()
    };
    assert_eq!(operands("sub")[0], "tanh");
    assert_ne!(operands("sub")[1], "tanh");
    assert_ne!(operands("mul")[1], "tanh");
    // Where the call does not tell, the file is refused as it was.
    let untold = [nodes[0], nodes[1], nodes[2], ("Sub", "mean mean", "y", "")];
    let errors = exported(&untold, tensors()).parameters("w").lists("BUFFER", "mean").import_with(&ImportOptions::default());
    assert!(format!("{:?}", errors.unwrap_err()).contains("`mean` is defined twice"));
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
