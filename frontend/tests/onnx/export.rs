//! Weights back into model files: what is not replaced stays to the byte, and what is replaced
//! reads back equal.

use prost::Message;
use shardc_frontend::onnx::{ImportOptions, Imported, Weights, external_files, import, import_bytes, strip_weights};
use shardc_ir::types::{Tensor, Type};
use shardc_testkit::onnx::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name).join("model.onnx")
}

fn weights(imported: &Imported) -> BTreeMap<String, Tensor> {
    imported.weights.iter().map(|(name, w)| (name.clone(), w.load().unwrap())).collect()
}

fn batch(n: u64) -> ImportOptions<'static> {
    ImportOptions { batch: Some(n), ..ImportOptions::default() }
}

#[test]
fn unchanged_weights_give_the_same_file() {
    for (name, n) in [("mlp", 4), ("gpt2", 8), ("gpt2-folded", 8), ("llama", 8)] {
        let path = example(name);
        let bytes = std::fs::read(&path).unwrap();
        let weights = weights(&import(&path, &batch(n)).unwrap());
        let exported = written(&path, bytes.clone(), &weights, "data").unwrap();
        assert!(exported.data.is_empty());
        assert!(exported.model == bytes, "{name}: {} bytes became {}", bytes.len(), exported.model.len());
    }
}

#[test]
fn changed_weights_read_back_and_nothing_else_changes() {
    let path = example("mlp");
    let bytes = std::fs::read(&path).unwrap();
    let old = weights(&import(&path, &batch(4)).unwrap());
    let change = |t: &Tensor| Tensor::from_f64(t.ty.clone(), &t.to_f64().iter().map(|v| v * 2.0 + 1.0).collect::<Vec<_>>());
    let new: BTreeMap<String, Tensor> = old.iter().map(|(name, t)| (name.clone(), change(t))).collect();
    let exported = written(&path, bytes.clone(), &new, "data").unwrap();
    let read = import_bytes(&path, exported.model.clone(), &batch(4)).unwrap();
    assert_eq!(weights(&read), new);
    let back = written(&path, exported.model, &old, "data").unwrap();
    assert!(back.model == bytes);
}

#[test]
fn a_stripped_model_is_small_and_complete_again_after_export() {
    for name in ["mlp", "gpt2-folded"] {
        let path = example(name);
        let bytes = std::fs::read(&path).unwrap();
        let weights = weights(&import(&path, &batch(8)).unwrap());
        let names: BTreeSet<String> = weights.keys().cloned().collect();
        let stripped = strip_weights(&path, bytes.clone(), &names).unwrap();
        assert!(stripped.len() * 3 < bytes.len(), "{name}: {} of {} bytes", stripped.len(), bytes.len());
        let exported = written(&path, stripped, &weights, "data").unwrap();
        assert!(exported.model == bytes, "{name}");
    }
}

/// `y = x w + b` with the data of `w` and `b` in fields of their own, in f32 and f16.
fn typed() -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[2, 3]);
    let w = pb::TensorProto {
        name: "w".into(),
        data_type: DataType::Float as i32,
        dims: vec![3, 2],
        float_data: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        ..Default::default()
    };
    let b = pb::TensorProto {
        name: "b".into(),
        data_type: DataType::Float16 as i32,
        dims: vec![2],
        int32_data: vec![0x3c00, 0x4000],
        doc_string: "a bias".into(),
        ..Default::default()
    };
    initializer(&mut m, w);
    initializer(&mut m, b);
    node(&mut m, "MatMul", "x w", "p", vec![]);
    node(&mut m, "Add", "p b", "y", vec![]);
    output(&mut m, "y");
    m
}

#[test]
fn data_in_typed_fields_becomes_raw_in_the_stored_element_type() {
    let m = typed();
    let imported = import_model(&m, &ImportOptions::default()).unwrap();
    let old = weights(&imported);
    assert_eq!(old["b"].to_f64(), [1.0, 2.0]);
    let new = BTreeMap::from([("b".to_string(), Tensor::from_f64(old["b"].ty.clone(), &[0.5, -3.0]))]);
    let exported = written(Path::new("m.onnx"), m.encode_to_vec(), &new, "data").unwrap();
    let read = pb::ModelProto::decode(&exported.model[..]).unwrap();
    let (w, b) = (&read.graph.as_ref().unwrap().initializer[0], &read.graph.as_ref().unwrap().initializer[1]);
    assert_eq!(w.float_data, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!((b.raw_data.clone(), b.int32_data.len()), (vec![0x00, 0x38, 0x00, 0xc2], 0));
    assert_eq!(b.doc_string, "a bias");
}

#[test]
fn external_data_goes_to_one_new_file() {
    let folder = std::env::temp_dir().join(format!("shardc-export-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut m = typed();
    for (i, tensor) in graph(&mut m).initializer.iter_mut().enumerate() {
        let (offset, length) = [(0, 24), (32, 4)][i];
        let values = [("location", "old.bin".to_string()), ("offset", offset.to_string()), ("length", length.to_string())];
        (tensor.float_data, tensor.int32_data) = (vec![], vec![]);
        tensor.data_location = Some(1);
        tensor.external_data =
            values.into_iter().map(|(key, value)| pb::StringStringEntryProto { key: key.into(), value }).collect();
    }
    let mut old: Vec<u8> = (1..7).flat_map(|v| (v as f32).to_le_bytes()).collect();
    old.resize(32, 9);
    old.extend([0x00, 0x3c, 0x00, 0x40]);
    std::fs::write(folder.join("old.bin"), &old).unwrap();
    let path = folder.join("m.onnx");
    std::fs::write(&path, m.encode_to_vec()).unwrap();

    let imported = import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(imported.weights["w"].external_file(), Some("old.bin"));
    let mut all = weights(&imported);
    assert_eq!((all["w"].to_f64()[5], all["b"].to_f64()[1]), (6.0, 2.0));
    let new = Tensor::from_f64(all["w"].ty.clone(), &[0.0, -1.0, -2.0, -3.0, -4.0, -5.0]);
    let only_w = BTreeMap::from([("w".to_string(), new.clone())]);
    let exported = written(&path, std::fs::read(&path).unwrap(), &only_w, "new.bin").unwrap();
    std::fs::write(folder.join("new.bin"), exported.data).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let stripped = strip_weights(&path, bytes, &BTreeSet::from(["w".to_string()])).unwrap();
    std::fs::remove_file(folder.join("old.bin")).unwrap();
    let read = import_bytes(&path, exported.model, &ImportOptions::default()).unwrap();
    all.insert("w".into(), new);
    assert_eq!(weights(&read), all);

    // A stripped model needs only what was stripped: the rest came into the file.
    let restored = written(&path, stripped, &only_w, "new.bin").unwrap();
    assert!(!restored.data.is_empty());
    let read = import_bytes(&path, restored.model, &ImportOptions::default()).unwrap();
    assert_eq!(weights(&read), all);
    assert_eq!(read.weights["b"].external_file(), None);

    // Tensors that are not new are kept as they are, whatever their length.
    let mut odd = m.clone();
    graph(&mut odd).initializer[1].external_data[2].value = "6".into();
    std::fs::write(folder.join("old.bin"), [&old[..], &[7, 8]].concat()).unwrap();
    let kept = written(&path, odd.encode_to_vec(), &only_w, "new.bin").unwrap();
    assert!(kept.data.ends_with(&[0x00, 0x3c, 0x00, 0x40, 7, 8]), "{:?}", &kept.data[kept.data.len() - 8..]);
    std::fs::remove_file(folder.join("old.bin")).unwrap();

    // Without its data a model can still be planned, but not trained.
    assert!(import(&path, &ImportOptions::default()).is_err());
    let planned = import(&path, &ImportOptions { weights: Weights::NotNeeded, ..ImportOptions::default() }).unwrap();
    assert_eq!(planned.weights.len(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn external_files_are_found_wherever_a_model_names_them() {
    let outside = |name: &str, location: &str| {
        let entry = |key: &str, value: &str| pb::StringStringEntryProto { key: key.into(), value: value.into() };
        pb::TensorProto {
            external_data: vec![entry("offset", "0"), entry("location", location), entry("length", "4")],
            data_location: Some(1),
            ..floats(name, &[1], &[])
        }
    };
    let mut branch = model(20);
    initializer(&mut branch, outside("b", "branch"));
    let branch = pb::AttributeProto { name: "then_branch".into(), g: branch.graph, ..Default::default() };
    let constant = |location: &str| vec![tensor("value", outside("c", location))];
    let mut body = model(20);
    node(&mut body, "Constant", "", "k", constant("function"));
    let mut m = model(20);
    m.functions.push(pb::FunctionProto { name: Some("f".into()), node: body.graph.unwrap().node, ..Default::default() });
    initializer(&mut m, outside("w", "initializer"));
    initializer(&mut m, pb::TensorProto { data_location: None, ..outside("v", "within") });
    initializer(&mut m, weight("u", &[300], 1));
    node(&mut m, "Constant", "", "c", constant("constant"));
    node(&mut m, "If", "c", "i", vec![branch]);
    let path = std::env::temp_dir().join(format!("shardc-external-{}.onnx", std::process::id()));
    let bytes = m.encode_to_vec();
    std::fs::write(&path, &bytes).unwrap();
    let names = |path: &Path| -> Vec<String> {
        let files = external_files(path).into_iter();
        files.map(|file| file.strip_prefix(std::env::temp_dir()).unwrap().display().to_string()).collect()
    };
    assert_eq!(names(&path), ["branch", "constant", "function", "initializer"]);
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(names(&path).is_empty(), "what breaks off is no model");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn wrong_weights_are_refused() {
    let bytes = typed().encode_to_vec();
    let path = Path::new("m.onnx");
    let zero = |shape: &[u64]| Tensor::from_f64(Type::new(shardc_ir::dtype::DType::F32, shape), &[0.0; 2]);
    let wrong = BTreeMap::from([("b".to_string(), zero(&[1, 2])), ("c".to_string(), zero(&[2]))]);
    let errors = written(path, bytes, &wrong, "data").unwrap_err();
    let text: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
    assert_eq!(text.len(), 2, "{text:?}");
    assert!(text[0].contains("its shape is [2]") && text[1].contains("no initializer `c`"), "{text:?}");
}
