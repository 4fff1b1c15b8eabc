//! `sequence axis=tp`: activations between the regions of tensor parallelism are split by tokens.
//!
//! Before: `%y = contract "btn,nd->btd" %a, %w2` with n over tp, all that follows whole. After:
//! `%y {-, tp, -}`, and so are the norms, residual sums and dropouts that follow, up to the next
//! layer that is split over tp. The all-reduce of `%y` becomes a reduce-scatter, and an all-gather
//! before that layer. A token dimension is one of a layer's result that comes from its input, is
//! neither the batch nor contracted, and may be split. Refuses tokens that the ranks do not divide,
//! and models without such regions. Source: Korthikanti et al., Reducing Activation Recomputation
//! in Large Transformer Models (2022).

use super::facts::{Facts, LetterTable, Rule};
use super::samples::samples;
use crate::pass::{Context, Mode};
use crate::weights::weights;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted};
use shardc_ir::graph::Graph;
use shardc_ir::letters::{Letter, Role};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::sharding::Split;
use shardc_ir::spec::Located;

/// Splits the tokens of what leaves the regions of tensor parallelism over `line`'s axis, wherever
/// they go in the model.
///
/// # Errors
/// If there is no such region, or the ranks do not divide the tokens.
pub fn split_tokens(
    graph: &Graph,
    cx: &Context<'_>,
    line: &Located<AxisId>,
    rules: &LetterTable,
    facts: &mut Facts,
) -> Result<(), Diagnostics> {
    let axis = line.value;
    let (ranks, name) = (graph.mesh.size(axis), graph.mesh.name(axis).to_string());
    if ranks == 1 {
        return Ok(());
    }
    let at_line = |message: String| Diagnostic::error(message).at(cx.spec.place_of(line.source));
    let weights = weights(graph);
    let samples = samples(graph, rules);
    let mut seeds = vec![];
    let mut regions = 0;
    for (r, rule) in rules.all.iter().enumerate().filter(|(_, rule)| rule.is_forward) {
        if !leaves_region(rule, facts, axis, &weights) {
            continue;
        }
        regions += 1;
        let Some(tokens) = tokens(rule, &samples, &weights) else { continue };
        let size = rule.letters.sizes[tokens];
        if !size.is_multiple_of(ranks) {
            let weight = rule.operands.iter().find(|v| weights[v.index()]).map_or("", |v| &graph.value(*v).name);
            let message =
                format!("`{name}` has {ranks} ranks, which do not divide the {} behind \"{weight}\"", counted(size, "token"));
            let help = format!("use `{name}` of a size that divides {size}, or remove the line: weights stay split");
            return Err(at_line(message).help(help).into());
        }
        seeds.push((r, tokens, Split { axis, stride: size / ranks }));
    }
    // Without its backward pass a model may have other blocks; what is trained decides whether the
    // line is of use.
    if seeds.is_empty() && cx.mode == Mode::Train {
        let is_there = cx.spec.tensor.iter().any(|tensor| tensor.value.axis == axis);
        return Err(match (regions, is_there) {
            (0, false) => at_line(format!("no layer is split over `{name}` between which tokens could be split"))
                .help(format!("add a line such as `tensor axis={name}`")),
            (0, true) => at_line(format!("no layer is split over `{name}` between which tokens could be split"))
                .help(format!("`tensor axis={name}` splits none: remove both lines, or split weights with `shard` lines")),
            _ => at_line(format!("what the layers that are split over `{name}` give has no dimension of tokens"))
                .help("remove the line: the weights stay split"),
        }
        .into());
    }
    // Data is there whole: a rank takes its part where it reads it, and the whole where it needs
    // that.
    for (_, node) in graph.nodes().filter(|(_, node)| matches!(node.op, Op::Input(_))) {
        facts.close(node.results[0]);
    }
    for (r, tokens, split) in seeds {
        facts.split_results(&rules.all[r], tokens, split, line.source.line as u32);
    }
    Ok(())
}

/// Whether the result is partial over `axis` because a weight is split.
fn leaves_region(rule: &Rule, facts: &Facts, axis: AxisId, weights: &[bool]) -> bool {
    let splits = |letter: &Letter| matches!(rule.letters.roles[*letter], Role::Reduced(_));
    rule.operands.iter().any(|v| weights[v.index()]) && facts.letter(rule, axis).ok().flatten().as_ref().is_some_and(splits)
}

/// The letter of the result's tokens.
fn tokens(rule: &Rule, samples: &Facts, weights: &[bool]) -> Option<Letter> {
    let dims = &rule.letters.results[0];
    // A batch of one sample cannot be told: it comes first.
    let batch = samples.shardings[rule.results[0].index()].dims.iter().position(|splits| !splits.is_empty()).unwrap_or(0);
    let of_weight = |letter: &Letter| {
        let operands = rule.operands.iter().zip(&rule.letters.operands).filter(|(v, _)| weights[v.index()]);
        operands.flat_map(|(_, dims)| dims.iter().flatten()).any(|l| l == letter)
    };
    let free = |letter: &Letter| rule.letters.roles[*letter] == Role::Kept && !of_weight(letter);
    let candidates = dims.iter().enumerate().filter(|(d, _)| *d != batch);
    candidates.filter_map(|(_, letters)| letters.iter().copied().find(free)).find(|l| rule.letters.sizes[*l] > 1)
}
