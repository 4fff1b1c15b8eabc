//! What attention and its gradient are made of: a block of 16 by 16 threads has a tile of rows,
//! goes through the rows of another operand tile by tile, and multiplies them in parts of `CHUNK`
//! columns.

use crate::function::THREADS;
use crate::text::{Text, constant, over, plus, register, sum, times, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask};

/// Columns of a row that are in shared memory at once.
const CHUNK: u64 = 32;
/// Elements from a line of a chunk to the next: lanes that read down a column meet in no bank.
const PITCH: u64 = CHUNK + 1;
/// Threads along each side of a tile.
const LINES: u64 = 16;
/// Accumulators of a thread in a line of a chunk.
const COLUMNS: u64 = CHUNK / LINES;
/// The widest rows whose sums fit in registers beside tiles of 64.
const WIDE: u64 = 128;

/// Rows of an operand: those of one head, tile by tile.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub name: &'static str,
    /// The variable with the first row of the tile.
    pub first: &'static str,
    pub stride: i64,
    pub width: u64,
    pub count: u64,
}

/// The rows of each operand of attention.
pub struct Operands {
    pub q: Rows,
    pub k: Rows,
    pub v: Rows,
    pub d_o: Rows,
}

impl Operands {
    /// The operands, where the tiles of queries and those of keys begin at these variables.
    pub fn of(a: &Attention, query: &'static str, key: &'static str) -> Operands {
        Operands {
            q: Rows { name: "q", first: query, stride: a.q[2], width: a.width, count: a.q_len },
            k: Rows { name: "k", first: key, stride: a.k[2], width: a.width, count: a.kv_len },
            v: Rows { name: "v", first: key, stride: a.v[2], width: a.v_width, count: a.kv_len },
            d_o: Rows { name: "d_o", first: query, stride: a.o[2], width: a.v_width, count: a.q_len },
        }
    }
}

/// A tile of weights in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    pub name: &'static str,
    /// Whether the columns that threads have are its lines.
    pub transposed: bool,
}

/// The tiles of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Tiles {
    /// Rows of a tile, of either side.
    pub side: u64,
    dtype: DType,
    /// The type of an index of an element.
    pub index: &'static str,
}

impl Tiles {
    pub fn of(a: &Attention, elements: u64) -> Tiles {
        let is_small = register(a.dtype) == "float" && a.width.max(a.v_width) <= WIDE;
        let index = if elements < 1 << 31 { "u32" } else { "u64" };
        Tiles { side: if is_small { 64 } else { 32 }, dtype: a.dtype, index }
    }

    /// The type of a register.
    pub fn kind(&self) -> &'static str {
        register(self.dtype)
    }

    /// Rows of a tile that a thread has.
    pub fn parts(&self) -> u64 {
        self.side / LINES
    }

    /// Columns of a row of `width` that a thread sums.
    pub fn columns(width: u64) -> u64 {
        width.div_ceil(CHUNK) * COLUMNS
    }

    /// Bytes of shared memory with as many tiles of weights.
    pub fn shared(&self, weights: u64) -> u32 {
        let elements = 2 * self.side * PITCH + weights * self.side * (self.side + LINES);
        (elements * self.dtype.computed().bytes()) as u32
    }

    /// Names the shared memory, and the place of the thread.
    pub fn begin(&self, weights: &[&str], text: &mut Text) {
        let kind = self.kind();
        text.lines([
            "SHARED(shared);".to_owned(),
            format!("{kind} *left = ({kind}*)shared, *right = left + {};", self.side * PITCH),
        ]);
        for (at, name) in weights.iter().enumerate() {
            let before = self.side * PITCH + at as u64 * self.side * (self.side + LINES);
            text.line(format!("{kind}* {name} = right + {before};"));
        }
        text.lines([
            format!("u32 across = threadIdx.x % {LINES}, down = threadIdx.x / {LINES};"),
            "u32 head = blockIdx.y, batch = blockIdx.z;".to_owned(),
            format!("{} top = blockIdx.x * {};", self.index, self.side),
        ]);
    }

    /// Copies the columns from `from` on of the rows from `first` on to `left` or `right`.
    fn load(&self, to: &str, rows: Rows, from: &str, text: &mut Text) {
        let Rows { name, first, stride, width, count } = rows;
        let (kind, load) = (self.kind(), to_register(self.dtype));
        text.lines([
            format!("for (u32 at = threadIdx.x; at < {}; at += {THREADS}) {{", self.side * CHUNK),
            format!("{} row = {first} + at / {CHUNK}, column = {from} + at % {CHUNK};", self.index),
            format!("bool is_there = row < {count} && column < {width};"),
            format!(
                "{to}[at / {CHUNK} * {PITCH} + at % {CHUNK}] = is_there ? {load}({name}[row{} + column]) : ({kind})0;",
                times(stride)
            ),
            "}".to_owned(),
        ]);
    }

    /// `result[p][q]`: the products of the thread's rows of `a` and of `b`.
    pub fn product(&self, result: &str, a: Rows, b: Rows, text: &mut Text) {
        let (kind, parts) = (self.kind(), self.parts());
        text.line(format!("{kind} {result}[{parts}][{parts}] = {{}};"));
        text.line(format!("for (u32 from = 0; from < {}; from += {CHUNK}) {{", a.width));
        self.load("left", a, "from", text);
        self.load("right", b, "from", text);
        text.lines([
            "BARRIER();".to_owned(),
            "#pragma unroll 8".to_owned(),
            format!("for (u32 c = 0; c < {CHUNK}; c++) {{"),
            format!("{kind} l[{parts}], r[{parts}];"),
            "#pragma unroll".to_owned(),
            format!("for (int p = 0; p < {parts}; p++) {{"),
            format!("l[p] = left[(down + p * {LINES}) * {PITCH} + c];"),
            format!("r[p] = right[(across + p * {LINES}) * {PITCH} + c];"),
            "}".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (int p = 0; p < {parts}; p++) {{"),
            "#pragma unroll".to_owned(),
            format!("for (int q = 0; q < {parts}; q++) {result}[p][q] = {}(l[p], r[q], {result}[p][q]);", self.fused()),
            "}".to_owned(),
            "}".to_owned(),
            "BARRIER();".to_owned(),
            "}".to_owned(),
        ]);
    }

    /// Adds to the thread's `sum` the products of `weights` and rows.
    pub fn apply(&self, sum: &str, weights: Weights, rows: Rows, text: &mut Text) {
        let (kind, parts) = (self.kind(), self.parts());
        text.line("#pragma unroll");
        text.line(format!("for (int chunk = 0; chunk < {}; chunk++) {{", rows.width.div_ceil(CHUNK)));
        self.load("right", rows, &format!("chunk * {CHUNK}"), text);
        text.lines([
            "BARRIER();".to_owned(),
            "#pragma unroll 8".to_owned(),
            format!("for (u32 k = 0; k < {}; k++) {{", self.side),
            "#pragma unroll".to_owned(),
            format!("for (int p = 0; p < {parts}; p++) {{"),
            format!("{kind} weight = {}[(down + p * {LINES}) * {} + k];", weights.name, self.pitch(weights)),
            "#pragma unroll".to_owned(),
            format!("for (int c = 0; c < {COLUMNS}; c++) {{"),
            format!("int at = chunk * {COLUMNS} + c;"),
            format!("{sum}[p][at] = {}(weight, right[k * {PITCH} + across + c * {LINES}], {sum}[p][at]);", self.fused()),
            "}".to_owned(),
            "}".to_owned(),
            "}".to_owned(),
            "BARRIER();".to_owned(),
            "}".to_owned(),
        ]);
    }

    /// Elements from a line of weights to the next: lanes that write them meet in no bank.
    fn pitch(&self, weights: Weights) -> u64 {
        self.side + if weights.transposed { 2 } else { LINES }
    }

    /// Where the weight of the thread's row `p` and column `q` is.
    pub fn weight(&self, weights: Weights) -> String {
        let (row, column) = (format!("down + p * {LINES}"), format!("across + q * {LINES}"));
        let (line, place) = if weights.transposed { (column, row) } else { (row, column) };
        format!("{}[({line}) * {} + {place}]", weights.name, self.pitch(weights))
    }

    /// Writes results to the rows of the tile `top`, each the value of column `c` of the thread's
    /// row `p`, then `also` what is one number a row, and ends the function.
    pub fn finish(&self, results: &[(Rows, String)], also: Option<String>, text: &mut Text) {
        self.each_row("row", "top", text);
        text.line(format!("if (row < {}) {{", results[0].0.count));
        for (rows, value) in results {
            text.lines([
                "#pragma unroll".to_owned(),
                format!("for (int c = 0; c < {}; c++) {{", Tiles::columns(rows.width)),
                format!("{} column = across + c * {LINES};", self.index),
                format!("if (column < {}) {}[row{} + column] = {value};", rows.width, rows.name, times(rows.stride)),
                "}".to_owned(),
            ]);
        }
        text.lines(also);
        text.lines(["}", "}", "}"]);
    }

    /// Combines `name` over the threads of a line.
    pub fn over_line(&self, name: &str, both: &str, text: &mut Text) {
        text.line("#pragma unroll");
        text.line(format!(
            "for (int lanes = {}; lanes > 0; lanes /= 2) {name} = {both}({name}, shuffle_xor({name}, lanes));",
            LINES / 2
        ));
    }

    /// Opens a loop over the thread's rows of the tile.
    pub fn each_row(&self, name: &str, first: &str, text: &mut Text) {
        text.line("#pragma unroll");
        text.line(format!("for (int p = 0; p < {}; p++) {{", self.parts()));
        text.line(format!("{} {name} = {first} + down + p * {LINES};", self.index));
    }

    /// Opens a loop over the thread's columns of the tile.
    pub fn each_column(&self, name: &str, first: &str, text: &mut Text) {
        text.line("#pragma unroll");
        text.line(format!("for (int q = 0; q < {}; q++) {{", self.parts()));
        text.line(format!("{} {name} = {first} + across + q * {LINES};", self.index));
    }

    /// The function of a fused product and sum.
    pub fn fused(&self) -> &'static str {
        if self.kind() == "double" { "fma" } else { "fmaf" }
    }
}

/// Moves a pointer to the block's batch, and to the head that `head` says.
pub fn advance(name: &str, strides: &[i64; 3], head: &str, index: &str) -> String {
    let terms: Vec<String> = [("batch", strides[0]), (head, strides[1])]
        .into_iter()
        .filter(|(_, stride)| *stride != 0)
        .map(|(term, stride)| format!("({index}){term}{}", times(stride)))
        .collect();
    if terms.is_empty() { String::new() } else { format!("{name} += {};", terms.join(" + ")) }
}

/// The head of keys of the query head `head`.
pub fn key_head(a: &Attention) -> String {
    let group = over(a.heads / a.kv_heads.max(1));
    if group.is_empty() { "head".into() } else { format!("(head{group})") }
}

/// Lines that find `score` from the product `value` of `query` and `key`: -infinity where the
/// query does not see the key.
pub fn score(a: &Attention, tiles: &Tiles, value: &str, text: &mut Text) {
    let kind = tiles.kind();
    let mut hidden = vec![format!("query >= {}", a.q_len), format!("key >= {}", a.kv_len)];
    let mut score = format!("{value} * {}", constant(a.dtype.computed(), a.scale));
    match &a.mask {
        AttentionMask::None => {}
        AttentionMask::Causal => hidden.push(format!("(i64)key > (i64)query{}", plus(causal_shift(a).into()))),
        AttentionMask::Operand { dtype, strides } => {
            let terms = [("query", strides[2]), ("key", strides[3])].into_iter().filter(|(_, stride)| *stride != 0);
            let place = format!("mask[{}]", sum(terms.map(|(name, stride)| format!("{name}{}", times(stride))).collect()));
            if *dtype == DType::Bool {
                hidden.push(format!("{place}.bits == 0"));
            } else {
                score = format!("{score} + {}({place})", to_register(*dtype));
            }
        }
    }
    let none = constant(a.dtype.computed(), f64::NEG_INFINITY);
    text.line(format!("bool is_hidden = {};", hidden.join(" || ")));
    text.line(format!("{kind} score = is_hidden ? {none} : {score};"));
}

/// The last key that query 0 sees under a causal mask.
pub fn causal_shift(a: &Attention) -> i64 {
    a.kv_len as i64 - a.q_len as i64
}
