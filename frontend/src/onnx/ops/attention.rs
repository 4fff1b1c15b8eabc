//! Attention and rotary embeddings as ops of the model, written out; passes recognise the forms
//! that have kernels of their own.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::layout::{join, parts};
use shardc_ir::dtype::DType;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::layout::Slice;
use shardc_ir::ops::norm::Softmax;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};
use std::fmt;
use std::sync::Arc;

type Outputs = Result<Vec<Value>, Reason>;

/// `softmax(scale * q k^T + mask) v` over heads; results: y, and keys and values with those of the
/// past, and scores
pub(in crate::onnx) fn attention(c: &mut Call<'_, '_>) -> Outputs {
    if c.attribute_int("softmax_precision", 1)? == 0 {
        return Err("attribute `softmax_precision` is no element type".into());
    }
    let (query_heads, key_heads) = (c.attribute_int("q_num_heads", 0)?, c.attribute_int("kv_num_heads", 0)?);
    let (q, k, v) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let is_flat = c.ty(&q)?.rank() == 3;
    let q = by_head(c, &q, query_heads)?;
    let [k, v] = [(k, 4), (v, 5)].map(|(x, past)| {
        let x = by_head(c, &x, key_heads)?;
        match c.optional(past) {
            Some(past) => join(c, &[past, x], 2),
            None => Ok(x),
        }
    });
    let (k, v) = (k?, v?);
    let (all_k, all_v) = (repeated(c, &k, &q)?, repeated(c, &v, &q)?);
    let shape = c.shape(&q)?;
    let scale = c.attribute_float("scale", 1.0 / (shape[3] as f64).sqrt())?;
    let product = c.emit(Contract::new("bhte,bhse->bhts"), &[q, all_k])?;
    let scores = c.scale(&product, scale)?;
    let masked = mask(c, &scores)?;
    let soft_cap = c.attribute_float("softcap", 0.0)?;
    let is_masked = c.optional(3).is_some() || c.attribute_int("is_causal", 0)? != 0;
    let capped = if soft_cap > 0.0 {
        if is_masked {
            return Err(ambiguous("scores with a mask and a cap"));
        }
        let scaled = c.scale(&masked, 1.0 / soft_cap)?;
        let tanh = c.unary(Unary::Tanh, &scaled)?;
        c.scale(&tanh, soft_cap)?
    } else {
        masked.clone()
    };
    let probabilities = c.emit(Softmax {}, std::slice::from_ref(&capped))?;
    let y = c.emit(Contract::new("bhts,bhse->bhte"), &[probabilities.clone(), all_v])?;
    let y = if is_flat {
        let tokens = c.transpose(&y, vec![0, 2, 1, 3])?;
        let [b, t, h, e] = c.shape(&tokens)?[..] else { return Err("its result has no heads".into()) };
        c.reshape(&tokens, vec![b, t, h * e])?
    } else {
        y
    };
    let shown = match c.attribute_int("qk_matmul_output_mode", 0)? {
        0 => scores,
        1 if (is_masked || soft_cap > 0.0) && c.node.output.get(3).is_some_and(|name| !name.is_empty()) => {
            return Err(ambiguous("scores behind a mask or a cap as a result"));
        }
        1 => masked,
        2 => capped,
        3 => probabilities,
        other => return Err(reason!("attribute `qk_matmul_output_mode` is {other}")),
    };
    Ok(vec![y, k, v, shown])
}

/// The refusal of a feature that ONNX 1.18 and later versions define differently: no model says
/// which it means.
fn ambiguous(what: impl fmt::Display) -> Reason {
    reason!("{what} mean different things in ONNX 1.18 and later; export the model with an op set before 23")
}

/// `[batch, head, position, width]`, from that or from `[batch, position, width]` of one head.
fn by_head(c: &mut Call<'_, '_>, x: &Value, heads: i64) -> Result<Value, Reason> {
    match c.shape(x)?[..] {
        [_, _, _, _] => Ok(x.clone()),
        [b, t, e] if heads == 1 => c.reshape(x, vec![b, 1, t, e]),
        [_, _, _] => Err(ambiguous(format_args!("{heads} heads of three dimensions"))),
        ref other => Err(reason!("{other:?} has neither three nor four dimensions")),
    }
}

/// `[batch, position, head, width]` from `[batch, position, heads * width]`; what has four
/// dimensions stays.
fn tokens_by_head(c: &mut Call<'_, '_>, x: &Value, heads: i64) -> Result<Value, Reason> {
    let shape = c.shape(x)?;
    match shape[..] {
        [_, _, _, _] => Ok(x.clone()),
        [b, t, d] => {
            let heads = u64::try_from(heads).ok().filter(|h| *h > 0 && d.is_multiple_of(*h));
            let heads = heads.ok_or_else(|| reason!("{shape:?} does not divide into the number of heads"))?;
            c.reshape(x, vec![b, t, heads, d / heads])
        }
        _ => Err(reason!("{shape:?} has neither three nor four dimensions")),
    }
}

/// Keys or values for as many heads as the queries have.
fn repeated(c: &mut Call<'_, '_>, x: &Value, q: &Value) -> Result<Value, Reason> {
    let (shape, queries) = (c.shape(x)?, c.shape(q)?);
    let [b, heads, s, e] = shape[..] else { return Err(reason!("keys of shape {shape:?}")) };
    if heads <= 1 || heads == queries[1] {
        return c.broadcast(x, vec![b, queries[1], s, e]);
    }
    // PyTorch means neighbouring query heads to share a key head, as the later definition does.
    if c.context.file.model.producer_name != "pytorch" {
        return Err(ambiguous(format_args!("{} query heads over {heads} key heads", queries[1])));
    }
    if queries[1] % heads != 0 {
        return Err(reason!("{} query heads over {heads} key heads", queries[1]));
    }
    let apart = c.reshape(x, vec![b, heads, 1, s, e])?;
    let all = c.broadcast(&apart, vec![b, heads, queries[1] / heads, s, e])?;
    c.reshape(&all, vec![b, queries[1], s, e])
}

/// Scores with what is hidden at -infinity, or with the mask added.
fn mask(c: &mut Call<'_, '_>, scores: &Value) -> Result<Value, Reason> {
    let (ty, given) = (c.ty(scores)?, c.optional(3));
    let mut scores = scores.clone();
    if c.attribute_int("is_causal", 0)? != 0 {
        let (queries, keys) = (ty.shape[2], ty.shape[3]);
        c.context.allow_truths(&[queries, keys])?;
        let past = match c.optional(4) {
            Some(past) => c.shape(&past)?[2],
            None => 0,
        };
        if past > 0 {
            return Err("a causal mask beside keys of the past is not supported".into());
        }
        let bytes: Vec<u8> = (0..queries).flat_map(|t| (0..keys).map(move |s| u8::from(s <= t))).collect();
        let seen = Value::Known(Tensor { ty: Type::new(DType::Bool, [queries, keys]), bytes: Arc::new(bytes) });
        let hidden = c.number(&scores, f64::NEG_INFINITY)?;
        scores = c.select(&seen, &scores, &hidden)?;
    }
    let masked = match given {
        None => scores,
        Some(mask) if c.ty(&mask)?.dtype == DType::Bool => {
            let hidden = c.number(&scores, f64::NEG_INFINITY)?;
            c.select(&mask, &scores, &hidden)?
        }
        Some(mask) => c.binary(Binary::Add, &scores, &mask)?,
    };
    if c.shape(&masked)? == ty.shape { Ok(masked) } else { Err(reason!("its mask does not broadcast to {:?}", ty.shape)) }
}

/// Pairs of each head's elements turned by the angles of their positions
pub(in crate::onnx) fn rotary_embedding(c: &mut Call<'_, '_>) -> Outputs {
    let heads = c.attribute_int("num_heads", 0)?;
    let (original, x) = (c.shape(&c.input(0)?)?, c.input(0)?);
    let x = tokens_by_head(c, &x, heads)?;
    let shape = c.shape(&x)?;
    let heads_first = original.len() == 4;
    let width = match c.attribute_int("rotary_embedding_dim", 0)? {
        0 => shape[3],
        n => u64::try_from(n).unwrap_or(0),
    };
    if width < 2 || width > shape[3] || width % 2 != 0 {
        return Err(reason!("{width} of {} elements are turned", shape[3]));
    }
    let (cos, sin) = (angles(c, 1, width / 2, heads_first)?, angles(c, 2, width / 2, heads_first)?);
    let pieces = if width == shape[3] { vec![x] } else { parts(c, &x, 3, &[width, shape[3] - width])? };
    let mut turned = if c.attribute_int("interleaved", 0)? == 0 {
        turn_halves(c, &pieces[0], &cos, &sin)?
    } else {
        turn_neighbours(c, &pieces[0], &cos, &sin)?
    };
    if let Some(rest) = pieces.get(1) {
        turned = join(c, &[turned, rest.clone()], 3)?;
    }
    Ok(vec![c.reshape(&turned, original)?])
}

/// Cosines or sines of each position, to be broadcast over heads.
fn angles(c: &mut Call<'_, '_>, input: usize, width: u64, heads_first: bool) -> Result<Value, Reason> {
    let mut table = c.input(input)?;
    if let Some(positions) = c.optional(3) {
        table = c.emit(Gather::along(0), &[table, positions])?;
    }
    let shape = c.shape(&table)?;
    let [b, t, w] = shape[..] else { return Err(reason!("its tables have shape {shape:?}")) };
    if w < width {
        return Err(reason!("its tables hold {w} angles, not {width}"));
    }
    if w > width {
        table = c.emit(Slice { axis: 2, start: 0, step: 1, size: width }, &[table])?;
    }
    c.reshape(&table, if heads_first { vec![b, 1, t, width] } else { vec![b, t, 1, width] })
}

/// Element `i` of the first half makes a pair with element `i` of the second.
fn turn_halves(c: &mut Call<'_, '_>, x: &Value, cos: &Value, sin: &Value) -> Result<Value, Reason> {
    let half = c.shape(x)?[3] / 2;
    let halves = parts(c, x, 3, &[half, half])?;
    let negative = c.unary(Unary::Neg, &halves[1])?;
    let turned = join(c, &[negative, halves[0].clone()], 3)?;
    let (cos, sin) = (join(c, &[cos.clone(), cos.clone()], 3)?, join(c, &[sin.clone(), sin.clone()], 3)?);
    let (along, across) = (c.binary(Binary::Mul, x, &cos)?, c.binary(Binary::Mul, &turned, &sin)?);
    c.binary(Binary::Add, &along, &across)
}

/// Elements `2 i` and `2 i + 1` make a pair.
fn turn_neighbours(c: &mut Call<'_, '_>, x: &Value, cos: &Value, sin: &Value) -> Result<Value, Reason> {
    let shape = c.shape(x)?;
    let half = shape[3] / 2;
    let step = if half > 1 { 2 } else { 1 };
    let [even, odd] = [0, 1].map(|start| c.emit(Slice { axis: 3, start, step, size: half }, std::slice::from_ref(x)));
    let (even, odd) = (even?, odd?);
    let column: Vec<u64> = [&shape[..3], &[half, 1]].concat();
    let mut pair = vec![];
    for (f, first, second) in [(Binary::Sub, &even, &odd), (Binary::Add, &odd, &even)] {
        let (along, across) = (c.binary(Binary::Mul, first, cos)?, c.binary(Binary::Mul, second, sin)?);
        let y = c.binary(f, &along, &across)?;
        pair.push(c.reshape(&y, column.clone())?);
    }
    let pairs = join(c, &pair, 4)?;
    c.reshape(&pairs, shape)
}
