//! Ranks must meet in their calls and messages: a lockstep run of their chains on the quotient of
//! the mesh, in the strictest reading, in which each waits until all that take part are there.
//!
//! Ranks at the same place on the axes on which programs differ run the same program. Calls over
//! other axes alone are among such ranks, and meet in the same row; what is left are calls over
//! those axes, messages, and one rank for each place.
//!
//! A rank's calls and exchanges form one chain. A call is over when all members of its group are at
//! it; each member must be there with the same call (kind, axes in order, type, count, combination)
//! for the same ops of the graph, of the same micro-batch. An exchange begins all of its messages,
//! and is over when the other end of each has begun: between two ranks the n-th message sent is the
//! n-th received, and both ends must say the same of it. Since a rank waits at one place of its
//! chain only, the order in which what is ready is taken does not matter: if one run ends, every
//! run does, also one that waits less.

use super::violation::Violation;
use crate::kernel::{Collective, Kernel};
use crate::mesh::{AxisId, Mesh};
use crate::plan::set::PlanSet;
use crate::plan::{Message, Program, Step, Turn};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A link of a rank's chain.
enum Link<'p> {
    Call(Call<'p>),
    /// Messages that begin together, each with its micro-batch.
    Exchange(usize, Vec<(&'p Message, u64)>),
}

/// A call of a rank's chain.
#[derive(Clone, Copy)]
struct Call<'p> {
    number: usize,
    step: &'p Step,
    call: &'p Collective,
    time: u64,
}

impl Call<'_> {
    fn is_same(&self, other: &Call<'_>) -> bool {
        (self.call, self.time, &self.step.provenance.ops) == (other.call, other.time, &other.step.provenance.ops)
    }

    fn text(&self) -> String {
        format!("step {} `{}` of micro-batch {}", self.number, self.step.text(), self.time)
    }
}

impl Link<'_> {
    fn text(&self) -> String {
        match self {
            Link::Call(call) => call.text(),
            Link::Exchange(row, messages) => {
                let messages: Vec<String> = messages.iter().take(3).map(|(m, time)| message_text(m, *time)).collect();
                format!("row {row} ({})", messages.join(", "))
            }
        }
    }

    fn number(&self) -> Option<usize> {
        match self {
            Link::Call(call) => Some(call.number),
            Link::Exchange(..) => None,
        }
    }

    fn spec_line(&self) -> Option<u32> {
        match self {
            Link::Call(call) => call.step.provenance.spec_line,
            Link::Exchange(_, messages) => messages.iter().find_map(|(message, _)| message.provenance.spec_line),
        }
    }
}

fn message_text(message: &Message, time: u64) -> String {
    let way = if message.sends { "sends" } else { "receives" };
    format!("{way} `{}` of micro-batch {time}", message.value)
}

/// Checks that the calls and messages of all ranks meet.
///
/// # Errors
/// Two ranks and the steps at which they do not.
pub fn check(set: &PlanSet<&Program>) -> Result<(), Violation> {
    let Some(mesh) = set.programs.first().map(|p| &p.mesh) else { return Ok(()) };
    let messages = || set.programs.iter().flat_map(|program| &program.messages);
    if let Some(message) = messages().find(|message| !set.axes.contains(&message.axis)) {
        let axis = mesh.name(message.axis);
        return Err(Violation::of(format!("message `{}` crosses `{axis}`, on which ranks run the same program", message.value)));
    }
    let chains: Vec<Vec<Link<'_>>> = set.programs.iter().map(|program| chain(program, &set.axes)).collect();
    let places = set.places(mesh);
    let ranks = places.iter().map(|place| mesh.rank(place)).collect();
    let numbers = places.iter().cloned().zip(0..).collect();
    let lines = (0..places.len()).map(|_| 0).collect();
    let at = vec![0; places.len()];
    let meeting =
        Meeting { set, mesh, chains, places, numbers, ranks, at, left: lines, waiting: HashMap::new(), lines: BTreeMap::new() };
    meeting.run()
}

/// One end of a message that has begun: its place, what it says, and the micro-batch.
type End<'p> = (usize, &'p Message, u64);

struct Meeting<'s, 'p> {
    set: &'s PlanSet<&'p Program>,
    mesh: &'p Mesh,
    chains: Vec<Vec<Link<'p>>>,
    places: Vec<Vec<u64>>,
    numbers: HashMap<Vec<u64>, usize>,
    /// The rank of each place.
    ranks: Vec<u64>,
    /// Where each place is in its chain.
    at: Vec<usize>,
    /// The messages of the exchange that a place is at whose other ends have not begun.
    left: Vec<usize>,
    /// For each group where somebody waits (its axes in order, its first place), who does.
    waiting: HashMap<(Vec<AxisId>, u64), Vec<usize>>,
    /// For each way from a place to another the ends that wait, all of one side.
    lines: BTreeMap<(usize, usize), VecDeque<End<'p>>>,
}

impl<'p> Meeting<'_, 'p> {
    fn run(mut self) -> Result<(), Violation> {
        let mut moving: Vec<usize> = (0..self.places.len()).collect();
        while let Some(place) = moving.pop() {
            let chain = &self.chains[self.set.of[place]];
            let gone = match chain.get(self.at[place]) {
                None => vec![],
                Some(Link::Call(call)) => {
                    let call = *call;
                    self.call(place, &call)?
                }
                Some(Link::Exchange(_, messages)) => {
                    let messages = messages.clone();
                    self.exchange(place, &messages)?
                }
            };
            for place in gone {
                self.at[place] += 1;
                moving.push(place);
            }
        }
        match (0..self.places.len()).find(|place| self.link(*place).is_some()) {
            Some(place) => Err(self.stuck(place)),
            None => Ok(()),
        }
    }

    fn link(&self, place: usize) -> Option<&Link<'p>> {
        self.chains[self.set.of[place]].get(self.at[place])
    }

    /// A place is at a call: the places that go on.
    fn call(&mut self, place: usize, own: &Call<'p>) -> Result<Vec<usize>, Violation> {
        let mut axes = own.call.axes.clone();
        axes.sort();
        let between = || axes.iter().filter(|axis| self.set.axes.contains(axis));
        let mut first = self.places[place].clone();
        between().for_each(|axis| first[axis.index()] = 0);
        let members: u64 = between().map(|axis| self.mesh.size(*axis)).product();
        let key = (axes, self.mesh.rank(&first));
        let first = self.waiting.get(&key).and_then(|there| there.first().copied());
        if let Some(other) = first
            && let Some(Link::Call(theirs)) = self.link(other)
            && !own.is_same(theirs)
        {
            return Err(disagreement((self.ranks[other], theirs), (self.ranks[place], own)));
        }
        let there = self.waiting.entry(key.clone()).or_default();
        there.push(place);
        if there.len() as u64 == members { Ok(self.waiting.remove(&key).unwrap_or_default()) } else { Ok(vec![]) }
    }

    /// A place begins messages: the places that go on.
    fn exchange(&mut self, place: usize, messages: &[(&'p Message, u64)]) -> Result<Vec<usize>, Violation> {
        self.left[place] = messages.len();
        let mut gone = if messages.is_empty() { vec![place] } else { vec![] };
        for (message, time) in messages {
            let mut coordinates = self.places[place].clone();
            coordinates[message.axis.index()] = message.peer;
            let other = self.numbers.get(&coordinates).copied().filter(|other| *other != place);
            let Some(other) = other else {
                let words = format!("rank {} {} to itself", self.ranks[place], message_text(message, *time));
                return Err(Violation { spec_line: message.provenance.spec_line, ..Violation::of(words) });
            };
            let way = if message.sends { (place, other) } else { (other, place) };
            let line = self.lines.entry(way).or_default();
            match line.front() {
                Some((_, theirs, _)) if theirs.sends != message.sends => {
                    let Some((there, theirs, of)) = line.pop_front() else { continue };
                    if !is_same((message, *time), (theirs, of), [place, there].map(|p| self.set.programs[self.set.of[p]])) {
                        let (own, its) = (message_text(message, *time), message_text(theirs, of));
                        let (a, b) = (self.ranks[place], self.ranks[there]);
                        let words = format!("rank {a} {own} where rank {b} {its}");
                        let spec_line = message.provenance.spec_line.or(theirs.provenance.spec_line);
                        return Err(Violation { spec_line, ..Violation::of(words) }.between(Some((a, b))));
                    }
                    for place in [place, there] {
                        self.left[place] -= 1;
                        if self.left[place] == 0 {
                            gone.push(place);
                        }
                    }
                }
                _ => line.push_back((place, message, *time)),
            }
        }
        Ok(gone)
    }

    /// Why a place that still has links does not go on, and another that it waits for.
    fn stuck(&self, place: usize) -> Violation {
        let Some(own) = self.link(place) else { return Violation::of("nobody waits") };
        let other = match own {
            Link::Call(call) => {
                let group = self.mesh.group(self.ranks[place], &call.call.axes);
                let members = (0..self.places.len()).filter(|other| *other != place && group.contains(&self.ranks[*other]));
                let absent = |other: &usize| !matches!(self.link(*other), Some(Link::Call(theirs)) if call.is_same(theirs));
                members.clone().find(absent).or(members.clone().next())
            }
            Link::Exchange(..) => {
                let begun = self.lines.iter().filter(|(_, line)| line.iter().any(|(at, ..)| *at == place));
                begun.map(|((from, to), _)| if *from == place { *to } else { *from }).next()
            }
        };
        let other = other.unwrap_or(place);
        let where_other = match self.link(other) {
            Some(theirs) => format!("waits at {}", theirs.text()),
            None => "makes no more calls".to_string(),
        };
        let steps = [own.number(), self.link(other).and_then(Link::number)].into_iter().flatten().collect();
        let (rank, other) = (self.ranks[place], self.ranks[other]);
        let message = format!("rank {rank} waits for ever at {}: rank {other} {where_other}", own.text());
        Violation { message, steps, ranks: Some((rank, other)), spec_line: own.spec_line() }
    }
}

/// Whether two ends are of one message: the same op, micro-batch, type and bytes.
fn is_same(own: (&Message, u64), theirs: (&Message, u64), programs: [&Program; 2]) -> bool {
    let of = |(message, time): (&Message, u64), program: &Program| {
        let dtype = program.buffers[message.view.buffer.index()].dtype;
        (message.provenance.ops.clone(), time, dtype, message.view.bytes)
    };
    of(own, programs[0]) == of(theirs, programs[1])
}

fn disagreement((a, at_a): (u64, &Call<'_>), (b, at_b): (u64, &Call<'_>)) -> Violation {
    let what = if at_a.call == at_b.call { "for other values" } else { "as another call" };
    let message = format!("rank {a} meets rank {b} {what}: {} and {}", at_a.text(), at_b.text());
    let spec_line = at_a.step.provenance.spec_line.or(at_b.step.provenance.spec_line);
    Violation { message, steps: vec![at_a.number, at_b.number], ranks: Some((a, b)), spec_line }
}

/// All exchanges of a step of training and all calls over some of `axes`, in their order.
fn chain<'p>(program: &'p Program, axes: &[AxisId]) -> Vec<Link<'p>> {
    let firsts = program.first_steps();
    let link = |turn: Turn| match turn {
        Turn::Launch(launch) => {
            let step = program.step(launch);
            let Kernel::Collective(call) = &step.kernel else { return None };
            let call = Call { number: firsts[launch.task] + launch.step, step, call, time: launch.time };
            call.call.axes.iter().any(|axis| axes.contains(axis)).then_some(Link::Call(call))
        }
        Turn::Exchange(row) => Some(Link::Exchange(row, program.exchange(row).collect())),
    };
    program.turns().filter_map(link).collect()
}
