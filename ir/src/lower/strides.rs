//! Strides of one tensor over the elements of another.

use crate::kernel::signature::row_major;

/// The strides of a contiguous tensor of shape `from` broadcast to `to`.
pub(super) fn broadcast_strides(from: &[u64], to: &[u64]) -> Vec<i64> {
    let own = row_major(from);
    let skip = to.len() - from.len();
    (0..to.len()).map(|d| if d < skip || from[d - skip] == 1 { 0 } else { own[d - skip] }).collect()
}

/// A contiguous tensor of shape `local` lies over an iteration space with `strides` (in its
/// elements); another has strides `own` over the dimensions of `local`. The other's strides over
/// the space, if there are such.
pub(super) fn restride(space: &[u64], strides: &[i64], local: &[u64], own: &[i64]) -> Option<Vec<i64>> {
    if local.contains(&0) {
        // Nothing is read of it.
        return Some(vec![0; space.len()]);
    }
    let weights = row_major(local);
    space.iter().zip(strides).map(|(n, stride)| walk(*n as i64, *stride, local, &weights, own)).collect()
}

/// The stride in the other tensor of a walk of `n` steps of `stride` elements.
fn walk(n: i64, stride: i64, local: &[u64], weights: &[i64], own: &[i64]) -> Option<i64> {
    if n == 1 || stride == 0 {
        return Some(0);
    }
    // The innermost dimension that the walk moves along, then outward while it overflows.
    let mut covered = 1;
    let mut step = None;
    for d in (0..local.len()).rev() {
        let size = local[d] as i64;
        if size == 1 {
            continue;
        }
        let reach = stride * covered;
        if reach >= weights[d] * size {
            continue;
        }
        if reach % weights[d] != 0 {
            return None;
        }
        let steps = reach / weights[d];
        let here = own[d] * steps;
        match step {
            None => step = Some(here),
            Some(first) if here != first * covered => return None,
            Some(_) => {}
        }
        if size % steps != 0 {
            return None;
        }
        covered *= size / steps;
        if covered >= n {
            return (covered % n == 0).then_some(step.unwrap_or(0));
        }
    }
    None
}

/// The dimension of the space that is dimension `dim` of `local`, where both are contiguous over
/// the same elements.
pub(super) fn index_dim(space: &[u64], local: &[u64], dim: u16) -> Option<u16> {
    let (weights, size) = (row_major(local), local[dim as usize]);
    let over = row_major(space);
    (0..space.len()).find(|d| space[*d] == size && over[*d] == weights[dim as usize]).map(|d| d as u16)
}
