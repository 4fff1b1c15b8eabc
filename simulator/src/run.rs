//! A step of training by the clock: every launch, call and message of every place on the mesh.
//!
//! Ranks that run the same program do the same at the same times, so one stands for all of them: a
//! place is a position on the axes on which programs differ. Each has a queue of kernels, one of
//! calls and one for each way of messages, which wait for one another as [`shardc_ir::waits`]
//! derives it; a call begins when all its members have come to it, a message when its two ends
//! have. Where a device does one thing after the other, its queues are one.

use crate::cluster::Device;
use crate::kernels::Load;
use shardc_ir::clock::{Row, Stuck, run};
use shardc_ir::kernel::{Collective, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Stream, Turn, Way};
use shardc_ir::waits;
use std::collections::BTreeMap;

/// Ticks of the clock in a second.
const TICKS: f64 = 1e12;

/// One thing that a place does: a launch, or the messages of an exchange that go one way. Where a
/// device does one thing after the other, all messages of an exchange are one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// The turn that it is of.
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
    /// Place, and act of its program: it has ended.
    Ended(usize, usize),
    /// The n-th call over these axes: this place has come to it.
    Called(Vec<AxisId>, usize, usize),
    /// The n-th message from one place to another: its sender has come to it.
    Sends(usize, usize, usize),
    /// The n-th message from one place to another: its receiver has come to it.
    Receives(usize, usize, usize),
}

/// What becomes one event of a place.
struct Act {
    turn: Turn,
    stream: Stream,
    /// By position in [`Program::messages`].
    messages: Vec<usize>,
    /// The earlier acts of other queues that it waits for.
    waits: Vec<usize>,
}

/// A row of the clock, and the act that it belongs to.
struct Timed {
    row: Row<Token>,
    act: usize,
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
    let acts: Vec<Vec<Act>> = set.programs.iter().map(|program| acts(program, device)).collect();
    let queues: Vec<Vec<Vec<Timed>>> =
        (0..simulation.places.len()).map(|at| simulation.queues(at, &costs[set.of[at]], &acts[set.of[at]])).collect();
    let lists = queues.iter().flatten();
    let rows: Vec<Vec<Row<Token>>> = lists.map(|list| list.iter().map(|timed| timed.row.clone()).collect()).collect();
    let times = run(&rows)?;
    let mut of_lists = times.into_iter();
    let mut lanes = vec![];
    for (at, queues) in queues.into_iter().enumerate() {
        let acts = &acts[set.of[at]];
        let mut spans = vec![(u64::MAX, 0, 0); acts.len()];
        for list in &queues {
            for (timed, (start, end)) in list.iter().zip(of_lists.next().unwrap_or_default()) {
                let span = &mut spans[timed.act];
                *span = (span.0.min(start), start, end);
            }
        }
        let seconds = |ticks: u64| ticks as f64 / TICKS;
        let event = |(act, (ready, start, end)): (&Act, (u64, u64, u64))| Event {
            turn: act.turn,
            stream: act.stream,
            ready: seconds(ready),
            start: seconds(start),
            end: seconds(end),
        };
        let events = acts.iter().zip(spans).map(event).collect();
        lanes.push(Lane { coordinates: simulation.places[at].clone(), program: set.of[at], events });
    }
    let seconds = lanes.iter().flat_map(|lane| &lane.events).map(|event| event.end).fold(0.0, f64::max) + device.step;
    Ok(Step { lanes, seconds })
}

/// What a rank does, in the order of its program.
fn acts(program: &Program, device: &Device) -> Vec<Act> {
    let act = |turn: Turn| match turn {
        Turn::Launch(launch) => vec![Act { turn, stream: program.step(launch).stream, messages: vec![], waits: vec![] }],
        Turn::Exchange(row) if device.overlap => {
            let of_way = |(way, messages): (Way, Vec<(usize, u64)>)| {
                let messages = messages.into_iter().map(|(message, _)| message).collect();
                Act { turn, stream: Stream::Messages(way), messages, waits: vec![] }
            };
            program.exchanged_by_way(row).into_iter().map(of_way).collect()
        }
        Turn::Exchange(row) => {
            let messages: Vec<usize> = program.exchanged(row).map(|(message, _)| message).collect();
            let first = messages.first().map(|first| program.messages[*first].way());
            first.map(|way| Act { turn, stream: Stream::Messages(way), messages, waits: vec![] }).into_iter().collect()
        }
    };
    let mut acts: Vec<Act> = program.turns().flat_map(act).collect();
    if !device.overlap {
        return acts;
    }
    let waits = waits::derive(program).0;
    let firsts = program.first_steps();
    let steps = firsts[program.tasks.len()];
    let mut latest: Vec<Option<usize>> = vec![None; waits.len()];
    for (at, act) in acts.iter_mut().enumerate() {
        let numbers: Vec<usize> = match act.turn {
            Turn::Launch(launch) => vec![firsts[launch.task] + launch.step],
            Turn::Exchange(_) => act.messages.iter().map(|message| steps + message).collect(),
        };
        act.waits = numbers.iter().flat_map(|number| &waits[*number]).filter_map(|on| latest[*on]).collect();
        act.waits.sort_unstable();
        act.waits.dedup();
        numbers.into_iter().for_each(|number| latest[number] = Some(at));
    }
    acts
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
    fn queues(&mut self, at: usize, costs: &[Vec<f64>], acts: &[Act]) -> Vec<Vec<Timed>> {
        let program = &self.set.programs[self.set.of[at]];
        let mut queues: BTreeMap<Option<Stream>, Vec<Timed>> = BTreeMap::new();
        for (number, act) in acts.iter().enumerate() {
            let needs: Vec<Token> = act.waits.iter().map(|on| Token::Ended(at, *on)).collect();
            let ended = Token::Ended(at, number);
            let rows = match act.turn {
                Turn::Launch(launch) => {
                    let cost = ticks(costs[launch.task][launch.step]);
                    match &program.step(launch).kernel {
                        Kernel::Collective(call) => self.call(at, call, cost, needs, ended),
                        _ => vec![Row { cost, needs, gives: vec![ended] }],
                    }
                }
                Turn::Exchange(_) => self.exchange(at, program, &act.messages, needs, ended),
            };
            let queue = queues.entry(self.device.overlap.then_some(act.stream)).or_default();
            queue.extend(rows.into_iter().map(|row| Timed { row, act: number }));
        }
        queues.into_values().collect()
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

    /// Messages that begin together; they end with the last of them.
    fn exchange(&mut self, at: usize, program: &Program, messages: &[usize], needs: Vec<Token>, ended: Token) -> Vec<Row<Token>> {
        let (mut gives, mut others) = (vec![], vec![]);
        let (mut sending, mut receiving) = (0, 0);
        let rank = self.set.mesh().rank(&self.places[at]);
        for message in messages.iter().map(|message| &program.messages[*message]) {
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
