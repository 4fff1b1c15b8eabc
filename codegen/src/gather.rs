//! Gather: a thread copies one element of a row that an index names.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{Text, conversion, element, number, sum};
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
            format!("u64 column = i % {inner}, position = i / {inner} % {count}, block = i / {};", inner * count),
            format!("i64 global = index[block / {outer} * {count} + position];"),
        ]);
        local_row(gather, &offset, text);
        text.lines([
            format!("{} value = {}((i64)0);", element(dtype), conversion(dtype)),
            format!("if (is_held) value = table[(block * {rows} + local) * {inner} + column];"),
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
    let digits = &gather.origin.digits;
    let by = |sign: char, number: u64| if number == 1 { String::new() } else { format!(" {sign} {number}") };
    let local = |d: &OriginDigit| match d.stride {
        0 => "0".to_owned(),
        stride => format!("within{} % {}{}", by('/', stride), d.size, by('*', d.divisor)),
    };
    let back = |d: &OriginDigit| format!("local{} % {}{}", by('/', d.divisor), d.size, by('*', d.stride));
    let back = sum(digits.iter().map(back).collect());
    text.lines([
        format!("if (global < 0) global += {total_rows};"),
        format!("bool is_there = global >= 0 && global < {total_rows};"),
        "if (!is_there) fail(fault, 1);".to_owned(),
        format!("u64 within = (u64)global - (u64)({offset});"),
        format!("u64 local = {};", sum(digits.iter().map(local).collect())),
        format!("bool is_held = is_there && global >= {offset} && local < {rows} && ({back}) == within;"),
    ]);
}
