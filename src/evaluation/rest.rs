//! The last samples of data, which fill no batch: what fills it up, and whether that changes their
//! results.

use shardc_executor::data::Dataset;
use shardc_executor::run::StepResult;
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::plan::set::PlanSet;
use shardc_passes::PADDING_LABEL;

/// The samples that fill up a batch, and do not count.
#[derive(Clone, Copy, PartialEq)]
pub enum Filler {
    /// The last one, again and again.
    LastSample,
    /// Zeros, or integers of the first sample: the model may divide by them.
    Another,
}

/// The last `real` samples of `data`, and behind them what fills up `batch` samples, whose `labels`
/// do not count.
pub fn arrays(
    data: &Dataset,
    programs: &PlanSet,
    (batch, real): (u64, u64),
    labels: Option<&str>,
    filler: Filler,
) -> Vec<Tensor> {
    let mut rows = data.in_order(data.samples() - real, data.samples());
    let (batch, real) = (batch as usize, rows.len());
    rows.resize(batch, rows.last().copied().unwrap_or(0));
    let mut tensors = data.rows(&rows);
    let first = data.rows(&[0]);
    for (((_, input), tensor), first) in programs.inputs().into_iter().zip(&mut tensors).zip(&first) {
        let size = tensor.bytes.len() / batch;
        let padding = &mut tensor.bytes[real * size..];
        if labels == Some(&input.name) {
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

/// Whether two steps over the same first `real` of `batch` samples agree in their results: of an
/// output by samples in those of the first `real`.
pub fn agree(
    one: &StepResult,
    other: &StepResult,
    (batch, real): (u64, u64),
    is_by_sample: impl Fn(&str, &Tensor) -> bool,
) -> bool {
    one.outputs.iter().all(|(name, output)| {
        let elements = if is_by_sample(name, output) { output.elements() / batch * real } else { output.elements() };
        let (a, b) = (output.to_f64(), other.outputs[name].to_f64());
        let differs = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-5 * a.abs().max(1.0);
        !a.iter().zip(&b).take(elements as usize).any(differs)
    })
}
