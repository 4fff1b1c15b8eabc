//! The one way to make and change graphs: append nodes, with result types inferred by the op's
//! rules.

use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, NodeOrigin, Output, Phase, State, Value, ValueId};
use crate::mesh::Mesh;
use crate::ops::Op;
use crate::reason::Reason;
use crate::sharding::Sharding;
use crate::types::Type;
use petgraph::graph::NodeIndex;
use std::collections::HashMap;
use std::sync::Arc;

/// Appends nodes to a graph.
///
/// | to append | with |
/// |---|---|
/// | what a pass or a gradient rule computes | [`op`](Builder::op), [`ops`](Builder::ops) |
/// | what may not fit its operands, which is an error | [`try_node`](Builder::try_node) |
/// | a node of another graph as it is | [`copy`](Builder::copy) |
/// | a node whose result types are known | [`push`](Builder::push) |
///
/// A value that replaces another takes its name too, by [`rename`](Builder::rename).
pub struct Builder {
    graph: Graph,
    /// Names, and whether a value has each; if not, it is one of the graph that is rewritten, and
    /// only the value that stands for its own may take it.
    names: HashMap<Arc<str>, bool>,
    /// How often each name was asked for in vain.
    numbers: HashMap<String, u32>,
    /// Scalar constants by their bits.
    pub(crate) scalars: HashMap<(DType, u64), ValueId>,
    /// Given to every node that is appended.
    pub origin: NodeOrigin,
    /// The name that new values are called after, in place of the names of their ops: a value that
    /// a pass derives from another takes no name that others may have.
    pub base: Option<Arc<str>>,
}

impl Builder {
    /// A builder of a new graph.
    pub fn new(name: impl Into<String>, phase: Phase, mesh: Mesh) -> Builder {
        Builder::extend(Graph::new(name, phase, mesh))
    }

    /// A builder that appends to `graph`.
    pub fn extend(graph: Graph) -> Builder {
        let names = graph.values().map(|(_, v)| (v.name.clone(), true)).collect();
        let (numbers, scalars) = (HashMap::new(), HashMap::new());
        Builder { graph, names, numbers, scalars, origin: NodeOrigin::default(), base: None }
    }

    /// An empty builder for a rewrite of `graph`: same name, mesh and states, without updates,
    /// gradients and outputs.
    pub fn rewrite(graph: &Graph) -> Builder {
        let mut builder = Builder::new(graph.name.clone(), graph.phase, graph.mesh.clone());
        builder.names = graph.values().map(|(_, v)| (v.name.clone(), false)).collect();
        // A rewrite makes about as much as there was.
        builder.graph.reserve(graph);
        builder.graph.states = graph.states.iter().map(|s| State { update: None, gradient: None, ..s.clone() }).collect();
        builder
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph so far, for its tables of states and outputs and for shardings.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        self.graph.ty(value)
    }

    /// Appends a node whose results are called after `name`; an error if the op does not take these
    /// operands.
    pub fn try_node(&mut self, op: Op, operands: &[ValueId], name: &str) -> Result<Vec<ValueId>, Reason> {
        let types: Vec<Type> = operands.iter().map(|v| self.graph.ty(*v).clone()).collect();
        let results = op.rules().result(&types)?;
        Ok(self.push(op, operands, results, name))
    }

    /// Appends a node with known result types.
    pub fn push(&mut self, op: Op, operands: &[ValueId], types: Vec<Type>, name: &str) -> Vec<ValueId> {
        let value = |ty: Type| {
            let sharding = Sharding::replicated(ty.rank());
            Value { name: self.unique(name), ty, sharding, node: NodeId(0), result: 0, asked: vec![] }
        };
        let values = types.into_iter().map(value).collect();
        self.append(op, operands.to_vec(), values, self.origin.clone())
    }

    /// Appends a node with its results, whose places are given here.
    fn append(&mut self, op: Op, operands: Vec<ValueId>, values: Vec<Value>, origin: NodeOrigin) -> Vec<ValueId> {
        let node = NodeId(self.graph.dag.node_count() as u32);
        let first = self.graph.values.len() as u32;
        let results: Vec<ValueId> = (0..values.len() as u32).map(|i| ValueId(first + i)).collect();
        self.graph.values.extend(values.into_iter().enumerate().map(|(result, value)| Value { node, result, ..value }));
        let index = self.graph.dag.add_node(Node { op, operands, results: results.clone(), origin });
        for operand in 0..self.graph.dag[index].operands.len() {
            let def = self.graph.values[self.graph.dag[index].operands[operand].index()].node;
            self.graph.dag.add_edge(NodeIndex::new(def.index()), index, ());
        }
        results
    }

    /// Appends a node with one result.
    ///
    /// # Panics
    /// If the op does not take these operands: a bug of the caller.
    pub fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> ValueId {
        self.ops(op, operands)[0]
    }

    /// Appends a node.
    ///
    /// # Panics
    /// If the op does not take these operands: a bug of the caller.
    pub fn ops(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Vec<ValueId> {
        let op = op.into();
        let name = match &self.base {
            Some(base) => format!("{base}.{}", op.name()),
            None => op.name().to_string(),
        };
        match self.try_node(op, operands, &name) {
            Ok(results) => results,
            Err(why) => panic!("`{name}` was built from operands that it does not take: {why}"),
        }
    }

    /// Copies a node of another graph, its operands mapped by `map`, which learns the results.
    pub fn copy(&mut self, from: &Graph, node: &Node, map: &mut [Option<ValueId>]) -> Vec<ValueId> {
        let operands: Vec<ValueId> = node.operands.iter().map(|v| map[v.index()].expect("operands come first")).collect();
        let value = |old: &ValueId| {
            let (name, Value { ty, sharding, asked, .. }) = (self.name_of(from, *old), from.value(*old));
            let (ty, sharding, asked) = (ty.clone(), sharding.clone(), asked.clone());
            Value { name, ty, sharding, node: NodeId(0), result: 0, asked }
        };
        let values = node.results.iter().map(value).collect();
        let results = self.append(node.op.clone(), operands, values, node.origin.clone());
        for (old, new) in node.results.iter().zip(&results) {
            map[old.index()] = Some(*new);
        }
        results
    }

    /// The name of a value of another graph, for the value that stands for it.
    fn name_of(&mut self, from: &Graph, value: ValueId) -> Arc<str> {
        let name = &from.value(value).name;
        match self.names.get_mut(name) {
            Some(is_taken @ false) => {
                *is_taken = true;
                name.clone()
            }
            _ => self.unique(name),
        }
    }

    /// Gives a value a name (made unique).
    pub fn rename(&mut self, value: ValueId, name: &str) {
        if *self.graph.values[value.index()].name != *name {
            self.names.remove(&self.graph.values[value.index()].name);
            if self.names.get(name) == Some(&false) {
                self.names.remove(name);
            }
            self.graph.values[value.index()].name = self.unique(name);
        }
    }

    /// Copies outputs, updates and gradients of `from`, their values mapped by `map`.
    pub fn copy_roots(&mut self, from: &Graph, map: &[Option<ValueId>]) {
        let mapped = |v: ValueId| map[v.index()].expect("every root is copied");
        self.graph.outputs = from.outputs.iter().map(|o| Output { name: o.name.clone(), value: mapped(o.value) }).collect();
        for (new, old) in self.graph.states.iter_mut().zip(&from.states) {
            new.update = old.update.map(mapped);
            new.gradient = old.gradient.map(mapped);
        }
    }

    fn unique(&mut self, name: &str) -> Arc<str> {
        let clean: String = name.chars().map(|c| if c.is_alphanumeric() || "._".contains(c) { c } else { '_' }).collect();
        let clean = if clean.is_empty() { "v".to_string() } else { clean };
        if let Some(name) = self.take(&clean) {
            return name;
        }
        loop {
            let next = self.numbers.entry(clean.clone()).or_insert(0);
            *next += 1;
            let candidate = format!("{clean}_{next}");
            if let Some(name) = self.take(&candidate) {
                return name;
            }
        }
    }

    /// Takes a name if it is free.
    fn take(&mut self, name: &str) -> Option<Arc<str>> {
        if self.names.contains_key(name) {
            return None;
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone(), true);
        Some(name)
    }
}
