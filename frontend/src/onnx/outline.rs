//! The contents of a model, for people who are about to write a spec: also of a model that could
//! not be trained as it is.

use crate::initializers::Decision;
use crate::onnx::file::inline;
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::tensor;
use crate::onnx::import::Imported;
use crate::onnx::import::import_file;
use crate::onnx::import::signature;
use crate::onnx::options::ImportOptions;
use crate::onnx::options::Weights;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Size;

/// The contents of a model.
#[derive(Debug)]
pub struct Outline {
    /// Its inputs, initializers apart.
    pub inputs: Vec<Port>,
    /// Its outputs.
    pub outputs: Vec<Port>,
    /// The batch: the one that the exporter fixed, else a guess.
    pub batch: u64,
    /// A guess for each other symbolic size.
    pub bindings: BTreeMap<String, u64>,
    /// For each float initializer whether it is trained, and why; empty where that cannot be told.
    pub decisions: Vec<Decision>,
    /// Why the model cannot be trained without more lines in the spec, or not at all.
    pub problems: Diagnostics,
    /// Warnings about a model that can.
    pub warnings: Diagnostics,
}

/// An input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type, where it is one that is read.
    pub dtype: Option<DType>,
    /// Each dimension: a size, or a name; none where the rank is not known.
    pub dims: Option<Vec<Dim>>,
}

/// A dimension of an input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dim {
    /// A size.
    Fixed(u64),
    /// A name, perhaps empty.
    Symbol(String),
}

/// The batch and the sizes of a model that leaves them open.
const GUESSED_BATCH: u64 = 8;
const GUESSED_SIZE: u64 = 32;

/// The outline of the model at `path`.
///
/// # Errors
/// If it is no model.
pub fn outline(path: &Path) -> Result<Outline, Diagnostics> {
    let file = inline::inlined(ModelFile::read(path)?)?;
    let weights: HashSet<&str> = file.graph().initializer.iter().map(|t| t.name.as_str()).collect();
    let inputs: Vec<&pb::ValueInfoProto> = file.graph().input.iter().filter(|i| !weights.contains(i.name.as_str())).collect();
    let batch = signature::baked_batch(inputs.iter().copied()).unwrap_or(GUESSED_BATCH);
    let inputs: Vec<Port> = inputs.into_iter().map(port).collect();
    let outputs: Vec<Port> = file.graph().output.iter().map(port).collect();
    let symbols = inputs.iter().flat_map(|i| i.dims.iter().flat_map(|dims| dims.iter().enumerate().skip(1)));
    let bindings: BTreeMap<String, u64> = symbols
        .filter_map(|(_, dim)| match dim {
            Dim::Symbol(name) if !name.is_empty() => Some((name.clone(), GUESSED_SIZE)),
            _ => None,
        })
        .collect();
    let options = || ImportOptions {
        bindings: bindings.clone(),
        batch: Some(batch),
        weights: Weights::NotNeeded,
        ..ImportOptions::default()
    };
    let (imported, problems) = match import_file(file, &options()) {
        Ok(imported) => (Some(imported), vec![]),
        Err(problems) => {
            let only_read = ImportOptions { training: false, ..options() };
            (crate::onnx::import::import(path, &only_read).ok(), problems)
        }
    };
    let (decisions, warnings, typed) = match imported {
        Some(Imported { decisions, warnings, graph, .. }) => {
            let outputs = graph.outputs.iter().map(|output| {
                let ty = graph.ty(output.value);
                let dims = ty.shape.iter().map(|n| Dim::Fixed(*n)).collect();
                Port { name: output.name.clone(), dtype: Some(ty.dtype), dims: Some(dims) }
            });
            (decisions, warnings, outputs.collect())
        }
        None => (vec![], vec![], outputs.clone()),
    };
    // The graph knows the outputs about which the file is silent.
    let typed: HashMap<String, Port> = typed.into_iter().rev().map(|port: Port| (port.name.clone(), port)).collect();
    let outputs = outputs.into_iter().map(|output| match typed.get(&output.name) {
        Some(typed) if output.dims.is_none() => typed.clone(),
        _ => output,
    });
    Ok(Outline { inputs, outputs: outputs.collect(), batch, bindings, decisions, problems, warnings })
}

fn port(value: &pb::ValueInfoProto) -> Port {
    let tensor = value.r#type.as_ref().and_then(|t| t.value.as_ref()).map(|pb::type_proto::Value::TensorType(tensor)| tensor);
    let dim = |dim: &pb::tensor_shape_proto::Dimension| match &dim.value {
        Some(Size::DimValue(n)) => Dim::Fixed(u64::try_from(*n).unwrap_or(0)),
        Some(Size::DimParam(name)) => Dim::Symbol(name.clone()),
        None => Dim::Symbol(String::new()),
    };
    Port {
        name: value.name.clone(),
        dtype: tensor.and_then(|t| tensor::dtype(t.elem_type, None).ok()),
        dims: tensor.and_then(|t| t.shape.as_ref()).map(|shape| shape.dim.iter().map(dim).collect()),
    }
}
