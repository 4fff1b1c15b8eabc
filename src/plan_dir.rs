//! Plan directories: all that training, checking and exporting a job needs, with a hash for every
//! file.
//!
//! ```text
//! manifest.json        mesh, hashes, what the ranks of each program hold and send
//! train.plan           a step of training; absent where nothing is trained
//! eval.plan            the model's outputs and its loss
//! train.shir.gz        the explicit graph of each, which it is proven to carry out, as packed text
//! eval.shir.gz
//! reference.shir.gz    the graph of the same step of training on one rank
//! job.shard            the spec
//! model.onnx           the model without the elements of its weights
//! weights.safetensors  their elements; absent with `--no-weights`
//! ```
//!
//! The same model and spec give the same bytes. Nothing of a directory is believed: a program that
//! was read is proven (see [`crate::proof`]) before anything runs. The files of a plan appear under
//! their names together or not at all; what else is in the directory stays.

use crate::failure::Failure;
use crate::import::import;
use crate::proof::{Disproof, Proven, check_memory, prove};
use crate::replace::write_folder;
use crate::{Compiled, labels_are_inputs};
use serde::{Deserialize, Serialize};
use shardc_executor::data::{read_safetensors, save_safetensors};
use shardc_executor::tensor::Tensor;
use shardc_frontend::onnx::StoredCopy;
use shardc_frontend::{onnx, spec};
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::files;
use shardc_ir::graph::Graph;
use shardc_ir::listing::{NamedSizes, ProgramSummary, summary};
use shardc_ir::packed::{pack, unpack};
use shardc_ir::plan::StateVariable;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan_file::{self, hash, hash_file};
use shardc_ir::programs::{Plan, ProgramKind, Programs};
use shardc_ir::spec::Spec;
use shardc_ir::text;
use shardc_ir::train::StateInit;
use shardc_ir::types::Type;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

const MANIFEST: &str = "manifest.json";
const SPEC: &str = "job.shard";
const MODEL: &str = "model.onnx";
/// No manifest has more bytes, and files of more are read only when they are known to be right.
const LARGE: u64 = 64 << 20;
const WEIGHTS: &str = "weights.safetensors";
const FILES: [&str; 9] = [
    MANIFEST,
    TRAIN_PLAN,
    EVAL_PLAN,
    graph_file(ProgramKind::Train),
    graph_file(ProgramKind::Reference),
    graph_file(ProgramKind::Eval),
    SPEC,
    MODEL,
    WEIGHTS,
];

const TRAIN_PLAN: &str = "train.plan";
const EVAL_PLAN: &str = "eval.plan";

const fn graph_file(kind: ProgramKind) -> &'static str {
    match kind {
        ProgramKind::Train => "train.shir.gz",
        ProgramKind::Reference => "reference.shir.gz",
        ProgramKind::Eval => "eval.shir.gz",
    }
}

/// The first words of `manifest.json`; another version of the directory has another one.
const FORMAT: &str = "shardc plan directory 3";

/// The manifest of a plan directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the directory.
    pub format: String,
    /// The model's name.
    pub name: String,
    /// The number of ranks.
    pub world_size: u64,
    /// The axes of ranks.
    pub mesh: NamedSizes,
    /// The micro-batches of a step.
    pub microbatches: u64,
    /// SHA-256 of the hashes of all programs: equal for equal plans.
    pub plan_hash: String,
    /// The model that was compiled.
    pub model: Origin,
    /// The spec that it was compiled under.
    pub spec: Origin,
    /// SHA-256 of each other file of the directory, by name.
    pub files: BTreeMap<String, String>,
    /// Initializers that are views of trained ones, and are exported with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<StoredCopy>,
    /// Which rank runs which program of training (of evaluation, where nothing is trained).
    pub places: Places,
    /// The bytes that each rank holds and sends, for each program.
    pub programs: Vec<ProgramSummary>,
}

/// Which rank runs which program, by position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The axes on which programs differ; none where all ranks run one.
    pub axes: Vec<String>,
    /// The program of each place on these axes, the last fastest.
    pub programs: Vec<usize>,
}

impl Places {
    fn of(programs: &PlanSet) -> Places {
        let axes = programs.axes.iter().map(|axis| programs.mesh().name(*axis).to_string());
        Places { axes: axes.collect(), programs: programs.of.clone() }
    }
}

/// A file that a plan was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its name, without its folder.
    pub file: String,
    /// Its SHA-256.
    pub sha256: String,
}

/// A plan directory that was read; files are checked against their hashes as they are read.
#[derive(Debug)]
pub struct PlanDir {
    /// The directory.
    pub path: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
    /// The spec.
    pub spec: Spec,
    /// The programs.
    pub programs: Programs,
    /// The graph of the step of training on one rank, where the job trains.
    pub reference: Option<Graph>,
    /// Whether the model takes the labels of the loss as an input.
    pub labels_are_inputs: bool,
    /// The proof of each program.
    pub proven: Vec<Proven>,
}

/// Writes what was compiled from `model` and `spec` to the directory `to`, in place of the files of
/// an older plan directory. Without `weights` their elements are left out.
///
/// # Errors
/// If `to` holds something else, or cannot be written; what was there before is then still there.
pub fn write(to: &Path, compiled: &Compiled, model: &Path, spec: &Spec, weights: bool) -> Result<Manifest, Failure> {
    check_target(to)?;
    let model_hash = hash_file(model).map_err(|e| Failure::io(format!("cannot read `{}`", model.display()), &e))?;
    let spec_bytes = fs::read(&spec.file).map_err(|e| Failure::io(format!("cannot read `{}`", spec.file.display()), &e))?;
    let mut files: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (kind, plan) in compiled.plans.iter() {
        let file = if kind == ProgramKind::Train { TRAIN_PLAN } else { EVAL_PLAN };
        files.insert(file, plan_file::encode(&plan.programs)?);
    }
    let graphs = compiled.plans.iter().map(|(kind, plan)| (kind, &plan.graph));
    for (kind, graph) in graphs.chain(compiled.reference.iter().map(|graph| (ProgramKind::Reference, graph))) {
        let packed = pack(text::print(graph).as_bytes());
        files.insert(graph_file(kind), packed.map_err(|e| Failure::Machine(format!("cannot pack the {kind} graph: {e}")))?);
    }
    let spec_hash = hash(&spec_bytes);
    let is_weight = |s: &&StateVariable| s.role.is_of_model();
    let programs = &compiled.plans.main().programs;
    let program = programs.first();
    let states = programs.states().into_iter().map(|(_, state)| state).filter(is_weight).map(|s| s.initializer().to_string());
    let held = states.chain(compiled.copies.iter().map(|c| c.name.clone())).collect();
    files.insert(MODEL, onnx::strip_weights(model, compiled.model.clone(), &held)?);
    files.insert(SPEC, spec_bytes);
    let mut manifest = Manifest {
        format: FORMAT.to_string(),
        name: program.name.clone(),
        world_size: program.mesh.world_size(),
        mesh: NamedSizes(program.mesh.rank_axes().iter().map(|a| (a.name.clone(), a.size)).collect()),
        microbatches: program.mesh.microbatches(),
        plan_hash: String::new(),
        model: Origin { file: file_name(model), sha256: model_hash },
        spec: Origin { file: file_name(&spec.file), sha256: spec_hash },
        files: files.iter().map(|(name, bytes)| (name.to_string(), hash(bytes))).collect(),
        copies: compiled.copies.clone(),
        places: Places::of(programs),
        programs: programs.programs.iter().map(summary).collect(),
    };
    manifest.plan_hash = plan_hash(&manifest.files);
    let failed = |e: io::Error| Failure::io(format!("cannot write the plan directory `{}`", to.display()), &e);
    let fill = |folder: &Path| {
        files.iter().try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes)).map_err(failed)?;
        if weights {
            let path = folder.join(WEIGHTS);
            let types = compiled.weights.iter().map(|(name, weight)| (name.as_str(), &weight.ty)).collect();
            save_safetensors(&path, &types, |name| compiled.weights[name].load().map(Tensor::from))?;
            manifest.files.insert(WEIGHTS.to_string(), hash_file(&path).map_err(failed)?);
        }
        let json = serde_json::to_vec_pretty(&manifest);
        let json = json.map_err(|e| Failure::Machine(format!("cannot write a manifest: {e}")))?;
        fs::write(folder.join(MANIFEST), json).map_err(failed)
    };
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_missing = |path: &&Path| path.file_name().is_some() && !path.exists();
    let made: Vec<&Path> = parent.into_iter().flat_map(Path::ancestors).filter(is_missing).collect();
    let folders = parent.map_or(Ok(()), fs::create_dir_all).map_err(failed);
    let written = folders.and_then(|()| write_folder(to, &FILES, fill, failed));
    if written.is_err() {
        // Folders that cannot be removed take no room; the first error is the one to tell.
        made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
    written.map(|()| manifest)
}

/// The hash of all programs of a directory together.
fn plan_hash(hashes: &BTreeMap<String, String>) -> String {
    let programs = hashes.iter().filter(|(name, _)| name.ends_with(".plan"));
    hash(programs.map(|(name, hash)| format!("{name} {hash}\n")).collect::<String>().as_bytes())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A plan directory may be written where there is nothing, an empty folder, or an older plan
/// directory, whose other files stay.
///
/// # Errors
/// If `to` is something else, or holds a file of its own under a name of the plan's.
pub fn check_target(to: &Path) -> Result<(), Failure> {
    let refuse = |path: &Path, what: &str, help: &str| {
        let error = Diagnostic::error(format!("{what}, and will not be overwritten")).at(Place::File(path.to_path_buf()));
        Err(error.help(help).into())
    };
    let other = "choose another name for the plan directory";
    if to.file_name().is_none() {
        return refuse(to, "this names no folder of its own", other);
    }
    let metadata = match fs::symlink_metadata(to) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::io(format!("cannot write `{}`", to.display()), &error)),
    };
    if !metadata.is_dir() {
        return refuse(to, "this is there and is no folder", other);
    }
    let mut entries = fs::read_dir(to).map_err(|e| Failure::io(format!("cannot read `{}`", to.display()), &e))?;
    if entries.next().is_none() {
        return Ok(());
    }
    let Ok(manifest) = read_manifest(to) else { return refuse(to, "this folder is no plan directory", other) };
    let is_of_plan = |path: &Path| path.is_file() && (path.ends_with(MANIFEST) || manifest.files.contains_key(&file_name(path)));
    match own_files(to).iter().find(|path| fs::symlink_metadata(path).is_ok() && !is_of_plan(path)) {
        Some(path) => refuse(path, "this is no file of the plan directory", "move it away, or choose another name for the plan"),
        None => Ok(()),
    }
}

/// The files that a plan directory at `path` may have of its own.
pub fn own_files(path: &Path) -> Vec<PathBuf> {
    FILES.iter().map(|name| path.join(name)).collect()
}

/// The model without its weights in the plan directory at `path`.
pub fn model_path(path: &Path) -> PathBuf {
    path.join(MODEL)
}

/// Reads the plan directory at `path`: its manifest, its spec and its programs, and proves them.
///
/// # Errors
/// If it is no plan directory, any of these is missing or damaged, or a program is wrong.
pub fn read(path: &Path) -> Result<PlanDir, Failure> {
    let manifest = read_manifest(path)?;
    let program = |name: &str| -> Result<PlanSet, Failure> {
        let bytes = checked(path, &manifest, name)?;
        Ok(plan_file::decode(&bytes).map_err(|d| d.at(Place::File(path.join(name))))?)
    };
    let reference = graph_file(ProgramKind::Reference);
    let trains = [TRAIN_PLAN, reference].iter().any(|name| manifest.files.contains_key(*name));
    let programs = |kind| program(if kind == ProgramKind::Train { TRAIN_PLAN } else { EVAL_PLAN });
    let programs = Programs::try_new(trains, programs)?;
    let all = || programs.iter().flat_map(|(_, set)| &set.programs);
    let constants = all().flat_map(|program| &program.constants).map(|constant| constant.bytes.len() as u64);
    let beside = constants.sum::<u64>() + fs::metadata(path.join(MODEL)).map_or(0, |model| model.len());
    let graph = |name: &str| -> Result<Graph, Failure> {
        let text = unpack(&checked(path, &manifest, name)?).map_err(|why| damaged(path, &format!("`{name}`: {why}")))?;
        let text = String::from_utf8(text).map_err(|_| damaged(path, &format!("`{name}` is not UTF-8")))?;
        text::parse_beside(&text, beside).map_err(|error| damaged(path, &format!("`{name}`, {error}")))
    };
    let plans = programs.try_map(|kind, programs| Ok::<_, Failure>(Plan { programs, graph: graph(graph_file(kind))? }))?;
    let reference = if trains { Some(graph(reference)?) } else { None };
    let spec = spec_of(path, &manifest)?;
    let proven = prove(&plans, reference.as_ref(), &spec).map_err(|disproof| counter_example(path, &spec, &disproof))?;
    check_memory(&plans, &spec)?;
    check_manifest(path, &manifest, &plans.main().programs)?;
    check_copies(path, &manifest, &spec, trains)?;
    let labels_are_inputs = labels_are_inputs(&plans.eval.graph, &spec);
    let programs = plans.map(|plan| plan.programs);
    Ok(PlanDir { path: path.to_path_buf(), manifest, spec, programs, reference, labels_are_inputs, proven })
}

/// Refuses a manifest that says of ranks what their programs do not do.
fn check_manifest(path: &Path, manifest: &Manifest, programs: &PlanSet) -> Result<(), Failure> {
    let program = programs.first();
    let summaries: Vec<ProgramSummary> = programs.programs.iter().map(summary).collect();
    if manifest.programs != summaries || manifest.places != Places::of(programs) {
        return Err(damaged(path, &format!("`{MANIFEST}` says of ranks what their program does not do")));
    }
    let whole = (manifest.world_size, manifest.microbatches);
    let expected = (program.mesh.world_size(), program.mesh.microbatches());
    let axes = program.mesh.rank_axes().iter().map(|axis| (axis.name.clone(), axis.size));
    let same = (&manifest.name, &manifest.mesh) == (&program.name, &NamedSizes(axes.collect()));
    if same && whole == expected && manifest.plan_hash == plan_hash(&manifest.files) {
        return Ok(());
    }
    Err(damaged(path, &format!("`{MANIFEST}` is of another plan")))
}

/// The copies that exports write are those that the directory's model has under its spec.
fn check_copies(path: &Path, manifest: &Manifest, spec: &Spec, trains: bool) -> Result<(), Failure> {
    checked(path, manifest, MODEL)?;
    let imported = import(&model_path(path), &spec.of_plan(), trains, false)?;
    match imported.copies == manifest.copies {
        true => Ok(()),
        false => Err(damaged(path, &format!("`{MANIFEST}` says of copies of initializers what `{MODEL}` does not"))),
    }
}

/// A counter-example, at the line of the spec that asked for what goes wrong.
fn counter_example(path: &Path, spec: &Spec, Disproof { kind, violation }: &Disproof) -> Diagnostic {
    let error = Diagnostic::error(format!("this plan directory is wrong: the {kind} plan: {violation}"));
    let span = violation.spec_line.and_then(|line| line_span(&spec.file, line));
    error.help("compile the job again").at(match span {
        Some(span) => Place::Text { file: spec.file.clone(), span },
        None => Place::File(path.to_path_buf()),
    })
}

/// The bytes of a line of a text, from 1.
fn line_span(file: &Path, line: u32) -> Option<(usize, usize)> {
    let text = fs::read_to_string(file).ok()?;
    let mut start = 0;
    for (number, content) in (1..).zip(text.split_inclusive('\n')) {
        if number == line {
            return Some((start, start + content.trim_end().len()));
        }
        start += content.len();
    }
    None
}

fn spec_of(path: &Path, manifest: &Manifest) -> Result<Spec, Failure> {
    let bytes = checked(path, manifest, SPEC)?;
    let text = String::from_utf8(bytes).map_err(|_| damaged(path, "its spec is not UTF-8"))?;
    Ok(spec::parse(&path.join(SPEC), &text)?)
}

fn read_manifest(path: &Path) -> Result<Manifest, Failure> {
    let bytes = || {
        let file = inside(path, MANIFEST)?;
        let too_large = || io::Error::new(ErrorKind::InvalidData, "it is larger than any manifest");
        if fs::metadata(&file)?.len() > LARGE { Err(too_large()) } else { files::read(&file) }
    };
    let bytes = bytes().map_err(|error| {
        let what = if path.is_dir() { "this is no plan directory" } else { "there is no plan directory here" };
        Diagnostic::error(format!("{what}: cannot read `{MANIFEST}`: {error}"))
            .at(Place::File(path.to_path_buf()))
            .help("plan directories are written by `shardc compile MODEL.onnx --spec JOB.shard -o PLAN/`")
    })?;
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| damaged(path, &format!("`{MANIFEST}`: {e}")))?;
    if manifest.format != FORMAT {
        let message = format!("this plan directory is of format `{}`, this program reads `{FORMAT}`", manifest.format);
        return Err(Diagnostic::error(message).at(Place::File(path.to_path_buf())).help("compile the job again").into());
    }
    Ok(manifest)
}

/// The bytes of a file of the directory, which have the hash that the manifest says. A large one
/// that has not is not held.
fn checked(path: &Path, manifest: &Manifest, name: &str) -> Result<Vec<u8>, Failure> {
    let expected = manifest.files.get(name).ok_or_else(|| damaged(path, &format!("its manifest names no `{name}`")))?;
    let bytes = || {
        let file = inside(path, name)?;
        let is_right = fs::metadata(&file)?.len() <= LARGE || hash_file(&file)? == *expected;
        if is_right { files::read(&file).map(Some) } else { Ok(None) }
    };
    let bytes = bytes().map_err(|e| damaged(path, &format!("cannot read `{name}`: {e}")))?;
    let wrong = || damaged(path, &format!("`{name}` is not what its manifest says"));
    bytes.filter(|bytes| hash(bytes) == *expected).ok_or_else(wrong)
}

/// A file of the directory itself: no path leads elsewhere, and no link.
fn inside(path: &Path, name: &str) -> io::Result<PathBuf> {
    let refuse = |why: &str| Err(io::Error::new(ErrorKind::InvalidInput, why));
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) || name.ends_with('/') {
        return refuse("it is not the name of a file in the directory");
    }
    let file = path.join(name);
    match fs::symlink_metadata(&file)?.is_file() {
        true => Ok(file),
        false => refuse("it is not a file"),
    }
}

fn damaged(path: &Path, what: &str) -> Failure {
    let error = Diagnostic::error(format!("this plan directory is damaged: {what}"));
    error.at(Place::File(path.to_path_buf())).help("compile the job again").into()
}

impl PlanDir {
    /// The initial elements of the state variables that have them from the model; none if it was
    /// compiled without.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn weights(&self) -> Result<BTreeMap<String, Tensor>, Failure> {
        if !self.manifest.files.contains_key(WEIGHTS) {
            return Ok(BTreeMap::new());
        }
        let bytes = checked(&self.path, &self.manifest, WEIGHTS)?;
        let weights = read_safetensors(&bytes).map_err(|d| d.at(Place::File(self.path.join(WEIGHTS))))?;
        match self.misfit(&weights) {
            Some(why) => Err(damaged(&self.path, &format!("`{WEIGHTS}` {why}"))),
            None => Ok(weights),
        }
    }

    /// The first difference, in words, between `weights` and the initial values that the plan's
    /// state variables need. A state variable whose first values the spec makes has no weights.
    fn misfit(&self, weights: &BTreeMap<String, Tensor>) -> Option<String> {
        let programs = [self.programs.main(), &self.programs.eval];
        let states = programs.into_iter().flat_map(PlanSet::states);
        let mut wanted = BTreeMap::new();
        for (program, state) in states.filter(|(_, state)| state.role.is_of_model() && state.init == StateInit::Model) {
            let buffer = &program.buffers[state.buffer.index()];
            let shape = state.block.as_ref().map_or_else(|| buffer.shape.clone(), |block| block.whole_shape(&buffer.shape));
            wanted.insert(state.initializer(), Type::new(buffer.dtype, shape));
        }
        let differs = |(name, ty): (&&str, &Type)| match weights.get(*name) {
            None => Some(format!("has no `{name}`")),
            Some(held) if held.dtype != ty.dtype || held.shape != ty.shape => {
                Some(format!("has `{name}` as {}, not {ty}", Type::new(held.dtype, held.shape.clone())))
            }
            Some(_) => None,
        };
        let stray = || weights.keys().find(|name| !wanted.contains_key(name.as_str()));
        wanted.iter().find_map(differs).or_else(|| Some(format!("has `{}`, which the plan does not know", stray()?)))
    }

    /// Whether every file of the directory is what the manifest says, and the weights are those of
    /// the plan.
    ///
    /// # Errors
    /// The first that is missing or damaged.
    pub fn check_files(&self) -> Result<(), Failure> {
        self.manifest.files.keys().try_for_each(|name| checked(&self.path, &self.manifest, name).map(drop))?;
        self.weights().map(drop)
    }

    /// The bytes of the model without its weights.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn model(&self) -> Result<Vec<u8>, Failure> {
        checked(&self.path, &self.manifest, MODEL)
    }
}
