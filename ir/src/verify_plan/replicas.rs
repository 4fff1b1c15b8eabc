//! Ranks that hold the same state compute what it becomes by the same kernels.
//!
//! Of one program this is so. Of several, each carries out the graph, but one may compute in two
//! kernels what another does in one, and what lies between is then rounded otherwise: replicas
//! would drift apart. So where two programs hold a state together, what both compute they compute
//! alike.

use super::launches::same;
use super::violation::{Violation, numbered};
use crate::kernel::Kernel;
use crate::plan::set::PlanSet;
use crate::plan::{Program, Stream};
use std::collections::{BTreeMap, BTreeSet};

/// Checks every two programs that hold a state together.
///
/// # Errors
/// The steps that differ, and two ranks that run them.
pub fn check(set: &PlanSet<&Program>) -> Result<(), Violation> {
    let states: Vec<BTreeSet<&str>> =
        set.programs.iter().map(|program| program.states.iter().map(|state| state.name.as_str()).collect()).collect();
    let kernels: Vec<Kernels<'_>> = set.programs.iter().map(|program| kernels(program)).collect();
    for a in 0..kernels.len() {
        for b in (a + 1..kernels.len()).filter(|b| !states[a].is_disjoint(&states[*b])) {
            let Some((op, here, there)) = first_difference(&kernels[a], &kernels[b]) else { continue };
            let places = set.places(&set.programs[0].mesh);
            let rank = |p| set.of.iter().position(|of| *of == p).map(|at| set.programs[0].mesh.rank(&places[at]));
            let message = format!("replicas of a state compute `%{op}` by other kernels, step {here} and step {there}");
            let violation = Violation::of(message).between(rank(a).zip(rank(b)));
            return Err(Violation { steps: vec![here, there], ..violation });
        }
    }
    Ok(())
}

/// For each op that ends a kernel, the kernels and the numbers of their steps.
type Kernels<'p> = BTreeMap<&'p str, Vec<(&'p Kernel, usize)>>;

fn kernels(program: &Program) -> Kernels<'_> {
    let mut kernels = Kernels::new();
    for (number, _, step) in numbered(program).filter(|(_, _, step)| step.stream == Stream::Main) {
        if let Some(end) = step.provenance.ops.last() {
            kernels.entry(end).or_default().push((&step.kernel, number));
        }
    }
    kernels
}

fn first_difference<'p>(a: &Kernels<'p>, b: &Kernels<'p>) -> Option<(&'p str, usize, usize)> {
    a.iter().find_map(|(op, here)| {
        let there = b.get(op)?;
        let differs = here.len() != there.len() || here.iter().zip(there).any(|((a, _), (b, _))| !same(a, b));
        differs.then(|| (*op, here[0].1, there[0].1))
    })
}
