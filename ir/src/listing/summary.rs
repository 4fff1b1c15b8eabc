//! The bytes that ranks hold and send: the form of `inspect --format json`.

use super::carried::{carried, carried_by};
use super::kinds::{GRADIENTS, kept_copies, kinds};
use crate::kernel::{Collective, CommunicationKind, Kernel};
use crate::mesh::AxisId;
use crate::plan::{Buffer, BufferKind, Program, StateRole};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// One rank, and what it holds and sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankSummary<'p> {
    /// Its number.
    pub rank: u64,
    /// Its place on each axis of the mesh.
    pub coordinates: NamedSizes,
    /// That of its program.
    #[serde(flatten)]
    pub held: &'p ProgramSummary,
}

/// The memory and the messages of each rank that runs a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSummary {
    /// The size of its arena: everything that it ever holds.
    pub peak_bytes: u64,
    /// Weights, frozen ones too, and running statistics.
    pub parameter_bytes: u64,
    /// Gradients, complete at the end of a step, and what sums them up over micro-batches before
    /// they are reduced.
    pub gradient_bytes: u64,
    /// Moments of the optimizer.
    pub optimizer_bytes: u64,
    /// Other values that live within a step.
    pub activation_bytes: u64,
    /// The calls and messages of a step, by kind, axes and what they carry.
    pub communication: Vec<Communication>,
}

/// All calls, or messages, of one kind over the same axes in a step that carry the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Communication {
    /// The kind of the calls.
    pub kind: CommunicationKind,
    /// The axes of their group: `dp`, or `dp,tp`.
    pub axis: String,
    /// What they carry: `gradients`, `parameters`, `activations`, `norm`, `loss`, `statistics` or
    /// `update`.
    pub carries: Cow<'static, str>,
    /// How many, over all micro-batches.
    pub calls: u64,
    /// Bytes that this rank sends with all of them.
    pub bytes_sent: u64,
    /// The bytes that the same communication of the graph costs a rank at least, where a proof has
    /// found them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_bytes: Option<u64>,
}

impl Communication {
    /// The kind's name: `all_reduce`.
    pub fn kind_name(&self) -> String {
        self.kind.name().to_string()
    }
}

/// Numbers by name in an order that matters: the axes of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedSizes(pub Vec<(String, u64)>);

/// The place of `rank` on each axis of a program's mesh, by name.
pub fn coordinates(program: &Program, rank: u64) -> NamedSizes {
    let names = program.mesh.rank_axes().iter().map(|axis| axis.name.clone());
    NamedSizes(names.zip(program.mesh.coordinates(rank)).collect())
}

/// The summary of a program.
pub fn summary(program: &Program) -> ProgramSummary {
    let of_states = |roles: &[StateRole]| -> u64 {
        let states = program.states.iter().filter(|s| roles.contains(&s.role));
        states.map(|s| local_bytes(&program.buffers[s.buffer.index()])).sum()
    };
    let kinds = kinds(program);
    let is_gradient = |(kind, _): &(&&str, &Buffer)| **kind == GRADIENTS;
    let gradients = || kinds.iter().zip(&program.buffers).filter(is_gradient).map(|(_, buffer)| buffer);
    let transient = |b: &&Buffer| matches!(b.kind, BufferKind::Activation | BufferKind::Communication);
    let copies = kept_copies(program, &kinds);
    let copies = || program.buffers.iter().zip(&copies).filter(|(_, kept)| **kept).map(|(buffer, _)| buffer);
    let lasting: u64 = program.buffers.iter().filter(|b| !transient(b)).map(|b| b.slot_bytes * b.slots).sum();
    let sums: u64 = gradients().filter(transient).chain(copies()).map(|b| b.slot_bytes * b.slots).sum();
    ProgramSummary {
        peak_bytes: program.arena_bytes,
        parameter_bytes: of_states(&[StateRole::Parameter, StateRole::Frozen, StateRole::Statistic])
            + copies().map(local_bytes).sum::<u64>(),
        gradient_bytes: gradients().map(local_bytes).sum(),
        optimizer_bytes: of_states(&[StateRole::Moment]),
        activation_bytes: program.arena_bytes.saturating_sub(lasting + sums),
        communication: communication(program),
    }
}

/// The bytes of a buffer's elements, without padding.
fn local_bytes(buffer: &Buffer) -> u64 {
    buffer.local.iter().product::<u64>() * buffer.dtype.bytes() * buffer.slots
}

/// The calls and messages of a rank in a step, by kind, axes and what they carry.
pub fn communication(program: &Program) -> Vec<Communication> {
    let kinds = kinds(program);
    let mut totals: BTreeMap<(CommunicationKind, String, &'static str), (u64, u64)> = BTreeMap::new();
    for (task, times) in program.tasks.iter().zip(program.times()) {
        for (step, times) in task.steps.iter().zip(times) {
            let Kernel::Collective(call) = &step.kernel else { continue };
            let key = (call.kind.into(), axes_text(program, &call.axes), carried(step, &kinds));
            let (calls, bytes) = totals.entry(key).or_default();
            *calls += times;
            *bytes = bytes.saturating_add(times.saturating_mul(bytes_sent(program, call)));
        }
    }
    for (message, _) in (0..program.order.len()).flat_map(|row| program.exchange(row)).filter(|(message, _)| message.sends) {
        let key = (CommunicationKind::Send, axes_text(program, &[message.axis]), carried_by(message, &kinds));
        let (calls, bytes) = totals.entry(key).or_default();
        *calls += 1;
        *bytes = bytes.saturating_add(message.view.bytes);
    }
    let entry = |((kind, axis, carries), (calls, bytes_sent))| Communication {
        kind,
        axis,
        carries: Cow::Borrowed(carries),
        calls,
        bytes_sent,
        least_bytes: None,
    };
    totals.into_iter().map(entry).collect()
}

/// What a rank sends in a step, by kind and axes alone, as ranks count it.
pub fn communication_by_kind(program: &Program) -> Vec<Communication> {
    let mut sums: Vec<Communication> = vec![];
    for sent in communication(program) {
        match sums.last_mut().filter(|sum| (sum.kind, &sum.axis) == (sent.kind, &sent.axis)) {
            Some(sum) => {
                sum.calls += sent.calls;
                sum.bytes_sent = sum.bytes_sent.saturating_add(sent.bytes_sent);
                sum.carries = Cow::Borrowed("all");
            }
            None => sums.push(sent),
        }
    }
    sums
}

/// The axes of a group: `dp,tp`.
pub fn axes_text(program: &Program, axes: &[AxisId]) -> String {
    axes.iter().map(|axis| program.mesh.name(*axis)).collect::<Vec<_>>().join(",")
}

/// Bytes that each member of `call`'s group sends.
pub fn bytes_sent(program: &Program, call: &Collective) -> u64 {
    call.bytes_sent(call.axes.iter().map(|a| program.mesh.size(*a)).product())
}

impl Serialize for NamedSizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, size) in &self.0 {
            map.serialize_entry(name, size)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for NamedSizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NamedSizes, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = NamedSizes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedSizes, A::Error> {
                let mut entries = vec![];
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(NamedSizes(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
