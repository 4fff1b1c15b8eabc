//! How state variables begin.

use crate::random::Stream;
use crate::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::train::StateInit;

/// The whole initial value of the state `name`; `None` if it comes from the model. The same under
/// every split.
pub fn initial_value(init: &StateInit, name: &str, dtype: DType, shape: &[u64], seed: u64) -> Option<Tensor> {
    let filled = |value: f64| Tensor::from_f64(shape, &vec![value; shape.iter().product::<u64>() as usize]).cast(dtype);
    match init {
        StateInit::Model => None,
        StateInit::Zeros => Some(Tensor::zeros(dtype, shape)),
        StateInit::Ones => Some(filled(1.0)),
        StateInit::Value(value) => Some(filled(*value)),
        StateInit::Normal { std } => {
            let stream = Stream::new(seed, name);
            let values: Vec<f64> = (0..shape.iter().product()).map(|i| stream.normal(i) * std).collect();
            Some(Tensor::from_f64(shape, &values).cast(dtype))
        }
    }
}
