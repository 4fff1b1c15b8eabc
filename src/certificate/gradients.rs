//! Each gradient against the loss itself: what the loss gains when a parameter moves a little along
//! a random direction is what the gradient says of that direction.
//!
//! Dropout draws the same mask every time. Rows of a table that the model's module does not train
//! (`padding_idx`) do not move.

use super::sample::Sample;
use super::whole::{Run, Whole};
use super::{Found, MOST_WORK, Subject};
use shardc_executor::random::Stream;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::listing::units::count_text;
use shardc_ir::ops::Op;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;

const SEED: u64 = 31;

/// The largest part of its size by which a gradient may miss the difference.
const TOLERANCE: f64 = 1e-4;

/// What does not show beside the gradients of all parameters together, in part of their size.
const NOTHING: f64 = 1e-7;

/// How far a parameter moves, in parts of its elements' size: the first that shows the gradient
/// will do, as a long step may cross an edge and a short one drown in rounding.
const STEPS: [f64; 4] = [1e-6, 1e-5, 1e-4, 1e-7];

/// Checks the gradient of each parameter of the step of training `graph`.
pub fn check(graph: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<Found, Reason> {
    let whole = Whole::new(graph);
    let Some(loss) = graph.outputs.iter().find(|output| output.name == "loss") else { return Err("there is no loss".into()) };
    let parameters: Vec<(usize, ValueId)> =
        graph.states.iter().enumerate().filter_map(|(i, state)| Some((i, state.gradient?))).collect();
    let mut run = whole.program(&[loss.value], &[], subject.spec)?;
    let work = run.work.saturating_mul(parameters.len() as u64 + 3);
    if work > MOST_WORK {
        let (work, most) = (count_text(work), count_text(MOST_WORK));
        return Ok(Found::Unseen(reason!("the model is too large to be run for each parameter: {work} numbers, at most {most}")));
    }
    let wanted: Vec<ValueId> = parameters.iter().map(|(_, gradient)| *gradient).collect();
    let mut all = whole.program(&wanted, &[], subject.spec)?;
    for (name, value) in &sample.states {
        all.set(name, value)?;
        run.set(name, value)?;
    }
    let gradients: Vec<Vec<f64>> = all.run(0, &sample.data)?.iter().map(Tensor::to_f64).collect();
    let begun = value_of(&mut run, sample)?;
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let total = norm(&gradients.concat());
    if !begun.is_finite() || !total.is_finite() {
        return Ok(Found::Unseen("the loss of random data is not finite".into()));
    }
    let still = untrained_rows(&whole);
    let mut difference = Difference { run, sample, begun };
    for ((at, _), gradient) in parameters.iter().zip(&gradients) {
        let state = &graph.states[*at];
        let at = sample.states.get(&state.name).ok_or_else(|| reason!("`{}` is no parameter of the model", state.name))?;
        if gradient.len() as u64 != at.elements() {
            return Err(reason!("the gradient of `{}` has other elements than it", state.name));
        }
        let direction = direction(&state.name, at, still.get(&state.name).map_or(&[], Vec::as_slice));
        let expected: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let allowed = TOLERANCE * norm(gradient) + NOTHING * total;
        let mut nearest = f64::INFINITY;
        for step in STEPS {
            let found = difference.along(&state.name, at, &direction, step, step == STEPS[0])?;
            if (found - expected).abs() < (nearest - expected).abs() {
                nearest = found;
            }
            if (nearest - expected).abs() <= allowed {
                break;
            }
        }
        // Not a number is wrong too.
        if (nearest - expected).abs() > allowed || !nearest.is_finite() {
            let name = &state.name;
            return Err(reason!(
                "the gradient of `{name}` says {expected:.6e} along a random direction, where the loss gains {nearest:.6e}"
            ));
        }
    }
    let parameters = counted(parameters.len(), "parameter");
    Ok(Found::Holds(format!("{parameters}, each by a difference of the loss along a random direction, in f64")))
}

fn value_of(run: &mut Run, sample: &Sample) -> Result<f64, Reason> {
    run.run(0, &sample.data)?[0].first().ok_or_else(|| "the loss has no element".into())
}

/// Differences of the loss beside what it is at the sample.
struct Difference<'s> {
    run: Run,
    sample: &'s Sample,
    begun: f64,
}

impl Difference<'_> {
    /// What the loss gains for each unit of `direction`, over a step of `step`; from where it
    /// begins if `one_sided`, which is half the work, else around it.
    fn along(&mut self, state: &str, at: &Tensor, direction: &[f64], step: f64, one_sided: bool) -> Result<f64, Reason> {
        let elements = at.to_f64();
        let size = (elements.iter().map(|w| w * w).sum::<f64>() / elements.len().max(1) as f64).sqrt().max(1e-2);
        let mut moved = |by: f64| {
            let values: Vec<f64> = elements.iter().zip(direction).map(|(w, d)| w + by * d).collect();
            self.run.set(state, &Tensor::from_f64(&at.shape, &values))?;
            value_of(&mut self.run, self.sample)
        };
        let by = step * size;
        let found = if one_sided { (moved(by)? - self.begun) / by } else { (moved(by)? - moved(-by)?) / (2.0 * by) };
        self.run.set(state, at)?;
        Ok(found)
    }
}

/// Ones of either sign, and 0 in the rows that are not trained.
fn direction(name: &str, at: &Tensor, still: &[u64]) -> Vec<f64> {
    let stream = Stream::new(SEED, name);
    let row = at.shape.iter().skip(1).product::<u64>().max(1);
    let element = |i: u64| match still.contains(&(i / row)) {
        true => 0.0,
        false => 1.0 - 2.0 * (stream.bits(i) & 1) as f64,
    };
    (0..at.elements()).map(element).collect()
}

/// The rows of tables that are read without a gradient, by state variable.
fn untrained_rows(whole: &Whole<'_>) -> BTreeMap<String, Vec<u64>> {
    let mut rows: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (_, node) in whole.graph.nodes() {
        let Op::Gather(gather) = &node.op else { continue };
        let (Some(row), Op::State(read)) = (gather.untrained, &whole.def(node.operands[0]).op) else { continue };
        rows.entry(whole.graph.states[read.state.index()].name.clone()).or_default().push(row);
    }
    rows
}
