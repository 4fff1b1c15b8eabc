//! Attention and its gradient on tensor cores, for rows of 16-bit floats at multiples of 16
//! bytes: a warp has 16 rows of a tile of 64, and the rows of other operands come by in steps,
//! copied while those of the step before are multiplied (Dao, FlashAttention-2, 2023).

mod backward;
mod forward;

use super::tiles::{advance, causal_shift};
use crate::function::Function;
use crate::text::{Text, constant, element, plus, sum, times, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask};

pub use backward::gradient;
pub use forward::attention;

/// Threads of a block, and the rows that their warps have together.
const THREADS: u64 = 128;
const ROWS: u64 = 64;
/// The widest rows.
const WIDEST: u64 = 256;
/// Bytes of shared memory that a block may have on every architecture.
const SHARED: u64 = 99 << 10;
/// Registers of a thread for sums, and twice those for scores of a step: what is found from scores
/// needs as many.
const SUMS: u64 = 192;

/// Rows of the other operands in the smallest step.
const LEAST: u64 = 16;

/// Whether these kernels take it: not where an operand mask finds no room beside wide rows.
pub fn takes(a: &Attention, is_aligned: bool) -> bool {
    let mask = if matches!(a.mask, AttentionMask::Operand { .. }) { ROWS * (LEAST + 8) * 4 } else { 0 };
    let room = (ROWS + 2 * LEAST) * 16 * (words(a.width) + words(a.v_width)) + 8 * LEAST + mask;
    let strides = [a.q, a.k, a.v, a.o].into_iter().flatten();
    let is_word = |elements: u64| elements.is_multiple_of(8);
    is_aligned
        && matches!(a.dtype, DType::BF16 | DType::F16)
        && [a.width, a.v_width].into_iter().all(|width| is_word(width) && (1..=WIDEST).contains(&width))
        && strides.map(|stride| stride.unsigned_abs()).all(is_word)
        && room <= SHARED
}

/// Rows of an operand, those of one head, as tiles of shared memory.
#[derive(Debug, Clone, Copy)]
struct Rows {
    name: &'static str,
    count: u64,
    stride: i64,
    width: u64,
    /// 8 elements each, of a row of a tile.
    words: u64,
}

impl Rows {
    /// Columns that are multiplied.
    fn columns(self) -> u64 {
        self.width.next_multiple_of(16)
    }

    /// Bytes of a tile of so many rows.
    fn bytes(self, rows: u64) -> u64 {
        rows * self.words * 16
    }

    /// The call that copies `rows` rows from `first` on.
    fn copy(self, index: &str, rows: u64, to: &str, first: &str) -> String {
        let Rows { name, count, stride, width, words } = self;
        let rest = format!("({index}){count}, ({index}){stride}, {width}");
        format!("copy_rows<{THREADS}, {rows}, {words}>({to}, {name}, ({index}){first}, {rest});")
    }
}

/// Words of a row of a tile for so many columns, as `tile_at` wants them.
fn words(columns: u64) -> u64 {
    match columns.div_ceil(8) {
        0..=2 => 2,
        3..=4 => 4,
        words => words.next_multiple_of(8),
    }
}

/// What a kernel is made of.
struct Flash<'a> {
    a: &'a Attention,
    /// The type of an index of an element.
    index: &'static str,
    q: Rows,
    k: Rows,
    v: Rows,
    d_o: Rows,
    /// Rows of the other operands in a step.
    step: u64,
    /// Whether the tile of 64 rows is of queries, and those that come by are keys.
    of_queries: bool,
}

impl<'a> Flash<'a> {
    /// The kernel whose rows of tiles have room for so many columns of queries and keys, and of
    /// values. A step is as large as `own`, the bytes of the tiles that stay, and `sums`, the
    /// registers for sums and scores, leave room for.
    fn new(
        a: &'a Attention,
        index: &'static str,
        [wide, v_wide]: [u64; 2],
        of_queries: bool,
        own: impl Fn(&Flash) -> u64,
        sums: impl Fn(u64) -> u64,
    ) -> Flash<'a> {
        let rows = |name, count, stride, width, wide| Rows { name, count, stride, width, words: words(wide) };
        let mut flash = Flash {
            a,
            index,
            q: rows("q", a.q_len, a.q[2], a.width, wide),
            k: rows("k", a.kv_len, a.k[2], a.width, wide),
            v: rows("v", a.kv_len, a.v[2], a.v_width, v_wide),
            d_o: rows("d_o", a.q_len, a.o[2], a.v_width, v_wide),
            step: 64,
            of_queries,
        };
        while flash.step > LEAST && (own(&flash) + flash.stages() + flash.mask_bytes() > SHARED || sums(flash.step) > SUMS) {
            flash.step /= 2;
        }
        flash
    }

    /// Bytes of two steps of the operands that come by, and of two numbers a row.
    fn stages(&self) -> u64 {
        2 * (self.q.bytes(self.step) + self.v.bytes(self.step) + 4 * self.step)
    }

    /// Numbers from a row of the tile of masks to the next: lanes that read it meet in no bank.
    fn mask_pitch(&self) -> u64 {
        if self.of_queries { self.step + 8 } else { ROWS + 4 }
    }

    fn mask_bytes(&self) -> u64 {
        let rows = if self.of_queries { ROWS } else { self.step };
        if self.has_operand() { rows * self.mask_pitch() * 4 } else { 0 }
    }

    fn has_operand(&self) -> bool {
        matches!(self.a.mask, AttentionMask::Operand { .. })
    }

    /// The type of the elements.
    fn element(&self) -> &'static str {
        element(self.a.dtype)
    }

    /// Names the shared memory, tile by tile, and the place of the thread.
    fn begin(&self, tiles: &[(&str, u64)], function: &mut Function) {
        let text = &mut function.text;
        text.line("SHARED(shared);");
        let mut bytes = 0;
        for (name, size) in tiles {
            text.line(format!("unsigned char* {name} = shared{};", plus(bytes.into())));
            bytes += size;
        }
        if !self.of_queries {
            text.line(format!("float *below = (float*)(shared{}), *delta = below + {};", plus(bytes.into()), self.step));
            bytes += 2 * self.step * 4;
        }
        if self.has_operand() {
            text.line(format!("float* masks = (float*)(shared{});", plus(bytes.into())));
        }
        function.shared = (bytes + self.mask_bytes()) as u32;
        text.lines(["u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;", "u32 head = blockIdx.y, batch = blockIdx.z;"]);
    }

    /// The part of a tile of 64 rows that the warp has.
    fn own(&self, tile: &str, rows: Rows) -> String {
        format!("{tile} + warp * {}", rows.bytes(16))
    }

    /// Opens a loop over steps from row `start` to `end`, of which `first` has come; `copies` are
    /// those of a row and a stage. Where there is no step, nothing has waited.
    fn each_step(&self, start: &str, end: &str, copies: impl Fn(&str, &str) -> [String; 2], text: &mut Text) {
        let Flash { index, step, .. } = self;
        text.lines(copies(start, "0"));
        text.line("copy_commit();");
        text.line(format!("for ({index} first = {start}, stage = 0; first < {end}; first += {step}, stage ^= 1) {{"));
        text.line(format!("if (first + {step} < {end}) {{"));
        text.lines(copies(&format!("(first + {step})"), "(stage ^ 1)"));
        text.line("}");
        text.line("copy_commit();");
        self.copy_mask(text);
        if !self.of_queries {
            self.copy_numbers(text);
        }
        text.lines(["copy_wait<1>();", "BARRIER();"]);
    }

    /// Waits, behind the steps over keys, for copies that no step has waited for: there are some
    /// where a tile of queries sees no key at all.
    fn after_steps(&self, text: &mut Text) {
        let sees_none = self.a.mask == AttentionMask::Causal && causal_shift(self.a) + ROWS as i64 <= 0;
        if sees_none {
            text.lines(["copy_wait<0>();", "BARRIER();"]);
        }
    }

    /// Copies the part of an operand mask that a step sees, as what is added to scores.
    fn copy_mask(&self, text: &mut Text) {
        let AttentionMask::Operand { dtype, strides } = self.a.mask else { return };
        let (rows, columns) = if self.of_queries { (ROWS, self.step) } else { (self.step, ROWS) };
        let (query, key) = if self.of_queries { ("top", "first") } else { ("first", "top") };
        let terms = [("query", strides[2]), ("key", strides[3])].into_iter().filter(|(_, stride)| *stride != 0);
        let place = format!("mask[{}]", sum(terms.map(|(name, stride)| format!("{name}{}", times(stride))).collect()));
        let none = none();
        let value = match dtype {
            DType::Bool => format!("{place}.bits == 0 ? {none} : 0.0f"),
            dtype => format!("{}({place})", to_register(dtype)),
        };
        text.lines([
            format!("for (u32 at = threadIdx.x; at < {}; at += {THREADS}) {{", rows * columns),
            format!("{} query = {query} + at / {columns}, key = {key} + at % {columns};", self.index),
            format!("bool is_there = query < {} && key < {};", self.a.q_len, self.a.kv_len),
            format!("masks[at / {columns} * {} + at % {columns}] = is_there ? {value} : {none};", self.mask_pitch()),
            "}".to_owned(),
        ]);
    }

    /// Copies the two numbers of each query of a step.
    fn copy_numbers(&self, text: &mut Text) {
        text.lines([
            format!("if (threadIdx.x < {}) {{", self.step),
            format!("{} query = first + threadIdx.x;", self.index),
            format!("bool is_there = query < {};", self.a.q_len),
            "below[threadIdx.x] = is_there ? lse[query] : 0.0f;".to_owned(),
            "delta[threadIdx.x] = is_there ? part[query] : 0.0f;".to_owned(),
            "}".to_owned(),
        ]);
    }

    /// The line that finds `score` of `query` and `key` from the sum `scores[n][p * 2 + i]`.
    fn score(&self, text: &mut Text) {
        let value = format!("scores[n][p * 2 + i] * {}", constant(self.a.dtype, self.a.scale));
        let signed = if self.index == "u32" { "i32" } else { "i64" };
        let mut hidden = vec![];
        // Rows of keys behind the last one belong to no key's gradient.
        if self.of_queries && !self.a.kv_len.is_multiple_of(self.step) && !self.has_operand() {
            hidden.push(format!("key >= {}", self.a.kv_len));
        }
        if self.a.mask == AttentionMask::Causal {
            let shift = plus(causal_shift(self.a).into());
            hidden.push(format!("({signed})key > ({signed})query{shift}"));
        }
        let mask = if self.of_queries {
            "more.at[i]".to_owned()
        } else {
            format!("masks[(n * 8 + lane % 4 * 2 + i) * {} + warp * 16 + lane / 4 + p * 8]", self.mask_pitch())
        };
        text.line(match (self.has_operand(), hidden.is_empty()) {
            (true, _) => format!("float score = {value} + {mask};"),
            (false, true) => format!("float score = {value};"),
            (false, false) => format!("float score = {} ? {} : {value};", hidden.join(" || "), none()),
        });
    }

    /// Opens loops over the thread's keys of a step, `key`, while the tile is of queries.
    fn each_key(&self, text: &mut Text) {
        each("n", self.step / 8, text);
        if self.has_operand() {
            let at = format!("(warp * 16 + lane / 4 + p * 8) * {} + n * 8 + lane % 4 * 2", self.mask_pitch());
            text.line(format!("vec<float, 2> more = read<2>(masks + {at});"));
        }
        each("i", 2, text);
        text.line(self.column("key"));
    }

    /// Opens a loop over the thread's rows of the tile.
    fn each_row(&self, name: &str, text: &mut Text) {
        each("p", 2, text);
        text.line(format!("{} {name} = top + warp * 16 + lane / 4 + p * 8;", self.index));
    }

    /// The variable of the row of the step that the thread has as `n` and `i`.
    fn column(&self, name: &str) -> String {
        format!("{} {name} = first + n * 8 + lane % 4 * 2 + i;", self.index)
    }

    /// The copies of keys and values from the row `first` on, to one of two stages.
    fn copy_keys(&self, first: &str, stage: &str) -> [String; 2] {
        self.copies([("keys", self.k), ("values", self.v)], first, stage)
    }

    /// The same of queries, and the gradients of their results.
    fn copy_queries(&self, first: &str, stage: &str) -> [String; 2] {
        self.copies([("rows", self.q), ("outs", self.d_o)], first, stage)
    }

    fn copies(&self, of: [(&str, Rows); 2], first: &str, stage: &str) -> [String; 2] {
        of.map(|(tile, rows)| {
            let to = if stage == "0" { tile.to_owned() } else { format!("{tile} + {stage} * {}", rows.bytes(self.step)) };
            rows.copy(self.index, self.step, &to, first)
        })
    }

    /// The call that adds to `sum` the products of the warp's rows of a tile and those of the
    /// step.
    fn products(&self, sum: &str, tile: &str, of_step: &str, rows: Rows) -> String {
        let (kinds, stage) =
            (format!("{}, {}, {}, {}", self.element(), rows.columns(), self.step, rows.words), rows.bytes(self.step));
        format!("rows_times_rows<{kinds}>({sum}, {}, {of_step} + stage * {stage});", self.own(tile, rows))
    }

    /// The call that adds to `sum` rows of the step, times their weights.
    fn weighted(&self, sum: &str, weights: &str, of_step: &str, rows: Rows, columns: u64, from: &str) -> String {
        let (kinds, stage) = (format!("{}, {}, {columns}, {}", self.element(), self.step, rows.words), rows.bytes(self.step));
        format!("weights_times_rows<{kinds}>({sum}, {weights}, {of_step} + stage * {stage}, {from});")
    }

    /// Writes the warp's sums to its rows of a tile that nobody reads any more.
    fn put(&self, sum: &str, tile: &str, rows: Rows, columns: u64, text: &mut Text) {
        let (element, words) = (self.element(), rows.words);
        text.line(format!("put_rows<{element}, {columns}, {words}>({}, {sum});", self.own(tile, rows)));
    }

    /// Writes what was put to its operand, from the column `from` on.
    fn store(&self, by: &str, rows: Rows, from: &str, width: &str, text: &mut Text) {
        let (Rows { name, count, stride, words, .. }, index) = (rows, self.index);
        let rest = format!("({index}){count}, ({index}){stride}, {width}");
        text.line(format!("store_rows<{THREADS}, {ROWS}, {words}>({name}{from}, {by}, top, {rest});"));
    }

    /// Moves pointers to the block's batch and to these heads.
    fn advance(&self, pointers: &[(&str, [i64; 3], &str)], text: &mut Text) {
        text.lines(pointers.iter().map(|(name, strides, head)| advance(name, strides, head, self.index)));
    }
}

/// The score of a key that is not seen.
fn none() -> String {
    constant(DType::F32, f64::NEG_INFINITY)
}

/// Opens a loop over a small number.
fn each(name: &str, count: u64, text: &mut Text) {
    text.lines(["#pragma unroll".to_owned(), format!("for (u32 {name} = 0; {name} < {count}; {name}++) {{")]);
}

/// Combines `name` over the four lanes that have a row.
fn over_row(name: &str, both: &str, text: &mut Text) {
    text.lines([1, 2].map(|lanes| format!("{name} = {both}({name}, shuffle_xor({name}, {lanes}));")));
}
