//! Each gradient against the loss itself: what the loss gains when a parameter moves a little along
//! a random direction is what the gradient says of that direction.
//!
//! Dropout draws the same mask every time. Rows of a table that the model's module does not train
//! (`padding_idx`) do not move.

use super::differences::{Difference, GROUPS, Moved, RUNS_OF_STEPS, in_groups, norm};
use super::sample::Sample;
use super::segments::{PARTS, Segment};
use super::whole::Whole;
use super::{Found, Stop, Subject, constant_scale};
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::thread::{self, available_parallelism};

/// What a thread doubts or has not seen, and of which states, or what it finds wrong first.
type OfThread = Result<Vec<(usize, Found)>, (usize, Reason)>;

/// Checks the gradient of each parameter of the step of training `graph`.
pub fn check(graph: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<Found, Stop> {
    let whole = Whole::new(graph);
    let Some(loss) = graph.outputs.iter().find(|output| output.name == "loss") else { return Err("there is no loss".into()) };
    let parameters: Vec<(usize, ValueId)> =
        graph.states.iter().enumerate().filter_map(|(i, state)| Some((i, state.gradient?))).collect();
    let planned = whole.program(&[loss.value], &[], subject.spec)?;
    let groups = parameters.len().min(PARTS * GROUPS) as u64;
    // Five eighths of one for each group, as segments have it; all gradients cost about three.
    planned.affordable((groups * 5).div_ceil(8) + 3).map_err(Stop::Unseen)?;
    let wanted: Vec<ValueId> = parameters.iter().map(|(_, gradient)| *gradient).collect();
    let mut all = whole.program(&wanted, &[], subject.spec)?.start()?;
    all.set(&sample.states)?;
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
    let moved = |state: &usize| {
        let name = &graph.states[*state].name;
        let at = sample.states.get(name).ok_or_else(|| reason!("`{name}` is no parameter of the model"))?;
        Moved::new(*state, name, at, of_state[state], total, still.get(name).map(Vec::as_slice).unwrap_or_default())
    };
    let grouped = |segment: &Segment| {
        let moved: Vec<Moved<'_>> = segment.parameters.iter().map(moved).collect::<Result<_, Reason>>()?;
        Ok::<_, Stop>(in_groups(moved))
    };
    let grouped: Vec<Vec<Vec<Moved<'_>>>> = segments.iter().map(grouped).collect::<Result<_, _>>()?;
    let threads = available_parallelism().map_or(1, |n| n.get()).min(GROUPS);
    // Each thread takes its share of every segment, and stops at what it finds wrong.
    let of_thread = |thread: usize| -> OfThread {
        let mut told = vec![];
        let unless_wrong = |(state, stop): (usize, Stop), told: &mut Vec<(usize, Found)>| match stop {
            Stop::Wrong(why) => Err((state, why)),
            Stop::Unseen(why) => {
                told.push((state, Found::Unseen(why)));
                Ok(())
            }
        };
        for (segment, groups) in segments.iter().zip(&grouped) {
            let mut difference = match Difference::new(segment, sample) {
                Ok(difference) => difference,
                Err(stop) => {
                    unless_wrong((0, stop), &mut told)?;
                    continue;
                }
            };
            for group in groups.iter().skip(thread).step_by(threads) {
                difference.runs_left = (segment.affordable_runs() / groups.len() as u64).max(RUNS_OF_STEPS);
                if let Err(stop) = difference.check(group, &mut told) {
                    unless_wrong(stop, &mut told)?;
                }
            }
        }
        Ok(told)
    };
    let of_thread = &of_thread;
    let ended: Vec<OfThread> = thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|thread| thread::Builder::new().spawn_scoped(scope, move || of_thread(thread))).collect();
        let ended = running.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err((0, "a thread is gone".into()))),
            Err(error) => Ok(vec![(0, Found::Unseen(reason!("there are not enough threads: {error}")))]),
        });
        ended.collect()
    });
    let (mut told, mut wrong) = (vec![], vec![]);
    for of_thread in ended {
        match of_thread {
            Ok(own) => told.extend(own),
            Err(own) => wrong.push(own),
        }
    }
    if let Some((_, why)) = wrong.into_iter().min_by_key(|(state, _)| *state) {
        return Err(Stop::Wrong(why));
    }
    // A doubt says more than what was not seen.
    let first = told.into_iter().min_by_key(|(state, found)| (matches!(found, Found::Unseen(_)), *state));
    if let Some((_, found)) = first {
        return Ok(found);
    }
    let parameters = counted(parameters.len(), "parameter");
    Ok(Found::Holds(format!("{parameters}, by differences of the loss along random directions, in f64")))
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
