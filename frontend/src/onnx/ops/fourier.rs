//! Fourier transforms, as products with matrices of cosines and sines.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::layout::{join, parts};
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::layout::Slice;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};
use std::f64::consts::TAU;

type Outputs = Result<Vec<Value>, Reason>;

/// The discrete Fourier transform along one dimension of `[…, 1]` (real numbers) or `[…, 2]`
/// (complex ones)
pub(in crate::onnx) fn dft(c: &mut Call<'_, '_>) -> Outputs {
    let (x, shape) = (c.input(0)?, c.shape(&c.input(0)?)?);
    let axis = if c.opset() < 20 {
        c.attribute_int("axis", 1)?
    } else if c.optional(2).is_some() {
        c.known(2, "axis")?.to_i64().first().copied().unwrap_or(-2)
    } else {
        -2
    };
    let (axis, last) = (c.axis(axis, shape.len())?, shape.len() - 1);
    if axis == last || last > 20 || !(1..=2).contains(&shape[last]) {
        return Err(reason!("axis {axis} of {shape:?}, whose last dimension is not that of complex numbers"));
    }
    let (inverse, one_sided) = (c.attribute_int("inverse", 0)? != 0, c.attribute_int("onesided", 0)? != 0);
    if inverse && one_sided {
        return Err("the inverse of one side of a transform is not supported".into());
    }
    let length = match c.optional(1) {
        Some(_) => c.known(1, "length")?.to_i64().first().copied().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        None => shape[axis],
    };
    let (used, frequencies) = (length.min(shape[axis]), if one_sided { length / 2 + 1 } else { length });
    if length == 0 {
        return Err(reason!("a transform of {length} elements is not supported"));
    }
    c.context.allow(&[2, frequencies, used])?;
    let x = if used < shape[axis] { c.emit(Slice { axis, start: 0, step: 1, size: used }, &[x])? } else { x };
    let pieces = parts(c, &x, last, &vec![1; shape[last] as usize])?;
    let transform = Transform { axis, last, used, frequencies, length };
    let (cos, sin) = (transform.matrix(c, &x, f64::cos)?, transform.matrix(c, &x, f64::sin)?);
    // x e^(-i a) = (re cos + im sin) + i (im cos - re sin), and with i for -i backwards.
    let mut real = transform.product(c, &pieces[0], &cos)?;
    let turned = transform.product(c, &pieces[0], &sin)?;
    let mut imaginary = if inverse { turned } else { c.unary(Unary::Neg, &turned)? };
    if let Some(piece) = pieces.get(1) {
        let (along, across) = (transform.product(c, piece, &cos)?, transform.product(c, piece, &sin)?);
        real = c.binary(if inverse { Binary::Sub } else { Binary::Add }, &real, &across)?;
        imaginary = c.binary(Binary::Add, &imaginary, &along)?;
    }
    let both = join(c, &[real, imaginary], last as i64)?;
    Ok(vec![c.scale(&both, if inverse { 1.0 / length as f64 } else { 1.0 })?])
}

struct Transform {
    axis: usize,
    last: usize,
    used: u64,
    frequencies: u64,
    length: u64,
}

impl Transform {
    /// `f` of the angle of each frequency and element: `[frequencies, used]`.
    fn matrix(&self, c: &Call<'_, '_>, like: &Value, f: fn(f64) -> f64) -> Result<Value, Reason> {
        // Whole turns are taken away while they are integers.
        let angle = |k: u64, i: u64| TAU * ((k * i) % self.length) as f64 / self.length as f64;
        let values: Vec<f64> =
            (0..self.frequencies).flat_map(|k| (0..self.used).map(move |i| (k, i))).map(|(k, i)| f(angle(k, i))).collect();
        let ty = Type::new(c.ty(like)?.dtype, [self.frequencies, self.used]);
        Ok(Value::Known(Tensor::from_f64(ty, &values)))
    }

    /// The sums along the axis, which is one of frequencies then.
    fn product(&self, c: &mut Call<'_, '_>, x: &Value, matrix: &Value) -> Result<Value, Reason> {
        let letters: String = ('a'..).take(self.last + 1).collect();
        let axis = &letters[self.axis..=self.axis];
        let result = letters.replace(axis, "y");
        c.emit(Contract::new(format!("{letters},y{axis}->{result}")), &[x.clone(), matrix.clone()])
    }
}
