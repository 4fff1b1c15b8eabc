//! Parsers of values: numbers, choices, names, axes, bytes. Each parser reports what is wrong and
//! gives `None`.

use super::context::{Context, alternatives, listed, quote, suggestion};
use super::syntax::{Form, Item, Text, Value};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::limits::MAX_MICROBATCHES;
use shardc_ir::mesh::AxisId;
use shardc_ir::names::is_looked_up;
use shardc_ir::spec::{FloatType, Located, NameRef};

/// The largest size of a batch, dimension, axis or block, far below what overflows when sizes are
/// multiplied.
pub const MAX_SIZE: u64 = 1 << 40;

/// The most samples of a step.
const MAX_BATCH: u64 = 1 << 32;

/// A whole number from 1 to [`MAX_SIZE`].
pub fn positive(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    positive_text(value.text, subject, context)
}

/// [`positive`] of a piece of text.
pub fn positive_text(text: Text<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    positive_up_to(MAX_SIZE, text, subject, context)
}

/// A whole number of samples, at least 1.
pub fn samples(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    positive_up_to(MAX_BATCH, value.text, subject, context)
}

/// A whole number of micro-batches, at least 1.
pub fn microbatches(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    positive_up_to(MAX_MICROBATCHES, value.text, subject, context)
}

fn positive_up_to(largest: u64, text: Text<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    match digits(text.text) {
        Some(n) if n > u128::from(largest) => {
            let error = Diagnostic::error(format!("{subject} is too large: {}", quote(text.text)));
            context.report(text.source, error.help(format!("the largest size is {largest}")));
            None
        }
        Some(n) if n > 0 => u64::try_from(n).ok(),
        _ => expected(text, subject, "a whole number of at least 1", context),
    }
}

/// A whole number from 0.
pub fn whole(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    let number = digits(value.text.text).and_then(|n| u64::try_from(n).ok());
    number.or_else(|| expected(value.text, subject, "a whole number from 0 to 2^64 - 1", context))
}

/// A number of [`whole`] steps, small enough to be exact as a float.
pub fn steps(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    let number = digits(value.text.text).and_then(|n| u64::try_from(n).ok()).filter(|n| *n <= MAX_SIZE);
    number.or_else(|| expected(value.text, subject, "a whole number of steps, at most 2^40", context))
}

/// A whole number, perhaps negative.
pub fn integer(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<i64> {
    value.text.text.parse().ok().or_else(|| expected(value.text, subject, "a whole number", context))
}

/// A finite number of at least 0.
pub fn not_negative(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<f64> {
    number(value.text, subject, "a number of at least 0", |x| x >= 0.0, context)
}

/// A finite number above 0.
pub fn above_zero(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<f64> {
    number(value.text, subject, "a number above 0", |x| x > 0.0, context)
}

/// A number from 0 to below 1.
pub fn below_one(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<f64> {
    number(value.text, subject, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x), context)
}

/// A number from 0 to 1.
pub fn share(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<f64> {
    number(value.text, subject, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x), context)
}

/// `true` or `false`.
pub fn boolean(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<bool> {
    choice(&[("true", true), ("false", false)])(value, subject, context)
}

/// A float type.
pub fn float_type(choices: &[FloatType]) -> impl Fn(&Value<'_>, &str, &mut Context<'_>) -> Option<FloatType> + use<> {
    let choices: Vec<(&'static str, FloatType)> = choices.iter().map(|float| (float.name(), *float)).collect();
    move |value, subject, context| choice(&choices)(value, subject, context)
}

/// One word of `choices`.
pub fn choice<'c, T: Copy>(choices: &'c [(&'static str, T)]) -> impl Fn(&Value<'_>, &str, &mut Context<'_>) -> Option<T> + 'c {
    move |value, subject, context| {
        let found = choices.iter().find(|(word, _)| matches!(value.form, Form::Word) && *word == value.text.text);
        if found.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            cannot_be(value.text, subject, &words, context);
        }
        found.map(|(_, choice)| *choice)
    }
}

/// The head of `head` or `head(…)`, one of `heads`, and what stands in its parentheses.
pub fn head<'v, 't>(
    value: &'v Value<'t>,
    subject: &str,
    heads: &[&'static str],
    context: &mut Context<'_>,
) -> Option<(&'static str, &'v [Item<'t>])> {
    let (word, arguments) = match &value.form {
        Form::Call { function, arguments } => (*function, &arguments[..]),
        _ => (value.text, &[][..]),
    };
    let found = heads.iter().find(|head| **head == word.text);
    if found.is_none() {
        cannot_be(word, subject, heads, context);
    }
    found.map(|head| (*head, arguments))
}

fn cannot_be(word: Text<'_>, subject: &str, words: &[&str], context: &mut Context<'_>) {
    let error = Diagnostic::error(format!("{subject} cannot be {}", quote(word.text)));
    let names = || words.iter().copied();
    let help = suggestion(word.text, names(), || format!("write {}", alternatives(names())));
    context.report(word.source, error.help(help));
}

/// The name of one thing, with or without quotes.
pub fn name(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Located<String>> {
    let text = match value.form {
        Form::Word => value.text.text,
        Form::Name { name, transposed: false } if !name.is_empty() => name,
        _ => return expected(value.text, subject, "a name", context),
    };
    Some(Located { value: text.to_string(), source: value.text.source })
}

/// A quoted pattern of names.
pub fn pattern(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Located<String>> {
    let pattern = quoted(value, subject, context)?;
    (is_looked_up(&pattern.value) || context.tries(pattern.source)).then_some(pattern)
}

/// A quoted pattern of modules.
pub fn scope(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Located<String>> {
    let pattern = quoted(value, subject, context)?;
    context.tries(pattern.source).then_some(pattern)
}

fn quoted(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Located<String>> {
    match value.form {
        Form::Name { name, transposed: false } if !name.is_empty() => {
            Some(Located { value: name.to_string(), source: value.text.source })
        }
        Form::Word => {
            let bare = value.text.text.trim_matches(['“', '”', '\'', '‘', '’']);
            let error = Diagnostic::error(format!("{subject} needs quotes around {}", quote(value.text.text)));
            context.report(value.text.source, error.help(format!("write {}", quote(&format!("\"{bare}\"")))));
            None
        }
        _ => expected(value.text, subject, "a pattern such as `\"*.weight\"`", context),
    }
}

/// A quoted name, perhaps with `^T`.
pub fn name_ref(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Located<NameRef>> {
    match value.form {
        Form::Name { name, transposed } if !name.is_empty() => {
            Some(Located { value: NameRef { name: name.to_string(), transposed }, source: value.text.source })
        }
        _ => expected(value.text, subject, "a quoted name, perhaps followed by `^T`", context),
    }
}

/// One axis of the mesh.
pub fn axis(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<AxisId> {
    match value.form {
        Form::Word => axis_text(value.text, context),
        _ => expected(value.text, subject, "one axis", context),
    }
}

/// One axis, or several in parentheses, none twice.
pub fn axes(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Vec<AxisId>> {
    let texts: Vec<Text<'_>> = match &value.form {
        Form::Word => vec![value.text],
        Form::List(items) if !items.is_empty() => {
            let words = items.iter().map(|item| match item {
                Item::Value(Value { text, form: Form::Word }) => Some(*text),
                _ => None,
            });
            match words.collect::<Option<Vec<_>>>() {
                Some(words) => words,
                None => return expected(value.text, subject, "axes such as `(dp,fsdp)`", context),
            }
        }
        _ => return expected(value.text, subject, "an axis, or several such as `(dp,fsdp)`", context),
    };
    let mut seen = vec![];
    distinct_axes(&texts, &mut seen, context)
}

/// The axes named by `texts`, none of which may be in `seen` yet; adds them to it.
pub fn distinct_axes(texts: &[Text<'_>], seen: &mut Vec<AxisId>, context: &mut Context<'_>) -> Option<Vec<AxisId>> {
    let mut axes = Some(vec![]);
    for text in texts {
        let axis = axis_text(*text, context);
        let repeated = axis.is_some_and(|axis| seen.contains(&axis));
        if repeated {
            let error = Diagnostic::error(format!("axis {} is used twice on one value", quote(text.text)));
            context.report(text.source, error.help("each axis of the mesh can split a value once"));
        }
        match axis.filter(|_| !repeated) {
            Some(axis) => {
                seen.push(axis);
                axes.iter_mut().for_each(|axes| axes.push(axis));
            }
            None => axes = None,
        }
    }
    axes
}

fn axis_text(text: Text<'_>, context: &mut Context<'_>) -> Option<AxisId> {
    if let Some(position) = context.mesh.iter().position(|axis| axis.name == text.text) {
        return u8::try_from(position).ok().map(AxisId);
    }
    let names = || context.mesh.iter().map(|axis| axis.name.as_str());
    let help = suggestion(text.text, names(), || match &context.mesh[..] {
        [] => "name the axes in a line such as `mesh dp=2 tp=2`".to_string(),
        [only] => format!("its only axis is `{}`", only.name),
        _ => format!("its axes are {}", listed(names())),
    });
    context.report(text.source, Diagnostic::error(format!("the mesh has no axis {}", quote(text.text))).help(help));
    None
}

/// A size in bytes with its unit.
pub fn bytes(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let text = value.text.text;
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (amount, unit) = text.split_at(unit_at);
    let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let error = Diagnostic::error(format!("{subject} must be a size such as `80GiB`, not {}", quote(text)));
        let names = || UNITS.iter().map(|(name, _)| *name);
        let help = suggestion(unit, names(), || format!("the units are {}", listed(names())));
        context.report(value.text.source, error.help(help));
        return None;
    };
    let bytes = match digits(amount) {
        Some(n) => u64::try_from(n).ok().and_then(|n| n.checked_mul(*scale)),
        None => decimal(amount).map(|x| x * *scale as f64).filter(|x| *x < u64::MAX as f64).map(|x| x as u64),
    };
    bytes.filter(|n| *n > 0).or_else(|| expected(value.text, subject, "a size above 0 and below 2^64 bytes", context))
}

/// Reports "`subject` must be …, not `text`".
pub fn expected<T>(text: Text<'_>, subject: &str, what: &str, context: &mut Context<'_>) -> Option<T> {
    context.report(text.source, Diagnostic::error(format!("{subject} must be {what}, not {}", quote(text.text))));
    None
}

fn number(text: Text<'_>, subject: &str, what: &str, allowed: impl Fn(f64) -> bool, context: &mut Context<'_>) -> Option<f64> {
    decimal(text.text).filter(|x| allowed(*x)).or_else(|| expected(text, subject, what, context))
}

/// A finite number in digits, not `inf` or `nan`, and not a positive one too small to be told from
/// 0.
fn decimal(text: &str) -> Option<f64> {
    let is_numeric = text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    let number = text.parse::<f64>().ok().filter(|x| is_numeric && x.is_finite())?;
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    let vanished = number == 0.0 && mantissa.contains(|c: char| ('1'..='9').contains(&c));
    (!vanished).then_some(number)
}

/// A whole number in digits only; what is beyond `u128` counts as its largest.
fn digits(text: &str) -> Option<u128> {
    let is_whole = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_whole.then(|| text.parse().unwrap_or(u128::MAX))
}
