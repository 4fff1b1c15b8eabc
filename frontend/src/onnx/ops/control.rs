//! `If`, where the condition is known, and what to say of control flow that depends on data.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::reason::Reason;

/// The outputs of the branch that is taken: inputs are the condition, then the outputs of both
/// branches
pub(in crate::onnx) fn choose(c: &mut Call<'_, '_>) -> Result<Vec<Value>, Reason> {
    let condition = c.known(0, "condition")?;
    let taken = *condition.to_i64().first().ok_or("its condition is empty")? != 0;
    let count = c.node.output.len();
    let first = if taken { 1 } else { 1 + count };
    (first..first + count).map(|i| c.optional(i).ok_or_else(|| "the branch that is taken cannot be imported".into())).collect()
}

/// The help for an op that is not supported.
pub(in crate::onnx) fn help(op: &str) -> Option<&'static str> {
    match op {
        "Loop" | "Scan" | "SequenceMap" => Some("export the model for fixed lengths, so that the exporter unrolls the loop"),
        "QuantizeLinear"
        | "DequantizeLinear"
        | "DynamicQuantizeLinear"
        | "QLinearConv"
        | "QLinearMatMul"
        | "MatMulInteger"
        | "ConvInteger" => Some("export the model before it is quantised: training needs floats"),
        _ => None,
    }
}
