//! Members of one program side by side: a launch takes many tensors, and a block finds its own by
//! its number. Source: NVIDIA, Apex, multi_tensor_apply.

use crate::Cuda;
use crate::body::Body;
use crate::bundle::place;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated, Memory, Parameter};
use crate::space;
use crate::text::{Text, element};
use shardc_ir::kernel::{Bundle, Map, Member, MemberKernel, Source};
use shardc_ir::reason::Reason;
use std::ops::Range;

/// Bytes of parameters that every driver takes. Source: CUDA C++ Programming Guide, Function
/// Parameters.
const PARAMETERS: usize = 4096;

/// One tensor's member.
struct Part<'a> {
    /// The map over one dimension.
    map: Map,
    reads: &'a [Source],
    /// The first of its results.
    first: usize,
    /// For each operand which result of the bundle is the same memory.
    in_place: Vec<Option<usize>>,
}

impl Part<'_> {
    fn elements(&self) -> u64 {
        self.map.shape[0]
    }

    /// What is the same in all parts of one launch: the program, and which operands are updated.
    fn kind(&self) -> (Map, Vec<Option<usize>>) {
        (Map { shape: vec![], ..self.map.clone() }, self.in_place.iter().map(|write| Some((*write)? - self.first)).collect())
    }
}

/// The text of a bundle whose members are of one program; `None` if they are not.
pub fn text(cuda: &Cuda, bundle: &Bundle, in_place: &[Option<usize>]) -> Result<Option<Generated>, Reason> {
    let Some(mut parts) = parts(bundle, in_place).filter(|_| bundle.is_side_by_side()) else { return Ok(None) };
    let Some(kind) = parts.first().map(Part::kind) else { return Ok(None) };
    if parts.iter().any(|part| part.kind() != kind) {
        return Ok(None);
    }
    let lanes = |part: &Part<'_>| if cuda.aligned { body(part).most_lanes(&part.map.outputs) } else { 1 };
    parts.retain(|part| part.elements() > 0);
    if parts.is_empty() {
        return Ok(None);
    }
    parts.sort_by_key(|part| std::cmp::Reverse(lanes(part)));
    let pointers = kind.0.inputs.len() + kind.0.outputs.len();
    let most = (PARAMETERS / 8 / pointers.max(1)).max(1);
    let mut function = Function::new("bundle");
    let mut left = &parts[..];
    while let Some(part) = left.first() {
        let own = lanes(part);
        let count = left.iter().take(most).take_while(|part| lanes(part) == own).count();
        let (now, rest) = left.split_at(count);
        launch(now, own, &mut function);
        left = rest;
        if !left.is_empty() {
            function.next()?;
        }
    }
    Ok(Some(function.finish()?))
}

/// The members as maps over one dimension; `None` if one of them is none.
fn parts<'a>(bundle: &'a Bundle, in_place: &[Option<usize>]) -> Option<Vec<Part<'a>>> {
    let part = |(member, first): (&'a Member, usize)| {
        let MemberKernel::Map(map) = &member.kernel else { return None };
        let places = member.reads.iter().map(|source| place(*source, in_place)).collect();
        Some(Part { map: map.flat()?, reads: &member.reads, first, in_place: places })
    };
    bundle.members.iter().zip(bundle.results()).map(part).collect()
}

fn body<'a>(part: &'a Part<'_>) -> Body<'a> {
    let place = |at: usize| part.in_place[at].map_or(format!("a{at}"), |write| format!("y{}", write - part.first));
    Body::new(&part.map, &[0], &[0], (0..part.map.inputs.len()).map(place).collect(), &[vec![1]])
}

/// A launch over some parts of as many lanes.
fn launch(parts: &[Part<'_>], lanes: u64, function: &mut Function) {
    let largest = parts.iter().max_by_key(|part| part.elements()).unwrap_or(&parts[0]);
    let mut body = body(largest);
    body.lanes = lanes;
    let shared: Vec<bool> = (0..largest.map.inputs.len()).map(|at| is_shared(parts, at)).collect();
    for (number, part) in parts.iter().enumerate() {
        declare(part, number, &shared, lanes, function);
    }
    let blocks: Vec<u64> = parts.iter().map(|part| (part.elements() / lanes).div_ceil(THREADS)).collect();
    function.grid[0] = blocks.iter().sum();
    function.shared = body.shared();
    function.begin(THREADS);
    let kind = body.index_type();
    let text = &mut function.text;
    for (at, input) in largest.map.inputs.iter().enumerate().filter(|(at, _)| !shared[*at] && largest.in_place[*at].is_none()) {
        text.line(format!("const {}* a{at};", element(input.dtype)));
    }
    for (at, dtype) in largest.map.outputs.iter().enumerate() {
        text.line(format!("{}* y{at};", element(*dtype)));
    }
    text.line(format!("{kind} block = blockIdx.x, threads;"));
    choose(parts, &blocks, 0..parts.len(), &shared, lanes, text);
    body.write_once(text);
    text.line(format!("{kind} i = block * {THREADS} + threadIdx.x;"));
    text.line("if (i >= threads) return;");
    let dims: Vec<usize> = (0..body.space.sizes.len()).collect();
    text.lines(space::lane_indices(&body.space.sizes, &dims, "i", kind, lanes));
    body.write_elements(text, 0, &space::position(lanes));
    text.line("}");
}

/// Whether all parts read one operand as their input `at`, a number.
fn is_shared(parts: &[Part<'_>], at: usize) -> bool {
    let first = &parts[0];
    let is_number = first.map.inputs[at].strides == [0] && first.in_place[at].is_none();
    is_number && parts.iter().all(|part| part.reads[at] == first.reads[at])
}

/// The pointers of part `number`; those that all parts share come with the first.
fn declare(part: &Part<'_>, number: usize, shared: &[bool], lanes: u64, function: &mut Function) {
    let elements = part.elements();
    let touched = |step: i64| match step {
        0 => Accesses::over(&[]),
        _ => Accesses { width: lanes, ..Accesses::over(&[(elements / lanes, lanes as i64)]) },
    };
    for (at, input) in part.map.inputs.iter().enumerate() {
        let Source::Read(read) = part.reads[at] else { continue };
        if part.in_place[at].is_some() || (shared[at] && number > 0) {
            continue;
        }
        let name = if shared[at] { format!("a{at}") } else { format!("a{at}_{number}") };
        let step = input.strides[0];
        let count = if step == 0 { 1 } else { elements };
        function.reads(&name, read as usize, input.dtype, count, touched(step));
    }
    for (at, dtype) in part.map.outputs.iter().enumerate() {
        let memory = Memory::Write(part.first + at);
        let parameter = Parameter {
            name: format!("y{at}_{number}"),
            memory,
            bytes: elements * dtype.bytes(),
            is_read: part.in_place.contains(&Some(part.first + at)),
            is_written: true,
            whole: true,
        };
        function.takes(parameter, *dtype, vec![Accesses { is_write: true, ..touched(1) }]);
    }
}

/// Lines that find a block's tensor by halves: its pointers, its threads, and the block's number in
/// it.
fn choose(parts: &[Part<'_>], blocks: &[u64], among: Range<usize>, shared: &[bool], lanes: u64, text: &mut Text) {
    if among.len() > 1 {
        let middle = among.start + among.len() / 2;
        text.line(format!("if (block < {}) {{", blocks[..middle].iter().sum::<u64>()));
        choose(parts, blocks, among.start..middle, shared, lanes, text);
        text.line("} else {");
        choose(parts, blocks, middle..among.end, shared, lanes, text);
        text.line("}");
        return;
    }
    let (number, part) = (among.start, &parts[among.start]);
    let own = (0..part.map.inputs.len()).filter(|at| !shared[*at] && part.in_place[*at].is_none());
    text.lines(own.map(|at| format!("a{at} = a{at}_{number};")));
    text.lines((0..part.map.outputs.len()).map(|at| format!("y{at} = y{at}_{number};")));
    text.line(format!("block -= {}, threads = {};", blocks[..number].iter().sum::<u64>(), part.elements() / lanes));
}
