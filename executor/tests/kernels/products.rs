//! Contractions and attention.

use crate::launch;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_testkit::reference::{self, draw::COORDINATES};

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

/// Attention of one head of width 1, whose queries and keys are hidden from each other by a mask
/// operand.
fn masked(queries: u64, keys: u64) -> Attention {
    let of = |positions: u64| [positions as i64, positions as i64, 1];
    let mask = AttentionMask::Operand { dtype: DType::Bool, strides: [0, 0, keys as i64, 1] };
    Attention {
        dtype: DType::F32,
        batch: 1,
        heads: 1,
        kv_heads: 1,
        q_len: queries,
        kv_len: keys,
        width: 1,
        v_width: 1,
        scale: 1.0,
        mask,
        q: of(queries),
        k: of(keys),
        v: of(keys),
        o: of(queries),
    }
}

/// What overflows for a query that sees nothing is not multiplied with its zeros.
#[test]
fn a_query_that_sees_nothing_has_no_gradient() {
    let (q, k, v, mask) = (vec![1.0, 1.0], vec![1.0], vec![3e38], vec![0.0, 1.0]);
    let (o, lse, d_o) = (vec![0.0, 3e38], vec![f64::NEG_INFINITY, 1.0], vec![2.0, 0.0]);
    let gradient = Kernel::AttentionGrad(AttentionGrad(masked(2, 1)));
    let results = launch(&gradient, &[q, k, v, mask, o, lse, d_o], &COORDINATES, Threads(1));
    assert_eq!(results, [vec![0.0, 0.0], vec![0.0], vec![0.0]]);
}

/// A query whose scores are not numbers gets no numbers, and no zeros as one that sees nothing.
#[test]
fn a_query_that_is_not_a_number_is_not_hidden() {
    let reads = [vec![f64::NAN, 1.0, f64::NAN], vec![1.0, 2.0], vec![3.0, 4.0], vec![1.0, 1.0, 0.0, 0.0, 0.0, 1.0]];
    let attention = Kernel::Attention(masked(3, 2));
    let found = launch(&attention, &reads, &COORDINATES, Threads(1));
    let wanted = reference::run(&attention, &reads, vec![vec![0.0; 3]; 2], &COORDINATES);
    for results in [&found, &wanted] {
        let (o, lse) = (&results[0], &results[1]);
        assert!(o[0].is_nan() && o[1] == 0.0 && o[2].is_nan(), "{o:?}");
        assert!(lse[0].is_nan() && lse[1] == f64::NEG_INFINITY && lse[2].is_nan(), "{lse:?}");
    }
}
