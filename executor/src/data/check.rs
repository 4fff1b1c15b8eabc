//! Whether data fits what a program wants: names, types, shapes, counts and values, all before the first step.

use crate::data::InputSpec;
use crate::data::tokens::Tokens;
use crate::tensor::Tensor;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, near_names};
use shardc_ir::dtype::DType;
use std::collections::BTreeMap;

/// The array for `input`, in the type of its buffer.
pub fn check_array(input: &InputSpec, arrays: &BTreeMap<String, Tensor>) -> Result<Tensor, Diagnostics> {
    let InputSpec { name, dtype, sample, .. } = input;
    let Some(array) = arrays.get(name) else { return Err(missing(name, arrays).into()) };
    let mut errors = vec![];
    let fits = array.dtype == *dtype || (array.dtype.is_float() && dtype.is_float());
    if !fits {
        let error = Diagnostic::error(format!("`{name}` has elements of type {}, the model wants {dtype}", array.dtype));
        errors.push(error.help(format!("convert the array: `{name}.astype(\"{}\")`", numpy_name(*dtype))));
    }
    if array.shape.is_empty() || array.shape[1..] != sample[..] {
        let want: Vec<String> = ["samples".to_string()].into_iter().chain(sample.iter().map(u64::to_string)).collect();
        errors.push(Diagnostic::error(format!("`{name}` has shape {:?}, the model wants [{}]", array.shape, want.join(", "))));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    check_values(input, array)?;
    Ok(array.cast(*dtype))
}

/// All arrays have as many samples.
pub fn check_counts(inputs: &[InputSpec], arrays: &[Tensor]) -> Diagnostics {
    let mut counts = inputs.iter().zip(arrays).map(|(input, array)| (&input.name, array.shape[0]));
    let Some((first, samples)) = counts.next() else { return vec![] };
    // With an array missing, inputs and arrays do not match, and the error about that is enough.
    if inputs.len() != arrays.len() {
        return vec![];
    }
    let differs = counts.filter(|(_, n)| *n != samples);
    differs.map(|(name, n)| Diagnostic::error(format!("`{name}` has {n} samples, `{first}` has {samples}"))).collect()
}

/// The context of the windows that `tokens` are cut into.
pub fn check_tokens(tokens: &Tokens, inputs: &[InputSpec], context: Option<u64>) -> Result<u64, Diagnostics> {
    let mut errors = vec![];
    let Some(first) = inputs.first() else { return Err(Diagnostic::error("the model has no inputs").into()) };
    for more in inputs.iter().skip(2) {
        let error = Diagnostic::error(format!("text gives tokens and labels, but the model also wants `{}`", more.name));
        errors.push(error.help("give the data as a `.npz` with one array for each input"));
    }
    let wanted = first.sample.first().copied().unwrap_or(1);
    let context = context.unwrap_or(wanted);
    for input in inputs.iter().take(2) {
        if input.dtype != DType::I64 || input.sample.len() != 1 {
            let what = format!("{}{:?}", input.dtype, input.sample);
            errors.push(Diagnostic::error(format!("text gives windows of tokens, but a sample of `{}` is {what}", input.name)));
        } else if input.sample[0] != context {
            let error = Diagnostic::error(format!("a sample of `{}` has {} tokens, not {context}", input.name, input.sample[0]));
            errors.push(error.help(format!("use `--context {}`", input.sample[0])));
        } else if let Some((low, high)) = input.range
            && let Some((position, token)) = tokens.outside(low, high)
        {
            let error =
                Diagnostic::error(format!("token {token} at position {position} is outside {low}..{high} of `{}`", input.name));
            errors.push(error.help("the model's vocabulary is not that of this text"));
        }
    }
    if context == 0 || tokens.len() <= context {
        errors.push(Diagnostic::error(format!("a text of {} tokens has no window of {context} and the one after", tokens.len())));
    }
    if errors.is_empty() { Ok(context) } else { Err(errors) }
}

fn missing(name: &str, arrays: &BTreeMap<String, Tensor>) -> Diagnostic {
    let list = |names: Vec<&str>| names.iter().take(8).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    let near = near_names(name, arrays.keys().map(String::as_str));
    Diagnostic::error(format!("the data has no array `{name}`")).help(if near.is_empty() {
        format!("it has {}", list(arrays.keys().map(String::as_str).collect()))
    } else {
        format!("did you mean {}?", list(near))
    })
}

/// Integers are in range, floats are numbers.
fn check_values(input: &InputSpec, array: &Tensor) -> Result<(), Diagnostics> {
    let name = &input.name;
    if array.dtype.is_float() {
        let Some(position) = array.to_f64().iter().position(|v| v.is_nan()) else { return Ok(()) };
        let error = Diagnostic::error(format!("`{name}` is not a number at {:?}", index_of(position, &array.shape)));
        return Err(error.into());
    }
    let Some((low, high)) = input.range else { return Ok(()) };
    let values = array.to_i64();
    let bad = |v: &i64| !(low..high).contains(v) && Some(*v) != input.except;
    let Some(position) = values.iter().position(bad) else { return Ok(()) };
    let (value, index) = (values[position], index_of(position, &array.shape));
    let error = Diagnostic::error(format!("`{name}` is {value} at {index:?}, outside {low}..{high}"));
    Err(match input.except {
        Some(except) => error.help(format!("{except} is allowed too: it is ignored")).into(),
        None => error.into(),
    })
}

fn index_of(position: usize, shape: &[u64]) -> Vec<u64> {
    let mut rest = position as u64;
    let mut index: Vec<u64> = shape
        .iter()
        .rev()
        .map(|size| {
            let i = rest % size;
            rest /= size;
            i
        })
        .collect();
    index.reverse();
    index
}

fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F32 => "float32",
        DType::I64 => "int64",
        DType::Bool => "bool",
    }
}
