//! Convolutions of few channels a group, and empty ones: a thread sums the results of several
//! channels at one position, a block those of several taps of a weight.

use super::Shape;
use super::axes::{self, Axis};
use super::weights::Parts;
use crate::function::{Function, THREADS};
use crate::text::{Text, conversion, digit, digit_times, over, register, times, to_register};
use shardc_ir::kernel::{Conv, ConvResult};
use shardc_ir::reason::Reason;

/// Channels of a thread, taps of a block, and terms of a part at least.
const CHANNELS: u64 = 8;
const TAPS: u64 = 16;
const PART: u64 = 4096;

/// Adds the function for a class of outputs or inputs.
pub fn positions(conv: &Conv, shape: &Shape, class: &[Axis], function: &mut Function) {
    let [rows, channels] = shape.channels;
    let own = (1..=CHANNELS).rev().find(|own| rows.is_multiple_of(*own)).unwrap_or(1);
    let tiles = (rows / own).max(1);
    let positions = axes::all(class, |axis| axis.count);
    let total = conv.batch * conv.groups * positions * rows / own;
    shape.class(conv, class, function);
    function.threads_over(total);
    function.begin(THREADS);
    let (index, text) = (shape.index, &mut function.text);
    let (kind, load) = (register(conv.dtype), to_register(conv.dtype));
    let fused = if kind == "double" { "fma" } else { "fmaf" };
    text.lines([
        format!("{index} i = ({index})blockIdx.x * {THREADS} + threadIdx.x;"),
        format!("if (i >= {total}) return;"),
        format!("{index} image = i{}, place = {};", over(positions * tiles), digit("i", 1, positions)),
        format!("{index} channel = {};", digit_times("i", positions, tiles, own)),
    ]);
    text.lines(axes::indices(class, |axis| axis.count, "place", "p", index));
    let source = axes::all(class, |axis| axis.limit);
    let from = shape.reads[0];
    text.line(format!("{from} += image{};", times(channels * source)));
    let (first, next) = match conv.result {
        ConvResult::Input => ("channel".to_owned() + &times(shape.taps), [rows * shape.taps, shape.taps]),
        _ => ("channel".to_owned() + &times(channels * shape.taps), [shape.taps, channels * shape.taps]),
    };
    let group = digit_times("image", 1, conv.groups.max(1), conv.outputs * conv.inputs * shape.taps);
    text.line(format!("w += {};", axes::sum([group, first].into_iter())));
    text.line(format!("{kind} sum[{own}] = {{}};"));
    text.line(format!("for ({index} c = 0; c < {channels}; c++) {{"));
    for (d, axis) in class.iter().enumerate() {
        text.line(format!("for ({index} k{d} = 0; k{d} < {}; k{d}++) {{", axis.taps));
    }
    text.lines(axes::seen(class, index));
    let tests = axes::is_there(class, axes::position);
    if !tests.is_empty() {
        text.line(format!("if (!({})) continue;", tests.join(" && ")));
    }
    let place = axes::sum([format!("c{}", times(source)), axes::source(class)].into_iter());
    text.line(format!("{kind} value = {load}({from}[{place}]);"));
    let weight = |r: &str| {
        let terms = [format!("c{}", times(next[0])), axes::term(r, own, next[1] as i64), axes::tap(class)];
        format!("{load}(w[{}])", axes::sum(terms.into_iter()))
    };
    each(own, |r| format!("sum[{r}] = {fused}({}, value, sum[{r}]);", weight(r)), text);
    text.lines(vec!["}"; class.len() + 1]);
    let plane = axes::all(class, |axis| axis.result);
    let result = shape.result;
    let channel = format!("(image{} + channel){}", times(rows), times(plane));
    text.line(format!("{result} += {};", axes::sum([channel, axes::place(class)].into_iter())));
    each(own, |r| format!("{result}[{}] = {}(sum[{r}]);", axes::term(r, own, plane as i64), conversion(conv.dtype)), text);
    text.line("}");
}

/// The line for each of `count` numbers `r`.
fn each(count: u64, line: impl Fn(&str) -> String, text: &mut Text) {
    if count == 1 {
        return text.line(line("0"));
    }
    text.lines(["#pragma unroll".to_owned(), format!("for (int r = 0; r < {count}; r++) {}", line("r"))]);
}

/// Adds the functions for the gradient of the weight.
pub fn weights(conv: &Conv, shape: &Shape, function: &mut Function) -> Result<(), Reason> {
    let window = &axes::classes(conv)[0];
    let Conv { groups, inputs, outputs, .. } = *conv;
    let (own, plane) = (axes::all(window, |axis| axis.count), axes::all(window, |axis| axis.limit));
    let count = shape.taps.min(TAPS);
    let beside = shape.taps.div_ceil(count);
    let blocks = beside * groups * outputs * inputs;
    let parts = Parts::of(conv.batch * own, blocks, PART);
    shape.reads(conv, function);
    parts.declare(conv, shape, function);
    function.grid = [blocks, parts.count, 1];
    function.shared = 8 * (THREADS / 32) as u32;
    function.begin(THREADS);
    let (index, text) = (shape.index, &mut function.text);
    let (kind, load) = (register(conv.dtype), to_register(conv.dtype));
    let fused = if kind == "double" { "fma" } else { "fmaf" };
    text.lines([
        "SHARED(shared);".to_owned(),
        format!("{index} start = {};", digit_times("blockIdx.x", 1, beside, count)),
        format!("{index} input = {};", digit("blockIdx.x", beside, inputs.max(1))),
        format!("{index} output = blockIdx.x{};", over(beside * inputs.max(1))),
        format!("x += (output{}{} + input){};", over(outputs.max(1)), times(inputs), times(plane)),
        format!("y += output{};", times(own)),
        format!("{kind} sum[{count}] = {{}};"),
    ]);
    parts.begin(index, text);
    text.line(format!("for ({index} term = first + threadIdx.x; term < end; term += {THREADS}) {{"));
    text.line(format!("{index} sample = term{}, place = {};", over(own), digit("term", 1, own)));
    text.lines(axes::indices(window, |axis| axis.count, "place", "p", index));
    text.line(format!("{kind} value = {load}(y[sample{} + place]);", times(groups * outputs * own)));
    text.lines(["#pragma unroll".to_owned(), format!("for (int r = 0; r < {count}; r++) {{")]);
    let tap = if beside == 1 { "r" } else { "start + r" };
    text.line(format!("{index} tap = {tap};"));
    text.lines(axes::indices(window, |axis| axis.taps, "tap", "k", index));
    text.lines(axes::seen(window, index));
    let mut tests = axes::is_there(window, axes::position);
    let is_ragged = !shape.taps.is_multiple_of(count);
    if is_ragged {
        tests.push(format!("tap < {}", shape.taps));
    }
    let there = if tests.is_empty() { String::new() } else { format!("if ({}) ", tests.join(" && ")) };
    let place = axes::sum([format!("sample{}", times(groups * inputs * plane)), axes::source(window)].into_iter());
    text.lines([format!("{there}sum[r] = {fused}(value, {load}(x[{place}]), sum[r]);"), "}".to_owned(), "}".to_owned()]);
    text.line(format!("{kind} own = 0;"));
    text.lines(["#pragma unroll".to_owned(), format!("for (int r = 0; r < {count}; r++) {{")]);
    text.line(format!("{kind} whole = over_block<Sum, {}>(sum[r], shared);", THREADS / 32));
    text.lines(["if (threadIdx.x == r) own = whole;", "}"]);
    let at = format!("(output{} + input){} + start + threadIdx.x", times(inputs), times(shape.taps));
    let within = if is_ragged { format!(" && start + threadIdx.x < {}", shape.taps) } else { String::new() };
    text.lines([format!("if (threadIdx.x < {count}{within}) {}", parts.store(conv, shape, &at, "own")), "}".to_owned()]);
    parts.combine(conv, shape, function)
}
