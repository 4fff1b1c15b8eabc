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

/// What overflows for a query that sees nothing is not multiplied with its zeros.
#[test]
fn a_query_that_sees_nothing_has_no_gradient() {
    let mask = AttentionMask::Operand { dtype: DType::Bool, strides: [0, 0, 1, 1] };
    let (strides, ones) = ([2, 2, 1], [1, 1, 1]);
    let attention = Attention {
        dtype: DType::F32,
        batch: 1,
        heads: 1,
        kv_heads: 1,
        q_len: 2,
        kv_len: 1,
        width: 1,
        v_width: 1,
        scale: 1.0,
        mask,
        q: strides,
        k: ones,
        v: ones,
        o: strides,
    };
    let (q, k, v, mask) = (vec![1.0, 1.0], vec![1.0], vec![3e38], vec![0.0, 1.0]);
    let (o, lse, d_o) = (vec![0.0, 3e38], vec![f64::NEG_INFINITY, 1.0], vec![2.0, 0.0]);
    let gradient = Kernel::AttentionGrad(AttentionGrad(attention));
    let results = launch(&gradient, &[q, k, v, mask, o, lse, d_o], &COORDINATES, Threads(1));
    assert_eq!(results, [vec![0.0, 0.0], vec![0.0], vec![0.0]]);
}
