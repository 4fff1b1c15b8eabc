//! The results of attention, a tile of queries a block.

use super::{Flash, ROWS, Rows, THREADS, each, none, over_row};
use crate::attention::tiles::key_head;
use crate::attention::{advance_mask, inputs, query_rows, results, seen};
use crate::function::Function;
use crate::generated::Generated;
use shardc_ir::kernel::Attention;
use shardc_ir::kernel::signature::Signature;
use shardc_ir::reason::Reason;

/// The text of attention.
pub fn attention(a: &Attention, signature: &Signature, index: &'static str) -> Result<Generated, Reason> {
    let own = |flash: &Flash| flash.q.bytes(ROWS);
    let sums = |step| a.v_width.next_multiple_of(16) / 2 + step;
    let flash = Flash::new(a, index, [a.width, a.v_width], true, own, sums);
    let o = Rows { name: "o", ..flash.d_o };
    let mut function = Function::new("attention");
    inputs(a, signature, &mut function);
    results(a, signature, &mut function);
    function.grid = [a.q_len.div_ceil(ROWS), a.heads, a.batch];
    function.begin(THREADS);
    let (step, columns) = (flash.step, o.columns());
    let tiles = [("rows", flash.q.bytes(ROWS)), ("keys", 2 * flash.k.bytes(step)), ("values", 2 * flash.v.bytes(step))];
    flash.begin(&tiles, &mut function);
    function.shared = function.shared.max(o.bytes(ROWS) as u32);
    let text = &mut function.text;
    let none = none();
    text.line(format!("{index} top = blockIdx.x * {ROWS};"));
    let of_keys = key_head(a);
    flash.advance(&[("q", a.q, "head"), ("k", a.k, &of_keys), ("v", a.v, &of_keys), ("o", a.o, "head")], text);
    advance_mask(a, "head", index, text);
    text.line(format!("lse += {};", query_rows(a)));
    text.line(flash.q.copy(index, ROWS, "rows", "top"));
    text.line(format!("float most[2] = {{{none}, {none}}}, total[2] = {{}}, sum[{}][4] = {{}};", columns / 8));
    let end = seen(a, ROWS, text);
    flash.each_step("0", &end, |first, stage| flash.copy_keys(first, stage), text);
    text.line(format!("float scores[{}][4] = {{}};", step / 8));
    text.line(flash.products("scores", "rows", "keys", flash.q));
    flash.each_row("query", text);
    text.line(format!("float largest = {none};"));
    flash.each_key(text);
    flash.score(text);
    text.lines(["scores[n][p * 2 + i] = score;", "largest = max_(largest, score);", "}", "}"]);
    over_row("largest", "max_", text);
    // A query that has seen no key yet has nothing to scale.
    text.lines([
        format!("float above = max_(most[p], largest), shift = above == {none} ? 0.0f : above;"),
        format!("float rescaling = most[p] == {none} ? 0.0f : exp_(most[p] - shift), part = 0.0f;"),
    ]);
    each("n", step / 8, text);
    each("i", 2, text);
    text.lines([
        "float score = scores[n][p * 2 + i];".to_owned(),
        format!("float weight = score == {none} ? 0.0f : exp_(score - shift);"),
        "scores[n][p * 2 + i] = weight;".to_owned(),
        "part += weight;".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
        // Lanes add up their own keys; they meet at the end.
        "total[p] = total[p] * rescaling + part;".to_owned(),
        "most[p] = above;".to_owned(),
    ]);
    each("n", columns / 8, text);
    text.lines(["sum[n][p * 2] *= rescaling;", "sum[n][p * 2 + 1] *= rescaling;", "}", "}"]);
    text.lines([flash.weighted("sum", "scores", "values", flash.v, columns, "0"), "BARRIER();".into(), "}".into()]);
    flash.after_steps(text);
    flash.each_row("query", text);
    over_row("total[p]", "add_", text);
    each("n", columns / 8, text);
    each("i", 2, text);
    text.lines([
        "sum[n][p * 2 + i] = total[p] == 0.0f ? 0.0f : sum[n][p * 2 + i] / total[p];".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
        format!("if (lane % 4 == 0 && query < {}) {{", a.q_len),
        format!("lse[query] = total[p] == 0.0f ? {none} : most[p] + log_(total[p]);"),
        "}".to_owned(),
        "}".to_owned(),
    ]);
    flash.put("sum", "shared", o, columns, text);
    text.line("BARRIER();");
    flash.store("shared", o, "", &a.v_width.to_string(), text);
    text.line("}");
    function.finish()
}
