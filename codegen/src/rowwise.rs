//! Rowwise: a warp or a block a row, whose elements stay in registers where they fit.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, constant, conversion, register, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Implements, RowExtent, RowProgram, Rowwise};
use shardc_ir::reason::Reason;

/// The longest row of a warp, which needs no barriers; longer ones have a block.
const WARP_ROW: u64 = 1024;

/// Elements of one operand that a thread holds in registers.
const HELD: u64 = 32;

impl Implements<Rowwise> for Cuda {
    fn ready(&self, rowwise: &Rowwise, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = rowwise.signature(&self.mesh)?;
        let Rowwise { dtype, flow, rows, width, program } = *rowwise;
        let mut function = Function::new("rowwise");
        let (reads, _) = program.operands();
        let (read_names, write_names) = names(program);
        for (at, ((name, extent), operand)) in read_names.iter().zip(reads).zip(&signature.reads).enumerate() {
            let accesses = match extent {
                RowExtent::Table => Accesses::chosen(&[(operand.elements, 1)]),
                _ => Accesses::over(&[(operand.elements, 1)]),
            };
            function.reads(name, at, operand.dtype, operand.elements, accesses);
        }
        for (at, (name, operand)) in write_names.iter().zip(&signature.writes).enumerate() {
            function.writes(name, at, operand.dtype, operand.elements, true, Accesses::over(&[(operand.elements, 1)]));
        }
        if let RowProgram::Rotary { repeat, period, transposed } = program {
            rotary(rowwise, [repeat, period], transposed, &mut function);
            return function.finish();
        }
        let team = if width <= WARP_ROW { 32 } else { THREADS };
        function.grid = [rows.div_ceil(THREADS / team), 1, 1];
        function.shared = if team == 32 { 0 } else { 8 * (THREADS / 32) as u32 };
        function.begin(THREADS);
        let result = if program.operands().1[0] == RowExtent::Flow { flow } else { dtype };
        let row = Row { dtype, result, width, team, is_held: width.div_ceil(team) <= HELD };
        row.begin(rows, &mut function.text);
        row.write(program, &mut function.text);
        function.text.line("}");
        function.finish()
    }
}

/// The names of the operands.
fn names(program: RowProgram) -> (&'static [&'static str], &'static [&'static str]) {
    match program {
        RowProgram::Softmax => (&["x"], &["y"]),
        RowProgram::SoftmaxGrad => (&["y", "dy"], &["dx"]),
        RowProgram::LayerNorm { .. } => (&["x", "scale", "bias"], &["y", "mean", "rstd"]),
        RowProgram::LayerNormGrad => (&["x", "scale", "mean", "rstd", "dy"], &["dx"]),
        RowProgram::RmsNorm { .. } => (&["x", "scale"], &["y", "rstd"]),
        RowProgram::RmsNormGrad => (&["x", "scale", "rstd", "dy"], &["dx"]),
        RowProgram::Rotary { .. } => (&["x", "cos", "sin"], &["y"]),
    }
}

/// How a team of threads works on a row.
struct Row {
    dtype: DType,
    /// The type of the first result.
    result: DType,
    width: u64,
    team: u64,
    is_held: bool,
}

impl Row {
    fn kind(&self) -> &'static str {
        register(self.dtype)
    }

    /// The row of the team, and the lane of the thread in it. A warp without a row ends.
    fn begin(&self, rows: u64, text: &mut Text) {
        if self.team == 32 {
            text.lines([
                format!("u64 row = (u64)blockIdx.x * {} + threadIdx.x / 32;", THREADS / 32),
                format!("if (row >= {rows}) return;"),
                "u32 lane = threadIdx.x % 32;".to_owned(),
                "unsigned char* shared = nullptr;".to_owned(),
            ]);
        } else {
            text.lines(["SHARED(shared);", "u64 row = blockIdx.x;", "u32 lane = threadIdx.x;"]);
        }
    }

    /// Element `i` of a row of operand `name`.
    fn element(&self, name: &str) -> String {
        format!("{}({name}[row * {} + i])", to_register(self.dtype), self.width)
    }

    /// Element `i` of the operand `name`, which all rows share.
    fn shared(&self, name: &str) -> String {
        format!("{}({name}[i])", to_register(self.dtype))
    }

    /// The number of the row in the operand `name`.
    fn statistic(&self, name: &str) -> String {
        format!("{}({name}[row])", to_register(self.dtype))
    }

    /// Registers for what each thread holds of a row.
    fn hold(&self, names: &[&str], text: &mut Text) {
        if self.is_held {
            for name in names {
                text.line(format!("{} {name}[{}];", self.kind(), self.width.div_ceil(self.team)));
            }
        }
    }

    /// A pass over the row; `lines` work on element `i`, the thread's `k`th.
    fn pass(&self, lines: &[String], text: &mut Text) {
        if self.is_held {
            text.line("#pragma unroll");
            text.line(format!("for (int k = 0; k < {}; k++) {{", self.width.div_ceil(self.team)));
            text.line(format!("u32 i = lane + k * {};", self.team));
            text.line(format!("if (i < {}) {{", self.width));
        } else {
            text.line(format!("for (u64 i = lane; i < {}; i += {}) {{", self.width, self.team));
            text.line("{");
        }
        text.lines(lines);
        text.lines(["}", "}"]);
    }

    /// What a pass computes of an element for later ones: held in register `name`, or computed
    /// again
    /// by each.
    fn keep(&self, name: &str, value: &str) -> String {
        if self.is_held { format!("{name}[k] = {value};") } else { String::new() }
    }

    fn kept(&self, name: &str, value: &str) -> String {
        if self.is_held { format!("{name}[k]") } else { format!("({value})") }
    }

    /// The sum of `name` over the team.
    fn total(&self, kind: &str, name: &str) -> String {
        format!("{name} = over_block<{kind}, {}>({name}, shared);", self.team / 32)
    }

    fn store(&self, name: &str, value: &str) -> String {
        format!("{name}[row * {} + i] = {}({value});", self.width, conversion(self.result))
    }

    fn store_statistic(&self, name: &str, value: &str) -> String {
        format!("if (lane == 0) {name}[row] = {}({value});", conversion(self.dtype))
    }

    fn constant(&self, value: f64) -> String {
        constant(self.dtype.computed(), value)
    }

    fn write(&self, program: RowProgram, text: &mut Text) {
        match program {
            RowProgram::Softmax => self.softmax(text),
            RowProgram::SoftmaxGrad => self.softmax_grad(text),
            RowProgram::LayerNorm { eps } => self.layer_norm(eps, text),
            RowProgram::LayerNormGrad => self.layer_norm_grad(text),
            RowProgram::RmsNorm { eps } => self.rms_norm(eps, text),
            RowProgram::RmsNormGrad => self.rms_norm_grad(text),
            RowProgram::Rotary { .. } => {}
        }
    }

    fn softmax(&self, text: &mut Text) {
        let (kind, x) = (self.kind(), self.element("x"));
        self.hold(&["v"], text);
        text.line(format!("{kind} top = {};", self.constant(f64::NEG_INFINITY)));
        self.pass(&[self.keep("v", &x), format!("top = max_(top, {});", self.kept("v", &x))], text);
        text.line(self.total("Max", "top"));
        text.line(format!("{kind} sum = 0;"));
        let power = format!("exp_({} - top)", self.kept("v", &x));
        self.pass(&[self.keep("v", &power), format!("sum += {};", self.kept("v", &power))], text);
        text.line(self.total("Sum", "sum"));
        text.line(format!("{kind} scale = {} / sum;", self.constant(1.0)));
        self.pass(&[self.store("y", &format!("{} * scale", self.kept("v", &power)))], text);
    }

    fn softmax_grad(&self, text: &mut Text) {
        let (y, dy) = (self.element("y"), self.element("dy"));
        self.hold(&["v", "dv"], text);
        text.line(format!("{} inner = 0;", self.kind()));
        let (held, gradient) = (self.kept("v", &y), self.kept("dv", &dy));
        self.pass(&[self.keep("v", &y), self.keep("dv", &dy), format!("inner += {held} * {gradient};")], text);
        text.line(self.total("Sum", "inner"));
        self.pass(&[self.store("dx", &format!("{held} * ({gradient} - inner)"))], text);
    }

    fn layer_norm(&self, eps: f64, text: &mut Text) {
        let (kind, x, width) = (self.kind(), self.element("x"), self.constant(self.width as f64));
        let held = self.kept("v", &x);
        self.hold(&["v"], text);
        text.line(format!("{kind} sum = 0, squares = 0;"));
        self.pass(&[self.keep("v", &x), format!("sum += {held};")], text);
        text.line(self.total("Sum", "sum"));
        text.line(format!("{kind} centre = sum / {width};"));
        let centred = format!("{kind} centred = {held} - centre;");
        self.pass(&[centred, "squares += centred * centred;".into()], text);
        text.line(self.total("Sum", "squares"));
        text.line(format!("{kind} scaling = {} / sqrt_(squares / {width} + {});", self.constant(1.0), self.constant(eps)));
        let value = format!("({held} - centre) * scaling * {} + {}", self.shared("scale"), self.shared("bias"));
        self.pass(&[self.store("y", &value)], text);
        text.line(self.store_statistic("mean", "centre"));
        text.line(self.store_statistic("rstd", "scaling"));
    }

    fn layer_norm_grad(&self, text: &mut Text) {
        let (kind, width) = (self.kind(), self.constant(self.width as f64));
        let normal = format!("({} - centre) * scaling", self.element("x"));
        let scaled = format!("{} * {}", self.element("dy"), self.shared("scale"));
        let (h, g) = (self.kept("h", &normal), self.kept("g", &scaled));
        text.line(format!("{kind} centre = {}, scaling = {};", self.statistic("mean"), self.statistic("rstd")));
        self.hold(&["h", "g"], text);
        text.line(format!("{kind} sum = 0, inner = 0;"));
        let lines = [self.keep("h", &normal), self.keep("g", &scaled), format!("sum += {g};"), format!("inner += {g} * {h};")];
        self.pass(&lines, text);
        text.line(self.total("Sum", "sum"));
        text.line(self.total("Sum", "inner"));
        text.line(format!("{kind} mean_g = sum / {width}, mean_gh = inner / {width};"));
        self.pass(&[self.store("dx", &format!("scaling * ({g} - mean_g - {h} * mean_gh)"))], text);
    }

    fn rms_norm(&self, eps: f64, text: &mut Text) {
        let (kind, x, width) = (self.kind(), self.element("x"), self.constant(self.width as f64));
        let held = self.kept("v", &x);
        self.hold(&["v"], text);
        text.line(format!("{kind} squares = 0;"));
        self.pass(&[self.keep("v", &x), format!("squares += {held} * {held};")], text);
        text.line(self.total("Sum", "squares"));
        text.line(format!("{kind} scaling = {} / sqrt_(squares / {width} + {});", self.constant(1.0), self.constant(eps)));
        self.pass(&[self.store("y", &format!("{held} * scaling * {}", self.shared("scale")))], text);
        text.line(self.store_statistic("rstd", "scaling"));
    }

    fn rms_norm_grad(&self, text: &mut Text) {
        let (kind, width) = (self.kind(), self.constant(self.width as f64));
        let normal = format!("{} * scaling", self.element("x"));
        let scaled = format!("{} * {}", self.element("dy"), self.shared("scale"));
        let (h, g) = (self.kept("h", &normal), self.kept("g", &scaled));
        text.line(format!("{kind} scaling = {};", self.statistic("rstd")));
        self.hold(&["h", "g"], text);
        text.line(format!("{kind} inner = 0;"));
        self.pass(&[self.keep("h", &normal), self.keep("g", &scaled), format!("inner += {g} * ({h});")], text);
        text.line(self.total("Sum", "inner"));
        text.line(format!("{kind} mean_gh = inner / {width};"));
        self.pass(&[self.store("dx", &format!("scaling * ({g} - {h} * mean_gh)"))], text);
    }
}

/// A thread turns one element of the first half of a row with its partner in the second.
fn rotary(rowwise: &Rowwise, [repeat, period]: [u64; 2], is_transposed: bool, function: &mut Function) {
    let (half, width, dtype) = (rowwise.width / 2, rowwise.width, rowwise.dtype);
    let total = rowwise.rows * half;
    function.threads_over(total);
    function.begin(THREADS);
    let (kind, load, store) = (register(dtype), to_register(dtype), conversion(dtype));
    let (first, second) = if is_transposed {
        ("x0 * cos0 + x1 * sin1", "x1 * cos1 - x0 * sin0")
    } else {
        ("x0 * cos0 - x1 * sin0", "x1 * cos1 + x0 * sin1")
    };
    function.text.lines([
        format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
        format!("if (i >= {total}) return;"),
        format!("u64 row = i / {half}, column = i % {half};"),
        format!("u64 at = row * {width} + column, turn = row / {repeat} % {period} * {width} + column;"),
        format!("{kind} x0 = {load}(x[at]), x1 = {load}(x[at + {half}]);"),
        format!("{kind} cos0 = {load}(cos[turn]), cos1 = {load}(cos[turn + {half}]);"),
        format!("{kind} sin0 = {load}(sin[turn]), sin1 = {load}(sin[turn + {half}]);"),
        format!("y[at] = {store}({first});"),
        format!("y[at + {half}] = {store}({second});"),
        "}".to_owned(),
    ]);
}
