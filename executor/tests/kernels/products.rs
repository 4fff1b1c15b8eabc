//! Contractions and attention.

use crate::launch;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_testkit::reference::draw::COORDINATES;

#[test]
fn an_empty_sum_is_zero() {
    let dim = |size, a, b, c| ContractDim { size, a, b, c };
    let contract = Contract {
        dtype: DType::F32,
        result: DType::F32,
        batch: vec![],
        m: vec![dim(2, 0, 0, 3)],
        n: vec![dim(3, 0, 1, 1)],
        k: vec![dim(0, 1, 3, 0)],
    };
    assert_eq!(launch(&Kernel::Contract(contract), &[vec![], vec![]], &COORDINATES, Threads(1))[0], [0.0; 6]);
}
