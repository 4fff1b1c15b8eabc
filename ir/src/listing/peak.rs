//! The step at which most bytes of the arena are in use, and what they hold.

use super::kinds::kinds;
use super::report::TaskReport;
use crate::plan::lives::{lasts, lives};
use crate::plan::{BufferKind, Program};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is live where most is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak<'p> {
    /// The number of the step; none of a program without steps.
    pub step: Option<usize>,
    /// Its task.
    pub task: Option<&'p str>,
    /// What it writes first.
    pub value: Option<String>,
    /// Bytes live there, padding included; the arena has as many or more.
    pub bytes: u64,
    /// By what they are for, the most first.
    pub kinds: Vec<Part>,
    /// By module of the model, layers as one, the most first.
    pub scopes: Vec<Part>,
}

/// A part of what is live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What belongs to no module.
const OUTSIDE: &str = "outside modules";

/// Where most of `program` is live; `tasks` are its own.
pub fn peak<'p>(program: &'p Program, tasks: &[TaskReport<'p>]) -> Peak<'p> {
    let lives = lives(program);
    let steps = tasks.iter().map(|task| task.steps.len()).sum::<usize>().max(1);
    let bytes = |i: usize| program.buffers[i].slot_bytes.saturating_mul(program.buffers[i].slots);
    let mut change = vec![(0u128, 0u128); steps + 1];
    for (i, life) in lives.iter().enumerate().filter(|(i, _)| !lasts(&program.buffers[*i])) {
        let Some((first, last)) = life else { continue };
        change[*first].0 += u128::from(bytes(i));
        change[*last + 1].1 += u128::from(bytes(i));
    }
    let (mut live, mut most, mut at) = (0u128, 0u128, None);
    for (number, (more, less)) in change.iter().enumerate().take(steps) {
        live = live + more - less;
        if at.is_none() || live > most {
            (most, at) = (live, Some(number));
        }
    }
    let lives_there =
        |i: &usize| lasts(&program.buffers[*i]) || lives[*i].zip(at).is_some_and(|((first, last), at)| first <= at && at <= last);
    let there: Vec<usize> = (0..program.buffers.len()).filter(lives_there).collect();
    let (scopes, kinds) = (scopes(program), kinds(program));
    let task = tasks.iter().find(|task| task.steps.iter().any(|step| Some(step.number) == at));
    let step = task.and_then(|task| task.steps.iter().find(|step| Some(step.number) == at));
    Peak {
        step: at,
        task: task.map(|task| task.name),
        value: step.and_then(|step| step.writes.first()).map(|operand| operand.value.clone()),
        bytes: there.iter().fold(0, |sum, i| sum.saturating_add(bytes(*i))),
        kinds: parts(there.iter().map(|i| (kinds[*i].to_string(), bytes(*i)))),
        scopes: parts(there.iter().map(|i| (scopes[*i].map_or(OUTSIDE, layer).to_string(), bytes(*i)))),
    }
}

/// Sums by name, the largest first.
fn parts(all: impl Iterator<Item = (String, u64)>) -> Vec<Part> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (name, bytes) in all {
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let mut parts: Vec<Part> = sums.into_iter().map(|(name, bytes)| Part { name, bytes }).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// For each buffer, the module that it belongs to: that of the first step that writes it, or, of
/// what is there before, of the first that reads it. Moments are where their parameter is.
fn scopes(program: &Program) -> Vec<Option<&str>> {
    let mut scopes: Vec<Option<&str>> = vec![None; program.buffers.len()];
    let steps = || program.tasks.iter().flat_map(|task| &task.steps);
    for step in steps() {
        let Some(scope) = step.provenance.scope.as_deref() else { continue };
        for view in step.writes.iter().chain(&step.reads) {
            scopes[view.buffer.index()].get_or_insert(scope);
        }
    }
    for step in steps().filter(|step| step.provenance.scope.is_none()) {
        let states = step.reads.iter().chain(&step.writes).map(|view| view.buffer.index());
        let states: Vec<usize> = states.filter(|i| matches!(program.buffers[*i].kind, BufferKind::State(_))).collect();
        if let Some(scope) = states.iter().find_map(|i| scopes[*i]) {
            for state in states {
                scopes[state].get_or_insert(scope);
            }
        }
    }
    for (i, buffer) in program.buffers.iter().enumerate() {
        if let BufferKind::Gradient(state) = buffer.kind {
            scopes[i] = program.states.get(state as usize).and_then(|state| scopes[state.buffer.index()]);
        }
    }
    scopes
}

/// A module's path as far as its first number: `model.h.3` of `model.h.3.attn`.
pub fn layer(scope: &str) -> &str {
    let mut end = 0;
    for part in scope.split('.') {
        end += part.len() + 1;
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return &scope[..end - 1];
        }
    }
    scope
}
