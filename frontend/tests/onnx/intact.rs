//! Statements of a model file that come twice, or do not fit its data and outputs, are reported.

use shardc_frontend::onnx::{ImportOptions, import};
use shardc_testkit::onnx::*;
use std::fs;
use std::path::PathBuf;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};

fn linear() -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 6]);
    initializer(&mut m, weight("w", &[6, 3], 1));
    node(&mut m, "Gemm", "x w", "y", vec![float("alpha", 1.0)]);
    output(&mut m, "y");
    m
}

fn errors(model: &pb::ModelProto) -> Vec<String> {
    let errors = import_model(model, &ImportOptions::default()).err().unwrap_or_default();
    errors.iter().map(|error| error.message.clone()).collect()
}

#[test]
fn what_is_said_twice_is_refused() {
    assert!(errors(&linear()).is_empty());
    let mut m = linear();
    graph(&mut m).node[0].attribute.push(float("alpha", 2.0));
    assert_eq!(errors(&m), ["attribute `alpha` is given twice"]);

    let set = |domain: &str, version| pb::OperatorSetIdProto { domain: domain.into(), version };
    for (domain, name) in [("", "ai.onnx"), ("ai.onnx", "ai.onnx")] {
        let mut m = linear();
        m.opset_import.push(set(domain, 13));
        assert_eq!(errors(&m), [format!("op set `{name}` is imported in version 20 and in version 13")]);
    }
    // The same words twice contradict nothing.
    let mut m = linear();
    m.opset_import.push(set("ai.onnx", 20));
    m.opset_import.push(set("com.example", 1));
    assert!(errors(&m).is_empty());
}

#[test]
fn an_output_of_another_shape_than_declared_is_warned_of() {
    let warnings = |sizes: &[i64]| {
        let mut m = linear();
        graph(&mut m).output.clear();
        input(&mut m, "y", DataType::Float, sizes);
        let declared = graph(&mut m).input.pop().unwrap();
        graph(&mut m).output.push(declared);
        let imported = import_model(&m, &ImportOptions::default()).unwrap();
        imported.warnings.iter().map(|warning| warning.message.clone()).collect::<Vec<_>>()
    };
    assert!(warnings(&[4, 3]).is_empty() && warnings(&[-1, 3]).is_empty());
    assert_eq!(warnings(&[4, 5]), ["the output is f32[4, 3], and the model declares [4, 5]"]);
    assert_eq!(warnings(&[-1]), ["the output is f32[4, 3], and the model declares [?]"]);
}

#[test]
fn external_data_is_held_against_its_checksum() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("checksum");
    fs::create_dir_all(&folder).unwrap();
    let bytes = std::mem::take(&mut graph(&mut linear()).initializer[0].raw_data);
    fs::write(folder.join("w.bin"), &bytes).unwrap();
    let with = |checksum: &str| {
        let mut m = linear();
        let w = &mut graph(&mut m).initializer[0];
        w.raw_data.clear();
        w.data_location = Some(DataLocation::External as i32);
        let entry = |key: &str, value: &str| pb::StringStringEntryProto { key: key.into(), value: value.into() };
        w.external_data = vec![entry("location", "w.bin"), entry("checksum", checksum)];
        let path = folder.join("m.onnx");
        fs::write(&path, prost::Message::encode_to_vec(&m)).unwrap();
        import(&path, &ImportOptions::default()).err().unwrap_or_default()
    };
    let wrong = with("da39a3ee5e6b4b0d3255bfef95601890afd80709");
    assert_eq!(wrong.len(), 1);
    let words = "`w.bin` is not the file that the model was saved with: its SHA-1 is ";
    let right = wrong[0].message.strip_prefix(words).unwrap().split(',').next().unwrap().to_string();
    assert_eq!(right.len(), 40);
    assert!(with(&right).is_empty() && with(&right.to_uppercase()).is_empty());
}

#[test]
fn tensors_that_share_their_bytes_cost_no_memory() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("shared");
    fs::create_dir_all(&folder).unwrap();
    let size = 40 << 20;
    fs::File::create(folder.join("w.bin")).unwrap().set_len(size).unwrap();
    let entry = |key: &str, value: &str| pb::StringStringEntryProto { key: key.into(), value: value.into() };
    let of_file = |name: &str, location: &str| pb::TensorProto {
        name: name.into(),
        dims: vec![size as i64 / 4],
        data_type: DataType::Float as i32,
        data_location: Some(DataLocation::External as i32),
        external_data: vec![entry("location", location)],
        ..Default::default()
    };
    let refused = |m: &pb::ModelProto| {
        let path = folder.join("m.onnx");
        fs::write(&path, prost::Message::encode_to_vec(m)).unwrap();
        import(&path, &ImportOptions::default()).map(|imported| imported.decisions).unwrap_err()
    };
    let mut of_weights = linear();
    (0..5).for_each(|i| initializer(&mut of_weights, of_file(&format!("w{i}"), ["w.bin", "./w.bin"][i % 2])));
    let mut of_constants = linear();
    (0..5).for_each(|i| node(&mut of_constants, "Constant", "", &format!("c{i}"), vec![tensor("value", of_file("", "w.bin"))]));
    for errors in [of_weights, of_constants].iter().map(refused) {
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].message, "tensors of the model have 209715200 bytes of this file, which has 41943040");
    }
}
