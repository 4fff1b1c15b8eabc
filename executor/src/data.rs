//! Training data: arrays or tokens from a file, checked against a program, and cut into batches.

mod array;
mod check;
mod describe;
mod files;
mod npy;
mod npz;
mod order;
mod safetensor;
mod tokens;

use crate::tensor::Tensor;
use array::Array;
use check::{check_arrays, check_tokens};
use files::Files;
use order::Order;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use shardc_ir::dtype::DType;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, ProgramInput};
use std::path::Path;
use std::sync::Arc;
use tokens::Tokens;

pub use array::{Element, Header, Number, Range};
pub use describe::{ArrayDescription, Contents, Description, describe};
pub use npz::{npz_bytes, read_npz, write_npz};
pub use safetensor::{read_safetensors, save_safetensors, write_safetensors};
pub use tokens::Counts;

/// The demands of a program on one array.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// The array's name.
    pub name: String,
    /// The element type of its buffer.
    pub dtype: DType,
    /// The shape of one sample.
    pub sample: Vec<u64>,
    /// Allowed values `low..high`, if known; of floats `low` to `high - 1`.
    pub range: Option<(i64, i64)>,
    /// One value outside the range that is allowed.
    pub except: Option<i64>,
}

/// How data is read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Tokens in a window of text; by default what the program's first input says.
    pub context: Option<u64>,
    /// Samples in random order, or text from random starts.
    pub shuffle: bool,
    /// Seeds the order.
    pub seed: u64,
    /// The place in the spec that sets the size of a batch.
    pub batch_place: Option<Place>,
}

/// Samples that fit a program.
#[derive(Debug)]
pub struct Dataset {
    inputs: Vec<InputSpec>,
    source: Source,
    order: Order,
}

#[derive(Debug)]
enum Source {
    /// One array for each input, samples along dimension 0.
    Arrays(Vec<Array>),
    /// Windows of a text: the first input is the window, a second one the window one token later.
    Tokens { tokens: Tokens, context: u64 },
}

/// The demands of programs on each of their inputs.
pub fn input_specs(programs: &PlanSet) -> Vec<InputSpec> {
    let spec = |(program, input): (&Program, &ProgramInput)| {
        let buffer = program.buffers.get(input.buffer.index())?;
        Some(InputSpec {
            name: input.name.clone(),
            dtype: buffer.dtype,
            sample: buffer.shape.get(1..).unwrap_or_default().to_vec(),
            range: input.range,
            except: input.except,
        })
    };
    programs.inputs().into_iter().filter_map(spec).collect()
}

impl Dataset {
    /// Reads `path` (`.npz`, a folder of `.npy`, `.safetensors`, `.txt`, `.bin`) for `inputs` in
    /// batches of `batch` samples.
    ///
    /// # Errors
    /// All that is wrong with the data: broken files, missing or misnamed arrays, types, shapes,
    /// counts, values.
    pub fn open(path: &Path, inputs: Vec<InputSpec>, batch: u64, options: &Options) -> Result<Dataset, Diagnostics> {
        let here = |d: Diagnostic| if d.place.is_none() { d.at(Place::File(path.to_path_buf())) } else { d };
        let all = |ds: Diagnostics| ds.into_iter().map(here).collect::<Diagnostics>();
        if !path.exists() {
            return Err(all(files::nothing_there(path).into()));
        }
        if inputs.is_empty() {
            return Err(all(Diagnostic::error("the model reads nothing of the data").into()));
        }
        let source = match Tokens::read(path).map_err(|d| all(d.into()))? {
            Some(tokens) => {
                let context = check_tokens(&tokens, &inputs, options.context).map_err(all)?;
                Source::Tokens { tokens, context }
            }
            None if options.context.is_some() => {
                return Err(all(no_text().into()));
            }
            None => {
                let mut files = Files::open(path).map_err(|d| all(d.into()))?;
                Source::Arrays(check_arrays(&mut files, &inputs).map_err(all)?)
            }
        };
        let dataset = Dataset { inputs, order: Order::new(options, &source, batch), source };
        let samples = dataset.samples();
        if samples == 0 {
            return Err(all(Diagnostic::error("the data has no samples").into()));
        }
        if samples < batch {
            let error = Diagnostic::error(format!("the data has {}, less than one batch of {batch}", counted(samples, "sample")));
            let error = error.at_opt(options.batch_place.clone());
            return Err(all(error.help(format!("use a smaller `batch`, or more data than `{}` has", path.display())).into()));
        }
        Ok(dataset)
    }

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.source.samples()
    }

    /// Whole batches in one pass over the data.
    pub fn steps_per_epoch(&self) -> u64 {
        self.order.steps_per_epoch()
    }

    /// How often the data was used up before `step`; more than 0 means that it wraps. Text from
    /// random starts never ends.
    pub fn epoch(&self, step: u64) -> u64 {
        self.order.epoch(step)
    }

    /// The batch of `step`, an array for each input.
    pub fn batch(&self, step: u64) -> Arc<Vec<Tensor>> {
        Arc::new(self.rows(&self.order.rows(step)))
    }

    /// Whether an input of the batch of `step` holds nothing but the value that is allowed beside
    /// its range: labels of which none counts.
    pub fn is_ignored(&self, step: u64) -> bool {
        let batch = self.batch(step);
        self.inputs
            .iter()
            .zip(batch.iter())
            .any(|(input, array)| input.except.is_some_and(|ignored| array.to_i64().iter().all(|label| *label == ignored)))
    }

    /// The samples of those numbers, an array for each input; a window of a text is numbered by its
    /// first token.
    pub fn rows(&self, rows: &[u64]) -> Vec<Tensor> {
        let gather = |(i, input): (usize, &InputSpec)| {
            let shape: Vec<u64> = [rows.len() as u64].into_iter().chain(input.sample.iter().copied()).collect();
            let bytes = match &self.source {
                Source::Arrays(arrays) => arrays[i].rows(rows, input.dtype),
                Source::Tokens { tokens, context } => {
                    let windows = rows.iter().flat_map(|row| tokens.window(row + i as u64, *context));
                    windows.flat_map(i64::to_le_bytes).collect()
                }
            };
            Tensor { dtype: input.dtype, shape, bytes }
        };
        self.inputs.iter().enumerate().map(gather).collect()
    }

    /// The numbers of samples `from..to` in the order of the file, for [`Dataset::rows`].
    pub fn in_order(&self, from: u64, to: u64) -> Vec<u64> {
        let stride = if let Source::Tokens { context, .. } = &self.source { *context } else { 1 };
        (from..to.min(self.samples())).map(|sample| sample * stride).collect()
    }
}

/// The error about a context of what has none.
fn no_text() -> Diagnostic {
    let error = Diagnostic::error("a context cuts text into windows, and this is not text");
    error.help("leave `--context` out, or give a `.txt` or `.bin` file")
}

impl Source {
    fn samples(&self) -> u64 {
        match self {
            Source::Arrays(arrays) => arrays.first().and_then(|a| a.header.shape.first().copied()).unwrap_or(0),
            Source::Tokens { tokens, context } => tokens.len().saturating_sub(1) / context,
        }
    }
}
