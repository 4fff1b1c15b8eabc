//! Moves, gathers and scatters.

use crate::run;
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::prepare;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::position::*;

#[test]
fn an_index_outside_the_table_is_an_error() {
    let gather =
        Gather { dtype: DType::F32, batch: 1, outer: 1, rows: 4, total_rows: 4, inner: 2, count: 2, origin: Origin::whole(4) };
    for (bad, found) in
        [(4i64, "index 4 at position 1"), (-5, "index -5 at position 1"), (i64::MIN, "is outside a table of 4 rows")]
    {
        let prepared = prepare(&Kernel::Gather(gather.clone()), &[None, None]).unwrap();
        let mut out = [0f32; 4];
        let reads = [Slice::F32(&[0.0; 8]), Slice::I64(&[1, bad])];
        let error = prepared.launch(run(&reads, vec![SliceMut::F32(&mut out)])).unwrap_err();
        assert!(error.to_string().contains(found), "{error}");
    }
}
