//! The ops that each step carries out: its kernel must be the lowering of the ops that it names,
//! constants included, and then follows what it needs of the bytes that it reads and what it leaves
//! in those that it writes.

use super::contents::Item;
use super::launches::same;
use super::subject::Subject;
use super::violation::{self, Violation};
use crate::graph::{NodeId, ValueId};
use crate::kernel::signature::row_major;
use crate::kernel::{Bundle, Collective, Fill, Kernel, Move};
use crate::lower::bundled::bundle;
use crate::lower::fused::fuse;
use crate::lower::{Launch, Lowered, Slot};
use crate::ops::Op;
use crate::plan::{Step, View};
use crate::position::Offset;
use crate::reason;
use crate::reason::Reason;

/// One way in which a step carries out the ops that it names.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// The items that must be there, with their places.
    pub needs: Vec<(View, Item)>,
    /// The items that are there afterwards.
    pub gives: Vec<(View, Item)>,
}

/// All ways in which a step can be what it says; which it is depends on what it reads.
///
/// # Errors
/// Why step `number` is none.
pub fn effects(subject: &Subject<'_>, number: usize, step: &Step) -> Result<Vec<Effect>, Violation> {
    let refuse = |why: Reason| violation::at(number, step, why);
    let mut values = vec![];
    for name in &step.provenance.ops {
        let value = subject.named(name);
        values.push(value.ok_or_else(|| refuse(reason!("carries out `%{name}`, which the graph does not have")))?);
    }
    if let Some(elsewhere) = values.iter().find(|value| !subject.is_here(**value)) {
        let name = &subject.graph.value(*elsewhere).name;
        return Err(refuse(reason!("carries out `%{name}`, which is for other ranks")));
    }
    let mut nodes: Vec<NodeId> = values.iter().map(|v| subject.graph.value(*v).node).collect();
    nodes.dedup();
    let Some(end) = nodes.iter().max().copied() else { return Err(refuse("names no op of the graph".into())) };
    let expected = match subject.lowered.node(end) {
        _ if matches!(step.kernel, Kernel::Bundle(_)) => bundled(subject, &nodes, step),
        Lowered::Map(_) | Lowered::Reduce { .. } => fused(subject, &nodes, end),
        Lowered::Launches { .. } if nodes.len() > 1 => joined(subject, &nodes),
        Lowered::Launches { launches, .. } => Ok(launched(subject, end, launches, step)),
        Lowered::Alias(_) | Lowered::Leaf => Ok(vec![]),
    };
    let mut expected = expected.map_err(refuse)?;
    if let [value] = values[..] {
        expected.extend(copied(subject, value, step));
    }
    let fits = |(kernel, needs, gives): Expected| -> Option<Effect> {
        if !same(&kernel, &step.kernel) {
            return None;
        }
        let at = |places: Vec<(Operand, Item)>| -> Option<Vec<(View, Item)>> {
            places.into_iter().map(|(place, item)| Some((place.view(step)?, item))).collect()
        };
        let reads = needs.iter().filter(|(place, _)| matches!(place, Operand::Read(_))).count();
        ((reads, gives.len()) == (step.reads.len(), step.writes.len())).then_some(())?;
        Some(Effect { needs: at(needs)?, gives: at(gives)? })
    };
    let effects: Vec<Effect> = expected.into_iter().filter_map(fits).collect();
    if effects.is_empty() {
        let (why, ranks) = difference(subject, end, step);
        let asked = || subject.line_of(subject.graph.node(end).results[0]);
        let violation = refuse(why).between(ranks);
        return Err(Violation { spec_line: violation.spec_line.or_else(asked), ..violation });
    }
    // The copy of a part may be the kernel that copies the whole of another value.
    let (fitting, others): (Vec<_>, Vec<_>) =
        effects.into_iter().map(|e| (sizes(subject, &e), e)).partition(|(size, _)| size.is_ok());
    match others.into_iter().next() {
        Some((Err(why), _)) if fitting.is_empty() => Err(refuse(why)),
        _ => Ok(fitting.into_iter().map(|(_, effect)| effect).collect()),
    }
}

/// Every operand is as large as what it holds, and of its type.
fn sizes(subject: &Subject<'_>, effect: &Effect) -> Result<(), Reason> {
    for (view, item) in effect.needs.iter().chain(&effect.gives) {
        let buffer = &subject.program.buffers[view.buffer.index()];
        let (dtype, bytes) = item.size(subject);
        if (buffer.dtype, view.bytes) != (dtype, bytes) {
            let (own, name) = (buffer.dtype, &buffer.name);
            return Err(reason!("takes {} bytes of {own} in `{name}` for {bytes} bytes of {dtype}", view.bytes));
        }
    }
    Ok(())
}

/// A kernel, what it needs of its operands, and what it gives.
type Expected = (Kernel, Vec<(Operand, Item)>, Vec<(Operand, Item)>);

/// An operand of a step.
#[derive(Clone, Copy)]
enum Operand {
    Read(usize),
    Write(usize),
}

impl Operand {
    fn view(self, step: &Step) -> Option<View> {
        match self {
            Operand::Read(i) => step.reads.get(i).copied(),
            Operand::Write(i) => step.writes.get(i).copied(),
        }
    }
}

/// One kernel of elementwise nodes.
fn fused(subject: &Subject<'_>, nodes: &[NodeId], end: NodeId) -> Result<Vec<Expected>, Reason> {
    let mut named = nodes.to_vec();
    named.sort();
    named.dedup();
    let inside = |id: NodeId| id != end && named.binary_search(&id).is_ok();
    let name = |id: NodeId| format!("`%{}`", subject.graph.value(subject.graph.node(id).results[0]).name);
    let fused = fuse(subject.lowered, end, &inside).ok_or("carries out ops that are not one kernel")?;
    if let Some(missing) = named.iter().find(|id| !fused.nodes.contains(id)) {
        return Err(reason!("names {}, which {} does not need", name(*missing), name(end)));
    }
    let needs = fused.reads.iter().enumerate().map(|(i, v)| (Operand::Read(i), Item::Value(subject.stored_in(*v))));
    let results = &subject.graph.node(end).results;
    let gives = results.iter().enumerate().map(|(i, v)| (Operand::Write(i), Item::Value(subject.stored_in(*v))));
    Ok(vec![(fused.kernel, needs.collect(), gives.collect())])
}

/// One kernel of several, row by row: those that end where the step's results are made.
fn bundled(subject: &Subject<'_>, nodes: &[NodeId], step: &Step) -> Result<Vec<Expected>, Reason> {
    let Kernel::Bundle(Bundle { rows, members }) = &step.kernel else { return Ok(vec![]) };
    let refuse = || Reason::from("carries out ops that are not one bundle");
    let mut named = nodes.to_vec();
    named.sort();
    named.dedup();
    let mut ends = vec![];
    for result in &step.results {
        let end = subject.named(result).map(|value| subject.graph.value(value).node);
        ends.push(end.filter(|end| named.binary_search(end).is_ok()).ok_or_else(refuse)?);
    }
    ends.dedup();
    if ends.len() != members.len() {
        return Err(refuse());
    }
    let inside = |id: NodeId| !ends.contains(&id) && named.binary_search(&id).is_ok();
    let all = bundle(subject.lowered, *rows, &ends, &inside).ok_or_else(refuse)?;
    let mut carried: Vec<NodeId> = all.nodes.into_iter().flatten().collect();
    carried.sort();
    carried.dedup();
    if carried != named {
        return Err("names ops that its bundle does not need".into());
    }
    let needs = all.reads.iter().enumerate().map(|(i, v)| (Operand::Read(i), Item::Value(subject.stored_in(*v))));
    let gives = all.writes.iter().enumerate().map(|(i, v)| (Operand::Write(i), Item::Value(subject.stored_in(*v))));
    Ok(vec![(Kernel::Bundle(all.bundle), needs.collect(), gives.collect())])
}

/// Every launch of a node whose kernel the step may be.
fn launched(subject: &Subject<'_>, id: NodeId, launches: &[Launch], step: &Step) -> Vec<Expected> {
    let node = subject.graph.node(id);
    let mut out = vec![];
    if let Op::Accumulate(op) = &node.op {
        let value = subject.stored_in(node.results[0]);
        let (dtype, count) = (subject.size_of(value).0, subject.lowered.extent(value).elements());
        let empty = Kernel::Fill(Fill { dtype, count, value: op.kind.neutral() });
        out.push((empty, vec![], vec![(Operand::Write(0), Item::Empty(value))]));
        for Launch { kernel, .. } in launches {
            let operand = Item::Value(subject.stored_in(node.operands[0]));
            let needs = vec![
                (Operand::Read(0), Item::Before(value)),
                (Operand::Read(1), operand),
                (Operand::Write(0), Item::Before(value)),
            ];
            out.push((kernel.clone(), needs, vec![(Operand::Write(0), Item::After(value))]));
        }
        return out;
    }
    for k in subject.launches(id).with_kernel(&step.kernel).iter().copied() {
        if let Some((needs, gives)) = launch(subject, id, &launches[k], k) {
            let places =
                |write: bool| move |(i, item): (usize, Item)| (if write { Operand::Write(i) } else { Operand::Read(i) }, item);
            let mut all: Vec<_> = needs.read.into_iter().enumerate().map(places(false)).collect();
            all.extend(needs.kept.into_iter().map(|(i, item)| (Operand::Write(i), item)));
            out.push((launches[k].kernel.clone(), all, gives.into_iter().enumerate().map(places(true)).collect()));
        }
    }
    out
}

/// What a launch needs of its operands.
struct LaunchNeeds {
    /// For each that it reads.
    read: Vec<Item>,
    /// What earlier launches have left in a tensor that it writes, by position.
    kept: Vec<(usize, Item)>,
}

/// What launch `k` of a node needs, and what it gives to each tensor that it writes.
fn launch(subject: &Subject<'_>, id: NodeId, launch: &Launch, k: usize) -> Option<(LaunchNeeds, Vec<Item>)> {
    let (node, index) = (subject.graph.node(id), subject.launches(id));
    let read = |slot: &Slot| match slot {
        Slot::Operand(i) => Some(Item::Value(subject.stored_in(node.operands[*i]))),
        slot => index.before(k, slot).map(|j| Item::Made(id, *slot, j)),
    };
    let written = |slot: &Slot| match slot {
        Slot::Result(i) if !index.is_written_after(k, slot) => Item::Value(subject.stored_in(node.results[*i])),
        slot => Item::Made(id, *slot, k),
    };
    let needs = LaunchNeeds {
        read: launch.reads.iter().map(read).collect::<Option<_>>()?,
        // A tensor that this launch goes on with must still hold what earlier ones have left in it.
        kept: launch.writes.iter().enumerate().filter_map(|(i, s)| Some((i, read(s)?))).collect(),
    };
    Some((needs, launch.writes.iter().map(written).collect()))
}

/// One call for several of one kind, an operand each.
fn joined(subject: &Subject<'_>, nodes: &[NodeId]) -> Result<Vec<Expected>, Reason> {
    let refuse = || Reason::from("carries out ops that no one call can");
    let mut call: Option<Collective> = None;
    let (mut counts, mut needs, mut gives) = (vec![], vec![], vec![]);
    for (i, id) in nodes.iter().enumerate() {
        let Lowered::Launches { launches, .. } = subject.lowered.node(*id) else { return Err(refuse()) };
        let of = |(k, launch): (usize, &Launch)| match &launch.kernel {
            Kernel::Collective(call) => Some((k, call.clone())),
            _ => None,
        };
        let (k, mut this) = launches.iter().enumerate().find_map(of).ok_or_else(refuse)?;
        counts.append(&mut this.counts);
        if *call.get_or_insert_with(|| this.clone()) != this {
            return Err(refuse());
        }
        let (needed, given) = launch(subject, *id, &launches[k], k).ok_or_else(refuse)?;
        let ([read], [], [write]) = (&needed.read[..], &needed.kept[..], &given[..]) else { return Err(refuse()) };
        needs.push((Operand::Read(i), *read));
        gives.push((Operand::Write(i), *write));
    }
    let call = call.ok_or_else(refuse)?;
    Ok(vec![(Kernel::Collective(Collective { counts, ..call }), needs, gives)])
}

/// A copy of a whole value.
fn copied(subject: &Subject<'_>, value: ValueId, step: &Step) -> Option<Expected> {
    let storage = subject.stored_in(value);
    let Kernel::Move(copy) = &step.kernel else { return None };
    let shape = &subject.lowered.extent(value).local;
    let plain = Move {
        dtype: subject.size_of(value).0,
        shape: shape.clone(),
        src_offset: Offset::default(),
        src_strides: row_major(shape),
        dst_offset: Offset::default(),
        dst_strides: row_major(shape),
    };
    let item = Item::Value(storage);
    (*copy == plain).then(|| (Kernel::Move(plain), vec![(Operand::Read(0), item)], vec![(Operand::Write(0), item)]))
}

/// How a step's kernel differs from what its ops ask for, and two ranks that it brings together
/// wrongly or keeps apart.
fn difference(subject: &Subject<'_>, end: NodeId, step: &Step) -> (Reason, Option<(u64, u64)>) {
    let name = &subject.graph.value(subject.graph.node(end).results[0]).name;
    let mesh = &subject.graph.mesh;
    let asked = match subject.lowered.node(end) {
        Lowered::Launches { launches, .. } => launches.iter().find_map(|l| match &l.kernel {
            Kernel::Collective(call) => Some(call),
            _ => None,
        }),
        _ => None,
    };
    match (asked, &step.kernel) {
        (Some(asked), Kernel::Collective(call)) if asked.axes != call.axes => {
            let axes = |call: &Collective| call.axes.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(" ");
            let (right, wrong) = (mesh.group(0, &asked.axes), mesh.group(0, &call.axes));
            let other = wrong.iter().find(|r| !right.contains(r)).or(right.iter().find(|r| !wrong.contains(r)));
            (reason!("is over `{}`, but `%{name}` is over `{}`", axes(call), axes(asked)), other.map(|other| (0, *other)))
        }
        _ => (reason!("runs another {} kernel than that of `%{name}` with what it names beside", step.kernel.name()), None),
    }
}
