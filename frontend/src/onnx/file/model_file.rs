//! A model file in memory: its bytes once, its protobuf without the elements of tensors, and where
//! those elements are.

use crate::onnx::file::metadata::Metadata;
use crate::onnx::file::namesakes;
use crate::onnx::file::record::{self, Record};
use crate::onnx::file::schema;
use crate::onnx::file::scope;
use crate::onnx::file::weigh;
use crate::onnx::file::wire::{self, Edit, Field};
use prost::Message;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::files;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tract_onnx::pb;

/// Protobuf's own limit.
pub(in crate::onnx) const MAX_BYTES: u64 = 1 << 31;

/// The place of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::onnx) enum Owner {
    /// An initializer of the graph, by position.
    Initializer(usize),
    /// A tensor attribute of a node, by positions.
    Attribute(usize, usize),
}

/// The bytes of one tensor message.
#[derive(Debug, Clone)]
pub(in crate::onnx) struct TensorBytes {
    /// Its place.
    pub owner: Owner,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A model file.
pub(in crate::onnx) struct ModelFile {
    /// As the user named it.
    pub path: PathBuf,
    /// All of it.
    pub bytes: Arc<Vec<u8>>,
    /// Its protobuf; `raw_data` is left out everywhere.
    pub model: pb::ModelProto,
    /// The ranges of `raw_data` in `bytes`.
    pub raw: BTreeMap<Owner, Range<usize>>,
    /// The source of each node.
    pub sources: Vec<NodeSource>,
    /// The branches that some nodes belong to.
    pub branches: Vec<Branch>,
    /// Initializers that were one in the user's file, and are several on the spec's word.
    pub apart: BTreeSet<String>,
    /// How many initializers the file's graph has; those of branches come behind.
    pub initializers: usize,
    /// The exporter's record of the module's parameters.
    pub record: Option<Record>,
}

/// The source of a node of the graph.
#[derive(Debug, Clone, Default)]
pub(in crate::onnx) struct NodeSource {
    /// Its position in the file; none for one inside a function or a branch.
    pub position: Option<usize>,
    /// The module path that the file gives it.
    pub scope: Option<String>,
    /// The version of the op set that its function names.
    pub opset: Option<i64>,
    /// The branch that it belongs to, by position in [`ModelFile::branches`].
    pub branch: Option<usize>,
}

/// One side of an `If`.
#[derive(Debug, Clone)]
pub(in crate::onnx) struct Branch {
    /// The name of the condition.
    pub condition: String,
    /// The value of the condition under which it is taken.
    pub taken: bool,
    /// The branch that the `If` is in.
    pub outer: Option<usize>,
}

impl ModelFile {
    /// The version of the default op set, if the model names one.
    pub fn opset(&self) -> Option<i64> {
        let default = self.model.opset_import.iter().find(|o| o.domain.is_empty() || o.domain == "ai.onnx");
        default.map(|o| o.version)
    }

    /// The exporter's record of the call that the node at `position` came from.
    pub fn traced(&self, position: usize) -> Option<&record::Call> {
        self.record.as_ref()?.calls.get(self.sources[position].position?)?.as_ref()
    }

    /// Reads and takes apart the file at `path`.
    pub fn read(path: &Path) -> Result<ModelFile, Diagnostic> {
        let fail = |message: String| Diagnostic::error(message).at(Place::File(path.to_path_buf()));
        let unread = |error: io::Error| {
            let help = "the model is a file that `torch.onnx.export` or `onnx.save` has written";
            fail(format!("cannot read the model: {error}")).help(help)
        };
        let metadata = fs::metadata(path).map_err(unread)?;
        if !metadata.is_file() {
            return Err(fail("the model is not a file".into()));
        }
        if metadata.len() > MAX_BYTES {
            return Err(fail("the model is larger than 2 GiB, which protobuf does not allow".into())
                .help("export it with its weights as external data"));
        }
        let bytes = files::read(path).map_err(unread)?;
        ModelFile::from_bytes(path, bytes)
    }

    /// Takes apart `bytes`, the contents of the file at `path`.
    pub fn from_bytes(path: &Path, bytes: impl Into<Arc<Vec<u8>>>) -> Result<ModelFile, Diagnostic> {
        let bytes = bytes.into();
        let fail = |why: Reason| {
            Diagnostic::error(format!("this is not an ONNX model: {why}"))
                .at(Place::File(path.to_path_buf()))
                .help("is the file complete, and saved by `torch.onnx.export` or `onnx.save`?")
        };
        weigh::check(&bytes).map_err(fail)?;
        let tensors = tensors(&bytes).map_err(fail)?;
        let mut raw = BTreeMap::new();
        let mut edits = vec![];
        for tensor in &tensors {
            for field in tensor.fields.iter().filter(|f| f.number == schema::tensor::RAW_DATA && f.delimited) {
                raw.insert(tensor.owner, field.body.clone());
                edits.push(Edit { at: field.at.clone(), with: vec![] });
            }
        }
        edits.sort_by_key(|e| e.at.start);
        let skeleton = wire::apply(&bytes, &edits).map_err(fail)?;
        let mut model = pb::ModelProto::decode(&skeleton[..]).map_err(|e| fail(e.to_string().into()))?;
        let Metadata { scopes, record } = Metadata::of(&skeleton).map_err(|e| fail(e.to_string().into()))?;
        let Some(graph) = &mut model.graph else { return Err(fail("it has no graph".into())) };
        if let Some(record) = &record {
            namesakes::rename(graph, record);
        }
        let count = model.graph.as_ref().map_or(0, |g| g.node.len());
        let source = |position: usize| {
            let scope = scopes.get(position).cloned().flatten().filter(|scope| scope.len() <= scope::LONGEST);
            NodeSource { position: Some(position), scope, ..NodeSource::default() }
        };
        let sources = (0..count).map(source).collect();
        let initializers = model.graph.as_ref().map_or(0, |g| g.initializer.len());
        let (path, bytes, branches, apart) = (path.to_path_buf(), bytes, vec![], BTreeSet::new());
        Ok(ModelFile { path, bytes, model, raw, sources, branches, apart, initializers, record })
    }

    /// Every tensor of the graph in file order.
    pub fn tensors(&self) -> Result<Vec<TensorBytes>, Reason> {
        let places: HashMap<usize, usize> =
            self.sources.iter().enumerate().filter_map(|(at, s)| Some((s.position?, at))).collect();
        let placed = |tensor: TensorBytes| match tensor.owner {
            Owner::Attribute(node, attribute) => {
                places.get(&node).map(|at| TensorBytes { owner: Owner::Attribute(*at, attribute), ..tensor })
            }
            Owner::Initializer(_) => Some(tensor),
        };
        Ok(tensors(&self.bytes)?.into_iter().filter_map(placed).collect())
    }

    /// Whether the file holds the tensor where an export can replace it: not inside a function or a
    /// branch.
    pub fn is_outside(&self, owner: Owner) -> bool {
        match owner {
            Owner::Attribute(node, _) => self.sources[node].position.is_some(),
            Owner::Initializer(position) => position < self.initializers,
        }
    }

    /// The field that holds the graph.
    pub fn graph_field(bytes: &[u8]) -> Result<Option<Field>, Reason> {
        let graphs = messages(bytes, 0..bytes.len(), &[schema::model::GRAPH])?;
        if graphs.len() > 1 { Err("it has several graphs".into()) } else { Ok(graphs.into_iter().next()) }
    }

    /// The graph.
    pub fn graph(&self) -> &pb::GraphProto {
        self.model.graph.as_ref().expect("checked when the file was read")
    }

    /// Whether a node or the caller of the model reads the value `name`.
    pub fn is_read(&self, name: &str) -> bool {
        let graph = self.graph();
        !name.is_empty()
            && (graph.output.iter().any(|o| o.name == name) || graph.node.iter().any(|n| n.input.iter().any(|i| i == name)))
    }

    /// A place in the model, such as `initializer "w"`.
    pub fn place(&self, what: impl Into<String>) -> Place {
        Place::Model { file: self.path.clone(), what: what.into() }
    }
}

/// Every initializer with its place, in the file's order.
pub(in crate::onnx) fn initializers(file: &ModelFile) -> impl Iterator<Item = (Owner, &pb::TensorProto)> {
    file.graph().initializer.iter().enumerate().map(|(i, t)| (Owner::Initializer(i), t))
}

/// Every initializer and every tensor attribute of a node, in file order.
fn tensors(bytes: &[u8]) -> Result<Vec<TensorBytes>, Reason> {
    let mut found = vec![];
    let (mut nodes, mut initializers) = (0, 0);
    let Some(graph) = ModelFile::graph_field(bytes)? else { return Ok(found) };
    for field in messages(bytes, graph.body, &[schema::graph::NODE, schema::graph::INITIALIZER])? {
        if field.number == schema::graph::NODE {
            for (i, attribute) in messages(bytes, field.body, &[schema::node::ATTRIBUTE])?.into_iter().enumerate() {
                for tensor in messages(bytes, attribute.body, &[schema::attribute::T])? {
                    let owner = Owner::Attribute(nodes, i);
                    found.push(TensorBytes { owner, fields: wire::fields(bytes, tensor.body)? });
                }
            }
            nodes += 1;
        } else {
            let owner = Owner::Initializer(initializers);
            found.push(TensorBytes { owner, fields: wire::fields(bytes, field.body)? });
            initializers += 1;
        }
    }
    Ok(found)
}

/// The fields of those numbers, which hold messages, of the message in `bytes[message]`.
pub(in crate::onnx) fn messages(bytes: &[u8], message: Range<usize>, numbers: &[u64]) -> Result<Vec<Field>, Reason> {
    let held = |field: &Result<Field, Reason>| field.as_ref().map_or(true, |field| numbers.contains(&field.number));
    let delimited = |field: Result<Field, Reason>| match field? {
        field if field.delimited => Ok(field),
        field => Err(reason!("a number stands for a message at byte {}", field.at.start)),
    };
    wire::walk(bytes, message).filter(held).map(delimited).collect()
}
