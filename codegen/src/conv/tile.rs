//! The tile of results that a block sums, from terms of both operands in shared memory.

mod fused;
mod tensor;

use crate::function::THREADS;
use crate::text::{Text, element, register, to_register};
use shardc_ir::dtype::DType;
use std::collections::BTreeSet;

/// Terms that a block takes at once, at most: one for each lane of a warp.
pub const DEPTH: u64 = 32;

/// The tile's sides where a thread has sixteen sums.
const SIDES: [[u64; 2]; 5] = [[64, 64], [32, 128], [128, 32], [16, 256], [256, 16]];

/// The time that the products of such a tile take, in lines that are loaded.
const TILE_TIME: u64 = 128;

/// The sides of the tile with four times as many sums, which is loaded in half the time for each of
/// them, and how many of these end sooner than the smaller ones on a GPU of 132 multiprocessors.
const LARGE: [u64; 2] = [128, 128];
const MANY: u64 = 72;

/// An operand of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Left,
    Right,
}

impl Operand {
    fn name(self) -> &'static str {
        if self == Operand::Left { "left" } else { "right" }
    }
}

/// A tile of rows by columns.
#[derive(Debug, Clone, Copy)]
pub struct Tile {
    dtype: DType,
    pub rows: u64,
    pub columns: u64,
    /// Terms at once.
    pub depth: u64,
    /// Whether terms are neighbours in memory, for either operand.
    along: [bool; 2],
    /// Vectors of 16 bytes between lines of the left operand.
    gap: u64,
    /// Bytes of shared memory before it.
    before: u64,
}

impl Tile {
    /// The tile for so many rows and columns, whose results there are `times` over. `along` says
    /// for either operand whether terms are neighbours in memory.
    pub fn of(dtype: DType, [rows, columns]: [u64; 2], times: u64, depth: u64, along: [bool; 2]) -> Tile {
        let tiles = |[r, c]: [u64; 2]| rows.div_ceil(r) * columns.div_ceil(c);
        // A tile's time is that of its products and that of its sides, which are loaded.
        let time = |[r, c]: &[u64; 2]| tiles([*r, *c]).saturating_mul(TILE_TIME + r + c);
        let mut sides = SIDES.into_iter().min_by_key(time).unwrap_or(SIDES[0]);
        if dtype != DType::F64 && tiles(LARGE) * 4 <= tiles(sides) && tiles(LARGE) * times >= MANY {
            sides = LARGE;
        }
        let mut tile = Tile { dtype, rows: sides[0], columns: sides[1], depth, along, gap: 1, before: 0 };
        if tile.is_tensor() {
            tile.depth = depth.next_multiple_of(tensor::DEPTH);
        }
        tile
    }

    /// The tile whose left operand is written with `taps` terms as neighbours of one row after
    /// another, with the lines apart where the fewest lanes meet in a bank.
    pub fn written_by_taps(self, taps: u64) -> Tile {
        let wavefronts = |tile: &Tile| -> usize {
            let word = |i: u64| (i % taps * tile.pitch(Operand::Left) + i / taps) * tile.bytes() / 4;
            let of_warp = |first: u64| {
                let words: BTreeSet<u64> = (first..first + 32).map(word).collect();
                (0..32).map(|bank| words.iter().filter(|word| **word % 32 == bank).count()).max().unwrap_or(0)
            };
            (0..taps * self.rows).step_by(32).map(of_warp).sum()
        };
        // An odd number of vectors: lines that are read together lie in different banks, too.
        [1, 3, 5, 7].map(|gap| Tile { gap, ..self }).into_iter().min_by_key(wavefronts).unwrap_or(self)
    }

    /// The tile behind so many bytes of shared memory.
    pub fn behind(self, bytes: u64) -> Tile {
        Tile { before: bytes.next_multiple_of(16), ..self }
    }

    /// Whether tensor cores multiply.
    fn is_tensor(&self) -> bool {
        matches!(self.dtype, DType::BF16 | DType::F16)
    }

    /// The type of elements in shared memory.
    fn kind(&self) -> &'static str {
        if self.is_tensor() { element(self.dtype) } else { register(self.dtype) }
    }

    fn bytes(&self) -> u64 {
        if self.is_tensor() { 2 } else { self.dtype.bytes() }
    }

    /// Elements of 16 bytes.
    pub fn lanes(&self) -> u64 {
        16 / self.bytes()
    }

    fn side(&self, operand: Operand) -> u64 {
        if operand == Operand::Left { self.rows } else { self.columns }
    }

    /// Whether terms of an operand are neighbours in shared memory.
    fn is_along(&self, operand: Operand) -> bool {
        self.is_tensor() && self.along[operand as usize]
    }

    /// Elements from one line of an operand to the next. Lines lie in different banks, by 16 bytes.
    fn pitch(&self, operand: Operand) -> u64 {
        let gap = if operand == Operand::Left { self.gap } else { 1 };
        gap * self.lanes() + if self.is_along(operand) { self.depth } else { self.side(operand) }
    }

    /// Elements of an operand.
    fn elements(&self, operand: Operand) -> u64 {
        let terms = if operand == Operand::Right { self.depth.next_multiple_of(self.line()) } else { self.depth };
        self.pitch(operand) * if self.is_along(operand) { self.side(operand) } else { terms }
    }

    /// Threads of one column.
    pub fn line(&self) -> u64 {
        (THREADS / self.columns).max(1)
    }

    /// Terms of a column that a thread brings.
    pub fn own(&self) -> u64 {
        self.depth.div_ceil(self.line())
    }

    /// The number of the term `i` among these.
    pub fn own_term(&self) -> String {
        match self.line() {
            1 => "i".into(),
            line => format!("(line + i * {line})"),
        }
    }

    /// Bytes of shared memory, with those before it.
    pub fn shared(&self) -> u64 {
        let operands = (self.elements(Operand::Left) + self.elements(Operand::Right)) * self.bytes();
        let results = if self.is_tensor() { tensor::results(self) } else { fused::results(self) };
        self.before + operands.max(results).next_multiple_of(16)
    }

    /// The shared memory, the thread's place, and its sums.
    pub fn begin(&self, text: &mut Text) {
        let kind = self.kind();
        text.lines([
            "SHARED(shared);".to_owned(),
            match self.before {
                0 => format!("{kind}* left = ({kind}*)shared;"),
                before => format!("{kind}* left = ({kind}*)(shared + {before});"),
            },
            format!("{kind}* right = left + {};", self.elements(Operand::Left)),
            "u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;".to_owned(),
            format!("u32 column = threadIdx.x % {}, line = threadIdx.x / {};", self.columns, self.columns),
        ]);
        if self.is_tensor() { tensor::begin(self, text) } else { fused::begin(self, text) }
    }

    /// The value of an operand's element, zero where it is not `there`.
    pub fn value(&self, there: &str, element: &str) -> String {
        if self.is_tensor() {
            return format!("{there} ? {element} : {}{{0}}", self.kind());
        }
        format!("{there} ? {}({element}) : ({})0", to_register(self.dtype), self.kind())
    }

    /// A line that sets the element of an operand at a term and a place of its side.
    pub fn set(&self, operand: Operand, term: &str, side: &str, value: &str) -> String {
        let (line, at) = if self.is_along(operand) { (side, term) } else { (term, side) };
        format!("{}[{line} * {} + {at}] = {value};", operand.name(), self.pitch(operand))
    }

    /// A line that declares a vector of zeros, `values`.
    pub fn vector(&self) -> String {
        format!("vec<{}, {}> values = {{}};", self.kind(), self.lanes())
    }

    /// A line that sets such neighbours of the right operand at a term, from a column on.
    pub fn set_vector(&self, term: &str, column: &str) -> String {
        format!("write_shared(right + {term} * {} + {column}, values);", self.pitch(Operand::Right))
    }

    /// Loads an operand whose terms are neighbours: each lane has one of them, of several places of
    /// the side. `value` gives that of a place.
    pub fn along_terms(&self, operand: Operand, value: impl Fn(&str) -> String, text: &mut Text) {
        let (side, name) = (self.side(operand), operand.name());
        let lanes = if self.is_tensor() { 1 } else { self.lanes() };
        let at_once = THREADS / 32 * lanes;
        text.lines(["#pragma unroll".to_owned(), format!("for (u32 i = 0; i < {}; i++) {{", side.div_ceil(at_once))]);
        let first = if lanes == 1 { "warp".to_owned() } else { format!("warp * {lanes}") };
        text.line(format!("u32 side = {first} + i * {at_once};"));
        let mut tests = vec![];
        if side < at_once {
            tests.push(format!("side < {side}"));
        }
        if self.depth < DEPTH {
            tests.push(format!("lane < {}", self.depth));
        }
        let guard = if tests.is_empty() { String::new() } else { format!("if ({}) ", tests.join(" && ")) };
        if lanes == 1 {
            text.line(guard + &self.set(operand, "lane", "side", &value("side")));
        } else {
            text.line(format!("vec<{}, {lanes}> values;", self.kind()));
            text.line("#pragma unroll");
            text.line(format!("for (u32 j = 0; j < {lanes}; j++) values.at[j] = {};", value("side + j")));
            text.line(format!("{guard}write_shared({name} + lane * {} + side, values);", self.pitch(operand)));
        }
        text.line("}");
    }

    /// Sets the terms of the left operand from `first` on to zero.
    pub fn clear(&self, first: u64, text: &mut Text) {
        if first == self.depth {
            return;
        }
        text.line(format!("for (u32 i = threadIdx.x; i < {}; i += {THREADS}) {{", (self.depth - first) * self.rows));
        let term = format!("({first} + i / {})", self.rows);
        text.line(self.set(Operand::Left, &term, &format!("i % {}", self.rows), &format!("{}{{0}}", self.kind())));
        text.line("}");
    }

    /// Adds the products of the terms in shared memory to the sums, between barriers.
    pub fn multiply(&self, text: &mut Text) {
        text.line("BARRIER();");
        if self.is_tensor() {
            tensor::multiply(self, text)
        } else {
            fused::multiply(self, text)
        }
        text.line("BARRIER();");
    }

    /// Brings the sums to the threads of their columns, so that neighbours write neighbours.
    /// `store` gives the line that writes a value to the tile's row.
    pub fn store(&self, store: impl Fn(&str, &str) -> String, text: &mut Text) {
        if self.is_tensor() { tensor::store(self, store, text) } else { fused::store(self, store, text) }
    }
}

/// A line for each of `count` numbers `name`.
fn each(count: u64, name: &str, line: impl Fn(&str) -> String, text: &mut Text) {
    if count == 1 {
        return text.line(line("0"));
    }
    text.lines(["#pragma unroll".to_owned(), format!("for (int {name} = 0; {name} < {count}; {name}++) {}", line(name))]);
}

/// The lines that write the sums of `rows` lines, `pitch` apart, from `results`. `row` gives the
/// tile's row of a line.
fn write_lines(
    tile: &Tile,
    [rows, pitch]: [u64; 2],
    results: &str,
    row: &str,
    store: impl Fn(&str, &str) -> String,
    text: &mut Text,
) {
    text.lines(["BARRIER();", "#pragma unroll 4"]);
    text.line(format!("for (u32 own = line; own < {rows}; own += {}) {{", tile.line()));
    text.lines([store(row, &format!("{results}[own * {pitch} + column]")), "}".to_owned()]);
}
