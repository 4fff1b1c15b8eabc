//! ScatterAdd: a warp has a row of a table and looks through all indices for it, in their order, so
//! that every element is summed as on one thread, without atomics.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::gather::local_row;
use crate::generated::{Accesses, Generated};
use crate::text::{conversion, digit, digit_times, number, over, register, row_major, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Gather, Implements, ScatterAdd};
use shardc_ir::reason::Reason;

/// Columns that a lane sums at once.
const COLUMNS: u64 = 8;

impl Implements<ScatterAdd> for Cuda {
    fn ready(&self, scatter: &ScatterAdd, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = scatter.signature(&self.mesh)?;
        let [indices, source, tables] = [signature.reads[0].elements, signature.reads[1].elements, signature.writes[0].elements];
        let gather = &scatter.0;
        let Gather { dtype, batch, outer, rows, inner, count, .. } = *gather;
        let mut function = Function::new("scatter_add");
        function.reads("index", 0, DType::I64, indices, Accesses::over(&[(indices, 1)]));
        function.reads("x", 1, dtype, source, Accesses::chosen(&[(source, 1)]));
        function.writes("table", 0, dtype, tables, true, Accesses::over(&[(tables, 1)]));
        function.may_fail();
        let offset = number(&gather.origin.offset, &mut function.numbers);
        let columns = COLUMNS.min(inner.div_ceil(32)).max(1);
        let (warps, across) = (THREADS / 32, inner.div_ceil(32 * columns));
        let all = batch * outer * rows * across;
        function.grid = [all.div_ceil(warps), 1, 1];
        function.begin(THREADS);
        let (kind, load) = (register(dtype), to_register(dtype));
        let text = &mut function.text;
        text.lines([
            format!("u64 warp = (u64)blockIdx.x * {warps} + threadIdx.x / 32;"),
            format!("if (warp >= {all}) return;"),
            "u32 lane = threadIdx.x % 32;".to_owned(),
            format!(
                "u64 first = {} + lane, row = {}, block = warp{};",
                digit_times("warp", 1, across, 32 * columns),
                digit("warp", across, rows),
                over(across * rows)
            ),
            format!("{kind} sum[{columns}] = {{}};"),
            format!("for (u64 from = 0; from < {count}; from += 32) {{"),
            "bool is_mine = false;".to_owned(),
            format!("if (from + lane < {count}) {{"),
            format!("i64 global = index[{} + lane];", row_major(&format!("block{}", over(outer)), &[("from", count)])),
        ]);
        local_row(gather, &offset, text);
        text.lines([
            "is_mine = is_held && local == row;".to_owned(),
            "}".to_owned(),
            "for (u32 found = ballot(is_mine); found != 0; found &= found - 1) {".to_owned(),
            format!("u64 at = {};", row_major("block", &[("from + lowest_bit(found)", count), ("first", inner)])),
            "#pragma unroll".to_owned(),
            format!("for (int c = 0; c < {columns}; c++) {{"),
            format!("if (first + c * 32 < {inner}) sum[c] = add_(sum[c], {load}(x[at + c * 32]));"),
            "}".to_owned(),
            "}".to_owned(),
            "}".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (int c = 0; c < {columns}; c++) {{"),
            format!(
                "if (first + c * 32 < {inner}) table[{}] = {}(sum[c]);",
                row_major("block", &[("row", rows), ("first + c * 32", inner)]),
                conversion(dtype)
            ),
            "}".to_owned(),
            "}".to_owned(),
        ]);
        function.finish()
    }
}
