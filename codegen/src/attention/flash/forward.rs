//! The results of attention, a tile of queries a block.

use super::{Flash, Rows, SCORE, THREADS, each, none, over_row};
use crate::attention::tiles::key_head;
use crate::attention::{advance_mask, inputs, query_rows, results, seen};
use crate::function::Function;
use crate::generated::Generated;
use crate::text::constant;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Attention;
use shardc_ir::kernel::signature::Signature;
use shardc_ir::reason::Reason;
use std::f64::consts::LN_2;

/// The thread's sum in its row `p`, as `n` and `i` count columns.
const SUM: &str = "sum[p / 2][n][p % 2 * 2 + i]";

/// The text of attention.
pub fn attention(a: &Attention, signature: &Signature, index: &'static str) -> Result<Generated, Reason> {
    let own = |flash: &Flash| flash.q.bytes(flash.rows());
    let sums = |step| a.v_width.next_multiple_of(16) / 2 + step;
    let flash = Flash::new(a, index, [a.width, a.v_width], true, 2, own, sums);
    let o = Rows { name: "o", ..flash.d_o };
    let mut function = Function::new("attention");
    inputs(a, signature, &mut function);
    results(a, signature, &mut function);
    let blocks = a.q_len.div_ceil(flash.rows());
    function.grid = [blocks, a.heads, a.batch];
    function.begin(THREADS);
    let (step, columns) = (flash.step, o.columns());
    let tiles = [("rows", flash.q.bytes(flash.rows())), ("keys", 2 * flash.k.bytes(step)), ("values", 2 * flash.v.bytes(step))];
    flash.begin(&tiles, &mut function);
    function.shared = function.shared.max(o.bytes(flash.rows()) as u32);
    let text = &mut function.text;
    let none = none();
    text.line(flash.top(blocks));
    let of_keys = key_head(a);
    flash.advance(&[("q", a.q, "head"), ("k", a.k, &of_keys), ("v", a.v, &of_keys), ("o", a.o, "head")], text);
    advance_mask(a, "head", index, text);
    text.line(format!("lse += {};", query_rows(a)));
    text.line(flash.q.copy(index, flash.rows(), "rows", "top"));
    let rows = 2 * flash.parts;
    text.line(format!("float most[{rows}], total[{rows}] = {{}}, {};", flash.declared("sum", columns)));
    each("p", rows, text);
    text.lines([format!("most[p] = {none};"), "}".to_owned()]);
    let end = seen(a, flash.rows(), index, text);
    flash.each_step("0", &end, |first, stage| flash.copy_keys(first, stage), text);
    text.line(format!("float {};", flash.declared("scores", step)));
    text.line(flash.products("scores", "rows", "keys", flash.q));
    flash.scores(text);
    each("p", rows, text);
    text.line(format!("float largest = {none};"));
    each("n", step / 8, text);
    each("i", 2, text);
    text.lines([format!("largest = fmaxf(largest, {SCORE});"), "}".to_owned(), "}".to_owned()]);
    over_row("largest", "fmaxf", text);
    // A query that has seen no key yet has nothing to scale.
    text.lines([
        format!("float above = fmaxf(most[p], largest * {}), shift = above == {none} ? 0.0f : above;", flash.factor()),
        "float rescaling = exp2_fast(most[p] - shift), part = 0.0f;".to_owned(),
    ]);
    each("n", step / 8, text);
    each("i", 2, text);
    text.lines([
        format!("float weight = {};", flash.weight("shift")),
        format!("{SCORE} = weight;"),
        "part += weight;".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
        // Lanes add up their own keys; they meet at the end.
        "total[p] = fmaf(total[p], rescaling, part);".to_owned(),
        "most[p] = above;".to_owned(),
    ]);
    each("n", columns / 8, text);
    each("i", 2, text);
    text.lines([format!("{SUM} *= rescaling;"), "}".to_owned(), "}".to_owned(), "}".to_owned()]);
    text.line(flash.weighted("sum", "scores", "values", flash.v, columns, "0"));
    flash.end_step(text);
    flash.after_steps(text);
    flash.each_row("query", text);
    over_row("total[p]", "add_", text);
    each("n", columns / 8, text);
    each("i", 2, text);
    text.lines([
        format!("{SUM} = total[p] == 0.0f ? 0.0f : {SUM} / total[p];"),
        "}".to_owned(),
        "}".to_owned(),
        format!("if (lane % 4 == 0 && query < {}) {{", a.q_len),
        format!("lse[query] = total[p] == 0.0f ? {none} : fmaf(most[p], {}, log_(total[p]));", constant(DType::F32, LN_2)),
        "}".to_owned(),
        "}".to_owned(),
    ]);
    flash.put("sum", "shared", o, columns, text);
    text.line("BARRIER();");
    flash.store("shared", o, "", &a.v_width.to_string(), text);
    text.line("}");
    function.finish()
}
