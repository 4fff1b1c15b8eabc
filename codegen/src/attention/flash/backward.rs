//! The gradient of attention: that of queries, a tile of them a block, then that of keys and
//! values, a tile of these a block, which goes through all queries of all heads that read them.

use super::{Flash, ROWS, Rows, THREADS, each, none, over_row};
use crate::attention::gradient::{declare, group_head, next_of_group, writes};
use crate::attention::tiles::{causal_shift, key_head};
use crate::attention::{advance_mask, query_rows, seen};
use crate::function::Function;
use crate::generated::Generated;
use crate::text::{Text, constant, plus, times};
use shardc_ir::kernel::signature::Signature;
use shardc_ir::kernel::{Attention, AttentionMask};
use shardc_ir::reason::Reason;

/// Columns of the gradients of keys and of values that a block sums.
const SLICE: u64 = 128;

/// The text of the gradient.
pub fn gradient(a: &Attention, signature: &Signature, index: &'static str) -> Result<Generated, Reason> {
    let mut function = Function::new("attention_grad");
    of_queries(a, index, signature, &mut function);
    function.next()?;
    of_keys(a, index, signature, &mut function);
    function.finish()
}

/// The weight and the change of the scaled score, from the variables `score`, `below` and `delta`.
fn changes(below: &str, delta: &str, text: &mut Text) {
    text.lines([
        format!("float weight = score == {} ? 0.0f : exp_(score - {below});", none()),
        format!("float change = weight * (changes[n][p * 2 + i] - {delta});"),
    ]);
}

/// Multiplies sums by the factor of scores.
fn scale(a: &Attention, sum: &str, columns: u64, text: &mut Text) {
    each("n", columns / 8, text);
    each("i", 4, text);
    text.lines([format!("{sum}[n][i] *= {};", constant(a.dtype, a.scale)), "}".to_owned(), "}".to_owned()]);
}

/// The gradient of queries, and for each query the sum of its output times that one's gradient.
fn of_queries(a: &Attention, index: &'static str, signature: &Signature, function: &mut Function) {
    let own = |flash: &Flash| flash.q.bytes(ROWS) + flash.d_o.bytes(ROWS);
    let sums = |step| a.width.next_multiple_of(16) / 2 + 2 * step;
    let flash = Flash::new(a, index, [a.width, a.v_width], true, own, sums);
    declare(a, signature, true, function);
    writes(a, signature, 0, "d_q", function);
    function.works_in(a.dtype, a.batch * a.heads * a.q_len, true);
    function.grid = [a.q_len.div_ceil(ROWS), a.heads, a.batch];
    function.begin(THREADS);
    let (step, columns) = (flash.step, flash.q.columns());
    let tiles = [
        ("rows", flash.q.bytes(ROWS)),
        ("outs", flash.d_o.bytes(ROWS)),
        ("keys", 2 * flash.k.bytes(step)),
        ("values", 2 * flash.v.bytes(step)),
    ];
    flash.begin(&tiles, function);
    let text = &mut function.text;
    text.line(format!("{index} top = blockIdx.x * {ROWS};"));
    let of_keys = key_head(a);
    flash.advance(&[("q", a.q, "head"), ("k", a.k, &of_keys), ("v", a.v, &of_keys)], text);
    flash.advance(&[("o", a.o, "head"), ("d_o", a.o, "head"), ("d_q", a.q, "head")], text);
    advance_mask(a, "head", index, text);
    text.lines(["lse", "part"].map(|name| format!("{name} += {};", query_rows(a))));
    text.line(flash.q.copy(index, ROWS, "rows", "top"));
    text.line(flash.d_o.copy(index, ROWS, "outs", "top"));
    text.line(format!("float below[2], delta[2], sum[{}][4] = {{}};", columns / 8));
    flash.each_row("query", text);
    let at = format!("query{} + word * 8", times(a.o[2]));
    text.lines([
        format!("below[p] = query < {} ? lse[query] : 0.0f;", a.q_len),
        "float inner = 0.0f;".to_owned(),
        format!("for (u32 word = lane % 4; query < {} && word < {}; word += 4) {{", a.q_len, a.v_width / 8),
        format!("vec<{0}, 8> x = read<8>(o + {at}), y = read<8>(d_o + {at});", flash.element()),
    ]);
    each("e", 8, text);
    text.lines(["inner = fmaf(to_f32(x.at[e]), to_f32(y.at[e]), inner);", "}", "}"]);
    over_row("inner", "add_", text);
    text.line(format!("if (lane % 4 == 0 && query < {}) part[query] = inner;", a.q_len));
    text.lines(["delta[p] = inner;", "}"]);
    let end = seen(a, ROWS, text);
    flash.each_step("0", &end, |first, stage| flash.copy_keys(first, stage), text);
    text.line(format!("float scores[{0}][4] = {{}}, changes[{0}][4] = {{}};", step / 8));
    text.line(flash.products("scores", "rows", "keys", flash.q));
    text.line(flash.products("changes", "outs", "values", flash.v));
    flash.each_row("query", text);
    flash.each_key(text);
    flash.score(text);
    changes("below[p]", "delta[p]", text);
    text.lines(["scores[n][p * 2 + i] = change;", "}", "}", "}"]);
    text.lines([flash.weighted("sum", "scores", "keys", flash.k, columns, "0"), "BARRIER();".into(), "}".into()]);
    flash.after_steps(text);
    scale(a, "sum", columns, text);
    let d_q = Rows { name: "d_q", ..flash.q };
    flash.put("sum", "rows", d_q, columns, text);
    text.line("BARRIER();");
    flash.store("rows", d_q, "", &a.width.to_string(), text);
    text.line("}");
}

/// The gradients of keys and values, over all query heads that read them. Of wide rows a block
/// has a slice of the columns.
fn of_keys(a: &Attention, index: &'static str, signature: &Signature, function: &mut Function) {
    let slices = a.width.max(a.v_width).div_ceil(SLICE);
    let [columns, v_columns] = [a.width, a.v_width].map(|width| width.div_ceil(slices).next_multiple_of(16));
    let own = |flash: &Flash| flash.k.bytes(ROWS) + flash.v.bytes(ROWS);
    let sums = |step| (columns + v_columns) / 2 + 2 * step;
    let flash = Flash::new(a, index, [slices * columns, slices * v_columns], false, own, sums);
    declare(a, signature, false, function);
    function.works_in(a.dtype, a.batch * a.heads * a.q_len, false);
    writes(a, signature, 1, "d_k", function);
    writes(a, signature, 2, "d_v", function);
    function.grid = [a.kv_len.div_ceil(ROWS) * slices, a.kv_heads, a.batch];
    function.begin(THREADS);
    let step = flash.step;
    let tiles = [
        ("keys", flash.k.bytes(ROWS)),
        ("values", flash.v.bytes(ROWS)),
        ("rows", 2 * flash.q.bytes(step)),
        ("outs", 2 * flash.d_o.bytes(step)),
    ];
    flash.begin(&tiles, function);
    let text = &mut function.text;
    let slice = if slices == 1 { "0" } else { "slice" };
    if slices == 1 {
        text.line(format!("{index} top = blockIdx.x * {ROWS};"));
    } else {
        text.line(format!("{index} top = blockIdx.x / {slices} * {ROWS};"));
        text.line(format!("u32 slice = blockIdx.x % {slices};"));
    }
    let group = a.heads / a.kv_heads.max(1);
    let first = group_head("head", group);
    flash.advance(&[("k", a.k, "head"), ("v", a.v, "head"), ("d_k", a.k, "head"), ("d_v", a.v, "head")], text);
    flash.advance(&[("q", a.q, &first), ("d_o", a.o, &first)], text);
    advance_mask(a, &first, index, text);
    text.lines(["lse", "part"].map(|name| format!("{name} += (batch * {} + {first}) * {};", a.heads, a.q_len)));
    text.line(flash.k.copy(index, ROWS, "keys", "top"));
    text.line(flash.v.copy(index, ROWS, "values", "top"));
    text.line(format!("float of_keys[{}][4] = {{}}, of_values[{}][4] = {{}};", columns / 8, v_columns / 8));
    let mut start = "0".to_owned();
    if a.mask == AttentionMask::Causal {
        let shift = plus(-i128::from(causal_shift(a)));
        text.line(format!("{index} earliest = ({index})(max((i64)0, (i64)top{shift}) / {step} * {step});"));
        start = "earliest".into();
    }
    if group > 1 {
        text.line(format!("for (u32 each = 0; each < {group}; each++) {{"));
    }
    flash.each_step(&start, &a.q_len.to_string(), |first, stage| flash.copy_queries(first, stage), text);
    text.line(format!("float scores[{0}][4] = {{}}, changes[{0}][4] = {{}};", step / 8));
    text.line(flash.products("scores", "keys", "rows", flash.k));
    text.line(flash.products("changes", "values", "outs", flash.v));
    each("n", step / 8, text);
    each("i", 2, text);
    text.line(flash.column("query"));
    text.line("u32 at = n * 8 + lane % 4 * 2 + i;");
    flash.each_row("key", text);
    flash.score(text);
    changes("below[at]", "delta[at]", text);
    text.lines(["scores[n][p * 2 + i] = weight;", "changes[n][p * 2 + i] = change;", "}", "}", "}"]);
    let from = |columns: u64| if slices == 1 { "0".to_owned() } else { format!("slice * {}", columns / 8) };
    text.line(flash.weighted("of_values", "scores", "outs", flash.d_o, v_columns, &from(v_columns)));
    text.line(flash.weighted("of_keys", "changes", "rows", flash.q, columns, &from(columns)));
    // There is a step always: the last queries see all keys.
    text.lines(["BARRIER();", "}"]);
    if group > 1 {
        next_of_group(a, text);
    }
    scale(a, "of_keys", columns, text);
    let results = [("d_k", flash.k, "keys", "of_keys", columns), ("d_v", flash.v, "values", "of_values", v_columns)];
    for (_, rows, tile, sum, columns) in results {
        flash.put(sum, tile, rows, columns, text);
    }
    text.line("BARRIER();");
    for (name, rows, tile, _, columns) in results {
        let (from, width) = match slices {
            1 => (String::new(), rows.width.to_string()),
            _ => (format!(" + {slice} * {columns}"), format!("min({columns}, {} - (i32)slice * {columns})", rows.width)),
        };
        flash.store(tile, Rows { name, ..rows }, &from, &width, text);
    }
    text.line("}");
}
