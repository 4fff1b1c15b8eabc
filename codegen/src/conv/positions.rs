//! Outputs and inputs of a convolution as one product of matrices: rows are channels of a group,
//! columns are positions of all samples, terms are what a position sees, tap by tap of several
//! channels. The unfolded operand is never made: where the elements of a column lie is found once,
//! and moves on by channels.

use super::Shape;
use super::axes::{self, Axis};
use super::tile::{DEPTH, Operand, Tile};
use crate::function::{Function, THREADS};
use crate::text::{Text, conversion, digit, digit_times, over, times};
use shardc_ir::kernel::{Conv, ConvResult};

/// How the terms of a sum are cut into steps.
struct Steps {
    /// Taps.
    taps: u64,
    /// Taps of a step, and of how many channels.
    own_taps: u64,
    own_channels: u64,
}

impl Steps {
    fn of(channels: u64, taps: u64) -> Steps {
        let own_taps = taps.div_ceil(taps.div_ceil(DEPTH));
        let most = if own_taps < taps { 1 } else { DEPTH / own_taps };
        let own_channels = channels.div_ceil(channels.div_ceil(most));
        Steps { taps, own_taps, own_channels }
    }

    fn depth(&self) -> u64 {
        self.own_taps * self.own_channels
    }

    /// Parts that the taps are cut into.
    fn parts(&self) -> u64 {
        self.taps.div_ceil(self.own_taps)
    }
}

/// Adds the function for a class of results.
pub fn write(conv: &Conv, shape: &Shape, class: &[Axis], function: &mut Function) {
    let [rows, channels] = shape.channels;
    let (positions, source) = (axes::all(class, |axis| axis.count), axes::all(class, |axis| axis.limit));
    let steps = Steps::of(channels, axes::all(class, |axis| axis.taps));
    let columns = conv.batch * positions;
    let along = [conv.result == ConvResult::Output, false];
    let mut tile = Tile::of(conv.dtype, [rows, columns], conv.groups, steps.depth(), along);
    if conv.result == ConvResult::Input {
        tile = tile.written_by_taps(steps.own_taps);
    }
    let (below, beside) = (rows.div_ceil(tile.rows), columns.div_ceil(tile.columns));
    shape.class(conv, class, function);
    function.grid = [below * conv.groups * beside, 1, 1];
    function.shared = tile.shared() as u32;
    function.begin(THREADS);
    let (index, text) = (shape.index, &mut function.text);
    tile.begin(text);
    let [from, _] = shape.reads;
    text.lines([
        format!("{index} top = {};", digit_times("blockIdx.x", 1, below, tile.rows)),
        format!("{index} at = ({index})blockIdx.x{} * {} + column;", over(below * conv.groups), tile.columns),
        format!("{index} sample = at{}, place = {};", over(positions), digit("at", 1, positions)),
    ]);
    text.lines(axes::indices(class, |axis| axis.count, "place", "p", index));
    if conv.groups > 1 {
        text.line(format!("{index} group = {};", digit("blockIdx.x", below, conv.groups)));
        text.line(format!("w += group{};", times(conv.outputs * conv.inputs * shape.taps)));
    }
    let is_whole_vectors = shape.aligned && source.is_multiple_of(tile.lanes()) && class.iter().all(Axis::is_pointwise);
    if is_whole_vectors {
        vectors_begin(conv, shape, &tile, [below, columns, source], text);
    } else {
        text.line(format!("{from} += {}{};", shape.image("sample", "group", conv.groups), times(channels * source)));
    }
    if conv.result == ConvResult::Input {
        tile.clear(steps.depth(), text);
    }
    if steps.parts() > 1 {
        text.line("#pragma unroll 1");
        text.line(format!("for ({index} part = 0; part < {}; part += {}) {{", steps.taps, steps.own_taps));
    }
    if !is_whole_vectors {
        seen(&tile, &steps, class, columns, index, text);
    }
    text.line("#pragma unroll 1");
    text.line(format!("for ({index} c = 0; c < {channels}; c += {}) {{", steps.own_channels));
    let is_ragged = steps.parts() > 1 || !channels.is_multiple_of(steps.own_channels);
    let terms = match steps.parts() {
        _ if !is_ragged => steps.depth().to_string(),
        1 => format!("min(({index}){}, ({channels} - c){})", steps.depth(), times(steps.taps)),
        _ => format!("min(({index}){}, {} - part)", steps.own_taps, steps.taps),
    };
    text.line(format!("{index} terms = {terms};"));
    match conv.result {
        ConvResult::Input => weights_by_channel(shape, &tile, &steps, class, text),
        _ => weights_by_row(shape, &tile, &steps, text),
    }
    if is_whole_vectors {
        vectors(shape, &tile, source, text);
    } else {
        let own = tile.own_term();
        let is_whole = !is_ragged && tile.own() * tile.line() == steps.depth();
        let there = if is_whole { "seen >> i & 1".to_owned() } else { format!("(seen >> i & 1) && {own} < terms") };
        let value = tile.value(&there, &format!("{from}[c{} + far[i]]", times(source)));
        text.lines(["#pragma unroll".to_owned(), format!("for (u32 i = 0; i < {}; i++) {{", tile.own())]);
        text.lines([tile.set(Operand::Right, &own, "column", &value), "}".to_owned()]);
    }
    tile.multiply(text);
    text.line("}");
    if steps.parts() > 1 {
        text.line("}");
    }
    let plane = axes::all(class, |axis| axis.result);
    let to = shape.image("sample", "group", conv.groups) + &times(rows * plane);
    text.line(format!("{} += {};", shape.result, axes::sum([to, axes::place(class)].into_iter())));
    let result = shape.result;
    let convert = conversion(conv.dtype);
    let store = |row: &str, value: &str| {
        format!("if (at < {columns} && top + {row} < {rows}) {result}[(top + {row}){}] = {convert}({value});", times(plane))
    };
    tile.store(store, text);
    text.line("}");
}

/// Lines that find where the thread's vectors of columns lie, of positions that see themselves.
fn vectors_begin(conv: &Conv, shape: &Shape, tile: &Tile, [below, columns, plane]: [u64; 3], text: &mut Text) {
    let (index, from, lanes) = (shape.index, shape.reads[0], tile.lanes());
    let beside = tile.columns / lanes;
    let first = format!("({index})blockIdx.x{} * {} + beside", over(below * conv.groups), tile.columns);
    let image = shape.image(&format!("(first / {plane})"), "group", conv.groups);
    text.lines([
        format!("u32 beside = threadIdx.x % {beside} * {lanes}, above = threadIdx.x / {beside};"),
        format!("{index} first = {first};"),
        format!("bool is_there = first < {columns};"),
        format!("{from} += {image}{} + first % {plane};", times(shape.channels[1] * plane)),
    ]);
}

/// Loads terms of the right operand by vectors of neighbouring columns.
fn vectors(shape: &Shape, tile: &Tile, plane: u64, text: &mut Text) {
    let (from, lanes) = (shape.reads[0], tile.lanes());
    let at_once = THREADS * lanes / tile.columns;
    let count = tile.depth.div_ceil(at_once);
    text.lines(["#pragma unroll".to_owned(), format!("for (u32 i = 0; i < {count}; i++) {{")]);
    text.line(format!("u32 term = above + i * {at_once};"));
    text.line(tile.vector());
    text.line(format!("if (is_there && term < terms) values = read<{lanes}>({from} + (c + term){});", times(plane)));
    let guard = if tile.depth < count * at_once { format!("if (term < {}) ", tile.depth) } else { String::new() };
    text.lines([guard + &tile.set_vector("term", "beside"), "}".to_owned()]);
}

/// Lines that find where the elements of the thread's column lie, for its own terms of a step, and
/// which of them are there.
fn seen(tile: &Tile, steps: &Steps, class: &[Axis], columns: u64, index: &str, text: &mut Text) {
    let source = axes::all(class, |axis| axis.limit);
    text.lines([format!("{index} far[{}];", tile.own()), "u32 seen = 0;".to_owned(), "#pragma unroll".to_owned()]);
    text.line(format!("for (u32 i = 0; i < {}; i++) {{", tile.own()));
    text.line(format!("{index} term = {};", tile.own_term()));
    let tap = if steps.parts() > 1 { "part + term".into() } else { digit("term", 1, steps.taps) };
    text.line(format!("{index} tap = {tap};"));
    text.lines(axes::indices(class, |axis| axis.taps, "tap", "k", index));
    text.lines(axes::seen(class, index));
    let channel = if steps.own_channels == 1 { "0".into() } else { format!("term{}{}", over(steps.taps), times(source)) };
    text.line(format!("far[i] = {};", axes::sum([channel, axes::source(class)].into_iter())));
    let tests: Vec<String> = [format!("at < {columns}")].into_iter().chain(axes::is_there(class, axes::position)).collect();
    text.lines([format!("if ({}) seen |= 1u << i;", tests.join(" && ")), "}".to_owned()]);
}

/// Loads weights whose terms are neighbours.
fn weights_by_row(shape: &Shape, tile: &Tile, steps: &Steps, text: &mut Text) {
    let [rows, channels] = shape.channels;
    let part = if steps.parts() > 1 { " + part" } else { "" };
    let value = |side: &str| {
        let row = format!("top + {side}");
        let element = format!("w[({row}){} + c{}{part} + lane]", times(channels * shape.taps), times(shape.taps));
        tile.value(&format!("lane < terms && {row} < {rows}"), &element)
    };
    tile.along_terms(Operand::Left, value, text);
}

/// Loads weights whose rows and taps are neighbours for each term's channel.
fn weights_by_channel(shape: &Shape, tile: &Tile, steps: &Steps, class: &[Axis], text: &mut Text) {
    let [rows, _] = shape.channels;
    let (index, taps) = (shape.index, steps.own_taps);
    text.line("#pragma unroll 4");
    text.line(format!("for (u32 i = threadIdx.x; i < {}; i += {THREADS}) {{", steps.depth() * tile.rows));
    text.line(format!("{index} row = {}, own = {};", digit("i", taps, tile.rows), digit("i", 1, taps)));
    let tap = if steps.parts() > 1 { "tap" } else { "own" };
    if steps.parts() > 1 {
        text.line(format!("{index} tap = part + own;"));
    }
    text.lines(axes::indices(class, |axis| axis.taps, tap, "k", index));
    let (channel, term) = match steps.own_channels {
        1 => ("c".to_owned(), "own".to_owned()),
        _ => {
            let channel = format!("i / {}", taps * tile.rows);
            (format!("(c + {channel})"), axes::sum([channel + &times(taps), "own".into()].into_iter()))
        }
    };
    text.line(format!("{index} term = {term};"));
    let places =
        [format!("{channel}{}", times(rows * shape.taps)), format!("(top + row){}", times(shape.taps)), axes::tap(class)];
    let element = format!("w[{}]", axes::sum(places.into_iter()));
    let value = tile.value(&format!("term < terms && top + row < {rows}"), &element);
    text.lines([tile.set(Operand::Left, "term", "row", &value), "}".to_owned()]);
}
