//! Matrix products: each becomes one contraction with the letters of its operands.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::contract::Contract;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;

type Outputs = Result<Vec<Value>, Reason>;

/// Numpy's matmul
pub(in crate::onnx) fn matmul(c: &mut Call<'_, '_>) -> Outputs {
    let (a, b) = (c.input(0)?, c.input(1)?);
    Ok(vec![product(c, &a, &b)?])
}

/// Numpy's matmul: vectors have no row or column letter, and batch dimensions broadcast.
pub(in crate::onnx) fn product(c: &mut Call<'_, '_>, a: &Value, b: &Value) -> Result<Value, Reason> {
    let (sa, sb) = (c.shape(a)?, c.shape(b)?);
    if sa.is_empty() || sb.is_empty() {
        return Err("a matrix product of a scalar".into());
    }
    let (batch_a, batch_b) = (&sa[..sa.len().saturating_sub(2)], &sb[..sb.len().saturating_sub(2)]);
    let rank = batch_a.len().max(batch_b.len());
    if rank > 23 {
        return Err(reason!("a matrix product of {rank} batch dimensions"));
    }
    let size = |batch: &[u64], d: usize| (d + batch.len()).checked_sub(rank).map(|i| batch[i]);
    let (mut spec_a, mut spec_b, mut spec_c) = (String::new(), String::new(), String::new());
    let (mut keep_a, mut keep_b) = (vec![], vec![]);
    for d in 0..rank {
        let letter = (b'a' + d as u8) as char;
        let (m, n) = (size(batch_a, d), size(batch_b, d));
        // A dimension of size 1 that broadcasts leaves its operand.
        if let Some(m) = m.filter(|m| *m != 1 || n.is_none_or(|n| n == 1)) {
            spec_a.push(letter);
            keep_a.push(m);
        }
        if let Some(n) = n.filter(|n| *n != 1 || m.is_none_or(|m| m == 1)) {
            spec_b.push(letter);
            keep_b.push(n);
        }
        spec_c.push(letter);
    }
    let (core_a, core_b) = (&sa[batch_a.len()..], &sb[batch_b.len()..]);
    spec_a.push_str(if core_a.len() == 2 { "xz" } else { "z" });
    spec_b.push_str(if core_b.len() == 2 { "zy" } else { "z" });
    if core_a.len() == 2 {
        spec_c.push('x');
    }
    if core_b.len() == 2 {
        spec_c.push('y');
    }
    let a = c.reshape(a, [&keep_a[..], core_a].concat())?;
    let b = c.reshape(b, [&keep_b[..], core_b].concat())?;
    c.emit(Contract::new(format!("{spec_a},{spec_b}->{spec_c}")), &[a, b])
}

/// `alpha * a b + beta * c`, either matrix transposed
pub(in crate::onnx) fn gemm(c: &mut Call<'_, '_>) -> Outputs {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let (alpha, beta) = (c.attribute_float("alpha", 1.0)?, c.attribute_float("beta", 1.0)?);
    let spec_a = if c.attribute_int("transA", 0)? == 0 { "bk" } else { "kb" };
    let spec_b = if c.attribute_int("transB", 0)? == 0 { "kn" } else { "nk" };
    let product = c.emit(Contract::new(format!("{spec_a},{spec_b}->bn")), &[a, b])?;
    let product = c.scale(&product, alpha)?;
    let Some(bias) = c.optional(2) else { return Ok(vec![product]) };
    let shape = c.shape(&product)?;
    let bias = c.scale(&bias, beta)?;
    let sum = c.binary(Binary::Add, &product, &bias)?;
    if c.shape(&sum)? != shape {
        return Err(reason!("its third input has shape {:?}, which does not broadcast to {shape:?}", c.shape(&bias)?));
    }
    Ok(vec![sum])
}
