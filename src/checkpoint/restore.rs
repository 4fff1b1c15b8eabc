//! Gives ranks the state of a checkpoint, whatever the mesh that it was written under.

use super::manifest::StateRecord;
use super::read::Checkpoint;
use crate::error::Error;
use shardc_executor::run::Executor;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, StateVariable};

/// What a plan makes of a checkpoint of another job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// State variables of the plan that begin as they do without the checkpoint, which has none:
    /// such as the moments of another optimizer.
    pub fresh: Vec<String>,
    /// State variables of the checkpoint that the plan has not.
    pub left_out: Vec<String>,
}

impl Differences {
    /// Warnings about them.
    pub fn warnings(&self, checkpoint: &Checkpoint) -> Diagnostics {
        let warning = |names: &[String], what: &str, label: &str| {
            let first = names.first()?;
            let more = if names.len() > 1 { format!(", `{first}` among them") } else { format!(", `{first}`") };
            let message = format!("{what} {}{more}", counted(names.len(), "state variable"));
            Some(Diagnostic::warning(message).at(Place::File(checkpoint.path.clone())).label(label))
        };
        let fresh = warning(&self.fresh, "the checkpoint lacks", "what it lacks begins as in a new run");
        let left_out = warning(&self.left_out, "the plan has not", "what the checkpoint has of that is left out");
        fresh.into_iter().chain(left_out).collect()
    }
}

/// Whether ranks of `programs` can have the state of `checkpoint`, and what differs.
///
/// # Errors
/// Those state variables that are of the model and missing, and each of another shape or type.
pub fn compare(checkpoint: &Checkpoint, programs: &PlanSet) -> Result<Differences, Diagnostics> {
    let (states, mut differences, mut errors) = (&checkpoint.manifest.states, Differences::default(), vec![]);
    let mut lacking: Vec<&str> = vec![];
    let all = programs.states();
    let error = |message: String| {
        let error = Diagnostic::error(message).at(Place::File(checkpoint.path.clone()));
        error.help("a checkpoint goes with plans of the model that it was trained with, under any mesh")
    };
    for (program, state) in &all {
        match states.get(&state.name) {
            Some(record) => errors.extend(mismatch(record, program, state).map(&error)),
            None if state.role.is_of_model() => lacking.push(&state.name),
            None => differences.fresh.push(state.name.clone()),
        }
    }
    if let [first, others @ ..] = &lacking[..] {
        let more = if others.is_empty() { String::new() } else { format!(", and lacks {} more", others.len()) };
        errors.push(error(format!("the checkpoint has no `{first}`{more}")));
    }
    let has = |name: &&String| all.iter().any(|(_, state)| state.name == **name);
    differences.left_out = states.keys().filter(|name| !has(name)).cloned().collect();
    if errors.is_empty() { Ok(differences) } else { Err(errors) }
}

/// In what a state variable is another one in the checkpoint.
fn mismatch(record: &StateRecord, program: &Program, state: &StateVariable) -> Option<String> {
    let buffer = program.buffers.get(state.buffer.index())?;
    let is_alike = record.dtype == buffer.dtype || record.dtype.is_float() && buffer.dtype.is_float();
    let is_it = is_alike && record.shape == buffer.shape && record.block == state.block;
    let (has, wants) = (format!("{}{:?}", record.dtype, record.shape), format!("{}{:?}", buffer.dtype, buffer.shape));
    (!is_it).then(|| format!("`{}` is {has} in the checkpoint, and {wants} in the plan", state.name))
}

/// Sets every state variable that the checkpoint has, and the number of the next step.
///
/// # Errors
/// As [`compare`]; a damaged piece; a failed rank.
pub fn restore(checkpoint: &Checkpoint, executor: &mut Executor) -> Result<Differences, Error> {
    let programs = executor.programs().clone();
    let differences = compare(checkpoint, &programs)?;
    for (_, state) in programs.states() {
        if checkpoint.manifest.states.contains_key(&state.name) {
            executor.set_state(&state.name, &checkpoint.tensor(&state.name)?)?;
        }
    }
    executor.set_next_step(checkpoint.manifest.position.step);
    Ok(differences)
}
