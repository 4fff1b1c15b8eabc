//! Calls of model-local functions and branches of `If` as plain nodes of the graph, so that what
//! follows sees one list of nodes.
//!
//! A call becomes the nodes of the function's body, inputs and attributes put in their places. An
//! `If` keeps its place: its inputs are the condition, then the outputs of the first branch, then
//! those of the second, and the nodes of both branches stand in the graph with the branch that they
//! belong to; only the branch that is taken is imported.

use crate::onnx::file::model_file::{Branch, ModelFile, NodeSource, Owner};
use crate::onnx::file::node::node_text;
use prost::Message;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, HashMap, HashSet};
use tract_onnx::pb;

/// Functions may call others so deep.
const MAX_DEPTH: usize = 64;

/// More nodes than this are not made from a small file.
const MAX_NODES: usize = 1 << 20;

/// The model with every call and every branch inlined.
pub(in crate::onnx) fn inlined(mut file: ModelFile) -> Result<ModelFile, Diagnostics> {
    let is_called = |n: &pb::NodeProto| file.model.functions.iter().any(|f| key(f) == (domain(&n.domain), n.op_type.as_str()));
    if !file.graph().node.iter().any(|n| n.op_type == "If" || is_called(n)) {
        return Ok(file);
    }
    let functions = functions(&file)?;
    let mut expansion = Expansion {
        functions: &functions,
        nodes: vec![],
        sources: vec![],
        initializers: vec![],
        branches: vec![],
        made: 0,
        prefixes: HashSet::new(),
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
    let places: BTreeMap<usize, usize> = sources.iter().enumerate().filter_map(|(at, s)| Some((s.position?, at))).collect();
    let moved = |owner: Owner| match owner {
        Owner::Attribute(node, attribute) => places.get(&node).map(|at| Owner::Attribute(*at, attribute)),
        other => Some(other),
    };
    file.raw = std::mem::take(&mut file.raw).into_iter().filter_map(|(owner, at)| Some((moved(owner)?, at))).collect();
    drop(functions);
    if let Some(graph) = &mut file.model.graph {
        graph.node = nodes;
        graph.initializer.extend(initializers);
    }
    Ok(ModelFile { sources, branches, ..file })
}

/// A function and the default values of its attributes.
struct Function {
    body: pb::FunctionProto,
    defaults: Vec<pb::AttributeProto>,
}

/// Domain and name.
type Key = (String, String);

fn domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

fn key(function: &pb::FunctionProto) -> (&str, &str) {
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

fn functions(file: &ModelFile) -> Result<HashMap<Key, Function>, Diagnostic> {
    let defaults = ModelDefaults::decode(&file.bytes[..]).map(|m| m.functions).unwrap_or_default();
    let mut functions = HashMap::new();
    for (i, body) in file.model.functions.iter().enumerate() {
        let defaults = defaults.get(i).cloned().unwrap_or_default();
        let (domain, name) = key(body);
        let key = (domain.to_string(), name.to_string());
        let place = || Place::Model { file: file.path.clone(), what: format!("function \"{name}\"") };
        if !defaults.overload.is_empty() {
            return Err(Diagnostic::error("overloads of functions are not supported").at(place()));
        }
        if functions.insert(key, Function { body: body.clone(), defaults: defaults.attribute }).is_some() {
            return Err(Diagnostic::error("the function is defined twice").at(place()));
        }
    }
    Ok(functions)
}

struct Expansion<'f> {
    functions: &'f HashMap<Key, Function>,
    nodes: Vec<pb::NodeProto>,
    sources: Vec<NodeSource>,
    /// Those of branches.
    initializers: Vec<pb::TensorProto>,
    branches: Vec<Branch>,
    /// Nodes and calls so far.
    made: usize,
    /// The prefixes of names inside functions and branches.
    prefixes: HashSet<String>,
}

impl Expansion<'_> {
    /// Adds a node whose names are those of the whole graph. `open` are the functions around it.
    fn node(&mut self, mut node: pb::NodeProto, source: NodeSource, open: &mut Vec<Key>) -> Result<(), Reason> {
        self.made += 1;
        if self.made > MAX_NODES {
            return Err(reason!("functions and branches make more than {MAX_NODES} nodes of the model"));
        }
        let key = (domain(&node.domain).to_string(), node.op_type.clone());
        if let Some(function) = self.functions.get(&key) {
            if open.contains(&key) {
                return Err(reason!("function `{}` calls itself", key.1));
            }
            if open.len() >= MAX_DEPTH {
                return Err(reason!("functions call each other more than {MAX_DEPTH} deep"));
            }
            open.push(key);
            let result = self.call(&node, function, &source, open);
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

    /// A name of its own for what a node is made of: a function may be called for the output of
    /// another one.
    fn prefix(&mut self, node: &pb::NodeProto) -> String {
        let mut prefix = node.output.iter().find(|name| !name.is_empty()).unwrap_or(&node.name).clone();
        while !self.prefixes.insert(prefix.clone()) {
            prefix = format!("{prefix}/{}", node.op_type);
        }
        prefix
    }

    fn call(
        &mut self,
        call: &pb::NodeProto,
        function: &Function,
        source: &NodeSource,
        open: &mut Vec<Key>,
    ) -> Result<(), Reason> {
        let body = &function.body;
        if call.input.len() > body.input.len() || call.output.len() > body.output.len() {
            return Err(reason!("function `{}` has {} inputs and {} outputs", call.op_type, body.input.len(), body.output.len()));
        }
        let prefix = self.prefix(call);
        let mut names = Names { prefix: prefix.clone(), inner: HashMap::new(), outer: None };
        for (i, name) in body.input.iter().enumerate() {
            names.inner.insert(name.clone(), call.input.get(i).cloned().unwrap_or_default());
        }
        for (name, outside) in body.output.iter().zip(&call.output).filter(|(_, outside)| !outside.is_empty()) {
            if let Some(input) = body.input.iter().position(|i| i == name) {
                // An input that is also an output goes out as it is.
                let copy = pb::NodeProto {
                    op_type: "Identity".into(),
                    input: call.input.get(input).cloned().into_iter().collect(),
                    output: vec![outside.clone()],
                    name: prefix.clone(),
                    ..Default::default()
                };
                self.node(copy, NodeSource { position: None, ..source.clone() }, open)?;
            } else {
                names.inner.insert(name.clone(), outside.clone());
            }
        }
        let opset = body.opset_import.iter().find(|o| domain(&o.domain).is_empty()).map(|o| o.version).or(source.opset);
        for inner in &body.node {
            let mut node = inner.clone();
            given(&mut node.attribute, &call.attribute, &function.defaults);
            names.rename(&mut node);
            let scope = source.scope.clone().or_else(|| crate::onnx::file::scope::parent(call.name.trim_start_matches('/')));
            self.node(node, NodeSource { position: None, scope, opset, branch: source.branch }, open)?;
        }
        Ok(())
    }

    /// The `If` with the outputs of both branches as inputs; the nodes of the branches are added
    /// before it.
    fn branches(&mut self, node: pb::NodeProto, source: &NodeSource, open: &mut Vec<Key>) -> Result<pb::NodeProto, Reason> {
        let condition = node.input.first().filter(|name| !name.is_empty()).ok_or("it has no condition")?.clone();
        let prefix = self.prefix(&node);
        let mut flat = pb::NodeProto { input: vec![condition.clone()], attribute: vec![], ..node.clone() };
        for (taken, attribute) in [(true, "then_branch"), (false, "else_branch")] {
            let graph = node.attribute.iter().find(|a| a.name == attribute).and_then(|a| a.g.as_ref());
            let graph = graph.ok_or_else(|| reason!("attribute `{attribute}` is missing"))?;
            if graph.output.len() != node.output.len() || !graph.sparse_initializer.is_empty() {
                return Err(reason!("its {attribute} has {} outputs, not {}", graph.output.len(), node.output.len()));
            }
            if open.len() >= MAX_DEPTH {
                return Err(reason!("branches are more than {MAX_DEPTH} deep"));
            }
            self.branches.push(Branch { condition: condition.clone(), taken, outer: source.branch });
            let inside = NodeSource { position: None, branch: Some(self.branches.len() - 1), ..source.clone() };
            let mut names = Names { prefix: format!("{prefix}/{attribute}"), inner: HashMap::new(), outer: Some(()) };
            for tensor in &graph.initializer {
                let name = names.define(&tensor.name);
                self.initializers.push(pb::TensorProto { name, ..tensor.clone() });
            }
            for name in graph.node.iter().flat_map(|n| &n.output).filter(|n| !n.is_empty()) {
                names.define(name);
            }
            open.push((String::new(), "If".into()));
            for inner in &graph.node {
                let mut inner = inner.clone();
                names.rename(&mut inner);
                self.node(inner, inside.clone(), open)?;
            }
            open.pop();
            flat.input.extend(graph.output.iter().map(|o| names.read(&o.name)));
        }
        Ok(flat)
    }
}

/// The outside names for those inside a body. With `outer`, names that it does not define are those
/// around it.
struct Names {
    prefix: String,
    inner: HashMap<String, String>,
    outer: Option<()>,
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
            None if name.is_empty() || self.outer.is_some() => name.to_string(),
            None => format!("{}/{name}", self.prefix),
        }
    }

    /// The node with the names that it has outside; those inside its own branches too.
    fn rename(&self, node: &mut pb::NodeProto) {
        node.input.iter_mut().chain(&mut node.output).for_each(|name| *name = self.read(name));
        node.name = format!("{}/{}", self.prefix, node.name);
        node.attribute.iter_mut().filter_map(|a| a.g.as_mut()).for_each(|graph| self.rename_outer(graph));
    }

    /// In a graph inside a node: the names that it reads from around it.
    fn rename_outer(&self, graph: &mut pb::GraphProto) {
        let mut own: Vec<String> = graph.node.iter().flat_map(|n| n.output.clone()).collect();
        own.extend(graph.initializer.iter().map(|t| t.name.clone()).chain(graph.input.iter().map(|i| i.name.clone())));
        let inner = self.inner.iter().filter(|(name, _)| !own.contains(name)).map(|(a, b)| (a.clone(), b.clone())).collect();
        let names = Names { prefix: self.prefix.clone(), inner, outer: Some(()) };
        for node in &mut graph.node {
            node.input.iter_mut().for_each(|name| *name = names.read(name));
            node.attribute.iter_mut().filter_map(|a| a.g.as_mut()).for_each(|graph| names.rename_outer(graph));
        }
        graph.output.iter_mut().for_each(|o| o.name = names.read(&o.name));
    }
}

/// Attributes of a body that refer to those of its function get the values of the call, or the
/// defaults, or are left out.
fn given(attributes: &mut Vec<pb::AttributeProto>, call: &[pb::AttributeProto], defaults: &[pb::AttributeProto]) {
    let value = |name: &str| call.iter().chain(defaults).find(|a| a.name == name);
    attributes.retain(|a| a.ref_attr_name.is_empty() || value(&a.ref_attr_name).is_some());
    for attribute in attributes {
        if let Some(given) = value(&attribute.ref_attr_name).filter(|_| !attribute.ref_attr_name.is_empty()) {
            *attribute = pb::AttributeProto { name: attribute.name.clone(), ..given.clone() };
        }
        if let Some(graph) = &mut attribute.g {
            graph.node.iter_mut().for_each(|node| given(&mut node.attribute, call, defaults));
        }
    }
}
