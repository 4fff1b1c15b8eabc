//! The way in, as a newcomer goes it: a spec to begin with, what is trained, and what would be
//! idle.

use crate::support::{example, folder, shardc};

/// A job on four ranks of which nothing splits the samples.
const IDLE: &str = "mesh dp=4\nbatch 64\nloss cross_entropy labels=y\noptimizer sgd lr=0.1\n";

#[test]
fn the_first_spec_of_every_model_compiles_as_it_is() {
    for name in ["mlp", "gpt2", "gpt2-folded", "llama", "bert", "vit", "resnet", "inception"] {
        let here = folder(&format!("init-{name}"));
        let model = format!("{}/tests/models/{name}/model.onnx", env!("CARGO_MANIFEST_DIR"));
        let spec = shardc(&here, &["init", &model]).expect(0).out;
        for part in ["# The model reads and gives:", "\nbatch ", "\nloss ", "\noptimizer ", "# trained:"] {
            assert!(spec.contains(part), "{name} without {part:?}: {spec}");
        }
        std::fs::write(here.join("job.shard"), spec).expect("a spec");
        shardc(&here, &["compile", &model, "--spec", "job.shard", "-o", "plan"]).expect(0);
    }
}

#[test]
fn a_first_spec_says_why_the_model_would_be_refused() {
    let here = folder("init-refused");
    let model = format!("{}/tests/recorded/towers/default.onnx", env!("CARGO_MANIFEST_DIR"));
    let spec = shardc(&here, &["init", &model]).expect(0).out;
    for part in
        ["# Training refuses this model as it is:", "`logit_scale`", "optimize=False", "loss      output=", "# not trained:"]
    {
        assert!(spec.contains(part), "{part:?}: {spec}");
    }
    std::fs::write(here.join("broken.onnx"), b"no model").expect("a file");
    let refused = shardc(&here, &["init", "broken.onnx"]).expect(1);
    assert!(refused.err.contains("this is not an ONNX model"), "{}", refused.err);
}

#[test]
fn an_axis_that_splits_nothing_is_refused_unless_it_is_meant() {
    let here = folder("idle-axis");
    let model = example("digits/model.onnx");
    let compile = |text: &str, code: i32| {
        std::fs::write(here.join("job.shard"), text).expect("a spec");
        shardc(&here, &["compile", &model, "--spec", "job.shard", "-o", "plan"]).expect(code).err
    };
    let refused = compile(IDLE, 1);
    assert!(refused.contains("nothing is split over `dp`: its 4 ranks would all do the same"), "{refused}");
    assert!(refused.contains("`data axis=dp`") && refused.contains("`replicate axis=dp`"), "{refused}");
    compile(&format!("{IDLE}data axis=dp\n"), 0);
    compile(&format!("{IDLE}replicate axis=dp\n"), 0);
    compile(&IDLE.replace("dp=4", "dp=1"), 0);
}

#[test]
fn training_tells_what_it_trains_from_a_model_and_from_a_plan() {
    let here = folder("told");
    let (model, data) = (example("towers/model.onnx"), example("towers/train.npz"));
    let spec = example("towers/dp2.shard");
    let train = |source: &[&str]| {
        let rest = ["--data", &data, "--steps", "1", "--export", "t.onnx"];
        shardc(&here, &[&["train"], source, &rest].concat()).expect(0).err
    };
    let told = train(&[&model, "--spec", &spec]);
    assert!(told.contains("trained (9)  \"logit_scale\" []: a parameter by the exporter's record"), "{told}");
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "plan"]).expect(0);
    let told = train(&["plan"]);
    assert!(told.contains("trained (9)  \"logit_scale\" []: a parameter of the plan"), "{told}");
}

#[test]
fn what_is_not_there_is_told_with_help() {
    let here = folder("not-there");
    let (model, spec) = (example("digits/model.onnx"), example("digits/one.shard"));
    for (model, spec, help) in
        [("none.onnx", &spec[..], "help: the model is a file that"), (&model[..], "none.shard", "help: `shardc init MODEL.onnx`")]
    {
        let refused = shardc(&here, &["compile", model, "--spec", spec, "-o", "plan"]).expect(1).err;
        assert!(refused.contains("No such file") && refused.contains(help), "{refused}");
    }
}
