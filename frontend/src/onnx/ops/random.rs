//! Dropout.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::random::Dropout;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

type Outputs = Result<Vec<Value>, Reason>;

/// Dropout, where the model was exported for training; else nothing
pub(in crate::onnx) fn dropout(c: &mut Call<'_, '_>) -> Outputs {
    // Random numbers follow the seed of the job.
    c.ignore("seed");
    let x = c.input(0)?;
    let ratio = match c.optional(1) {
        // Through the decimal that was meant, as with attributes.
        Some(_) => c.known(1, "ratio")?.to_f64().first().and_then(|r| (*r as f32).to_string().parse().ok()).unwrap_or(0.0),
        None => c.attribute_float("ratio", 0.5)?,
    };
    let training = c.optional(2).is_some() && c.known(2, "training mode")?.to_f64().first().is_some_and(|v| *v != 0.0);
    if !(0.0..1.0).contains(&ratio) {
        return Err(reason!("it drops a share of {ratio}; only shares from 0 to below 1 are supported"));
    }
    if !training || ratio == 0.0 {
        if ratio > 0.0 {
            c.context.idle_dropouts.push(crate::onnx::file::node::node_text(c.node));
        }
        let kept = if c.node.output.len() > 1 { c.truth_like(&x)? } else { x.clone() };
        return Ok(vec![x, kept]);
    }
    // The dropped elements change with every step, so that nothing is folded here.
    let x = Value::Graph(c.context.materialize(&x)?);
    c.context.dropouts += 1;
    c.emit_all(Dropout { ratio, stream: c.context.dropouts }, &[x])
}
