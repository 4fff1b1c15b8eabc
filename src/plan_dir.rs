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
//! The same model and spec give the same bytes. Nothing of a directory is believed but the values
//! of its weights: its graphs are derived from its model and spec again, and a program that was
//! read is proven (see [`crate::proof`]) before anything runs. What the manifest says of the
//! certificate and of the model with its weights can be held against nothing. The files of a plan
//! appear under their names together or not at all; what else is in the directory stays.
//!
//! ```no_run
//! use shardc::plan_dir::{Trust, read};
//!
//! let plan = read("plan".as_ref(), Trust::Nothing)?;
//! println!("{} ranks, made from {}", plan.manifest.world_size, plan.manifest.model.file);
//! # Ok::<_, shardc::Error>(())
//! ```

mod read;
#[cfg(feature = "onnx")]
mod write;

pub use read::{Trust, read};
#[cfg(feature = "onnx")]
pub use write::{check_target, write};

use crate::EvaluationFacts;
use crate::certificate::Certificate;
use crate::error::Error;
use crate::proof::Proven;
use serde::{Deserialize, Serialize};
use shardc_executor::data::{read_safetensors, safetensors_types};
use shardc_executor::tensor::Tensor;
use shardc_frontend::initializers::StoredCopy;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::files;
use shardc_ir::graph::Graph;
use shardc_ir::listing::{NamedSizes, ProgramSummary};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan_file::{hash, hash_file};
use shardc_ir::programs::{ProgramKind, Programs};
use shardc_ir::spec::Spec;
use shardc_ir::train::StateInit;
use shardc_ir::types::{Type, checked_elements};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

const MANIFEST: &str = "manifest.json";
/// The spec's name in a plan directory.
pub const SPEC: &str = "job.shard";
/// The model's name in a plan directory.
pub const MODEL: &str = "model.onnx";
/// No manifest and no spec has more bytes, and of files of more the hash is taken before they are
/// held.
const LARGE: u64 = 64 << 20;
/// No other file has more bytes, but for weights, which have as many as the plan says.
const MOST: u64 = 2 << 30;
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

/// The first words of `manifest.json`, and the version of the directory.
const FORMAT: (&str, u32) = ("shardc plan directory", 4);

/// What the manifest of every version has.
#[derive(Debug, Deserialize)]
struct Head {
    format: String,
    #[cfg_attr(not(feature = "onnx"), expect(dead_code, reason = "who writes none needs to know no old ones"))]
    files: BTreeMap<String, String>,
}

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
    /// The model that was compiled, with its weights; nothing in the directory shows that it was.
    pub model: Origin,
    /// The spec that it was compiled under, which the directory has.
    pub spec: Origin,
    /// What was found of the graphs when the job was compiled, if it was asked; nothing in the
    /// directory shows that it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
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
    /// What the graph of evaluation says.
    pub facts: EvaluationFacts,
    /// The proof of each program.
    pub proven: Vec<Proven>,
}

/// The hash of all programs of a directory together.
fn plan_hash(hashes: &BTreeMap<String, String>) -> String {
    let programs = hashes.iter().filter(|(name, _)| name.ends_with(".plan"));
    hash(programs.map(|(name, hash)| format!("{name} {hash}\n")).collect::<String>().as_bytes())
}

/// The files that a plan directory at `path` may have of its own.
pub fn own_files(path: &Path) -> Vec<PathBuf> {
    FILES.iter().map(|name| path.join(name)).collect()
}

/// The model and the spec that the plan at `path` was compiled from, wherever they are; none where
/// it cannot be read.
pub fn origins(path: &Path) -> Vec<Origin> {
    read_manifest(path).map_or(vec![], |manifest| vec![manifest.model, manifest.spec])
}

/// The model without its weights in the plan directory at `path`.
pub fn model_path(path: &Path) -> PathBuf {
    path.join(MODEL)
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let bytes = manifest_bytes(path)?;
    let Head { format, .. } = head(path, &bytes)?;
    if format != format_text() {
        let message = format!("this plan directory is of format `{format}`, this program reads `{}`", format_text());
        return Err(Diagnostic::error(message).at(Place::File(path.to_path_buf())).help("compile the job again").into());
    }
    serde_json::from_slice(&bytes).map_err(|e| damaged(path, &format!("`{MANIFEST}`: {e}")))
}

/// What this program writes into [`Manifest::format`].
fn format_text() -> String {
    let (words, version) = FORMAT;
    format!("{words} {version}")
}

fn head(path: &Path, manifest: &[u8]) -> Result<Head, Error> {
    serde_json::from_slice(manifest).map_err(|e| damaged(path, &format!("`{MANIFEST}`: {e}")))
}

fn manifest_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let bytes = || {
        let file = inside(path, MANIFEST)?;
        let too_large = || io::Error::new(ErrorKind::InvalidData, "it is larger than any manifest");
        if fs::metadata(&file)?.len() > LARGE { Err(too_large()) } else { files::read(&file) }
    };
    bytes().map_err(|error| {
        let what = if path.is_file() {
            "this is a file, and no plan directory".into()
        } else {
            let where_it_is = if path.is_dir() { "this is no plan directory" } else { "there is no plan directory here" };
            format!("{where_it_is}: cannot read `{MANIFEST}`: {error}")
        };
        let error = Diagnostic::error(what).at(Place::File(path.to_path_buf()));
        error.help("plan directories are written by `shardc compile MODEL.onnx --spec JOB.shard -o PLAN/`").into()
    })
}

/// The bytes of a file of the directory, which have the hash that the manifest says. A large one
/// that has not is not held.
fn checked(path: &Path, manifest: &Manifest, name: &str) -> Result<Vec<u8>, Error> {
    let expected = manifest.files.get(name).ok_or_else(|| damaged(path, &format!("its manifest names no `{name}`")))?;
    let bytes = || {
        let file = of_most(path, name, most(name))?;
        let is_right = fs::metadata(&file)?.len() <= LARGE || hash_file(&file)? == *expected;
        if is_right { files::read(&file).map(Some) } else { Ok(None) }
    };
    let bytes = bytes().map_err(|e| unreadable(path, name, &e))?;
    bytes.filter(|bytes| hash(bytes) == *expected).ok_or_else(|| changed(path, name))
}

fn unreadable(path: &Path, name: &str, error: &io::Error) -> Error {
    damaged(path, &format!("cannot read `{name}`: {error}"))
}

fn changed(path: &Path, name: &str) -> Error {
    damaged(path, &format!("`{name}` is not what its manifest says"))
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

/// The bytes that a file of that name has at most.
fn most(name: &str) -> u64 {
    if name == SPEC { LARGE } else { MOST }
}

/// A file of the directory that has `most` bytes at most; one that is larger is not read, however
/// little room it takes on its disk.
fn of_most(path: &Path, name: &str, most: u64) -> io::Result<PathBuf> {
    let file = inside(path, name)?;
    let bytes = fs::metadata(&file)?.len();
    match bytes <= most {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidData, format!("it has {bytes} bytes, more than {most}"))),
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    let error = Diagnostic::error(format!("this plan directory is damaged: {what}"));
    error.at(Place::File(path.to_path_buf())).help("compile the job again").into()
}

impl PlanDir {
    /// The initial elements of the state variables that have them from the model; none if it was
    /// compiled without.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn weights(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        if !self.manifest.files.contains_key(WEIGHTS) {
            return Ok(BTreeMap::new());
        }
        let file = self.weights_file().map_err(|e| unreadable(&self.path, WEIGHTS, &e))?;
        let bytes = files::read(&file).map_err(|e| unreadable(&self.path, WEIGHTS, &e))?;
        if self.manifest.files[WEIGHTS] != hash(&bytes) {
            return Err(changed(&self.path, WEIGHTS));
        }
        let weights = read_safetensors(&bytes).map_err(|d| d.at(Place::File(file)))?;
        self.fits(&weights.iter().map(|(name, held)| (name.clone(), Type::new(held.dtype, held.shape.clone()))).collect())?;
        Ok(weights)
    }

    /// The file of the weights, which is not larger than those of the plan can be.
    fn weights_file(&self) -> io::Result<PathBuf> {
        let bytes = |ty: &Type| checked_elements(&ty.shape).unwrap_or(0).saturating_mul(ty.dtype.bytes());
        // Their names take room too.
        of_most(&self.path, WEIGHTS, self.wanted().values().map(bytes).fold(LARGE, u64::saturating_add))
    }

    /// Whether weights of the types `held` are those that the plan begins with.
    fn fits(&self, held: &BTreeMap<String, Type>) -> Result<(), Error> {
        let wanted = self.wanted();
        let differs = |(name, ty): (&&str, &Type)| match held.get(*name) {
            None => Some(format!("has no `{name}`")),
            Some(held) if held != ty => Some(format!("has `{name}` as {held}, not {ty}")),
            Some(_) => None,
        };
        let stray = || held.keys().find(|name| !wanted.contains_key(name.as_str()));
        let why = wanted.iter().find_map(differs).or_else(|| Some(format!("has `{}`, which the plan does not know", stray()?)));
        why.map_or(Ok(()), |why| Err(damaged(&self.path, &format!("`{WEIGHTS}` {why}"))))
    }

    /// The initializers that the plan's state variables begin as. A state variable whose first
    /// values the spec makes has none.
    fn wanted(&self) -> BTreeMap<&str, Type> {
        let programs = [self.programs.main(), &self.programs.eval];
        let states = programs.into_iter().flat_map(PlanSet::states);
        let mut wanted = BTreeMap::new();
        for (program, state) in states.filter(|(_, state)| state.role.is_of_model() && state.init == StateInit::Model) {
            let buffer = &program.buffers[state.buffer.index()];
            let shape = state.block.as_ref().map_or_else(|| buffer.shape.clone(), |block| block.whole_shape(&buffer.shape));
            wanted.insert(state.initializer(), Type::new(buffer.dtype, shape));
        }
        wanted
    }

    /// Whether every file of the directory is what the manifest says, and the weights are those of
    /// the plan.
    ///
    /// # Errors
    /// The first that is missing or damaged.
    pub fn check_files(&self) -> Result<(), Error> {
        for (name, expected) in &self.manifest.files {
            let file = if name == WEIGHTS { self.weights_file() } else { of_most(&self.path, name, most(name)) };
            let found = file.and_then(|file| hash_file(&file));
            if found.map_err(|e| unreadable(&self.path, name, &e))? != *expected {
                return Err(changed(&self.path, name));
            }
        }
        if !self.manifest.files.contains_key(WEIGHTS) {
            return Ok(());
        }
        let file = self.path.join(WEIGHTS);
        self.fits(&safetensors_types(&file).map_err(|d| d.at(Place::File(file)))?)
    }

    /// The bytes of the model without its weights.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn model(&self) -> Result<Vec<u8>, Error> {
        checked(&self.path, &self.manifest, MODEL)
    }
}
