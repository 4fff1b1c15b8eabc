//! What tract computes of a model: an implementation that shares with ours nothing but the reading
//! of protobuf.

use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use tract_onnx::prelude::{
    Framework, InferenceFact, InferenceModelExt, IntoRunnable, IntoTValue, TValue, TVec, Tensor as Array, TractResult,
};

/// The outputs of the model in `bytes`, with its weights in it, of `inputs`, both by name.
///
/// # Errors
/// Why tract does not run it.
pub fn tract_outputs(bytes: &[u8], inputs: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, Reason> {
    let run = || outputs(bytes, inputs);
    let found = quietly(run).ok_or("it gives up")?;
    found.map_err(|error| reason!("{}", error.root_cause().to_string().lines().next().unwrap_or_default()))
}

/// What `run` gives, unless it panics, of which nothing is printed.
fn quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    thread_local! {
        static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    }
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            if !IS_QUIET.get() {
                before(what);
            }
        }));
    });
    IS_QUIET.set(true);
    let found = catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(false);
    found.ok()
}

fn outputs(bytes: &[u8], inputs: &BTreeMap<String, Tensor>) -> TractResult<BTreeMap<String, Tensor>> {
    let framework = tract_onnx::onnx();
    let file = framework.proto_model_for_read(&mut Cursor::new(bytes))?;
    let nodes = file.graph.iter().flat_map(|graph| &graph.node).chain(file.functions.iter().flat_map(|function| &function.node));
    // It takes each sum over all letters at once.
    if { nodes }.any(|node| node.op_type == "Einsum" && node.input.len() > 2) {
        return Err(tract_onnx::prelude::TractError::msg("an Einsum of more than two operands is too much work"));
    }
    let mut model = framework.model_for_proto_model(&file)?;
    let mut arrays: TVec<TValue> = TVec::new();
    for (i, outlet) in model.inputs.clone().iter().enumerate() {
        let name = model.node(outlet.node).name.clone();
        let array = inputs.get(&name).ok_or_else(|| tract_onnx::prelude::TractError::msg(format!("it reads `{name}`")))?;
        let array = array_of(array)?;
        model.set_input_fact(i, InferenceFact::dt_shape(array.datum_type(), array.shape()))?;
        arrays.push(array.into_tvalue());
    }
    let label = |outlet| model.outlet_label(outlet).map(str::to_string);
    let names: Vec<Option<String>> = model.outputs.iter().map(|outlet| label(*outlet)).collect();
    let found = model.into_typed()?.into_runnable()?.run(arrays)?;
    let named = names.into_iter().zip(found.iter()).filter_map(|(name, value)| Some((name?, value)));
    named.map(|(name, value)| Ok((name, tensor_of(value)?))).collect()
}

fn array_of(tensor: &Tensor) -> TractResult<Array> {
    let shape: Vec<usize> = tensor.ty.shape.iter().map(|n| *n as usize).collect();
    match tensor.ty.dtype {
        DType::F32 | DType::BF16 | DType::F16 => {
            Array::from_shape(&shape, &tensor.to_f64().into_iter().map(|x| x as f32).collect::<Vec<_>>())
        }
        DType::F64 => Array::from_shape(&shape, &tensor.to_f64()),
        DType::I64 => Array::from_shape(&shape, &tensor.to_i64()),
        DType::Bool => Array::from_shape(&shape, &tensor.to_i64().into_iter().map(|x| x != 0).collect::<Vec<_>>()),
    }
}

/// The elements as f64.
fn tensor_of(array: &Array) -> TractResult<Tensor> {
    let shape: Vec<u64> = array.shape().iter().map(|n| *n as u64).collect();
    let cast = array.cast_to::<f64>()?;
    let elements: Vec<f64> = cast.to_plain_array_view::<f64>()?.iter().copied().collect();
    Ok(Tensor::from_f64(Type::new(DType::F64, shape), &elements))
}
