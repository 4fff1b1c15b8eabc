//! Attention and its gradient on tensor cores, for rows of 16-bit floats at multiples of 16
//! bytes: a warp has 16 rows of each 64 of a tile, and the rows of other operands come by in
//! steps, copied while those of the step before are multiplied (Dao, FlashAttention-2, 2023).
//! Weights are powers of 2, as the GPU has an instruction for these, and each score is multiplied
//! where it becomes an exponent.

mod backward;
mod forward;

use super::tiles::{advance, causal_shift};
use crate::function::Function;
use crate::text::{Text, constant, element, plus, sum, times, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask};
use std::f64::consts::LOG2_E;

pub use backward::gradient;
pub use forward::attention;

/// Threads of a block, and the rows that their warps have together in each part of a tile.
const THREADS: u64 = 128;
const ROWS: u64 = 64;
/// The widest rows.
const WIDEST: u64 = 256;
/// Bytes of shared memory that a block may have on every architecture.
const SHARED: u64 = 99 << 10;
/// Registers of a thread for sums, and twice those for scores of a step: what is found from scores
/// needs as many.
const SUMS: u64 = 192;

/// Rows of the other operands in the smallest step, and in that of tiles of several parts.
const LEAST: u64 = 16;
const LEAST_OF_PARTS: u64 = 32;

/// Whether these kernels take it: not where an operand mask finds no room beside wide rows.
pub fn takes(a: &Attention, is_aligned: bool) -> bool {
    let mask = if matches!(a.mask, AttentionMask::Operand { .. }) { ROWS * (LEAST + 8) * 4 } else { 0 };
    let room = (ROWS + 2 * LEAST) * 16 * (words(a.width) + words(a.v_width)) + 16 * LEAST + mask;
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

    /// The call that copies `rows` rows from `first` on, a multiple of their number.
    fn copy(self, index: &str, rows: u64, to: &str, first: &str) -> String {
        let Rows { name, count, stride, width, words } = self;
        let is_whole = count > 0 && count.is_multiple_of(rows) && width == words * 8;
        // Threads have one word each of 8 rows at least.
        if is_whole && words <= THREADS / 8 && THREADS.is_multiple_of(words) {
            return format!("copy_whole_rows<{THREADS}, {rows}, {words}>({to}, {name}, ({index}){first}, {stride});");
        }
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
#[derive(Clone, Copy)]
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
    /// Parts of the tile, of 64 rows each: what comes by is read once for all of a warp's.
    parts: u64,
    /// Whether the tile is of queries, and the rows that come by are of keys.
    of_queries: bool,
}

impl<'a> Flash<'a> {
    /// The kernel whose rows of tiles have room for so many columns of queries and keys, and of
    /// values, of `most` parts at most. These and a step are as large as `own`, the bytes of the
    /// tiles that stay, and `sums`, the registers for sums and scores of a part, leave room for.
    fn new(
        a: &'a Attention,
        index: &'static str,
        [wide, v_wide]: [u64; 2],
        of_queries: bool,
        most: u64,
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
            parts: 1,
            of_queries,
        };
        let is_much =
            |flash: &Flash| own(flash) + flash.stages() + flash.mask_bytes() > SHARED || flash.parts * sums(flash.step) > SUMS;
        let rows = if of_queries { a.q_len } else { a.kv_len };
        for parts in 1..=if rows > ROWS { most } else { 1 } {
            let mut larger = Flash { parts, step: 64, ..flash };
            let least = if parts == 1 { LEAST } else { LEAST_OF_PARTS };
            while larger.step > least && is_much(&larger) {
                larger.step /= 2;
            }
            if parts == 1 || !is_much(&larger) {
                flash = larger;
            }
        }
        flash
    }

    /// Rows of the tile.
    fn rows(&self) -> u64 {
        self.parts * ROWS
    }

    /// Rows of it that a warp has.
    fn warp_rows(&self) -> u64 {
        self.parts * 16
    }

    /// Bytes of two steps of the operands that come by, and of two numbers a row.
    fn stages(&self) -> u64 {
        2 * (self.q.bytes(self.step) + self.v.bytes(self.step) + 8 * self.step)
    }

    /// Numbers from a row of the tile of masks to the next: lanes that read it meet in no bank.
    fn mask_pitch(&self) -> u64 {
        if self.of_queries { self.step + 8 } else { self.rows() + 4 }
    }

    fn mask_bytes(&self) -> u64 {
        let rows = if self.of_queries { self.rows() } else { self.step };
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
            text.line(format!("float* numbers = (float*)(shared{});", plus(bytes.into())));
            bytes += 2 * self.step * 8;
        }
        if self.has_operand() {
            text.line(format!("float* masks = (float*)(shared{});", plus(bytes.into())));
        }
        function.shared = (bytes + self.mask_bytes()) as u32;
        text.lines(["u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;", "u32 head = blockIdx.y, batch = blockIdx.z;"]);
    }

    /// The tile's first row `top`. Blocks begin in their order: those come first that see most.
    fn top(&self, blocks: u64) -> String {
        let causal = self.of_queries && self.a.mask == AttentionMask::Causal && blocks > 1;
        let block = if causal { format!("({} - blockIdx.x)", blocks - 1) } else { "blockIdx.x".into() };
        format!("{} top = {block} * {};", self.index, self.rows())
    }

    /// The rows of a tile that the warp has.
    fn own(&self, tile: &str, rows: Rows) -> String {
        format!("{tile} + warp * {}", rows.bytes(self.warp_rows()))
    }

    /// The declaration of sums or scores, so many columns for each of the warp's rows.
    fn declared(&self, name: &str, columns: u64) -> String {
        format!("{name}[{}][{}][4] = {{}}", self.parts, columns / 8)
    }

    /// Opens a loop over steps from row `start` to `end`; `copies` are those of a row and a stage.
    /// Those of the next step begin where every warp is done with the step before.
    fn each_step(&self, start: &str, end: &str, copies: impl Fn(&str, &str) -> [String; 2], text: &mut Text) {
        let Flash { index, step, .. } = self;
        let numbers = |first: &str, stage: &str| (!self.of_queries).then(|| self.copy_numbers(first, stage));
        text.lines(copies(start, "0"));
        text.lines(numbers(start, "0"));
        text.line("copy_commit();");
        text.line(format!("for ({index} first = {start}, stage = 0; first < {end}; first += {step}, stage ^= 1) {{"));
        self.copy_mask(text);
        text.lines(["copy_wait<0>();", "BARRIER();"]);
        text.line(format!("if (first + {step} < {end}) {{"));
        let (next, other) = (format!("(first + {step})"), "(stage ^ 1)");
        text.lines(copies(&next, other));
        text.lines(numbers(&next, other));
        text.lines(["copy_commit();", "}"]);
        if self.skips() {
            let last = plus(i128::from(causal_shift(self.a)) + i128::from(self.warp_rows()) - 1);
            text.line(format!("if (({0})first <= ({0})({1}){last}) {{", self.signed(), self.warp_top()));
        }
    }

    /// Whether warps leave out steps that only other warps of the block see: where there are
    /// several parts, rows of warps are as many as those of a step, or half as many.
    fn skips(&self) -> bool {
        self.of_queries && self.parts > 1 && self.a.mask == AttentionMask::Causal
    }

    /// The first row of the warp.
    fn warp_top(&self) -> String {
        format!("top + warp * {}", self.warp_rows())
    }

    /// The type in which rows are compared.
    fn signed(&self) -> &'static str {
        if self.index == "u32" { "i32" } else { "i64" }
    }

    /// Closes the loop over steps. A mask has one place for all of them.
    fn end_step(&self, text: &mut Text) {
        if self.skips() {
            text.line("}");
        }
        if self.has_operand() {
            text.line("BARRIER();");
        }
        text.line("}");
    }

    /// Waits, behind the steps over keys, for copies that no step has waited for: there are some
    /// where a tile of queries sees no key at all.
    fn after_steps(&self, text: &mut Text) {
        let sees_none = self.a.mask == AttentionMask::Causal && causal_shift(self.a) + self.rows() as i64 <= 0;
        if sees_none {
            text.line("copy_wait<0>();");
        }
        text.line("BARRIER();");
    }

    /// Copies the part of an operand mask that a step sees, as what is added to scores.
    fn copy_mask(&self, text: &mut Text) {
        let AttentionMask::Operand { dtype, strides } = self.a.mask else { return };
        let (rows, columns) = if self.of_queries { (self.rows(), self.step) } else { (self.step, self.rows()) };
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

    /// Copies the two numbers of each query of a step, which has an even number of them.
    fn copy_numbers(&self, first: &str, stage: &str) -> String {
        let to = if stage == "0" { String::new() } else { format!("{stage} * {} + ", 2 * self.step) };
        let copy = format!("copy_async(numbers + {to}threadIdx.x * 4, part + {first} * 2 + threadIdx.x * 4, true)");
        format!("if (threadIdx.x < {}) {copy};", self.step / 2)
    }

    /// What makes an exponent of 2 of a score, where scores are what is summed: a positive factor
    /// keeps their order, and what is hidden remains so.
    fn folded(&self) -> Option<f64> {
        let factor = self.a.scale * LOG2_E;
        (!self.has_operand() && factor > 0.0 && (factor as f32).is_normal()).then_some(factor)
    }

    /// The factor that makes an exponent of 2 of a score.
    fn factor(&self) -> String {
        constant(DType::F32, self.folded().unwrap_or(LOG2_E))
    }

    /// The power of 2 that is the weight of the thread's score, less `shift`.
    fn weight(&self, shift: &str) -> String {
        format!("exp2_fast(fmaf({SCORE}, {}, -{shift}))", self.factor())
    }

    /// Makes scores of sums: with the scale and the mask where these are no part of the exponent,
    /// and -infinity where a query does not see a key.
    fn scores(&self, text: &mut Text) {
        if self.folded().is_none() {
            self.scale_scores(text);
        }
        self.hide(text);
    }

    fn scale_scores(&self, text: &mut Text) {
        let value = format!("{SCORE} * {}", constant(self.a.dtype, self.a.scale));
        each("p", 2 * self.parts, text);
        each("n", self.step / 8, text);
        let (row, pitch) = (format!("warp * {} + lane / 4 + p * 8", self.warp_rows()), self.mask_pitch());
        if self.has_operand() && self.of_queries {
            text.line(format!("vec<float, 2> more = read<2>(masks + ({row}) * {pitch} + n * 8 + lane % 4 * 2);"));
        }
        each("i", 2, text);
        text.line(match (self.has_operand(), self.of_queries) {
            (false, _) => format!("{SCORE} = {value};"),
            (true, true) => format!("{SCORE} = {value} + more.at[i];"),
            (true, false) => format!("{SCORE} = {value} + masks[(n * 8 + lane % 4 * 2 + i) * {pitch} + {row}];"),
        });
        text.lines(["}", "}", "}"]);
    }

    /// Hides the scores of a step where it has keys that some query of the warp does not see.
    fn hide(&self, text: &mut Text) {
        let signed = self.signed();
        let (mut some, mut each_one) = (vec![], vec![]);
        // Rows of keys behind the last one belong to no key's gradient.
        if self.of_queries && !self.a.kv_len.is_multiple_of(self.step) && !self.has_operand() {
            some.push(format!("first + {} > {}", self.step, self.a.kv_len));
            each_one.push(format!("key >= {}", self.a.kv_len));
        }
        if self.a.mask == AttentionMask::Causal {
            let shift = plus(causal_shift(self.a).into());
            let top = self.warp_top();
            some.push(match self.of_queries {
                true => format!("({signed})first + {} > ({signed})({top}){shift}", self.step - 1),
                false => format!("({signed})({top}) + {} > ({signed})first{shift}", self.warp_rows() - 1),
            });
            each_one.push(format!("({signed})key > ({signed})query{shift}"));
        }
        if some.is_empty() {
            return;
        }
        let (row, column) = if self.of_queries { ("query", "key") } else { ("key", "query") };
        text.line(format!("if ({}) {{", some.join(" || ")));
        self.each_row(row, text);
        each("n", self.step / 8, text);
        each("i", 2, text);
        text.lines([
            format!("{} {column} = first + n * 8 + lane % 4 * 2 + i;", self.index),
            format!("if ({}) {SCORE} = {};", each_one.join(" || "), none()),
        ]);
        text.lines(["}", "}", "}", "}"]);
    }

    /// Opens a loop over the thread's rows of the tile.
    fn each_row(&self, name: &str, text: &mut Text) {
        each("p", 2 * self.parts, text);
        text.line(format!("{} {name} = {} + lane / 4 + p * 8;", self.index, self.warp_top()));
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
        text.line(format!("store_rows<{THREADS}, {}, {words}>({name}{from}, {by}, top, {rest});", self.rows()));
    }

    /// Moves pointers to the block's batch and to these heads.
    fn advance(&self, pointers: &[(&str, [i64; 3], &str)], text: &mut Text) {
        text.lines(pointers.iter().map(|(name, strides, head)| advance(name, strides, head, self.index)));
    }
}

/// The thread's score in its row `p`, as `n` and `i` count columns.
const SCORE: &str = "scores[p / 2][n][p % 2 * 2 + i]";

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
