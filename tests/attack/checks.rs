//! The checks of each target: what is done with its bytes, and what must hold whatever they are.

use super::seeds::{BATCH, scratch, small_job};
use shardc::report::render;
use shardc::{Options, compile, plan_dir};
use shardc_executor::data::{self, Dataset, InputSpec, read_npz, read_safetensors, write_npz, write_safetensors};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_executor::world::World;
use shardc_frontend::onnx::{ImportOptions, import_bytes};
use shardc_frontend::spec;
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::listing;
use shardc_ir::ops::Op;
use shardc_ir::packed::pack;
use shardc_ir::plan_file::{decode, encode, hash};
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{verify, verify_set};
use shardc_ir::{text, verify as verify_graph};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

/// Errors take fewer bytes.
const MESSAGE: usize = 4096;
/// Constants of more bytes are not printed.
const PRINTED: usize = 1 << 20;
/// Programs that hold more, or run on more ranks, are not loaded.
const LOADED_BYTES: u64 = 1 << 20;
const LOADED_RANKS: u64 = 5;

/// Demands that errors are told in few words, on a terminal's terms, and are not ours.
fn told(errors: &[Diagnostic], file: &Path, source: &str) {
    assert!(!errors.is_empty(), "something is wrong, and nothing is said");
    let said = render(errors, &BTreeMap::from([(file.to_path_buf(), source.to_string())]), false);
    assert!(said.len() < MESSAGE, "{} bytes are said: {said}", said.len());
    assert!(!said.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{said:?}");
    assert!(!said.contains("bug of shardc"), "{said}");
}

/// A graph that is printed is read back as itself.
fn printed(graph: &Graph) {
    let held = |op: &Op| if let Op::Constant(constant) = op { constant.value.bytes.len() } else { 0 };
    let constants: usize = graph.nodes().map(|(_, node)| held(&node.op)).sum();
    if constants <= PRINTED {
        let once = text::print(graph);
        let again = text::parse(&once).unwrap_or_else(|error| panic!("{error} of\n{once}"));
        assert_eq!(text::print(&again), once);
    }
}

/// The bytes of a model are imported, and compiled for evaluation and training, or refused.
pub fn onnx(bytes: &[u8]) {
    let path = scratch().join("fuzzed.onnx");
    let options = ImportOptions { training: false, ..ImportOptions::default() };
    let imported = match import_bytes(&path, bytes.to_vec(), &options) {
        Ok(imported) => imported,
        Err(errors) => return told(&errors, &path, ""),
    };
    let broken = verify_graph::verify(&imported.graph).err();
    assert!(broken.is_none(), "{}", verify_graph::report(&imported.graph, &broken.unwrap_or_default()));
    printed(&imported.graph);
    let Some(output) = imported.graph.outputs.first().map(|output| output.name.clone()) else { return };
    fs::write(&path, bytes).expect("a file can be written");
    let line = format!("batch {BATCH}\nmesh dp=2\ndata axis=dp\nloss mse prediction={output} labels=t\noptimizer sgd lr=0.1\n");
    for (text, train) in [("", false), (&line[..], true)] {
        let file = Path::new("job.shard");
        // Not every name of an output can be written in a spec without quotes.
        let Ok(spec) = spec::parse(file, text) else { continue };
        if let Err(errors) = compile(&path, &spec, &Options { train, verify: true, ..Options::default() }) {
            told(&errors, file, text);
        }
    }
}

/// The text of a spec is read or refused; a remark below it changes nothing.
pub fn spec(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let file = Path::new("job.shard");
    match spec::parse(file, source) {
        Ok(spec) => {
            let again = spec::parse(file, &format!("{source}\n# a remark"));
            assert_eq!(again.as_ref(), Ok(&spec), "a remark changes a spec");
            if let Err(errors) = spec.require_training() {
                told(&errors, file, source);
            }
            assert_eq!(spec.reference().mesh(), spec.mesh().reference());
        }
        Err(errors) => told(&errors, file, source),
    }
}

/// The text of a graph is read, printed and read back, and held against a program; or refused.
pub fn shir(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    match text::parse(source) {
        Ok(graph) => {
            printed(&graph);
            if let Err(broken) = verify_graph::verify(&graph) {
                verify_graph::report(&graph, &broken);
            }
            let (training, reference) = small_job().training();
            let _ = same_when_erased(&graph, reference);
            let _ = verify(training, &graph);
        }
        Err(error) => {
            assert!(error.line <= source.lines().count().max(1), "{error}");
            told(&[Diagnostic::error(error.to_string())], Path::new("train.shir.gz"), "");
        }
    }
}

/// A plan file is decoded, listed, held against a graph and loaded, or refused: as it stands, and
/// as what a header is made for.
pub fn plan(bytes: &[u8]) {
    for file in [bytes.to_vec(), sealed(bytes)] {
        let program = match decode(&file) {
            Ok(program) => program,
            Err(error) => {
                told(&[error], Path::new("train.plan"), "");
                continue;
            }
        };
        let written = encode(&program).expect("a program can be written");
        let again = decode(&written).expect("what was written can be read");
        assert_eq!(encode(&again).expect("a program can be written"), written);
        let mesh = program.mesh();
        for rank in [0, mesh.world_size() - 1] {
            for (all, expand) in [(false, listing::Expand::Nothing), (true, listing::Expand::All)] {
                let options = listing::Options { width: 160, all, expand };
                listing::text(&program, rank, &[], "job.shard", &options);
            }
        }
        let proven = verify_set(&program.as_ref(), small_job().graph());
        if program.fullest().arena_bytes < LOADED_BYTES && mesh.world_size() < LOADED_RANKS {
            let loaded = Executor::within(World::default().together(), program, 1);
            assert!(proven.is_err() || loaded.is_ok(), "a proven program cannot be loaded: {:?}", loaded.err());
        }
    }
}

/// `payload`, packed, behind the header that fits it.
pub fn sealed(payload: &[u8]) -> Vec<u8> {
    let payload = pack(payload).expect("bytes can be packed");
    let digits = hash(&payload);
    let hash = (0..32).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hexadecimal"));
    let length = (payload.len() as u64).to_le_bytes();
    let good = small_job().plan();
    good[..12].iter().copied().chain(length).chain(hash).chain(payload).collect()
}

/// A manifest in an otherwise good plan directory is that of the plan, or refused.
pub fn manifest(bytes: &[u8]) {
    let folder = small_job().folder();
    fs::write(folder.join("manifest.json"), bytes).expect("a file can be written");
    match plan_dir::read(folder, plan_dir::Trust::Graphs).and_then(|plan| plan.check_files().map(|()| plan)) {
        Ok(plan) => {
            let written = serde_json::to_vec(&plan.manifest).expect("a manifest can be written");
            let again: plan_dir::Manifest = serde_json::from_slice(&written).expect("what was written can be read");
            assert_eq!(again, plan.manifest);
        }
        Err(shardc::error::Error::User(errors)) => told(&errors, Path::new("manifest.json"), ""),
        Err(other) => panic!("a manifest is the user's: {other:?}"),
    }
}

/// The inputs that the model of a job with such data may ask for.
fn inputs() -> Vec<InputSpec> {
    let input = |name: &str, dtype, range| InputSpec { name: name.into(), dtype, sample: vec![3], range, except: None };
    vec![input("x", DType::F32, None), input("y", DType::I64, Some((0, 10)))]
}

/// Data at `path` is described and cut into batches, or refused.
fn opened(path: &Path) {
    match Dataset::open(path, inputs(), 2, &data::Options::default()) {
        Ok(data) => {
            let batch = data.batch(data.steps_per_epoch());
            assert!(batch.iter().zip(inputs()).all(|(array, input)| array.shape[1..] == input.sample[..]));
        }
        Err(errors) => told(&errors, path, ""),
    }
    if let Err(errors) = data::describe(path, None) {
        told(&errors, path, "");
    }
}

/// An archive of arrays is read, or refused; what was read is written and read back.
pub fn npz(bytes: &[u8]) {
    let path = scratch().join("fuzzed.npz");
    fs::write(&path, bytes).expect("a file can be written");
    opened(&path);
    match read_npz(File::open(&path).expect("the file is there")) {
        Ok(arrays) if counted(&arrays) <= PRINTED => {
            let copy = scratch().join("copy.npz");
            write_npz(&copy, &arrays).expect("what was read can be written");
            let again = read_npz(File::open(&copy).expect("the file is there")).expect("what was written can be read");
            assert_eq!(again, arrays);
        }
        Ok(_) => {}
        Err(error) => told(&[error], &path, ""),
    }
}

/// Arrays are read, or refused; what was read is written and read back.
pub fn safetensors(bytes: &[u8]) {
    let path = scratch().join("fuzzed.safetensors");
    fs::write(&path, bytes).expect("a file can be written");
    opened(&path);
    match read_safetensors(bytes) {
        Ok(arrays) => {
            let written = write_safetensors(&arrays).expect("what was read can be written");
            assert_eq!(read_safetensors(&written).expect("what was written can be read"), arrays);
        }
        Err(error) => told(&[error], &path, ""),
    }
}

fn counted(arrays: &BTreeMap<String, Tensor>) -> usize {
    arrays.values().map(|array| array.bytes.len()).sum()
}
