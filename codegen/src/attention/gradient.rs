//! The gradient of attention, plainly: a block has a tile of queries for theirs, then a block a
//! tile of keys for those of keys and values. The weights are found again from the logarithms of
//! the sums.

use super::tiles::{Operands, Rows, Tiles, Weights, advance, causal_shift, score};
use super::{WEIGHTS, advance_inputs, advance_mask, flash, inputs, load, over_keys, query_rows, reached, tiles_of};
use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, constant, conversion, plus, times};
use shardc_ir::kernel::signature::Signature;
use shardc_ir::kernel::{Attention, AttentionGrad, AttentionMask, Form, Implements};
use shardc_ir::reason::Reason;

impl Implements<AttentionGrad> for Cuda {
    fn ready(&self, gradient: &AttentionGrad, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let a = &gradient.0;
        let signature = gradient.signature(&self.mesh)?;
        let tiles = tiles_of(a, &signature);
        if flash::takes(a, self.aligned) {
            return flash::gradient(a, &signature, tiles.index);
        }
        let mut function = Function::new("attention_grad");
        of_queries(a, &tiles, &signature, &mut function);
        function.next()?;
        of_keys(a, &tiles, &signature, &mut function);
        function.finish()
    }
}

/// Declares the operands that both functions read.
pub fn declare(a: &Attention, signature: &Signature, reads_o: bool, function: &mut Function) {
    let at = inputs(a, signature, function);
    let elements = |at: usize| signature.reads[at].elements;
    if reads_o {
        function.reads("o", at, a.dtype, elements(at), reached(a, a.heads, a.q_len, a.v_width, &a.o));
    }
    let rows = elements(at + 1);
    function.reads("lse", at + 1, a.dtype.computed(), rows, Accesses::over(&[(rows, 1)]));
    function.reads("d_o", at + 2, a.dtype, elements(at + 2), reached(a, a.heads, a.q_len, a.v_width, &a.o));
}

/// Declares a result.
pub fn writes(a: &Attention, signature: &Signature, at: usize, name: &str, function: &mut Function) {
    let (heads, positions, width, strides) =
        [(a.heads, a.q_len, a.width, &a.q), (a.kv_heads, a.kv_len, a.width, &a.k), (a.kv_heads, a.kv_len, a.v_width, &a.v)][at];
    let elements = signature.writes[at].elements;
    let is_whole = elements == a.batch * heads * positions * width;
    function.writes(name, at, a.dtype, elements, is_whole, reached(a, heads, positions, width, strides));
}

/// The weight and the change of the score of `query` and `key`.
fn changes(a: &Attention, tiles: &Tiles, lse: &str, delta: &str, text: &mut Text) {
    let (kind, none) = (tiles.kind(), constant(a.dtype.computed(), f64::NEG_INFINITY));
    score(a, tiles, "scores[p][q]", text);
    text.lines([
        format!("{kind} weight = score == {none} ? ({kind})0 : exp_(score - {lse});"),
        format!("{kind} change = weight * (changes[p][q] - {delta}) * {};", constant(a.dtype.computed(), a.scale)),
    ]);
}

/// The gradient of queries, and for each query the sum of its output times that one's gradient.
fn of_queries(a: &Attention, tiles: &Tiles, signature: &Signature, function: &mut Function) {
    let operands = Operands::of(a, "top", "first");
    declare(a, signature, true, function);
    writes(a, signature, 0, "d_q", function);
    function.works_in(a.dtype, a.batch * a.heads * a.q_len, true);
    function.grid = [a.q_len.div_ceil(tiles.side), a.heads, a.batch];
    function.shared = tiles.shared(1);
    function.begin(THREADS);
    let (kind, parts, load) = (tiles.kind(), tiles.parts(), load(a));
    let text = &mut function.text;
    tiles.begin(&["weights"], text);
    advance_inputs(a, tiles, text);
    text.lines(["o", "d_o"].map(|name| advance(name, &a.o, "head", tiles.index)));
    text.line(advance("d_q", &a.q, "head", tiles.index));
    text.lines(["lse", "part"].map(|name| format!("{name} += {};", query_rows(a))));
    text.line(format!("{kind} below[{parts}], delta[{parts}], sum[{parts}][{}] = {{}};", Tiles::columns(a.width)));
    tiles.each_row("row", "top", text);
    let at = format!("row{} + c", times(a.o[2]));
    text.lines([
        format!("below[p] = row < {} ? lse[row] : ({kind})0;", a.q_len),
        format!("{kind} inner = 0;"),
        format!("for (u32 c = across; row < {} && c < {}; c += 16) {{", a.q_len, a.v_width),
        format!("inner = {}({load}(o[{at}]), {load}(d_o[{at}]), inner);", tiles.fused()),
        "}".to_owned(),
    ]);
    tiles.over_line("inner", "add_", text);
    text.lines([
        format!("if (across == 0 && row < {}) part[row] = inner;", a.q_len),
        "delta[p] = inner;".to_owned(),
        "}".to_owned(),
    ]);
    over_keys(a, tiles, text);
    tiles.product("scores", operands.q, operands.k, text);
    tiles.product("changes", operands.d_o, operands.v, text);
    tiles.each_row("query", "top", text);
    tiles.each_column("key", "first", text);
    changes(a, tiles, "below[p]", "delta[p]", text);
    text.lines([format!("{} = change;", tiles.weight(WEIGHTS)), "}".to_owned(), "}".to_owned()]);
    tiles.apply("sum", WEIGHTS, operands.k, text);
    text.line("}");
    tiles.finish(&[(Rows { name: "d_q", ..operands.q }, format!("{}(sum[p][c])", conversion(a.dtype)))], None, text);
}

/// The gradients of keys and values, over all query heads that read them.
fn of_keys(a: &Attention, tiles: &Tiles, signature: &Signature, function: &mut Function) {
    // Threads have lines of queries, so that neighbours read neighbours of a mask.
    let operands = Operands::of(a, "first", "top");
    let [weights, moves] = ["weights", "moves"].map(|name| Weights { name, transposed: true });
    declare(a, signature, false, function);
    function.works_in(a.dtype, a.batch * a.heads * a.q_len, false);
    writes(a, signature, 1, "d_k", function);
    writes(a, signature, 2, "d_v", function);
    function.grid = [a.kv_len.div_ceil(tiles.side), a.kv_heads, a.batch];
    function.shared = tiles.shared(2);
    function.begin(THREADS);
    let (kind, parts) = (tiles.kind(), tiles.parts());
    let text = &mut function.text;
    tiles.begin(&["weights", "moves"], text);
    for (name, strides) in [("k", &a.k), ("v", &a.v), ("d_k", &a.k), ("d_v", &a.v)] {
        text.line(advance(name, strides, "head", tiles.index));
    }
    let [of_keys, of_values] = [a.width, a.v_width].map(Tiles::columns);
    text.line(format!("{kind} keys[{parts}][{of_keys}] = {{}}, values[{parts}][{of_values}] = {{}};"));
    let group = a.heads / a.kv_heads.max(1);
    for (name, strides) in [("q", &a.q), ("d_o", &a.o)] {
        text.line(advance(name, strides, &group_head("head", group), tiles.index));
    }
    advance_mask(a, &group_head("head", group), tiles.index, text);
    text.lines(
        ["lse", "part"].map(|name| format!("{name} += (batch * {} + {}) * {};", a.heads, group_head("head", group), a.q_len)),
    );
    if group > 1 {
        text.line(format!("for (u32 each = 0; each < {group}; each++) {{"));
    }
    over_queries(a, tiles, text);
    tiles.product("scores", operands.q, operands.k, text);
    tiles.product("changes", operands.d_o, operands.v, text);
    tiles.each_row("query", "first", text);
    text.line(format!(
        "{kind} below = query < {0} ? lse[query] : ({kind})0, inner = query < {0} ? part[query] : ({kind})0;",
        a.q_len
    ));
    tiles.each_column("key", "top", text);
    changes(a, tiles, "below", "inner", text);
    text.lines([
        format!("{} = weight;", tiles.weight(weights)),
        format!("{} = change;", tiles.weight(moves)),
        "}".to_owned(),
        "}".to_owned(),
    ]);
    tiles.apply("values", weights, operands.d_o, text);
    tiles.apply("keys", moves, operands.q, text);
    text.line("}");
    if group > 1 {
        next_of_group(a, &[("lse", a.q_len), ("part", a.q_len)], text);
    }
    let result = |name, rows, sum| (Rows { name, ..rows }, format!("{}({sum}[p][c])", conversion(a.dtype)));
    tiles.finish(&[result("d_k", operands.k, "keys"), result("d_v", operands.v, "values")], None, text);
}

/// Moves pointers to the next query head that reads the same keys, and closes the loop over these;
/// a head has so many numbers in each of `rows`.
pub fn next_of_group(a: &Attention, rows: &[(&str, u64)], text: &mut Text) {
    text.lines([("q", a.q[1]), ("d_o", a.o[1])].map(|(name, stride)| format!("{name} += {stride};")));
    text.lines(rows.iter().map(|(name, stride)| format!("{name} += {stride};")));
    if let AttentionMask::Operand { strides, .. } = a.mask {
        text.line(format!("mask += {};", strides[1]));
    }
    text.line("}");
}

/// The first query head that reads the head of keys `head`.
pub fn group_head(head: &str, group: u64) -> String {
    if group == 1 { head.into() } else { format!("({head} * {group})") }
}

/// Opens a loop over the tiles of queries, `first`, that see keys of the tile `top`.
fn over_queries(a: &Attention, tiles: &Tiles, text: &mut Text) {
    let (index, side) = (tiles.index, tiles.side);
    let mut start = "0".to_owned();
    if a.mask == AttentionMask::Causal {
        let shift = plus(-i128::from(causal_shift(a)));
        text.line(format!("i64 earliest = max((i64)0, (i64)top{shift}) / {side} * {side};"));
        start = format!("({index})earliest");
    }
    text.line(format!("for ({index} first = {start}; first < {}; first += {side}) {{", a.q_len));
}
