//! Each gradient against the loss itself: what the loss gains when a parameter moves a little along
//! a random direction is what the gradient says of that direction.
//!
//! Dropout draws the same mask every time. Rows of a table that the model's module does not train
//! (`padding_idx`) do not move.

use super::sample::Sample;
use super::segments::Segment;
use super::whole::{Run, Whole};
use super::{Found, Stop, Subject, constant_scale};
use shardc_executor::random::Stream;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::thread::{self, available_parallelism};

const SEED: u64 = 31;

/// The largest part of its size by which a gradient may miss the difference.
const TOLERANCE: f64 = 1e-4;

/// What does not show beside the gradients of all parameters together, in part of their size.
const NOTHING: f64 = 1e-7;

/// How far a parameter moves, in parts of its elements' size: the first that shows the gradient
/// will do, as a long step may cross an edge and a short one drown in rounding.
const STEPS: [f64; 4] = [1e-6, 1e-5, 1e-4, 1e-7];

/// Roundings of a loss that is a sum of many terms.
const ROUNDINGS: f64 = 16.0;

/// What a thread doubts, and of which states, or what it finds wrong first.
type OfThread = Result<Vec<(usize, Reason)>, (usize, Stop)>;

/// Checks the gradient of each parameter of the step of training `graph`.
pub fn check(graph: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<Found, Stop> {
    let whole = Whole::new(graph);
    let Some(loss) = graph.outputs.iter().find(|output| output.name == "loss") else { return Err("there is no loss".into()) };
    let parameters: Vec<(usize, ValueId)> =
        graph.states.iter().enumerate().filter_map(|(i, state)| Some((i, state.gradient?))).collect();
    let planned = whole.program(&[loss.value], &[], subject.spec)?;
    // Five eighths of one for each parameter, as segments have it; all gradients cost about three.
    let runs = (parameters.len() as u64 * 5).div_ceil(8) + 3;
    planned.affordable(runs).map_err(Stop::Unseen)?;
    let wanted: Vec<ValueId> = parameters.iter().map(|(_, gradient)| *gradient).collect();
    let mut all = whole.program(&wanted, &[], subject.spec)?.start()?;
    sample.states.iter().try_for_each(|(name, value)| all.set(name, value))?;
    let scale = constant_scale(subject.spec);
    let found = all.run(0, &sample.data)?;
    let gradients: Vec<Vec<f64>> = found.iter().map(|g| g.to_f64().into_iter().map(|g| g / scale).collect()).collect();
    let states: Vec<usize> = parameters.iter().map(|(state, _)| *state).collect();
    let segments = Segment::all(&whole, loss.value, &states, subject, sample)?;
    let begun = segments.first().map(|whole| whole.loss(&mut whole.start(sample)?).map_err(Stop::from)).transpose()?;
    let total = norm(&gradients.concat());
    if begun.is_some_and(|begun| !begun.is_finite()) {
        return Ok(Found::Unseen("the loss of random data is not finite".into()));
    }
    if !total.is_finite() {
        return Ok(Found::Doubted("the gradients of random data are not finite, although their loss is".into()));
    }
    let still = untrained_rows(&whole);
    let of_state: BTreeMap<usize, &Vec<f64>> = states.iter().copied().zip(&gradients).collect();
    let check = |difference: &mut Difference<'_>, state: usize| {
        let name = &graph.states[state].name;
        let at = sample.states.get(name).ok_or_else(|| reason!("`{name}` is no parameter of the model"))?;
        let along = Along { name, at, still: still.get(name).map_or(&[], Vec::as_slice) };
        difference.check(&along, of_state[&state], total)
    };
    let threads = available_parallelism().map_or(1, |n| n.get()).min(parameters.len().max(1));
    // Each thread takes its share of every segment, and stops at what it finds wrong.
    let of_thread = |thread: usize| -> OfThread {
        let mut doubts = vec![];
        for segment in &segments {
            let mut difference = Difference::new(segment, sample).map_err(|why| (0, why))?;
            for state in segment.parameters.iter().copied().skip(thread).step_by(threads) {
                let doubt = check(&mut difference, state).map_err(|why| (state, why.into()))?;
                doubts.extend(doubt.map(|why| (state, why)));
            }
        }
        Ok(doubts)
    };
    let of_thread = &of_thread;
    let ended: Vec<OfThread> = thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|thread| thread::Builder::new().spawn_scoped(scope, move || of_thread(thread))).collect();
        let ended = running.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err((0, "a thread is gone".into()))),
            Err(error) => Err((0, Stop::Unseen(reason!("there are not enough threads: {error}")))),
        });
        ended.collect()
    });
    let (mut doubts, mut wrong) = (vec![], vec![]);
    for of_thread in ended {
        match of_thread {
            Ok(own) => doubts.extend(own),
            Err(own) => wrong.push(own),
        }
    }
    if let Some((_, why)) = wrong.into_iter().min_by_key(|(state, _)| *state) {
        return Err(why);
    }
    if let Some((_, why)) = doubts.into_iter().min_by_key(|(state, _)| *state) {
        return Ok(Found::Doubted(why));
    }
    let parameters = counted(parameters.len(), "parameter");
    Ok(Found::Holds(format!("{parameters}, each by a difference of the loss along a random direction, in f64")))
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Differences of the loss beside what it is at the sample.
struct Difference<'s> {
    segment: &'s Segment,
    run: Run,
    begun: f64,
}

/// A parameter, where it is, and its rows that do not move.
struct Along<'s> {
    name: &'s str,
    at: &'s Tensor,
    still: &'s [u64],
}

impl<'s> Difference<'s> {
    fn new(segment: &'s Segment, sample: &Sample) -> Result<Difference<'s>, Stop> {
        let mut run = segment.start(sample)?;
        let begun = segment.loss(&mut run)?;
        Ok(Difference { segment, run, begun })
    }

    /// Whether the loss gains what `gradient` says, where the gradients of all are of the size
    /// `total`; a doubt where no two steps agree on what it gains.
    ///
    /// # Errors
    /// If two steps agree on something else, which rounding of the loss does not explain.
    fn check(&mut self, along: &Along<'_>, gradient: &[f64], total: f64) -> Result<Option<Reason>, Reason> {
        let name = along.name;
        if gradient.len() as u64 != along.at.elements() {
            return Err(reason!("the gradient of `{name}` has other elements than it"));
        }
        let direction = direction(along);
        let expected: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let allowed = TOLERANCE * norm(gradient) + NOTHING * total;
        let mut seen: Vec<f64> = vec![];
        for step in STEPS {
            let Gain { found, noise } = self.along(along, &direction, step, step == STEPS[0])?;
            if (found - expected).abs() <= allowed {
                return Ok(None);
            }
            let apart = TOLERANCE * found.abs() + allowed;
            if noise > apart {
                continue;
            }
            if seen.iter().any(|other| (found - other).abs() <= apart) {
                let says = reason!("the gradient of `{name}` says {expected:.6e} along a random direction");
                return Err(reason!("{says}, where the loss gains {found:.6e}"));
            }
            seen.push(found);
        }
        Ok(Some(reason!(
            "the gradient of `{name}` is held against nothing: the loss of random data changes so much, or so little, along it \
             that no two differences agree"
        )))
    }

    /// What the loss gains for each unit of `direction`, over a step of `step`; from where it
    /// begins if `one_sided`, which is half the work, else around it.
    fn along(&mut self, along: &Along<'_>, direction: &[f64], step: f64, one_sided: bool) -> Result<Gain, Reason> {
        let (state, at) = (along.name, along.at);
        let elements = at.to_f64();
        let size = (elements.iter().map(|w| w * w).sum::<f64>() / elements.len().max(1) as f64).sqrt().max(1e-2);
        let mut moved = |by: f64| {
            let values: Vec<f64> = elements.iter().zip(direction).map(|(w, d)| w + by * d).collect();
            self.run.set(state, &Tensor::from_f64(&at.shape, &values))?;
            self.segment.loss(&mut self.run)
        };
        let by = step * size;
        let found = if one_sided { (moved(by)? - self.begun) / by } else { (moved(by)? - moved(-by)?) / (2.0 * by) };
        self.run.set(state, at)?;
        Ok(Gain { found, noise: ROUNDINGS * f64::EPSILON * self.begun.abs() / by })
    }
}

/// What the loss gains for each unit of a direction, and how much of that its own rounding may be.
struct Gain {
    found: f64,
    noise: f64,
}

/// Ones of either sign, and 0 in the rows that are not trained.
fn direction(Along { name, at, still }: &Along<'_>) -> Vec<f64> {
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
