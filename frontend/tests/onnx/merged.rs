//! Parameters that an exporter merged come apart, and those that it wrote twice become one, as the
//! spec says.

use shardc_frontend::onnx::{ImportOptions, Imported, Tie, Untie, import_bytes};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::spec::NameRef;
use shardc_ir::types::Tensor;
use shardc_testkit::onnx::*;
use std::collections::BTreeMap;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

fn built(nodes: &[(&str, &str, &str, &str)], tensors: Vec<pb::TensorProto>) -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 6]);
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    for (name, op, inputs, outputs) in nodes {
        node(&mut m, op, inputs, outputs, vec![]);
        graph(&mut m).node.last_mut().unwrap().name = name.to_string();
    }
    output(&mut m, "y");
    m
}

fn with(m: &pb::ModelProto, ties: &[(&str, Option<(&str, bool)>)], unties: &[&str]) -> Result<Imported, Diagnostics> {
    let name = |name: &str, transposed| NameRef { name: name.into(), transposed };
    let tie =
        |(a, b): &(&str, Option<(&str, bool)>)| Tie { first: name(a, false), second: b.map(|(b, t)| name(b, t)), place: None };
    let ties: Vec<Tie> = ties.iter().map(tie).collect();
    let unties: Vec<Untie> = unties.iter().map(|u| Untie { pattern: u.to_string(), place: None }).collect();
    import_model(m, &ImportOptions { tie: &ties, untie: &unties, ..ImportOptions::default() })
}

fn trained(imported: &Imported) -> Vec<&str> {
    imported.decisions.iter().filter(|d| d.trained).map(|d| d.name.as_str()).collect()
}

fn refusal(result: Result<Imported, Diagnostics>) -> String {
    result.map(|i| i.decisions).unwrap_err().iter().map(|e| format!("{e}\n")).collect()
}

/// Every parameter with other values, written to the file and read again.
fn round_trip(imported: &Imported) -> Imported {
    let path = Path::new("test.onnx");
    let value = |(i, t): (usize, &Tensor)| Tensor::from_f64(t.ty.clone(), &vec![i as f64 + 2.0; t.ty.elements() as usize]);
    let old: Vec<(String, Tensor)> = imported.weights.iter().map(|(name, w)| (name.clone(), w.load().unwrap())).collect();
    let new: BTreeMap<String, Tensor> = old.iter().enumerate().map(|(i, (name, t))| (name.clone(), value((i, t)))).collect();
    let bytes = written(path, imported.model.to_vec(), &new, "data").unwrap().model;
    let read = import_bytes(path, bytes, &ImportOptions::default()).unwrap();
    for (name, weight) in &read.weights {
        assert_eq!(weight.load().unwrap(), new[name], "{name}");
    }
    read
}

const NORMS: [(&str, &str, &str, &str); 3] = [
    ("/h.0/ln/Norm", "LayerNormalization", "x h.0.ln.weight h.0.ln.bias", "a"),
    ("/h.1/ln/Norm", "LayerNormalization", "a h.0.ln.weight h.0.ln.bias", "b"),
    ("/h.2/ln/Norm", "LayerNormalization", "b h.0.ln.weight h.0.ln.bias", "y"),
];

fn norms() -> pb::ModelProto {
    built(&NORMS, vec![floats("h.0.ln.weight", &[6], &[1.0; 6]), floats("h.0.ln.bias", &[6], &[0.0; 6])])
}

#[test]
fn merged_norms_are_refused_with_the_line_to_write() {
    let text = refusal(with(&norms(), &[], &[]));
    assert!(text.contains("`h.0.ln.weight` is the scale or bias of 3 nodes"), "{text}");
    assert!(text.contains("so for 1 other initializer") && text.contains("\n    untie \"*\"\n"), "{text}");
    assert_eq!(trained(&with(&norms(), &[("h.0.ln.weight", None), ("h.0.ln.bias", None)], &[]).unwrap()).len(), 2);
}

#[test]
fn untied_norms_are_parameters_of_their_own_in_the_graph_and_in_the_file() {
    let imported = with(&norms(), &[], &["*"]).unwrap();
    let names = ["h.0.ln.weight", "h.1.ln.weight", "h.2.ln.weight", "h.0.ln.bias", "h.1.ln.bias", "h.2.ln.bias"];
    assert_eq!(trained(&imported), names);
    assert_eq!(trained(&round_trip(&imported)), names);
    // A parameter that is tied by name stays one.
    assert_eq!(trained(&with(&norms(), &[("h.0.ln.bias", None)], &["*"]).unwrap()).len(), 4);
    assert_eq!(trained(&with(&norms(), &[("h.0.ln.weight", None)], &["*.bias"]).unwrap()).len(), 4);
}

#[test]
fn parts_without_a_module_are_numbered() {
    let mut m = norms();
    graph(&mut m).node.iter_mut().for_each(|n| n.name.clear());
    let imported = with(&m, &[], &["*"]).unwrap();
    assert_eq!(trained(&imported)[..3], ["h.0.ln.weight", "h.0.ln.weight_1", "h.0.ln.weight_2"]);
    round_trip(&imported);
}

#[test]
fn a_module_that_runs_twice_is_one_parameter() {
    let mut m = norms();
    graph(&mut m).node.iter_mut().for_each(|n| n.name = "/shared/ln/Norm".into());
    assert_eq!(trained(&with(&m, &[], &[]).unwrap()), ["h.0.ln.weight", "h.0.ln.bias"]);
}

#[test]
fn copies_by_identity_get_their_names_back() {
    let mut nodes = vec![
        ("Identity_1", "Identity", "h.0.ln.weight", "h.1.ln.weight"),
        ("Identity_2", "Identity", "h.0.ln.weight", "h.2.ln.weight"),
    ];
    nodes.push(NORMS[0]);
    nodes.push(("/a/Norm", "LayerNormalization", "a h.1.ln.weight h.0.ln.bias", "b"));
    nodes.push(("/b/Norm", "LayerNormalization", "b h.2.ln.weight h.0.ln.bias", "y"));
    let tensors = vec![floats("h.0.ln.weight", &[6], &[1.0; 6]), floats("h.0.ln.bias", &[6], &[0.0; 6])];
    let imported = with(&built(&nodes, tensors), &[("h.0.ln.bias", None)], &["*"]).unwrap();
    assert_eq!(trained(&imported), ["h.0.ln.weight", "h.1.ln.weight", "h.2.ln.weight", "h.0.ln.bias"]);
    assert_eq!(trained(&round_trip_tied(&imported)).len(), 4);
}

fn round_trip_tied(imported: &Imported) -> Imported {
    let ties = [Tie { first: NameRef { name: "h.0.ln.bias".into(), transposed: false }, second: None, place: None }];
    import_bytes(Path::new("test.onnx"), imported.model.to_vec(), &ImportOptions { tie: &ties, ..ImportOptions::default() })
        .unwrap()
}

fn varied(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect()
}

#[test]
fn a_table_comes_apart_by_its_name_only() {
    let nodes = [("/in/MatMul", "MatMul", "x w", "a"), ("/out/MatMul", "MatMul", "a w", "y")];
    let m = built(&nodes, vec![floats("w", &[6, 6], &varied(36))]);
    assert_eq!(trained(&with(&m, &[], &[]).unwrap()), ["w"]);
    assert_eq!(trained(&with(&m, &[], &["*"]).unwrap()), ["w"]);
    let apart = with(&m, &[], &["w"]).unwrap();
    assert_eq!(trained(&apart), ["in.weight", "out.weight"]);
    round_trip(&apart);
    // Zeros are what a fresh model may have in several matrices.
    let m = built(&nodes, vec![floats("w", &[6, 6], &[0.0; 36])]);
    assert!(refusal(with(&m, &[], &[])).contains("is the weight of 2 nodes"));
    assert_eq!(trained(&with(&m, &[], &["*"]).unwrap()), ["in.weight", "out.weight"]);
}

fn twice() -> pb::ModelProto {
    let table = varied(24);
    let head: Vec<f32> = (0..24).map(|at| table[(at % 4) * 6 + at / 4]).collect();
    built(
        &[("/head/MatMul", "MatMul", "x onnx::MatMul_7", "a"), ("/table/MatMul", "MatMul", "a table", "y")],
        vec![floats("onnx::MatMul_7", &[6, 4], &head), floats("table", &[4, 6], &table), floats("other", &[4, 6], &varied(24))],
    )
}

#[test]
fn a_parameter_that_was_written_twice_is_one_again() {
    let text = refusal(with(&twice(), &[], &["*"]));
    assert!(text.contains("\n    tie \"table\" \"onnx::MatMul_7\"^T\n"), "{text}");
    for second in ["onnx::MatMul_7", "head.weight"] {
        let imported = with(&twice(), &[("table", Some((second, true)))], &[]).unwrap();
        assert_eq!(trained(&imported), ["table"]);
        assert_eq!(imported.graph.states.len(), 1);
        let [copy] = &imported.copies[..] else { panic!("{:?}", imported.copies) };
        assert_eq!((copy.name.as_str(), copy.of.as_str(), copy.transposed), ("onnx::MatMul_7", "table", true));
        let table = imported.weights["table"].load().unwrap();
        let head = copy.elements(&table).unwrap();
        let both = BTreeMap::from([("table".to_string(), table), ("onnx::MatMul_7".to_string(), head)]);
        let written = written(Path::new("m.onnx"), imported.model.to_vec(), &both, "data").unwrap().model;
        assert_eq!(written, *imported.model);
    }
}

#[test]
fn ties_of_what_is_not_one_are_refused() {
    let refused = |ties: &[(&str, Option<(&str, bool)>)]| refusal(with(&twice(), ties, &[]));
    assert!(refused(&[("table", Some(("onnx::MatMul_7", false)))]).contains("write `tie \"table\" \"onnx::MatMul_7\"^T`"));
    assert!(refused(&[("tabel", Some(("onnx::MatMul_7", true)))]).contains("near names are `table`"));
    let pair = ("table", Some(("onnx::MatMul_7", true)));
    assert!(refused(&[pair, pair]).contains("`onnx::MatMul_7` is tied already"));
    assert!(refused(&[pair, ("onnx::MatMul_7", Some(("table", true)))]).contains("`table` is tied already"));
    let mut m = twice();
    graph(&mut m).initializer[0] = floats("onnx::MatMul_7", &[6, 4], &varied(24));
    assert!(refusal(with(&m, &[pair], &[])).contains("are not each other's transpose"));
    assert!(refusal(with(&m, &[], &["nothing.*"])).contains("no initializer `nothing.*`"));
}

#[test]
fn the_spec_may_use_the_name_of_the_module() {
    let m =
        built(&[("/enc/query/MatMul", "MatMul", "x onnx::MatMul_1", "y")], vec![floats("onnx::MatMul_1", &[6, 2], &varied(12))]);
    let freeze = ImportOptions { freeze: &|name| name == "enc.query.weight", ..ImportOptions::default() };
    let imported = import_model(&m, &freeze).unwrap();
    assert_eq!(trained(&imported), Vec::<&str>::new());
    assert!(imported.graph.named("enc.query.weight").is_some());
    assert_eq!(imported.graph.states[0].name, "onnx::MatMul_1");
}
