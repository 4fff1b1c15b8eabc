//! Chapter 4 of the verifier: what communication changes.

use super::Found;
use crate::graph::{Graph, NodeId};
use crate::mesh::{AxisId, Mesh};
use crate::ops::Op;
use crate::ops::comm::{AllToAll, Transfer};
use crate::reason;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::sharding::{At, Partial, Sharding, Split, inserted, well_formed};
use crate::types::Type;

/// Checks a communication op.
pub(super) fn check(graph: &Graph, id: NodeId, found: &mut Found) {
    let node = graph.node(id);
    // Text has these as numbers.
    let flat: &[AxisId] = match &node.op {
        Op::FlatGather(op) => &op.axes,
        Op::FlatScatter(op) => &op.axes,
        Op::FlatSlice(op) => &op.axes,
        _ => &[],
    };
    if flat.iter().any(|axis| axis.index() >= graph.mesh.axes().len()) {
        return found.node(id, None, "names an axis that the mesh does not have");
    }
    let (from, to) = (graph.sharding(node.operands[0]), graph.sharding(node.results[0]));
    let time = graph.mesh.microbatch_axis();
    let changes_dims = matches!(node.op, Op::AllGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_) | Op::ShardSlice(_));
    let expected = match &node.op {
        _ if changes_dims && !from.flat.is_empty() => Err("its operand is cut as a line, which has no dimensions".into()),
        Op::AllReduce(op) if op.axes.contains(&time) => Err("micro-batches are accumulated, not all-reduced".into()),
        Op::AllReduce(op) => without_partial(from, &op.axes, op.kind, &graph.mesh),
        Op::Accumulate(op) => without_partial(from, &[time], op.kind, &graph.mesh),
        Op::AllGather(op) if op.split.axis == time => Err("micro-batches are not gathered".into()),
        Op::AllGather(op) => without_split(from, op.dim, op.split, &graph.mesh),
        Op::ReduceScatter(op) if op.split.axis == time => Err("micro-batches are accumulated, not scattered".into()),
        Op::ReduceScatter(op) => without_partial(from, &[op.split.axis], op.kind, &graph.mesh)
            .and_then(|whole| with(&whole, graph.ty(node.results[0]), op.dim, op.split, &graph.mesh)),
        Op::AllToAll(op) if op.split.axis == time || op.to_split.axis != op.split.axis => {
            Err("one axis of ranks moves from one digit to another".into())
        }
        Op::AllToAll(op) => exchanged(from, graph.ty(node.results[0]), op, &graph.mesh),
        Op::ShardSlice(op) => match without_split(to, op.dim, op.split, &graph.mesh) {
            Ok(unsplit) if unsplit != *from => Err("changes more than the one split".into()),
            unsplit => unsplit.map(|_| to.clone()),
        },
        Op::FlatGather(op) => without_flat(from, &op.axes, &graph.mesh),
        Op::FlatScatter(op) => without_partial(from, &op.axes, op.kind, &graph.mesh).and_then(|to| with_flat(&to, &op.axes)),
        Op::FlatSlice(op) => with_flat(from, &op.axes),
        Op::Transfer(op) => transferred(from, op, &graph.mesh),
        _ if !to.partial.iter().all(|p| from.partial.contains(p)) => Err("makes a value partial".into()),
        _ => Ok(to.clone()),
    };
    match expected {
        Err(why) => found.node(id, None, why),
        Ok(expected) if expected != *to => {
            let shape = &graph.ty(node.results[0]).shape;
            let text = match expected.text(shape, &graph.mesh) {
                text if text.is_empty() => "whole".to_string(),
                text => text,
            };
            found.node(id, Some(node.results[0]), format!("should be {text}"));
        }
        Ok(_) => {}
    }
}

fn without_partial(from: &Sharding, axes: &[AxisId], kind: ReduceKind, mesh: &Mesh) -> Result<Sharding, Reason> {
    let mut to = from.clone();
    for axis in axes {
        match to.partial.iter().position(|p| *p == Partial { axis: *axis, kind }) {
            Some(at) => to.partial.remove(at),
            None => return Err(reason!("the operand is no partial {} over `{}`", kind.name(), mesh.name(*axis))),
        };
    }
    Ok(to)
}

fn without_flat(from: &Sharding, axes: &[AxisId], mesh: &Mesh) -> Result<Sharding, Reason> {
    if from.flat != axes || axes.is_empty() {
        let names: Vec<&str> = axes.iter().filter(|a| a.index() < mesh.axes().len()).map(|a| mesh.name(*a)).collect();
        return Err(reason!("the operand is not flat over `{}`", names.join(" ")));
    }
    Ok(Sharding { flat: vec![], ..from.clone() })
}

fn with_flat(from: &Sharding, axes: &[AxisId]) -> Result<Sharding, Reason> {
    if !from.flat.is_empty() || axes.is_empty() {
        return Err("the operand is flat already, or over nothing".into());
    }
    Ok(Sharding { flat: axes.to_vec(), ..from.clone() })
}

/// Refuses digits that overlap, with what the axis leaves behind too: the exchange tells all of
/// them apart.
fn exchanged(from: &Sharding, ty: &Type, op: &AllToAll, mesh: &Mesh) -> Result<Sharding, Reason> {
    let whole = without_split(from, op.dim, op.split, mesh)?;
    let both = if op.dim == op.to_dim { from } else { &whole };
    with(both, ty, op.to_dim, op.to_split, mesh)?;
    with(&whole, ty, op.to_dim, op.to_split, mesh)
}

/// Refuses positions that are not there, and a sender that does not hold the value.
fn transferred(from: &Sharding, op: &Transfer, mesh: &Mesh) -> Result<Sharding, Reason> {
    if op.axis.index() >= mesh.rank_axes().len() {
        return Err("it crosses an axis that the mesh does not have".into());
    }
    let name = mesh.name(op.axis);
    let ascend = op.to.windows(2).all(|pair| pair[0] < pair[1]);
    if op.to.is_empty() || !ascend || op.to.iter().chain([&op.from]).any(|position| *position >= mesh.size(op.axis)) {
        return Err(reason!("its positions are no positions of `{name}`, ascending"));
    }
    let held = from.at.as_ref().is_some_and(|at| at.axis == op.axis && at.has(op.from));
    if !held {
        return Err(reason!("the operand is not held at position {} of `{name}` alone", op.from));
    }
    Ok(Sharding { at: At::of(op.axis, op.to.iter().copied().collect(), mesh), ..from.clone() })
}

fn with(from: &Sharding, ty: &Type, dim: usize, split: Split, mesh: &Mesh) -> Result<Sharding, Reason> {
    let mut to = from.clone();
    let splits = to.dims.get_mut(dim).ok_or_else(|| reason!("there is no dimension {dim}"))?;
    *splits = inserted(splits, split);
    if !well_formed(splits, ty.shape[dim], mesh) {
        return Err(reason!("`{}` cannot split dimension {dim} there", mesh.name(split.axis)));
    }
    Ok(to)
}

fn without_split(from: &Sharding, dim: usize, split: Split, mesh: &Mesh) -> Result<Sharding, Reason> {
    let mut to = from.clone();
    let splits = to.dims.get_mut(dim).ok_or_else(|| reason!("there is no dimension {dim}"))?;
    let at = splits.iter().position(|s| *s == split);
    splits.remove(at.ok_or_else(|| reason!("`{}` does not split dimension {dim} there", mesh.name(split.axis)))?);
    Ok(to)
}
