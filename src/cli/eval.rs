//! `shardc eval`: the mean loss over data, and the model's outputs.

use super::job::{Batches, DataArgs, Job, JobArgs};
use super::machine::MachineArgs;
use super::output::{print, writable, write_whole};
use crate::failure::Failure;
use crate::report;
use clap::Args;
use serde::Serialize;
use shardc_executor::data::{Dataset, input_specs, npz_bytes};
use shardc_executor::run::{Executor, StepResult};
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use shardc_ir::dtype::DType;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, ProgramInput};
use shardc_passes::{PADDING_LABEL, loss_outputs};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The arguments.
#[derive(Debug, Args)]
pub struct Eval {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Write the model's outputs to this `.npz`
    #[arg(long, value_name = "OUT.npz")]
    outputs: Option<PathBuf>,
    /// Print `{"loss": …, "labels": …}`
    #[arg(long)]
    json: bool,
}

/// The result: null without a `loss` line.
#[derive(Debug, Serialize)]
struct Loss {
    loss: Option<f64>,
    labels: Option<u64>,
}

impl Eval {
    /// Evaluates all samples in order.
    ///
    /// # Errors
    /// All that is wrong with the job or its data; a failed rank.
    pub fn run(self) -> Result<(), Failure> {
        self.machine.check(None)?;
        let files = self.job.files().reads_data(&self.data.path);
        files.writes("--outputs", self.outputs.as_deref()).check()?;
        self.outputs.iter().try_for_each(|path| writable(path))?;
        let job = self.job.open(false)?;
        let programs = &job.programs.eval;
        let batch = batch_size(programs);
        let names = job.spec.loss.as_ref().and_then(|_| loss_outputs(programs));
        let names = names.map(|(sum, labels)| (sum.to_string(), labels.to_string()));
        let mut totals = Totals { names, keep: self.outputs.is_some(), ..Totals::default() };
        let mut executor = job.start(programs, &self.machine)?;
        if programs.inputs().is_empty() {
            totals.add(executor.step(Arc::new(vec![]))?, batch, batch);
            return self.finish(&totals, 0);
        }
        let data = self.data.open(input_specs(programs), Batches { size: 1, ..Batches::default() })?;
        let whole = data.samples() - data.samples() % batch;
        let left = data.samples() - whole;
        for from in (0..whole).step_by(batch as usize) {
            let arrays = data.rows(&data.in_order(from, from + batch));
            totals.add(executor.step(Arc::new(arrays))?, batch, batch);
        }
        if left > 0 {
            let rest = Rest { job: &job, data: &data, from: whole, batch };
            match rest.filled_up(&mut executor)? {
                Some(result) => totals.add(result, batch, left),
                None => {
                    drop(executor);
                    totals.add(self.step_of_its_own(&rest)?, left, left);
                }
            }
        }
        self.finish(&totals, data.samples())
    }

    /// Writes and prints what `samples` samples came to.
    fn finish(&self, totals: &Totals, samples: u64) -> Result<(), Failure> {
        if let Some(path) = &self.outputs {
            report::print(&left_out(&totals.differing, path));
            write_whole(path, &npz_bytes(&totals.outputs)?)?;
        }
        print(&self.text(&totals.loss(), samples)?)
    }

    /// A step of the model at the size of the rest, on one rank.
    fn step_of_its_own(&self, rest: &Rest<'_>) -> Result<StepResult, Failure> {
        let Rest { job, data, from, batch } = rest;
        let left = data.samples() - from;
        let programs = job.resized(left).map_err(|errors| {
            let message = match left {
                1 => format!("the last sample fills no batch of {batch}, and cannot be filled up"),
                _ => format!("the last {left} samples fill no batch of {batch}, and cannot be filled up"),
            };
            let why = errors.first().map_or(String::new(), |error| format!("the model has no other size: {}", error.message));
            let error = Diagnostic::error(message).at(Place::File(self.data.path.clone())).label(why);
            error.help(format!("evaluate a multiple of {batch} samples, or export the model with a dynamic batch"))
        })?;
        let arrays = data.rows(&data.in_order(*from, data.samples()));
        Ok(job.start(&programs, &self.machine)?.step(Arc::new(arrays))?)
    }

    fn text(&self, loss: &Loss, samples: u64) -> Result<String, Failure> {
        if self.json {
            let json = serde_json::to_string(loss).map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))?;
            return Ok(json + "\n");
        }
        let written = self.outputs.iter().map(|path| format!(", outputs in `{}`", path.display())).collect::<String>();
        let samples = counted(samples, "sample");
        Ok(match loss {
            Loss { loss: Some(loss), labels: Some(labels) } => {
                format!("loss {loss:.6} over {} of {samples}{written}\n", counted(labels, "label"))
            }
            Loss { labels: Some(_), .. } => format!("no loss: none of the labels of {samples} counts{written}\n"),
            _ => format!("{samples}, no loss: the spec has no `loss` line{written}\n"),
        })
    }
}

/// Warnings about outputs that belong to no sample and to no model, but to a batch.
fn left_out(names: &[String], path: &Path) -> Diagnostics {
    let warning = |name: &String| {
        let warning = Diagnostic::warning(format!("`{name}` has no dimension of samples, and differs from batch to batch"));
        let warning = warning.at(Place::File(path.to_path_buf())).label("it is left out");
        warning.help("evaluate all samples as one batch to have it: a `batch` line with as many as the data has")
    };
    names.iter().map(warning).collect()
}

/// Samples of a step: the spec's batch, or the model's own size.
fn batch_size(programs: &PlanSet) -> u64 {
    let first = |(program, input): &(&Program, &ProgramInput)| program.buffers[input.buffer.index()].shape.first().copied();
    let own = programs.inputs().first().and_then(first);
    own.unwrap_or(programs.first().batch).max(1)
}

/// The totals over steps.
#[derive(Default)]
struct Totals {
    /// The outputs that are not the model's: the sum of the loss, and how many labels it counts.
    names: Option<(String, String)>,
    sum: f64,
    labels: f64,
    /// Whether the model's outputs are wanted.
    keep: bool,
    outputs: BTreeMap<String, Tensor>,
    /// Outputs without a dimension of samples that differ between batches.
    differing: Vec<String>,
}

impl Totals {
    /// Adds a step of `batch` samples, of which the first `real` count.
    fn add(&mut self, result: StepResult, batch: u64, real: u64) {
        let StepResult { mut outputs } = result;
        if let Some((sum, labels)) = &self.names {
            let mut number = |name| outputs.remove(name).and_then(|output| output.first()).unwrap_or(f64::NAN);
            self.sum += number(sum);
            self.labels += number(labels);
        }
        if self.keep {
            for (name, output) in outputs {
                if self.differing.contains(&name) {
                    continue;
                }
                if !append(self.outputs.entry(name.clone()), output, batch, real) {
                    self.outputs.remove(&name);
                    self.differing.push(name);
                }
            }
        }
    }

    fn loss(&self) -> Loss {
        match self.names.is_some() {
            true => Loss { loss: Some(self.sum / self.labels).filter(|_| self.labels > 0.0), labels: Some(self.labels as u64) },
            false => Loss { loss: None, labels: None },
        }
    }
}

/// The samples from `from` on, which fill no batch.
struct Rest<'a> {
    job: &'a Job,
    data: &'a Dataset,
    from: u64,
    batch: u64,
}

/// The samples that fill up a batch, and do not count.
#[derive(PartialEq)]
enum Filler {
    LastSample,
    /// Zeros, or integers of the first sample: the model may divide by them.
    Another,
}

impl Rest<'_> {
    /// A step over the samples filled up to a whole batch. `None` where filling changes results for
    /// the real samples: the model mixes the samples of a batch, computes its own loss over all of
    /// them, or reads the labels itself, which no label can then leave out.
    fn filled_up(&self, executor: &mut Executor) -> Result<Option<StepResult>, Failure> {
        if self.job.computes_loss() || self.job.labels_are_inputs {
            return Ok(None);
        }
        let one = executor.step(Arc::new(self.arrays(executor.programs(), Filler::LastSample)))?;
        let other = executor.step(Arc::new(self.arrays(executor.programs(), Filler::Another)))?;
        let real = self.data.samples() - self.from;
        let mixes = one.outputs.iter().any(|(name, output)| {
            let elements = match output.shape.first() {
                Some(n) if *n == self.batch => output.elements() / self.batch * real,
                _ => output.elements(),
            };
            let (a, b) = (output.to_f64(), other.outputs[name].to_f64());
            a.iter().zip(&b).take(elements as usize).any(|(a, b)| (a - b).abs() > 1e-5 * a.abs().max(1.0))
        });
        Ok((!mixes).then_some(one))
    }

    fn arrays(&self, programs: &PlanSet, filler: Filler) -> Vec<Tensor> {
        let batch = self.batch as usize;
        let mut rows = self.data.in_order(self.from, self.data.samples());
        let real = rows.len();
        rows.resize(batch, rows.last().copied().unwrap_or(0));
        let mut tensors = self.data.rows(&rows);
        let first = self.data.rows(&[0]);
        for (((_, input), tensor), first) in programs.inputs().into_iter().zip(&mut tensors).zip(&first) {
            let size = tensor.bytes.len() / batch;
            let padding = &mut tensor.bytes[real * size..];
            if self.job.is_label(&input.name) {
                let none: &[u8] = match tensor.dtype {
                    DType::I64 => &PADDING_LABEL.to_le_bytes(),
                    DType::F32 => &f32::NAN.to_le_bytes(),
                    DType::F64 => &f64::NAN.to_le_bytes(),
                    DType::BF16 | DType::F16 | DType::Bool => continue,
                };
                padding.chunks_exact_mut(none.len()).for_each(|element| element.copy_from_slice(none));
            } else if filler == Filler::Another {
                let differs = size > 0 && padding.len() >= size && padding[..size] != first.bytes[..];
                if tensor.dtype == DType::I64 && differs {
                    padding.chunks_exact_mut(size).for_each(|sample| sample.copy_from_slice(&first.bytes));
                } else {
                    padding.fill(0);
                }
            }
        }
        tensors
    }
}

/// Adds the real samples of an output. One without a dimension of samples is the same for all
/// batches; false if it is not.
fn append(entry: Entry<'_, String, Tensor>, mut output: Tensor, batch: u64, real: u64) -> bool {
    let by_sample = output.shape.first() == Some(&batch);
    if by_sample {
        output.bytes.truncate(output.bytes.len() / batch as usize * real as usize);
        output.shape[0] = real;
    }
    match entry {
        Entry::Vacant(entry) => drop(entry.insert(output)),
        Entry::Occupied(mut entry) if by_sample => {
            let all = entry.get_mut();
            all.bytes.extend(output.bytes);
            all.shape[0] += real;
        }
        Entry::Occupied(entry) => return *entry.get() == output,
    }
    true
}
