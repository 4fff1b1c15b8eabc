//! The gradient of a convolution's weight as a product of matrices: rows are output channels of a
//! group, columns are taps of input channels, terms are positions of all samples. Results are few
//! and terms many, so these are cut into parts, which a second launch adds in their order.

use super::Shape;
use super::axes::{self, Axis};
use super::tile::{DEPTH, Operand, Tile};
use crate::function::{Function, THREADS};
use crate::text::{Text, conversion, digit, digit_times, over, plus, register, times};
use shardc_ir::kernel::Conv;
use shardc_ir::reason::Reason;

/// Blocks that keep every GPU busy, and terms of a part at least.
const BLOCKS: u64 = 512;
const PART: u64 = 256;

/// How the terms of a sum are cut into parts.
pub struct Parts {
    pub terms: u64,
    pub count: u64,
    pub length: u64,
}

impl Parts {
    /// Parts of at least `least` terms, a multiple of [`DEPTH`], for results that keep `blocks`
    /// blocks busy.
    pub fn of(terms: u64, blocks: u64, least: u64) -> Parts {
        let wanted = BLOCKS.checked_div(blocks).unwrap_or(1).min(terms / least).max(1);
        let length = terms.div_ceil(wanted).next_multiple_of(DEPTH).max(1);
        Parts { terms, count: terms.div_ceil(length).max(1), length }
    }

    /// The lines that find the block's terms, `first` to `end`.
    pub fn begin(&self, index: &str, text: &mut Text) {
        if self.count == 1 {
            return text.line(format!("{index} first = 0, end = {};", self.terms));
        }
        text.line(format!(
            "{index} first = ({index})blockIdx.y * {}, end = min(first + {}, ({index}){});",
            self.length, self.length, self.terms
        ));
    }

    /// Declares where the results are written: in the workspace, or where they belong.
    pub fn declare(&self, conv: &Conv, shape: &Shape, function: &mut Function) {
        if self.count == 1 {
            return shape.writes(conv, function);
        }
        function.works_in(conv.dtype, shape.signature.writes[0].elements * self.count, true);
    }

    /// The line that writes the result `at`, which is `value` in a register.
    pub fn store(&self, conv: &Conv, shape: &Shape, at: &str, value: &str) -> String {
        match self.count {
            1 => format!("w[{at}] = {}({value});", conversion(conv.dtype)),
            _ => format!("part[blockIdx.y * (u64){} + {at}] = {value};", shape.signature.writes[0].elements),
        }
    }

    /// Adds the function that adds the parts, if there are several.
    pub fn combine(&self, conv: &Conv, shape: &Shape, function: &mut Function) -> Result<(), Reason> {
        if self.count == 1 {
            return Ok(());
        }
        function.next()?;
        let results = shape.signature.writes[0].elements;
        function.works_in(conv.dtype, results * self.count, false);
        shape.writes(conv, function);
        function.threads_over(results);
        function.begin(THREADS);
        function.text.lines([
            format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
            format!("if (i >= {results}) return;"),
            format!("{} sum = 0;", register(conv.dtype)),
            "#pragma unroll 8".to_owned(),
            format!("for (u64 p = 0; p < {}; p++) sum += part[p * {results} + i];", self.count),
            format!("w[i] = {}(sum);", conversion(conv.dtype)),
            "}".to_owned(),
        ]);
        Ok(())
    }
}

/// Adds the functions.
pub fn write(conv: &Conv, shape: &Shape, function: &mut Function) -> Result<(), Reason> {
    let window = &axes::classes(conv)[0];
    let [rows, channels] = shape.channels;
    let columns = channels * shape.taps;
    let tile = Tile::of(conv.dtype, [rows, columns], conv.groups, DEPTH, [true, true]);
    let (below, beside) = (rows.div_ceil(tile.rows), columns.div_ceil(tile.columns));
    let blocks = below * beside * conv.groups;
    let own = axes::all(window, |axis| axis.count);
    let parts = Parts::of(conv.batch * own, blocks, PART);
    shape.reads(conv, function);
    parts.declare(conv, shape, function);
    function.grid = [blocks, parts.count, 1];
    let tables = tables(window);
    let tile = tile.behind(tile.columns * shape.index_bytes() * (1 + tables.len() as u64));
    function.shared = tile.shared() as u32;
    function.begin(THREADS);
    let (index, text) = (shape.index, &mut function.text);
    tile.begin(text);
    text.lines([
        format!("{index} top = {};", digit_times("blockIdx.x", 1, below, tile.rows)),
        format!("{index} start = {};", digit_times("blockIdx.x", below, beside, tile.columns)),
    ]);
    if conv.groups > 1 {
        text.line(format!("{index} group = blockIdx.x / {};", below * beside));
    }
    columns_seen(shape, &tile, window, &tables, text);
    parts.begin(index, text);
    text.line("#pragma unroll 1");
    text.line(format!("for ({index} from = first; from < end; from += {DEPTH}) {{"));
    text.line(format!("{index} term = from + lane;"));
    term(conv, shape, window, text);
    let left = |side: &str| {
        tile.value(&format!("term < end && top + {side} < {rows}"), &format!("y[to + (top + {side}){}]", times(own)))
    };
    tile.along_terms(Operand::Left, left, text);
    let right = |side: &str| {
        let position = |d| if tables.contains(&d) { format!("p{d} + tap{d}[{side}]") } else { format!("p{d}") };
        let tests = ["term < end".to_owned(), format!("start + {side} < {columns}")].into_iter();
        let tests: Vec<String> = tests.chain(axes::is_there(window, position)).collect();
        tile.value(&tests.join(" && "), &format!("x[at + far[{side}]]"))
    };
    tile.along_terms(Operand::Right, right, text);
    tile.multiply(text);
    text.line("}");
    let store = |row: &str, value: &str| {
        let row = format!("top + {row}");
        let row_of_all = if conv.groups == 1 { format!("({row})") } else { format!("(group{} + {row})", times(rows)) };
        let store = parts.store(conv, shape, &format!("{row_of_all}{} + start + column", times(columns)), value);
        format!("if ({row} < {rows} && start + column < {columns}) {store}")
    };
    tile.store(store, text);
    text.line("}");
    parts.combine(conv, shape, function)
}

/// The dimensions along which a column's tap decides whether it sees anything.
fn tables(window: &[Axis]) -> Vec<usize> {
    let decides = |d: &usize| window[*d].taps > 1 && !axes::is_there(&window[*d..=*d], |_| String::new()).is_empty();
    (0..window.len()).filter(decides).collect()
}

/// Lines that make tables of the block's columns: how far what each sees lies behind what tap 0 of
/// channel 0 does, in all and along each dimension.
fn columns_seen(shape: &Shape, tile: &Tile, window: &[Axis], tables: &[usize], text: &mut Text) {
    let (index, columns) = (shape.index, tile.columns);
    text.line(format!("{index}* far = ({index}*)shared;"));
    for (number, d) in tables.iter().enumerate() {
        text.line(format!("{index}* tap{d} = far + {};", columns * (number as u64 + 1)));
    }
    text.line(format!("for (u32 i = threadIdx.x; i < {columns}; i += {THREADS}) {{"));
    text.line(format!("{index} own = start + i, channel = own{}, tap = {};", over(shape.taps), digit("own", 1, shape.taps)));
    text.lines(axes::indices(window, |axis| axis.taps, "tap", "k", index));
    let strides = axes::strides(window, |axis| axis.limit);
    let step = |d: usize, by: u64| axes::term(&format!("k{d}"), window[d].taps, window[d].shift * by as i64);
    let places = (0..window.len()).map(|d| step(d, strides[d]));
    let plane = times(axes::all(window, |axis| axis.limit));
    text.line(format!("far[i] = {};", axes::sum([format!("channel{plane}")].into_iter().chain(places))));
    text.lines(tables.iter().map(|d| format!("tap{d}[i] = {};", step(*d, 1))));
    // The first barrier of the product comes too late: other threads read the tables before.
    text.lines(["}", "BARRIER();"]);
}

/// Lines that find the position of a term, `p0`, `p1`... as tap 0 sees it, and where both operands
/// have it.
fn term(conv: &Conv, shape: &Shape, window: &[Axis], text: &mut Text) {
    let index = shape.index;
    let [rows, channels] = shape.channels;
    let (own, plane) = (axes::all(window, |axis| axis.count), axes::all(window, |axis| axis.limit));
    text.line(format!("{index} sample = term{}, place = {};", over(own), digit("term", 1, own)));
    let strides = axes::strides(window, |axis| axis.count);
    for (d, axis) in window.iter().enumerate() {
        let position = digit("place", strides[d], axis.count);
        text.line(format!("{index} p{d} = {position}{}{};", times(axis.step), plus(axis.start.into())));
    }
    let image = shape.image("sample", "group", conv.groups);
    let strides = axes::strides(window, |axis| axis.limit);
    let place = (0..window.len()).map(|d| format!("p{d}{}", times(strides[d])));
    let place = axes::sum([format!("{image}{}", times(channels * plane))].into_iter().chain(place));
    text.line(format!("{index} at = {place}, to = {image}{} + place;", times(rows * own)));
}
