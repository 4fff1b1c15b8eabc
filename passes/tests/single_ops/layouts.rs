//! Random meshes, and random shardings of an op's operands and results: splits that travel along
//! its letters, partial sums that pass, and what agrees with nothing.

use shardc_ir::dtype::DType;
use shardc_ir::letters::{Assignment, Letters};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::Op;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Sharding, Split, with_split};
use shardc_ir::types::Type;
use shardc_testkit::random::Random;

/// Axes of ranks: at most eight ranks together.
const MESHES: [&[u64]; 14] =
    [&[1], &[2], &[3], &[4], &[2, 2], &[1, 2], &[2, 3], &[3, 2], &[2, 4], &[4, 2], &[4, 1], &[2, 2, 2], &[1, 4, 2], &[2, 1, 3]];

/// The shardings of an op's operands, and those wanted of its results.
pub struct Layout {
    /// Over which axes.
    pub mesh: Mesh,
    /// Of each operand.
    pub operands: Vec<Sharding>,
    /// Of each result; none is partial.
    pub results: Vec<Sharding>,
}

/// A random layout of `op`. Operands in `states` are neither partial nor split over micro-batches.
pub fn layout(op: &Op, operands: &[Type], results: &[Type], states: &[usize], random: &mut Random) -> Layout {
    let sizes = random.pick(&MESHES).expect("there are meshes");
    let microbatches = [1, 1, 2, 2, 3, 4][random.below(6)];
    let mesh = Mesh::new(sizes.iter().zip(["a", "b", "c"]).map(|(n, name)| (name.to_string(), *n)), microbatches);
    let letters = op.rules().letters(operands, results);
    let sets = op.rules().linear(operands).sets(operands.len());
    let replicated = |types: &[Type]| types.iter().map(|ty| Sharding::replicated(ty.rank())).collect();
    let mut layout = Layout { mesh, operands: replicated(operands), results: replicated(results) };
    let kinds: Vec<ReduceKind> =
        operands.iter().map(|_| [ReduceKind::Sum, ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][random.below(4)]).collect();
    let may = |axis: AxisId, i: usize| axis != layout.mesh.microbatch_axis() || !states.contains(&i);
    let is_number = |i: usize| operands[i].dtype != DType::Bool && !states.contains(&i);
    // Splits along letters first: dimensions are put together from all of them. Splits over axes of
    // one rank are none (`annotate.rs`).
    let axes = (0..layout.mesh.axes().len() as u8).map(AxisId).filter(|axis| layout.mesh.size(*axis) > 1);
    let plans: Vec<(AxisId, usize)> = axes.map(|axis| (axis, random.below(8))).collect();
    let mut assignment: Assignment = vec![vec![]; letters.sizes.len()];
    for (axis, _) in plans.iter().filter(|(_, plan)| *plan < 3) {
        let over_states = states.iter().any(|i| !may(*axis, *i));
        extend(&letters, &mut assignment, *axis, &layout.mesh, random, |l| {
            over_states && states.iter().any(|i| Letters::flat(&letters.operands[*i]).contains(&l))
        });
    }
    for (sharding, dims) in layout.operands.iter_mut().zip(&letters.operands) {
        sharding.dims = letters.project(dims, &assignment);
    }
    if random.below(4) > 0 {
        for (sharding, dims) in layout.results.iter_mut().zip(&letters.results) {
            sharding.dims = letters.project(dims, &assignment);
        }
    }
    for (axis, plan) in plans {
        match plan {
            3 | 4 if !sets.is_empty() => {
                let set = random.pick(&sets).unwrap_or_default();
                let fits = |i: &usize| is_number(*i) && layout.operands[*i].partial.iter().all(|p| p.kind == ReduceKind::Sum);
                if set.iter().all(fits) {
                    set.iter().for_each(|i| layout.operands[*i].add_partial(axis, ReduceKind::Sum));
                }
            }
            3..=6 => {
                for (i, sharding) in layout.operands.iter_mut().enumerate() {
                    let kind = sharding.partial.first().map_or(kinds[i], |p| p.kind);
                    match random.below(3) {
                        0 if is_number(i) => sharding.add_partial(axis, kind),
                        1 if axis != layout.mesh.microbatch_axis() || !states.contains(&i) => {
                            split(sharding, &operands[i].shape, axis, &layout.mesh, random);
                        }
                        _ => {}
                    }
                }
                for (sharding, ty) in layout.results.iter_mut().zip(results) {
                    if random.below(2) == 0 {
                        split(sharding, &ty.shape, axis, &layout.mesh, random);
                    }
                }
            }
            _ => {}
        }
    }
    layout
}

/// Splits a random letter over `axis`, where there is one that may be.
fn extend(
    letters: &Letters,
    assignment: &mut Assignment,
    axis: AxisId,
    mesh: &Mesh,
    random: &mut Random,
    refused: impl Fn(usize) -> bool,
) {
    for _ in 0..4 {
        let letter = random.below(letters.sizes.len());
        let found = letters.sizes.get(letter).and_then(|size| random.pick(&strides(*size, mesh.size(axis))));
        let Some(stride) = found.filter(|_| !refused(letter)) else { continue };
        if let Some(splits) = letters.extend(assignment, letter, Split { axis, stride }, mesh) {
            assignment[letter] = splits;
            return;
        }
    }
}

/// Splits a random dimension over `axis`, where one has a digit for it.
fn split(sharding: &mut Sharding, shape: &[u64], axis: AxisId, mesh: &Mesh, random: &mut Random) {
    if sharding.depends_on(axis) {
        return;
    }
    for _ in 0..4 {
        let dim = random.below(shape.len());
        let found = shape.get(dim).and_then(|size| random.pick(&strides(*size, mesh.size(axis))));
        let splits = found.and_then(|stride| with_split(&sharding.dims[dim], Split { axis, stride }, shape[dim], mesh));
        if let Some(splits) = splits {
            sharding.dims[dim] = splits;
            return;
        }
    }
}

/// The weights of a digit with `positions` values in a number below `size`.
fn strides(size: u64, positions: u64) -> Vec<u64> {
    (1..=size).filter(|stride| size.is_multiple_of(stride * positions)).collect()
}
