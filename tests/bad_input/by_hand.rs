//! Bad inputs that somebody thought of: specs, data, outputs, plans, command lines, and the models
//! of `models.rs`.

use super::case::{COMMAND_LINE, Case, OUTPUT};
use super::{DATA_COMMANDS, PLAN_COMMANDS, models};
use shardc_executor::data::{npz_bytes, write_safetensors};
use shardc_executor::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All of them.
pub fn cases() -> Vec<Case> {
    [models::cases(), specs(), data(), outputs(), plans(), command_lines()].into_iter().flatten().collect()
}

/// Each spec under each command that reads one.
fn specs() -> Vec<Case> {
    let good = "mesh dp=2\nbatch 4\ndata axis=dp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";
    let with = |line: &str| format!("{good}{line}\n").into_bytes();
    let without = |word: &str| good.lines().filter(|line| !line.starts_with(word)).fold(String::new(), |all, l| all + l + "\n");
    let replaced = |word: &str, line: &str| [without(word).into_bytes(), line.as_bytes().to_vec()].concat();
    let mut texts: Vec<(String, Vec<u8>)> = vec![];
    for line in [
        "frobnicate",
        "mesh",
        "batch",
        "shard",
        "shard \"w\"",
        "shard \"w\" [dp]",
        "shard \"w\" [dp, dp]",
        "shard \"w\" [tp, -]",
        "shard \"w\" [3*dp, -]",
        "shard \"w\" [(1|1|1)*dp, -]",
        "shard \"w\" [(9223372036854775807|9223372036854775807)*dp, -]",
        "shard \"w\" [[8:dp 32:dp], -]",
        "shard \"w\" [[0:dp], -]",
        "shard \"nothing\" [dp, -]",
        "shard \"w [dp, -]",
        "shard \"w\" [dp, -",
        "freeze \"nothing\"",
        "freeze \"[\"",
        "freeze \"***********************************a\"",
        "train \"*\"\nfreeze \"*\"",
        "tie \"w\" \"b\"",
        "tie \"w\" \"w\"",
        "untie \"*\"",
        "init \"w\" normal std=-1",
        "init \"w\" normal std=1e999",
        "clip norm=NaN",
        "clip norm=0",
        "schedule cosine steps=0",
        "schedule cosine steps=18446744073709551616",
        "seed -1",
        "bind s1=0",
        "bind s1=18446744073709551615",
        "zero stage=3",
        "pipeline axis=dp",
        "precision bf16",
        "device memory=1",
        "device memory=1B",
        "tensor axis=dp",
        "tensor axis=none",
        "sequence axis=dp",
        "batchnorm statistics=microbatch",
        "data axis=dp on=\"nothing\"",
        "\u{0}\u{1}\u{1b}[2J",
        "\u{202e}batch",
        "batch 4 batch 4",
        "# only a remark",
    ] {
        texts.push((format!("a spec with {line:?}"), with(line)));
    }
    for (word, line) in [
        ("mesh", "mesh dp=0\n"),
        ("mesh", "mesh dp=3\n"),
        ("mesh", "mesh dp=-2\n"),
        ("mesh", "mesh dp=18446744073709551615\n"),
        ("mesh", "mesh dp=4294967296 tp=4294967296 pp=2\n"),
        ("mesh", "mesh dp=1000000\n"),
        ("mesh", "mesh dp=2 other=500000\n"),
        ("mesh", "mesh dp=2 other=32768\n"),
        ("mesh", "mesh dp=2 dp=2\n"),
        ("mesh", "mesh time=2\n"),
        ("batch", "batch 0\n"),
        ("batch", "batch 3\n"),
        ("batch", "batch -4\n"),
        ("batch", "batch 4.5\n"),
        ("batch", "batch 1e9\n"),
        ("batch", "batch 9223372036854775806\n"),
        ("batch", "batch 18446744073709551616\n"),
        ("batch", "batch 4 microbatches=3\n"),
        ("batch", "batch 4 microbatches=0\n"),
        ("loss", "loss mse prediction=nothing labels=t\n"),
        ("loss", "loss frobnicate labels=t\n"),
        ("loss", "loss cross_entropy logits=y labels=t class_axis=99\n"),
        ("loss", "loss output=y\n"),
        ("loss", ""),
        ("optimizer", "optimizer sgd lr=NaN\n"),
        ("optimizer", "optimizer sgd lr=-1\n"),
        ("optimizer", "optimizer sgd\n"),
        ("optimizer", "optimizer adamw lr=0.1 beta1=2\n"),
        ("optimizer", ""),
    ] {
        texts.push((format!("a spec with {line:?} for `{word}`"), replaced(word, line)));
    }
    texts.push(("no spec".into(), vec![]));
    texts.push(("a spec that is no text".into(), vec![0xff; 100]));
    texts.push(("a spec of nothing but zeros".into(), vec![0; 1 << 16]));
    texts.push(("a spec of two megabytes".into(), vec![b'#'; 2 << 20]));
    texts.push(("a spec of many lines".into(), "freeze \"w\"\n".repeat(50_000).into_bytes()));
    texts.push(("a spec of many brackets".into(), with(&format!("shard \"w\" {}", "[".repeat(100_000)))));
    texts.push(("a spec of many braces".into(), with(&format!("shard \"w\" [{}", "(".repeat(100_000)))));
    let commands =
        ["compile model.onnx --spec job.shard -o p", "train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1"];
    let case = |(name, text): (String, Vec<u8>)| {
        let text = Arc::new(text);
        commands.map(|command| Case::of(name.clone(), "job.shard", text.clone(), command))
    };
    texts.into_iter().flat_map(case).collect()
}

/// Data in each form, under each command that reads it.
fn data() -> Vec<Case> {
    let array = |sizes: &[u64]| Tensor::from_f32(sizes, &vec![0.5; sizes.iter().product::<u64>() as usize]);
    let named = |list: &[(&str, Tensor)]| -> BTreeMap<String, Tensor> {
        list.iter().map(|(name, array)| (name.to_string(), array.clone())).collect()
    };
    let good = [("x", array(&[8, 3])), ("t", array(&[8, 2]))];
    let mut cases = vec![];
    for (name, arrays) in [
        ("no arrays", named(&[])),
        ("one array", named(&good[..1])),
        ("fewer samples than a batch", named(&[("x", array(&[3, 3])), ("t", array(&[3, 2]))])),
        ("no samples", named(&[("x", array(&[0, 3])), ("t", array(&[0, 2]))])),
        ("counts that differ", named(&[("x", array(&[8, 3])), ("t", array(&[9, 2]))])),
        ("another shape", named(&[("x", array(&[8, 3, 1])), ("t", array(&[8, 2]))])),
        ("a scalar", named(&[("x", array(&[])), ("t", array(&[8, 2]))])),
        ("integers", named(&[("x", Tensor::from_i64(&[8, 3], &[1; 24])), ("t", array(&[8, 2]))])),
        ("not finite", named(&[("x", Tensor::from_f32(&[8, 3], &[f32::NAN; 24])), ("t", array(&[8, 2]))])),
        ("huge numbers", named(&[("x", Tensor::from_f32(&[8, 3], &[f32::MAX; 24])), ("t", array(&[8, 2]))])),
        ("names of control codes", named(&[("\u{1b}[2J", array(&[8, 3])), ("t", array(&[8, 2]))])),
    ] {
        for command in DATA_COMMANDS {
            cases.push(Case::of(name, "data.npz", npz_bytes(&arrays).expect("arrays"), command));
            let (bytes, command) = (write_safetensors(&arrays).expect("arrays"), command.replace("data.npz", "data.safetensors"));
            cases.push(Case::of(name, "data.safetensors", bytes, &command));
        }
    }
    // The end of an archive is looked for from behind.
    let mut endless = vec![0x50; 8 << 20];
    endless[..4].copy_from_slice(b"PK\x03\x04");
    let endless = Arc::new(endless);
    cases
        .extend(DATA_COMMANDS.iter().map(|command| Case::of("an archive without its end", "data.npz", endless.clone(), command)));
    let npy = |header: &str| {
        [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes(), &[0; 96]].concat()
    };
    let whole = |descr: &str, shape: &str| npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"));
    for (name, bytes) in [
        ("an empty array file", vec![]),
        ("a claimed exabyte", whole("<f4", "(1152921504606846976, 3)")),
        ("claimed elements beyond numbers", whole("<f4", "(18446744073709551615, 18446744073709551615)")),
        ("a negative size", whole("<f4", "(-8, -3)")),
        ("objects", whole("|O", "(8, 3)")),
        ("strings", whole("<U7", "(8, 3)")),
        ("an unknown type", whole("<f3", "(8, 3)")),
        ("a header that is none", npy("{'descr': ")),
        ("a header of brackets", npy(&"(".repeat(60_000))),
        ("too few elements", whole("<f8", "(8, 3, 100)")),
        ("a header longer than the file", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec()),
    ] {
        let bytes = Arc::new(bytes);
        for command in ["data arrays", "data arrays/x.npy", "eval model.onnx --spec job.shard --data arrays --threads 1"] {
            cases.push(Case::of(name, "arrays/x.npy", bytes.clone(), command));
        }
    }
    let header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &[0; 96]].concat();
    for (name, bytes) in [
        ("a header beyond the file", [0xff; 64].to_vec()),
        ("no header", vec![]),
        ("offsets beyond numbers", header(r#"{"x":{"dtype":"F32","shape":[8,3],"data_offsets":[0,18446744073709551615]}}"#)),
        ("offsets that turn round", header(r#"{"x":{"dtype":"F32","shape":[8,3],"data_offsets":[96,0]}}"#)),
        ("sizes beyond numbers", header(r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,96]}}"#)),
        ("an unknown type", header(r#"{"x":{"dtype":"F3","shape":[8,3],"data_offsets":[0,96]}}"#)),
        ("a name twice", header(r#"{"x":{"dtype":"F32","shape":[8,3],"data_offsets":[0,96]},"x":{}}"#)),
        ("brackets", header(&"[".repeat(100_000))),
        ("a name of a megabyte", header(&format!(r#"{{"{}":1}}"#, "x".repeat(1 << 20)))),
    ] {
        let bytes = Arc::new(bytes);
        for command in ["data data.safetensors", "eval model.onnx --spec job.shard --data data.safetensors --threads 1"] {
            cases.push(Case::of(name, "data.safetensors", bytes.clone(), command));
        }
    }
    for path in
        ["none.npz", "arrays/none.npy", "/dev/zero", "/dev/stdin", ".", "model.onnx", "job.shard", "text.txt", "text.bin", "p"]
    {
        for command in ["data", "eval model.onnx --spec job.shard --threads 1 --data"] {
            cases.push(Case::with(format!("data at {path}"), vec![], &format!("{command} {path}")));
        }
    }
    cases
}

/// Outputs where they may not or cannot be.
fn outputs() -> Vec<Case> {
    let mut commands = vec![];
    for to in [
        "model.onnx",
        "job.shard",
        ".",
        "..",
        "./",
        "/",
        "p/.",
        "p/..",
        "none/../model.onnx/p",
        "data.npz",
        "arrays",
        "data.npz/p",
        "model.onnx/",
        "/proc/p",
        "/dev/null",
        "/dev/null/p",
        "/dev/full",
        "locked/p",
        "locked/none/p",
    ] {
        commands.push(format!("compile model.onnx --spec job.shard -o {to}"));
    }
    for to in [
        "model.onnx",
        "./model.onnx",
        "arrays/../model.onnx",
        "job.shard",
        "data.npz",
        "arrays",
        "none/t.onnx",
        "p/.",
        "/proc/t.onnx",
        "/dev/full",
        "data.npz/t.onnx",
        ".",
        "",
        "locked/t.onnx",
    ] {
        for option in ["--export", "--metrics"] {
            commands.push(format!("train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1 {option} {to}"));
        }
        commands.push(format!("eval model.onnx --spec job.shard --data data.npz --threads 1 --outputs {to}"));
    }
    for to in ["none/o", "plan/manifest.json", "plan/train.plan", "plan/job.shard", "arrays", "data.npz/o", "", "/dev/full"] {
        commands.push(format!("inspect plan -o {to}"));
    }
    for to in ["plan/train.shir.gz", "plan/manifest.json", "plan/model.onnx", "plan/weights.safetensors", "plan"] {
        commands.push(format!("train plan --data data.npz --steps 1 --threads 1 --export {to}"));
    }
    commands.push("train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1 --export o --metrics o".to_string());
    commands.iter().map(|command| Case::with(OUTPUT, vec![], command)).collect()
}

fn plans() -> Vec<Case> {
    let mut cases = vec![];
    for file in [
        "manifest.json",
        "train.plan",
        "eval.plan",
        "train.shir.gz",
        "eval.shir.gz",
        "job.shard",
        "model.onnx",
        "weights.safetensors",
    ] {
        let file = format!("plan/{file}");
        for command in PLAN_COMMANDS {
            cases.push(Case::with(format!("no {file}"), vec![(file.as_str(), None)], command));
            cases.push(Case::of(format!("an empty {file}"), &file, vec![], command));
            cases.push(Case::of(format!("zeros for {file}"), &file, vec![0; 4096], command));
        }
    }
    for (name, text) in [
        ("a manifest of brackets", "[".repeat(100_000)),
        ("a manifest of objects", "{\"a\":".repeat(100_000)),
        ("a manifest of nothing", "{}".to_string()),
        ("a manifest of a long word", format!("\"{}\"", "x".repeat(1 << 20))),
        ("a manifest of another format", "{\"format\":\"\\u001b[2J\"}".to_string()),
    ] {
        let bytes = Arc::new(text.into_bytes());
        for command in PLAN_COMMANDS {
            cases.push(Case::of(name, "plan/manifest.json", bytes.clone(), command));
        }
    }
    for path in ["none", "arrays", "model.onnx", ".", "/", "/dev/zero", "/proc", "plan/manifest.json", "plan/."] {
        for command in ["inspect", "verify"] {
            cases.push(Case::with(format!("a plan at {path}"), vec![], &format!("{command} {path}")));
        }
    }
    cases
}

fn command_lines() -> Vec<Case> {
    [
        "",
        "frobnicate",
        "compile",
        "compile model.onnx",
        "compile model.onnx --spec job.shard",
        "compile none.onnx --spec job.shard -o p",
        "compile model.onnx --spec none.shard -o p",
        "compile arrays --spec job.shard -o p",
        "compile /dev/zero --spec job.shard -o p",
        "compile model.onnx --spec /dev/zero -o p",
        "compile model.onnx --spec arrays -o p",
        "compile job.shard --spec model.onnx -o p",
        "compile model.onnx --spec job.shard -o p --target cuda",
        "compile model.onnx --spec job.shard --stop-after nothing",
        "compile model.onnx --spec job.shard --dump model.onnx -o p",
        "train model.onnx --data data.npz",
        "train plan --spec job.shard --data data.npz",
        "train plan --data data.npz --steps -1",
        "train plan --data data.npz --steps 18446744073709551616",
        "train plan --data data.npz --threads 0",
        "train plan --data data.npz --threads 99999999",
        "train plan --data data.npz --context 7 --steps 1",
        "train plan --data data.npz --checkpoint c",
        "train plan --data data.npz --device cuda",
        "check plan --data data.npz --batches 0",
        "check plan --data data.npz --batches 99999999999",
        "inspect plan --rank 18446744073709551615",
        "inspect plan --format dot",
        "inspect plan --program nothing",
        "verify",
        "init none.onnx",
        "init job.shard",
        "init arrays",
        "data data.npz --context 0",
        "data text.txt --context 18446744073709551615",
        "help frobnicate",
        "explain y",
    ]
    .iter()
    .map(|line| Case::with(COMMAND_LINE, vec![], line))
    .collect()
}
