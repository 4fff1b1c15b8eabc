//! Fill: every thread writes one element.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::text::{constant, conversion};
use shardc_ir::kernel::{Fill, Form, Implements};
use shardc_ir::reason::Reason;

impl Implements<Fill> for Cuda {
    fn ready(&self, fill: &Fill, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        fill.signature(&self.mesh)?;
        let mut function = Function::new("fill");
        function.writes("y", 0, fill.dtype, fill.count, true, Accesses::over(&[(fill.count, 1)]));
        function.threads_over(fill.count);
        function.begin(THREADS);
        // The value is one of 64 bits, as in the definition, and rounded once.
        let value = constant(shardc_ir::dtype::DType::F64, fill.value);
        function.text.lines([
            format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"),
            format!("if (i < {}) y[i] = {}({value});", fill.count, conversion(fill.dtype)),
            "}".into(),
        ]);
        function.finish()
    }
}
