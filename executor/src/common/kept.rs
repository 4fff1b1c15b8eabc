//! Which state variables replicas may hold in common, and what becomes of the steps that change
//! them.
//!
//! A state variable is held in common if it never changes, or only by elementwise updates, if from
//! the first of these to the last nothing else reads it, and if no message carries it. Each replica
//! then updates its share of the elements, and all have the bits that each would have computed for
//! itself. Statistics of batch normalisations stay with each rank, as they change in the middle of
//! a step, and so do moments of LAMB, which norms read between updates. Replicas are ranks of one
//! program that differ on axes which split none of these variables: where a stage of ZeRO splits
//! moments over an axis, nothing is held in common over it.

use super::memory::{Place, share};
use crate::load::{ReadyStep, ready};
use crate::memory::layout;
use shardc_ir::kernel::{Kernel, Map, MemberKernel, Source};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Launch, Program, StateRole, Step, Turn, View};
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

/// What the ranks of a program hold in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Ranks that differ on these axes alone hold it together.
    pub axes: Vec<AxisId>,
    /// The state variables.
    pub places: Vec<Place>,
    /// The steps that change them, by task and position; each rank does its share.
    pub updates: BTreeSet<(usize, usize)>,
    /// The turns from the first update to the last.
    pub changing: Option<RangeInclusive<usize>>,
}

/// State variables that may be held in common, each with its bytes in the arena and its elements.
type States = BTreeMap<BufferId, (Range<u64>, u64)>;

impl Kept {
    /// What the ranks of `program` may hold in common; `None` if that is nothing.
    pub fn of(programs: &PlanSet, program: &Program) -> Option<Kept> {
        let mesh = &program.mesh;
        let axes = (0..mesh.rank_axes().len()).map(|axis| AxisId(axis as u8));
        let mut axes: Vec<_> = axes.filter(|axis| mesh.size(*axis) > 1 && !programs.axes.contains(axis)).collect();
        if axes.is_empty() {
            return None;
        }
        let mut states = states(program)?;
        let (updates, changing) = loop {
            let updates = updates(program, &states);
            let changing = span(program, &updates);
            let touched = touched(program, &states, &updates, changing.clone());
            if touched.is_empty() {
                break (updates, changing);
            }
            states.retain(|id, _| !touched.contains(id));
        };
        axes.retain(|axis| states.keys().all(|id| !program.buffers[id.index()].sharding.splits(*axis)));
        let place = |(id, (range, elements)): (&BufferId, &(Range<u64>, u64))| {
            let bytes = program.buffers[id.index()].dtype.bytes();
            Place { range: range.clone(), elements: *elements, bytes }
        };
        let places: Vec<_> = states.iter().map(place).collect();
        (!axes.is_empty() && !places.is_empty()).then_some(Kept { axes, places, updates, changing })
    }

    /// The updates of one rank.
    ///
    /// # Errors
    /// None that the whole steps do not have.
    pub fn shared_out(
        &self,
        program: &Program,
        part: usize,
        parts: usize,
    ) -> Result<BTreeMap<(usize, usize), ReadyStep>, Reason> {
        let cut = |(task, step): &(usize, usize)| {
            let whole = &program.tasks[*task].steps[*step];
            let own = Elementwise::of(&whole.kernel).and_then(|maps| maps.cut(whole, part, parts));
            let own = own.ok_or("an update that is not elementwise")?;
            Ok(((*task, *step), ready(program, &own)?))
        };
        self.updates.iter().map(cut).collect()
    }
}

/// All state variables of one slot but statistics, which change in the middle of a step; `None` if
/// some lie in the memory of others.
fn states(program: &Program) -> Option<States> {
    let mut found = States::new();
    for state in &program.states {
        let buffer = &program.buffers[state.buffer.index()];
        if buffer.slots == 1 && state.role != StateRole::Statistic {
            let elements = layout(&program.mesh, buffer).local_bytes() / buffer.dtype.bytes();
            found.insert(state.buffer, (buffer.offset..buffer.offset + buffer.slot_bytes, elements));
        }
    }
    let mut ranges: Vec<_> = found.values().map(|(range, _)| range).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.windows(2).all(|pair| pair[0].end <= pair[1].start).then_some(found)
}

/// The steps that change states element by element, and nothing else.
fn updates(program: &Program, states: &States) -> BTreeSet<(usize, usize)> {
    steps(program).filter(|(_, step)| is_update(step, states)).map(|(at, _)| at).collect()
}

fn is_update(step: &Step, states: &States) -> bool {
    if !step.writes.iter().all(|view| states.contains_key(&view.buffer)) {
        return false;
    }
    let Some(Elementwise { reads, writes, .. }) = Elementwise::of(&step.kernel) else { return false };
    let is_whole = |(view, list): (&View, &List)| {
        view.offset == 0 && states.get(&view.buffer).is_some_and(|(_, elements)| list.count == Some(*elements))
    };
    let may_read = |(view, list): (&View, &List)| !states.contains_key(&view.buffer) || is_whole((view, list));
    !writes.is_empty() && step.writes.iter().zip(&writes).all(is_whole) && step.reads.iter().zip(&reads).all(may_read)
}

/// The turns from the first of these steps to the last.
fn span(program: &Program, steps: &BTreeSet<(usize, usize)>) -> Option<RangeInclusive<usize>> {
    let is_one = |turn: Turn| matches!(turn, Turn::Launch(Launch { task, step, .. }) if steps.contains(&(task, step)));
    let mut turns = program.turns().enumerate().filter(|(_, turn)| is_one(*turn)).map(|(at, _)| at);
    let first = turns.next()?;
    Some(first..=turns.last().unwrap_or(first))
}

/// The states that something else writes, or reads while they change, or that a message carries.
fn touched(
    program: &Program,
    states: &States,
    updates: &BTreeSet<(usize, usize)>,
    changing: Option<RangeInclusive<usize>>,
) -> BTreeSet<BufferId> {
    let mut places: Vec<_> = states.iter().map(|(id, (range, _))| (range, *id)).collect();
    places.sort_by_key(|(range, _)| range.start);
    let mut found = BTreeSet::new();
    let mut touch = |view: &View| {
        let buffer = &program.buffers[view.buffer.index()];
        let end = buffer.offset + buffer.slot_bytes.saturating_mul(buffer.slots);
        let first = places.partition_point(|(range, _)| range.end <= buffer.offset);
        found.extend(places[first..].iter().take_while(|(range, _)| range.start < end).map(|(_, id)| *id));
    };
    program.messages.iter().for_each(|message| touch(&message.view));
    for (_, step) in steps(program).filter(|(at, _)| !updates.contains(at)) {
        step.writes.iter().for_each(&mut touch);
    }
    let (first, count) = changing.map_or((0, 0), |turns| (*turns.start(), turns.end() - turns.start() + 1));
    let launched = program.turns().skip(first).take(count).filter_map(|turn| match turn {
        Turn::Launch(Launch { task, step, .. }) => Some((task, step)),
        Turn::Exchange(_) => None,
    });
    for (task, step) in launched.filter(|at| !updates.contains(at)).collect::<BTreeSet<_>>() {
        program.tasks[task].steps[step].reads.iter().for_each(&mut touch);
    }
    found
}

/// All steps, each with its task and position.
fn steps(program: &Program) -> impl Iterator<Item = ((usize, usize), &Step)> {
    let tasks = program.tasks.iter().enumerate();
    tasks.flat_map(|(t, task)| task.steps.iter().enumerate().map(move |(s, step)| ((t, s), step)))
}

/// Maps from lists to lists of as many elements.
struct Elementwise {
    /// What is read, and written.
    reads: Vec<List>,
    writes: Vec<List>,
    kernel: Kernel,
}

/// An operand of a map of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List {
    /// Its elements; `None` for a number that is read for each of many.
    count: Option<u64>,
    /// Bytes of an element.
    bytes: u64,
}

impl Elementwise {
    /// What `kernel` is as maps of lists; `None` if it is none, or one reads what another writes.
    fn of(kernel: &Kernel) -> Option<Elementwise> {
        let mut kernel = kernel.clone();
        let (mut reads, mut writes) = (BTreeMap::new(), vec![]);
        for (map, sources) in maps(&mut kernel)? {
            *map = map.flat()?;
            let count = map.shape[0];
            for (input, source) in map.inputs.iter().zip(sources) {
                let read = List { count: (input.strides == [1]).then_some(count), bytes: input.dtype.bytes() };
                let known = reads.entry(source).or_insert(read);
                match (known.count, read.count) {
                    (Some(1) | None, Some(1) | None) => known.count = known.count.and(read.count),
                    _ if *known == read => {}
                    _ => return None,
                }
            }
            writes.extend(map.outputs.iter().map(|dtype| List { count: Some(count), bytes: dtype.bytes() }));
        }
        let reads = (0..reads.len() as u32).map(|at| reads.get(&at).copied()).collect::<Option<_>>()?;
        Some(Elementwise { reads, writes, kernel })
    }

    /// The same of part `part` of all lists.
    fn cut(mut self, step: &Step, part: usize, parts: usize) -> Option<Step> {
        for (map, _) in maps(&mut self.kernel)? {
            let own = share(map.shape[0], part, parts);
            map.shape = vec![own.end - own.start];
        }
        let cut = |(view, list): (&View, &List)| match list.count {
            Some(count) => {
                let own = share(count, part, parts);
                View { offset: view.offset + own.start * list.bytes, bytes: (own.end - own.start) * list.bytes, ..*view }
            }
            None => *view,
        };
        let reads = step.reads.iter().zip(&self.reads).map(cut).collect();
        let writes = step.writes.iter().zip(&self.writes).map(cut).collect();
        Some(Step { kernel: self.kernel, reads, writes, ..step.clone() })
    }
}

/// The maps of a kernel that is nothing else, each with what it reads.
fn maps(kernel: &mut Kernel) -> Option<Vec<(&mut Map, Vec<u32>)>> {
    let source = |source: &Source| if let Source::Read(at) = source { Some(*at) } else { None };
    match kernel {
        Kernel::Map(map) => {
            let reads = (0..map.inputs.len() as u32).collect();
            Some(vec![(map, reads)])
        }
        Kernel::Bundle(bundle) if bundle.rows == 1 => {
            let mut found = vec![];
            for member in &mut bundle.members {
                let MemberKernel::Map(map) = &mut member.kernel else { return None };
                found.push((map, member.reads.iter().map(source).collect::<Option<_>>()?));
            }
            Some(found)
        }
        _ => None,
    }
}
