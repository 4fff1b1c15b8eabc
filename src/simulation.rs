//! How long a step of a plan would take on a cluster, and where its time would go.
//!
//! ```no_run
//! use shardc::plan_dir::{self, Trust};
//! use shardc::simulation::{Simulation, cluster};
//! use std::path::Path;
//!
//! let plan = plan_dir::read(Path::new("plan"), Trust::Nothing).unwrap();
//! let simulation = Simulation::of(&plan, &cluster("h100").unwrap()).unwrap();
//! println!("{:.1} ms a step", simulation.seconds * 1e3);
//! ```

mod measured;
mod trace;

pub use measured::{Beside, beside};
pub use trace::trace;

use crate::error::Error;
use crate::plan_dir::PlanDir;
use crate::training::tokens;
use serde::Serialize;
use shardc_ir::diagnostic::{Diagnostic, Place as Where};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{CommunicationKind, Kernel};
use shardc_ir::listing::{NamedSizes, coordinates};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Turn};
use shardc_simulator::cluster::Cluster;
use shardc_simulator::kernels::Load;
use shardc_simulator::model;
use shardc_simulator::run::{Event, Lane, Step, step};
use shardc_simulator::totals::Totals;
use std::collections::BTreeMap;
use std::path::Path;

/// The clusters that are known by name.
const KNOWN: [(&str, &str); 3] = [
    ("a100", include_str!("../clusters/a100.toml")),
    ("h100", include_str!("../clusters/h100.toml")),
    ("h200", include_str!("../clusters/h200.toml")),
];

/// A simulated step.
#[derive(Debug, Clone, Serialize)]
pub struct Simulation {
    /// The name of the cluster.
    pub cluster: String,
    /// Ranks.
    pub world_size: u64,
    /// Seconds that a step takes.
    pub seconds: f64,
    /// Samples a second.
    pub samples_per_second: f64,
    /// Tokens a second, where the model reads rows of them.
    pub tokens_per_second: Option<f64>,
    /// Operations of the model's products in a step, as one rank would compute them.
    pub model_flops: Option<f64>,
    /// Those a second on each rank.
    pub flops_per_rank: Option<f64>,
    /// The share of the peak of all devices that these are (MFU).
    pub share_of_peak: Option<f64>,
    /// Where the time goes, on the mean of all ranks.
    pub mean: Totals,
    /// The bytes of the rank that holds most.
    pub peak_bytes: u64,
    /// The bytes of a device, where they are known.
    pub device_bytes: Option<u64>,
    /// Each place on the axes on which programs differ.
    pub places: Vec<Place>,
    /// Seconds by kernel form and kind of call, on the mean of all ranks; those that take longest
    /// first.
    pub kinds: Vec<Kind>,
    /// The step, event by event.
    #[serde(skip)]
    pub step: Step,
}

/// The ranks of a place.
#[derive(Debug, Clone, Serialize)]
pub struct Place {
    /// The coordinates that they have in common.
    pub coordinates: NamedSizes,
    /// How many they are.
    pub ranks: u64,
    /// Their bytes.
    pub peak_bytes: u64,
    /// Where the time of each goes.
    #[serde(flatten)]
    pub totals: Totals,
}

/// All launches of a form, or calls of a kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Kind {
    /// The form of the kernels, or the kind of the calls.
    pub name: String,
    /// How many in a step, on the mean of all ranks.
    pub launches: f64,
    /// Seconds that they take in a step.
    pub seconds: f64,
}

/// The cluster of a file, or a known one by name.
///
/// # Errors
/// If there is none, or its file is wrong.
pub fn cluster(name: &str) -> Result<Cluster, Error> {
    let path = Path::new(name);
    let known = KNOWN.iter().find(|(known, _)| *known == name).filter(|_| !path.exists());
    let at = |error: Diagnostic| error.at(Where::File(path.to_path_buf()));
    let text = match known {
        Some((_, text)) => text.to_string(),
        None => std::fs::read_to_string(path).map_err(|error| {
            let names: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
            let error = Diagnostic::error(format!("the cluster cannot be read: {error}"));
            at(error).help(format!("a file of TOML, one that `shardc calibrate` has written, or one of {}", names.join(", ")))
        })?,
    };
    Cluster::read(&text).map_err(|why| at(Diagnostic::error(format!("this is no cluster: {why}"))).into())
}

impl Simulation {
    /// Simulates a step of training, or of evaluation where the plan does not train.
    ///
    /// # Errors
    /// If the cluster has no such number of ranks.
    pub fn of(plan: &PlanDir, cluster: &Cluster) -> Result<Simulation, Error> {
        let flops = plan.reference.as_ref().map(model::flops);
        let is_label = |name: &str| plan.spec.labels().is_some_and(|labels| labels.value == name);
        Simulation::of_programs(plan.programs.main(), tokens(plan.programs.main(), is_label), flops, cluster)
            .map_err(|error| error.at(Where::File(plan.path.clone())).into())
    }

    /// Simulates programs whose step takes in so many tokens, and computes so much by itself.
    ///
    /// # Errors
    /// If the cluster has no such number of ranks.
    pub fn of_programs(
        set: &PlanSet,
        tokens: Option<u64>,
        model_flops: Option<f64>,
        cluster: &Cluster,
    ) -> Result<Simulation, Diagnostic> {
        let world_size = set.mesh().world_size();
        let device = cluster.device(world_size).map_err(|why| Diagnostic::error(format!("the cluster does not fit: {why}")))?;
        let step = step(set, device).map_err(|_| Diagnostic::error("these ranks wait for one another for ever"))?;
        let seconds = step.seconds;
        let each = world_size / step.lanes.len() as u64;
        let place = |lane: &Lane| {
            let program = &set.programs[lane.program];
            let NamedSizes(all) = coordinates(program, set.mesh().rank(&lane.coordinates));
            let differs = |(name, _): &(String, u64)| set.axes.iter().any(|axis| set.mesh().name(*axis) == *name);
            Place {
                coordinates: NamedSizes(all.into_iter().filter(differs).collect()),
                ranks: each,
                peak_bytes: program.arena_bytes,
                totals: Totals::of(set, lane, seconds),
            }
        };
        let flops_per_rank = model_flops.map(|flops| flops / seconds / world_size as f64);
        let peak = device.peak.get(&widest_product(set)).copied();
        Ok(Simulation {
            cluster: cluster.name.clone(),
            world_size,
            seconds,
            samples_per_second: set.first().batch as f64 / seconds,
            tokens_per_second: tokens.map(|tokens| tokens as f64 / seconds),
            model_flops,
            flops_per_rank,
            share_of_peak: flops_per_rank.zip(peak).map(|(flops, peak)| flops / peak),
            mean: Totals::mean(set, &step),
            peak_bytes: set.fullest().arena_bytes,
            device_bytes: device.memory,
            places: step.lanes.iter().map(place).collect(),
            kinds: kinds(set, &step),
            step,
        })
    }
}

/// The type of the operands with which most is computed.
fn widest_product(set: &PlanSet) -> DType {
    let mut flops: BTreeMap<DType, u64> = BTreeMap::new();
    for program in &set.programs {
        for step in program.tasks.iter().flat_map(|task| &task.steps) {
            if let Some(load) = Load::of(&step.kernel, &program.mesh).filter(|load| load.form.is_product()) {
                let sum = flops.entry(load.dtype).or_default();
                *sum = sum.saturating_add(load.work.flops);
            }
        }
    }
    flops.into_iter().max_by_key(|(_, flops)| *flops).map_or(DType::F32, |(dtype, _)| dtype)
}

/// The name of what an event does: the form of a kernel, or the kind of a call.
fn kind_name(program: &Program, event: &Event) -> &'static str {
    match event.turn {
        Turn::Exchange(_) => "exchange",
        Turn::Launch(launch) => match &program.step(launch).kernel {
            Kernel::Collective(call) => CommunicationKind::from(call.kind).name(),
            kernel => kernel.name(),
        },
    }
}

fn kinds(set: &PlanSet, step: &Step) -> Vec<Kind> {
    let part = 1.0 / step.lanes.len().max(1) as f64;
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    for lane in &step.lanes {
        let program = &set.programs[lane.program];
        for event in &lane.events {
            let kind = kinds.entry(kind_name(program, event)).or_default();
            kind.launches += part;
            kind.seconds += (event.end - event.start) * part;
        }
    }
    let mut kinds: Vec<Kind> = kinds.into_iter().map(|(name, kind)| Kind { name: name.to_string(), ..kind }).collect();
    kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    kinds
}
