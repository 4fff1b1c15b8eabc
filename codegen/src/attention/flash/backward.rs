//! The gradient of attention: that of queries, a tile of them a block, then that of keys and
//! values, a tile of these a block, which goes through all queries of all heads that read them.

use super::{Flash, ROWS, Rows, SCORE, THREADS, each, none, over_row};
use crate::attention::gradient::{declare, group_head, next_of_group, writes};
use crate::attention::tiles::{causal_shift, key_head};
use crate::attention::{advance_mask, inputs, query_rows, reached, seen};
use crate::function::Function;
use crate::generated::Generated;
use crate::text::{Text, constant, plus, times};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::Signature;
use shardc_ir::kernel::{Attention, AttentionMask};
use shardc_ir::reason::Reason;
use std::f64::consts::LOG2_E;

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

/// The change of the thread's score but for its scale, as [`SCORE`].
const CHANGE: &str = "changes[p / 2][n][p % 2 * 2 + i]";

/// Multiplies sums by the factor of scores.
fn scale(flash: &Flash, sum: &str, columns: u64, text: &mut Text) {
    each("m", flash.parts, text);
    each("n", columns / 8, text);
    each("i", 4, text);
    text.line(format!("{sum}[m][n][i] *= {};", constant(flash.a.dtype, flash.a.scale)));
    text.lines(["}", "}", "}"]);
}

/// Queries of a head with those that fill its last step: each has two numbers in the workspace.
fn pitch(a: &Attention) -> u64 {
    a.q_len.next_multiple_of(ROWS)
}

/// The gradient of queries, and for each query the sum of its output times that one's gradient.
fn of_queries(a: &Attention, index: &'static str, signature: &Signature, function: &mut Function) {
    let own = |flash: &Flash| flash.q.bytes(flash.rows()) + flash.d_o.bytes(flash.rows());
    let sums = |step| a.width.next_multiple_of(16) / 2 + 2 * step;
    let flash = Flash::new(a, index, [a.width, a.v_width], true, 2, own, sums);
    declare(a, signature, true, function);
    writes(a, signature, 0, "d_q", function);
    function.works_in(a.dtype, 2 * a.batch * a.heads * pitch(a), true);
    let blocks = a.q_len.div_ceil(flash.rows());
    function.grid = [blocks, a.heads, a.batch];
    function.begin(THREADS);
    let (step, columns) = (flash.step, flash.q.columns());
    let tiles = [
        ("rows", flash.q.bytes(flash.rows())),
        ("outs", flash.d_o.bytes(flash.rows())),
        ("keys", 2 * flash.k.bytes(step)),
        ("values", 2 * flash.v.bytes(step)),
    ];
    flash.begin(&tiles, function);
    let text = &mut function.text;
    text.line(flash.top(blocks));
    let of_keys = key_head(a);
    flash.advance(&[("q", a.q, "head"), ("k", a.k, &of_keys), ("v", a.v, &of_keys)], text);
    flash.advance(&[("o", a.o, "head"), ("d_o", a.o, "head"), ("d_q", a.q, "head")], text);
    advance_mask(a, "head", index, text);
    text.line(format!("lse += {};", query_rows(a)));
    text.line(format!("part += (u64)(batch * {} + head) * {};", a.heads, 2 * pitch(a)));
    text.line(flash.q.copy(index, flash.rows(), "rows", "top"));
    text.line(flash.d_o.copy(index, flash.rows(), "outs", "top"));
    let rows = 2 * flash.parts;
    text.line(format!("float below[{rows}], delta[{rows}], {};", flash.declared("sum", columns)));
    flash.each_row("query", text);
    let at = format!("query{} + word * 8", times(a.o[2]));
    text.lines([
        format!("float start = query < {} ? lse[query] : 0.0f;", a.q_len),
        // A query that sees no key has no weights.
        format!("below[p] = start == {} ? 0.0f : start * {};", none(), constant(DType::F32, LOG2_E)),
        "float inner = 0.0f;".to_owned(),
        format!("for (u32 word = lane % 4; query < {} && word < {}; word += 4) {{", a.q_len, a.v_width / 8),
        format!("vec<{0}, 8> x = read<8>(o + {at}), y = read<8>(d_o + {at});", flash.element()),
    ]);
    each("e", 8, text);
    text.lines(["inner = fmaf(to_f32(x.at[e]), to_f32(y.at[e]), inner);", "}", "}"]);
    over_row("inner", "add_", text);
    let numbers = "vec<float, 2>{{below[p], inner}}";
    text.line(format!("if (lane % 4 == 0 && query < {}) write(part + query * 2, {numbers});", pitch(a)));
    text.lines(["delta[p] = inner;", "}"]);
    let end = seen(a, flash.rows(), index, text);
    flash.each_step("0", &end, |first, stage| flash.copy_keys(first, stage), text);
    text.line(format!("float {}, {};", flash.declared("scores", step), flash.declared("changes", step)));
    text.line(flash.products("scores", "rows", "keys", flash.q));
    text.line(flash.products("changes", "outs", "values", flash.v));
    flash.scores(text);
    each("p", rows, text);
    each("n", step / 8, text);
    each("i", 2, text);
    text.lines([
        format!("{SCORE} = {} * ({CHANGE} - delta[p]);", flash.weight("below[p]")),
        "}".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
    ]);
    text.line(flash.weighted("sum", "scores", "keys", flash.k, columns, "0"));
    flash.end_step(text);
    flash.after_steps(text);
    scale(&flash, "sum", columns, text);
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
    let own = |flash: &Flash| flash.k.bytes(flash.rows()) + flash.v.bytes(flash.rows());
    let sums = |step| (columns + v_columns) / 2 + 2 * step;
    let flash = Flash::new(a, index, [slices * columns, slices * v_columns], false, 1, own, sums);
    let at = inputs(a, signature, function);
    let outs = signature.reads[at + 2].elements;
    function.reads("d_o", at + 2, a.dtype, outs, reached(a, a.heads, a.q_len, a.v_width, &a.o));
    function.works_in(a.dtype, 2 * a.batch * a.heads * pitch(a), false);
    writes(a, signature, 1, "d_k", function);
    writes(a, signature, 2, "d_v", function);
    function.grid = [a.kv_len.div_ceil(flash.rows()) * slices, a.kv_heads, a.batch];
    function.begin(THREADS);
    let step = flash.step;
    let tiles = [
        ("keys", flash.k.bytes(flash.rows())),
        ("values", flash.v.bytes(flash.rows())),
        ("rows", 2 * flash.q.bytes(step)),
        ("outs", 2 * flash.d_o.bytes(step)),
    ];
    flash.begin(&tiles, function);
    let text = &mut function.text;
    let slice = if slices == 1 { "0" } else { "slice" };
    if slices == 1 {
        text.line(flash.top(a.kv_len.div_ceil(flash.rows())));
    } else {
        text.line(format!("{index} top = blockIdx.x / {slices} * {};", flash.rows()));
        text.line(format!("u32 slice = blockIdx.x % {slices};"));
    }
    let group = a.heads / a.kv_heads.max(1);
    let first = group_head("head", group);
    flash.advance(&[("k", a.k, "head"), ("v", a.v, "head"), ("d_k", a.k, "head"), ("d_v", a.v, "head")], text);
    flash.advance(&[("q", a.q, &first), ("d_o", a.o, &first)], text);
    advance_mask(a, &first, index, text);
    text.line(format!("part += (u64)(batch * {} + {first}) * {};", a.heads, 2 * pitch(a)));
    text.line(flash.k.copy(index, flash.rows(), "keys", "top"));
    text.line(flash.v.copy(index, flash.rows(), "values", "top"));
    let sums = [flash.declared("of_keys", columns), flash.declared("of_values", v_columns)];
    text.line(format!("float {};", sums.join(", ")));
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
    text.line(format!("float {}, {};", flash.declared("scores", step), flash.declared("changes", step)));
    text.line(flash.products("scores", "keys", "rows", flash.k));
    text.line(flash.products("changes", "values", "outs", flash.v));
    flash.scores(text);
    each("n", step / 8, text);
    text.line(format!("vec<float, 4> pairs = read<4>(numbers + stage * {} + n * 16 + lane % 4 * 4);", 2 * step));
    each("p", 2 * flash.parts, text);
    each("i", 2, text);
    text.lines([
        format!("float weight = {};", flash.weight("pairs.at[i * 2]")),
        format!("{SCORE} = weight;"),
        format!("{CHANGE} = weight * ({CHANGE} - pairs.at[i * 2 + 1]);"),
        "}".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
    ]);
    let from = |columns: u64| if slices == 1 { "0".to_owned() } else { format!("slice * {}", columns / 8) };
    text.line(flash.weighted("of_values", "scores", "outs", flash.d_o, v_columns, &from(v_columns)));
    text.line(flash.weighted("of_keys", "changes", "rows", flash.q, columns, &from(columns)));
    // There is a step always: the last queries see all keys.
    flash.end_step(text);
    text.line("BARRIER();");
    if group > 1 {
        next_of_group(a, &[("part", 2 * pitch(a))], text);
    }
    scale(&flash, "of_keys", columns, text);
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
