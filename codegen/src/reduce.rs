//! Reduce: a warp or a block a row where rows are neighbours, columns side by side elsewhere. Where
//! results are few, each is cut into parts, which a second launch combines in a fixed order.

use crate::Cuda;
use crate::body::Body;
use crate::function::Function;
use crate::generated::{Accesses, Generated, Memory};
use crate::space;
use crate::text::{constant, conversion, register, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Implements, Reduce};
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;

/// Threads of a block.
const THREADS: u64 = 256;

/// The longest row that a warp reduces alone.
const WARP_ROW: u64 = 1024;

/// Blocks that keep every GPU busy: eight for each of 128 processors.
const BLOCKS: u64 = 1024;

/// Terms of a part at least.
const PART: u64 = 4096;

/// Terms that a part is a multiple of, so that parts begin where sectors do.
const LINE: u64 = 32;

/// Columns of a block, and rows that it takes at once.
const COLUMNS: u64 = 32;
const LINES: u64 = THREADS / COLUMNS;

/// A reduction over the groups kept outside (0), reduced (1) and kept inside (2).
struct Shape {
    outer: u64,
    reduced: u64,
    inner: u64,
    /// Parts of each result.
    parts: u64,
    /// Terms of a part.
    length: u64,
}

impl Shape {
    fn results(&self) -> u64 {
        self.outer * self.inner
    }
}

impl Implements<Reduce> for Cuda {
    fn ready(&self, reduce: &Reduce, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = reduce.signature(&self.mesh)?;
        let rank = reduce.reduced.len();
        let inner_from = reduce.reduced.iter().rposition(|r| *r).map_or(0, |last| last + 1);
        let group = |d: &usize| if *d >= inner_from { 2 } else { usize::from(reduce.reduced[*d]) };
        let mut order: Vec<usize> = (0..rank).collect();
        order.sort_by_key(group);
        let groups: Vec<usize> = order.iter().map(group).collect();
        let names = (0..reduce.map.inputs.len()).map(|at| format!("a{at}")).collect();
        let body = Body::new(&reduce.map, &order, &groups, names, &[]);
        let shape = shape(&body);
        let reads: Vec<u64> = signature.reads.iter().map(|operand| operand.elements).collect();
        let mut writer = Writer { reduce, body, shape, function: Function::new("reduce") };
        writer.begin(&reads);
        if writer.shape.reduced == 0 || writer.shape.results() == 0 {
            writer.nothing();
        } else if writer.shape.inner == 1 {
            writer.rows();
        } else {
            writer.columns();
        }
        if writer.shape.parts > 1 {
            writer.function.next()?;
            writer.combine();
        }
        writer.function.finish()
    }
}

/// The sizes, and how many parts each result has.
fn shape(body: &Body<'_>) -> Shape {
    let [outer, reduced, inner] = [0, 1, 2].map(|group| body.space.elements(group));
    let blocks = if inner == 1 { outer } else { outer * inner.div_ceil(COLUMNS) };
    let least = if inner == 1 { PART } else { PART / COLUMNS };
    let wanted = BLOCKS.checked_div(blocks).unwrap_or(1).min(reduced / least).max(1);
    let length = reduced.div_ceil(wanted).next_multiple_of(if wanted > 1 { LINE } else { 1 }).max(1);
    Shape { outer, reduced, inner, parts: reduced.div_ceil(length).max(1), length }
}

/// The name of the combination.
pub fn kind(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "Sum",
        ReduceKind::Max => "Max",
        ReduceKind::Min => "Min",
    }
}

/// What nothing combines to, as a register of `dtype`.
pub fn identity(kind: ReduceKind, dtype: DType) -> String {
    let (low, high) = if dtype.is_float() { (f64::NEG_INFINITY, f64::INFINITY) } else { (i64::MIN as f64, i64::MAX as f64) };
    match kind {
        ReduceKind::Sum => constant(dtype, 0.0),
        ReduceKind::Max => constant(dtype, low),
        ReduceKind::Min => constant(dtype, high),
    }
}

struct Writer<'a> {
    reduce: &'a Reduce,
    body: Body<'a>,
    shape: Shape,
    function: Function,
}

impl Writer<'_> {
    /// The type in which results are held until they are whole.
    fn accumulator(&self) -> DType {
        if self.reduce.accumulate == DType::Bool { DType::I64 } else { self.reduce.accumulate }
    }

    fn kind(&self) -> &'static str {
        kind(self.reduce.kind)
    }

    /// The result of nothing.
    fn identity(&self) -> String {
        identity(self.reduce.kind, self.accumulator())
    }

    fn both(&self, a: &str, b: &str) -> String {
        format!("{}<{}>::both({a}, {b})", self.kind(), register(self.accumulator()))
    }

    /// The operands of the first launch.
    fn begin(&mut self, reads: &[u64]) {
        for parameter in self.body.parameters(reads, &[]) {
            let Memory::Read(at) = parameter.memory else { continue };
            let touched = self.body.accesses(at);
            self.function.takes(parameter, self.reduce.map.inputs[at].dtype, vec![touched]);
        }
        let results = self.shape.results();
        if self.shape.parts > 1 {
            let elements = results * self.shape.parts;
            self.function.works_in(self.accumulator(), elements, true);
        } else {
            let dtype = self.reduce.map.outputs[0];
            self.function.writes("y", 0, dtype, results, true, Accesses::over(&[(results, 1)]));
        }
        self.function.numbers = self.body.numbers.clone();
    }

    /// A line that writes the result or part `at`, which is `value`.
    fn store(&self, at: &str, value: &str) -> String {
        if self.shape.parts > 1 {
            format!("part[{at}] = {value};")
        } else {
            format!("y[{at}] = {}({value});", conversion(self.reduce.map.outputs[0]))
        }
    }

    /// Every result is that of nothing.
    fn nothing(&mut self) {
        self.function.threads_over(self.shape.results());
        self.function.begin(THREADS);
        let store = self.store("i", &self.identity());
        self.function.text.lines([
            format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
            format!("if (i < {}) {store}", self.shape.results()),
            "}".into(),
        ]);
    }

    /// The lines of `dims` from a position, and the program's value combined into `sum`.
    fn term(&mut self, dims: Vec<usize>, from: &str) {
        let (kind, both) = (self.body.index_type(), self.both("sum", "value"));
        let convert = to_register(self.accumulator());
        let accumulator = register(self.accumulator());
        let text = &mut self.function.text;
        text.lines(space::indices(&self.body.space.sizes, &dims, from, kind));
        self.body.write(text, |text, results| {
            text.line(format!("{accumulator} value = {convert}({});", results[0]));
            text.line(format!("sum = {both};"));
        });
    }

    /// Results of rows whose elements are neighbours.
    fn rows(&mut self) {
        let Shape { outer, reduced, parts, length, .. } = self.shape;
        let (kind, accumulator) = (self.body.index_type(), register(self.accumulator()));
        let by_warp = length <= WARP_ROW;
        let rows = if by_warp { THREADS / 32 } else { 1 };
        self.function.grid = [outer.div_ceil(rows), parts, 1];
        let once = self.body.shared();
        self.function.shared = once + if by_warp { 0 } else { 8 * (THREADS / 32) as u32 };
        self.function.begin(THREADS);
        self.body.write_once(&mut self.function.text);
        let identity = self.identity();
        if !by_warp && once == 0 {
            self.function.text.line("SHARED(shared);");
        }
        if by_warp {
            self.function.text.lines([
                format!("{kind} row = ({kind})blockIdx.x * {rows} + threadIdx.x / 32;"),
                format!("if (row >= {outer}) return;"),
            ]);
        } else {
            self.function.text.line(format!("{kind} row = blockIdx.x;"));
        }
        let outside = self.body.space.of_group(0);
        self.function.text.lines(space::indices(&self.body.space.sizes, &outside, "row", kind));
        let (lane, step) = if by_warp { ("threadIdx.x % 32", 32) } else { ("threadIdx.x", THREADS) };
        let (first, end) = if parts > 1 {
            self.function.text.line(format!("{kind} first = blockIdx.y * {length}, end = first + {length};"));
            self.function.text.line(format!("if (end > {reduced}) end = {reduced};"));
            (format!("first + {lane}"), "end".to_owned())
        } else {
            (lane.to_owned(), reduced.to_string())
        };
        self.function.text.line(format!("{accumulator} sum = {identity};"));
        self.function.text.line("#pragma unroll 4");
        self.function.text.line(format!("for ({kind} r = {first}; r < {end}; r += {step}) {{"));
        self.term(self.body.space.of_group(1), "r");
        self.function.text.line("}");
        let name = self.kind();
        let at = if parts > 1 { format!("row * {parts} + blockIdx.y") } else { "row".into() };
        let store = self.store(&at, "sum");
        if by_warp {
            self.function.text.line(format!("sum = over_warp<{name}>(sum);"));
            self.function.text.line(format!("if (threadIdx.x % 32 == 0) {store}"));
        } else {
            self.function.text.line(format!("sum = over_block<{name}, {}>(sum, shared + {once});", THREADS / 32));
            self.function.text.line(format!("if (threadIdx.x == 0) {store}"));
        }
        self.function.text.line("}");
    }

    /// Results side by side: a thread has a column, and warps take rows in turn.
    fn columns(&mut self) {
        let Shape { outer, reduced, inner, parts, length } = self.shape;
        let (kind, accumulator) = (self.body.index_type(), register(self.accumulator()));
        let once = self.body.shared().next_multiple_of(16);
        self.function.grid = [inner.div_ceil(COLUMNS) * outer, parts, 1];
        self.function.shared = once + (THREADS * 8) as u32;
        self.function.begin(THREADS);
        self.body.write_once(&mut self.function.text);
        if once == 0 {
            self.function.text.line("SHARED(shared);");
        }
        let (both, identity, blocks) =
            (self.both("sum", &format!("lines[line * {COLUMNS} + lane]")), self.identity(), inner.div_ceil(COLUMNS));
        self.function.text.lines([
            format!("{accumulator}* lines = ({accumulator}*)(shared + {once});"),
            "u32 lane = threadIdx.x % 32, line = threadIdx.x / 32;".to_owned(),
            format!("{kind} outer = blockIdx.x / {blocks}, column = blockIdx.x % {blocks} * {COLUMNS} + lane;"),
            format!("{kind} first = blockIdx.y * {length}, end = first + {length};"),
            format!("if (end > {reduced}) end = {reduced};"),
            format!("{accumulator} sum = {identity};"),
        ]);
        self.function.text.line(format!("if (column < {inner}) {{"));
        let sizes = self.body.space.sizes.clone();
        let (outside, inside) = (self.body.space.of_group(0), self.body.space.of_group(2));
        self.function.text.lines(space::indices(&sizes, &outside, "outer", kind));
        self.function.text.lines(space::indices(&sizes, &inside, "column", kind));
        self.function.text.line("#pragma unroll 4");
        self.function.text.line(format!("for ({kind} r = first + line; r < end; r += {LINES}) {{"));
        self.term(self.body.space.of_group(1), "r");
        self.function.text.lines(["}", "}"]);
        let at = "outer * ".to_owned() + &format!("{inner} + column");
        let at = if parts > 1 { format!("(u64)blockIdx.y * {} + {at}", self.shape.results()) } else { at };
        let store = self.store(&at, "sum");
        self.function.text.lines([
            format!("lines[line * {COLUMNS} + lane] = sum;"),
            "BARRIER();".to_owned(),
            format!("if (line != 0 || column >= {inner}) return;"),
            "#pragma unroll".to_owned(),
            format!("for (line = 1; line < {LINES}; line++) sum = {both};"),
            store,
            "}".to_owned(),
        ]);
    }

    /// The launch that combines parts: of rows by a warp, of columns by a thread.
    fn combine(&mut self) {
        let (results, parts) = (self.shape.results(), self.shape.parts);
        let (accumulator, dtype) = (self.accumulator(), self.reduce.map.outputs[0]);
        let kind = register(accumulator);
        self.function.works_in(accumulator, results * parts, false);
        self.function.writes("y", 0, dtype, results, true, Accesses::over(&[(results, 1)]));
        let by_rows = self.shape.inner == 1;
        let threads = if by_rows { results * 32 } else { results };
        self.function.threads_over(threads);
        self.function.begin(THREADS);
        let (identity, name) = (self.identity(), self.kind());
        let both = self.both("sum", if by_rows { "part[i * PARTS + p]" } else { "part[p * RESULTS + i]" });
        let both = both.replace("PARTS", &parts.to_string()).replace("RESULTS", &results.to_string());
        let store = format!("y[i] = {}(sum);", conversion(dtype));
        let text = &mut self.function.text;
        if by_rows {
            text.lines([
                format!("u64 i = (u64)blockIdx.x * {} + threadIdx.x / 32;", THREADS / 32),
                format!("if (i >= {results}) return;"),
                format!("{kind} sum = {identity};"),
                format!("for (u32 p = threadIdx.x % 32; p < {parts}; p += 32) sum = {both};"),
                format!("sum = over_warp<{name}>(sum);"),
                format!("if (threadIdx.x % 32 == 0) {store}"),
                "}".to_owned(),
            ]);
        } else {
            text.lines([
                format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
                format!("if (i >= {results}) return;"),
                format!("{kind} sum = {identity};"),
                format!("for (u64 p = 0; p < {parts}; p++) sum = {both};"),
                store,
                "}".to_owned(),
            ]);
        }
    }
}
