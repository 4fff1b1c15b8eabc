//! Calls of model-local functions and branches of `If` as plain nodes of the graph, so that what
//! follows sees one list of nodes.
//!
//! A call becomes the nodes of the function's body, inputs and attributes put in their places. An
//! `If` keeps its place: its inputs are the condition, then the outputs of the first branch, then
//! those of the second, and the nodes of both branches stand in the graph with the branch that they
//! belong to; only the branch that is taken is imported.

use crate::onnx::file::model_file::{Branch, ModelFile, NodeSource, Owner};
use crate::onnx::file::node::node_text;
use crate::onnx::file::{scope, weigh};
use prost::Message;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, HashMap, HashSet};
use tract_onnx::pb;

/// Functions may call others so deep.
const MAX_DEPTH: usize = 64;

/// The bytes of the longest prefix of names, and those that an entry of a table takes.
const LONGEST_PREFIX: usize = 256;
const ENTRY: usize = 64;

/// The model with every call and every branch inlined.
pub(in crate::onnx) fn inlined(mut file: ModelFile) -> Result<ModelFile, Diagnostics> {
    let named: HashSet<Key<'_>> = file.model.functions.iter().map(key).collect();
    let is_call = |n: &pb::NodeProto| named.contains(&(domain(&n.domain), n.op_type.as_str()));
    if !file.graph().node.iter().any(|n| n.op_type == "If" || is_call(n)) {
        return Ok(file);
    }
    let functions = functions(&file)?;
    let mut expansion = Expansion {
        functions: &functions,
        nodes: vec![],
        sources: vec![],
        initializers: vec![],
        branches: vec![],
        left: weigh::limit(file.bytes.len()),
        prefixes: HashMap::new(),
    };
    let mut errors = vec![];
    for (position, node) in file.graph().node.iter().enumerate() {
        let source = NodeSource { position: Some(position), ..file.sources[position].clone() };
        if let Err(why) = expansion.node(node.clone(), source, &mut vec![]) {
            errors.push(Diagnostic::error(why).at(file.place(node_text(node))));
            break;
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let Expansion { nodes, sources, initializers, branches, .. } = expansion;
    drop(functions);
    let places: BTreeMap<usize, usize> = sources.iter().enumerate().filter_map(|(at, s)| Some((s.position?, at))).collect();
    let moved = |owner: Owner| match owner {
        Owner::Attribute(node, attribute) => places.get(&node).map(|at| Owner::Attribute(*at, attribute)),
        other => Some(other),
    };
    file.raw = std::mem::take(&mut file.raw).into_iter().filter_map(|(owner, at)| Some((moved(owner)?, at))).collect();
    if let Some(graph) = &mut file.model.graph {
        graph.node = nodes;
        graph.initializer.extend(initializers);
    }
    Ok(ModelFile { sources, branches, ..file })
}

/// The functions of a model.
struct Functions<'m> {
    all: Vec<Function<'m>>,
    /// Which of them has a name.
    named: HashMap<Key<'m>, usize>,
}

impl Functions<'_> {
    /// Which of them a node calls, if it does.
    fn called(&self, node: &pb::NodeProto) -> Option<usize> {
        self.named.get(&(domain(&node.domain), node.op_type.as_str())).copied()
    }
}

/// A function and the default values of its attributes.
struct Function<'m> {
    body: &'m pb::FunctionProto,
    defaults: Vec<pb::AttributeProto>,
}

/// Domain and name.
type Key<'m> = (&'m str, &'m str);

fn domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

fn key(function: &pb::FunctionProto) -> Key<'_> {
    (domain(function.domain.as_deref().unwrap_or_default()), function.name.as_deref().unwrap_or_default())
}

/// The part of functions that tract's protobuf lacks.
#[derive(Clone, PartialEq, Message)]
struct ModelDefaults {
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionDefaults>,
}

#[derive(Clone, PartialEq, Message)]
struct FunctionDefaults {
    #[prost(message, repeated, tag = "11")]
    attribute: Vec<pb::AttributeProto>,
    #[prost(string, tag = "13")]
    overload: String,
}

fn functions(file: &ModelFile) -> Result<Functions<'_>, Diagnostic> {
    let mut functions = Functions { all: vec![], named: HashMap::new() };
    if file.model.functions.is_empty() {
        return Ok(functions);
    }
    let mut defaults = ModelDefaults::decode(&file.bytes[..]).map(|m| m.functions).unwrap_or_default().into_iter();
    for body in &file.model.functions {
        let defaults = defaults.next().unwrap_or_default();
        let (domain, name) = key(body);
        let place = || Place::Model { file: file.path.clone(), what: format!("function \"{name}\"") };
        if !defaults.overload.is_empty() {
            return Err(Diagnostic::error("overloads of functions are not supported").at(place()));
        }
        functions.all.push(Function { body, defaults: defaults.attribute });
        if functions.named.insert((domain, name), functions.all.len() - 1).is_some() {
            return Err(Diagnostic::error("the function is defined twice").at(place()));
        }
    }
    Ok(functions)
}

struct Expansion<'m> {
    functions: &'m Functions<'m>,
    nodes: Vec<pb::NodeProto>,
    sources: Vec<NodeSource>,
    /// Those of branches.
    initializers: Vec<pb::TensorProto>,
    branches: Vec<Branch>,
    /// The bytes that may still be made.
    left: u64,
    /// The prefixes of names inside functions and branches, and how often each was wanted.
    prefixes: HashMap<String, usize>,
}

impl<'m> Expansion<'m> {
    /// Adds a node whose names are those of the whole graph. `open` are the functions around it,
    /// and nothing for each branch.
    fn node(&mut self, mut node: pb::NodeProto, source: NodeSource, open: &mut Vec<Option<usize>>) -> Result<(), Reason> {
        if source.position.is_none() {
            self.take(weigh::node(&node) + source.scope.as_ref().map_or(0, String::len) as u64)?;
        }
        if let Some(called) = self.functions.called(&node) {
            if open.contains(&Some(called)) {
                return Err(reason!("function `{}` calls itself", node.op_type));
            }
            if open.len() >= MAX_DEPTH {
                return Err(reason!("functions call each other more than {MAX_DEPTH} deep"));
            }
            open.push(Some(called));
            let result = self.call(&node, &self.functions.all[called], &source, open);
            open.pop();
            return result;
        }
        if node.domain.is_empty() && node.op_type == "If" {
            node = self.branches(node, &source, open)?;
        }
        self.nodes.push(node);
        self.sources.push(source);
        Ok(())
    }

    /// Takes from the bytes that may be made.
    fn take(&mut self, bytes: u64) -> Result<(), Reason> {
        self.left = self.left.checked_sub(bytes).ok_or_else(weigh::too_much_made)?;
        Ok(())
    }

    /// A name of its own for what a node is made of: a function may be called for the output of
    /// another one.
    fn prefix(&mut self, node: &pb::NodeProto) -> String {
        let base = node.output.iter().find(|name| !name.is_empty()).unwrap_or(&node.name);
        let base = &base[..base.floor_char_boundary(LONGEST_PREFIX)];
        loop {
            let times = self.prefixes.entry(base.to_string()).or_default();
            *times += 1;
            let prefix = match *times {
                1 => return base.to_string(),
                2 => format!("{base}/{}", node.op_type),
                n => format!("{base}/{}/{n}", node.op_type),
            };
            if !self.prefixes.contains_key(&prefix) {
                self.prefixes.insert(prefix.clone(), 1);
                return prefix;
            }
        }
    }

    fn call(
        &mut self,
        call: &pb::NodeProto,
        function: &Function<'m>,
        source: &NodeSource,
        open: &mut Vec<Option<usize>>,
    ) -> Result<(), Reason> {
        let body = function.body;
        if call.input.len() > body.input.len() || call.output.len() > body.output.len() {
            return Err(reason!("function `{}` has {} inputs and {} outputs", call.op_type, body.input.len(), body.output.len()));
        }
        self.take(((body.input.len() + function.defaults.len()) * ENTRY) as u64)?;
        let prefix = self.prefix(call);
        let mut names = Names { prefix: prefix.clone(), inner: HashMap::new(), is_branch: false };
        let mut inputs: HashMap<&str, usize> = HashMap::new();
        for (i, name) in body.input.iter().enumerate() {
            names.inner.insert(name.clone(), call.input.get(i).cloned().unwrap_or_default());
            inputs.entry(name).or_insert(i);
        }
        for (name, outside) in body.output.iter().zip(&call.output).filter(|(_, outside)| !outside.is_empty()) {
            if let Some(input) = inputs.get(name.as_str()) {
                // An input that is also an output goes out as it is.
                let copy = pb::NodeProto {
                    op_type: "Identity".into(),
                    input: call.input.get(*input).cloned().into_iter().collect(),
                    output: vec![outside.clone()],
                    name: prefix.clone(),
                    ..Default::default()
                };
                self.node(copy, NodeSource { position: None, ..source.clone() }, open)?;
            } else {
                names.inner.insert(name.clone(), outside.clone());
            }
        }
        let given = Given::new(&call.attribute, &function.defaults);
        let opset = body.opset_import.iter().find(|o| domain(&o.domain).is_empty()).map(|o| o.version).or(source.opset);
        let scope = source.scope.clone().or_else(|| scope::parent(call.name.trim_start_matches('/')));
        for inner in &body.node {
            let mut node = inner.clone();
            names.rename(&mut node);
            given.put(&mut node.attribute, &mut |bytes| self.take(bytes))?;
            self.node(node, NodeSource { position: None, scope: scope.clone(), opset, branch: source.branch }, open)?;
        }
        Ok(())
    }

    /// The `If` with the outputs of both branches as inputs; the nodes of the branches are added
    /// before it.
    fn branches(
        &mut self,
        mut node: pb::NodeProto,
        source: &NodeSource,
        open: &mut Vec<Option<usize>>,
    ) -> Result<pb::NodeProto, Reason> {
        let condition = node.input.first().filter(|name| !name.is_empty()).ok_or("it has no condition")?.clone();
        let prefix = self.prefix(&node);
        let mut attributes = std::mem::take(&mut node.attribute);
        let mut flat = pb::NodeProto { input: vec![condition.clone()], ..node.clone() };
        for (taken, attribute) in [(true, "then_branch"), (false, "else_branch")] {
            let graph = attributes.iter_mut().find(|a| a.name == attribute).and_then(|a| a.g.take());
            let graph = graph.ok_or_else(|| reason!("attribute `{attribute}` is missing"))?;
            if graph.output.len() != node.output.len() || !graph.sparse_initializer.is_empty() {
                return Err(reason!("its {attribute} has {} outputs, not {}", graph.output.len(), node.output.len()));
            }
            if open.len() >= MAX_DEPTH {
                return Err(reason!("branches are more than {MAX_DEPTH} deep"));
            }
            self.branches.push(Branch { condition: condition.clone(), taken, outer: source.branch });
            let inside = NodeSource { position: None, branch: Some(self.branches.len() - 1), ..source.clone() };
            let mut names = Names { prefix: format!("{prefix}/{attribute}"), inner: HashMap::new(), is_branch: true };
            for tensor in &graph.initializer {
                self.take(tensor.encoded_len() as u64)?;
                let name = names.define(&tensor.name);
                self.initializers.push(pb::TensorProto { name, ..tensor.clone() });
            }
            for name in graph.node.iter().flat_map(|n| &n.output).filter(|n| !n.is_empty()) {
                names.define(name);
            }
            open.push(None);
            for mut inner in graph.node {
                names.rename(&mut inner);
                self.node(inner, inside.clone(), open)?;
            }
            open.pop();
            flat.input.extend(graph.output.iter().map(|o| names.read(&o.name)));
        }
        Ok(flat)
    }
}

/// The outside names for those inside a body.
struct Names {
    prefix: String,
    inner: HashMap<String, String>,
    /// Names that a branch does not define are those around it; those of a function are its own.
    is_branch: bool,
}

impl Names {
    fn define(&mut self, name: &str) -> String {
        let outside = format!("{}/{name}", self.prefix);
        self.inner.insert(name.to_string(), outside.clone());
        outside
    }

    fn read(&self, name: &str) -> String {
        match self.inner.get(name) {
            Some(outside) => outside.clone(),
            None if name.is_empty() || self.is_branch => name.to_string(),
            None => format!("{}/{name}", self.prefix),
        }
    }

    /// Gives a name the one that it has outside, which in a branch is often the same.
    fn replace(&self, name: &mut String) {
        if !self.is_branch || self.inner.contains_key(name) {
            *name = self.read(name);
        }
    }

    /// The node with the names that it has outside; those inside its own branches too.
    fn rename(&self, node: &mut pb::NodeProto) {
        node.input.iter_mut().chain(&mut node.output).for_each(|name| self.replace(name));
        node.name = format!("{}/{}", self.prefix, node.name);
        node.attribute.iter_mut().filter_map(|a| a.g.as_mut()).for_each(|graph| self.rename_outer(graph, &mut vec![]));
    }

    /// In a graph inside a node: the names that it reads from around it, which neither it nor the
    /// graphs between, with the names `between`, define; in a function also its own names, which
    /// may be those of the call.
    fn rename_outer(&self, graph: &mut pb::GraphProto, between: &mut Vec<HashSet<String>>) {
        let results = graph.node.iter().flat_map(|n| &n.output);
        let own = results.chain(graph.initializer.iter().map(|t| &t.name)).chain(graph.input.iter().map(|i| &i.name));
        between.push(own.filter(|name| !name.is_empty()).cloned().collect());
        let rename = |name: &mut String, between: &[HashSet<String>]| {
            if !between.iter().any(|own| own.contains(name)) {
                self.replace(name);
            } else if !self.is_branch {
                *name = format!("{}/{name}", self.prefix);
            }
        };
        for node in &mut graph.node {
            node.input.iter_mut().chain(&mut node.output).for_each(|name| rename(name, between));
            node.attribute.iter_mut().filter_map(|a| a.g.as_mut()).for_each(|graph| self.rename_outer(graph, between));
        }
        let tensors = graph.initializer.iter_mut().map(|t| &mut t.name);
        let values = graph.input.iter_mut().chain(&mut graph.output).map(|v| &mut v.name);
        tensors.chain(values).for_each(|name| rename(name, between));
        between.pop();
    }
}

/// The attributes that a body may refer to: those of the call, before the function's defaults.
struct Given<'c>(HashMap<&'c str, &'c pb::AttributeProto>);

impl<'c> Given<'c> {
    fn new(call: &'c [pb::AttributeProto], defaults: &'c [pb::AttributeProto]) -> Given<'c> {
        Given(defaults.iter().rev().chain(call.iter().rev()).map(|a| (a.name.as_str(), a)).collect())
    }

    /// Puts values in the places of attributes that refer to some; those without a value are left
    /// out. `take` gets the bytes of each before it is made.
    fn put(
        &self,
        attributes: &mut Vec<pb::AttributeProto>,
        take: &mut impl FnMut(u64) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        attributes.retain(|a| a.ref_attr_name.is_empty() || self.0.contains_key(a.ref_attr_name.as_str()));
        for attribute in attributes {
            if let Some(given) = self.0.get(attribute.ref_attr_name.as_str()).filter(|_| !attribute.ref_attr_name.is_empty()) {
                take(given.encoded_len() as u64)?;
                *attribute = pb::AttributeProto { name: attribute.name.clone(), ..(*given).clone() };
            } else if let Some(graph) = &mut attribute.g {
                graph.node.iter_mut().try_for_each(|node| self.put(&mut node.attribute, take))?;
            }
        }
        Ok(())
    }
}
