//! Which values are weights, made of parameters and constants alone, and where they meet
//! activations.

use crate::propagate::facts::Rule;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::letters::{Letter, Role};
use shardc_ir::ops::Op;
use shardc_ir::reduce_kind::ReduceKind;

/// For each value, whether it is made of state variables and of no input.
pub fn weights(graph: &Graph) -> Vec<bool> {
    let from_inputs = graph.reached_from(|v| matches!(graph.def(v).op, Op::Input(_)));
    let from_states = graph.reached_from(|v| matches!(graph.def(v).op, Op::State(_)));
    from_inputs.iter().zip(from_states).map(|(input, state)| state && !input).collect()
}

/// For each value, whether a parameter's gradient is it, or a sum that it is a term of, but for the
/// order of elements.
pub fn gradients_of_weights(graph: &Graph) -> Vec<bool> {
    let mut is_gradient = vec![false; graph.value_count()];
    graph.states.iter().filter_map(|s| s.gradient).for_each(|g| is_gradient[g.index()] = true);
    for (_, node) in graph.nodes().rev() {
        if (node.op.is_rearrangement() || node.op.is_sum()) && node.results.iter().any(|v| is_gradient[v.index()]) {
            node.operands.iter().for_each(|v| is_gradient[v.index()] = true);
        }
    }
    is_gradient
}

/// An op that sums products of a weight and an activation.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    /// Which operand is the weight.
    pub weight: usize,
    /// Which operand is the activation.
    pub input: usize,
}

/// The rule as a layer, if it is one.
pub fn layer(rule: &Rule, weights: &[bool]) -> Option<Layer> {
    let weight = rule.operands.iter().position(|v| weights[v.index()])?;
    let input = rule.operands.iter().position(|v| !weights[v.index()])?;
    let layer = Layer { weight, input };
    contracted(rule, layer).next().is_some().then_some(layer)
}

/// The letters over which a layer sums.
pub fn contracted(rule: &Rule, layer: Layer) -> impl Iterator<Item = Letter> + '_ {
    let has = move |operand: usize, letter: Letter| rule.letters.operands[operand].iter().flatten().any(|l| *l == letter);
    let sums = |letter: &Letter| rule.letters.roles[*letter] == Role::Reduced(ReduceKind::Sum) && rule.letters.sizes[*letter] > 1;
    (0..rule.letters.sizes.len()).filter(sums).filter(move |l| has(layer.weight, *l) && has(layer.input, *l))
}

/// The letters of a layer's weight and result that its input lacks.
pub fn columns(rule: &Rule, layer: Layer) -> impl Iterator<Item = Letter> + '_ {
    let has = |dims: &[Vec<Letter>], letter: Letter| dims.iter().flatten().any(|l| *l == letter);
    let of = move |letter: &Letter| {
        let letters = &rule.letters;
        has(&letters.operands[layer.weight], *letter)
            && !has(&letters.operands[layer.input], *letter)
            && letters.results.iter().all(|dims| has(dims, *letter))
            && letters.sizes[*letter] > 1
    };
    (0..rule.letters.sizes.len()).filter(of)
}

/// The parameter that a weight is, however it is turned; the weight itself where it is made of
/// several.
pub fn parameter(graph: &Graph, weight: ValueId) -> ValueId {
    let mut at = weight;
    loop {
        let node = graph.def(at);
        match &node.operands[..] {
            [] => return at,
            [only] if node.op.is_rearrangement() => at = *only,
            _ => return weight,
        }
    }
}

/// The bytes of a value on one device.
pub fn bytes(graph: &Graph, value: ValueId) -> u64 {
    graph.ty(value).elements() * graph.ty(value).dtype.bytes()
}
