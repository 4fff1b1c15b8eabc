//! The inputs of a model, with every symbolic size bound.

use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::model_file::initializers;
use crate::onnx::file::tensor;
use crate::onnx::options::ImportOptions;
use pb::tensor_shape_proto::dimension::Value as Size;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, near_names};
use shardc_ir::types::{Type, checked_elements};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use tract_onnx::pb;

/// The name and type of each input that is not an initializer.
pub(in crate::onnx) fn inputs<'m>(file: &'m ModelFile, options: &ImportOptions<'_>) -> Result<Vec<(&'m str, Type)>, Diagnostics> {
    let weights: HashSet<&str> = initializers(file).map(|(_, t)| t.name.as_str()).collect();
    let inputs: Vec<&pb::ValueInfoProto> = file.graph().input.iter().filter(|i| !weights.contains(i.name.as_str())).collect();
    let mut reader =
        Reader { file, options, sizes: options.bindings.clone(), errors: vec![], symbols: BTreeSet::new(), batch: None };
    reader.bind_batch(&inputs);
    let types: Vec<Option<Type>> = inputs.iter().map(|i| reader.input(i)).collect();
    for name in options.bindings.keys().filter(|name| !reader.symbols.contains(name.as_str())) {
        let error = Diagnostic::error(format!("the model has no symbolic dimension `{name}`")).at(file.place("inputs"));
        reader.errors.push(error.help_early(reader.errors.len(), || symbols_help(name, &reader.symbols)));
    }
    if !reader.errors.is_empty() {
        return Err(reader.errors);
    }
    Ok(inputs.iter().zip(types).filter_map(|(i, ty)| ty.map(|ty| (i.name.as_str(), ty))).collect())
}

/// The help for a symbolic dimension that is none of `symbols`.
fn symbols_help(name: &str, symbols: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 20;
    let near = near_names(name, symbols.iter().copied());
    let known = if near.is_empty() { symbols.iter().copied().take(SHOWN).collect() } else { near };
    if known.is_empty() { "all its sizes are fixed".to_string() } else { format!("it has `{}`", known.join("`, `")) }
}

/// The batch size that the exporter fixed: that of the first of `inputs` with a number there.
pub(in crate::onnx) fn baked_batch<'m>(inputs: impl IntoIterator<Item = &'m pb::ValueInfoProto>) -> Option<u64> {
    inputs.into_iter().find_map(|input| match dims(input)?.first()?.value.as_ref()? {
        Size::DimValue(n) => u64::try_from(*n).ok(),
        Size::DimParam(_) => None,
    })
}

/// The sizes that the model gives for an output, as far as they are numbers; `None` where it gives
/// no shape.
pub(in crate::onnx) fn declared(output: &pb::ValueInfoProto) -> Option<Vec<Option<u64>>> {
    let size = |value: &Size| match value {
        Size::DimValue(n) => u64::try_from(*n).ok(),
        Size::DimParam(_) => None,
    };
    Some(dims(output)?.iter().map(|dim| dim.value.as_ref().and_then(size)).collect())
}

/// Sizes for people: `[4, ?]`.
pub(in crate::onnx) fn shape_text(sizes: &[Option<u64>]) -> String {
    let sizes: Vec<String> = sizes.iter().map(|size| size.map_or("?".to_string(), |n| n.to_string())).collect();
    format!("[{}]", sizes.join(", "))
}

struct Reader<'a, 'm> {
    file: &'m ModelFile,
    options: &'a ImportOptions<'a>,
    sizes: BTreeMap<String, u64>,
    errors: Diagnostics,
    symbols: BTreeSet<&'m str>,
    /// The size of dimension 0.
    batch: Option<u64>,
}

impl<'m> Reader<'_, 'm> {
    /// Binds the symbols of dimension 0 to the batch: the model's own where another input has a
    /// fixed one.
    fn bind_batch(&mut self, inputs: &[&'m pb::ValueInfoProto]) {
        self.batch = baked_batch(inputs.iter().copied()).or(self.options.batch);
        let Some(batch) = self.options.batch.and(self.batch) else { return };
        for input in inputs {
            let Some(Size::DimParam(name)) = dims(input).and_then(|d| d.first()).and_then(|d| d.value.as_ref()) else { continue };
            let bound = *self.sizes.entry(name.clone()).or_insert(batch);
            if bound != batch && !name.is_empty() {
                let message = format!("dimension 0 is `{name}`, which is bound to {bound}, but the batch is {batch}");
                self.fail(input, message, Some("leave out the `bind` of that name".into()));
            }
        }
    }

    fn input(&mut self, input: &'m pb::ValueInfoProto) -> Option<Type> {
        let Some(pb::type_proto::Value::TensorType(tensor)) = input.r#type.as_ref().and_then(|t| t.value.as_ref()) else {
            self.fail(input, "the input is not a tensor".into(), None);
            return None;
        };
        let dtype = tensor::dtype(tensor.elem_type, self.options.dtype).map_err(|why| self.fail(input, why.into(), None)).ok();
        let Some(dims) = dims(input) else {
            self.fail(input, "the input has no shape".into(), None);
            return None;
        };
        let sizes: Vec<Option<u64>> = dims.iter().enumerate().map(|(d, dim)| self.size(input, d, dim.value.as_ref())).collect();
        let shape: Vec<u64> = sizes.into_iter().collect::<Option<_>>()?;
        if checked_elements(&shape).is_none() {
            self.fail(input, format!("a shape of {shape:?} is too large"), None);
        }
        Some(Type::new(dtype?, shape))
    }

    fn size(&mut self, input: &pb::ValueInfoProto, d: usize, size: Option<&'m Size>) -> Option<u64> {
        let batch = self.batch.filter(|_| d == 0);
        match size {
            Some(Size::DimValue(n)) => {
                let Some(n) = u64::try_from(*n).ok().filter(|n| *n > 0) else {
                    self.fail(input, format!("dimension {d} is {n}"), None);
                    return None;
                };
                Some(n)
            }
            Some(Size::DimParam(name)) if !name.is_empty() => {
                self.symbols.insert(name);
                let size = self.sizes.get(name).copied();
                if size.is_none() {
                    let help =
                        if d == 0 { "say `batch N` in the spec".into() } else { format!("say `bind {name}=N` in the spec") };
                    self.fail(input, format!("dimension {d} is `{name}`, whose size nobody says"), Some(help));
                }
                size.filter(|n| *n > 0)
            }
            _ => {
                if batch.is_none() {
                    let help = if d == 0 { "say `batch N` in the spec" } else { "export the model with a name for it" };
                    self.fail(input, format!("dimension {d} has no size and no name"), Some(help.into()));
                }
                batch
            }
        }
    }

    fn fail(&mut self, input: &pb::ValueInfoProto, message: String, help: Option<String>) {
        let mut error = Diagnostic::error(message).at(self.file.place(format!("input \"{}\"", input.name)));
        error.help = help;
        self.errors.push(error);
    }
}

/// The dimensions of a tensor, if its rank is known.
fn dims(value: &pb::ValueInfoProto) -> Option<&Vec<pb::tensor_shape_proto::Dimension>> {
    match value.r#type.as_ref()?.value.as_ref()? {
        pb::type_proto::Value::TensorType(tensor) => Some(&tensor.shape.as_ref()?.dim),
    }
}
