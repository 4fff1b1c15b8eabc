//! Conv, plainly: a thread sums one output or input, a block one weight.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, conversion, digit, register, row_major, times, to_register};
use crate::window::{self, Side};
use shardc_ir::kernel::{Conv, ConvResult, Form, Implements};
use shardc_ir::reason::Reason;

impl Implements<Conv> for Cuda {
    fn ready(&self, conv: &Conv, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = conv.signature(&self.mesh)?;
        let (names, result) = match conv.result {
            ConvResult::Output => (["x", "w"], "y"),
            ConvResult::Input => (["y", "w"], "x"),
            ConvResult::Weight => (["x", "y"], "w"),
        };
        let mut function = Function::new("conv");
        for (at, (name, operand)) in names.iter().zip(&signature.reads).enumerate() {
            function.reads(name, at, conv.dtype, operand.elements, Accesses::over(&[(operand.elements, 1)]));
        }
        let total = signature.writes[0].elements;
        function.writes(result, 0, conv.dtype, total, true, Accesses::over(&[(total, 1)]));
        if conv.result == ConvResult::Weight {
            function.grid = [total, 1, 1];
            function.shared = 8 * (THREADS / 32) as u32;
        } else {
            function.threads_over(total);
        }
        function.begin(THREADS);
        let text = &mut function.text;
        if conv.result == ConvResult::Weight {
            text.lines(["SHARED(shared);", "u64 i = blockIdx.x;"]);
        } else {
            text.line(format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
            text.line(format!("if (i >= {total}) return;"));
        }
        text.line(format!("{} sum = 0;", register(conv.dtype)));
        match conv.result {
            ConvResult::Output => output(conv, text),
            ConvResult::Input => input(conv, text),
            ConvResult::Weight => weight(conv, text),
        }
        text.line("}");
        function.finish()
    }
}

/// A line that adds the product of two operands' elements.
fn add(conv: &Conv, a: [&str; 2], b: [&str; 2]) -> String {
    let (load, fused) = (to_register(conv.dtype), if register(conv.dtype) == "double" { "fma" } else { "fmaf" });
    format!("sum = {fused}({load}({}[{}]), {load}({}[{}]), sum);", a[0], a[1], b[0], b[1])
}

/// A line that finds where the plane begins that indices name, of `elements` each.
fn planes_before(name: &str, first: &str, rest: &[(&str, u64)], elements: u64) -> String {
    format!("u64 {name} = ({}){};", row_major(first, rest), times(elements))
}

/// Elements of a plane of input, of output, and taps.
fn planes(conv: &Conv) -> [u64; 3] {
    [Side::Input, Side::Output, Side::Kernel].map(|side| window::positions(&conv.window, side))
}

fn output(conv: &Conv, text: &mut Text) {
    let Conv { groups, inputs, outputs, .. } = *conv;
    let [plane, own, taps] = planes(conv);
    text.lines([
        format!("i32 place = (i32)(i % {own});"),
        format!(
            "u64 channel = {}, group = {}, sample = i / {};",
            digit("i", own, outputs),
            digit("i", own * outputs, groups),
            own * outputs * groups
        ),
    ]);
    text.lines(window::indices(&conv.window, Side::Output, "place", "p"));
    text.line(format!("for (u64 c = 0; c < {inputs}; c++) {{"));
    text.line(planes_before("from", "sample", &[("group", groups), ("c", inputs)], plane));
    text.line(planes_before("by", "group", &[("channel", outputs), ("c", inputs)], taps));
    let opened = window::taps(&conv.window, "p", "k", "s", text);
    let (source, tap) = (window::place(&conv.window, Side::Input, "s"), window::place(&conv.window, Side::Kernel, "k"));
    text.line(add(conv, ["x", &format!("from + {source}")], ["w", &format!("by + {tap}")]));
    text.lines(vec!["}"; opened + 1]);
    text.line(format!("y[i] = {}(sum);", conversion(conv.dtype)));
}

fn input(conv: &Conv, text: &mut Text) {
    let Conv { groups, inputs, outputs, .. } = *conv;
    let [own, plane, taps] = planes(conv);
    text.lines([
        format!("i32 place = (i32)(i % {own});"),
        format!(
            "u64 channel = {}, group = {}, sample = i / {};",
            digit("i", own, inputs),
            digit("i", own * inputs, groups),
            own * inputs * groups
        ),
    ]);
    text.lines(window::indices(&conv.window, Side::Input, "place", "s"));
    text.line(format!("for (u64 c = 0; c < {outputs}; c++) {{"));
    text.line(planes_before("from", "sample", &[("group", groups), ("c", outputs)], plane));
    text.line(planes_before("by", "group", &[("c", outputs), ("channel", inputs)], taps));
    let opened = window::seen_by(&conv.window, "s", "k", "p", text);
    let (source, tap) = (window::place(&conv.window, Side::Output, "p"), window::place(&conv.window, Side::Kernel, "k"));
    text.line(add(conv, ["y", &format!("from + {source}")], ["w", &format!("by + {tap}")]));
    text.lines(vec!["}"; opened + 1]);
    text.line(format!("x[i] = {}(sum);", conversion(conv.dtype)));
}

fn weight(conv: &Conv, text: &mut Text) {
    let Conv { batch, groups, inputs, outputs, .. } = *conv;
    let [plane, own, taps] = planes(conv);
    text.lines([
        format!("i32 tap = (i32)({});", digit("i", 1, taps)),
        format!(
            "u64 channel = {}, result = {}, group = i / {};",
            digit("i", taps, inputs),
            digit("i", taps * inputs, outputs),
            taps * inputs * outputs
        ),
    ]);
    text.lines(window::indices(&conv.window, Side::Kernel, "tap", "k"));
    text.lines([
        format!("for (u64 at = threadIdx.x; at < {}; at += {THREADS}) {{", batch * own),
        format!("i32 place = (i32)(at % {own});"),
        format!("u64 sample = at / {own};"),
    ]);
    text.lines(window::indices(&conv.window, Side::Output, "place", "p"));
    for (d, dim) in conv.window.iter().enumerate() {
        text.lines(window::seen(d, dim, "p", "k", "s"));
    }
    let source = window::place(&conv.window, Side::Input, "s");
    text.line(planes_before("from", "sample", &[("group", groups), ("channel", inputs)], plane));
    text.line(planes_before("to", "sample", &[("group", groups), ("result", outputs)], own));
    text.line(add(conv, ["x", &format!("from + {source}")], ["y", "to + place"]));
    text.lines([
        "}".to_owned(),
        format!("sum = over_block<Sum, {}>(sum, shared);", THREADS / 32),
        format!("if (threadIdx.x == 0) w[i] = {}(sum);", conversion(conv.dtype)),
    ]);
}
