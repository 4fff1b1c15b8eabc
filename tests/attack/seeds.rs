//! Good inputs of each target: small files of the repository, and a small job that is compiled
//! here.

use super::Target;
use prost::Message;
use shardc::{Compiled, Options, compile, plan_dir};
use shardc_executor::data::{npz_bytes, write_safetensors};
use shardc_executor::tensor::Tensor;
use shardc_frontend::spec;
use shardc_ir::graph::Graph;
use shardc_ir::packed::unpack;
use shardc_ir::plan_file::encode;
use shardc_ir::text;
use shardc_testkit::onnx::cases::{self, prepare};
use shardc_testkit::onnx::{floats, graph, initializer, input, int, int_list, ints, model, node, output, weight};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

/// The samples of a batch.
pub const BATCH: usize = 4;
/// Files that are larger are no seeds.
const LARGEST: u64 = 10 << 10;
/// The bytes before the payload of a plan file.
pub const PLAN_HEADER: usize = 8 + 4 + 8 + 32;

/// The seeds of a target.
pub fn of(target: Target) -> Vec<Vec<u8>> {
    match target {
        Target::Onnx => models(),
        Target::Spec => specs(),
        Target::Shir => graphs(),
        Target::Plan => small_job().plans.clone(),
        Target::Manifest => vec![small_job().manifest.clone()],
        Target::Npz => arrays().iter().map(|arrays| npz_bytes(arrays).expect("arrays can be written")).collect(),
        Target::Safetensors => arrays().iter().map(|arrays| write_safetensors(arrays).expect("arrays can be written")).collect(),
    }
}

/// A folder that only this process uses, in memory where the system has such files.
pub fn scratch() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = base.join(format!("shardc-attack-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder can be made");
        path
    })
}

/// Removes that folder; nothing is attacked afterwards.
pub fn clear_away() {
    fs::remove_dir_all(scratch()).expect("the folder can be removed");
}

/// A job of one layer over two ranks, compiled.
pub struct SmallJob {
    compiled: Compiled,
    folder: PathBuf,
    plans: Vec<Vec<u8>>,
    manifest: Vec<u8>,
}

impl SmallJob {
    /// Its plan directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The plan file of training.
    pub fn plan(&self) -> &[u8] {
        &self.plans[0]
    }

    /// The graph of training.
    pub fn graph(&self) -> &Graph {
        &self.compiled.plans.training.as_ref().expect("it trains").graph
    }

    /// The program of training, and the graph of its reference.
    pub fn training(&self) -> (&shardc_ir::plan::Program, &Graph) {
        let training = self.compiled.plans.training.as_ref().expect("it trains");
        (training.programs.first(), self.compiled.reference.as_ref().expect("it trains"))
    }
}

/// The job that plans, graphs and manifests are of.
pub fn small_job() -> &'static SmallJob {
    static JOB: OnceLock<SmallJob> = OnceLock::new();
    JOB.get_or_init(|| {
        let (model, spec) = (scratch().join("small.onnx"), scratch().join("small.shard"));
        fs::write(&model, layer().encode_to_vec()).expect("a file can be written");
        let lines = "mesh dp=2\nbatch 4 microbatches=2\ndata axis=dp\nloss mse prediction=y labels=t\n\
                     optimizer adamw lr=0.1\nschedule cosine warmup=2 steps=10\nclip norm=1\n";
        fs::write(&spec, lines).expect("a file can be written");
        let spec = spec::load(&spec).unwrap_or_else(|errors| panic!("{errors:?}"));
        let compiled = compile(&model, &spec, &Options::default()).unwrap_or_else(|errors| panic!("{errors:?}"));
        let folder = scratch().join("plan");
        plan_dir::write(&folder, &compiled, &model, &spec, true).unwrap_or_else(|failure| panic!("{failure:?}"));
        let manifest = fs::read(folder.join("manifest.json")).expect("a manifest");
        let programs = compiled.plans.iter().map(|(_, plan)| encode(&plan.programs).expect("a program can be written"));
        let plans = programs.flat_map(|file| [file.clone(), unpack(&file[PLAN_HEADER..]).expect("it is packed")]).collect();
        SmallJob { folder, manifest, plans, compiled }
    })
}

/// `y = relu(x w + b)`.
pub fn layer() -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 2], 1));
    initializer(&mut m, floats("b", &[2], &[0.5, -0.5]));
    node(&mut m, "MatMul", "x w", "p", vec![]);
    node(&mut m, "Add", "p b", "s", vec![]);
    node(&mut m, "Relu", "s", "y", vec![]);
    output(&mut m, "y");
    m
}

/// One of each op, small real exports, and what only files written by hand have.
fn models() -> Vec<Vec<u8>> {
    let cases = cases::all();
    let made = cases.iter().flat_map(|case| [prepare(case, false).0, prepare(case, true).0]);
    let made = made.chain([layer(), with_function(), with_branches(), with_external_data(), block()]);
    let mut all: Vec<Vec<u8>> = made.map(|model| model.encode_to_vec()).collect();
    for folder in ["tests/recorded", "tests/models"] {
        all.extend(files(&Path::new(crate::ROOT).join(folder), "onnx"));
    }
    all
}

/// The layer, written as a call of a function.
fn with_function() -> pb::ModelProto {
    let mut m = layer();
    let nodes = std::mem::take(&mut graph(&mut m).node);
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    m.functions.push(pb::FunctionProto {
        name: Some("layer".into()),
        domain: Some("local".into()),
        input: names(&["x", "w", "b"]),
        output: names(&["y"]),
        node: nodes,
        opset_import: m.opset_import.clone(),
        ..Default::default()
    });
    m.opset_import.push(pb::OperatorSetIdProto { domain: "local".into(), version: 1 });
    node(&mut m, "layer", "x w b", "y", vec![]);
    graph(&mut m).node[0].domain = "local".into();
    m
}

/// The layer with an `If` behind it, whose condition follows from a shape.
fn with_branches() -> pb::ModelProto {
    let branch = |op: &str| {
        let mut inner = model(20);
        node(&mut inner, op, "y", "taken", vec![]);
        output(&mut inner, "taken");
        let name = if op == "Relu" { "then_branch" } else { "else_branch" };
        pb::AttributeProto { name: name.into(), r#type: AttributeType::Graph as i32, g: inner.graph, ..Default::default() }
    };
    let mut m = layer();
    graph(&mut m).output.clear();
    initializer(&mut m, ints("two", &[], &[2]));
    initializer(&mut m, ints("last", &[], &[1]));
    node(&mut m, "Shape", "y", "shape", vec![]);
    node(&mut m, "Gather", "shape last", "size", vec![int("axis", 0)]);
    node(&mut m, "Equal", "size two", "same", vec![]);
    node(&mut m, "If", "same", "z", vec![branch("Relu"), branch("Exp")]);
    output(&mut m, "z");
    m
}

/// The layer with its weight in a file that is not there.
fn with_external_data() -> pb::ModelProto {
    let mut m = layer();
    let entry = |key: &str, value: &str| pb::StringStringEntryProto { key: key.into(), value: value.into() };
    let weight = &mut graph(&mut m).initializer[0];
    weight.raw_data.clear();
    weight.data_location = Some(1);
    weight.external_data = vec![entry("location", "weights.data"), entry("offset", "0"), entry("length", "24")];
    m
}

/// A block of a transformer: gather, norm, attention with shapes that follow from the input's, and
/// a residual connection.
fn block() -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "ids", DataType::Int64, &[-1, 4]);
    for (name, sizes) in [("table", &[7, 4][..]), ("q.weight", &[4, 4]), ("k.weight", &[4, 4]), ("v.weight", &[4, 4])] {
        initializer(&mut m, weight(name, sizes, sizes[0] as u64));
    }
    initializer(&mut m, weight("norm.weight", &[4], 9));
    initializer(&mut m, ints("heads", &[4], &[0, 0, 2, 2]));
    initializer(&mut m, ints("joined", &[3], &[0, 0, -1]));
    node(&mut m, "Gather", "table ids", "e", vec![int("axis", 0)]);
    node(&mut m, "LayerNormalization", "e norm.weight", "n", vec![int("axis", -1)]);
    for part in ["q", "k", "v"] {
        node(&mut m, "MatMul", &format!("n {part}.weight"), &format!("{part}0"), vec![]);
        node(&mut m, "Reshape", &format!("{part}0 heads"), &format!("{part}1"), vec![]);
        let turned = if part == "k" { vec![0, 2, 3, 1] } else { vec![0, 2, 1, 3] };
        node(&mut m, "Transpose", &format!("{part}1"), part, vec![int_list("perm", turned)]);
    }
    node(&mut m, "MatMul", "q k", "scores", vec![]);
    node(&mut m, "Softmax", "scores", "weights", vec![int("axis", -1)]);
    node(&mut m, "MatMul", "weights v", "mixed", vec![]);
    node(&mut m, "Transpose", "mixed", "turned", vec![int_list("perm", vec![0, 2, 1, 3])]);
    node(&mut m, "Reshape", "turned joined", "back", vec![]);
    node(&mut m, "Add", "back e", "y", vec![]);
    output(&mut m, "y");
    m
}

/// The specs of the examples, and each example of the page about them.
fn specs() -> Vec<Vec<u8>> {
    let page = fs::read_to_string(Path::new(crate::ROOT).join("docs/spec.md")).expect("the page is there");
    let examples = page.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').map_or("", |(_, text)| text));
    let mut all: Vec<Vec<u8>> = examples.map(|text| text.as_bytes().to_vec()).collect();
    all.extend(files(&Path::new(crate::ROOT).join("examples"), "shard"));
    all
}

/// The graphs of the cases of passes, and those of the small job.
fn graphs() -> Vec<Vec<u8>> {
    let cases = files(&Path::new(crate::ROOT).join("tests/cases"), "shir");
    let parts = cases.iter().flat_map(|case| std::str::from_utf8(case).expect("a case is text").split("----\n"));
    let mut all: Vec<String> = parts.filter(|part| text::parse(part).is_ok()).map(str::to_string).collect();
    all.extend(small_job().compiled.plans.iter().map(|(_, plan)| text::print(&plan.graph)));
    all.into_iter().map(String::into_bytes).collect()
}

/// Arrays as data has them.
fn arrays() -> Vec<BTreeMap<String, Tensor>> {
    let numbers = Tensor::from_f32(&[5, 3], &[0.5; 15]);
    let classes = Tensor::from_i64(&[5, 3], &[1; 15]);
    let truth = Tensor { dtype: shardc_ir::dtype::DType::Bool, shape: vec![5, 3], bytes: vec![1; 15] };
    let scalar = Tensor::from_f32(&[], &[1.0]);
    let named = |list: &[(&str, &Tensor)]| list.iter().map(|(name, array)| (name.to_string(), (*array).clone())).collect();
    vec![
        named(&[("x", &numbers), ("y", &classes)]),
        named(&[("x", &truth), ("y", &truth)]),
        named(&[("x", &numbers), ("y", &classes), ("z", &scalar)]),
    ]
}

/// The small files below `folder` whose names end in `ending`, in the order of their paths.
fn files(folder: &Path, ending: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder of the repository").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = entries.collect();
    paths.sort();
    let mut found = vec![];
    for path in paths {
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) && fs::metadata(&path).is_ok_and(|m| m.len() <= LARGEST) {
            found.push(fs::read(&path).expect("a file of the repository"));
        }
    }
    found
}
