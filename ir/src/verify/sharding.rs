//! Chapter 2 of the verifier: shardings by themselves.

use super::Found;
use crate::graph::{Graph, Phase};
use crate::mesh::Mesh;
use crate::reason;
use crate::reason::Reason;
use crate::sharding::{At, Sharding, well_formed};

/// Checks every value and state.
pub(super) fn check(graph: &Graph, found: &mut Found) {
    let check = |shape: &[u64], sharding: &Sharding| {
        if graph.phase < Phase::Annotated && !sharding.is_replicated() {
            return Err(reason!("is not whole everywhere, which belongs to phase `{}`", Phase::Annotated));
        }
        check_sharding(shape, sharding, &graph.mesh)
    };
    for (id, value) in graph.values() {
        if let Err(why) = check(&value.ty.shape, &value.sharding) {
            found.node(value.node, Some(id), why);
        }
    }
    for (i, state) in graph.states.iter().enumerate() {
        let time = graph.mesh.microbatch_axis();
        if let Err(why) = check(&state.ty.shape, &state.sharding) {
            found.state(i, why);
        } else if !state.sharding.partial.is_empty() || state.sharding.splits(time) {
            found.state(i, "is partial or split over time");
        }
    }
}

fn check_sharding(shape: &[u64], sharding: &Sharding, mesh: &Mesh) -> Result<(), Reason> {
    if sharding.dims.len() != shape.len() {
        return Err(reason!("has {} dimensions, its sharding {}", shape.len(), sharding.dims.len()));
    }
    let splits = sharding.dims.iter().flatten().map(|s| s.axis).chain(sharding.flat.iter().copied());
    let mut axes: Vec<usize> = splits.chain(sharding.partial.iter().map(|p| p.axis)).map(|a| a.index()).collect();
    if let Some(axis) = axes.iter().find(|a| **a >= mesh.axes().len()) {
        return Err(reason!("is split or partial over axis {axis}, which the mesh does not have"));
    }
    for (d, (splits, size)) in sharding.dims.iter().zip(shape).enumerate() {
        if !well_formed(splits, *size, mesh) {
            return Err(reason!("the splits of dimension {d} are no digits of an index below {size}"));
        }
    }
    if sharding.flat.iter().any(|axis| axis.index() >= mesh.rank_axes().len()) {
        return Err("is flat over an axis that is none of ranks".into());
    }
    if let Some(at) = &sharding.at {
        check_at(at, mesh)?;
        axes.push(at.axis.index());
    }
    axes.sort();
    if let Some(twice) = axes.windows(2).find(|w| w[0] == w[1]) {
        return Err(reason!("depends on `{}` twice", mesh.axes()[twice[0]].name));
    }
    if sharding.partial.windows(2).any(|w| w[0].axis > w[1].axis) {
        return Err("its partial axes are not in order".into());
    }
    if sharding.partial.windows(2).any(|w| w[0].kind != w[1].kind) {
        return Err("is partial in two ways, whose order would matter".into());
    }
    Ok(())
}

fn check_at(at: &At, mesh: &Mesh) -> Result<(), Reason> {
    if at.axis.index() >= mesh.rank_axes().len() {
        return Err("is held at positions of an axis of ranks that the mesh does not have".into());
    }
    let size = mesh.size(at.axis);
    let ascend = at.positions.windows(2).all(|pair| pair[0] < pair[1]);
    let some = !at.positions.is_empty() && (at.positions.len() as u64) < size;
    match ascend && some && at.positions.iter().all(|position| *position < size) {
        true => Ok(()),
        false => Err(reason!("its positions are not some of `{}`, ascending", mesh.name(at.axis))),
    }
}
