//! What the loss gains when parameters move a little along random directions, against what their
//! gradients say.
//!
//! Parameters move in groups, and each so little that all of a group may miss the gain by as much:
//! the error of one shows as if it moved alone. A group that does not gain what is said is halved,
//! down to the parameter that is to blame, or as far as runs are left.

use super::sample::Sample;
use super::segments::Segment;
use super::whole::Run;
use super::{Found, Stop};
use shardc_executor::random::Stream;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::counted;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

const SEED: u64 = 31;

/// The largest part of its size by which a gradient may miss the difference.
const TOLERANCE: f64 = 1e-4;

/// What does not show beside the gradients of all parameters together, in part of their size.
const NOTHING: f64 = 1e-7;

/// How far a parameter moves, in parts of its elements' size: the first that shows the gradient
/// will do, as a long step may cross an edge and a short one drown in rounding.
const STEPS: [f64; 4] = [1e-6, 1e-5, 1e-4, 1e-7];

/// The runs that all of them take: the first begins where the sample is.
pub const RUNS_OF_STEPS: u64 = 2 * STEPS.len() as u64 - 1;

/// So many of them are tried for a group, before its halves are.
const STEPS_OF_A_GROUP: usize = 2;

/// Roundings of a loss that is a sum of many terms.
const ROUNDINGS: f64 = 16.0;

/// Into so many groups the parameters of a segment come.
pub const GROUPS: usize = 4;

/// The size of all elements together.
pub fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// A parameter that moves along a random direction.
pub struct Moved<'s> {
    pub state: usize,
    name: &'s str,
    at: &'s Tensor,
    elements: Vec<f64>,
    direction: Vec<f64>,
    /// The size of an element.
    size: f64,
    /// How much the gain may miss when each element moves by its size.
    allowed: f64,
    /// What the gradient says that the loss gains for each unit of the direction.
    expected: f64,
}

impl<'s> Moved<'s> {
    pub fn new(
        state: usize,
        name: &'s str,
        at: &'s Tensor,
        gradient: &[f64],
        total: f64,
        still: &[u64],
    ) -> Result<Moved<'s>, Reason> {
        if gradient.len() as u64 != at.elements() {
            return Err(reason!("the gradient of `{name}` has other elements than it"));
        }
        let elements = at.to_f64();
        let size = (norm(&elements) / (elements.len().max(1) as f64).sqrt()).max(1e-2);
        let direction = direction(name, &at.shape, still);
        let expected = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let allowed = size * (TOLERANCE * norm(gradient) + NOTHING * total);
        Ok(Moved { state, name, at, elements, direction, size, allowed, expected })
    }

    /// The parameter when each element has moved so far.
    fn after(&self, far: f64) -> Tensor {
        let values = self.elements.iter().zip(&self.direction).map(|(w, d)| w + far * d);
        Tensor::from_f64(&self.at.shape, &values.collect::<Vec<f64>>())
    }
}

/// The parameters of a segment in groups that are allowed about the same.
pub fn in_groups(mut moved: Vec<Moved<'_>>) -> Vec<Vec<Moved<'_>>> {
    moved.sort_by(|a, b| a.allowed.total_cmp(&b.allowed).then(a.state.cmp(&b.state)));
    let size = moved.len().div_ceil(GROUPS).max(1);
    let mut groups = vec![];
    while !moved.is_empty() {
        groups.push(moved.drain(..size.min(moved.len())).collect());
    }
    groups
}

/// Differences of the loss beside what it is at the sample.
pub struct Difference<'s> {
    segment: &'s Segment,
    run: Run,
    begun: f64,
    /// No more runs are made for the group.
    pub runs_left: u64,
}

/// What is found of a group.
enum Judged {
    Holds,
    Doubted,
    /// Two steps agree on what the loss gains, which is not what the gradients say: these words.
    Wrong(Reason),
}

impl<'s> Difference<'s> {
    pub fn new(segment: &'s Segment, sample: &Sample) -> Result<Difference<'s>, Stop> {
        let mut run = segment.start(sample)?;
        let begun = segment.loss(&mut run)?;
        Ok(Difference { segment, run, begun, runs_left: 0 })
    }

    /// Whether the loss gains what the gradients of a group say; doubts where no two steps agree on
    /// what it gains.
    ///
    /// # Errors
    /// If two steps agree on something else, which rounding of the loss does not explain; or if the
    /// group costs too much.
    pub fn check(&mut self, group: &[Moved<'_>], doubts: &mut Vec<(usize, Found)>) -> Result<(), (usize, Stop)> {
        let Some(Moved { state, name, .. }) = group.first() else { return Ok(()) };
        let judged = self.judge(group).map_err(|why| (*state, why))?;
        match judged {
            Judged::Holds => Ok(()),
            Judged::Doubted | Judged::Wrong(_) if group.len() > 1 => {
                let (one, other) = group.split_at(group.len() / 2);
                let halves = self.check(one, doubts).and_then(|()| self.check(other, doubts));
                match (halves, judged) {
                    (Err((_, Stop::Unseen(_))), Judged::Wrong(why)) => Err((*state, Stop::Wrong(why))),
                    (halves, _) => halves,
                }
            }
            Judged::Doubted => {
                let why = reason!(
                    "the gradient of `{name}` is held against nothing: the loss of random data changes so much, or so little, \
                     along it that no two differences agree"
                );
                doubts.push((*state, Found::Doubted(why)));
                Ok(())
            }
            Judged::Wrong(why) => Err((*state, Stop::Wrong(why))),
        }
    }

    fn judge(&mut self, group: &[Moved<'_>]) -> Result<Judged, Stop> {
        let allowed = group.iter().map(|moved| moved.allowed).fold(f64::INFINITY, f64::min);
        // What each element of a parameter moves by in a step of 1.
        let far = |moved: &Moved<'_>| if moved.allowed > allowed { moved.size * (allowed / moved.allowed) } else { moved.size };
        let far: Vec<f64> = group.iter().map(far).collect();
        let expected: f64 = group.iter().zip(&far).map(|(moved, far)| far * moved.expected).sum();
        let mut seen: Vec<f64> = vec![];
        let steps = if group.len() > 1 { STEPS_OF_A_GROUP } else { STEPS.len() };
        for step in &STEPS[..steps] {
            let Gain { found, noise } = self.along(group, &far, *step, *step == STEPS[0])?;
            if (found - expected).abs() <= allowed {
                return Ok(Judged::Holds);
            }
            let apart = TOLERANCE * found.abs() + allowed;
            if noise > apart {
                continue;
            }
            if seen.iter().any(|other| (found - other).abs() <= apart) {
                return Ok(Judged::Wrong(wrong(group, expected, found)));
            }
            seen.push(found);
        }
        Ok(Judged::Doubted)
    }

    /// What the loss gains for a step of 1, over one of `step`; from where it begins if
    /// `one_sided`, which is half the work, else around it.
    fn along(&mut self, group: &[Moved<'_>], far: &[f64], step: f64, one_sided: bool) -> Result<Gain, Stop> {
        let begun = self.begun;
        let mut at = |step: f64| {
            let Some(left) = self.runs_left.checked_sub(1) else {
                return Err(Stop::Unseen("the differences that it takes cost too much".into()));
            };
            self.runs_left = left;
            self.run.set(group.iter().zip(far).map(|(moved, far)| (moved.name, moved.after(step * far))))?;
            Ok(self.segment.loss(&mut self.run)?)
        };
        let found = if one_sided { (at(step)? - begun) / step } else { (at(step)? - at(-step)?) / (2.0 * step) };
        self.run.set(group.iter().map(|moved| (moved.name, moved.at)))?;
        Ok(Gain { found, noise: ROUNDINGS * f64::EPSILON * begun.abs() / step })
    }
}

/// That the gradients of a group say another gain than there is.
fn wrong(group: &[Moved<'_>], expected: f64, found: f64) -> Reason {
    let name = group.first().map_or("", |first| first.name);
    let who = match group.len() {
        0 | 1 => reason!("the gradient of `{name}` says"),
        n => reason!("the gradients of `{name}` and {} say", counted(n - 1, "other parameter")),
    };
    reason!("{who} {expected:.6e} along a random direction, where the loss gains {found:.6e}")
}

/// What the loss gains in a step of 1, and how much of that its own rounding may be.
struct Gain {
    found: f64,
    noise: f64,
}

/// Ones of either sign, and 0 in the rows that stand still.
fn direction(name: &str, shape: &[u64], still: &[u64]) -> Vec<f64> {
    let stream = Stream::new(SEED, name);
    let row = shape.iter().skip(1).product::<u64>().max(1);
    let element = |i: u64| match still.contains(&(i / row)) {
        true => 0.0,
        false => 1.0 - 2.0 * (stream.bits(i) & 1) as f64,
    };
    (0..shape.iter().product()).map(element).collect()
}
