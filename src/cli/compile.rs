//! `shardc compile`: a model and a spec to a plan directory, with a summary of what it will do.

use super::decisions;
use super::failure::Failure;
use super::output::print;
use super::overwrite::Files;
use crate::plan_dir::{self, Manifest};
use crate::proof::sent;
use crate::{Compiled, Options, compile, cuda, trace};
use clap::{Args, ValueEnum};
use shardc_frontend::spec;
use shardc_ir::clock::idle::microbatches_to_halve;
use shardc_ir::clock::programs::schedule;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::Graph;
use shardc_ir::listing::units::{bytes_text, count_text};
use shardc_ir::listing::{communication_text, fullest_place, parts_text, peak_place, report};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Buffer, StateRole};
use shardc_ir::spec::{Located, Pipeline, Spec, Zero};
use shardc_ir::text;
use shardc_passes::planning::schedule::{Shape, idle_share};
use shardc_passes::{Mode, PIPELINE};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The modules that the summary names where most is live.
const MODULES: usize = 3;

/// The arguments.
#[derive(Debug, Args)]
pub struct Compile {
    /// The ONNX model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// The sharding spec
    #[arg(long, value_name = "JOB.shard")]
    spec: PathBuf,
    /// The plan directory to write
    #[arg(short, long, value_name = "PLAN", required_unless_present = "stop_after")]
    output: Option<PathBuf>,
    /// Plan without the elements of the weights, which need not be there
    #[arg(long)]
    no_weights: bool,
    /// Name every initializer, and why it is trained or not
    #[arg(long)]
    verbose: bool,
    /// Write the graph after each pass to this folder
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Print the graph after this pass, and write no plan
    #[arg(long, value_name = "PASS", value_parser = pass_names())]
    stop_after: Option<String>,
    /// Do not hold the graphs against the model and the spec
    #[arg(long)]
    no_certificate: bool,
    /// Check the graph after every pass
    #[arg(long)]
    verify_each: bool,
    /// Write the kernels of a kind of device to the plan, too
    #[arg(long, value_name = "DEVICE", requires = "output")]
    target: Option<Target>,
    /// Assemble them for this architecture; may be repeated [default: sm_90]
    #[arg(long, value_name = "sm_XX", value_parser = architecture, requires = "target")]
    arch: Vec<u32>,
}

/// A kind of device that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    /// GPUs of NVIDIA
    Cuda,
}

/// The number of an architecture: 90 for `sm_90`.
fn architecture(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("sm_").and_then(|number| number.parse().ok());
    number.filter(|number| *number >= 80).ok_or_else(|| "an architecture is `sm_80` or a later one".to_string())
}

fn pass_names() -> Vec<&'static str> {
    PIPELINE.iter().map(|pass| pass.name()).collect()
}

impl Compile {
    /// Compiles, writes the plan directory, and prints the summary.
    ///
    /// # Errors
    /// All that is wrong with the model or the spec; a folder that cannot be written.
    pub fn run(mut self) -> Result<(), Failure> {
        // `p/.` is `p`.
        self.output = self.output.map(|path| path.components().collect());
        self.check_files()?;
        let spec = spec::load(&self.spec)?;
        let options = Options {
            train: spec.trains(),
            weights: !self.no_weights,
            verify: self.verify_each || cfg!(debug_assertions),
            certify: !self.no_certificate,
        };
        if self.dump.is_some() || self.stop_after.is_some() {
            match trace(&self.model, &spec, &options, |mode, pass, graph| self.see(mode, pass, graph))? {
                ControlFlow::Break(graph) => return print(&graph?),
                ControlFlow::Continue(()) => self.check_stopped()?,
            }
        }
        let compiled = compile(&self.model, &spec, &options)?;
        crate::report::print(&compiled.warnings);
        let Some(output) = &self.output else { return Ok(()) };
        let manifest = plan_dir::write(output, &compiled, &self.model, &spec, !self.no_weights)?;
        let mut summary = self.summary(output, &compiled, &spec, &manifest);
        if self.target == Some(Target::Cuda) {
            summary.push_str(&self.write_kernels(output, &compiled, &manifest)?);
        }
        print(&summary)
    }

    /// Writes the CUDA kernels, warns of what has none, and says what there is.
    fn write_kernels(&self, output: &Path, compiled: &Compiled, manifest: &Manifest) -> Result<String, Failure> {
        let architectures = if self.arch.is_empty() { vec![cuda::ARCHITECTURE] } else { self.arch.clone() };
        let programs = compiled.plans.iter().map(|(kind, plan)| (kind, &plan.programs));
        let written = cuda::write(output, &manifest.plan_hash, programs, &architectures)?;
        crate::report::print(&written.warnings());
        Ok(written.summary())
    }

    /// Refuses wrong folders before anything is compiled.
    fn check_files(&self) -> Result<(), Failure> {
        let Some(output) = &self.output else { return Ok(()) };
        plan_dir::check_target(output)?;
        let files = Files::default().reads_model(&self.model).reads("the spec", &self.spec);
        plan_dir::own_files(output).iter().fold(files, |files, file| files.writes("--output", Some(file))).check()
    }

    /// Writes the graph behind a pass, and gives its text where it is the last one wanted.
    fn see(&self, mode: Mode, pass: &str, graph: &Graph) -> ControlFlow<Result<String, Failure>> {
        if let Some(folder) = &self.dump
            && let Err(failure) = dump(folder, mode, pass, graph)
        {
            return ControlFlow::Break(Err(failure));
        }
        match self.stop_after.as_deref() {
            Some(last) if last == pass => ControlFlow::Break(Ok(text::print(graph))),
            _ => ControlFlow::Continue(()),
        }
    }

    /// All passes of the job have run: the one to stop after was none of them.
    fn check_stopped(&self) -> Result<(), Failure> {
        match &self.stop_after {
            Some(last) => {
                Err(Failure::Usage(format!("`--stop-after {last}`: the spec asks for no training, of which this pass is")))
            }
            None => Ok(()),
        }
    }

    fn summary(&self, output: &Path, compiled: &Compiled, spec: &Spec, manifest: &Manifest) -> String {
        let programs = &compiled.plans.main().programs;
        let axes: Vec<String> = manifest.mesh.0.iter().map(|(name, size)| format!("{name}={size}")).collect();
        let mut ranks = manifest.world_size.to_string();
        if !axes.is_empty() {
            ranks.push_str(&format!(" ({})", axes.join(" ")));
        }
        let batch = match (programs.first().batch, manifest.microbatches) {
            (0, _) => "as the model says".to_string(),
            (batch, 1) => counted(batch, "sample"),
            (batch, parts) => format!("{} in {parts} micro-batches", counted(batch, "sample")),
        };
        let elements = |role: StateRole| -> u64 {
            let states = programs.states().into_iter().filter(|(_, s)| s.role == role);
            states.map(|(program, s)| program.buffers[s.buffer.index()].shape.iter().product::<u64>()).sum()
        };
        let (trained, frozen) = (elements(StateRole::Parameter), elements(StateRole::Frozen));
        let mut parameters = count_text(trained);
        if frozen > 0 {
            parameters.push_str(&format!(" trained, {} frozen", count_text(frozen)));
        }
        let statistics = programs.states().into_iter().filter(|(_, s)| s.role == StateRole::Statistic).count();
        let peak = report(programs.fullest()).peak;
        let fullest = programs.at(programs.mesh(), programs.fullest_rank());
        let communication = sent(&compiled.proven, None).get(fullest).cloned().unwrap_or_default();
        let bytes: u64 = communication.iter().map(|c| c.bytes_sent).sum();
        let mut rows = vec![
            ["ranks".to_string(), ranks],
            ["batch".to_string(), batch],
            ["parameters".to_string(), parameters],
            ["peak".to_string(), format!("{}; most is live {}", fullest_place(programs), peak_place(&peak))],
            [String::new(), format!("by kind: {}", parts_text(&peak.kinds, usize::MAX))],
            [String::new(), format!("by module: {}", parts_text(&peak.scopes, MODULES))],
            [
                "sent".to_string(),
                format!(
                    "{} a step from {}",
                    bytes_text(bytes),
                    if programs.programs.len() > 1 { "that rank" } else { "each rank" }
                ),
            ],
        ];
        if !spec.zero.is_empty() {
            rows.push(["zero".to_string(), zero_text(programs, spec)]);
        }
        if let Some(pipeline) = &spec.pipeline {
            rows.push(["pipeline".to_string(), pipeline_text(programs, &pipeline.value, spec)]);
        }
        if statistics > 0 {
            let row = ["statistics".to_string(), format!("{statistics} running ones, {}", groups_text(compiled, spec))];
            rows.insert(3, row);
        }
        if !spec.trains() {
            rows.insert(1, ["for".to_string(), "evaluation: the spec has no `loss` and no `optimizer`".to_string()]);
        }
        rows.extend(decisions::rows(&compiled.decisions, self.verbose));
        let table = align(&rows, [Column::WORDS, Column::WORDS]);
        format!("{}\n{table}{}", output.display(), communication_text(&communication))
    }
}

/// `stage 3 over fsdp; 0.01 % of the shares is padding`
fn zero_text(programs: &PlanSet, spec: &Spec) -> String {
    let mesh = programs.mesh();
    let line = |zero: &Located<Zero>| {
        let axes: Vec<&str> = zero.value.axes.iter().map(|axis| mesh.name(*axis)).collect();
        let of = zero.value.on.as_ref().map_or(String::new(), |on| format!(" of `{}`", on.value));
        format!("stage {}{of} over {}", zero.value.stage as u8, axes.join(","))
    };
    let lines = spec.zero.iter().map(line).collect::<Vec<_>>().join(", ");
    let (mut held, mut whole) = (0u64, 0u64);
    for (program, state) in programs.states() {
        let Buffer { sharding, shape, local, .. } = &program.buffers[state.buffer.index()];
        if !sharding.flat.is_empty() {
            held += local.iter().product::<u64>() * sharding.ranges(mesh);
            whole += sharding.part(shape, mesh).iter().product::<u64>();
        }
    }
    match whole {
        0 => format!("{lines}: nothing is cut, as the optimizer has no moments"),
        _ => format!("{lines}; {:.2} % of the shares is padding", 100.0 * (held as f64 / whole as f64 - 1.0)),
    }
}

/// How many micro-batches are tried for one that halves the idle share.
const MOST_MICROBATCHES: u64 = 4096;

/// `4 stages; idle 42.9 % of a step, 13 micro-batches would halve that`
fn pipeline_text(programs: &PlanSet, pipeline: &Pipeline, spec: &Spec) -> String {
    let mesh = programs.mesh();
    let shape = |microbatches| Shape { positions: mesh.size(pipeline.axis), chunks: pipeline.schedule.chunks(), microbatches };
    let stages = counted(pipeline.stages(mesh), "stage");
    let Ok(schedule) = schedule(programs) else { return stages };
    let idle = format!("{stages}; idle {:.1} % of a step", 100.0 * schedule.idle.share);
    let has_rule = pipeline.custom.is_none() && spec.place.is_empty() && spec.trains();
    let share = |microbatches| idle_share(pipeline.schedule, shape(microbatches));
    match microbatches_to_halve(share, mesh.microbatches(), MOST_MICROBATCHES).filter(|_| has_rule) {
        Some(enough) => format!("{idle}, {enough} micro-batches would halve that"),
        None => idle,
    }
}

/// The words on how running statistics of batch normalisations move.
fn groups_text(compiled: &Compiled, spec: &Spec) -> String {
    match (&compiled.plans.training, spec.statistics_groups()) {
        (None, _) => "which evaluation normalises by".to_string(),
        (Some(_), 1) => "moved once a step by those of the whole batch, by which training normalises".to_string(),
        (Some(_), groups) => {
            format!("moved once a step by the mean of those of {groups} groups of samples, by which training normalises")
        }
    }
}

/// Writes `DIR/train/03-raise.shir`.
fn dump(folder: &Path, mode: Mode, pass: &str, graph: &Graph) -> Result<(), Failure> {
    let folder = folder.join(mode.name());
    let number = PIPELINE.iter().position(|p| p.name() == pass).map_or(0, |i| i + 1);
    let path = folder.join(format!("{number:02}-{pass}.shir"));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, text::print(graph)))
        .map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e))
}
