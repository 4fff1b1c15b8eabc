//! `shardc data`: what a data file or folder holds, for people or for programs.

use super::failure::Failure;
use super::output::print;
use clap::Args;
use serde::Serialize;
use shardc_executor::data::{ArrayDescription, Contents, Counts, Description, Number, describe};
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use std::path::PathBuf;

/// How the arrays must be for training.
const ARRAYS: &str =
    "For training, arrays have the names of the model's inputs and of the spec's labels; dimension 0 counts the samples.";
const TOKENS: &str =
    "For training, a window of T tokens is the model's only input, and the labels are the same window one token later.";

/// The arguments.
#[derive(Debug, Args)]
pub struct Data {
    /// `.npz`, `.npy` or a folder of them, `.safetensors`, or tokens: `.txt` (bytes), `.bin` (u16)
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// Count the windows of so many tokens
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..))]
    context: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The JSON form of arrays.
#[derive(Debug, Serialize)]
struct Arrays<'a> {
    kind: &'a str,
    /// The samples of every array, if they have as many.
    samples: Option<u64>,
    arrays: Vec<Row<'a>>,
}

/// An array: what it is, or why it cannot be read.
#[derive(Debug, Default, Serialize)]
struct Row<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(rename = "type")]
    element: Option<String>,
    shape: Option<&'a [u64]>,
    samples: Option<u64>,
    min: Option<Value>,
    mean: Option<f64>,
    max: Option<Value>,
    not_finite: Option<u64>,
}

/// The JSON form of tokens.
#[derive(Debug, Serialize)]
struct Text<'a> {
    kind: &'a str,
    tokens: u64,
    distinct: u64,
    min: Option<u16>,
    max: Option<u16>,
    context: Option<u64>,
    windows: Option<u64>,
}

/// A number as the file has it.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Value {
    Real(f64),
    Whole(i128),
}

impl Data {
    /// Prints the table, or the JSON object.
    ///
    /// # Errors
    /// If the data cannot be read; where only some of its arrays cannot, the others are printed.
    pub fn run(self) -> Result<(), Failure> {
        let described = describe(&self.path, self.context)?;
        let json = match &described {
            Description::Arrays { kind, arrays } => {
                let samples = common_samples(arrays);
                json(&Arrays { kind, samples, arrays: arrays.iter().map(Row::of).collect() })
            }
            Description::Tokens { kind, counts } => json(&self.text_of(kind, counts)),
        };
        let text = match (&described, self.json) {
            (_, true) => json?,
            (Description::Arrays { kind, arrays }, false) => self.arrays(kind, arrays),
            (Description::Tokens { kind, counts }, false) => self.tokens(kind, counts),
        };
        print(&text)?;
        let Description::Arrays { arrays, .. } = described else { return Ok(()) };
        let broken = arrays.into_iter().filter_map(|array| Some((array.name, array.contents.err()?)));
        let error = |(name, why)| Diagnostic::error(format!("`{}` cannot be read: {why}", shown(name)));
        let errors: Diagnostics = broken.map(|broken| error(broken).at(Place::File(self.path.clone()))).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.into()) }
    }

    fn arrays(&self, kind: &str, arrays: &[ArrayDescription]) -> String {
        let kind = match kind {
            "folder" => "a folder of `.npy`".to_string(),
            kind => format!("a `.{kind}`"),
        };
        let samples = match common_samples(arrays) {
            Some(samples) => format!(" of {}", counted(samples, "sample")),
            None => String::new(),
        };
        let mut rows = vec![["array", "type", "shape", "least", "mean", "greatest", ""].map(str::to_string)];
        for ArrayDescription { name, contents } in arrays {
            rows.push(match contents {
                Ok(contents) => row(name, contents),
                Err(_) => [shown(name), "cannot be read".into(), "".into(), "".into(), "".into(), "".into(), "".into()],
            });
        }
        let (words, numbers) = (Column::WORDS, Column::NUMBERS);
        let table = align(&rows, [words, words.limit(8), words, numbers, numbers, numbers, words]);
        let head = format!("{}: {kind}, {}{samples}\n\n{table}\n", self.path.display(), counted(arrays.len(), "array"));
        let differ = common_samples(arrays).is_none() && arrays.iter().filter(|array| array.contents.is_ok()).count() > 1;
        let note = if differ { "The arrays differ in their number of samples; those that a job reads must not.\n" } else { "" };
        format!("{head}{note}{ARRAYS}\n")
    }

    fn tokens(&self, kind: &str, counts: &Counts) -> String {
        let Counts { tokens, distinct, ends } = counts;
        let kind = if kind == "text" { "text, whose bytes are the tokens" } else { "tokens of 16 bits" };
        let mut rows = vec![["tokens".to_string(), tokens.to_string()]];
        if let Some((least, greatest)) = ends {
            rows.push(["used".to_string(), format!("{distinct} different, from {least} to {greatest}")]);
            rows.push(["vocabulary".to_string(), format!("at least {}", u64::from(*greatest) + 1)]);
        }
        if let Some(context) = self.context {
            rows.push(["windows".to_string(), format!("{} of {}", counts.windows(context), counted(context, "token"))]);
        }
        let table = align(&rows, [Column::WORDS, Column::WORDS]);
        format!("{}: {kind}\n\n{table}\n{TOKENS}\n", self.path.display())
    }

    fn text_of<'a>(&self, kind: &'a str, counts: &Counts) -> Text<'a> {
        let Counts { tokens, distinct, ends } = *counts;
        let (min, max) = ends.unzip();
        let windows = self.context.map(|context| counts.windows(context));
        Text { kind, tokens, distinct, min, max, context: self.context, windows }
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))?;
    Ok(text + "\n")
}

/// The samples of all arrays that can be read, if they have as many.
fn common_samples(arrays: &[ArrayDescription]) -> Option<u64> {
    let mut all = arrays.iter().filter_map(|array| array.contents.as_ref().ok()).map(Contents::samples);
    let first = all.next()??;
    all.all(|samples| samples == Some(first)).then_some(first)
}

fn row(name: &str, contents: &Contents) -> [String; 7] {
    let Contents { header, range } = contents;
    let (least, greatest) = range.ends.map(|(least, greatest)| (least.to_string(), greatest.to_string())).unzip();
    let mean = range.mean().filter(|_| header.element.is_float()).map(|mean| Number::Real(mean).to_string());
    let not_finite = match range.not_finite {
        0 => String::new(),
        1 => "1 is not finite".to_string(),
        n => format!("{n} are not finite"),
    };
    let numbers = [least, mean, greatest].map(Option::unwrap_or_default);
    let [least, mean, greatest] = numbers;
    [shown(name), header.element.to_string(), format!("{:?}", header.shape), least, mean, greatest, not_finite]
}

/// A name that a terminal can show.
fn shown(name: impl AsRef<str>) -> String {
    name.as_ref().chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

impl<'a> Row<'a> {
    fn of(array: &'a ArrayDescription) -> Row<'a> {
        let name = &array.name;
        let contents = match &array.contents {
            Ok(contents) => contents,
            Err(why) => return Row { name, error: Some(why.to_string()), ..Row::default() },
        };
        let Contents { header, range } = contents;
        let value = |number| match number {
            Number::Real(x) => Value::Real(x),
            Number::Whole(n) => Value::Whole(n),
        };
        let (min, max) = range.ends.map(|(least, greatest)| (value(least), value(greatest))).unzip();
        let of_floats = header.element.is_float();
        Row {
            name,
            error: None,
            element: Some(header.element.to_string()),
            shape: Some(&header.shape),
            samples: contents.samples(),
            min,
            mean: range.mean().filter(|_| of_floats),
            max,
            not_finite: of_floats.then_some(range.not_finite),
        }
    }
}
