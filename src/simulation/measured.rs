//! A simulated step beside one that was measured by `train --profile`.

use super::{Kind, Simulation};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use shardc_ir::diagnostic::{Diagnostic, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What was predicted beside what was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Beside {
    /// Seconds of a step.
    pub step: Pair,
    /// Seconds of each form and each kind of call, without waiting, on the mean of all ranks.
    pub kinds: BTreeMap<String, Pair>,
}

/// Two times, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Pair {
    /// The simulated one.
    pub predicted: f64,
    /// The measured one.
    pub measured: f64,
}

/// The part of a profile that is read.
#[derive(Debug, Deserialize)]
struct Profile {
    #[serde(rename = "traceEvents")]
    events: Vec<Timed>,
}

#[derive(Debug, Deserialize)]
struct Timed {
    cat: String,
    tid: u64,
    ts: f64,
    dur: f64,
    args: Waited,
}

#[derive(Debug, Deserialize)]
struct Waited {
    waited_us: f64,
}

/// A simulation beside the profile in `path`.
///
/// # Errors
/// If the file cannot be read, or is no profile of so many ranks.
pub fn beside(simulation: &Simulation, path: &Path) -> Result<Beside, Error> {
    let at = |why: String| Diagnostic::error(why).at(Place::File(path.to_path_buf()));
    let bytes = std::fs::read(path).map_err(|error| at(format!("the profile cannot be read: {error}")))?;
    let help = "`shardc train PLAN --profile FILE` writes one";
    let profile: Profile =
        serde_json::from_slice(&bytes).map_err(|error| at(format!("this is no profile: {error}")).help(help))?;
    let ranks: BTreeSet<u64> = profile.events.iter().map(|event| event.tid).collect();
    if ranks.len() as u64 != simulation.world_size {
        return Err(at(format!("this is a profile of {} ranks, and the plan has {}", ranks.len(), simulation.world_size)).into());
    }
    let mut kinds: BTreeMap<String, Pair> = BTreeMap::new();
    for Kind { name, seconds, .. } in &simulation.kinds {
        kinds.entry(name.clone()).or_default().predicted = *seconds;
    }
    for event in &profile.events {
        kinds.entry(event.cat.clone()).or_default().measured += (event.dur - event.args.waited_us) / 1e6 / ranks.len() as f64;
    }
    let end = profile.events.iter().map(|event| event.ts + event.dur).fold(0.0, f64::max);
    Ok(Beside { step: Pair { predicted: simulation.seconds, measured: end / 1e6 }, kinds })
}
