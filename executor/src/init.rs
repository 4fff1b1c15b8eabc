//! How state variables begin.

use crate::cpu::threads::by_all_cores;
use crate::random::Stream;
use crate::run::ExecutionError;
use crate::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::plan::{Block, Program, StateVariable};
use shardc_ir::train::StateInit;

/// The whole initial value of the state `name`; `None` if it comes from the model. The same under
/// every split.
pub fn initial_value(init: &StateInit, name: &str, dtype: DType, shape: &[u64], seed: u64) -> Option<Tensor> {
    match init {
        StateInit::Model => None,
        StateInit::Zeros => Some(Tensor::zeros(dtype, shape)),
        StateInit::Ones => Some(made(dtype, shape, |_| 1.0)),
        StateInit::Value(value) => Some(made(dtype, shape, |_| *value)),
        StateInit::Normal { std } => {
            let stream = Stream::new(seed, name);
            Some(made(dtype, shape, |i| stream.normal(i) * std))
        }
    }
}

/// An array of numbers by position, made in pieces by all cores, so that few numbers are held in
/// f64 at a time.
fn made(dtype: DType, shape: &[u64], number: impl Fn(u64) -> f64 + Sync) -> Tensor {
    const AT_A_TIME: usize = 1 << 16;
    let mut whole = Tensor::zeros(dtype, shape);
    let size = dtype.bytes() as usize;
    let make = |(piece, bytes): (usize, &mut [u8])| {
        let start = (piece * AT_A_TIME) as u64;
        let end = start + (bytes.len() / size) as u64;
        let numbers: Vec<f64> = (start..end).map(&number).collect();
        bytes.copy_from_slice(&Tensor::from_f64(&[end - start], &numbers).cast(dtype).bytes);
    };
    by_all_cores(whole.bytes.chunks_mut(AT_A_TIME * size).enumerate().collect(), make);
    whole
}

/// The whole initial value of a state variable of `program`; `model` is asked where it comes from
/// the model.
///
/// # Errors
/// If the model has no value for it, or one of another shape than its blocks need.
pub fn initial_state(
    program: &Program,
    state: &StateVariable,
    model: impl FnOnce(&str) -> Option<Tensor>,
) -> Result<Tensor, ExecutionError> {
    let buffer = program.buffer(state.buffer).map_err(ExecutionError::before)?;
    let (name, block) = (state.initializer(), &state.block);
    let shape = block.as_ref().map_or(buffer.shape.clone(), |block| block.whole_shape(&buffer.shape));
    let value = initial_value(&state.init, name, buffer.dtype, &shape, program.seed);
    let value = value.or_else(|| model(name));
    let value = value.ok_or_else(|| ExecutionError::before(format!("the model has no weights for `{name}`")))?;
    match block {
        Some(_) if value.shape != shape => {
            let message = format!("`{name}` is {:?}, not {shape:?}", value.shape);
            Err(ExecutionError { of_data: true, ..ExecutionError::before(message) })
        }
        Some(block) => Ok(value.block(block.axis, block.start, buffer.shape[block.axis])),
        None => Ok(value),
    }
}

/// An initializer from its `parts`: the one state variable that is it, or all blocks of it, by
/// name. `value` gives a whole state variable. `None` without a part.
///
/// # Errors
/// Those of `value`.
pub fn put_together<'a, E>(
    parts: impl IntoIterator<Item = (&'a str, Option<&'a Block>)>,
    mut value: impl FnMut(&str) -> Result<Tensor, E>,
) -> Result<Option<Tensor>, E> {
    let mut whole: Option<Tensor> = None;
    for (name, block) in parts {
        let part = value(name)?;
        let Some(block) = block else { return Ok(Some(part)) };
        let whole = whole.get_or_insert_with(|| Tensor::zeros(part.dtype, &block.whole_shape(&part.shape)));
        whole.set_block(block.axis, block.start, &part);
    }
    Ok(whole)
}
