//! Damaged files: cut, bits flipped, numbers replaced, pieces lost or doubled. Whatever is left is
//! read or refused: no panic, no hang, no memory beyond the file's own size and a little. Plan
//! files are damaged in `plan_files.rs`, specs in the frontend's tests.

use crate::support::{example, folder, shardc};
use shardc::{Options, compile};
use shardc_executor::data::{Dataset, InputSpec, Options as DataOptions, input_specs, read_npz, write_npz, write_safetensors};
use shardc_frontend::spec;
use shardc_testkit::random::{Random, damaged};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No file of these takes longer; a machine that is busy with other things has room.
const LONGEST: Duration = Duration::from_secs(5);

/// Damages the file at `path` in `times` ways; says how often `read` took and refused what was
/// left.
fn sweep(path: &Path, times: usize, mut read: impl FnMut() -> bool) -> (usize, usize) {
    let whole = fs::read(path).expect("the file is there");
    assert!(read(), "{} is good", path.display());
    let mut random = Random(whole.len() as u64);
    let mut taken = 0;
    for case in 0..times {
        fs::write(path, damaged(&whole, &mut random)).expect("a file can be written");
        let start = Instant::now();
        taken += usize::from(read());
        assert!(start.elapsed() < LONGEST, "case {case} of {} takes {:?}", path.display(), start.elapsed());
    }
    fs::write(path, whole).expect("a file can be written");
    println!("{}: of {times} damaged files {taken} are taken", path.display());
    (taken, times - taken)
}

fn copied(from: &str, to: PathBuf) -> PathBuf {
    fs::copy(from, &to).expect("a file can be copied");
    to
}

#[test]
fn damaged_models_are_compiled_or_refused() {
    let here = folder("damaged-models");
    let models = format!("{}/tests/models", env!("CARGO_MANIFEST_DIR"));
    let (mut taken, mut refused) = (0, 0);
    for (name, file, times) in [
        ("digits", example("digits/model.onnx"), 300),
        ("losses", format!("{models}/losses/model.onnx"), 400),
        ("own", format!("{models}/losses/own-rms.onnx"), 200),
        ("bert", format!("{models}/bert/model.onnx"), 100),
    ] {
        let path = copied(&file, here.join(format!("{name}.onnx")));
        let spec = spec::parse(Path::new("job.shard"), "mesh dp=2\nbatch 8\ndata axis=dp\n").expect("a spec");
        let (some, others) =
            sweep(&path, times, || compile(&path, &spec, &Options { train: false, ..Options::default() }).is_ok());
        (taken, refused) = (taken + some, refused + others);
    }
    assert!(taken > 50 && refused > 500, "{taken} taken, {refused} refused");
}

#[test]
fn damaged_data_is_taken_or_refused() {
    let here = folder("damaged-data");
    let spec = spec::parse(Path::new("job.shard"), "batch 8\nloss cross_entropy labels=y\n").expect("a spec");
    let model = PathBuf::from(example("digits/model.onnx"));
    let compiled = compile(&model, &spec, &Options { train: false, ..Options::default() }).expect("the model compiles");
    let inputs: Vec<InputSpec> = input_specs(&compiled.plans.eval.programs);
    let arrays = read_npz(fs::File::open(example("digits/test.npz")).expect("data")).expect("arrays");
    let open = |path: &Path, inputs: &[InputSpec]| match Dataset::open(path, inputs.to_vec(), 8, &DataOptions::default()) {
        Ok(data) => {
            data.batch(0);
            true
        }
        Err(errors) => {
            assert!(!errors.is_empty() && errors.iter().all(|error| error.place.is_some()));
            false
        }
    };
    let archive = here.join("data.npz");
    write_npz(&archive, &arrays).expect("data is written");
    let safe = here.join("data.safetensors");
    fs::write(&safe, write_safetensors(&arrays).expect("arrays")).expect("data is written");
    let text = here.join("data.txt");
    fs::write(&text, "to be or not to be\n".repeat(100)).expect("data is written");
    let windows = [InputSpec { name: "x".into(), sample: vec![16], range: Some((0, 128)), ..inputs[1].clone() }];
    sweep(&archive, 300, || open(&archive, &inputs));
    sweep(&safe, 300, || open(&safe, &inputs));
    sweep(&text, 100, || open(&text, &windows));
    let single = here.join("folder");
    fs::create_dir(&single).expect("a folder");
    for (name, array) in &arrays {
        let header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {:?}, }}", descr(array), array.shape);
        let header = format!("{:<117}\n", header.replace('[', "(").replace(']', ",)"));
        let bytes = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &array.bytes].concat();
        fs::write(single.join(format!("{name}.npy")), bytes).expect("data is written");
    }
    let (taken, refused) = sweep(&single.join("x.npy"), 300, || open(&single, &inputs));
    assert!(taken > 50 && refused > 50, "{taken} taken, {refused} refused");
}

fn descr(array: &shardc_executor::tensor::Tensor) -> &'static str {
    if array.dtype.is_float() { "<f4" } else { "<i8" }
}

/// Runs `job` in `here` with an address space of so many KiB; gives its exit code, -1 where a
/// signal ended it, and what it said.
#[cfg(target_os = "linux")]
fn limited(here: &Path, limit: u64, job: &str) -> (i32, String) {
    let line = format!("ulimit -v {limit}; exec {} {job} 2>errors >out", env!("CARGO_BIN_EXE_shardc"));
    let status = std::process::Command::new("sh").args(["-c", &line]).current_dir(here).status();
    let said = fs::read_to_string(here.join("errors")).expect("what it said");
    (status.expect("a shell").code().unwrap_or(-1), said)
}

/// The program under a limit of its address space: the least that the good file needs, and 64 MiB.
#[cfg(target_os = "linux")]
#[test]
fn damaged_files_ask_for_little_memory() {
    let here = folder("damaged-memory");
    let model = copied(&example("digits/model.onnx"), here.join("model.onnx"));
    let data = copied(&example("digits/test.npz"), here.join("data.npz"));
    fs::write(here.join("job.shard"), "batch 8\nloss cross_entropy labels=y\n").expect("a spec");
    let run = |limit: u64| limited(&here, limit, "eval model.onnx --spec job.shard --data data.npz --threads 1");
    let least = (1..64).map(|i| i * 16 * 1024).find(|limit| run(*limit).0 == 0).expect("a gigabyte is enough");
    for path in [&model, &data] {
        let whole = fs::read(path).expect("the file");
        let limit = least + 64 * 1024 + whole.len() as u64 / 1024;
        let mut random = Random(3);
        for case in 0..60 {
            fs::write(path, damaged(&whole, &mut random)).expect("a file can be written");
            let (code, said) = run(limit);
            assert!(matches!(code, 0 | 1), "case {case} of {} exits with {code}: {said}", path.display());
        }
        fs::write(path, whole).expect("a file can be written");
    }
    shardc(&here, &["eval", "model.onnx", "--spec", "job.shard", "--data", "data.npz"]).expect(0);
}

/// A file may say that it is long, and take no room: what it does not hold costs no memory.
#[cfg(target_os = "linux")]
#[test]
fn sparse_files_cost_no_memory() {
    let here = folder("sparse");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let spec = example("digits/one.shard");
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "plan"]).expect(0);
    let train = |model: &str, data: &str| format!("train {model} --spec {spec} --data {data} --steps 1 --threads 1");
    let cases = [
        ("data.npz", 8 << 30, train(&model, "data.npz")),
        ("data.safetensors", 8 << 30, train(&model, "data.safetensors")),
        ("model.onnx", 3 << 30, train("model.onnx", &data)),
        ("model.onnx", 128 << 20, train("model.onnx", &data)),
        ("plan/train.plan", 768 << 20, "verify plan".to_string()),
        ("plan/weights.safetensors", 768 << 20, "verify plan".to_string()),
        ("plan/manifest.json", 768 << 20, "verify plan".to_string()),
    ];
    for (name, length, job) in cases {
        let path = here.join(name);
        let old = fs::read(&path).ok();
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .and_then(|file| file.set_len(length))
            .expect("a hole");
        let (code, said) = limited(&here, 600 << 10, &job);
        assert!(code == 1 && said.contains("error"), "{name}: {code}: {said}");
        match old {
            Some(bytes) => fs::write(&path, bytes).expect("a file can be written"),
            None => fs::remove_file(&path).expect("a file can be removed"),
        }
    }
    shardc(&here, &["verify", "plan"]).expect(0);
}

/// Whatever the limit, the program does its work or says that memory lacks.
#[cfg(target_os = "linux")]
#[test]
fn lack_of_memory_is_a_failure_of_the_machine() {
    let here = folder("little-memory");
    let model = here.join("model.onnx");
    let weights = vec![0; 100 << 20];
    fs::write(&model, weights).expect("a file can be written");
    fs::write(here.join("job.shard"), "batch 8\n").expect("a spec");
    // The program's own image takes about 80 MiB of that.
    let (code, said) = limited(&here, 120 << 10, "eval model.onnx --spec job.shard --data model.onnx");
    assert!(code == 3 && said.contains("memory"), "{code}: {said}");
    copied(&example("digits/model.onnx"), model);
    copied(&example("digits/test.npz"), here.join("data.npz"));
    fs::write(here.join("job.shard"), "batch 64\nloss cross_entropy labels=y\noptimizer adamw lr=0.1\n").expect("a spec");
    // Below that the system may not even load the program.
    for limit in (200..=500).step_by(20) {
        let (code, said) = limited(&here, limit << 10, "train model.onnx --spec job.shard --data data.npz --threads 2 --steps 1");
        assert!(matches!(code, 0 | 3), "{limit} MiB: {code}: {said}");
    }
}
