//! The host fills and reads exactly what the graph says: every state, input, constant, scalar,
//! gradient and output of the program is one of the graph that its ranks hold, under its type and
//! sharding, and none that they hold is missing.

use super::subject::Subject;
use crate::graph::ValueId;
use crate::ops::Op;
use crate::plan::{Buffer, BufferId, BufferKind, Program, StateRole};
use crate::reason;
use crate::reason::Reason;
use crate::sharding::Sharding;
use crate::types::Type;
use std::collections::{BTreeMap, BTreeSet};

/// The values behind the buffers that last.
pub struct Bindings {
    /// For each buffer that the host fills, what it fills it with.
    pub filled: Vec<Option<ValueId>>,
    /// The values that must be in buffers at the end of a step.
    pub results: Vec<(BufferId, ValueId)>,
}

impl Bindings {
    /// The values that the host finds in buffers after a step: results, and constants as they were.
    pub fn lasting(&self, program: &Program) -> impl Iterator<Item = (BufferId, ValueId)> {
        let constants = program.constants.iter().filter_map(|c| Some((c.buffer, self.filled[c.buffer.index()]?)));
        self.results.iter().copied().chain(constants)
    }
}

/// Matches the program's tables with the graph.
///
/// # Errors
/// The first entry that does not match, in words.
pub fn bind(subject: &Subject<'_>) -> Result<Bindings, Reason> {
    let Subject { program, graph, .. } = *subject;
    if program.mesh != graph.mesh {
        return Err("the program is for another mesh than its graph".into());
    }
    let mut binder = Binder {
        subject,
        bindings: Bindings { filled: vec![None; program.buffers.len()], results: vec![] },
        bound: vec![false; program.buffers.len()],
    };
    binder.states()?;
    binder.inputs()?;
    binder.outputs()?;
    binder.others()?;
    Ok(binder.bindings)
}

struct Binder<'s> {
    subject: &'s Subject<'s>,
    bindings: Bindings,
    bound: Vec<bool>,
}

impl Binder<'_> {
    /// Parameters, moments, statistics: read under their sharding, and after the step what their
    /// update is.
    fn states(&mut self) -> Result<(), Reason> {
        let Subject { program, graph, .. } = *self.subject;
        let mut reads = vec![None; graph.states.len()];
        for (_, node) in graph.nodes() {
            if let Op::State(read) = &node.op {
                reads[read.state.index()].get_or_insert(node.results[0]);
            }
        }
        let by_name: BTreeMap<&str, usize> = graph.states.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        let mut there = vec![None; graph.states.len()];
        for (i, state) in program.states.iter().enumerate() {
            let name = &state.name;
            let at = *by_name.get(name.as_str()).ok_or_else(|| reason!("the graph has no state `{name}`"))?;
            let declared = &graph.states[at];
            if !declared.sharding.is_at(self.subject.coordinates) {
                return Err(reason!("state `{name}` is held at other ranks"));
            }
            if (declared.role, &declared.init, &declared.block) != (state.role, &state.init, &state.block) {
                return Err(reason!("state `{name}` is not the graph's: it has another role or block, or begins otherwise"));
            }
            if there[at].replace(i).is_some() {
                return Err(reason!("state `{name}` is there twice"));
            }
            let read = reads[at].ok_or_else(|| reason!("the graph does not read state `{name}`"))?;
            self.bind(state.buffer, &BufferKind::State(i as u32), &declared.ty, &declared.sharding, 1)?;
            self.bindings.filled[state.buffer.index()] = Some(self.subject.stored_in(read));
            self.bindings.results.push((state.buffer, self.subject.stored_in(declared.update.unwrap_or(read))));
        }
        let gradients = gradients(program)?;
        for (at, state) in graph.states.iter().enumerate() {
            let name = &state.name;
            if !state.sharding.is_at(self.subject.coordinates) {
                continue;
            }
            if there[at].is_none() && (state.update.is_some() || state.gradient.is_some() || reads[at].is_some()) {
                return Err(reason!("state `{name}` of the graph is not there"));
            }
            let buffer = there[at].and_then(|i| gradients.get(&(i as u32)));
            match (state.gradient, buffer) {
                (Some(gradient), Some(buffer)) => {
                    self.value(*buffer, gradient, 1)?;
                    self.bindings.results.push((*buffer, self.subject.stored_in(gradient)));
                }
                (None, None) => {}
                (Some(_), None) => return Err(reason!("the gradient of `{name}` is not there")),
                (None, Some(_)) => return Err(reason!("`{name}` has a gradient that the graph does not have")),
            }
        }
        Ok(())
    }

    fn inputs(&mut self) -> Result<(), Reason> {
        let Subject { program, .. } = *self.subject;
        let mut by_name = BTreeMap::new();
        for (_, node) in self.subject.lowered.nodes_here() {
            if let Op::Input(input) = &node.op
                && by_name.insert(input.name.as_str(), node.results[0]).is_some()
            {
                return Err(reason!("the graph has input `{}` twice", input.name));
            }
        }
        for (i, input) in program.inputs.iter().enumerate() {
            let value = by_name.remove(input.name.as_str());
            let value = value.ok_or_else(|| reason!("the graph has no input `{}`, or the program has it twice", input.name))?;
            let slots = self.slots(value);
            self.kind(input.buffer, &BufferKind::Input(i as u32))?;
            self.value(input.buffer, value, slots)?;
            self.bindings.filled[input.buffer.index()] = Some(self.subject.stored_in(value));
        }
        match by_name.into_keys().next() {
            Some(missing) => Err(reason!("input `{missing}` of the graph is not there")),
            None => Ok(()),
        }
    }

    fn outputs(&mut self) -> Result<(), Reason> {
        let Subject { program, graph, .. } = *self.subject;
        let mut by_name: BTreeMap<&str, ValueId> =
            graph.outputs.iter().filter(|o| self.subject.is_here(o.value)).map(|o| (o.name.as_str(), o.value)).collect();
        for (i, output) in program.outputs.iter().enumerate() {
            let value = by_name.remove(output.name.as_str());
            let value = value.ok_or_else(|| reason!("the graph has no output `{}`, or the program has it twice", output.name))?;
            let slots = self.slots(value);
            self.kind(output.buffer, &BufferKind::Output(i as u32))?;
            self.value(output.buffer, value, slots)?;
            self.bindings.results.push((output.buffer, self.subject.stored_in(value)));
        }
        match by_name.into_keys().next() {
            Some(missing) => Err(reason!("output `{missing}` of the graph is not there")),
            None => Ok(()),
        }
    }

    /// Constants and scalars; and what lives within a step carries the type of the value that it is
    /// called after.
    fn others(&mut self) -> Result<(), Reason> {
        let Subject { program, graph, .. } = *self.subject;
        let (mut scalars, mut there, mut constants) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for (_, node) in self.subject.lowered.nodes_here() {
            if let Op::Host(host) = &node.op {
                scalars.entry(host.scalar).or_insert(node.results[0]);
            }
        }
        for (i, buffer) in program.buffers.iter().enumerate() {
            let (id, name) = (BufferId(i as u32), &buffer.name);
            let named = || self.subject.named(name).ok_or_else(|| reason!("the graph has no value `{name}`"));
            match buffer.kind {
                BufferKind::Constant(at) => {
                    let (value, entry) = (named()?, &program.constants[at as usize]);
                    let Op::Constant(constant) = &graph.def(value).op else {
                        return Err(reason!("`{name}` is no constant of the graph"));
                    };
                    if !constants.insert(value) {
                        return Err(reason!("constant `{name}` is there twice"));
                    }
                    if entry.buffer != id || entry.bytes[..] != constant.value.bytes[..] {
                        return Err(reason!("constant `{name}` has other elements than in the graph"));
                    }
                    self.value(id, value, self.slots(value))?;
                    self.bindings.filled[i] = Some(self.subject.stored_in(value));
                }
                BufferKind::Scalar(scalar) if !there.insert(scalar) => {
                    return Err(reason!("`{name}` is a scalar that has a buffer already"));
                }
                BufferKind::Scalar(scalar) => {
                    let value = scalars.get(&scalar).ok_or_else(|| reason!("the graph does not read `{name}`"))?;
                    self.value(id, *value, 1)?;
                    self.bindings.filled[i] = Some(self.subject.stored_in(*value));
                }
                BufferKind::Activation => {
                    let value = named()?;
                    self.value(id, value, buffer.slots)?;
                }
                BufferKind::Communication => {
                    self.typed(buffer, &Type::new(buffer.dtype, buffer.shape.clone()), &Sharding::replicated(1), 1)?;
                }
                _ if !self.bound[i] => return Err(reason!("`{name}` is a buffer that the program's tables do not name")),
                _ => {}
            }
        }
        Ok(())
    }

    /// How many of a value a step has.
    fn slots(&self, value: ValueId) -> u64 {
        if self.subject.timed(value) { self.subject.microbatches() } else { 1 }
    }

    /// The buffer is of that kind, and nothing else is in it.
    fn kind(&mut self, id: BufferId, kind: &BufferKind) -> Result<(), Reason> {
        let buffer = &self.subject.program.buffers[id.index()];
        if buffer.kind != *kind || std::mem::replace(&mut self.bound[id.index()], true) {
            return Err(reason!("buffer `{}` is not what the program's tables say", buffer.name));
        }
        Ok(())
    }

    fn bind(&mut self, id: BufferId, kind: &BufferKind, ty: &Type, sharding: &Sharding, slots: u64) -> Result<(), Reason> {
        self.kind(id, kind)?;
        self.typed(&self.subject.program.buffers[id.index()], ty, sharding, slots)
    }

    fn value(&mut self, id: BufferId, value: ValueId, slots: u64) -> Result<(), Reason> {
        let (graph, buffer) = (self.subject.graph, &self.subject.program.buffers[id.index()]);
        if !self.subject.is_here(value) {
            return Err(reason!("buffer `{}` is of `%{}`, which other ranks hold", buffer.name, graph.value(value).name));
        }
        self.bound[id.index()] = true;
        self.typed(buffer, graph.ty(value), graph.sharding(value), slots)
    }

    fn typed(&self, buffer: &Buffer, ty: &Type, sharding: &Sharding, slots: u64) -> Result<(), Reason> {
        let mesh = &self.subject.graph.mesh;
        let text = |ty: &Type, sharding: &Sharding| format!("{ty}{}", sharding.text(&ty.shape, mesh));
        let own = Type::new(buffer.dtype, buffer.shape.clone());
        if own != *ty || buffer.sharding != *sharding {
            let (own, other) = (text(&own, &buffer.sharding), text(ty, sharding));
            return Err(reason!("buffer `{}` is {own}, in the graph it is {other}", buffer.name));
        }
        if buffer.slots != slots {
            let name = &buffer.name;
            return Err(reason!("buffer `{name}` has {} slots, but a step has {slots} of its value", buffer.slots));
        }
        Ok(())
    }
}

/// The buffer of each state's gradient.
fn gradients(program: &Program) -> Result<BTreeMap<u32, BufferId>, Reason> {
    let mut found = BTreeMap::new();
    for (i, buffer) in program.buffers.iter().enumerate() {
        let BufferKind::Gradient(state) = buffer.kind else { continue };
        let name = &program.states[state as usize].name;
        if program.states[state as usize].role != StateRole::Parameter || found.insert(state, BufferId(i as u32)).is_some() {
            return Err(reason!("`{name}` has no gradient, or has it twice"));
        }
    }
    Ok(found)
}
