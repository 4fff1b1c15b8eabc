//! The communicators of a rank: one of all ranks, one for each set of axes that calls go over, and
//! one of all ranks for messages. Calls and messages are in different streams, and what NCCL is
//! told of one communicator is done in one order, whatever the streams: so they share none.

use crate::device::{Comm, CommId, CommState, Device, GoOn};
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// The communicators of a rank.
#[derive(Debug, Default)]
pub struct Groups {
    all: Option<Comm>,
    parts: BTreeMap<Vec<AxisId>, Comm>,
    messages: Option<Comm>,
}

impl Groups {
    /// Joins all ranks, then the ranks of each group, in one order on all ranks, and all ranks once
    /// more where there are messages: those of all programs, as a group may be of ranks with
    /// several.
    ///
    /// # Errors
    /// If a rank does not come, or NCCL fails.
    pub fn join(device: &dyn Device, id: &CommId, set: &PlanSet, rank: u64, go_on: GoOn<'_>) -> Result<Groups, Reason> {
        let mesh = set.mesh();
        let all = device.join(id, mesh.world_size() as u32, rank as u32, go_on)?;
        let mut groups = Groups { all: Some(all), parts: BTreeMap::new(), messages: None };
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
        if set.programs.iter().any(|program| !program.messages.is_empty()) {
            groups.messages = device.split(all, Some(0), rank as u32, go_on)?;
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

    /// That of messages, whose ranks are all, by their numbers.
    ///
    /// # Errors
    /// If there is none.
    pub fn messages(&self) -> Result<Comm, Reason> {
        self.messages.ok_or_else(|| "there is no communicator of messages".into())
    }

    /// Those that there are.
    pub fn each(&self) -> impl Iterator<Item = Comm> {
        self.parts.values().copied().chain(self.messages).chain(self.all)
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
