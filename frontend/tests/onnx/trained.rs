//! Which initializers are trained: by their use, by their values where the use does not say, or by
//! the spec.

use shardc_frontend::onnx::{ImportOptions, Imported, Tie, Untie, import, import_bytes};
use shardc_ir::plan::StateRole;
use shardc_ir::spec::NameRef;
use shardc_ir::types::Tensor;
use shardc_testkit::onnx::*;
use std::collections::BTreeMap;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A model with the input `x[4, 6]`, nodes `op inputs -> output`, initializers, and the output `y`.
fn built(nodes: &[(&str, &str, &str)], tensors: Vec<pb::TensorProto>) -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 6]);
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    nodes.iter().for_each(|(op, inputs, outputs)| node(&mut m, op, inputs, outputs, vec![]));
    output(&mut m, "y");
    m
}

fn imported(m: &pb::ModelProto) -> Imported {
    import_model(m, &ImportOptions::default()).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

fn trained(imported: &Imported) -> Vec<&str> {
    imported.decisions.iter().filter(|d| d.trained).map(|d| d.name.as_str()).collect()
}

fn name(name: &str) -> NameRef {
    NameRef { name: name.into(), transposed: false }
}

fn untie(pattern: &str) -> Untie {
    Untie { pattern: pattern.into(), place: None }
}

fn refusal(m: &pb::ModelProto) -> String {
    import_model(m, &ImportOptions::default()).map(|i| i.decisions).unwrap_err().iter().map(|e| e.to_string()).collect()
}

#[test]
fn zeros_and_ones_are_trained_as_any_other_values() {
    let models =
        [("mlp", 4), ("gpt2", 8), ("gpt2-folded", 8), ("llama", 8), ("bert", 8), ("vit", 8), ("resnet", 16), ("inception", 16)];
    for (name, batch) in models {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name).join("model.onnx");
        let options = || ImportOptions { batch: Some(batch), ..ImportOptions::default() };
        let random = import(&path, &options()).unwrap();
        let fresh = |name: &str, t: &Tensor| {
            let value = if name.ends_with("bias") { 0.0 } else { 1.0 };
            Tensor::from_f64(t.ty.clone(), &vec![value; t.ty.elements() as usize])
        };
        let vectors = random.weights.iter().filter(|(_, w)| w.ty.rank() == 1);
        let new: BTreeMap<String, Tensor> = vectors.map(|(name, w)| (name.clone(), fresh(name, &w.load().unwrap()))).collect();
        let bytes = written(&path, std::fs::read(&path).unwrap(), &new, "data").unwrap().model;
        let reset = import_bytes(&path, bytes, &options()).unwrap();
        assert_eq!(trained(&reset), trained(&random), "{name}");
    }
}

#[test]
fn slots_decide_behind_ops_that_only_move_elements() {
    let m = built(
        &[
            ("Transpose", "w", "wt"),
            ("Identity", "wt", "wi"),
            ("MatMul", "x wi", "a"),
            ("LayerNormalization", "a scale shift", "b"),
            ("Mul", "g v", "normed"),
            ("MatMul", "b normed", "c"),
            ("Add", "c bias", "d"),
            ("Mul", "d layer_scale", "e"),
            ("Mul", "e half", "y"),
        ],
        vec![
            weight("w", &[5, 6], 1),
            weight("scale", &[5], 2),
            weight("shift", &[5], 3),
            weight("g", &[5, 1], 4),
            weight("v", &[5, 3], 5),
            weight("bias", &[3], 6),
            weight("layer_scale", &[3], 7),
            weight("half", &[], 8),
        ],
    );
    assert_eq!(trained(&imported(&m)), ["w", "scale", "shift", "g", "v", "bias", "layer_scale"]);
}

#[test]
fn a_mask_is_frozen_and_a_learned_bias_of_the_scores_is_not() {
    let nodes = [("MatMul", "x w", "s"), ("Add", "s table", "t"), ("Reshape", "t shape", "u"), ("Softmax", "u", "y")];
    let with = |table: pb::TensorProto| built(&nodes, vec![weight("w", &[6, 4], 1), ints("shape", &[2], &[2, 8]), table]);
    let mask: Vec<f32> = (0..16).map(|i| if i % 4 > i / 4 { -1e9 } else { 0.0 }).collect();
    assert_eq!(trained(&imported(&with(floats("table", &[4, 4], &mask)))), ["w"]);
    assert_eq!(trained(&imported(&with(weight("table", &[4, 4], 2)))), ["w", "table"]);
}

#[test]
fn rotary_tables_and_frequencies_are_frozen() {
    let angle = |i: usize| (i as f32 * 0.7 + 0.1).sin_cos();
    let (sin, cos): (Vec<f32>, Vec<f32>) = (0..24).map(angle).unzip();
    let nodes = [("Mul", "x cosines", "a"), ("Mul", "x sines", "b"), ("Add", "a b", "y")];
    let m = built(&nodes, vec![floats("cosines", &[4, 6], &cos), floats("sines", &[4, 6], &sin)]);
    assert_eq!(trained(&imported(&m)), Vec::<&str>::new());
    let m = built(&nodes, vec![floats("cosines", &[4, 6], &cos), weight("sines", &[4, 6], 3)]);
    assert_eq!(trained(&imported(&m)), ["cosines", "sines"]);

    let nodes = [("Mul", "positions speed", "angles"), ("Cos", "angles", "c"), ("Mul", "x c", "y")];
    let m = built(&nodes, vec![weight("positions", &[4, 1], 1), weight("speed", &[1, 6], 2)]);
    assert_eq!(trained(&imported(&m)), Vec::<&str>::new());
}

#[test]
fn what_is_unclear_is_refused_until_the_spec_says() {
    let m = built(&[("Div", "x onnx::Div_7", "y")], vec![weight("onnx::Div_7", &[6], 1)]);
    let text = refusal(&m);
    assert!(text.contains("whether `onnx::Div_7` is trained is unclear") && text.contains("`freeze \"onnx::Div_7\"`"), "{text}");
    let train = ImportOptions { train: &|n| n.starts_with("onnx"), freeze: &|_| true, ..ImportOptions::default() };
    let freeze = ImportOptions { freeze: &|n| n.starts_with("onnx"), ..ImportOptions::default() };
    assert_eq!(trained(&import_model(&m, &train).unwrap()), ["onnx::Div_7"]);
    assert_eq!(trained(&import_model(&m, &freeze).unwrap()), Vec::<&str>::new());
    let m = built(
        &[("MatMul", "x w", "s"), ("Mul", "s temperature", "y")],
        vec![weight("w", &[6, 2], 1), weight("temperature", &[], 2)],
    );
    let train = ImportOptions { train: &|n| n == "temperature", ..ImportOptions::default() };
    assert_eq!(trained(&imported(&m)), ["w"]);
    assert_eq!(trained(&import_model(&m, &train).unwrap()), ["w", "temperature"]);
}

#[test]
fn a_frozen_weight_is_a_state_variable_and_a_mask_is_a_constant() {
    let m = built(&[("MatMul", "x w", "s"), ("Mul", "s half", "y")], vec![weight("w", &[6, 2], 1), weight("half", &[], 2)]);
    let freeze = ImportOptions { freeze: &|_| true, ..ImportOptions::default() };
    let imported = import_model(&m, &freeze).unwrap();
    let states: Vec<(&str, StateRole)> = imported.graph.states.iter().map(|s| (s.name.as_str(), s.role)).collect();
    assert_eq!(states, [("w", StateRole::Frozen)]);
}

#[test]
fn running_statistics_are_state_that_is_not_trained() {
    let vectors = || ["scale", "bias", "mean", "variance"].map(|name| weight(name, &[6], 1)).to_vec();
    let mut m = built(&[("BatchNormalization", "x scale bias mean variance", "y moved_mean moved_variance")], vectors());
    graph(&mut m).node[0].attribute = vec![int("training_mode", 1), float("momentum", 0.8)];
    let roles = |options: &ImportOptions<'_>| -> Vec<(String, StateRole)> {
        let imported = import_model(&m, options).unwrap();
        imported.graph.states.iter().map(|s| (s.name.clone(), s.role)).collect()
    };
    let (parameter, statistic) = (StateRole::Parameter, StateRole::Statistic);
    let expected = [("scale", parameter), ("bias", parameter), ("mean", statistic), ("variance", statistic)];
    let train = ImportOptions { train: &|_| true, ..ImportOptions::default() };
    for options in [ImportOptions::default(), train] {
        assert_eq!(roles(&options), expected.map(|(name, role)| (name.to_string(), role)));
    }
    let freeze = ImportOptions { freeze: &|n| n == "mean" || n == "variance", ..ImportOptions::default() };
    assert_eq!(roles(&freeze).len(), 2);
    // Their new values are the compiler's, not the model's.
    output(&mut m, "moved_mean");
    assert!(refusal(&m).contains("its output `moved_mean`"), "{}", refusal(&m));
}

#[test]
fn merged_parameters_are_refused_until_they_are_tied() {
    let norms = built(
        &[("LayerNormalization", "x scale", "a"), ("LayerNormalization", "a scale", "y")],
        vec![floats("scale", &[6], &[1.0; 6])],
    );
    let weights = |values: &[f32]| {
        built(&[("MatMul", "x w", "a"), ("Relu", "a", "b"), ("MatMul", "b w", "y")], vec![floats("w", &[6, 6], values)])
    };
    assert!(refusal(&norms).contains("`scale` is the scale or bias of 2 nodes"), "{}", refusal(&norms));
    assert!(refusal(&weights(&[0.0; 36])).contains("has one value everywhere"));
    let one = [Tie { first: name("scale"), second: None, place: None }];
    let tie = ImportOptions { tie: &one, ..ImportOptions::default() };
    assert_eq!(trained(&import_model(&norms, &tie).unwrap()), ["scale"]);
    // A matrix that is used twice and is not constant was one parameter all along.
    assert_eq!(trained(&imported(&weights(&noise(36, 1)))), ["w"]);
}

#[test]
fn a_module_that_is_called_again_has_one_parameter() {
    let norms = |scopes: [&str; 2], values: &[f32]| {
        let mut m = built(
            &[("LayerNormalization", "x scale", "a"), ("LayerNormalization", "a scale", "y")],
            vec![floats("scale", &[6], values)],
        );
        graph(&mut m).node.iter_mut().zip(scopes).for_each(|(n, scope)| n.name = format!("/{scope}/LayerNormalization"));
        m
    };
    let varied = noise(6, 3);
    assert_eq!(trained(&imported(&norms(["layer/norm", "layer/norm"], &[1.0; 6]))), ["scale"]);
    assert_eq!(trained(&imported(&norms(["layer/norm", "layer_1/norm_1"], &varied))), ["scale"]);
    for (scopes, values) in [(["norm", "norm_1"], &[1.0; 6][..]), (["a/norm", "b/norm"], &varied[..])] {
        assert!(refusal(&norms(scopes, values)).contains("`scale` is the scale or bias of 2 nodes"));
    }
}

#[test]
fn a_bias_that_is_read_in_parts_was_not_merged() {
    let m = built(
        &[
            ("Split", "bias", "p q"),
            ("MatMul", "x w", "a"),
            ("Add", "a p", "b"),
            ("MatMul", "x w", "c"),
            ("Add", "c q", "d"),
            ("Add", "b d", "y"),
        ],
        vec![weight("w", &[6, 3], 1), floats("bias", &[6], &[0.0; 6])],
    );
    assert_eq!(trained(&imported(&m)), ["w", "bias"]);
}

#[test]
fn a_constant_node_of_one_value_stands_for_a_bias_that_is_not_there() {
    let m = |bias: &[f32], scale_is_node: bool| {
        let mut m = model(20);
        input(&mut m, "x", DataType::Float, &[4, 6]);
        let scale = floats("scale", &[6], &noise(6, 1));
        if scale_is_node {
            node(&mut m, "Constant", "", "scale", vec![tensor("value", scale)])
        } else {
            initializer(&mut m, scale)
        }
        node(&mut m, "Constant", "", "bias", vec![tensor("value", floats("bias", &[6], bias))]);
        node(&mut m, "LayerNormalization", "x scale bias", "y", vec![]);
        output(&mut m, "y");
        m
    };
    assert_eq!(trained(&imported(&m(&[0.0; 6], false))), ["scale"]);
    assert_eq!(trained(&imported(&m(&noise(6, 2), false))), ["scale", "bias"]);
    assert_eq!(trained(&imported(&m(&[0.0; 6], true))), ["scale", "bias"]);
}

#[test]
fn tables_of_relative_positions_and_temperatures_are_trained() {
    let mut m = built(
        &[
            ("Exp", "heat", "scale"),
            ("GatherND", "table at", "rows"),
            ("Mul", "x scale", "a"),
            ("Add", "a rows", "b"),
            ("Softmax", "b", "y"),
        ],
        vec![floats("heat", &[1, 6], &[1.0; 6]), weight("table", &[9, 6], 1)],
    );
    initializer(&mut m, ints("at", &[4, 1], &[0, 3, 3, 8]));
    assert_eq!(trained(&imported(&m)), ["heat", "table"]);
}

#[test]
fn what_an_exporter_names_in_an_instance_normalisation_is_neutral() {
    let m = |scale: &str, values: &[f32]| {
        let nodes = [("InstanceNormalization", &*format!("x3 {scale} val_2"), "y")];
        let mut m = built(&nodes, vec![floats(scale, &[6], values), floats("val_2", &[6], &[0.0; 6]), weight("w", &[6, 6], 1)]);
        graph(&mut m).node.insert(0, graph(&mut built(&[("Unsqueeze", "h last", "x3")], vec![])).node[0].clone());
        graph(&mut m).node.insert(0, graph(&mut built(&[("MatMul", "x w", "h")], vec![])).node[0].clone());
        initializer(&mut m, ints("last", &[1], &[2]));
        m
    };
    assert_eq!(trained(&imported(&m("val_1", &[1.0; 6]))), ["w"]);
    assert_eq!(trained(&imported(&m("val_1", &noise(6, 2)))), ["val_1", "w"]);
    assert_eq!(trained(&imported(&m("norm.weight", &[1.0; 6]))), ["norm.weight", "w"]);
}

#[test]
fn one_value_for_every_sample_is_no_parameter() {
    let m = |values: &[f32]| {
        let nodes = [("MatMul", "x w", "a"), ("Mul", "a where", "y")];
        built(&nodes, vec![weight("w", &[6, 6], 1), floats("where", &[4, 1], values)])
    };
    assert_eq!(trained(&imported(&m(&[1.0; 4]))), ["w"]);
    assert_eq!(trained(&imported(&m(&noise(4, 1)))), ["w", "where"]);
}

#[test]
fn what_only_makes_waves_is_frozen() {
    let m = |also: &str| {
        let nodes = [
            ("Mul", "x embed.W", "p"),
            ("Reshape", "p shape", "q"),
            ("Sin", "q", "s"),
            ("Cos", "p", "c"),
            ("Add", also, "sum"),
            ("MatMul", "sum w", "y"),
        ];
        let mut m = built(&nodes, vec![weight("embed.W", &[6], 1), weight("w", &[6, 2], 2)]);
        initializer(&mut m, ints("shape", &[2], &[4, 6]));
        m
    };
    assert_eq!(trained(&imported(&m("s c"))), ["w"]);
    assert_eq!(trained(&imported(&m("s p"))), ["embed.W", "w"]);
}

#[test]
fn a_single_number_that_an_exporter_named_is_not_trained() {
    let m = |name: &str| {
        let nodes = [("MatMul", "x w", "a"), ("Mul", &format!("a {name}"), "y")];
        built(&nodes, vec![weight("w", &[6, 6], 1), floats(name, &[1], &[0.5])])
    };
    assert_eq!(trained(&imported(&m("val_138"))), ["w"]);
    assert_eq!(trained(&imported(&m("gain"))), ["w", "gain"]);
}

#[test]
fn scores_with_an_invented_zero_mask_train_no_mask() {
    let m = |name: &str| {
        let nodes =
            [("MatMul", "x w", "a"), ("Unsqueeze", "a last", "b"), ("Add", &*format!("b {name}"), "c"), ("Softmax", "c", "y")];
        let mut m = built(&nodes, vec![weight("w", &[6, 6], 1), floats(name, &[1, 6, 6], &[0.0; 36])]);
        initializer(&mut m, ints("last", &[1], &[2]));
        m
    };
    assert_eq!(trained(&imported(&m("val_7"))), ["w"]);
    assert_eq!(trained(&imported(&m("relative_bias"))), ["w", "relative_bias"]);
}

#[test]
fn a_pattern_separates_equal_matrices_and_everything_only_copies_of_a_layer() {
    let values = noise(36, 1);
    let m = |first: &str, second: &str| {
        let nodes = [("MatMul", format!("x {first}"), "a"), ("MatMul", format!("a {second}"), "y")];
        let nodes: Vec<(&str, &str, &str)> = nodes.iter().map(|(op, inputs, output)| (*op, inputs.as_str(), *output)).collect();
        built(&nodes, vec![floats(first, &[6, 6], &values), floats(second, &[6, 6], &values)])
    };
    let parts = |first: &str, second: &str, pattern: &str| {
        let unties = [untie(pattern)];
        let options = ImportOptions { untie: &unties, ..ImportOptions::default() };
        import_model(&m(first, second), &options).ok().map(|imported| trained(&imported).len())
    };
    assert_eq!(parts("layers.0.w", "layers.1.w", "layers.*"), Some(2));
    assert_eq!(parts("layers.0.w", "layers.1.w", "*"), Some(2));
    assert_eq!(parts("embed.w", "head.w", "h*.w"), Some(2));
    assert_eq!(parts("embed.w", "head.w", "*"), None);
}

#[test]
fn a_lost_tie_is_refused_until_it_is_untied() {
    let table = noise(24, 1);
    let turned: Vec<f32> = (0..24).map(|at| table[(at % 4) * 6 + at / 4]).collect();
    let m = |head: &[f32]| {
        built(
            &[("MatMul", "x head", "a"), ("MatMul", "a table", "y")],
            vec![floats("table", &[4, 6], &table), floats("head", &[6, 4], head)],
        )
    };
    let text = refusal(&m(&turned));
    assert!(
        text.contains("`table` and `head` are each other's transpose") && text.contains("\n    tie \"table\" \"head\"^T\n"),
        "{text}"
    );
    let all = [untie("*")];
    let pattern = ImportOptions { untie: &all, ..ImportOptions::default() };
    assert!(import_model(&m(&turned), &pattern).is_err());
    let two = [untie("head")];
    let untie = ImportOptions { untie: &two, ..ImportOptions::default() };
    assert_eq!(trained(&import_model(&m(&turned), &untie).unwrap()), ["table", "head"]);
    assert_eq!(trained(&imported(&m(&noise(24, 2)))), ["table", "head"]);
    let mut nearly = turned.clone();
    nearly[23] += 1e-3;
    assert_eq!(trained(&imported(&m(&nearly))), ["table", "head"]);
}

#[test]
fn an_invented_name_gets_one_after_its_scope() {
    let mut m = built(&[("MatMul", "x onnx::MatMul_1", "y")], vec![weight("onnx::MatMul_1", &[6, 2], 1)]);
    graph(&mut m).node[0].name = "/encoder/layer.0/query/MatMul".into();
    let imported = imported(&m);
    assert_eq!(imported.decisions[0].alias.as_deref(), Some("encoder.layer.0.query.weight"));
    assert_eq!(imported.warnings.len(), 1);
    let contract = imported.graph.nodes().find(|(_, n)| n.op.name() == "contract").unwrap().1;
    assert_eq!(contract.origin.scope.as_deref(), Some("encoder.layer.0.query"));
}

#[test]
fn folded_batch_normalizations_are_told_by_the_names_of_kernels() {
    let net = |kernel: &str| {
        let mut m = model(20);
        input(&mut m, "x", DataType::Float, &[4, 2, 3, 3]);
        initializer(&mut m, floats(kernel, &[5, 2, 1, 1], &(0..10).map(|i| 0.1 * i as f32).collect::<Vec<_>>()));
        node(&mut m, "Conv", &format!("x {kernel}"), "y", vec![]);
        output(&mut m, "y");
        m
    };
    let folded = |kernel: &str| imported(&net(kernel)).warnings.iter().any(|w| w.message.contains("folded batch normalizations"));
    assert!(folded("onnx::Conv_192"));
    assert!(!folded("stem.conv.weight"));
}
