//! Plan directories read: every file against its hash, every graph against the model and spec that
//! it is of, every program against its graph.

use super::{
    EVAL_PLAN, MANIFEST, MODEL, Manifest, Places, PlanDir, SPEC, TRAIN_PLAN, checked, damaged, graph_file, model_path, plan_hash,
    read_manifest,
};
use crate::EvaluationFacts;
use crate::error::Error;
#[cfg(feature = "onnx")]
use crate::import::import;
use crate::proof::{Disproof, check_memory, prove};
#[cfg(feature = "onnx")]
use crate::{Graphs, Options, derive};
use shardc_frontend::initializers::StoredCopy;
use shardc_frontend::spec;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::graph::Graph;
use shardc_ir::listing::{NamedSizes, ProgramSummary, summary};
use shardc_ir::ops::Op;
use shardc_ir::packed::unpack;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan_file;
use shardc_ir::programs::{Plan, ProgramKind, Programs};
use shardc_ir::spec::Spec;
use shardc_ir::text::{self, Elsewhere, FILLED};
use std::fs;
use std::path::Path;

/// A line of a graph is shown up to so many characters.
const MOST_SHOWN: usize = 120;

/// A graph that is not the one expected is read all the same, if it is not longer than twice that
/// and so many bytes: what is wrong with it may say more.
const SLACK: usize = 1 << 16;

/// What is believed of a plan directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Nothing: its model is compiled under its spec again, and gives its graphs byte by byte.
    #[cfg(feature = "onnx")]
    Nothing,
    /// Its graphs; without the feature `onnx` also which initializers are copies of others.
    Graphs,
}

/// Reads the plan directory at `path`: its manifest, its spec and its programs, and proves them.
///
/// # Errors
/// If it is no plan directory, any of these is missing or damaged, a program is wrong, or a graph
/// is not that of the directory's model and spec, unless that is believed.
pub fn read(path: &Path, trust: Trust) -> Result<PlanDir, Error> {
    let manifest = read_manifest(path)?;
    let program = |name: &str| -> Result<PlanSet, Error> {
        let bytes = checked(path, &manifest, name)?;
        Ok(plan_file::decode(&bytes).map_err(|d| d.at(Place::File(path.join(name))))?)
    };
    let trains = [TRAIN_PLAN, graph_file(ProgramKind::Reference)].iter().any(|name| manifest.files.contains_key(*name));
    let programs = Programs::try_new(trains, |kind| program(if kind == ProgramKind::Train { TRAIN_PLAN } else { EVAL_PLAN }))?;
    let spec = spec_of(path, &manifest)?;
    checked(path, &manifest, MODEL)?;
    let beside = Beside::of(path, &programs);
    let derived = match trust {
        #[cfg(feature = "onnx")]
        Trust::Nothing => Some(Derived::new(path, &spec, trains, &beside.elsewhere)?),
        Trust::Graphs => None::<Derived>,
    };
    let mut others = vec![];
    let mut graph = |kind: ProgramKind| -> Result<Graph, Error> {
        let (name, text) = (graph_file(kind), graph_text(path, &manifest, kind)?);
        match derived.as_ref().map(|derived| derived.graph(kind)) {
            Some((graph, own)) if text == *own => Ok(graph.clone()),
            // Whatever else it is, it is not that graph.
            Some((_, own)) if text.len() > 2 * own.len() + SLACK => Err(other_graph(path, kind, &text, own)),
            Some((graph, own)) => {
                others.push(other_graph(path, kind, &text, own));
                parsed(path, name, &text, constants(graph), &beside.elsewhere)
            }
            None => parsed(path, name, &text, beside.filled, &beside.elsewhere),
        }
    };
    let plans = programs.try_map(|kind, programs| Ok::<_, Error>(Plan { programs, graph: graph(kind)? }))?;
    let reference = if trains { Some(graph(ProgramKind::Reference)?) } else { None };
    let proven = prove(&plans, reference.as_ref(), &spec).map_err(|disproof| counter_example(path, &spec, &disproof))?;
    if let Some(other) = others.into_iter().next() {
        return Err(other);
    }
    check_memory(&plans, &spec)?;
    check_manifest(path, &manifest, &plans.main().programs)?;
    let copies = match derived {
        Some(derived) => derived.copies,
        #[cfg(feature = "onnx")]
        None => import(&model_path(path), &spec.of_plan(), trains, false)?.copies,
        #[cfg(not(feature = "onnx"))]
        None => manifest.copies.clone(),
    };
    if copies != manifest.copies {
        return Err(damaged(path, &format!("`{MANIFEST}` says of copies of initializers what `{MODEL}` does not")));
    }
    let facts = EvaluationFacts::of(&plans.eval.graph, &spec);
    let programs = plans.map(|plan| plan.programs);
    Ok(PlanDir { path: path.to_path_buf(), manifest, spec, programs, reference, facts, proven })
}

/// What the directory's model gives under its spec.
struct Derived {
    programs: Programs<(Graph, String)>,
    reference: Option<(Graph, String)>,
    copies: Vec<StoredCopy>,
}

impl Derived {
    #[cfg(feature = "onnx")]
    fn new(path: &Path, spec: &Spec, trains: bool, elsewhere: &Elsewhere) -> Result<Derived, Error> {
        let options = Options { train: spec.trains(), weights: false, ..Options::default() };
        if options.train != trains {
            let is = if trains { "is there" } else { "is missing" };
            return Err(damaged(path, &format!("a step of training {is}, unlike `{SPEC}` says")));
        }
        let (Graphs { programs, reference }, imported) = derive(&model_path(path), &spec.of_plan(), &options)?;
        let printed = |graph: Graph| {
            let text = text::print_beside(&graph, elsewhere);
            (graph, text)
        };
        Ok(Derived { programs: programs.map(printed), reference: reference.map(printed), copies: imported.copies })
    }

    /// A graph, and its text.
    fn graph(&self, kind: ProgramKind) -> &(Graph, String) {
        match (kind, &self.programs.training, &self.reference) {
            (ProgramKind::Train, Some(graph), _) | (ProgramKind::Reference, _, Some(graph)) => graph,
            _ => &self.programs.eval,
        }
    }
}

impl PlanDir {
    /// The text of the spec.
    ///
    /// # Errors
    /// If its file has changed since the directory was read.
    pub fn spec_text(&self) -> Result<String, Error> {
        spec_text(&self.path, &self.manifest)
    }

    /// The explicit graph of the programs of that kind, which they were proven to carry out.
    ///
    /// # Errors
    /// If the directory has none, or its file has changed since it was read.
    pub fn graph(&self, kind: ProgramKind) -> Result<Graph, Error> {
        let text = graph_text(&self.path, &self.manifest, kind)?;
        let beside = Beside::of(&self.path, &self.programs);
        parsed(&self.path, graph_file(kind), &text, beside.filled, &beside.elsewhere)
    }
}

/// The text of a graph of a directory.
fn graph_text(path: &Path, manifest: &Manifest, kind: ProgramKind) -> Result<String, Error> {
    let name = graph_file(kind);
    let text = unpack(&checked(path, manifest, name)?).map_err(|why| damaged(path, &format!("`{name}`: {why}")))?;
    String::from_utf8(text).map_err(|_| damaged(path, &format!("`{name}` is not UTF-8")))
}

/// What stands beside the graphs of a directory.
struct Beside {
    /// The bytes that constants with one value everywhere may take.
    filled: u64,
    /// The constants that graphs name.
    elsewhere: Elsewhere,
}

impl Beside {
    fn of(path: &Path, programs: &Programs) -> Beside {
        const PER_BYTE: u64 = 16;
        let programs = || programs.iter().flat_map(|(_, set)| &set.programs);
        let constants: u64 = programs().flat_map(|program| &program.constants).map(|constant| constant.bytes.len() as u64).sum();
        let bytes = constants + fs::metadata(model_path(path)).map_or(0, |model| model.len());
        Beside { filled: bytes.saturating_mul(PER_BYTE).saturating_add(FILLED), elsewhere: Elsewhere::of(programs()) }
    }
}

/// The bytes of a graph's constants.
fn constants(graph: &Graph) -> u64 {
    let bytes = |op: &Op| if let Op::Constant(constant) = op { constant.value.bytes.len() as u64 } else { 0 };
    graph.nodes().map(|(_, node)| bytes(&node.op)).sum()
}

fn parsed(path: &Path, name: &str, text: &str, filled: u64, elsewhere: &Elsewhere) -> Result<Graph, Error> {
    text::parse_beside(text, filled, elsewhere).map_err(|error| damaged(path, &format!("`{name}`, {error}")))
}

/// The first line in which the graph of a directory is not that of its model and spec.
fn other_graph(path: &Path, kind: ProgramKind, text: &str, derived: &str) -> Error {
    let shown = |line: Option<&str>| match line.map(str::trim) {
        Some(line) if line.chars().count() > MOST_SHOWN => format!("`{}…`", line.chars().take(MOST_SHOWN).collect::<String>()),
        Some(line) => format!("`{line}`"),
        None => "its end".to_string(),
    };
    let (mut own, mut its) = (text.lines(), derived.lines());
    let differs = (1..).map(|number| (number, own.next(), its.next())).find(|(_, own, its)| own != its || own.is_none());
    let (number, own, its) = differs.unwrap_or((1, None, None));
    let (file, own, its) = (graph_file(kind), shown(own), shown(its));
    let message = format!(
        "this plan directory is wrong: `{file}` is not the graph of `{MODEL}` under `{SPEC}`: line {number} is {own}, not {its}"
    );
    Diagnostic::error(message).at(Place::File(path.to_path_buf())).help("compile the job again").into()
}

/// Refuses a manifest that says of ranks what their programs do not do.
fn check_manifest(path: &Path, manifest: &Manifest, programs: &PlanSet) -> Result<(), Error> {
    let program = programs.first();
    let summaries: Vec<ProgramSummary> = programs.programs.iter().map(summary).collect();
    if manifest.programs != summaries || manifest.places != Places::of(programs) {
        return Err(damaged(path, &format!("`{MANIFEST}` says of ranks what their program does not do")));
    }
    let whole = (manifest.world_size, manifest.microbatches);
    let expected = (program.mesh.world_size(), program.mesh.microbatches());
    let axes = program.mesh.rank_axes().iter().map(|axis| (axis.name.clone(), axis.size));
    let same = (&manifest.name, &manifest.mesh) == (&program.name, &NamedSizes(axes.collect()));
    let same_spec = manifest.files.get(SPEC) == Some(&manifest.spec.sha256);
    if same && same_spec && whole == expected && manifest.plan_hash == plan_hash(&manifest.files) {
        return Ok(());
    }
    Err(damaged(path, &format!("`{MANIFEST}` is of another plan")))
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

fn spec_of(path: &Path, manifest: &Manifest) -> Result<Spec, Error> {
    Ok(spec::parse(&path.join(SPEC), &spec_text(path, manifest)?)?)
}

fn spec_text(path: &Path, manifest: &Manifest) -> Result<String, Error> {
    String::from_utf8(checked(path, manifest, SPEC)?).map_err(|_| damaged(path, "its spec is not UTF-8"))
}
