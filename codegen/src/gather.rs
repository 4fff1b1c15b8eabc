//! Gather: a thread copies one element of a row that an index names.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, conversion, digit, element, number, over, row_major, sum, times};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Gather, Implements};
use shardc_ir::position::OriginDigit;
use shardc_ir::reason::Reason;

impl Implements<Gather> for Cuda {
    fn ready(&self, gather: &Gather, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = gather.signature(&self.mesh)?;
        let [tables, indices, total] = [signature.reads[0].elements, signature.reads[1].elements, signature.writes[0].elements];
        let Gather { dtype, outer, rows, inner, count, .. } = *gather;
        let mut function = Function::new("gather");
        function.reads("table", 0, dtype, tables, Accesses::chosen(&[(tables, 1)]));
        function.reads("index", 1, DType::I64, indices, Accesses::over(&[(indices, 1)]));
        function.writes("y", 0, dtype, total, true, Accesses::over(&[(total, 1)]));
        function.may_fail();
        let offset = number(&gather.origin.offset, &mut function.numbers);
        function.threads_over(total);
        function.begin(THREADS);
        let text = &mut function.text;
        text.lines([
            format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
            format!("if (i >= {total}) return;"),
            format!(
                "u64 column = {}, position = {}, block = i{};",
                digit("i", 1, inner),
                digit("i", inner, count),
                over(inner * count)
            ),
            format!("i64 global = index[{}];", row_major(&format!("block{}", over(outer)), &[("position", count)])),
        ]);
        local_row(gather, &offset, text);
        text.lines([
            format!("{} value = {}((i64)0);", element(dtype), conversion(dtype)),
            format!("if (is_held) value = table[{}];", row_major("block", &[("local", rows), ("column", inner)])),
            "y[i] = value;".into(),
            "}".into(),
        ]);
        function.finish()
    }
}

/// Lines that find from the index `global` the row `local`, and `is_held`, whether it is this
/// rank's.
pub fn local_row(gather: &Gather, offset: &str, text: &mut Text) {
    let Gather { total_rows, rows, .. } = *gather;
    text.lines([
        format!("if (global < 0) global += {total_rows};"),
        format!("bool is_there = global >= 0 && global < {total_rows};"),
        "if (!is_there) fail(fault, 1);".to_owned(),
        format!("u64 within = (u64)global - (u64)({offset});"),
    ]);
    let digits = &gather.origin.digits;
    // Neighbouring rows, as most tables are held; what lies before them is large without a sign.
    if matches!(digits[..], [OriginDigit { divisor: 1, stride: 1, size }] if size == rows) {
        return text.lines(["u64 local = within;".to_owned(), format!("bool is_held = is_there && local < {rows};")]);
    }
    let local = |d: &OriginDigit| match d.stride {
        0 => "0".to_owned(),
        stride => format!("{}{}", digit("within", stride, d.size), times(d.divisor)),
    };
    let back = |d: &OriginDigit| format!("{}{}", digit("local", d.divisor, d.size), times(d.stride));
    let back = sum(digits.iter().map(back).collect());
    text.lines([
        format!("u64 local = {};", sum(digits.iter().map(local).collect())),
        format!("bool is_held = is_there && global >= {offset} && local < {rows} && ({back}) == within;"),
    ]);
}
