//! Parameters that an exporter merged, apart again: in the bytes of the model each gets an
//! initializer of its own, which its readers read.

use crate::onnx::file::model_file::{ModelFile, Owner, TensorBytes, messages};
use crate::onnx::file::schema;
use crate::onnx::file::wire::{self, Edit, Field};
use crate::onnx::trained::{Candidate, Part};
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// An initializer and the parameters that it becomes.
pub(in crate::onnx) struct Split<'a> {
    /// It.
    pub candidate: &'a Candidate<'a>,
    /// The parameters, each with its readers.
    pub parts: &'a [Part],
    /// Whether something else reads it too.
    pub stays: bool,
}

/// The changes to the graph.
#[derive(Default)]
struct Changes {
    /// For each initializer, by position: the names of those that take its place, its own perhaps
    /// among them.
    initializers: BTreeMap<usize, Vec<String>>,
    /// New names of inputs of nodes.
    inputs: BTreeMap<(usize, usize), String>,
    /// Copies that are initializers now.
    removed: BTreeSet<usize>,
}

/// The model with those initializers split.
pub(in crate::onnx) fn split(file: &ModelFile, splits: &[Split<'_>]) -> Result<ModelFile, Diagnostic> {
    let changes = changes(file, splits)?;
    let fail =
        |why: Reason| Diagnostic::error(format!("the model cannot be rewritten: {why}")).at(Place::File(file.path.clone()));
    let bytes = rewritten(file, &changes).map_err(fail)?;
    let names = changes.initializers.values().filter(|names| names.len() > 1).flatten().cloned();
    let apart = file.apart.iter().cloned().chain(names).collect();
    Ok(ModelFile { apart, ..ModelFile::from_bytes(&file.path, bytes)? })
}

fn changes(file: &ModelFile, splits: &[Split<'_>]) -> Result<Changes, Diagnostic> {
    let graph = file.graph();
    let outputs: HashSet<&str> = graph.output.iter().map(|o| o.name.as_str()).collect();
    let mut taken: HashSet<String> = graph.node.iter().flat_map(|n| &n.output).cloned().collect();
    taken.extend(graph.initializer.iter().map(|t| t.name.clone()).chain(graph.input.iter().map(|i| i.name.clone())));
    let mut changes = Changes::default();
    for split in splits {
        let own = split.candidate.name;
        let position = graph.initializer.iter().position(|t| t.name == own);
        let place = || file.place(format!("initializer \"{own}\""));
        let position =
            position.ok_or_else(|| Diagnostic::error(format!("`{own}` is made by a node and cannot be split")).at(place()))?;
        let mut names = vec![];
        let keeps = split.stays || graph.input.iter().any(|i| i.name == own);
        let named = split.parts.iter().any(|p| p.name.as_deref() == Some(own));
        // The first part that no module names keeps the initializer's name.
        let first = (!named && !keeps).then(|| split.parts.iter().position(|p| p.name.is_none())).flatten();
        if keeps || named || first.is_some() {
            names.push(own.to_string());
        }
        for (i, part) in split.parts.iter().enumerate() {
            let readers: Option<Vec<(usize, usize)>> =
                part.readers.iter().map(|(node, input)| Some((file.sources[*node].position?, *input))).collect();
            let readers = readers.ok_or_else(|| {
                Diagnostic::error(format!("`{own}` is read inside a function or a branch, and cannot be split")).at(place())
            })?;
            if part.name.as_deref() == Some(own) || Some(i) == first {
                continue;
            }
            let copy = |(node, _): &&(usize, usize)| {
                let node = &graph.node[*node];
                node.op_type == "Identity"
                    && part.name.as_ref() == node.output.first()
                    && !outputs.contains(node.output[0].as_str())
            };
            // A copy that has kept its name becomes that initializer.
            let copied = part.readers.iter().position(|r| copy(&r));
            let name = match copied {
                Some(_) => part.name.clone().unwrap_or_default(),
                None => free(part.name.as_deref().unwrap_or(own), &mut taken),
            };
            for (i, reader) in readers.into_iter().enumerate() {
                if Some(i) == copied {
                    changes.removed.insert(reader.0);
                } else {
                    changes.inputs.insert(reader, name.clone());
                }
            }
            names.push(name);
        }
        changes.initializers.insert(position, names);
    }
    Ok(changes)
}

/// `name`, with a number behind it if it is taken.
fn free(name: &str, taken: &mut HashSet<String>) -> String {
    let numbered = (1..).map(|i| format!("{name}_{i}"));
    let name = [name.to_string()].into_iter().chain(numbered).find(|n| !taken.contains(n)).unwrap_or_default();
    taken.insert(name.clone());
    name
}

fn rewritten(file: &ModelFile, changes: &Changes) -> Result<Vec<u8>, Reason> {
    let bytes = &file.bytes;
    let tensors: BTreeMap<Owner, TensorBytes> = file.tensors()?.into_iter().map(|t| (t.owner, t)).collect();
    let mut made: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
    for (position, names) in &changes.initializers {
        let tensor = tensors.get(&Owner::Initializer(*position)).ok_or("an initializer is lost")?;
        made.insert(*position, names.iter().map(|name| renamed(bytes, tensor, name)).collect());
    }
    let (mut nodes, mut initializers) = (0, 0);
    let mut edits = vec![];
    let graph = ModelFile::graph_field(bytes)?.ok_or("it has no graph")?;
    for field in messages(bytes, graph.body, &[schema::graph::NODE, schema::graph::INITIALIZER])? {
        match field.number {
            schema::graph::NODE => {
                if changes.removed.contains(&nodes) {
                    edits.push(Edit { at: field.at, with: vec![] });
                } else {
                    edits.extend(inputs(bytes, &field, nodes, changes)?);
                }
                nodes += 1;
            }
            schema::graph::INITIALIZER => {
                if let Some(tensors) = made.get(&initializers) {
                    let with = tensors.iter().flat_map(|t| wire::delimited(schema::graph::INITIALIZER, t)).collect();
                    edits.push(Edit { at: field.at, with });
                }
                initializers += 1;
            }
            _ => {}
        }
    }
    wire::apply(bytes, &edits)
}

fn inputs<'a>(bytes: &[u8], node: &Field, position: usize, changes: &'a Changes) -> Result<Vec<Edit<'a>>, Reason> {
    let mut edits = vec![];
    let mut at = 0;
    for field in wire::walk(bytes, node.body.clone()) {
        let field = field?;
        if field.number == schema::node::INPUT {
            let name = changes.inputs.get(&(position, at));
            edits.extend(name.map(|name| Edit { at: field.at, with: wire::delimited(schema::node::INPUT, name.as_bytes()) }));
            at += 1;
        }
    }
    Ok(edits)
}

/// The message of `tensor` under another name.
fn renamed(bytes: &[u8], tensor: &TensorBytes, name: &str) -> Vec<u8> {
    let kept = tensor.fields.iter().filter(|f| f.number != schema::tensor::NAME).flat_map(|f| &bytes[f.at.clone()]).copied();
    kept.chain(wire::delimited(schema::tensor::NAME, name.as_bytes()).iter().flat_map(|p| p.bytes().to_vec())).collect()
}
