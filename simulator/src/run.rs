//! A step of training by the clock: every launch, call and message of every place on the mesh.
//!
//! Ranks that run the same program do the same at the same times, so one stands for all of them: a
//! place is a position on the axes on which programs differ. Each has a queue of kernels, one of
//! calls and one of messages, which wait for one another as [`shardc_ir::waits`] derives it; a call
//! begins when all its members have come to it, a message when its two ends have. Where a device
//! does one thing after the other, its queues are one.

use crate::cluster::Device;
use crate::kernels::Load;
use shardc_ir::clock::{Row, Stuck, run};
use shardc_ir::kernel::{Collective, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Stream, Turn};
use shardc_ir::waits;
use std::collections::BTreeMap;

/// Ticks of the clock in a second.
const TICKS: f64 = 1e12;

/// One thing that a place does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// What.
    pub turn: Turn,
    /// In which queue.
    pub stream: Stream,
    /// When it is at the head of its queue and all that it waits for on its own rank has ended; in
    /// seconds from the beginning of the step.
    pub ready: f64,
    /// When it begins: with calls and messages, when the other ranks have come to it.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// What the ranks of a place do in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Lane {
    /// The coordinates of its first rank.
    pub coordinates: Vec<u64>,
    /// Its program, by position in the set.
    pub program: usize,
    /// What it does, in the order of its program.
    pub events: Vec<Event>,
}

/// A step by the clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The places.
    pub lanes: Vec<Lane>,
    /// Seconds that it takes.
    pub seconds: f64,
}

/// What a row gives when it ends, and others need.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    /// Place, and turn of its program: it has ended.
    Ended(usize, usize),
    /// The n-th call over these axes: this place has come to it.
    Called(Vec<AxisId>, usize, usize),
    /// The n-th message from one place to another: its sender has come to it.
    Sends(usize, usize, usize),
    /// The n-th message from one place to another: its receiver has come to it.
    Receives(usize, usize, usize),
}

/// A row of the clock, and the turn that it belongs to.
struct Timed {
    row: Row<Token>,
    turn: usize,
}

/// What stands in the queues of a place.
struct Queues {
    lists: Vec<Vec<Timed>>,
    turns: Vec<(Turn, Stream)>,
}

struct Simulation<'s> {
    set: &'s PlanSet,
    device: &'s Device,
    places: Vec<Vec<u64>>,
    numbers: BTreeMap<Vec<u64>, usize>,
    /// For each way between two places how many messages were sent and received so far.
    messages: BTreeMap<(usize, usize), [usize; 2]>,
    /// For each group and place how many calls there were so far.
    calls: BTreeMap<(Vec<AxisId>, usize), usize>,
}

/// Runs a step of the programs.
///
/// # Errors
/// If they wait for one another for ever.
pub fn step(set: &PlanSet, device: &Device) -> Result<Step, Stuck> {
    let places = set.places(set.mesh());
    let numbers = places.iter().cloned().zip(0..).collect();
    let mut simulation = Simulation { set, device, places, numbers, messages: BTreeMap::new(), calls: BTreeMap::new() };
    let costs: Vec<Vec<Vec<f64>>> = set.programs.iter().map(|program| simulation.costs(program)).collect();
    let waiting: Vec<Vec<Vec<usize>>> = set.programs.iter().map(|program| waited_for(program, device)).collect();
    let queues: Vec<Queues> =
        (0..simulation.places.len()).map(|at| simulation.queues(at, &costs[set.of[at]], &waiting[set.of[at]])).collect();
    let lists = queues.iter().flat_map(|queues| &queues.lists);
    let rows: Vec<Vec<Row<Token>>> = lists.map(|list| list.iter().map(|timed| timed.row.clone()).collect()).collect();
    let times = run(&rows)?;
    let mut of_lists = times.into_iter();
    let mut lanes = vec![];
    for (at, queues) in queues.into_iter().enumerate() {
        let mut spans = vec![(u64::MAX, 0, 0); queues.turns.len()];
        for list in &queues.lists {
            for (timed, (start, end)) in list.iter().zip(of_lists.next().unwrap_or_default()) {
                let span = &mut spans[timed.turn];
                *span = (span.0.min(start), start, end);
            }
        }
        let seconds = |ticks: u64| ticks as f64 / TICKS;
        let event = |((turn, stream), (ready, start, end)): (&(Turn, Stream), (u64, u64, u64))| Event {
            turn: *turn,
            stream: *stream,
            ready: seconds(ready),
            start: seconds(start),
            end: seconds(end),
        };
        let events = queues.turns.iter().zip(spans).map(event).collect();
        lanes.push(Lane { coordinates: simulation.places[at].clone(), program: set.of[at], events });
    }
    let seconds = lanes.iter().flat_map(|lane| &lane.events).map(|event| event.end).fold(0.0, f64::max) + device.step;
    Ok(Step { lanes, seconds })
}

/// For each turn the earlier turns of other queues that it waits for.
fn waited_for(program: &Program, device: &Device) -> Vec<Vec<usize>> {
    if !device.overlap {
        return vec![vec![]; program.turns().count()];
    }
    let waits = waits::derive(program).0;
    let firsts = program.first_steps();
    let steps = firsts[program.tasks.len()];
    let mut latest: Vec<Option<usize>> = vec![None; waits.len()];
    let of = |(at, turn): (usize, Turn)| {
        let numbers: Vec<usize> = match turn {
            Turn::Launch(launch) => vec![firsts[launch.task] + launch.step],
            Turn::Exchange(row) => program.exchanged(row).map(|(message, _)| steps + message).collect(),
        };
        let mut on: Vec<usize> = numbers.iter().flat_map(|number| &waits[*number]).filter_map(|on| latest[*on]).collect();
        on.sort_unstable();
        on.dedup();
        numbers.into_iter().for_each(|number| latest[number] = Some(at));
        on
    };
    program.turns().enumerate().map(of).collect()
}

impl Simulation<'_> {
    /// Seconds that each step of each task takes.
    fn costs(&self, program: &Program) -> Vec<Vec<f64>> {
        let of = |kernel: &Kernel| match (kernel, Load::of(kernel, &program.mesh)) {
            (Kernel::Collective(call), _) => self.call_seconds(program, call),
            (_, Some(load)) => self.device.seconds(&load),
            (_, None) => 0.0,
        };
        program.tasks.iter().map(|task| task.steps.iter().map(|step| of(&step.kernel)).collect()).collect()
    }

    fn call_seconds(&self, program: &Program, call: &Collective) -> f64 {
        let members = call.axes.iter().map(|axis| program.mesh.size(*axis)).product();
        self.device.call_seconds(&program.mesh, &call.axes, call.kind, call.bytes_sent(members))
    }

    /// The queues of a place, whose steps take `costs`.
    fn queues(&mut self, at: usize, costs: &[Vec<f64>], waits: &[Vec<usize>]) -> Queues {
        let program = &self.set.programs[self.set.of[at]];
        let overlap = self.device.overlap;
        let count = if overlap { Stream::ALL.len() } else { 1 };
        let mut queues = Queues { lists: (0..count).map(|_| vec![]).collect(), turns: vec![] };
        for (turn, what) in program.turns().enumerate() {
            let needs: Vec<Token> = waits[turn].iter().map(|on| Token::Ended(at, *on)).collect();
            let ended = Token::Ended(at, turn);
            let (stream, rows) = match what {
                Turn::Launch(launch) => {
                    let step = program.step(launch);
                    let cost = ticks(costs[launch.task][launch.step]);
                    match &step.kernel {
                        Kernel::Collective(call) => (step.stream, self.call(at, call, cost, needs, ended)),
                        _ => (step.stream, vec![Row { cost, needs, gives: vec![ended] }]),
                    }
                }
                Turn::Exchange(row) => (Stream::Messages, self.exchange(at, program, row, needs, ended)),
            };
            queues.turns.push((what, stream));
            let queue = if overlap { stream.index() } else { 0 };
            queues.lists[queue].extend(rows.into_iter().map(|row| Timed { row, turn }));
        }
        queues
    }

    /// A call: the place comes to it, and it runs when all members have.
    fn call(&mut self, at: usize, call: &Collective, cost: u64, needs: Vec<Token>, ended: Token) -> Vec<Row<Token>> {
        let mut places = vec![self.places[at].clone()];
        for axis in call.axes.iter().filter(|axis| self.set.axes.contains(axis)) {
            let along = |place: &Vec<u64>, i: u64| {
                let mut place = place.clone();
                place[axis.index()] = i;
                place
            };
            places = places.iter().flat_map(|place| (0..self.set.mesh().size(*axis)).map(move |i| along(place, i))).collect();
        }
        if places.len() == 1 {
            return vec![Row { cost, needs, gives: vec![ended] }];
        }
        let number = self.calls.entry((call.axes.clone(), at)).or_default();
        let came = |place: usize| Token::Called(call.axes.clone(), place, *number);
        let comes = Row { cost: 0, needs, gives: vec![came(at)] };
        let all = places.iter().map(|place| came(self.numbers[place])).collect();
        let runs = Row { cost, needs: all, gives: vec![ended] };
        *number += 1;
        vec![comes, runs]
    }

    /// An exchange: all its messages begin together, and it ends with the last of them.
    fn exchange(&mut self, at: usize, program: &Program, row: usize, needs: Vec<Token>, ended: Token) -> Vec<Row<Token>> {
        let (mut gives, mut others) = (vec![], vec![]);
        let (mut sending, mut receiving) = (0, 0);
        let rank = self.set.mesh().rank(&self.places[at]);
        for (message, _) in program.exchange(row) {
            let mut place = self.places[at].clone();
            place[message.axis.index()] = message.peer;
            let Some(other) = self.numbers.get(&place).copied() else { continue };
            let peer = self.set.mesh().rank(&place);
            let cost = ticks(self.device.message_seconds(rank, peer, message.view.bytes));
            let (from, to) = if message.sends { (at, other) } else { (other, at) };
            let counts = self.messages.entry((from, to)).or_default();
            let number = &mut counts[usize::from(message.sends)];
            let (sends, receives) = (Token::Sends(from, to, *number), Token::Receives(from, to, *number));
            *number += 1;
            if message.sends {
                gives.push(sends);
                others.push(receives);
                sending = cost.max(sending);
            } else {
                gives.push(receives);
                others.push(sends);
                receiving = cost.max(receiving);
            }
        }
        if self.device.overlap {
            let comes = Row { cost: 0, needs, gives };
            return vec![comes, Row { cost: sending.max(receiving), needs: others, gives: vec![ended] }];
        }
        // What is sent is put where its receiver takes it, whenever that comes.
        others.retain(|token| matches!(token, Token::Sends(..)));
        vec![Row { cost: sending, needs, gives }, Row { cost: receiving, needs: others, gives: vec![ended] }]
    }
}

fn ticks(seconds: f64) -> u64 {
    (seconds * TICKS) as u64
}
