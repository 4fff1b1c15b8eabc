//! The tile of results that a block sums, from terms of both operands in shared memory.

use crate::function::THREADS;
use crate::text::{Text, register, to_register};
use shardc_ir::dtype::DType;

/// Terms that a block takes at once, at most: one for each lane of a warp.
pub const DEPTH: u64 = 32;

/// The tile's sides where a thread has four by four sums.
const SIDES: [[u64; 2]; 5] = [[64, 64], [32, 128], [128, 32], [16, 256], [256, 16]];

/// The time that the products of such a tile take, in lines that are loaded.
const TILE_TIME: u64 = 128;

/// The sides of the tile with eight by eight sums a thread, and how many of them keep a GPU busy.
const LARGE: [u64; 2] = [128, 128];
const MANY: u64 = 256;

/// A tile of rows by columns.
#[derive(Debug, Clone, Copy)]
pub struct Tile {
    dtype: DType,
    pub rows: u64,
    pub columns: u64,
    /// Terms at once.
    pub depth: u64,
    /// The sides of a thread's part.
    part: u64,
}

impl Tile {
    /// The tile for so many rows and columns, whose results there are `times` over.
    pub fn of(dtype: DType, rows: u64, columns: u64, times: u64, depth: u64) -> Tile {
        let tiles = |[r, c]: [u64; 2]| rows.div_ceil(r) * columns.div_ceil(c);
        // A tile's time is that of its products and that of its sides, which are loaded.
        let time = |[r, c]: &[u64; 2]| tiles([*r, *c]).saturating_mul(TILE_TIME + r + c);
        let mut sides = SIDES.into_iter().min_by_key(time).unwrap_or(SIDES[0]);
        let mut part = 4;
        if dtype != DType::F64 && tiles(LARGE) * 4 <= tiles(sides) && tiles(LARGE) * times >= MANY {
            (sides, part) = (LARGE, 8);
        }
        Tile { dtype, rows: sides[0], columns: sides[1], depth, part }
    }

    /// Threads side by side, and below one another.
    fn across(&self) -> u64 {
        self.columns / self.part
    }

    fn down(&self) -> u64 {
        self.rows / self.part
    }

    /// Neighbours that a thread reads together.
    fn lanes(&self) -> u64 {
        16 / self.dtype.computed().bytes()
    }

    fn kind(&self) -> &'static str {
        register(self.dtype)
    }

    /// Elements from one term to the next of an operand with that side. Terms of a side that
    /// threads write together are in different banks.
    fn pitch(&self, side: u64) -> u64 {
        side + self.lanes()
    }

    /// Terms of the right operand, of which each thread has as many.
    fn lines(&self) -> u64 {
        self.depth.next_multiple_of(self.line())
    }

    /// Columns' threads below one another.
    pub fn line(&self) -> u64 {
        (THREADS / self.columns).max(1)
    }

    /// Terms of a column that a thread brings.
    pub fn own(&self) -> u64 {
        self.lines() / self.line()
    }

    /// The number of the term `i` among these.
    pub fn own_term(&self) -> String {
        match self.line() {
            1 => "i".into(),
            line => format!("(line + i * {line})"),
        }
    }

    /// Bytes of shared memory.
    pub fn shared(&self) -> u64 {
        let operands = self.depth * self.pitch(self.rows) + self.lines() * self.pitch(self.columns);
        let results = self.down() * self.lanes() * self.columns;
        operands.max(results) * self.dtype.computed().bytes()
    }

    /// The shared memory, and the sums.
    pub fn begin(&self, text: &mut Text) {
        let Tile { rows, columns, depth, part, .. } = *self;
        let kind = self.kind();
        text.lines([
            "SHARED(shared);".to_owned(),
            format!("{kind}* left = ({kind}*)shared;"),
            format!("{kind}* right = left + {};", depth * self.pitch(rows)),
            format!("u32 across = threadIdx.x % {}, down = threadIdx.x / {};", self.across(), self.across()),
            format!("u32 column = threadIdx.x % {columns}, line = threadIdx.x / {columns};"),
            format!("{kind} sum[{part}][{part}] = {{}};"),
        ]);
    }

    /// The value of an operand's element, zero where it is not `there`.
    pub fn value(&self, there: &str, element: &str) -> String {
        format!("{there} ? {}({element}) : ({})0", to_register(self.dtype), self.kind())
    }

    /// A line that sets the element of the left operand at a term and a row.
    pub fn set_left(&self, depth: &str, row: &str, value: &str) -> String {
        format!("left[{depth} * {} + {row}] = {value};", self.pitch(self.rows))
    }

    /// The same of the right operand at a term and a column.
    pub fn set_right(&self, depth: &str, column: &str, value: &str) -> String {
        format!("right[{depth} * {} + {column}] = {value};", self.pitch(self.columns))
    }

    /// Loads an operand whose neighbours are terms: each lane has the term `lane` of rows `side`,
    /// one after another. `value` gives what `side` is. Returns nothing for lanes without a term.
    pub fn along_terms(&self, operand: Operand, value: impl Fn(&str) -> String, text: &mut Text) {
        let (name, side) = match operand {
            Operand::Left => ("left", self.rows),
            Operand::Right => ("right", self.columns),
        };
        let (lanes, kind) = (self.lanes(), self.kind());
        let at_once = THREADS / 32 * lanes;
        text.line("#pragma unroll");
        text.line(format!("for (u32 i = 0; i < {}; i++) {{", side.div_ceil(at_once)));
        text.line(format!("u32 side = threadIdx.x / 32 * {lanes} + i * {at_once};"));
        text.line(format!("vec<{kind}, {lanes}> values;"));
        text.line("#pragma unroll");
        text.line(format!("for (u32 j = 0; j < {lanes}; j++) values.at[j] = {};", value("side + j")));
        let mut tests = vec![];
        if side < at_once {
            tests.push(format!("side < {side}"));
        }
        if self.depth < DEPTH {
            tests.push(format!("lane < {}", self.depth));
        }
        let store = format!("write_shared({name} + lane * {} + side, values);", self.pitch(side));
        text.line(if tests.is_empty() { store } else { format!("if ({}) {store}", tests.join(" && ")) });
        text.line("}");
    }

    /// Adds the products of the terms in shared memory to the sums, between barriers.
    pub fn multiply(&self, text: &mut Text) {
        let Tile { part, depth, .. } = *self;
        let (kind, lanes) = (self.kind(), self.lanes());
        let vectors = part / lanes;
        let fused = if kind == "double" { "fma" } else { "fmaf" };
        text.lines(["BARRIER();", "#pragma unroll 4"]);
        text.line(format!("for (u32 depth = 0; depth < {depth}; depth++) {{"));
        text.line(format!("vec<{kind}, {lanes}> l[{vectors}], r[{vectors}];"));
        let sides = [("l", "left", self.rows, "down", self.down()), ("r", "right", self.columns, "across", self.across())];
        for (to, from, side, own, threads) in sides {
            let place = format!("{from} + depth * {} + {own} * {lanes}", self.pitch(side));
            let step = |v: &str| if v == "0" { String::new() } else { format!(" + {v} * {}", threads * lanes) };
            self.each_vector("v", |v| format!("{to}[{v}] = read<{lanes}>({place}{});", step(v)), text);
        }
        text.lines(["#pragma unroll".to_owned(), format!("for (int p = 0; p < {part}; p++) {{"), "#pragma unroll".to_owned()]);
        let [l, r] = [("l", "p"), ("r", "q")].map(|(from, at)| match vectors {
            1 => format!("{from}[0].at[{at}]"),
            _ => format!("{from}[{at} / {lanes}].at[{at} % {lanes}]"),
        });
        text.line(format!("for (int q = 0; q < {part}; q++) sum[p][q] = {fused}({l}, {r}, sum[p][q]);"));
        text.lines(["}", "}", "BARRIER();"]);
    }

    /// The line for each vector of a thread's part, whose number is `name`.
    fn each_vector(&self, name: &str, line: impl Fn(&str) -> String, text: &mut Text) {
        match self.part / self.lanes() {
            1 => text.line(line("0")),
            vectors => {
                text.line("#pragma unroll");
                text.line(format!("for (int {name} = 0; {name} < {vectors}; {name}++) {}", line(name)));
            }
        }
    }

    /// Brings the sums to the threads of their columns, so that neighbours write neighbours.
    /// `store` gives the line that writes a value to the tile's row.
    pub fn store(&self, store: impl Fn(&str, &str) -> String, text: &mut Text) {
        let (kind, lanes, down) = (self.kind(), self.lanes(), self.down());
        let (vectors, rows) = (self.part / lanes, down * lanes);
        let several = vectors > 1;
        if several {
            text.lines(["#pragma unroll".to_owned(), format!("for (int pass = 0; pass < {vectors}; pass++) {{")]);
        }
        text.lines(["#pragma unroll".to_owned(), format!("for (int p = 0; p < {lanes}; p++) {{")]);
        let row = if several { format!("pass * {lanes} + p") } else { "p".into() };
        let columns = self.columns;
        let write = |v: &str| {
            let first = if several { format!("{v} * {lanes} + ") } else { String::new() };
            let place = if several { format!(" + {v} * {}", self.across() * lanes) } else { String::new() };
            let values: Vec<String> = (0..lanes).map(|q| format!("sum[{row}][{first}{q}]")).collect();
            format!(
                "write_shared(left + (down * {lanes} + p) * {columns} + across * {lanes}{place}, vec<{kind}, {lanes}>{{{{{}}}}});",
                values.join(", ")
            )
        };
        self.each_vector("v", write, text);
        text.lines(["}", "BARRIER();", "#pragma unroll 4"]);
        text.line(format!("for (u32 own = line; own < {rows}; own += {}) {{", self.line()));
        let row = if several { format!("pass * {rows} + own") } else { "own".into() };
        text.line(store(&row, &format!("left[own * {columns} + column]")));
        text.line("}");
        if several {
            text.lines(["BARRIER();", "}"]);
        }
    }
}

/// An operand of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Left,
    Right,
}
