//! Running a node test: import, all passes, the executor; the naive evaluator beside them.

use super::case::{Case, DataSet, is_float};
use prost::Message;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor as Array;
use shardc_frontend::onnx::{ImportOptions, Imported, import_bytes};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::interp::{self, Feed};
use shardc_ir::types::Tensor;
use shardc_passes::{Context, Mode};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

/// Cases whose outputs are written with four digits.
const FOUR_DIGITS: [&str; 1] = ["test_averagepool_2d_ceil_last_window_starts_on_pad"];

/// Which inputs of the model become constants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// None.
    Runtime,
    /// Integers and truth values: shapes, axes, indices.
    Integers,
    /// All but the first.
    AllButFirst,
    /// All.
    Folded,
}

impl Route {
    /// The hardest first.
    pub const ALL: [Route; 4] = [Route::Runtime, Route::Integers, Route::AllButFirst, Route::Folded];

    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Route::Runtime => "at run time",
            Route::Integers => "with constant integers",
            Route::AllButFirst => "with all but one constant",
            Route::Folded => "folded",
        }
    }

    fn is_constant(self, position: usize, tensor: &pb::TensorProto) -> bool {
        match self {
            Route::Runtime => false,
            Route::Integers => !is_float(tensor),
            Route::AllButFirst => position > 0,
            Route::Folded => true,
        }
    }
}

/// Why a case gives no outputs.
pub enum Refusal {
    /// The importer or a pass says why.
    Refused(String),
    /// Something broke.
    Failed(String),
}

/// The outputs of each data set.
pub fn evaluate(case: &Case, route: Route) -> Result<Vec<BTreeMap<String, Tensor>>, Refusal> {
    case.data.iter().map(|data| run(case, data, route)).collect()
}

fn run(case: &Case, data: &DataSet, route: Route) -> Result<BTreeMap<String, Tensor>, Refusal> {
    let model = with_constants(case, data, route);
    let imported = import(&model).map_err(|errors| Refusal::Refused(words(&errors)))?;
    let mut feed = Feed::default();
    for tensor in &data.inputs {
        feed.inputs.insert(tensor.name.clone(), read(tensor).map_err(Refusal::Refused)?);
    }
    for (name, weight) in &imported.weights {
        feed.states.insert(name.clone(), weight.load().map_err(|e| Refusal::Failed(e.message))?);
    }
    let naive = interp::outputs(&imported.graph, &feed).map_err(|why| Refusal::Failed(why.to_string()))?;
    let spec = shardc_frontend::spec::parse(Path::new("job.shard"), "mesh d=1\n").map_err(|e| Refusal::Failed(words(&e)))?;
    let cx = Context { spec: &spec, mode: Mode::Evaluate, verify: true };
    let program = shardc_passes::compile(imported.graph, &cx).map_err(|e| Refusal::Failed(words(&e)))?.into_first();
    let failed = |e: shardc_executor::run::ExecutionError| Refusal::Failed(e.to_string());
    let mut executor = Executor::new(program, 1).map_err(failed)?;
    executor.initialise(|name| feed.states.get(name).cloned().map(Array::from)).map_err(failed)?;
    let inputs =
        executor.programs().inputs().into_iter().map(|(_, input)| Array::from(feed.inputs[&input.name].clone())).collect();
    let outputs = executor.step(Arc::new(inputs)).map_err(failed)?.outputs;
    let outputs: BTreeMap<String, Tensor> = outputs.into_iter().map(|(name, array)| (name, Tensor::from(array))).collect();
    for (name, output) in &outputs {
        let same = same(output, &naive[name], 1e-4, 1e-5);
        same.map_err(|why| Refusal::Failed(format!("`{name}` and the naive evaluator differ: {why}")))?;
    }
    Ok(outputs)
}

/// The model, its inputs made constants as the route says.
fn with_constants(case: &Case, data: &DataSet, route: Route) -> pb::ModelProto {
    let mut model = case.model.clone();
    let graph = model.graph.as_mut().unwrap();
    let constants: Vec<&pb::TensorProto> =
        data.inputs.iter().enumerate().filter(|(i, t)| route.is_constant(*i, t)).map(|(_, t)| t).collect();
    graph.input.retain(|input| !constants.iter().any(|t| t.name == input.name));
    for (input, tensor) in graph.input.iter_mut().zip(data.inputs.iter().filter(|t| !constants.iter().any(|c| c.name == t.name)))
    {
        *input = declared(tensor);
    }
    let nodes = constants.into_iter().map(|tensor| pb::NodeProto {
        op_type: "Constant".to_string(),
        output: vec![tensor.name.clone()],
        attribute: vec![pb::AttributeProto {
            name: "value".to_string(),
            r#type: AttributeType::Tensor as i32,
            t: Some(tensor.clone()),
            ..Default::default()
        }],
        ..Default::default()
    });
    graph.node.splice(0..0, nodes);
    model
}

/// The declaration of an input like `tensor`, all its sizes fixed.
fn declared(tensor: &pb::TensorProto) -> pb::ValueInfoProto {
    use pb::tensor_shape_proto::{Dimension, dimension};
    let size = |n: &i64| Dimension { value: Some(dimension::Value::DimValue(*n)), ..Default::default() };
    let shape = pb::TensorShapeProto { dim: tensor.dims.iter().map(size).collect() };
    let ty = pb::type_proto::Tensor { elem_type: tensor.data_type, shape: Some(shape) };
    let value = Some(pb::type_proto::Value::TensorType(ty));
    pb::ValueInfoProto {
        name: tensor.name.clone(),
        r#type: Some(pb::TypeProto { value, ..Default::default() }),
        ..Default::default()
    }
}

fn import(model: &pb::ModelProto) -> Result<Imported, Diagnostics> {
    let options = ImportOptions { freeze: &|_| true, ..ImportOptions::default() };
    import_bytes(Path::new("model.onnx"), model.encode_to_vec(), &options)
}

/// The elements of a tensor, as the importer reads them.
fn read(tensor: &pb::TensorProto) -> Result<Tensor, String> {
    let graph = pb::GraphProto {
        output: vec![pb::ValueInfoProto { name: tensor.name.clone(), ..Default::default() }],
        initializer: vec![tensor.clone()],
        ..Default::default()
    };
    let opset_import = vec![pb::OperatorSetIdProto { domain: String::new(), version: 13 }];
    let model = pb::ModelProto { ir_version: 9, opset_import, graph: Some(graph), ..Default::default() };
    let imported = import(&model).map_err(|errors| words(&errors))?;
    match imported.weights.get(&tensor.name) {
        Some(weight) => weight.load().map_err(|e| e.message),
        None => Ok(interp::outputs(&imported.graph, &Feed::default())?[&tensor.name].clone()),
    }
}

/// Whether the outputs are those that the case says.
pub fn compare(case: &Case, data: &DataSet, outputs: &BTreeMap<String, Tensor>) -> Result<(), String> {
    for expected in &data.outputs {
        let (relative, absolute) = match DataType::try_from(expected.data_type) {
            // Ours are computed in f32 and theirs rounded, often after each op.
            Ok(DataType::Float16) => (2e-3, 1e-3),
            Ok(DataType::Bfloat16) => (1.6e-2, 1e-2),
            _ if FOUR_DIGITS.contains(&case.name.as_str()) => (1e-3, 1e-5),
            _ => (1e-4, 1e-5),
        };
        let ours = outputs.get(&expected.name).ok_or_else(|| format!("output `{}` of {} is missing", expected.name, case.op))?;
        same(ours, &read(expected)?, relative, absolute).map_err(|why| format!("`{}`: {why}", expected.name))?;
    }
    Ok(())
}

/// Floats within a tolerance, everything else exactly.
fn same(ours: &Tensor, theirs: &Tensor, relative: f64, absolute: f64) -> Result<(), String> {
    if ours.ty != theirs.ty {
        return Err(format!("{} is not {}", ours.ty, theirs.ty));
    }
    let exact = |dtype: DType| !dtype.is_float();
    let close = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (!exact(ours.ty.dtype) && (a - b).abs() <= absolute + relative * b.abs())
    };
    let (a, b) = (ours.to_f64(), theirs.to_f64());
    match a.iter().zip(&b).position(|(a, b)| !close(*a, *b)) {
        Some(i) => Err(format!("element {i} is {}, not {}", a[i], b[i])),
        None if exact(ours.ty.dtype) && ours.bytes != theirs.bytes => Err("integers differ beyond 2^53".to_string()),
        None => Ok(()),
    }
}

/// All messages, without the names of the case.
fn words(errors: &Diagnostics) -> String {
    errors.iter().map(|e| e.message.clone()).collect::<Vec<_>>().join("; ")
}
