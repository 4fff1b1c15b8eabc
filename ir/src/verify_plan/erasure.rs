//! Two graphs are the same program where their communication and shardings are left out: what a
//! plan over many ranks computes is what its reference computes, up to the order in which terms are
//! added.
//!
//! Values of both graphs are numbered by what they compute: equal ops of equal operands have one
//! number, communication has that of its operand, and a sum that of its terms in any order. Source:
//! Cocke and Schwartz, Programming Languages and their Compilers (1970), value numbering. The terms
//! of sums are gathered here once more, apart from the pass that orders them: a proof does not
//! trust it.

use crate::graph::{Graph, NodeId, Part, ValueId};
use crate::ops::Op;
use crate::reason;
use crate::reason::Reason;
use crate::types::Type;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Compares states, outputs, updates and gradients.
///
/// # Errors
/// The first difference, in words.
pub fn same_when_erased(graph: &Graph, reference: &Graph) -> Result<(), Reason> {
    let mut pairs = vec![];
    if graph.states.len() != reference.states.len() || graph.outputs.len() != reference.outputs.len() {
        return Err("they have other states or outputs".into());
    }
    for (a, b) in graph.states.iter().zip(&reference.states) {
        if (&a.name, &a.ty, a.role, &a.init, &a.block) != (&b.name, &b.ty, b.role, &b.init, &b.block) {
            return Err(reason!("state `{}` is `{}` of another type, role, block or beginning in the reference", a.name, b.name));
        }
        for (what, a_value, b_value) in [("update", a.update, b.update), ("gradient", a.gradient, b.gradient)] {
            match (a_value, b_value) {
                (Some(x), Some(y)) => pairs.push((x, y)),
                (None, None) => {}
                _ => return Err(reason!("one of the two has no {what} of state `{}`", a.name)),
            }
        }
    }
    for (a, b) in graph.outputs.iter().zip(&reference.outputs) {
        if a.name != b.name {
            return Err(reason!("output `{}` is `{}` in the reference", a.name, b.name));
        }
        pairs.push((a.value, b.value));
    }
    let mut numbering = Numbering::default();
    let (ours, its) = (Erased::new(graph, &mut numbering), Erased::new(reference, &mut numbering));
    match pairs.into_iter().find(|(a, b)| ours.number(*a) != its.number(*b)) {
        None => Ok(()),
        Some((a, b)) => Err(difference(&ours, &its, a, b)),
    }
}

/// Numbers of what is computed: (op's name, what tells it apart, operands, which result) to the ops
/// that are called so.
#[derive(Default)]
struct Numbering<'g> {
    known: BTreeMap<Key, Vec<(&'g Op, &'g Type, u32)>>,
    count: u32,
}

type Key = (&'static str, u64, Vec<u32>, usize);

impl<'g> Numbering<'g> {
    fn of(&mut self, op: &'g Op, operands: Vec<u32>, result: usize, ty: &'g Type) -> u32 {
        let same = self.known.entry((op.name(), apart(op), operands, result)).or_default();
        if let Some((.., number)) = same.iter().find(|(o, t, _)| *o == op && *t == ty) {
            return *number;
        }
        self.count += 1;
        same.push((op, ty, self.count));
        self.count
    }
}

/// A hash that tells many ops of one name over the same operands apart at once; ops with the same
/// attributes have it in common.
fn apart(op: &Op) -> u64 {
    let mut hasher = TextHasher::default();
    match op {
        Op::Constant(constant) => constant.value.bytes.hash(&mut hasher.0),
        _ => write!(hasher, "{op:?}").expect("a hash takes all that is written"),
    }
    hasher.0.finish()
}

/// Hashes the text that is written to it.
#[derive(Default)]
struct TextHasher(DefaultHasher);

impl Write for TextHasher {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// A graph with the numbers of its values.
struct Erased<'g> {
    graph: &'g Graph,
    /// For each value the first that the same ops make of the same values: what the backward pass
    /// computes again is what it repeats, and its readers are that one's.
    first: Vec<ValueId>,
    /// How often each value is read, through communication, and the last node that does.
    uses: Vec<(usize, Option<NodeId>)>,
    numbers: Vec<u32>,
}

impl<'g> Erased<'g> {
    fn new(graph: &'g Graph, numbering: &mut Numbering<'g>) -> Erased<'g> {
        let first = repeated(graph);
        let mut uses: Vec<(usize, Option<NodeId>)> = vec![(0, None); graph.value_count()];
        let mut read = |v: ValueId, by: Option<NodeId>| {
            let (count, last) = &mut uses[first[v.index()].index()];
            (*count, *last) = (*count + 1, by);
        };
        for (id, node) in graph.nodes().filter(|(_, node)| !node.op.is_comm()) {
            // Copies read what the first reads.
            if node.results.iter().all(|v| first[v.index()] == *v) {
                node.operands.iter().for_each(|v| read(*v, Some(id)));
            }
        }
        graph.roots().for_each(|v| read(v, None));
        let mut erased = Erased { graph, first, uses, numbers: vec![0; graph.value_count()] };
        for (id, node) in graph.nodes() {
            // A term is numbered with its sum.
            if node.op.is_sum() && erased.is_term(node.results[0]) {
                continue;
            }
            for (result, value) in node.results.iter().enumerate() {
                erased.numbers[value.index()] = match node.op.is_comm() {
                    true => erased.numbers[node.operands[0].index()],
                    false => numbering.of(&node.op, erased.operands(id), result, graph.ty(*value)),
                };
            }
        }
        erased
    }

    fn number(&self, value: ValueId) -> u32 {
        self.numbers[value.index()]
    }

    /// The numbers of a node's operands; of a sum those of its terms, in order.
    fn operands(&self, id: NodeId) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.terms(id).into_iter().map(|v| self.number(v)).collect();
        if self.graph.node(id).op.is_sum() {
            numbers.sort();
        }
        numbers
    }

    /// The values that a node reads; for a sum its terms, and those of the sums that only it reads.
    fn terms(&self, id: NodeId) -> Vec<ValueId> {
        let node = self.graph.node(id);
        if !node.op.is_sum() {
            return node.operands.iter().map(|v| self.computed(*v)).collect();
        }
        let mut left = node.operands.clone();
        let mut terms = vec![];
        while let Some(value) = left.pop() {
            let value = self.computed(value);
            let definer = self.graph.def(value);
            if definer.op.is_sum() && self.is_term(value) {
                left.extend(&definer.operands);
            } else {
                terms.push(value);
            }
        }
        terms.reverse();
        terms
    }

    /// Whether a sum is read once, by another sum of the same type.
    fn is_term(&self, sum: ValueId) -> bool {
        let (1, Some(user)) = self.uses[self.computed(sum).index()] else { return false };
        let user = self.graph.node(user);
        user.op.is_sum() && self.graph.ty(user.results[0]) == self.graph.ty(sum)
    }

    /// The first value that is the one that communication carries.
    fn computed(&self, value: ValueId) -> ValueId {
        self.first[value.index()]
    }
}

/// For each value the first one that is the same: communication carries its operand, and a node of
/// the backward pass may do what one of the forward pass has done to the same values.
fn repeated(graph: &Graph) -> Vec<ValueId> {
    let mut first: Vec<ValueId> = graph.values().map(|(id, _)| id).collect();
    let mut known: HashMap<(&'static str, u64, Vec<ValueId>), Vec<NodeId>> = HashMap::new();
    for (id, node) in graph.nodes() {
        if node.op.is_comm() {
            first[node.results[0].index()] = first[node.operands[0].index()];
            continue;
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|v| first[v.index()]).collect();
        if operands.is_empty() && !matches!(node.op, Op::KeepMask(_)) {
            continue;
        }
        let alike = known.entry((node.op.name(), apart(&node.op), operands)).or_default();
        let same = |other: &&NodeId| {
            let other = graph.node(**other);
            other.op == node.op && graph.result_types(other) == graph.result_types(node)
        };
        match (node.origin.part, alike.iter().find(same)) {
            (Part::Forward, _) => alike.push(id),
            (Part::Backward, Some(other)) => {
                for (value, other) in node.results.iter().zip(&graph.node(*other).results) {
                    first[value.index()] = *other;
                }
            }
            _ => {}
        }
    }
    first
}

/// The first difference between two values that differ, in words.
fn difference(ours: &Erased<'_>, its: &Erased<'_>, mut a: ValueId, mut b: ValueId) -> Reason {
    loop {
        (a, b) = (ours.computed(a), its.computed(b));
        let (name, other) = (&ours.graph.value(a).name, &its.graph.value(b).name);
        let (x, y) = (ours.graph.value(a), its.graph.value(b));
        let (terms, others) = (ours.terms(x.node), its.terms(y.node));
        let (node, its_node) = (ours.graph.node(x.node), its.graph.node(y.node));
        if node.op != its_node.op || x.result != y.result || terms.len() != others.len() {
            let (op, its_op) = (node.op.name(), its_node.op.name());
            return reason!("`%{name}` is {op}, and `%{other}`, in its place in the reference, is another {its_op}");
        }
        let (mut missing, mut extra) = (others.clone(), terms.clone());
        if node.op.is_sum() {
            let numbers: Vec<u32> = terms.iter().map(|v| ours.number(*v)).collect();
            let its_numbers: Vec<u32> = others.iter().map(|v| its.number(*v)).collect();
            extra.retain(|v| !its_numbers.contains(&ours.number(*v)));
            missing.retain(|v| !numbers.contains(&its.number(*v)));
        }
        match extra.into_iter().zip(missing).find(|(t, o)| ours.number(*t) != its.number(*o)) {
            Some(next) => (a, b) = next,
            None => {
                let (ty, its_ty) = (ours.graph.ty(a), its.graph.ty(b));
                return reason!("`%{name}` is {ty}, `%{other}` of the reference {its_ty}, or adds other terms");
            }
        }
    }
}
