//! `shardc eval`: the mean loss over data, and the model's outputs.

use super::job::{DataArgs, Job, JobArgs, MachineArgs};
use super::output::{print, replaces_no_input, writable};
use crate::failure::Failure;
use clap::Args;
use serde::Serialize;
use shardc_executor::data::{Dataset, input_specs, write_npz};
use shardc_executor::run::StepResult;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::dtype::DType;
use shardc_ir::plan::Program;
use shardc_passes::PADDING_LABEL;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Outputs of evaluation that are not the model's.
const LOSS_SUM: &str = "loss_sum";
const LABELS: &str = "labels";

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
        if let Some(path) = &self.outputs {
            replaces_no_input(path, &[&self.data.path])?;
            writable(path)?;
        }
        let job = self.job.open(false)?;
        let program = &job.programs.eval;
        let data = self.data.open(input_specs(program), 1, false, program.seed)?;
        let (loss, outputs) = self.evaluate(&job, program, &data)?;
        if let Some(path) = &self.outputs {
            write_npz(path, &outputs)?;
        }
        print(&self.text(&loss, data.samples())?)
    }

    fn evaluate(&self, job: &Job, program: &Program, data: &Dataset) -> Result<(Loss, BTreeMap<String, Tensor>), Failure> {
        let batch = batch_size(program);
        let mut executor = job.start(program, &self.machine)?;
        let mut outputs: BTreeMap<String, Tensor> = BTreeMap::new();
        let (mut sum, mut labels, mut has_loss) = (0.0, 0.0, false);
        let mut from = 0;
        while from < data.samples() {
            let to = (from + batch).min(data.samples());
            let result = executor.step(Arc::new(padded(job, program, data, from..to, batch, Filler::LastSample)))?;
            if to - from < batch {
                let other = executor.step(Arc::new(padded(job, program, data, from..to, batch, Filler::Zeros)))?;
                self.same_for_any_padding(&result, &other, to - from, batch)?;
            }
            for (name, output) in result.outputs {
                match name.as_str() {
                    LOSS_SUM => {
                        sum += output.first().unwrap_or(f64::NAN);
                        has_loss = true;
                    }
                    LABELS => labels += output.first().unwrap_or(f64::NAN),
                    _ if self.outputs.is_some() => append(outputs.entry(name), output, batch, to - from),
                    _ => {}
                }
            }
            from = to;
        }
        let loss = if has_loss {
            Loss { loss: Some(sum / labels), labels: Some(labels as u64) }
        } else {
            Loss { loss: None, labels: None }
        };
        Ok((loss, outputs))
    }

    /// Refuses a model whose results for the real samples change with what fills up their batch.
    fn same_for_any_padding(&self, one: &StepResult, other: &StepResult, real: u64, batch: u64) -> Result<(), Failure> {
        let mixes = one.outputs.iter().any(|(name, output)| {
            let elements = match output.shape.first() {
                Some(n) if *n == batch => output.elements() / batch * real,
                _ => output.elements(),
            };
            let (a, b) = (output.to_f64(), other.outputs[name].to_f64());
            a.iter().zip(&b).take(elements as usize).any(|(a, b)| (a - b).abs() > 1e-5 * a.abs().max(1.0))
        });
        if !mixes {
            return Ok(());
        }
        let message =
            format!("the model mixes the samples of a batch, so the last {real} samples cannot be filled up to {batch}");
        let error = Diagnostic::error(message).at(Place::File(self.data.path.clone()));
        Err(error.help(format!("evaluate a multiple of {batch} samples")).into())
    }

    fn text(&self, loss: &Loss, samples: u64) -> Result<String, Failure> {
        if self.json {
            let json = serde_json::to_string(loss).map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))?;
            return Ok(json + "\n");
        }
        let written = self.outputs.iter().map(|path| format!(", outputs in `{}`", path.display())).collect::<String>();
        Ok(match loss {
            Loss { loss: Some(loss), labels: Some(labels) } => {
                format!("loss {loss:.6} over {labels} labels of {samples} samples{written}\n")
            }
            _ => format!("{samples} samples, no loss: the spec has no `loss` line{written}\n"),
        })
    }
}

/// Samples of a step: the spec's batch, or the model's own size.
fn batch_size(program: &Program) -> u64 {
    let own = program.inputs.first().and_then(|i| program.buffers[i.buffer.index()].shape.first().copied());
    own.unwrap_or(program.batch).max(1)
}

/// What fills up a batch, and does not count.
#[derive(PartialEq)]
enum Filler {
    LastSample,
    Zeros,
}

/// The samples of a range, filled up to a whole batch.
fn padded(job: &Job, program: &Program, data: &Dataset, range: Range<u64>, batch: u64, filler: Filler) -> Vec<Tensor> {
    let real = (range.end - range.start) as usize;
    let mut rows = data.in_order(range.start, range.end);
    rows.resize(batch as usize, rows.last().copied().unwrap_or(0));
    let mut tensors = data.rows(&rows);
    if filler == Filler::Zeros {
        for tensor in &mut tensors {
            let size = tensor.bytes.len() / batch as usize;
            tensor.bytes[real * size..].fill(0);
        }
    }
    for (_, tensor) in program.inputs.iter().zip(&mut tensors).filter(|(input, _)| job.is_label(&input.name)) {
        let padding: &[u8] = match tensor.dtype {
            DType::I64 => &PADDING_LABEL.to_le_bytes(),
            DType::F32 => &f32::NAN.to_le_bytes(),
            DType::F64 => &f64::NAN.to_le_bytes(),
            DType::Bool => continue,
        };
        let size = tensor.bytes.len() / batch as usize;
        for element in tensor.bytes[real * size..].chunks_exact_mut(padding.len()) {
            element.copy_from_slice(padding);
        }
    }
    tensors
}

/// Adds the real samples of an output; one without a sample dimension is kept as the first batch has it.
fn append(entry: std::collections::btree_map::Entry<'_, String, Tensor>, mut output: Tensor, batch: u64, real: u64) {
    use std::collections::btree_map::Entry::{Occupied, Vacant};
    let by_sample = output.shape.first() == Some(&batch);
    if by_sample {
        output.bytes.truncate(output.bytes.len() / batch as usize * real as usize);
        output.shape[0] = real;
    }
    match entry {
        Vacant(entry) => {
            entry.insert(output);
        }
        Occupied(mut entry) if by_sample => {
            let all = entry.get_mut();
            all.bytes.extend(output.bytes);
            all.shape[0] += real;
        }
        Occupied(_) => {}
    }
}
