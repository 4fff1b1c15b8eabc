//! A record that is damaged, large or only half there.

use super::export::{CALL, Export, FOLDED, KIND, SIGNATURE, exported, trained, turned};
use shardc_frontend::onnx::{ImportOptions, import_bytes};
use shardc_testkit::onnx::*;
use std::cell::Cell;
use std::path::Path;
use tract_onnx::pb::tensor_proto::DataType;

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
    // If the call does not tell, the file is refused as it was.
    let untold = [nodes[0], nodes[1], nodes[2], ("Sub", "mean mean", "y", "")];
    let errors = exported(&untold, tensors()).parameters("w").lists("BUFFER", "mean").import_with(&ImportOptions::default());
    assert!(format!("{:?}", errors.unwrap_err()).contains("`mean` is defined twice"));
}
