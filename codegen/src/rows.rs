//! Members that read one another's results row by row: a warp or a block has a row, goes through it
//! once for each member, and keeps what a member makes of a whole row in a register.

use crate::Cuda;
use crate::body::{Body, accesses};
use crate::bundle::place;
use crate::function::Function;
use crate::generated::{Accesses, Generated, Memory, Parameter};
use crate::space;
use crate::text::{Text, conversion, element, register, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Bundle, Form, Member, MemberKernel, Reduce, Source};
use shardc_ir::reason::Reason;

/// The longest row of a warp.
const WARP_ROW: u64 = 1024;

/// Threads of a block, and of one whose row is longer than `LONG_ROW`.
const THREADS: u64 = 256;
const LONG_ROW: u64 = 4096;
const LONG: u64 = 512;

/// Rows that keep a GPU busy; fewer long ones are better cut.
const ROWS: u64 = 64;

/// The text of a bundle; `None` if a member reads all of another one's row, or there are few rows.
pub fn text(cuda: &Cuda, bundle: &Bundle, in_place: &[Option<usize>]) -> Result<Option<Generated>, Reason> {
    let Some(bodies) = bodies(cuda, bundle, in_place) else { return Ok(None) };
    let width = bundle.members.iter().filter_map(|member| member.kernel.width(bundle.rows)).max().unwrap_or(1);
    if bundle.rows < ROWS && width > LONG_ROW {
        return Ok(None);
    }
    let (team, threads) = if width <= WARP_ROW {
        (32, THREADS)
    } else if width <= LONG_ROW {
        (THREADS, THREADS)
    } else {
        (LONG, LONG)
    };
    let mut writer = Writer { bundle, in_place, bodies, team, function: Function::new("bundle") };
    writer.declare(cuda)?;
    writer.function.grid = [bundle.rows.div_ceil(threads / team), 1, 1];
    writer.function.shared = if team > 32 { 8 * (team / 32) as u32 } else { 0 };
    writer.function.begin(threads);
    writer.row(threads);
    for round in rounds(bundle, &writer.bodies) {
        writer.round(&round);
    }
    writer.function.text.line("}");
    Ok(Some(writer.function.finish()?))
}

/// The programs of all members, with as many lanes each; `None` if a member reads what another
/// thread of the row has written.
fn bodies<'a>(cuda: &Cuda, bundle: &'a Bundle, in_place: &[Option<usize>]) -> Option<Vec<Body<'a>>> {
    let mut bodies = vec![];
    for member in &bundle.members {
        let (map, dims) = (member.kernel.map(), member.kernel.row_dims(bundle.rows)?);
        let rank = map.shape.len();
        let groups: Vec<usize> = (0..rank).map(|d| usize::from(d >= dims)).collect();
        let name = |source: &Source| place(*source, in_place).map_or_else(|| name(*source), |write| format!("y{write}"));
        let mut body = Body::new(
            map,
            &(0..rank).collect::<Vec<_>>(),
            &groups,
            member.reads.iter().map(name).collect(),
            &[row_major(&map.shape)],
        );
        body.is_shared = false;
        for (at, source) in member.reads.iter().enumerate() {
            match *source {
                Source::Write(write) if is_of_rows(bundle, write as usize) => body.held[at] = Some(format!("m{write}")),
                // The thread has made these elements in the same round of the loop.
                Source::Write(write) if together(bundle, write as usize, &bodies) && body.strides(at) == body.other(0) => {
                    body.held[at] = Some(format!("v{write}"));
                }
                Source::Write(_) => return None,
                // What is written in place is touched by one thread alone.
                Source::Read(_) if place(*source, in_place).is_some() && body.strides(at) != body.other(0) => return None,
                Source::Read(_) => {}
            }
        }
        bodies.push(body);
    }
    let is_long = |body: &&Body<'_>| body.space.elements(1) > 1;
    let lanes = |body: &Body<'_>| if cuda.aligned { body.most_lanes(body.outputs()) } else { 1 };
    let least = bodies.iter().filter(is_long).map(lanes).min().unwrap_or(1);
    bodies.iter_mut().filter(|body| body.space.elements(1) > 1).for_each(|body| body.lanes = least);
    for at in 1..bodies.len() {
        bodies[at - 1].hands_on = is_handed_on(&bodies[at]);
    }
    Some(bodies)
}

/// Whether a map reads elements that one before it has just made.
fn is_handed_on(body: &Body<'_>) -> bool {
    body.held.iter().flatten().any(|held| held.starts_with('v'))
}

/// Whether the member behind `bodies` goes through its row in one loop with the one that makes a
/// result: both are maps of elements, and so are all between them.
fn together(bundle: &Bundle, write: usize, bodies: &[Body<'_>]) -> bool {
    let Some((writer, _)) = bundle.writer(write) else { return false };
    let is_of_elements =
        |at: usize| matches!(bundle.members[at].kernel, MemberKernel::Map(_)) && !is_of_rows(bundle, bundle.results()[at]);
    is_of_elements(writer) && is_of_elements(bodies.len()) && bodies[writer + 1..].iter().all(is_handed_on)
}

/// The members that go through the row together, round after round: reductions that need nothing of
/// one another, or a map with those that read the elements that it makes.
fn rounds(bundle: &Bundle, bodies: &[Body<'_>]) -> Vec<Vec<usize>> {
    let (mut is_done, mut rounds) = (vec![false; bodies.len()], vec![]);
    let reduces = |member: usize| matches!(bundle.members[member].kernel, MemberKernel::Reduce(_));
    while let Some(first) = is_done.iter().position(|is_done| !is_done) {
        let width = |member: usize| bodies[member].space.elements(1);
        let is_ready = |member: &usize| {
            let mut results = bundle.members[*member].reads.iter().filter_map(|source| place(*source, &[]));
            results.all(|write| bundle.writer(write).is_some_and(|(writer, _)| is_done[writer]))
        };
        let joins = |member: &usize| !is_done[*member] && reduces(*member) && width(*member) == width(first) && is_ready(member);
        let mut round = vec![first];
        if reduces(first) {
            round.extend((first + 1..bodies.len()).filter(joins));
        } else {
            round.extend((first + 1..bodies.len()).take_while(|member| is_handed_on(&bodies[*member])));
        }
        round.iter().for_each(|member| is_done[*member] = true);
        rounds.push(round);
    }
    rounds
}

fn name(source: Source) -> String {
    match source {
        Source::Read(at) => format!("a{at}"),
        Source::Write(at) => format!("y{at}"),
    }
}

/// Whether a result has one element a row.
fn is_of_rows(bundle: &Bundle, write: usize) -> bool {
    let writer = bundle.writer(write).map(|(member, _)| &bundle.members[member].kernel);
    writer.and_then(|kernel| kernel.result_width(bundle.rows)) == Some(1)
}

struct Writer<'a> {
    bundle: &'a Bundle,
    in_place: &'a [Option<usize>],
    bodies: Vec<Body<'a>>,
    /// Threads of a row.
    team: u64,
    function: Function,
}

impl Writer<'_> {
    /// The operands, each once.
    fn declare(&mut self, cuda: &Cuda) -> Result<(), Reason> {
        let signature = self.bundle.signature(&cuda.mesh)?;
        for (at, operand) in signature.reads.iter().enumerate() {
            if self.in_place.get(at).copied().flatten().is_some() {
                continue;
            }
            let memory = Memory::Read(at);
            let bytes = operand.elements * operand.dtype.bytes();
            let parameter = Parameter { name: format!("a{at}"), memory, bytes, is_read: true, is_written: false, whole: false };
            let touched = self.touched(|source| source == Source::Read(at as u32));
            self.function.takes(parameter, operand.dtype, touched);
        }
        for (at, operand) in signature.writes.iter().enumerate() {
            let parameter = Parameter {
                name: format!("y{at}"),
                memory: Memory::Write(at),
                bytes: operand.elements * operand.dtype.bytes(),
                is_read: self.in_place.contains(&Some(at)),
                is_written: true,
                whole: true,
            };
            let written = self.bundle.writer(at).map(|(member, _)| {
                let body = &self.bodies[member];
                match self.bundle.members[member].kernel {
                    MemberKernel::Map(_) => accesses(&body.space, body.other(0), body.lanes),
                    MemberKernel::Reduce(_) => Accesses::over(&[(self.bundle.rows, 1)]),
                }
            });
            let written = written.into_iter().map(|touched| Accesses { is_write: true, ..touched });
            let read = self.touched(|source| matches!(source, Source::Read(_)) && place(source, self.in_place) == Some(at));
            self.function.takes(parameter, operand.dtype, written.chain(read).collect());
        }
        let mut numbers = vec![];
        for body in &mut self.bodies {
            body.number_from(numbers.len());
            numbers.extend(body.numbers.iter().cloned());
        }
        self.function.numbers = numbers;
        Ok(())
    }

    /// What members read of an operand.
    fn touched(&self, is_it: impl Fn(Source) -> bool) -> Vec<Accesses> {
        let of = |(member, body): (&Member, &Body<'_>)| {
            let own = member.reads.iter().enumerate().filter(|(_, source)| is_it(**source));
            own.map(|(at, _)| body.accesses(at)).collect::<Vec<_>>()
        };
        self.bundle.members.iter().zip(&self.bodies).flat_map(of).collect()
    }

    /// The row of the team. A warp without one ends.
    fn row(&mut self, threads: u64) {
        let kind = self.bodies.iter().map(Body::index_type).find(|kind| *kind == "u64").unwrap_or("u32");
        let text = &mut self.function.text;
        if self.team == 32 {
            text.lines([
                format!("{kind} row = ({kind})blockIdx.x * {} + threadIdx.x / 32;", threads / 32),
                format!("if (row >= {}) return;", self.bundle.rows),
                "u32 lane = threadIdx.x % 32;".to_owned(),
            ]);
        } else {
            text.lines(["SHARED(shared);".to_owned(), format!("{kind} row = blockIdx.x;"), "u32 lane = threadIdx.x;".to_owned()]);
        }
    }

    /// Writes members that go through the row together.
    fn round(&mut self, members: &[usize]) {
        let results = self.bundle.results();
        let first = members[0];
        let of_rows = is_of_rows(self.bundle, results[first]);
        for member in members.iter().filter(|_| of_rows) {
            let outputs = self.bodies[*member].outputs().iter().enumerate();
            let declared = outputs.map(|(result, dtype)| format!("{} m{};", element(*dtype), results[*member] + result));
            self.function.text.lines(declared);
        }
        self.function.text.line("{");
        self.indices(first);
        match self.bundle.members[first].kernel {
            MemberKernel::Reduce(_) => self.reduce(members),
            MemberKernel::Map(_) if of_rows => {
                let (body, result) = (&self.bodies[first], results[first]);
                body.write(&mut self.function.text, |text, values| {
                    for (at, value) in values.iter().enumerate() {
                        text.line(format!("m{} = {};", result + at, body.stored(at, value)));
                    }
                });
                self.store(result, body.outputs().len());
            }
            MemberKernel::Map(_) => {
                self.pass(members, |body, result, text| body.write_elements(text, result, &space::offset(body.other(0))));
            }
        }
        self.function.text.line("}");
    }

    /// The indices of the row in a member's space.
    fn indices(&mut self, member: usize) {
        let body = &self.bodies[member];
        let (sizes, rows) = (&body.space.sizes, body.space.of_group(0));
        self.function.text.lines(space::indices(sizes, &rows, "row", body.index_type()));
    }

    /// Lines that write what the row has become to the results from `first` on.
    fn store(&mut self, first: usize, count: usize) {
        self.function.text.lines((first..first + count).map(|at| format!("if (lane == 0) y{at}[row] = m{at};")));
    }

    /// A loop over the row, in which `write` writes each of the members, given its first result.
    fn pass(&mut self, members: &[usize], write: impl Fn(&Body<'_>, usize, &mut Text)) {
        let results = self.bundle.results();
        for (place, member) in members.iter().copied().enumerate() {
            if place > 0 {
                self.function.text.line("{");
                self.indices(member);
            }
            let body = &self.bodies[member];
            let (kind, inner) = (body.index_type(), body.space.of_group(1));
            let text = &mut self.function.text;
            if place == 0 {
                if body.lanes == 1 {
                    text.line("#pragma unroll 4");
                }
                let count = body.space.elements(1) / body.lanes;
                text.line(format!("for ({kind} r = lane; r < {count}; r += {}) {{", self.team));
            }
            text.lines(space::lane_indices(&body.space.sizes, &inner, "r", kind, body.lanes));
            write(body, results[member], text);
        }
        self.function.text.lines(vec!["}"; members.len()]);
    }

    fn reduce(&mut self, members: &[usize]) {
        let results = self.bundle.results();
        let reduces = |member: usize| match &self.bundle.members[member].kernel {
            MemberKernel::Reduce(reduce) => Some((results[member], reduce)),
            MemberKernel::Map(_) => None,
        };
        let own: Vec<(usize, &Reduce)> = members.iter().filter_map(|member| reduces(*member)).collect();
        let of = |reduce: &Reduce| if reduce.accumulate == DType::Bool { DType::I64 } else { reduce.accumulate };
        for (first, reduce) in &own {
            let identity = crate::reduce::identity(reduce.kind, of(reduce));
            self.function.text.line(format!("{} sum{first} = {identity};", register(of(reduce))));
        }
        self.pass(members, |body, first, text| {
            let Some((_, reduce)) = own.iter().find(|(own, _)| *own == first) else { return };
            let (name, kind, convert) = (crate::reduce::kind(reduce.kind), register(of(reduce)), to_register(of(reduce)));
            body.write(text, |text, values| {
                text.line(format!("sum{first} = {name}<{kind}>::both(sum{first}, {convert}({}));", values[0]));
            });
        });
        let shared = if self.team == 32 { "nullptr" } else { "shared" };
        for (first, reduce) in own {
            let name = crate::reduce::kind(reduce.kind);
            let text = &mut self.function.text;
            text.line(format!("sum{first} = over_block<{name}, {}>(sum{first}, {shared});", self.team / 32));
            text.line(format!("m{first} = {}(sum{first});", conversion(reduce.map.outputs[0])));
            self.store(first, 1);
        }
    }
}
