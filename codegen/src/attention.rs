//! Attention: a block has a tile of queries of one head and goes through the keys that they see,
//! with the largest score and the sum of each query so far (Dao et al., FlashAttention, 2022).
//! Here it is plain; where tensor cores take it, `flash` has the text.

mod flash;
mod gradient;
mod tiles;

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, constant, conversion, plus, to_register};
use shardc_ir::kernel::signature::Signature;
use shardc_ir::kernel::{Attention, AttentionMask, Form, Implements};
use shardc_ir::reason::Reason;
use tiles::{Operands, Rows, Tiles, Weights, advance, causal_shift, key_head, score};

/// What multiplies the rows of a tile.
const WEIGHTS: Weights = Weights { name: "weights", transposed: false };

impl Implements<Attention> for Cuda {
    fn ready(&self, a: &Attention, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = a.signature(&self.mesh)?;
        let tiles = tiles_of(a, &signature);
        if flash::takes(a, self.aligned) {
            return flash::attention(a, &signature, tiles.index);
        }
        let operands = Operands::of(a, "top", "first");
        let mut function = Function::new("attention");
        inputs(a, &signature, &mut function);
        results(a, &signature, &mut function);
        function.grid = [a.q_len.div_ceil(tiles.side), a.heads, a.batch];
        function.shared = tiles.shared(1);
        function.begin(THREADS);
        let text = &mut function.text;
        tiles.begin(&["weights"], text);
        advance_inputs(a, &tiles, text);
        text.line(advance("o", &a.o, "head", tiles.index));
        text.line(format!("lse += {};", query_rows(a)));
        let (kind, parts, none) = (tiles.kind(), tiles.parts(), constant(a.dtype.computed(), f64::NEG_INFINITY));
        text.line(format!("{kind} most[{parts}], total[{parts}] = {{}}, sum[{parts}][{}] = {{}};", Tiles::columns(a.v_width)));
        text.line(format!("for (int p = 0; p < {parts}; p++) most[p] = {none};"));
        over_keys(a, &tiles, text);
        tiles.product("scores", operands.q, operands.k, text);
        tiles.each_row("query", "top", text);
        text.line(format!("{kind} largest = {none};"));
        tiles.each_column("key", "first", text);
        score(a, &tiles, "scores[p][q]", text);
        text.lines(["scores[p][q] = score;", "largest = max_(largest, score);", "}"]);
        tiles.over_line("largest", "max_", text);
        // A query that has seen no key yet has nothing to scale.
        text.lines([
            format!("{kind} above = max_(most[p], largest), shift = above == {none} ? ({kind})0 : above;"),
            format!("{kind} rescaling = most[p] == {none} ? ({kind})0 : exp_(most[p] - shift), part = 0;"),
        ]);
        text.line("#pragma unroll");
        text.line(format!("for (int q = 0; q < {parts}; q++) {{"));
        text.lines([
            format!("{kind} weight = scores[p][q] == {none} ? ({kind})0 : exp_(scores[p][q] - shift);"),
            format!("{} = weight;", tiles.weight(WEIGHTS)),
            "part += weight;".to_owned(),
            "}".to_owned(),
        ]);
        tiles.over_line("part", "add_", text);
        text.lines([
            "total[p] = total[p] * rescaling + part;".to_owned(),
            "most[p] = above;".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (int c = 0; c < {}; c++) sum[p][c] *= rescaling;", Tiles::columns(a.v_width)),
            "}".to_owned(),
        ]);
        tiles.apply("sum", WEIGHTS, operands.v, text);
        text.line("}");
        let value = format!("{}(total[p] == 0 ? ({kind})0 : sum[p][c] / total[p])", conversion(a.dtype));
        let lse = format!("if (across == 0) lse[row] = total[p] == 0 ? {none} : most[p] + log_(total[p]);");
        tiles.finish(&[(Rows { name: "o", ..operands.d_o }, value)], Some(lse), text);
        function.finish()
    }
}

fn tiles_of(a: &Attention, signature: &Signature) -> Tiles {
    let all = signature.reads.iter().chain(&signature.writes);
    Tiles::of(a, all.map(|operand| operand.elements).max().unwrap_or(0))
}

/// What rows of `width` over (batch, head, position) reach.
fn reached(a: &Attention, heads: u64, positions: u64, width: u64, strides: &[i64; 3]) -> Accesses {
    let terms = [(a.batch, strides[0]), (heads, strides[1]), (positions, strides[2]), (width, 1)];
    Accesses::over(&terms.into_iter().filter(|(_, stride)| *stride != 0).collect::<Vec<_>>())
}

/// Declares what attention and its gradient both read first. Returns the number of operands.
fn inputs(a: &Attention, signature: &Signature, function: &mut Function) -> usize {
    let elements = |at: usize| signature.reads[at].elements;
    function.reads("q", 0, a.dtype, elements(0), reached(a, a.heads, a.q_len, a.width, &a.q));
    function.reads("k", 1, a.dtype, elements(1), reached(a, a.kv_heads, a.kv_len, a.width, &a.k));
    function.reads("v", 2, a.dtype, elements(2), reached(a, a.kv_heads, a.kv_len, a.v_width, &a.v));
    let AttentionMask::Operand { dtype, strides } = &a.mask else { return 3 };
    let terms = [a.batch, a.heads, a.q_len, a.kv_len].into_iter().zip(strides.iter().copied());
    function.reads("mask", 3, *dtype, elements(3), Accesses::over(&terms.filter(|(_, s)| *s != 0).collect::<Vec<_>>()));
    4
}

/// Declares what attention writes.
fn results(a: &Attention, signature: &Signature, function: &mut Function) {
    let written = signature.writes[0].elements;
    let is_whole = written == a.batch * a.heads * a.q_len * a.v_width;
    function.writes("o", 0, a.dtype, written, is_whole, reached(a, a.heads, a.q_len, a.v_width, &a.o));
    let rows = signature.writes[1].elements;
    function.writes("lse", 1, a.dtype.computed(), rows, true, Accesses::over(&[(rows, 1)]));
}

/// Moves the pointers of these to the block's batch and query head.
fn advance_inputs(a: &Attention, tiles: &Tiles, text: &mut Text) {
    let key_head = key_head(a);
    text.lines([
        advance("q", &a.q, "head", tiles.index),
        advance("k", &a.k, &key_head, tiles.index),
        advance("v", &a.v, &key_head, tiles.index),
    ]);
    advance_mask(a, "head", tiles.index, text);
}

fn advance_mask(a: &Attention, head: &str, index: &str, text: &mut Text) {
    if let AttentionMask::Operand { strides: [batch, heads, ..], .. } = a.mask {
        text.line(advance("mask", &[batch, heads, 0], head, index));
    }
}

/// The first row of the block's batch and head among those of all queries.
fn query_rows(a: &Attention) -> String {
    format!("(batch * {} + head) * {}", a.heads, a.q_len)
}

/// The end of the keys that `side` queries from `top` on see: a number, or a variable.
fn seen(a: &Attention, side: u64, index: &str, text: &mut Text) -> String {
    if a.mask != AttentionMask::Causal {
        return a.kv_len.to_string();
    }
    let last = plus(i128::from(causal_shift(a)) + i128::from(side));
    text.line(format!("{index} seen = ({index})max((i64)0, min((i64){}, (i64)top{last}));", a.kv_len));
    "seen".into()
}

/// Opens a loop over the tiles of keys, `first`, that queries of the tile `top` see.
fn over_keys(a: &Attention, tiles: &Tiles, text: &mut Text) {
    let end = seen(a, tiles.side, tiles.index, text);
    text.line(format!("for ({} first = 0; first < {end}; first += {}) {{", tiles.index, tiles.side));
}

/// The function that reads an element.
fn load(a: &Attention) -> &'static str {
    to_register(a.dtype)
}
