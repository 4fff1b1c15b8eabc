//! Mistakes of users that are told as such, early and in few words; and what is no mistake.

use crate::support::{example, folder, shardc};
use prost::Message;
use shardc_executor::data::{read_npz, read_safetensors, write_npz, write_safetensors};
use shardc_executor::tensor::Tensor;
use shardc_ir::plan_file::hash;
use shardc_testkit::onnx::{floats, initializer, input, ints, model, node, output};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

const JOB: [&str; 5] = ["model.onnx", "--spec", "job.shard", "--data", "data.npz"];

/// A folder with `MODEL`: the inputs with their types and sizes, tensors, nodes
/// `op inputs -> outputs`, and outputs.
fn job(
    name: &str,
    inputs: &[(&str, DataType, &[i64])],
    tensors: Vec<pb::TensorProto>,
    nodes: &[(&str, &str, &str)],
    outputs: &[&str],
) -> PathBuf {
    let here = folder(name);
    let mut m = model(20);
    inputs.iter().for_each(|(name, kind, sizes)| input(&mut m, name, *kind, sizes));
    tensors.into_iter().for_each(|tensor| initializer(&mut m, tensor));
    nodes.iter().for_each(|(op, inputs, outputs)| node(&mut m, op, inputs, outputs, vec![]));
    outputs.iter().for_each(|name| output(&mut m, name));
    fs::write(here.join("model.onnx"), m.encode_to_vec()).unwrap();
    here
}

fn save(here: &Path, spec: &str, arrays: &[(&str, Tensor)]) {
    fs::write(here.join("job.shard"), spec).unwrap();
    let arrays = arrays.iter().map(|(name, array)| (name.to_string(), array.clone())).collect();
    write_npz(&here.join("data.npz"), &arrays).unwrap();
}

/// A table of `rows` rows of two numbers: `2 i` and `2 i + 1`.
fn table(rows: i64) -> pb::TensorProto {
    floats("w", &[rows, 2], &(0..2 * rows).map(|i| i as f32).collect::<Vec<_>>())
}

fn outputs(here: &Path) -> BTreeMap<String, Tensor> {
    read_npz(fs::File::open(here.join("out.npz")).unwrap()).unwrap()
}

#[test]
fn losses_that_do_not_fit_are_refused_before_data_is_read() {
    let here = job(
        "loss-shapes",
        &[("x", DataType::Float, &[-1, 6])],
        vec![floats("a", &[6, 3], &[0.1; 18])],
        &[("MatMul", "x a", "y"), ("Exp", "a", "z")],
        &["y", "z"],
    );
    for (loss, says) in [
        ("cross_entropy logits=y labels=t class_axis=0", "`class_axis=0` of `y`, which is f32[4, 3]"),
        ("cross_entropy logits=y labels=t class_axis=-2", "`class_axis=-2` of `y`, which is f32[4, 3]"),
        ("cross_entropy logits=z labels=t", "the loss needs labels of i64[6], but the model takes 4 samples"),
        ("mse prediction=z labels=t", "the loss needs labels of f32[6, 3], but the model takes 4 samples"),
        ("bce_with_logits logits=z labels=t", "the loss needs labels of f32[6, 3], but the model takes 4 samples"),
    ] {
        fs::write(here.join("job.shard"), format!("batch 4\nloss {loss}\noptimizer sgd lr=0.1\n")).unwrap();
        for command in ["compile", "train"] {
            let rest = if command == "compile" { ["-o", "p"] } else { ["--data", "none.npz"] };
            let ran = shardc(&here, &[&[command], &JOB[..3], &rest].concat()).expect(1);
            assert!(ran.err.contains(says) && ran.err.contains("job.shard:2:1") && ran.err.contains("help: "), "{}", ran.err);
        }
    }
}

#[test]
fn indices_count_from_the_end_too_and_beyond_it_they_are_the_users_mistake() {
    let ids = [("ids", DataType::Int64, &[-1, 3][..])];
    let direct = [("Gather", "w ids", "y")];
    let computed = [("Add", "ids one", "next"), ("Gather", "w next", "y")];
    let one = || ints("one", &[], &[1]);
    let spec = "batch 2\nloss mse labels=t\noptimizer sgd lr=0.1\n";
    let labels = || Tensor::from_f32(&[2, 3, 2], &[0.0; 12]);
    let data = |ids: [i64; 6]| [("ids", Tensor::from_i64(&[2, 3], &ids)), ("t", labels())];
    let here = job("indices", &ids, vec![table(5)], &direct, &["y"]);
    save(&here, spec, &data([0, -1, 4, -5, 2, -3]));
    shardc(&here, &[&["eval"], &JOB[..], &["--outputs", "out.npz"]].concat()).expect(0);
    let rows = [0.0, 1.0, 8.0, 9.0, 8.0, 9.0, 0.0, 1.0, 4.0, 5.0, 4.0, 5.0];
    assert_eq!(outputs(&here)["y"].to_f32(), rows);
    shardc(&here, &[&["train"], &JOB[..], &["--steps", "2", "--export", "negative.onnx"]].concat()).expect(0);
    shardc(&here, &[&["check"], &JOB[..]].concat()).expect(0);
    save(&here, spec, &data([0, 4, 4, 0, 2, 2]));
    shardc(&here, &[&["train"], &JOB[..], &["--steps", "2", "--export", "positive.onnx"]].concat()).expect(0);
    assert_eq!(fs::read(here.join("negative.onnx")).unwrap(), fs::read(here.join("positive.onnx")).unwrap());
    for wrong in [5, -6] {
        save(&here, spec, &data([0, 1, 2, 3, 4, wrong]));
        let ran = shardc(&here, &[&["train"], &JOB[..], &["--steps", "1"]].concat()).expect(1);
        assert!(ran.err.contains(&format!("`ids` is {wrong} at [1, 2], outside -5..5")), "{}", ran.err);
    }
    let here = job("computed-indices", &ids, vec![table(5), one()], &computed, &["y"]);
    save(&here, spec, &data([0, 1, 2, 3, -2, 4]));
    for command in ["train", "eval"] {
        let ran = shardc(&here, &[&[command], &JOB[..]].concat()).expect(1);
        assert!(
            ran.err.contains("index 5 at position 5 is outside a table of 5 rows") && ran.err.contains("%y = "),
            "{}",
            ran.err
        );
        assert!(ran.err.starts_with("error: ") || ran.err.contains("\nerror: "), "{}", ran.err);
        assert!(ran.err.contains("help: ") && !ran.err.contains("machine"), "{}", ran.err);
    }
}

#[test]
fn weights_of_another_shape_are_a_damaged_plan() {
    let here = folder("weight-shapes");
    shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &example("digits/one.shard"), "-o", "p"]).expect(0);
    let (file, manifest) = (here.join("p/weights.safetensors"), here.join("p/manifest.json"));
    let old = fs::read(&file).unwrap();
    let mut weights = read_safetensors(&old).unwrap();
    weights.get_mut("fc1.weight").unwrap().shape.reverse();
    let new = write_safetensors(&weights).unwrap();
    let text = fs::read_to_string(&manifest).unwrap().replace(&hash(&old), &hash(&new));
    fs::write(&file, new).unwrap();
    fs::write(&manifest, text).unwrap();
    let ran = shardc(&here, &["train", "p", "--data", "none.npz"]).expect(1);
    assert!(ran.err.contains("`weights.safetensors` has `fc1.weight` as f32[64, 128], not f32[128, 64]"), "{}", ran.err);
    assert!(ran.err.contains("help: compile the job again"), "{}", ran.err);
}

#[test]
fn what_is_wrong_with_a_long_text_is_short() {
    let here = folder("long-text");
    let model = example("digits/model.onnx");
    let long = "x".repeat(1_000_000);
    let many: String = (0..5000).map(|i| format!("bach{i} 64 ")).collect();
    let texts = [
        format!("batch 64\nfreeze \"{long}\"\n"),
        format!("batch 64 {long}\n"),
        format!("{long}\n"),
        format!("batch {}\n", "1".repeat(1_000_000)),
        format!("shard \"{}\" [{}]\n", "é".repeat(500_000), "tp, ".repeat(1000)),
        format!("batch 64\nmesh {many}\n"),
        (0..5000).map(|i| format!("bach{i} 64\n")).collect(),
        (0..50).map(|i| format!("shard \"{}{i}\" [tp]\n", "y".repeat(20_000))).collect(),
        (0..3000).map(|i| format!("optimizer sgd lr=fast{i} speed={i}\n")).collect(),
    ];
    for text in texts {
        fs::write(here.join("job.shard"), &text).unwrap();
        let ran = shardc(&here, &["compile", &model, "--spec", "job.shard", "-o", "p"]).expect(1);
        let line = ran.err.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(ran.err.len() < 4096 && line < 900, "{} bytes, {line} in a line: {}", ran.err.len(), &text[..40]);
        assert!(ran.err.contains("error: ") && ran.took < Duration::from_secs(20), "{} took {:?}", &text[..40], ran.took);
        let source =
            ran.err.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).map(|line| line.chars().count()).max();
        assert!(source.is_none_or(|columns| columns < 140), "{source:?} columns of {}", &text[..40]);
    }
}

#[test]
fn matrices_that_begin_with_zeros_are_no_mistake() {
    for (at, (op, first)) in [("Relu", 0.0), ("LeakyRelu", 0.0), ("Relu", 1e-45)].into_iter().enumerate() {
        let inputs = [("x", DataType::Float, &[-1, 6][..])];
        let here = job(
            &format!("zeros-{at}"),
            &inputs,
            vec![floats("a", &[6, 3], &[first; 18])],
            &[("MatMul", "x a", "p"), (op, "p", "y")],
            &["y"],
        );
        fs::write(here.join("job.shard"), "batch 4\nloss mse labels=t\noptimizer sgd lr=0.1\n").unwrap();
        shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "plan"]).expect(0);
    }
}

#[test]
fn outputs_without_samples_are_those_of_every_batch_or_left_out() {
    let here = job(
        "no-samples",
        &[("x", DataType::Float, &[-1, 2])],
        vec![floats("a", &[2, 2], &[1.0, 0.0, 0.0, 1.0]), floats("row", &[1, 2], &[7.0, 8.0]), ints("axes", &[1], &[0])],
        &[
            ("MatMul", "x a", "y"),
            ("Exp", "a", "constant"),
            ("ReduceMean", "x axes", "mean"),
            // With as many rows as a batch has.
            ("Transpose", "x", "xt"),
            ("MatMul", "xt x", "products"),
            // One for each sample, although it is the same for all.
            ("Shape", "x", "sizes"),
            ("Expand", "row sizes", "rows"),
        ],
        &["y", "constant", "mean", "products", "rows"],
    );
    save(&here, "batch 2\n", &[("x", Tensor::from_f32(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))]);
    let eval = [&["eval"], &JOB[..], &["--outputs", "out.npz"]].concat();
    let said = shardc(&here, &eval).expect(0).err;
    assert_eq!(outputs(&here).keys().collect::<Vec<_>>(), ["constant", "rows", "y"]);
    for (name, samples) in [("constant", 2), ("rows", 4), ("y", 4)] {
        assert_eq!(outputs(&here)[name].shape, [samples, 2], "{name}");
    }
    for name in ["mean", "products"] {
        let warning = format!("warning: `{name}` has no dimension of samples, and differs from batch to batch");
        assert!(said.contains(&warning), "{said}");
    }
    assert!(said.contains("out.npz") && said.contains("it is left out") && said.contains("help: "), "{said}");
    assert_eq!(said.matches("warning").count(), 2, "{said}");
    // One batch of all samples has a mean.
    fs::write(here.join("job.shard"), "batch 4\n").unwrap();
    let said = shardc(&here, &eval).expect(0).err;
    assert!(!said.contains("warning"), "{said}");
    let all = outputs(&here);
    assert_eq!((all["mean"].to_f32(), all["mean"].shape.last()), (vec![4.0, 5.0], Some(&2)));
    assert_eq!(all["constant"].shape, [2, 2]);
}

#[test]
fn an_output_may_need_no_input() {
    let here = job(
        "no-input",
        &[("x", DataType::Float, &[-1, 2])],
        vec![floats("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), floats("c", &[3], &[5.0, 6.0, 7.0])],
        &[("MatMul", "x a", "y"), ("Identity", "c", "constant"), ("Identity", "a", "weights"), ("Relu", "a", "positive")],
        &["y", "constant", "weights", "positive"],
    );
    let x = Tensor::from_f32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for mesh in ["", "mesh dp=2\ndata axis=dp\n"] {
        save(
            &here,
            &format!("{mesh}batch 2\nloss mse prediction=y labels=x\noptimizer sgd lr=0.1\nfreeze \"c\"\n"),
            &[("x", x.clone())],
        );
        shardc(&here, &[&["eval"], &JOB[..], &["--outputs", "out.npz"]].concat()).expect(0);
        let all = outputs(&here);
        assert_eq!(all["constant"].to_f32(), [5.0, 6.0, 7.0]);
        assert_eq!((all["weights"].to_f32(), all["positive"].to_f32()), (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(all["y"].shape, [3, 2]);
        shardc(&here, &[&["train"], &JOB[..], &["--steps", "1", "--export", "t.onnx"]].concat()).expect(0);
        shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
        shardc(&here, &["verify", "p"]).expect(0);
    }
    // A model of such outputs alone reads no data.
    for inputs in [&[][..], &[("x", DataType::Float, &[-1, 2][..])]] {
        let here = job("no-inputs", inputs, vec![floats("c", &[3], &[5.0, -6.0, 7.0])], &[("Relu", "c", "y")], &["y"]);
        save(&here, "batch 2\n", &[("x", x.clone())]);
        let ran = shardc(&here, &[&["eval"], &JOB[..], &["--outputs", "out.npz"]].concat()).expect(0);
        assert!(ran.out.starts_with("0 samples, no loss"), "{}", ran.out);
        assert_eq!(outputs(&here)["y"].to_f32(), [5.0, 0.0, 7.0]);
    }
}

#[test]
fn tensors_of_more_dimensions_than_kernels_take_are_refused_by_compile() {
    let (sizes, flat) = ([2; 17], [1 << 15, 4]);
    let here = job(
        "dimensions",
        &[("x", DataType::Float, &flat)],
        vec![floats("w", &[4, 4], &[0.1; 16]), ints("sizes", &[17], &sizes), ints("flat", &[2], &flat)],
        &[("MatMul", "x w", "t"), ("Reshape", "t sizes", "r"), ("Transpose", "r", "q"), ("Reshape", "q flat", "y")],
        &["y"],
    );
    fs::write(here.join("job.shard"), "batch 32768\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n").unwrap();
    let ran = shardc(&here, &[&["compile"], &JOB[..3], &["-o", "p"]].concat()).expect(1);
    assert!(
        ran.err.contains("cannot run: step `%q = transpose perm=[16, ") && ran.err.contains("] %t` of task F"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("17 dimensions are more than the 16 that kernels take"), "{}", ran.err);
    assert!(!here.join("p").exists());
}
