//! `data axis=(dp,tp) on="*.mlp"`: a part of the model splits the samples over axes of its own.
//!
//! Before: `%y = contract "bk,kn->bn" %x, %w @mlp` with `%x {dp, -}` from outside. After:
//! `%y {(dp,tp), -}`, `%x` as it was; what enters is resharded where it is read. The last line that
//! matches a node's scope says how its samples are split; a value that crosses a border is not tied
//! to what reads it. Data keeps the split of the line without `on`. Refuses a pattern without a
//! match.

use super::facts::{Facts, LetterTable};
use super::samples::samples;
use crate::pass::Context;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, names_help};
use shardc_ir::graph::{Graph, NodeId};
use shardc_ir::mesh::AxisId;
use shardc_ir::names::matches_scope;
use shardc_ir::sharding::{Splits, outermost};
use shardc_ir::spec::Located;
use std::collections::BTreeSet;

/// Unties what crosses the borders of the scopes of `data` lines, and splits the samples behind
/// each border as its line says.
///
/// # Errors
/// If a line's scope matches nothing.
pub fn separate(graph: &Graph, cx: &Context<'_>, rules: &mut LetterTable, facts: &mut Facts) -> Result<(), Diagnostics> {
    if cx.spec.data.iter().all(|line| line.value.on.is_none()) {
        return Ok(());
    }
    let errors = unmatched(graph, cx, cx.spec.data.iter().filter_map(|line| line.value.on.as_ref()));
    if !errors.is_empty() {
        return Err(errors);
    }
    let samples = samples(graph, rules);
    let lines: Vec<Option<usize>> = graph.nodes().map(|(id, _)| line_of(graph, cx, id)).collect();
    for rule in &mut rules.all {
        let Some(node) = rule.node else { continue };
        let line = lines[node.index()];
        for (i, value) in rule.operands.clone().into_iter().enumerate() {
            let located = rule.letters.to_letters(&rule.letters.operands[i], &samples.shardings[value.index()]);
            let Some((letter, _)) = located.into_iter().flatten().flatten().next() else { continue };
            if lines[graph.value(value).node.index()] == line {
                continue;
            }
            rule.untied.push(i);
            let data = line.map(|line| &cx.spec.data[line]);
            let axes = data.map_or(&[][..], |data| &data.value.axes);
            let splits = splits(facts, rule.letters.sizes[letter], axes);
            let number = data.or(cx.spec.data.first()).map_or(0, |data| data.source.line as u32);
            facts.split_letter(rule, letter, splits, number);
        }
    }
    Ok(())
}

/// The last `data` line whose scope holds the node.
fn line_of(graph: &Graph, cx: &Context<'_>, node: NodeId) -> Option<usize> {
    let scope = graph.node(node).origin.scope.as_deref().unwrap_or("");
    cx.spec.data.iter().rposition(|line| line.value.on.as_ref().is_none_or(|on| matches_scope(&on.value, scope)))
}

/// A letter of samples: micro-batches, then the axes. None where they do not divide it.
fn splits(facts: &Facts, size: u64, axes: &[AxisId]) -> Splits {
    let all = [facts.mesh.microbatch_axis()].into_iter().chain(axes.iter().copied());
    let split: Vec<AxisId> = all.filter(|axis| facts.mesh.size(*axis) > 1).collect();
    outermost(size, 1, &split, &facts.mesh).unwrap_or_default()
}

/// An error for each pattern of scopes that matches none of the model.
pub fn unmatched<'s>(graph: &Graph, cx: &Context<'_>, patterns: impl Iterator<Item = &'s Located<String>>) -> Diagnostics {
    let scopes: BTreeSet<&str> = graph.nodes().filter_map(|(_, n)| n.origin.scope.as_deref()).collect();
    let unmatched = patterns.filter(|on| !scopes.iter().any(|scope| matches_scope(&on.value, scope)));
    let error = |(i, on): (usize, &Located<String>)| {
        let error = Diagnostic::error(format!("no scope of the model matches `{}`", on.value)).at(cx.spec.place_of(on.source));
        error.help_early(i, || names_help(&on.value, scopes.iter().copied()))
    };
    unmatched.enumerate().map(error).collect()
}
