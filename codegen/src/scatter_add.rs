//! ScatterAdd: a block has some rows of a table. Its warps look through the indices, each through a
//! part of them, and note in shared memory where these rows are named; then a warp has a row, and
//! adds up what was noted for it in the order of the indices. So every element is summed as on one
//! thread, without atomics.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::gather::local_row;
use crate::generated::{Accesses, Generated, Memory, Parameter};
use crate::text::{conversion, digit_times, number, over, register, row_major, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Gather, Implements, ONTO, ScatterAdd};
use shardc_ir::reason::Reason;

/// Rows of a block, one for each warp.
const ROWS: u64 = THREADS / 32;

/// Columns that a lane sums at once, at most.
const COLUMNS: u64 = 32;

/// Warps that a table should have, so that every processor of a large GPU has some.
const WARPS: u64 = 4096;

/// Indices that a warp looks through between two barriers, at most.
const LOOKS: u64 = 512;

/// Columns that a lane sums: fewer where rows are few.
fn columns(rows: u64, inner: u64) -> u64 {
    let mut columns = COLUMNS.min(inner.div_ceil(32)).max(1);
    while columns > 1 && rows * inner.div_ceil(32 * columns) < WARPS {
        columns = columns.div_ceil(2);
    }
    columns
}

impl Implements<ScatterAdd> for Cuda {
    fn ready(&self, scatter: &ScatterAdd, in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = scatter.signature(&self.mesh)?;
        let [indices, source, tables] = [signature.reads[0].elements, signature.reads[1].elements, signature.writes[0].elements];
        let gather = &scatter.gather;
        let Gather { dtype, batch, outer, rows, inner, count, .. } = *gather;
        let mut function = Function::new("scatter_add");
        function.reads("index", 0, DType::I64, indices, Accesses::over(&[(indices, 1)]));
        function.reads("x", 1, dtype, source, Accesses::chosen(&[(source, 1)]));
        let base = match in_place.get(ONTO) {
            Some(Some(_)) => Some("table"),
            _ if scatter.onto => Some("onto"),
            _ => None,
        };
        if base == Some("onto") {
            function.reads("onto", ONTO, dtype, tables, Accesses::over(&[(tables, 1)]));
        }
        let table = Parameter {
            name: "table".into(),
            memory: Memory::Write(0),
            bytes: tables * dtype.bytes(),
            is_read: base == Some("table"),
            is_written: true,
            whole: true,
        };
        function.takes(table, dtype, vec![Accesses { is_write: true, ..Accesses::over(&[(tables, 1)]) }]);
        function.may_fail();
        let offset = number(&gather.origin.offset, &mut function.numbers);
        let columns = columns(batch * outer * rows, inner);
        let across = inner.div_ceil(32 * columns);
        let high = rows.div_ceil(ROWS);
        // Between two barriers a quarter of the indices, as far as there is room.
        let looks = (count.div_ceil(ROWS * 4).next_multiple_of(32)).clamp(32, LOOKS);
        let window = ROWS * looks;
        function.grid = [batch * outer * high * across, 1, 1];
        function.shared = (4 * (window + ROWS)) as u32;
        function.begin(THREADS);
        let (kind, load) = (register(dtype), to_register(dtype));
        let text = &mut function.text;
        text.lines([
            "SHARED(shared);".to_owned(),
            format!("u32 *noted = (u32*)shared, *many = noted + {window};"),
            "u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;".to_owned(),
            format!(
                "u64 first = {} + lane, top = {}, block = (u64)blockIdx.x{};",
                digit_times("(u64)blockIdx.x", 1, across, 32 * columns),
                digit_times("(u64)blockIdx.x", across, high, ROWS),
                over(across * high)
            ),
            format!("{kind} sum[{columns}] = {{}};"),
        ]);
        let element = row_major("block", &[("top + warp", rows), ("first + c * 32", inner)]);
        if let Some(base) = base {
            text.lines([
                "#pragma unroll".to_owned(),
                format!("for (int c = 0; c < {columns}; c++) {{"),
                format!("if (top + warp < {rows} && first + c * 32 < {inner}) sum[c] = {load}({base}[{element}]);"),
                "}".to_owned(),
            ]);
        }
        text.lines([
            format!("for (u64 from = 0; from < {count}; from += {window}) {{"),
            "u32 own = 0;".to_owned(),
            "#pragma unroll 4".to_owned(),
            format!("for (u32 step = 0; step < {looks}; step += 32) {{"),
            format!("u32 at = warp * {looks} + step + lane, row = {ROWS};"),
            format!("if (from + at < {count}) {{"),
            format!("i64 global = index[{}];", row_major(&format!("block{}", over(outer)), &[("from + at", count)])),
        ]);
        local_row(gather, &offset, text);
        text.lines([
            format!("if (is_held && local - top < {ROWS}) row = (u32)(local - top);"),
            "}".to_owned(),
            format!("u32 near = ballot(row < {ROWS});"),
            format!("if (row < {ROWS}) noted[warp * {looks} + own + count_bits(near & ((1u << lane) - 1))] = at * {ROWS} + row;"),
            "own += count_bits(near);".to_owned(),
            "}".to_owned(),
            "if (lane == 0) many[warp] = own;".to_owned(),
            "BARRIER();".to_owned(),
            format!("for (u32 other = 0; other < {ROWS}; other++) {{"),
            "for (u32 step = 0; step < many[other]; step += 32) {".to_owned(),
            format!("u32* note = noted + other * {looks} + step;"),
            format!("bool is_mine = step + lane < many[other] && note[lane] % {ROWS} == warp;"),
            "for (u32 found = ballot(is_mine); found != 0; found &= found - 1) {".to_owned(),
            format!(
                "u64 at = {};",
                row_major("block", &[(&format!("from + note[lowest_bit(found)] / {ROWS}"), count), ("first", inner)])
            ),
            "#pragma unroll".to_owned(),
            format!("for (int c = 0; c < {columns}; c++) {{"),
            format!("if (first + c * 32 < {inner}) sum[c] = add_(sum[c], {load}(x[at + c * 32]));"),
            "}".to_owned(),
            "}".to_owned(),
            "}".to_owned(),
            "}".to_owned(),
            "BARRIER();".to_owned(),
            "}".to_owned(),
            format!("if (top + warp >= {rows}) return;"),
            "#pragma unroll".to_owned(),
            format!("for (int c = 0; c < {columns}; c++) {{"),
            format!("if (first + c * 32 < {inner}) table[{element}] = {}(sum[c]);", conversion(dtype)),
            "}".to_owned(),
            "}".to_owned(),
        ]);
        function.finish()
    }
}
