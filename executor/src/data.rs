//! Training data: arrays or tokens from a file, checked against a program, and cut into batches.

mod array;
mod check;
mod describe;
mod files;
mod npy;
mod npz;
mod order;
mod parts;
mod safetensor;
mod source;
mod tokens;

use crate::tensor::Tensor;
use check::{check_arrays, check_headers, check_tokens};
use files::Files;
use order::Order;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use shardc_ir::dtype::DType;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, ProgramInput};
use source::Source;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokens::Tokens;

pub use array::{Element, Header, Number, Range};
pub use describe::{ArrayDescription, Contents, Description, describe};
pub use npz::{npz_bytes, read_npz, write_npz};
pub use safetensor::{dtype as safetensors_dtype, read_safetensors, safetensors_types, save_safetensors, write_safetensors};
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
    /// At most so many samples, spread evenly over all; text from random starts is not thinned out.
    pub samples: Option<u64>,
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
    /// Reads one path, as [`Dataset::open_all`] reads several.
    ///
    /// # Errors
    /// As [`Dataset::open_all`].
    pub fn open(path: &Path, inputs: Vec<InputSpec>, batch: u64, options: &Options) -> Result<Dataset, Diagnostics> {
        Dataset::open_all(&[path.to_path_buf()], inputs, batch, options)
    }

    /// Reads files of one kind (`.npz`, folders of `.npy`, `.safetensors`, `.txt`, `.bin`), or
    /// folders of them, for `inputs` in batches of `batch` samples. The samples are those of all
    /// files in order; the files of a folder are in the order of the bytes of their names.
    ///
    /// # Errors
    /// All that is wrong with the data: broken files, missing or misnamed arrays, types, shapes,
    /// counts, values.
    pub fn open_all(paths: &[PathBuf], inputs: Vec<InputSpec>, batch: u64, options: &Options) -> Result<Dataset, Diagnostics> {
        let files = parts::parts(paths)?;
        let here = |d: Diagnostic| d.at_opt(paths.first().cloned().map(Place::File));
        if inputs.is_empty() {
            return Err(here(Diagnostic::error("the model reads nothing of the data")).into());
        }
        let mut source = read(&files, &inputs, options.context)?;
        options.samples.into_iter().for_each(|samples| source.keep(samples));
        let dataset = Dataset { inputs, order: Order::new(options, &source, batch), source };
        let samples = dataset.samples();
        if samples == 0 {
            return Err(here(Diagnostic::error("the data has no samples")).into());
        }
        if samples < batch {
            let error = Diagnostic::error(format!("the data has {}, less than one batch of {batch}", counted(samples, "sample")));
            let error = match &options.batch_place {
                Some(place) => error.at(place.clone()),
                None => here(error),
            };
            let more = if let [path] = paths { format!("more data than `{}` has", path.display()) } else { "more data".into() };
            return Err(error.help(format!("use a smaller `batch`, or {more}")).into());
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

    /// The pass that `step` belongs to, and how many samples of the pass come before it.
    pub fn place(&self, step: u64) -> (u64, u64) {
        self.order.place(step)
    }

    /// Lets `step` begin behind `sample` samples of the pass `epoch`, and later ones follow.
    pub fn resume(&mut self, step: u64, epoch: u64, sample: u64) {
        self.order.resume(step, epoch, sample);
    }

    /// The batch of `step`, an array for each input.
    pub fn batch(&self, step: u64) -> Arc<Vec<Tensor>> {
        Arc::new(self.rows(&self.order.rows(step, &self.source)))
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
        self.inputs.iter().enumerate().map(|(i, input)| self.source.rows(rows, i, input)).collect()
    }

    /// The numbers of samples `from..to` in the order of the files, for [`Dataset::rows`].
    pub fn in_order(&self, from: u64, to: u64) -> Vec<u64> {
        (from..to.min(self.samples())).map(|sample| self.source.in_order(sample)).collect()
    }
}

/// Reads files of one kind.
fn read(files: &[PathBuf], inputs: &[InputSpec], context: Option<u64>) -> Result<Source, Diagnostics> {
    if let [_, _, ..] = files {
        // Names, types and shapes of all files are known to be right before any element is read.
        of_each(files, |path| match Tokens::is_text(path) {
            true => Ok(()),
            false => check_headers(&mut open_arrays(path, context)?, inputs),
        })?;
    }
    if files.first().is_some_and(|path| Tokens::is_text(path)) {
        let texts = of_each(files, |path| {
            let tokens = Tokens::read(path)?;
            Ok((check_tokens(&tokens, inputs, context)?, tokens))
        })?;
        let context = texts.first().map_or(1, |(context, _)| *context);
        return Ok(Source::tokens(texts.into_iter().map(|(_, tokens)| tokens).collect(), context));
    }
    Ok(Source::arrays(of_each(files, |path| check_arrays(&mut open_arrays(path, context)?, inputs))?))
}

fn open_arrays(path: &Path, context: Option<u64>) -> Result<Files, Diagnostic> {
    if context.is_some() { Err(no_text()) } else { Files::open(path) }
}

/// What `f` makes of each file, or all errors, each at its file.
fn of_each<T>(files: &[PathBuf], f: impl Fn(&Path) -> Result<T, Diagnostics>) -> Result<Vec<T>, Diagnostics> {
    let (mut found, mut errors) = (vec![], vec![]);
    for path in files {
        let here = |d: Diagnostic| if d.place.is_none() { d.at(Place::File(path.clone())) } else { d };
        match f(path) {
            Ok(value) => found.push(value),
            Err(wrong) => errors.extend(wrong.into_iter().map(here)),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The error about a context of what has none.
fn no_text() -> Diagnostic {
    let error = Diagnostic::error("a context cuts text into windows, and this is not text");
    error.help("leave `--context` out, or give a `.txt` or `.bin` file")
}
