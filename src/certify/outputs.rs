//! The model's outputs in evaluation: those of the imported graph, node by node as the file has
//! them, and those that tract computes of the same file with the same weights.

use super::sample::Sample;
use super::whole::{Whole, words};
use super::{Found, Stop, Subject};
use shardc_executor::tensor::Tensor;
use shardc_frontend::onnx;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, Output, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor as Value, Type};
use std::collections::BTreeMap;

/// How far two computations of one output in f64 may differ, in part of its size: constants that
/// passes make are rounded to f32.
const TOLERANCE: f64 = 1e-6;

/// Of a model with more nodes tract is not asked, which looks at all of them many times.
const MOST_NODES: usize = 1_000;

/// Of a model whose values have more bytes in f32 it is not asked either, as it keeps constants.
const MOST_OF_VALUES: u64 = 1 << 25;

/// It computes constants anew, element by element, and products without tiles: of models that are
/// more work it is not asked.
const MOST_FOLDED: u64 = 1 << 21;
const MOST_WORK: u64 = 1 << 29;

/// It lays out what each output of a convolution sees, several times over: of a model with more
/// bytes of that in f32 it is not asked.
const MOST_SEEN: u64 = 1 << 23;

/// How far two computations of one output in f32 may differ.
const SINGLE: f64 = 1e-3;

/// Checks the outputs of evaluation.
pub fn check(subject: &Subject<'_>, sample: &Sample) -> Result<Found, Stop> {
    let file = &subject.imported.graph;
    let mut own: Vec<&Output> = vec![];
    for output in &file.outputs {
        let found = subject.eval.outputs.iter().find(|own| own.name == output.name);
        own.push(found.ok_or_else(|| reason!("evaluation does not give the output `{}`", output.name))?);
    }
    let wanted: Vec<ValueId> = own.iter().map(|output| output.value).collect();
    let mut run = Whole::new(subject.eval).program(&wanted, &[], subject.spec)?.start()?;
    run.set(&sample.states)?;
    let outputs = run.run(0, &sample.data)?;
    let data = data_of_file(subject, sample)?;
    let wanted: Vec<ValueId> = file.outputs.iter().map(|output| output.value).collect();
    let planned = Whole::new(file).program(&wanted, &[], subject.spec)?;
    let work = planned.work();
    let mut run = planned.start()?;
    run.set(&sample.initializers)?;
    let of_file = run.run(0, &data)?;
    if of_file.iter().any(|output| !output.to_f64().iter().all(|x| x.is_finite())) {
        return Ok(Found::Unseen("the outputs of random data are not finite".into()));
    }
    for ((name, own), other) in own.iter().map(|output| &output.name).zip(&outputs).zip(of_file) {
        let apart = distance(own, &other).ok_or_else(|| reason!("output `{name}` has another shape than in the file"))?;
        if apart.is_nan() || apart > TOLERANCE {
            return Err(reason!("output `{name}` is not what the imported model computes, by {apart:.1e} of its size").into());
        }
    }
    let tract = match of_tract(subject, sample, &data, work) {
        Ok(tract) => tract,
        Err(why) => return Ok(Found::Holds(format!("as the imported model, node by node; tract does not run the file: {why}"))),
    };
    for (output, own) in file.outputs.iter().zip(&outputs) {
        let apart = tract.get(&output.name).and_then(|other| distance(own, other)).unwrap_or(f64::INFINITY);
        if apart.is_nan() || apart > SINGLE {
            return Ok(Found::Doubted(reason!(
                "tract computes another `{}` of this file, by {apart:.1e} of its size: one of the two is wrong",
                output.name
            )));
        }
    }
    Ok(Found::Holds("as the imported model, node by node, and as tract computes the file".into()))
}

/// The sample's data for as many samples as the file says: the first ones, or all in turn.
fn data_of_file(subject: &Subject<'_>, sample: &Sample) -> Result<BTreeMap<String, Tensor>, Reason> {
    let mut data = BTreeMap::new();
    for (_, node) in subject.imported.graph.nodes() {
        let Op::Input(input) = &node.op else { continue };
        let own = sample.data.get(&input.name).ok_or_else(|| reason!("evaluation does not read `{}`", input.name))?;
        let bytes = (input.ty.elements() * own.dtype.bytes()) as usize;
        let bytes = own.bytes.iter().copied().cycle().take(bytes).collect();
        data.insert(input.name.clone(), Tensor { dtype: own.dtype, shape: input.ty.shape.clone(), bytes });
    }
    Ok(data)
}

/// How far the samples that both have are apart, in part of their size; none if they are of
/// different shapes.
fn distance(own: &Tensor, other: &Tensor) -> Option<f64> {
    let rest = |tensor: &Tensor| tensor.shape.get(1..).map(<[u64]>::to_vec);
    if rest(own) != rest(other) {
        return None;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let (own, other) = (own.to_f64(), other.to_f64());
    let apart = norm(&mut own.iter().zip(&other).map(|(a, b)| a - b));
    let n = own.len().min(other.len());
    Some(apart / norm(&mut own[..n].iter().copied()).max(f64::MIN_POSITIVE))
}

/// The bytes in f32 of what all outputs of a convolution see of its input.
fn seen(graph: &Graph, node: &Node) -> u64 {
    let (x, y) = match &node.op {
        Op::Conv(_) => (node.operands[0], node.results[0]),
        Op::ConvInput(_) => (node.results[0], node.operands[0]),
        _ => return 0,
    };
    let [x, w, y] = [x, node.operands[1], y].map(|value| &graph.ty(value).shape);
    let sizes = [&x[1..2], &y[..1], &y[2..], &w[2..]].concat();
    sizes.iter().fold(DType::F32.bytes(), |bytes, size| bytes.saturating_mul(*size))
}

/// What tract computes of the file with the sample's weights, which is so much work.
fn of_tract(
    subject: &Subject<'_>,
    sample: &Sample,
    data: &BTreeMap<String, Tensor>,
    work: u64,
) -> Result<BTreeMap<String, Tensor>, Reason> {
    let imported = subject.imported;
    if imported.graph.node_count() > MOST_NODES {
        return Err("it has too many nodes".into());
    }
    if work > MOST_WORK || imported.folded > MOST_FOLDED {
        return Err("it is too much work".into());
    }
    let values = imported.graph.values().map(|(_, value)| value.ty.elements().saturating_mul(DType::F32.bytes()));
    if values.fold(0, u64::saturating_add) > MOST_OF_VALUES {
        return Err("its values are too large".into());
    }
    if imported.graph.nodes().any(|(_, node)| seen(&imported.graph, node) > MOST_SEEN) {
        return Err("its convolutions are too large".into());
    }
    if let Some(name) = imported.weights.iter().find_map(|(name, weight)| weight.stored_half().map(|_| name)) {
        return Err(reason!("`{name}` is in half precision"));
    }
    let mut types: BTreeMap<String, Type> = BTreeMap::new();
    for (name, tensor) in &sample.initializers {
        types.insert(name.clone(), Type::new(tensor.dtype, tensor.shape.clone()));
    }
    for copy in &imported.copies {
        let of = types.get(&copy.of).ok_or("a copy is of nothing")?;
        types.insert(copy.name.clone(), copy.ty(of));
    }
    let elements = |name: &str| -> Result<Value, Diagnostic> {
        let of = |name: &str| sample.initializers.get(name).cloned().map(Value::from);
        let lost = || Diagnostic::error(format!("`{name}` is lost"));
        match imported.copies.iter().find(|copy| copy.name == name) {
            Some(copy) => copy.elements(&of(&copy.of).ok_or_else(lost)?).map_err(Diagnostic::error),
            None => of(name).ok_or_else(lost),
        }
    };
    let told = |errors: Diagnostics| Reason::from(words(&errors));
    let export = onnx::Export::new(subject.model, imported.model.clone(), &types).map_err(told)?;
    if export.has_data() {
        return Err("its weights are in a file of their own".into());
    }
    let mut bytes = vec![];
    let mut write = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok::<_, Diagnostic>(())
    };
    export.write_model("", &mut |name, each| each(elements(name)?), &mut write).map_err(|d| Reason::from(d.message))?;
    let inputs = data.iter().map(|(name, tensor)| (name.clone(), Value::from(tensor.clone()))).collect();
    let outputs = onnx::tract_outputs(&bytes, &inputs)?;
    Ok(outputs.into_iter().map(|(name, value)| (name, value.into())).collect())
}
