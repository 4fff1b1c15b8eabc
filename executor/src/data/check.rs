//! Whether data fits what a program wants: names, types, shapes, counts and values, all before the
//! first step.

use super::InputSpec;
use super::array::{Array, Header, Number};
use super::files::{Files, listed};
use super::tokens::Tokens;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted, near_names};
use shardc_ir::dtype::DType;
use shardc_ir::reason::Reason;
use std::collections::HashSet;

/// The array of each input. Errors that names, types and shapes show are reported before any
/// element is read.
pub fn check_arrays(files: &mut Files, inputs: &[InputSpec]) -> Result<Vec<Array>, Diagnostics> {
    check_headers(files, inputs)?;
    let (mut errors, mut arrays) = (vec![], vec![]);
    for input in inputs {
        match files.read(&input.name) {
            Ok(array) => {
                errors.extend(check_values(input, &array));
                arrays.push(array);
            }
            Err(why) => errors.push(unreadable(&input.name, &why)),
        }
    }
    if errors.is_empty() { Ok(arrays) } else { Err(errors) }
}

/// Whether names, types and shapes are those of the inputs.
pub fn check_headers(files: &mut Files, inputs: &[InputSpec]) -> Result<(), Diagnostics> {
    let names = files.names()?;
    let known: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut errors = vec![];
    let mut counts = vec![];
    for input in inputs {
        let name = &input.name;
        if !known.contains(name.as_str()) {
            let error = Diagnostic::error(format!("the data has no array `{name}`"));
            errors.push(error.help_early(errors.len(), || missing_help(name, &names, inputs)));
            continue;
        }
        match files.header(name) {
            Ok(header) => {
                let misfits = check_header(input, &header);
                if misfits.is_empty() {
                    counts.push((name, header.shape[0]));
                }
                errors.extend(misfits);
            }
            Err(why) => errors.push(unreadable(name, &why)),
        }
    }
    errors.extend(check_counts(&counts));
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn unreadable(name: &str, why: &Reason) -> Diagnostic {
    Diagnostic::error(format!("`{name}` cannot be read: {why}"))
}

/// The help for an array that is not there.
fn missing_help(name: &str, names: &[String], inputs: &[InputSpec]) -> String {
    if names.iter().all(|name| name.starts_with("arr_")) {
        let arguments: Vec<String> = inputs.iter().map(|input| format!("{}=…", input.name)).collect();
        return format!("give the arrays their names: `np.savez(\"data.npz\", {})`", arguments.join(", "));
    }
    let taken: HashSet<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    let free = || names.iter().map(String::as_str).filter(|name| !taken.contains(name));
    let mut near: Vec<&str> = free().filter(|other| other.eq_ignore_ascii_case(name)).collect();
    if near.is_empty() {
        near = near_names(name, free());
    }
    if near.is_empty() { format!("it has {}", listed(names)) } else { format!("did you mean {}?", listed(&near)) }
}

/// Type and shape of an array that is not read yet.
fn check_header(input: &InputSpec, header: &Header) -> Diagnostics {
    let InputSpec { name, dtype, sample, .. } = input;
    let mut errors = vec![];
    if header.element.is_float() && !dtype.is_float() {
        let error = Diagnostic::error(format!("`{name}` has elements of type {}, the model wants {dtype}", header.element));
        let to = if *dtype == DType::Bool { "bool" } else { "int64" };
        errors.push(error.help(format!("convert the array: `{name}.astype(\"{to}\")`")));
    }
    if header.shape.get(1..) != Some(sample) {
        let want: Vec<String> = ["samples".to_string()].into_iter().chain(sample.iter().map(u64::to_string)).collect();
        let mut error =
            Diagnostic::error(format!("`{name}` has shape {:?}, the model wants [{}]", header.shape, want.join(", ")));
        error.help = reshaped(input, &header.shape);
        errors.push(error);
    }
    errors
}

/// How to make the shape that is wanted, where that is plain.
fn reshaped(input: &InputSpec, shape: &[u64]) -> Option<String> {
    let (name, sample) = (&input.name, &input.sample);
    let without_ones = |sizes: &[u64]| sizes.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    let sizes = |sample: &[u64]| sample.iter().map(|n| format!(", {n}")).collect::<String>();
    match shape {
        _ if shape == &sample[..] => Some(format!("one sample is a batch of one: `{name}[None]`")),
        [_, classes] if sample.is_empty() && input.range.is_some_and(|(_, high)| *classes == high as u64) => {
            Some(format!("from one number a class to the class: `{name}.argmax(1)`"))
        }
        [1, _] if sample.is_empty() => Some(format!("drop the first dimension: `{name}[0]`")),
        [_, 1] if sample.is_empty() => Some(format!("drop the last dimension: `{name}[:, 0]`")),
        [_, have @ ..] if without_ones(have) == without_ones(sample) => {
            Some(format!("reshape the array: `{name}.reshape(-1{})`", sizes(sample)))
        }
        [_, h, w, c] if sample[..] == [*c, *h, *w] => Some(format!("move the channels: `{name}.transpose(0, 3, 1, 2)`")),
        [_, c, h, w] if sample[..] == [*h, *w, *c] => Some(format!("move the channels: `{name}.transpose(0, 2, 3, 1)`")),
        [_, have @ ..] if have.iter().product::<u64>() == sample.iter().product::<u64>() => {
            Some(format!("if the elements are in the model's order: `{name}.reshape(-1{})`", sizes(sample)))
        }
        _ => None,
    }
}

/// All arrays have as many samples.
fn check_counts(counts: &[(&String, u64)]) -> Diagnostics {
    let Some((first, samples)) = counts.first() else { return vec![] };
    let differs = counts.iter().filter(|(_, n)| n != samples);
    let error = |(name, n): &(&String, u64)| {
        let error = Diagnostic::error(format!("`{name}` has {}, `{first}` has {samples}", counted(n, "sample")));
        error.help("dimension 0 of every array counts the samples")
    };
    differs.map(error).collect()
}

/// Every element is one that the model can take.
fn check_values(input: &InputSpec, array: &Array) -> Option<Diagnostic> {
    let name = &input.name;
    let (position, number) = array.find(|number| problem(input, number).is_some())?;
    let index = index_of(position, &array.header.shape);
    let value = match number {
        Number::Real(x) => format!("{x:?}"),
        Number::Whole(n) => n.to_string(),
    };
    let error = |what: String| Diagnostic::error(format!("`{name}` is {value} at {index:?}{what}"));
    Some(match problem(input, number)? {
        Problem::NotFinite => error(", which is no finite number".to_string()),
        Problem::Outside(low, high) => {
            let error = error(format!(", outside {low}..{high}"));
            match input.except {
                Some(except) => error.help(format!("{except} is allowed too: it is ignored")),
                None if number == Number::Whole(high.into()) => error.help("indices count from 0"),
                None if matches!(number, Number::Whole(n) if n < 0) => {
                    error.help(format!("labels that do not count are named in the `loss` line: `ignore_index={value}`"))
                }
                None => error,
            }
        }
        Problem::NoShare => error(", not from 0 to 1".to_string()).help("binary labels are 0, 1, or between"),
        Problem::Inexact => error(format!(", which {} cannot hold", input.dtype)),
        Problem::NoTruth => error(", neither 0 nor 1".to_string()).help(format!("convert the array: `{name}.astype(\"bool\")`")),
    })
}

/// Why an element cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    NotFinite,
    Outside(i64, i64),
    NoShare,
    Inexact,
    NoTruth,
}

fn problem(input: &InputSpec, number: Number) -> Option<Problem> {
    let no_share = |is_outside: bool| is_outside.then_some(Problem::NoShare);
    match (input.dtype, number) {
        (_, Number::Real(x)) if !x.is_finite() => Some(Problem::NotFinite),
        (DType::F32, Number::Real(x)) if !(x as f32).is_finite() => Some(Problem::Inexact),
        (DType::F64 | DType::F32 | DType::BF16 | DType::F16, Number::Whole(n)) if !is_exact(n, input.dtype) => {
            Some(Problem::Inexact)
        }
        (DType::F64 | DType::F32 | DType::BF16 | DType::F16, Number::Real(x)) => {
            no_share(input.range.is_some_and(|(low, high)| x < low as f64 || x > (high - 1) as f64))
        }
        (DType::F64 | DType::F32 | DType::BF16 | DType::F16, Number::Whole(n)) => {
            no_share(input.range.is_some_and(|(low, high)| n < low.into() || n >= high.into()))
        }
        (DType::Bool, number) => (!matches!(number, Number::Whole(0 | 1))).then_some(Problem::NoTruth),
        (DType::I64, Number::Whole(n)) => match (i64::try_from(n), input.range) {
            (Err(_), _) => Some(Problem::Inexact),
            (Ok(n), Some((low, high))) if !(low..high).contains(&n) && Some(n) != input.except => {
                Some(Problem::Outside(low, high))
            }
            _ => None,
        },
        (DType::I64, Number::Real(_)) => Some(Problem::Inexact),
    }
}

/// Whether a float type holds the number; small ones are told without a slow conversion.
fn is_exact(n: i128, dtype: DType) -> bool {
    match dtype {
        DType::F64 => n.unsigned_abs() <= 1 << 53 || n as f64 as i128 == n,
        _ => n.unsigned_abs() <= 1 << 24 || n as f32 as i128 == n,
    }
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
            let error = Diagnostic::error(format!("text gives windows of tokens, but a sample of `{}` is {what}", input.name));
            errors.push(error.help("give the data as a `.npz` with one array for each input"));
        } else if input.sample[0] != context {
            let error = Diagnostic::error(format!(
                "a sample of `{}` has {}, not {context}",
                input.name,
                counted(input.sample[0], "token")
            ));
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
        errors.push(Diagnostic::error(format!(
            "a text of {} has no window of {context} and the one after",
            counted(tokens.len(), "token")
        )));
    }
    if errors.is_empty() { Ok(context) } else { Err(errors) }
}
