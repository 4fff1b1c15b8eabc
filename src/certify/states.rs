//! State variables: those that the model has and those that the spec's optimizer needs, no others,
//! in the roles, types and beginnings that both say.

use super::formulas::moments;
use super::{Found, Subject};
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::{Graph, State};
use shardc_ir::plan::StateRole;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::train::StateInit;
use std::collections::{BTreeMap, HashMap};

/// Checks the state variables of the step of training `graph`.
pub fn check(graph: &Graph, subject: &Subject<'_>) -> Result<Found, Reason> {
    let model: BTreeMap<&str, &State> = subject.imported.graph.states.iter().map(|state| (state.name.as_str(), state)).collect();
    // Of each initializer, how many elements are in state variables.
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    let mut expected = vec![];
    for state in graph.states.iter().filter(|state| state.role.is_of_model()) {
        let (name, shape) = match &state.block {
            Some(block) if block.is_inside(&state.ty.shape) => (&block.of, block.whole_shape(&state.ty.shape)),
            Some(_) => return Err(reason!("`{}` is a part of nothing", state.name)),
            None => (&state.name, state.ty.shape.clone()),
        };
        let own = model.get(name.as_str()).ok_or_else(|| reason!("the model has no `{name}`"))?;
        if (state.role, &state.init, state.ty.dtype, &shape) != (own.role, &own.init, own.ty.dtype, &own.ty.shape) {
            let (is, was) = (beginning(state), beginning(own));
            return Err(reason!(
                "`{name}` is a {} {} that begins {is}, not a {} {} that begins {was}",
                state.role.name(),
                state.ty,
                own.role.name(),
                own.ty
            ));
        }
        *held.entry(name).or_default() += state.ty.elements();
        let is_moved = matches!(state.role, StateRole::Parameter | StateRole::Statistic);
        if state.role != StateRole::Parameter && state.gradient.is_some() || !is_moved && state.update.is_some() {
            return Err(reason!("`{name}` is trained, and is {}", state.role.name()));
        }
        if state.role == StateRole::Parameter && state.gradient.is_some() != state.update.is_some() {
            return Err(reason!("`{name}` has a gradient or an update, and not both"));
        }
        if let (Some(_), Some(optimizer)) = (state.gradient, &subject.spec.optimizer) {
            expected.extend(moments(optimizer.value.rule).iter().map(|suffix| format!("{}.{suffix}", state.name)));
        }
    }
    if let Some((name, own)) = model.iter().find(|(name, own)| held.get(*name) != Some(&own.ty.elements())) {
        return Err(reason!("`{name}` of the model, {}, is not held once", own.ty));
    }
    let own: Vec<&State> = graph.states.iter().filter(|state| state.role == StateRole::Moment).collect();
    if own.len() != expected.len() {
        return Err(reason!("there are {}, the optimizer has {}", counted(own.len(), "moment"), expected.len()));
    }
    let known: HashMap<&str, &State> = graph.states.iter().map(|state| (state.name.as_str(), state)).collect();
    for name in &expected {
        let of = name.rsplit_once('.').map_or(name.as_str(), |(of, _)| of);
        let moment = known.get(name.as_str()).ok_or_else(|| reason!("there is no `{name}`"))?;
        let is_moment = moment.role == StateRole::Moment && moment.init == StateInit::Zeros && moment.update.is_some();
        if !is_moment || known.get(of).is_none_or(|parameter| parameter.ty != moment.ty) {
            return Err(reason!("`{name}` is no moment of its parameter that begins with zeros"));
        }
    }
    let moments = if own.is_empty() { String::new() } else { format!(", and {} of zeros", counted(own.len(), "moment")) };
    Ok(Found::Holds(format!("{} of the model as it and the spec say{moments}", counted(held.len(), "initializer"))))
}

fn beginning(state: &State) -> String {
    match state.init {
        StateInit::Model => "as in the file".to_string(),
        StateInit::Zeros => "with zeros".to_string(),
        StateInit::Ones => "with ones".to_string(),
        StateInit::Value(value) => format!("with {value}"),
        StateInit::Normal { std } => format!("normal with deviation {std}"),
    }
}
