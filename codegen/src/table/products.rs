//! The products of a task that carry out a second step as well: a map that adds something to the
//! result, or a sum of an operand. The check of tables shows that nothing is lost by it (see
//! [`super::check()`]).

use super::bytes::{clash, meet, of_step, span};
use super::tf32::Rounded;
use crate::matmul::Matmul;
use crate::program::Kernels;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{BufferId, BufferKind, Program, Step, Task, View};
use std::collections::{BTreeMap, BTreeSet};

/// A second step of a product.
#[derive(Debug, Clone)]
pub struct Second {
    /// Its position in the task.
    pub step: usize,
    /// The product with it.
    pub product: Matmul,
    /// Where the result comes.
    pub result: View,
    /// The matrix that is added.
    pub added: Option<View>,
    /// The vector of the epilogue.
    pub vector: Option<View>,
}

/// The product of a step by itself, where cuBLASLt computes it: in TF32 where that rounds nothing.
pub fn own(step: &Step, kernels: &Kernels, rounded: &Rounded) -> Option<Matmul> {
    let product = kernels.product(step)?;
    Some(if rounded.reads(step) { product.with_tf32() } else { product })
}

/// The second steps of the products of a task that have one, by the positions of the products'
/// own steps.
pub fn of(program: &Program, task: &Task, kernels: &Kernels, rounded: &Rounded) -> BTreeMap<usize, Second> {
    let (mut found, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (at, step) in task.steps.iter().enumerate() {
        let Some(product) = own(step, kernels, rounded) else { continue };
        let second = behind(program, task, at, &product).or_else(|| beside(program, task, at, &product));
        if let Some(second) = second.filter(|second| taken.insert(second.step)) {
            found.insert(at, second);
        }
    }
    found
}

/// The map right behind a product that adds a vector, a matrix or both to it, and alone reads it.
fn behind(program: &Program, task: &Task, at: usize, product: &Matmul) -> Option<Second> {
    let (own, next) = (&task.steps[at], task.steps.get(at + 1)?);
    let Kernel::Map(map) = &next.kernel else { return None };
    let result = own.writes[0];
    let input = next.reads.iter().position(|read| *read == result)?;
    let is_alike = next.stream == own.stream && next.when == own.when;
    if !is_alike || readers(program, result.buffer) != 1 {
        return None;
    }
    let into = next.writes[0];
    let second = |product, added, vector| Second { step: at + 1, product, result: into, added, vector };
    let second = if let [_, _] = next.reads[..] {
        let other = next.reads[1 - input];
        match product.with_bias(map, input) {
            Some(product) => second(product, None, Some(other)),
            None => second(product.accumulating(map, input)?, Some(other), None),
        }
    } else {
        let (product, vector, matrix) = product.with_bias_accumulating(map, input)?;
        second(product, Some(next.reads[matrix]), Some(next.reads[vector]))
    };
    // What is written is read only where it is added to itself.
    let reads = own.reads.iter().chain(second.vector.as_ref()).chain(second.added.as_ref().filter(|added| **added != into));
    let is_apart = { reads }.all(|read| !clash(&[span(program, read)], &[span(program, &into)]));
    is_apart.then_some(second)
}

/// A sum of an operand of a product, for which it is not too late or too early where the product
/// is.
fn beside(program: &Program, task: &Task, at: usize, product: &Matmul) -> Option<Second> {
    let own = &task.steps[at];
    let Kernel::Contract(contract) = &own.kernel else { return None };
    let is_free = |step: usize| {
        let between = if step < at { &task.steps[step + 1..at] } else { &task.steps[at + 1..step] };
        let sum = of_step(program, &task.steps[step]);
        let [reads, writes] = of_step(program, own);
        let is_apart = !clash(&sum[1], &reads) && !clash(&sum[1], &writes);
        is_apart && between.iter().all(|other| !meet(&sum, &of_step(program, other)))
    };
    let second = |(step, sum): (usize, &Step)| {
        let Kernel::Reduce(reduce) = &sum.kernel else { return None };
        let operand = own.reads.iter().position(|read| sum.reads == [*read])?;
        let is_alike = sum.stream == own.stream && sum.when == own.when;
        let product = product.with_bias_gradient(contract, operand, reduce).filter(|_| is_alike)?;
        Some(Second { step, product, result: own.writes[0], added: None, vector: Some(sum.writes[0]) })
    };
    task.steps.iter().enumerate().filter_map(second).find(|second| is_free(second.step))
}

/// Steps and messages that read a buffer which nobody else sees.
fn readers(program: &Program, id: BufferId) -> usize {
    if program.buffers[id.index()].kind != BufferKind::Activation {
        return usize::MAX;
    }
    let steps = program.tasks.iter().flat_map(|task| &task.steps);
    let reads = steps.map(|step| step.reads.iter().filter(|read| read.buffer == id).count()).sum::<usize>();
    reads + program.messages.iter().filter(|message| message.view.buffer == id).count()
}
