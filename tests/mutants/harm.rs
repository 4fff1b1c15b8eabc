//! Which mutants do harm: a result that is not the good plan's on some rank, or a step that cannot
//! end.

use super::ranks::{Arrays, Rank, Start, Turn, run, run_in_order, turns};
use shardc_ir::dtype::DType;
use shardc_ir::plan::{Buffer, BufferKind, Program, StateRole};
use shardc_testkit::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// How far a result may be off, relative to the largest element of its array.
const TOLERANCE: f64 = 1e-9;

/// The loss scales, and the good steps in a row, that a plan with a dynamic scale begins with: a
/// step that counts, one after which the scale grows, and one whose gradients are not finite.
const SCALES: [(f64, f64); 3] = [(1024.0, 0.0), (1024.0, 1.0), (1048576.0, 1.0)];

/// The arrays that a good plan begins with, and those that it computes.
pub struct Good {
    /// Random states and inputs.
    pub start: Start,
    results: Arrays,
    /// The names of what the host finds on each rank.
    names: Vec<BTreeSet<String>>,
}

impl Good {
    /// Runs a good plan from random states and inputs.
    pub fn of(program: &Program, random: &mut Random) -> Good {
        Good::of_ranks(&vec![program; program.mesh.world_size() as usize], random)
    }

    /// As [`Good::of`], rank `r` running `programs[r]`.
    pub fn of_ranks(programs: &[&Program], random: &mut Random) -> Good {
        Good::try_of_ranks(programs, random).unwrap_or_else(|why| panic!("a good plan is none: {why}"))
    }

    /// As [`Good::of_ranks`], from every start that tells the ways apart that a step can take.
    pub fn of_all_ways(programs: &[&Program], random: &mut Random) -> Vec<Good> {
        let ways = if programs.iter().any(|program| is_scaled(program)) { SCALES.len() } else { 1 };
        let of = |way| Good::of_way(programs, way, random).unwrap_or_else(|why| panic!("a good plan is none: {why}"));
        (0..ways).map(of).collect()
    }

    /// As [`Good::of_ranks`]; why the plan is not good, in words.
    pub fn try_of_ranks(programs: &[&Program], random: &mut Random) -> Result<Good, String> {
        Good::of_way(programs, 0, random)
    }

    fn of_way(programs: &[&Program], way: usize, random: &mut Random) -> Result<Good, String> {
        let mut start = Start { states: Arrays::new(), inputs: Arrays::new() };
        for program in programs {
            states(program, way, &mut start.states, random);
            inputs(program, &mut start.inputs, random);
        }
        let ranks = run(programs, &start)?;
        let mut results = Arrays::new();
        for rank in &ranks {
            for (name, buffer) in observed(rank.program) {
                let elements = buffer.shape.iter().product::<u64>() as usize;
                let whole = results.entry(name.clone()).or_insert_with(|| vec![f64::NAN; elements]);
                for (found, position) in rank.found(buffer, elements)? {
                    let Some(position) = position else {
                        if found != 0.0 {
                            return Err(format!("{name} is filled up with {found}"));
                        }
                        continue;
                    };
                    let known = &mut whole[position];
                    let agrees = known.is_nan() || is_close(*known, found, known.abs().max(1.0));
                    if !agrees {
                        return Err(format!("replicas of {name} differ: {known} {found}"));
                    }
                    *known = found;
                }
            }
        }
        let may_overflow = programs.iter().any(|program| is_scaled(program));
        if !may_overflow && let Some((name, values)) = results.iter().find(|(_, values)| values.iter().any(|v| !v.is_finite())) {
            return Err(format!("{name} is {values:?}"));
        }
        let names = programs.iter().map(|program| observed(program).into_keys().collect()).collect();
        Ok(Good { start, results, names })
    }

    /// The array that a good plan computes, by name.
    pub fn result(&self, name: &str) -> Option<&Vec<f64>> {
        self.results.get(name)
    }

    /// Why ranks that run `programs` do harm, if they do.
    pub fn harm(&self, programs: &[&Program]) -> Option<String> {
        self.harm_in_order(programs, turns)
    }

    /// As [`Good::harm`], each rank in the order that `order` gives for its program.
    pub fn harm_in_order(&self, programs: &[&Program], order: impl Fn(&Program) -> Vec<Turn>) -> Option<String> {
        self.judge(run_in_order(programs, &self.start, order), &self.names)
    }

    /// As [`Good::harm`], of ranks that may hold other arrays than with the good plan, if all are
    /// held somewhere.
    pub fn harm_anywhere(&self, programs: &[&Program]) -> Option<String> {
        let names: Vec<BTreeSet<String>> = programs.iter().map(|program| observed(program).into_keys().collect()).collect();
        let lost = self.results.keys().find(|name| !names.iter().any(|here| here.contains(*name)));
        let harm = lost.map(|name| format!("{name} is held nowhere"));
        harm.or_else(|| self.judge(run(programs, &self.start), &names))
    }

    fn judge(&self, ran: Result<Vec<Rank<'_>>, String>, names: &[BTreeSet<String>]) -> Option<String> {
        match ran {
            Err(why) => Some(why),
            Ok(ranks) => {
                let of = |(r, rank): (usize, &Rank<'_>)| self.difference(rank, &names[r]).map(|why| format!("rank {r}: {why}"));
                ranks.iter().enumerate().find_map(of)
            }
        }
    }

    fn difference(&self, rank: &Rank<'_>, names: &BTreeSet<String>) -> Option<String> {
        match rank.constants_are_left() {
            Ok(true) => {}
            Ok(false) => return Some("a constant is overwritten".to_string()),
            Err(why) => return Some(why),
        }
        let observed = observed(rank.program);
        if let Some(missing) = names.iter().find(|name| !observed.contains_key(*name)) {
            return Some(format!("{missing} is missing"));
        }
        for (name, buffer) in observed {
            let expected = self.results.get(&name).filter(|_| names.contains(&name));
            let Some(expected) = expected else { return Some(format!("{name} is new")) };
            let pairs = match rank.compare(buffer, expected) {
                Ok(pairs) => pairs,
                Err(why) => return Some(format!("{name}: {why}")),
            };
            let finite = expected.iter().filter(|v| v.is_finite());
            let size = finite.fold(1e-6, |size: f64, v| size.max(v.abs()));
            if let Some((found, wanted)) = pairs.iter().find(|(a, b)| !is_close(*a, *b, size)) {
                return Some(format!("{name} has {found}, not {wanted}"));
            }
        }
        None
    }
}

/// Whether two numbers differ by little of `size`, or neither is finite and they are the same.
fn is_close(a: f64, b: f64, size: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= TOLERANCE * size
}

/// Whether the loss scale follows the gradients, so that some may overflow.
fn is_scaled(program: &Program) -> bool {
    program.states.iter().any(|state| state.role == StateRole::Scaling)
}

/// The buffers that the host reads after a step, and the state of the next.
fn observed(program: &Program) -> BTreeMap<String, &Buffer> {
    let mut all = BTreeMap::new();
    let buffer = |id: shardc_ir::plan::BufferId| program.buffers.get(id.index());
    for state in &program.states {
        all.extend(buffer(state.buffer).map(|b| (format!("state {}", state.name), b)));
    }
    for output in &program.outputs {
        all.extend(buffer(output.buffer).map(|b| (format!("output {}", output.name), b)));
    }
    for gradient in &program.buffers {
        if let BufferKind::Gradient(of) = gradient.kind
            && let Some(state) = program.states.get(of as usize)
        {
            all.insert(format!("gradient {}", state.name), gradient);
        }
    }
    all
}

fn states(program: &Program, way: usize, known: &mut Arrays, random: &mut Random) {
    for state in &program.states {
        let elements = program.buffers[state.buffer.index()].shape.iter().product::<u64>();
        // Variances and second moments are positive.
        let low = if state.role == StateRole::Statistic || state.name.ends_with(".v") { 0.2 } else { -0.9 };
        if state.role == StateRole::Scaling {
            let (scale, streak) = SCALES[way];
            let values = BTreeMap::from([("loss_scale", scale), ("loss_scale.streak", streak)]);
            known.insert(state.name.clone(), vec![values.get(&state.name[..]).copied().unwrap_or(super::ranks::STEP as f64)]);
            continue;
        }
        let values = || (0..elements).map(|_| low + (1.0 - low) * random.unit()).collect();
        known.entry(state.name.clone()).or_insert_with(values);
    }
}

fn inputs(program: &Program, known: &mut Arrays, random: &mut Random) {
    for input in &program.inputs {
        let buffer = &program.buffers[input.buffer.index()];
        let elements = buffer.shape.iter().product::<u64>();
        let (low, high) = input.range.unwrap_or((0, 4));
        let mut value = || match buffer.dtype {
            DType::F64 | DType::F32 | DType::BF16 | DType::F16 => 2.0 * random.unit() - 1.0,
            DType::I64 => (low + random.below((high - low) as usize) as i64) as f64,
            DType::Bool => random.below(2) as f64,
        };
        known.entry(input.name.clone()).or_insert_with(|| (0..elements).map(|_| value()).collect());
    }
}
