//! The random state and data on which a certificate is found: the model's weights moved a little,
//! so that nothing is 0 or 1 by chance of its beginning, and inputs of all values that they may
//! have. The same for the same job.

use super::formulas::Array;
use super::is_scaling;
use shardc_executor::random::Stream;
use shardc_executor::tensor::Tensor;
use shardc_frontend::onnx::Imported;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, State};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Input;
use shardc_ir::spec::Spec;
use shardc_ir::train::LOSS_SCALE;
use shardc_passes::planning::inputs::{Allowed, allowed};
use std::collections::BTreeMap;

const SEED: u64 = 13;

/// The share of integers that are the one exception to their range.
const EXCEPT: u64 = 8;

/// The greatest mean size of what a file holds, and the least of what is moved by a share of its
/// size: a matrix of zeros would stay one, and all behind it at the edge of a relu, so it is drawn.
const MOST_SIZE: f64 = 1e3;
const LEAST_SIZE: f64 = 1e-20;

/// State and data.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The elements of each initializer that is a state variable, or of which one is a block.
    pub initializers: BTreeMap<String, Tensor>,
    /// The state variables that are initializers, or blocks of them, by name.
    pub states: BTreeMap<String, Tensor>,
    /// Inputs and labels, by name.
    pub data: BTreeMap<String, Tensor>,
}

impl Sample {
    /// Of the state variables and inputs of `graphs`.
    pub fn new<'g>(graphs: impl IntoIterator<Item = &'g Graph>, imported: &Imported, spec: &Spec) -> Sample {
        let mut sample = Sample::default();
        for graph in graphs {
            let allowed = allowed(graph, spec);
            for (_, node) in graph.nodes() {
                let Op::Input(input) = &node.op else { continue };
                let range = allowed.get(&input.name).copied().unwrap_or_default();
                sample.data.entry(input.name.clone()).or_insert_with(|| data(input, range));
            }
            for state in graph.states.iter().filter(|state| state.role.is_of_model()) {
                sample.add(state, imported);
            }
            let scales = graph.states.iter().filter(|state| is_scaling(state, LOSS_SCALE));
            sample.states.extend(scales.map(|state| (state.name.clone(), Tensor::from_f64(&[], &[1.0]))));
        }
        sample
    }

    fn add(&mut self, state: &State, imported: &Imported) {
        let name = state.block.as_ref().map_or(&state.name, |block| &block.of);
        let shape = state.block.as_ref().map_or_else(|| state.ty.shape.clone(), |block| block.whole_shape(&state.ty.shape));
        let whole = self.initializers.entry(name.clone()).or_insert_with(|| {
            let known = imported.weights.get(name).and_then(|weight| weight.load().ok()).map(Tensor::from);
            initializer(name, &shape, known.filter(|known| known.shape == shape))
        });
        let own = match &state.block {
            Some(block) => whole.block(block.axis, block.start, state.ty.shape[block.axis]),
            None => whole.clone(),
        };
        self.states.insert(state.name.clone(), own);
    }

    /// An array of the data.
    pub fn array(&self, name: &str) -> Option<Array> {
        self.data.get(name).map(|tensor| Array { shape: tensor.shape.clone(), elements: tensor.to_f64() })
    }
}

/// A number between 0 and 1.
fn unit(stream: Stream, position: u64) -> f64 {
    (stream.bits(position) >> 11) as f64 / (1u64 << 53) as f64
}

/// What the file holds, moved, if that is of a size with which numbers can be computed; of vectors
/// no element below 0 where the file has none, as a variance has none. Every element is an f32, as
/// files store it.
fn initializer(name: &str, shape: &[u64], known: Option<Tensor>) -> Tensor {
    let stream = Stream::new(SEED, name);
    let n: u64 = shape.iter().product();
    let known = known.map(|known| known.to_f64());
    let size = |known: &[f64]| (known.iter().map(|w| w * w).sum::<f64>() / n.max(1) as f64).sqrt();
    let is_usual = |size: f64| size <= MOST_SIZE && (shape.len() < 2 || size >= LEAST_SIZE);
    let values: Vec<f64> = match known.filter(|known| is_usual(size(known))) {
        Some(known) => {
            let size = size(&known);
            let moved = |(i, w): (u64, &f64)| match shape.len() {
                0 | 1 => w * (0.9 + 0.2 * unit(stream, 2 * i)) + 0.1 * unit(stream, 2 * i + 1),
                _ => w + 0.2 * size * stream.normal(i),
            };
            (0..).zip(&known).map(moved).collect()
        }
        None => {
            let deviation = (n.max(1) as f64).powf(-1.0 / (2 * shape.len().max(1)) as f64);
            // A variance may have dimensions of size 1 too.
            let is_vector = shape.iter().filter(|size| **size > 1).count() < 2;
            let drawn = |i: u64| if is_vector { 0.25 + 0.5 * unit(stream, i) } else { deviation * stream.normal(i) };
            (0..n).map(drawn).collect()
        }
    };
    Tensor::from_f64(shape, &values).cast(DType::F32)
}

fn data(input: &Input, Allowed { range, except }: Allowed) -> Tensor {
    let stream = Stream::new(SEED, &input.name);
    let shape = &input.ty.shape;
    let n = shape.iter().product::<u64>();
    let positions = 0..n;
    let is_except = |i: u64| i == 0 && n > 1 || stream.below(2 * i + 1, EXCEPT) == 0;
    let whole = |i: u64| match (range, except) {
        (_, Some(except)) if is_except(i) => except,
        (Some((low, high)), _) => low + stream.below(2 * i, high.saturating_sub(low).max(1) as u64) as i64,
        // A mask of which something is left, or a kind of token.
        (None, _) => i64::from(stream.below(2 * i, EXCEPT) > 0),
    };
    match (input.ty.dtype, range) {
        (DType::I64, _) => Tensor::from_i64(shape, &positions.map(whole).collect::<Vec<_>>()),
        (DType::Bool, _) => Tensor::from_bool(shape, &positions.map(|i| stream.below(i, EXCEPT) > 0).collect::<Vec<_>>()),
        (_, Some((low, high))) => {
            let number = |i| low as f64 + (high - 1 - low).max(0) as f64 * unit(stream, i);
            Tensor::from_f64(shape, &positions.map(number).collect::<Vec<_>>()).cast(DType::F32)
        }
        (_, None) => Tensor::from_f64(shape, &positions.map(|i| stream.normal(i)).collect::<Vec<_>>()).cast(DType::F32),
    }
}
