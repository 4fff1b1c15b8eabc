//! The proof of a program before it runs: that it is its graph, on every rank. This header is the
//! proof's specification.
//!
//! A program is taken together with the explicit graph that it says it carries out, and is
//! validated against it as the output of a compiler is against its source; nothing that made it is
//! believed. Ranks that run one program run the same steps in the same order, and only the members
//! of groups and the offsets of kernels depend on where a rank stands, both as functions of its
//! coordinates. So one symbolic run stands for all of them, and time grows with the program alone.
//! If ranks run different programs of one mesh ([`PlanSet`]), as the stages of a pipeline do, each
//! is proven against the same graph, at each position at which the graph holds other values, and
//! that their calls and messages meet is proven besides. Source: Pnueli, Siegel and Singerman,
//! Translation Validation (1998).
//!
//! **0 The graph** keeps the rules of [`crate::verify`] at phase `explicit`: every sharding and
//! partial follows from the letters of the ops, and no reshard is left in it. That a partial value
//! is reduced before anything nonlinear reads it, and over the right axes, is a property of the
//! graph. The norm of all gradients, by which a step is given up, is known everywhere.
//!
//! **1 Tables** ([`Program::check_tables`]). Every id is in range, every size sensible, every
//! buffer inside the arena, and every task is run.
//!
//! **2 Bindings** ([`bindings`]). The program has the mesh of its graph. Its states, inputs,
//! constants (to the byte), scalars, gradients and outputs are those of the graph that its ranks
//! hold, each once, none missing; every buffer has the type, sharding and local shape of its value,
//! and what the host fills or reads has a slot for each micro-batch exactly where a step has
//! several.
//!
//! **3 Kernels** ([`carried`]). Every step names ops of the graph, and its kernel is their lowering
//! to the bit, constants, axes and offsets included: the fused kernel of exactly those nodes
//! ([`crate::lower::fused`]), the bundle of several such ([`crate::lower::bundled`]), a launch of
//! one node, one call for several all-reduces of one kind, an accumulator's neutral element, or a
//! plain copy. From that follows what it must find where it reads, and what it leaves where it
//! writes.
//!
//! **4 Memory** ([`memory`], [`lemma`], [`table`]). Every access lies in its buffer; a step writes
//! over what it reads only element by element in place; slots share bytes with nothing, and what
//! the host fills with nothing else that it fills.
//!
//! Each task is run once over an arena of which nothing is known, for any micro-batch. Every range
//! of bytes that its steps write remembers its content: a value of the graph, an accumulator before
//! or with this micro-batch, or what a launch has left to the next; bytes that none of them has
//! written become a need of the task. Each operand must hold exactly the content that its step
//! needs, whole. All accesses of a task are of one micro-batch `t`, in slot `t` modulo the slots of
//! the buffer; so `t` stays a symbol.
//!
//! Then the order is run row by row, unless it does many times what the graph asks for
//! ([`effort`]): a task must find its needs at its micro-batch, and leaves what it leaves. An
//! accumulator is its value with the last micro-batch, and what adds a micro-batch finds those
//! before it. A message is one end of a transfer of the graph ([`messages`]): what it sends must
//! be there, and what it receives is there afterwards, on the word of its other end; messages of
//! one row begin together and share no bytes. So nothing is read before it is written or after its
//! bytes were given away, no call in place is forgotten or made twice, no accumulator is read
//! before it has all micro-batches, none is added twice or out of order. At the end every state
//! holds its update, every gradient and every slot of every output its value, every constant
//! itself.
//!
//! **5 State** ([`state`]). A state variable is written at most once a step, and nothing else that
//! lasts is. With 2 and 4 and the letters of 0 this is ownership: each rank holds the elements that
//! the state's sharding gives it, replicas hold the same because its update is derived without
//! partials under the same sharding, from equal inputs, by the same kernel; of several programs
//! that hold a state together [`replicas`] shows that they have the same kernels.
//!
//! **6 Calls and messages** ([`collectives`], [`meeting`]). Every call names distinct axes of
//! ranks, is in the stream of calls, and moves as many bytes as its operands have. Of one
//! program every member of a group makes the same calls in the same order, which is one chain for
//! each rank and the same global order for all communicators, so that nobody waits for ever. Of
//! several programs a lockstep run of all chains shows it, in which a send waits for its receive:
//! members meet with equal kind, type, count, combination and axes, for the same ops, and the n-th
//! message from one rank to another is the n-th that is received, of the same value and
//! micro-batch. What a receive was believed to bring (4) is given by a send that comes earlier in
//! that run.
//!
//! **7 Bytes** ([`bytes`]). The bytes that a rank sends are the closed form of its calls. The least
//! that the graph's communication costs stands beside it.
//!
//! The peak is the arena: state, gradients, activations, data, buffers of communication. The
//! memory that the executor needs beside it (the batch as the host read it, what processes send to
//! one another in a call, and the packed panels of a matrix product on the CPU) is its own reserve
//! and not in the figure.
//!
//! **Not proven here:** that lowering rules, kernel forms and the interpreter of letters are right
//! (their tests compare them with plain loops, finite differences and one another), and that the
//! graph is what the model and the spec ask for; that many ranks compute what one would is
//! [`erasure`] of this graph and the reference's.

mod bindings;
pub mod bytes;
mod carried;
mod collectives;
mod contents;
mod effort;
pub mod erasure;
mod latest;
mod launches;
mod lemma;
mod meeting;
pub(crate) mod memory;
mod messages;
mod replicas;
mod state;
mod subject;
mod table;
mod violation;

pub use violation::Violation;

use crate::graph::{Graph, Phase};
use crate::listing::Communication;
use crate::mesh::AxisId;
use crate::ops::Op;
use crate::plan::set::PlanSet;
use crate::plan::tables::check_blocks;
use crate::plan::{Program, When};
use crate::verify::{report, verify as verify_graph};
use carried::Effect;
use memory::Slots;
use std::collections::BTreeSet;
use subject::{Known, Subject};
use table::Lemmas;
use violation::numbered;

/// The output that is the norm of all gradients.
const NORM: &str = "grad_norm";

/// The proven facts, in numbers. Of several programs those of the first stand for all, but for
/// `programs`, `ranks`, `sent` and the peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Distinct programs.
    pub programs: usize,
    /// Ranks that run them.
    pub ranks: u64,
    /// Steps, each counted once however often it runs.
    pub steps: usize,
    /// Ops of the graph that the steps carry out.
    pub ops: usize,
    /// Buffers of the arena.
    pub buffers: usize,
    /// The largest arena.
    pub peak_bytes: u64,
    /// Contents that steps need and give in one step of training.
    pub accesses: u64,
    /// Collective calls in one step of training.
    pub calls: u64,
    /// State variables that are written once a step.
    pub updated: usize,
    /// What each program sends in a step, in the order of the set, beside the least.
    pub sent: Vec<Vec<Communication>>,
}

/// Proves of a program that runs on every rank of its mesh that it carries out `graph`, the
/// explicit one.
///
/// # Errors
/// The first counter-example.
pub fn verify(program: &Program, graph: &Graph) -> Result<Proof, Violation> {
    program.check_tables().map_err(Violation::of)?;
    verify_set(&PlanSet::alike(program), graph)
}

/// Proves of programs that each rank runs one of that they carry out `graph`, the explicit one.
///
/// # Errors
/// The first counter-example.
pub fn verify_set(set: &PlanSet<&Program>, graph: &Graph) -> Result<Proof, Violation> {
    for program in &set.programs {
        program.check_tables().map_err(Violation::of)?;
    }
    check_blocks(&set.programs).map_err(Violation::of)?;
    if graph.phase != Phase::Explicit {
        return Err(Violation::of(format!("the graph is {}, not {}", graph.phase, Phase::Explicit)));
    }
    if let Some((id, _)) = graph.nodes().find(|(_, node)| matches!(node.op, Op::Reshard(_))) {
        let name = &graph.value(graph.node(id).results[0]).name;
        return Err(Violation::of(format!("`%{name}` is a reshard, of which nobody has said what it sends")));
    }
    verify_graph(graph).map_err(|violations| Violation::of(report(graph, &violations)))?;
    let norm = graph.outputs.iter().find(|output| output.name == NORM);
    if norm.is_some_and(|norm| graph.sharding(norm.value).at.is_some()) {
        return Err(Violation::of(format!("not every rank knows `{NORM}`, by which a step is given up")));
    }
    ranks(set)?;
    let known = Known::new(graph);
    let mut proof: Option<Proof> = None;
    for (number, coordinates) in places(set, graph) {
        let this = alone(&known.subject(&known.at(coordinates), set.programs[number]))?;
        let first = proof.get_or_insert(Proof { sent: vec![vec![]; set.programs.len()], ..this.clone() });
        first.peak_bytes = first.peak_bytes.max(this.peak_bytes);
        first.sent[number] = this.sent.concat();
    }
    let mut proof = proof.ok_or_else(|| Violation::of("there is no program"))?;
    if set.programs.len() > 1 {
        replicas::check(set)?;
    }
    meeting::check(set)?;
    (proof.programs, proof.ranks) = (set.programs.len(), set.programs[0].mesh.world_size());
    Ok(proof)
}

/// Each program, by position, with the coordinates of the first ranks that run it: once for all
/// ranks that hold the same values.
fn places(set: &PlanSet<&Program>, graph: &Graph) -> Vec<(usize, Vec<u64>)> {
    let held: BTreeSet<AxisId> = graph.values().filter_map(|(_, value)| value.sharding.at.as_ref().map(|at| at.axis)).collect();
    let mut axes = set.axes.clone();
    axes.extend(held.iter().filter(|axis| !set.axes.contains(axis)));
    let mut known = BTreeSet::new();
    let mut places = PlanSet { axes, programs: vec![()], of: vec![] }.places(&graph.mesh);
    places.retain(|place| {
        let at: Vec<u64> = held.iter().map(|axis| place[axis.index()]).collect();
        known.insert((set.at(&graph.mesh, graph.mesh.rank(place)), at))
    });
    places.into_iter().map(|place| (set.at(&graph.mesh, graph.mesh.rank(&place)), place)).collect()
}

/// Every rank runs one of the programs, and they agree on what is not in the graph.
fn ranks(set: &PlanSet<&Program>) -> Result<(), Violation> {
    let Some(first) = set.programs.first() else { return Err(Violation::of("there is no program")) };
    set.check(&first.mesh).map_err(Violation::of)?;
    for (i, other) in set.programs.iter().enumerate() {
        if (other.seed, other.learning_rate, other.batch) != (first.seed, first.learning_rate, first.batch) {
            let places = set.places(&first.mesh);
            let rank = |p: usize| set.of.iter().position(|of| *of == p).map(|at| first.mesh.rank(&places[at]));
            let why = Violation::of("programs of one mesh differ in seed, learning rate or batch");
            return Err(why.between(rank(0).zip(rank(i))));
        }
    }
    Ok(())
}

/// Chapters 2 to 5 and 7, and of 6 what is of each call by itself.
fn alone(subject: &Subject<'_>) -> Result<Proof, Violation> {
    let program = subject.program;
    let calls = collectives::check(program)?;
    memory::check_views(program)?;
    let bindings = bindings::bind(subject).map_err(Violation::of)?;
    let ends = messages::ends(subject)?;
    let mut effects = vec![];
    let mut ops = vec![];
    for (number, _, step) in numbered(program) {
        effects.push(carried::effects(subject, number, step)?);
        ops.extend(step.provenance.ops.iter().filter_map(|name| subject.named(name)));
    }
    ops.sort();
    ops.dedup();
    let updated = state::check(program)?;
    let slots = memory::slots(program);
    let lemmas = lemmas(subject, &effects, &slots)?;
    let accesses = table::run(subject, &bindings, &lemmas, &ends, &slots)?;
    memory::check_sizes(program)?;
    Ok(Proof {
        programs: 1,
        ranks: program.mesh.world_size(),
        steps: effects.len(),
        ops: ops.len(),
        buffers: program.buffers.len(),
        peak_bytes: program.arena_bytes,
        accesses,
        calls,
        updated,
        sent: vec![bytes::sent(subject)],
    })
}

/// The lemmas of each task: what it needs and leaves.
fn lemmas(subject: &Subject<'_>, effects: &[Vec<Effect>], slots: &Slots) -> Result<Vec<Lemmas>, Violation> {
    let mut first = 0;
    let mut all = vec![];
    for task in &subject.program.tasks {
        let steps = || (first..).zip(&task.steps);
        let each = lemma::of(subject, effects, steps().filter(|(_, step)| step.when == When::Each), slots, false)?;
        let has_last = task.steps.iter().any(|step| step.when == When::Last);
        let last = has_last.then(|| lemma::of(subject, effects, steps(), slots, true)).transpose()?;
        all.push(Lemmas { each, last });
        first += task.steps.len();
    }
    Ok(all)
}
