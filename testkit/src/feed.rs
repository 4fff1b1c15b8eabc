//! What random programs are given: states and inputs that are the same in every run. Each `draw`
//! has numbers of its own.

use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, State};
use shardc_ir::plan::StateRole;
use shardc_ir::plan::set::PlanSet;
use std::collections::BTreeMap;

fn wave(n: u64, seed: f64, draw: u64) -> Vec<f64> {
    let seed = seed + draw as f64 * 0.611;
    (0..n).map(|i| ((i as f64 + 0.5) * seed * 12.9898).sin() * 0.8).collect()
}

/// The tensor of those numbers as `rounded` has them.
fn tensor(dtype: DType, rounded: DType, shape: &[u64], values: &[f64]) -> Tensor {
    Tensor::from_f64(shape, values).cast(rounded).cast(dtype)
}

/// For each state variable of a model a value, of numbers that `rounded` holds.
pub fn states(graph: &Graph, rounded: DType, draw: u64) -> BTreeMap<String, Tensor> {
    let make = |(i, s): (usize, &State)| {
        let mut values = wave(s.ty.elements(), 1.0 + i as f64 * 0.37, draw);
        if s.role == StateRole::Statistic {
            // A variance is positive.
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        (s.name.clone(), tensor(s.ty.dtype, rounded, &s.ty.shape, &values))
    };
    graph.states.iter().enumerate().map(make).collect()
}

/// For each input of the programs of a model an array, of numbers that `rounded` holds.
pub fn inputs(programs: &PlanSet, graph: &Graph, rounded: DType, draw: u64) -> BTreeMap<String, Tensor> {
    let y = graph.ty(graph.outputs[0].value).clone();
    let mut inputs = BTreeMap::new();
    for (program, input) in programs.inputs() {
        let buffer = &program.buffers[input.buffer.index()];
        let n: u64 = buffer.shape.iter().product();
        let value = match buffer.dtype {
            DType::I64 => {
                let high = input.range.map_or(y.shape[y.rank() - 1], |(_, high)| high as u64);
                Tensor::from_i64(&buffer.shape, &(0..n).map(|i| ((i * 7 + 3 + draw * 5) % high) as i64).collect::<Vec<_>>())
            }
            DType::Bool => Tensor::from_bool(&buffer.shape, &(0..n).map(|i| (i * 7 + 3 + draw) % 5 < 3).collect::<Vec<_>>()),
            dtype => tensor(dtype, rounded, &buffer.shape, &wave(n, 2.3, draw)),
        };
        inputs.insert(input.name.clone(), value);
    }
    inputs
}
