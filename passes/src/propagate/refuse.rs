//! Splits that the spec asks for and no op can use: of letters that must stay whole, twice over one
//! axis, or through units such as heads.

use super::facts::{Facts, LetterTable, Rule};
use crate::annotate::Annotation;
use crate::pass::Context;
use crate::weights::{Layer, layer, parameter, weights};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted, first_of_each_place};
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::letters::{Letter, Role};
use shardc_ir::ops::{Linear, Op, linear_of};
use shardc_ir::sharding::{Sharding, Split};

/// Refuses the splits that show to be of no use before anything spreads.
///
/// # Errors
/// One for each line: an axis that splits two dimensions of a value, or a split that every reader
/// would have to undo.
pub fn useless_splits(
    graph: &Graph,
    cx: &Context<'_>,
    rules: &LetterTable,
    annotations: &[Annotation],
) -> Result<(), Diagnostics> {
    let mut errors: Diagnostics = vec![];
    for (i, a) in annotations.iter().enumerate() {
        for split in &a.splits {
            let axis = graph.mesh.name(split.axis);
            let twice = |b: &&Annotation| b.value == a.value && b.dim != a.dim && b.splits.iter().any(|s| s.axis == split.axis);
            if let Some(b) = annotations[..i].iter().find(twice) {
                let name = name(graph, a.value);
                let message = format!("`{axis}` splits dimension {} of \"{name}\", and already dimension {}", a.dim, b.dim);
                let help = format!("an axis splits a value once: leave one of the two to another axis, or to line {}", b.line);
                errors.push(Diagnostic::error(message).at_opt(cx.spec.place_of_line(a.line)).help(help));
            } else if let Some(reader) = needed_whole(graph, rules, a, *split) {
                let name = name(graph, a.value);
                let message = format!("`{axis}` splits dimension {} of \"{name}\", which `{reader}` needs whole", a.dim);
                errors.push(
                    Diagnostic::error(message).at_opt(cx.spec.place_of_line(a.line)).help("split another dimension, or none"),
                );
            }
        }
    }
    first_of_each_place(errors)
}

/// The user's name of a value.
fn name(graph: &Graph, value: ValueId) -> &str {
    match &graph.def(value).op {
        Op::State(read) => &graph.states[read.state.index()].name,
        _ => &graph.value(value).name,
    }
}

/// An op that reads the value, if all that do need the letter of the split whole. Ops that only
/// move elements do not count: before them a split may be meant for the memory that it saves.
fn needed_whole(graph: &Graph, rules: &LetterTable, annotation: &Annotation, split: Split) -> Option<&'static str> {
    let mut found = None;
    for r in rules.forward_of(&[annotation.value]) {
        let rule = &rules.all[r];
        let node = graph.node(rule.node?);
        let moves = linear_of(graph, node) == Linear::Together;
        for (value, dims) in rule.operands.iter().zip(&rule.letters.operands).filter(|(v, _)| **v == annotation.value) {
            let mut sharding = Sharding::replicated(graph.ty(*value).rank());
            sharding.dims[annotation.dim] = vec![split];
            let located = rule.letters.to_letters(dims, &sharding).into_iter().flatten().flatten().next();
            if moves || !located.is_some_and(|(letter, _)| rule.letters.roles[letter] == Role::Whole) {
                return None;
            }
            found = Some(node.op.name());
        }
    }
    found
}

/// Refuses what shows when all splits of the spec have spread: units, such as the heads of an
/// attention, that the ranks of an axis do not divide, though the weight behind them is split over
/// it.
///
/// # Errors
/// One for each line.
pub fn broken_units(graph: &Graph, cx: &Context<'_>, rules: &LetterTable, facts: &Facts) -> Result<(), Diagnostics> {
    let weights = weights(graph);
    let mut errors: Diagnostics = vec![];
    for rule in rules.all.iter().filter(|rule| rule.is_forward) {
        for (letter, unit) in &rule.letters.units {
            let size = rule.letters.sizes[*letter];
            let counts = |dims: &Vec<Vec<Letter>>| dims.iter().flatten().any(|l| l == letter);
            for (value, _) in rule.operands.iter().zip(&rule.letters.operands).filter(|(_, dims)| counts(dims)) {
                let Some((source, layer)) = layer_behind(rules, &weights, *value) else { continue };
                let weight = source.operands[layer.weight];
                for (axis, line) in facts.asked(weight) {
                    let (ranks, axis_name) = (facts.mesh.size(*axis), facts.mesh.name(*axis));
                    let is_output = |letter: Letter| source.letters.roles[letter] == Role::Kept;
                    let splits_output = facts.letter(source, *axis).ok().flatten().is_some_and(is_output);
                    if splits_output && !size.is_multiple_of(ranks) {
                        let weight = name(graph, parameter(graph, weight));
                        let units = counted(size, unit);
                        let message = format!("`{axis_name}` has {ranks} ranks, but behind \"{weight}\" are {units}");
                        let help = format!("use `{axis_name}` of a size that divides {size}, or leave \"{weight}\" whole");
                        errors.push(Diagnostic::error(message).at_opt(cx.spec.place_of_line(*line)).help(help));
                    }
                }
            }
        }
    }
    first_of_each_place(errors)
}

/// The layer that a value comes from, whatever is between them.
fn layer_behind<'r>(rules: &'r LetterTable, weights: &[bool], mut value: ValueId) -> Option<(&'r Rule, Layer)> {
    loop {
        let mut near = rules.forward_of(&[value]).into_iter().map(|r| &rules.all[r]);
        let source = near.find(|rule| rule.results.contains(&value))?;
        if let Some(layer) = layer(source, weights) {
            return Some((source, layer));
        }
        value = *source.operands.iter().find(|v| !weights[v.index()])?;
    }
}
