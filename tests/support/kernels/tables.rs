//! Sums into rows of tables by more indices than are looked through at a time.

use super::{Case, case};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Gather, Kernel, ScatterAdd};
use shardc_ir::mesh::Mesh;
use shardc_ir::position::Origin;

/// Sums that begin with 0, with another table, and with the one that they are written over.
pub fn cases() -> Vec<Case> {
    let gather =
        |dtype| Gather { dtype, batch: 1, outer: 1, rows: 21, total_rows: 21, inner: 35, count: 601, origin: Origin::whole(21) };
    let kinds = [(DType::F32, false, None), (DType::F32, true, None), (DType::F32, true, Some(0)), (DType::BF16, true, Some(0))];
    let of = |(dtype, onto, place): (DType, bool, Option<usize>)| {
        let kernel = Kernel::ScatterAdd(ScatterAdd { gather: gather(dtype), onto });
        let in_place = if onto { vec![None, None, place] } else { vec![None, None] };
        case("sums into a table", kernel, &in_place, &Mesh::single(), true)
    };
    kinds.map(of).into()
}
