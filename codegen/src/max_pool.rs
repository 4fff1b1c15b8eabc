//! MaxPool and its gradient: a thread looks through the window of one output, or through the
//! windows that see one input.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, constant, conversion, register, to_register};
use crate::window::{self, Side};
use shardc_ir::kernel::{Form, Implements, MaxPool, MaxPoolGrad};
use shardc_ir::reason::Reason;

impl Implements<MaxPool> for Cuda {
    fn ready(&self, pool: &MaxPool, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = pool.signature(&self.mesh)?;
        let (x, y) = (signature.reads[0].elements, signature.writes[0].elements);
        let mut function = Function::new("max_pool");
        function.reads("x", 0, pool.dtype, x, Accesses::over(&[(x, 1)]));
        function.writes("y", 0, pool.dtype, y, true, Accesses::over(&[(y, 1)]));
        function.threads_over(y);
        function.begin(THREADS);
        let text = &mut function.text;
        begin(y, window::positions(&pool.window, Side::Output), text);
        text.lines(window::indices(&pool.window, Side::Output, "place", "p"));
        look_through(pool, &["best = max_(best, value);"], text);
        text.line(format!("y[i] = {}(best);", conversion(pool.dtype)));
        text.line("}");
        function.finish()
    }
}

impl Implements<MaxPoolGrad> for Cuda {
    fn ready(&self, gradient: &MaxPoolGrad, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let pool = &gradient.0;
        let signature = gradient.signature(&self.mesh)?;
        let (x, y) = (signature.reads[0].elements, signature.reads[1].elements);
        let (kind, load) = (register(pool.dtype), to_register(pool.dtype));
        let mut function = Function::new("max_pool_grad");
        function.reads("x", 0, pool.dtype, x, Accesses::over(&[(x, 1)]));
        function.reads("dy", 1, pool.dtype, y, Accesses::over(&[(y, 1)]));
        function.writes("dx", 0, pool.dtype, x, true, Accesses::over(&[(x, 1)]));
        function.threads_over(x);
        function.begin(THREADS);
        let outputs = window::positions(&pool.window, Side::Output);
        let text = &mut function.text;
        begin(x, window::positions(&pool.window, Side::Input), text);
        text.lines(window::indices(&pool.window, Side::Input, "place", "own"));
        text.line(format!("{kind} sum = 0;"));
        let opened = window::seen_by(&pool.window, "own", "q", "p", text);
        // The first of the largest elements has the output's gradient; a not-a-number is above all.
        text.line("{");
        text.line("i32 at = -1;");
        let larger = "bool is_larger = value > best || (value != value && best == best) || at < 0;";
        look_through(pool, &[larger, "best = is_larger ? value : best;", "at = is_larger ? from : at;"], text);
        let output = window::place(&pool.window, Side::Output, "p");
        text.line(format!("if (at == place) sum += {load}(dy[plane * {outputs} + {output}]);"));
        text.line("}");
        text.lines(vec!["}"; opened]);
        text.lines([format!("dx[i] = {}(sum);", conversion(pool.dtype)), "}".into()]);
        function.finish()
    }
}

/// The element `i` of `total`, its plane of `elements` and its place in that.
fn begin(total: u64, elements: u64, text: &mut Text) {
    text.lines([
        format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
        format!("if (i >= {total}) return;"),
        format!("u64 plane = i / {elements};"),
        format!("i32 place = (i32)(i % {elements});"),
    ]);
}

/// Lines that look through the window of output `p` with `best`, -infinity to begin with; `each`
/// take the `value` at the place `from` into account.
fn look_through(pool: &MaxPool, each: &[&str], text: &mut Text) {
    let (kind, load) = (register(pool.dtype), to_register(pool.dtype));
    let inputs = window::positions(&pool.window, Side::Input);
    text.line(format!("{kind} best = {};", constant(pool.dtype.computed(), f64::NEG_INFINITY)));
    let opened = window::taps(&pool.window, "p", "k", "s", text);
    text.line(format!("i32 from = {};", window::place(&pool.window, Side::Input, "s")));
    text.line(format!("{kind} value = {load}(x[plane * {inputs} + from]);"));
    text.lines(each);
    text.lines(vec!["}"; opened]);
}
