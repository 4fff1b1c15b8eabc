//! `shardc init`: a starter spec for a model, with what the model has as comments.

use super::decisions;
use super::failure::Failure;
use super::output::print;
use crate::report;
use clap::Args;
use shardc_frontend::onnx::{self, Dim, Outline, Port};
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::Diagnostics;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The arguments.
#[derive(Debug, Args)]
pub struct Init {
    /// The ONNX model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
}

/// The likely loss, as a line of the spec and in words.
struct Guess {
    line: String,
    /// The labels that the data holds beside the inputs, and their element type.
    labels: Option<(String, &'static str)>,
    why: String,
}

impl Init {
    /// Prints the spec.
    ///
    /// # Errors
    /// If the file is no model.
    pub fn run(self) -> Result<(), Failure> {
        print(&starter(&self.model)?)
    }
}

/// The starter spec of the model at `path`.
///
/// # Errors
/// If the file is no model.
pub fn starter(path: &Path) -> Result<String, Diagnostics> {
    Ok(text(path, &onnx::outline(path)?))
}

fn text(path: &Path, outline: &Outline) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let guess = guess(outline);
    let mut text = format!("# A spec to begin with for `{name}`. `shardc help spec` describes every line.\n");
    text += &refusal(&outline.problems);
    text += "\n# The model reads and gives:\n";
    let ports = outline.inputs.iter().map(|p| ("input", p)).chain(outline.outputs.iter().map(|p| ("output", p)));
    let rows: Vec<[String; 3]> = ports.map(|(what, p)| [what.into(), format!("\"{}\"", p.name), type_text(p)]).collect();
    text += &comment(&align(&rows, [Column::after("  "), Column::WORDS, Column::WORDS]));
    text += &format!("\nbatch     {}\n", outline.batch);
    for (name, size) in &outline.bindings {
        text += &format!("bind      {name}={size}    # a size that the model leaves open\n");
    }
    text += &format!("\n# {}\n{}\n", guess.why, guess.line);
    text += "optimizer adamw lr=1e-3    # or: adam, sgd momentum=0.9, lamb\n";
    text += "# schedule cosine warmup=100 steps=2000\n# clip      norm=1.0\n";
    text += &format!("\n# {}\n", data_text(outline, &guess));
    text += "\n# For several ranks, the samples split over two of them:\n# mesh      dp=2\n# data      axis=dp\n";
    text += "# For four, each block of layers split over two as well:\n# mesh      dp=2 tp=2\n# tensor    axis=tp\n";
    if outline.decisions.is_empty() {
        return text + "\n# What is trained cannot be told before the model is one that can be read.\n";
    }
    text += "\n# What is trained, and what is not. `train \"NAME\"` and `freeze \"NAME\"` change it.\n";
    text + &comment(&decisions::grouped(&outline.decisions))
}

/// Each line of `text` behind `#`.
fn comment(text: &str) -> String {
    text.lines().map(|line| format!("# {line}").trim_end().to_string() + "\n").collect()
}

/// Why the model is refused as it is.
fn refusal(problems: &Diagnostics) -> String {
    if problems.is_empty() {
        return String::new();
    }
    format!("#\n# Training refuses this model as it is:\n#\n{}", comment(&report::render(problems, &BTreeMap::new(), false)))
}

/// `f32[batch, 3, 16, 16]`.
fn type_text(port: &Port) -> String {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(n) => n.to_string(),
        Dim::Symbol(name) if name.is_empty() => "?".into(),
        Dim::Symbol(name) => name.clone(),
    };
    let dtype = port.dtype.map_or("?".to_string(), |dtype| dtype.to_string());
    match &port.dims {
        Some(dims) => format!("{dtype}[{}]", dims.iter().map(dim).collect::<Vec<_>>().join(", ")),
        None => dtype,
    }
}

fn guess(outline: &Outline) -> Guess {
    let is_taken = |name: &str| outline.inputs.iter().any(|i| i.name == name);
    let labels = ["y", "labels", "target", "targets"].into_iter().find(|name| !is_taken(name)).unwrap_or("y_true").to_string();
    let floats = || outline.outputs.iter().filter(|o| o.dtype.is_none_or(|dtype| dtype.is_float()));
    let rank = |port: &Port| port.dims.as_ref().map_or(0, Vec::len);
    if let Some(loss) = floats().find(|o| rank(o) == 0 && o.dims.is_some() || o.name.to_lowercase().contains("loss")) {
        let line = format!("loss      output={}", quoted(&loss.name));
        return Guess { line, labels: None, why: "The model computes its own loss.".into() };
    }
    let Some(output) = floats().find(|o| o.name.to_lowercase().contains("logits")).or_else(|| floats().next()) else {
        let line = format!("# loss    cross_entropy labels={labels}");
        return Guess { line, labels: None, why: "The model gives no floats: a loss needs some.".into() };
    };
    let name = quoted(&output.name);
    let same_as_input = |i: &Port| i.dtype.is_some_and(|dtype| dtype.is_float()) && i.dims == output.dims;
    let classes = output.dims.as_ref().and_then(|dims| dims.last()).filter(|_| rank(output) >= 2);
    let is_image = rank(output) == 4;
    match classes {
        _ if outline.inputs.iter().any(same_as_input) || matches!(classes, None | Some(Dim::Fixed(1))) => Guess {
            line: format!("loss      mse prediction={name} labels={labels}"),
            labels: Some((labels, "floats in the shape of the output")),
            why: format!("\"{}\" looks like numbers to be met; for yes and no there is bce_with_logits.", output.name),
        },
        _ if is_image => Guess {
            line: format!("loss      cross_entropy logits={name} labels={labels} class_axis=1"),
            labels: Some((labels, "a class for each pixel, whole numbers")),
            why: format!("\"{}\" looks like the classes of pixels; for other images there is mse.", output.name),
        },
        _ => Guess {
            line: format!("loss      cross_entropy logits={name} labels={labels}"),
            labels: Some((labels, "classes, whole numbers in the shape of the output without its last dimension")),
            why: format!("The last dimension of \"{}\" looks like classes; for numbers there is mse.", output.name),
        },
    }
}

/// A name as an option takes it.
fn quoted(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    if plain { name.to_string() } else { format!("\"{name}\"") }
}

fn data_text(outline: &Outline, guess: &Guess) -> String {
    let mut arrays: Vec<String> = outline.inputs.iter().map(|i| format!("\"{}\"", i.name)).collect();
    let labels = guess.labels.as_ref().map(|(name, what)| format!("\n# \"{name}\" holds {what}.")).unwrap_or_default();
    arrays.extend(guess.labels.iter().map(|(name, _)| format!("\"{name}\"")));
    format!("The data is an .npz file with the arrays {}, a sample a row.{labels}", arrays.join(", "))
}
