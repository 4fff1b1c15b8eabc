//! The communicators of a rank: one of all ranks, one for each set of axes that calls go over, and
//! one for each way of messages, of the two ranks between which they go. Each way has a stream, and
//! what NCCL is told of one communicator is done in one order, whatever the streams: so ways share
//! none, with each other or with calls.
//!
//! All ranks make communicators together. So ways are made in rounds, and those of a round have no
//! rank in common: a chain of positions takes four rounds, and a ring at most seven, however long.

use crate::device::{Comm, CommId, CommState, Device, GoOn};
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::plan::Way;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// The communicators of a rank.
#[derive(Debug, Default)]
pub struct Groups {
    all: Option<Comm>,
    parts: BTreeMap<Vec<AxisId>, Comm>,
    /// In the order of their rounds, which all ranks keep.
    ways: Vec<(Way, Comm)>,
}

/// Ways of messages that are made together, by the positions of an axis that they lead from and to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Round {
    axis: AxisId,
    ways: Vec<[u64; 2]>,
}

impl Groups {
    /// Joins all ranks, then the ranks of each group and the two of each way of messages, in one
    /// order on all ranks: the groups and ways of all programs, as a group may be of ranks with
    /// several.
    ///
    /// # Errors
    /// If a rank does not come, or NCCL fails.
    pub fn join(device: &dyn Device, id: &CommId, set: &PlanSet, rank: u64, go_on: GoOn<'_>) -> Result<Groups, Reason> {
        let mesh = set.mesh();
        let all = device.join(id, mesh.world_size() as u32, rank as u32, go_on)?;
        let mut groups = Groups { all: Some(all), parts: BTreeMap::new(), ways: vec![] };
        for axes in axes(set) {
            if is_all(mesh, &axes) {
                continue;
            }
            let members = mesh.group(rank, &axes);
            let place = members.iter().position(|member| *member == rank).ok_or("a rank outside its group")?;
            let color = members.iter().min().copied().unwrap_or(0) as u32;
            let part = device.split(all, Some(color), place as u32, go_on)?.ok_or("a group without a communicator")?;
            groups.parts.insert(axes, part);
        }
        for Round { axis, ways } in rounds(ways(set)) {
            let own = mesh.coordinates(rank)[axis.index()];
            let way = ways.into_iter().find(|ends| ends.contains(&own)).map(|[from, to]| {
                let sends = from == own;
                Way { sends, axis, peer: if sends { to } else { from } }
            });
            let color = way.map(|way| rank.min(neighbour(mesh, rank, way)) as u32);
            let part = device.split(all, color, rank as u32, go_on)?;
            groups.ways.extend(way.zip(part));
        }
        Ok(groups)
    }

    fn all(&self) -> Result<Comm, Reason> {
        self.all.ok_or_else(|| "one rank has no communicator".into())
    }

    /// That of the ranks along `axes`.
    ///
    /// # Errors
    /// If there is none.
    pub fn along(&self, mesh: &Mesh, axes: &[AxisId]) -> Result<Comm, Reason> {
        let axes = apart(mesh, axes);
        if is_all(mesh, &axes) {
            return self.all();
        }
        self.parts.get(&axes).copied().ok_or_else(|| "a call over a group that has no communicator".into())
    }

    /// That of messages that go a way, and the number in it of the other rank: that of lower number
    /// comes first.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_way(&self, mesh: &Mesh, rank: u64, way: Way) -> Result<(Comm, u32), Reason> {
        let found = self.ways.iter().find(|(known, _)| *known == way);
        let (_, comm) = found.ok_or_else(|| reason!("there is no communicator of messages {}", way.name(mesh)))?;
        Ok((*comm, u32::from(neighbour(mesh, rank, way) > rank)))
    }

    /// Those that there are.
    pub fn each(&self) -> impl Iterator<Item = Comm> {
        self.parts.values().copied().chain(self.ways.iter().map(|(_, comm)| *comm)).chain(self.all)
    }

    /// Whether all that was asked of them is under way; an error if one has failed.
    ///
    /// # Errors
    /// What NCCL says.
    pub fn are_ready(&self, device: &dyn Device) -> Result<bool, Reason> {
        let mut ready = true;
        for comm in self.each() {
            match device.state(comm)? {
                CommState::Ready => {}
                CommState::InProgress => ready = false,
                CommState::Failed(why) => return Err(reason!("a communicator failed: {why}")),
            }
        }
        Ok(ready)
    }

    /// Ends them: properly, or whatever they do.
    pub fn end(&mut self, device: &dyn Device, properly: bool) {
        for comm in self.each() {
            // There is nothing to be done about a communicator that does not end.
            let _ = if properly { device.leave(comm) } else { device.abort(comm) };
        }
        *self = Groups::default();
    }
}

/// The rank at the other end of a way.
fn neighbour(mesh: &Mesh, rank: u64, way: Way) -> u64 {
    let mut coordinates = mesh.coordinates(rank);
    coordinates[way.axis.index()] = way.peer;
    mesh.rank(&coordinates)
}

/// The ways of the messages of all programs, each with the positions from which and to which.
fn ways(set: &PlanSet) -> BTreeSet<(AxisId, [u64; 2])> {
    let mut all = BTreeSet::new();
    for (place, program) in set.places(set.mesh()).iter().zip(&set.of) {
        let sent = set.programs[*program].ways().into_iter().filter(|way| way.sends);
        all.extend(sent.map(|way| (way.axis, [place[way.axis.index()], way.peer])));
    }
    all
}

/// Each way in the first round that has neither of its ends.
fn rounds(ways: BTreeSet<(AxisId, [u64; 2])>) -> Vec<Round> {
    let mut rounds: Vec<Round> = vec![];
    for (axis, ends) in ways {
        let is_apart = |way: &[u64; 2]| way.iter().all(|end| !ends.contains(end));
        match rounds.iter_mut().find(|round| round.axis == axis && round.ways.iter().all(is_apart)) {
            Some(round) => round.ways.push(ends),
            None => rounds.push(Round { axis, ways: vec![ends] }),
        }
    }
    rounds
}

/// Whether the ranks along `axes` are all, in their order.
fn is_all(mesh: &Mesh, axes: &[AxisId]) -> bool {
    mesh.group(0, axes).into_iter().eq(0..mesh.world_size())
}

/// Axes of more than one rank.
fn apart(mesh: &Mesh, axes: &[AxisId]) -> Vec<AxisId> {
    axes.iter().copied().filter(|axis| mesh.size(*axis) > 1).collect()
}

/// The axes of all calls of all programs.
fn axes(set: &PlanSet) -> BTreeSet<Vec<AxisId>> {
    let steps = set.programs.iter().flat_map(|program| &program.tasks).flat_map(|task| &task.steps);
    let of = |kernel: &Kernel| match kernel {
        Kernel::Collective(call) => Some(apart(set.mesh(), &call.axes)),
        _ => None,
    };
    steps.filter_map(|step| of(&step.kernel)).filter(|axes| !axes.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_each_way_once_and_no_position_twice() {
        let both = |a: u64, b: u64| [[a, b], [b, a]];
        let chain: Vec<[u64; 2]> = (0..63).flat_map(|at| both(at, at + 1)).collect();
        let ring: Vec<[u64; 2]> = chain.iter().copied().chain(both(63, 0)).collect();
        for (ends, most) in [(chain, 4), (ring, 7)] {
            let axis = AxisId(0);
            let rounds = rounds(ends.iter().map(|ends| (axis, *ends)).collect());
            assert!(rounds.len() <= most, "{} rounds", rounds.len());
            let all: BTreeSet<[u64; 2]> = rounds.iter().flat_map(|round| round.ways.iter().copied()).collect();
            assert_eq!(all, ends.into_iter().collect());
            for round in rounds {
                let positions: BTreeSet<u64> = round.ways.iter().flatten().copied().collect();
                assert_eq!(positions.len(), 2 * round.ways.len());
            }
        }
    }
}
