//! Contractions as products of matrices: how operands lie, and why a contraction is none.

use shardc_codegen::matmul::{Compute, Epilogue, Layout, Matmul};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Contract, ContractDim, Map};
use shardc_ir::scalar::{Binary, Instr};

const NONE: [ContractDim; 0] = [];

fn dim(size: u64, a: i64, b: i64, c: i64) -> ContractDim {
    ContractDim { size, a, b, c }
}

fn contract(batch: &[ContractDim], m: &[ContractDim], n: &[ContractDim], k: &[ContractDim]) -> Contract {
    let [batch, m, n, k] = [batch, m, n, k].map(<[ContractDim]>::to_vec);
    Contract { dtype: DType::F32, result: DType::F32, batch, m, n, k }
}

/// `mk,kn->mn`, row by row.
fn plain() -> Contract {
    contract(&NONE, &[dim(6, 5, 0, 4)], &[dim(4, 0, 1, 1)], &[dim(5, 1, 4, 0)])
}

fn layout(rows: u64, columns: u64, leading: i64) -> Layout {
    Layout { dtype: DType::F32, rows, columns, leading, batch: 1, stride: 0 }
}

#[test]
fn results_row_by_row_are_the_transposed_product() {
    let matmul = Matmul::of(&plain()).unwrap();
    assert_eq!((matmul.swapped, matmul.transposed, matmul.compute), (true, [false; 2], Compute::F32));
    assert_eq!((matmul.a, matmul.b, matmul.d), (layout(4, 5, 4), layout(5, 6, 5), layout(4, 6, 4)));
    assert_eq!((matmul.alpha, matmul.beta, matmul.c, matmul.alignment), (1.0, 0.0, matmul.d, [4; 4]));

    // `mk,nk->mn`: `b` lies the other way round.
    let matmul = Matmul::of(&contract(&NONE, &[dim(6, 5, 0, 4)], &[dim(4, 0, 5, 1)], &[dim(5, 1, 1, 0)])).unwrap();
    assert_eq!((matmul.swapped, matmul.transposed), (true, [true, false]));
    assert_eq!((matmul.a, matmul.b, matmul.d), (layout(5, 4, 5), layout(5, 6, 5), layout(4, 6, 4)));

    // `km,kn->nm`: the result column by column.
    let matmul = Matmul::of(&contract(&NONE, &[dim(6, 1, 0, 1)], &[dim(4, 0, 1, 6)], &[dim(5, 6, 4, 0)])).unwrap();
    assert_eq!((matmul.swapped, matmul.transposed), (false, [false, true]));
    assert_eq!((matmul.a, matmul.b, matmul.d), (layout(6, 5, 6), layout(4, 5, 4), layout(6, 4, 6)));
}

#[test]
fn letters_that_follow_one_another_are_one() {
    // `btk,kn->btn`, and `btk,btn->kn` with its letters in another order.
    let rows = [dim(2, 15, 0, 12), dim(3, 5, 0, 4), dim(1, 7, 0, 9)];
    assert_eq!(Matmul::of(&contract(&NONE, &rows, &[dim(4, 0, 1, 1)], &[dim(5, 1, 4, 0)])), Matmul::of(&plain()));
    let sum = [dim(3, 5, 4, 0), dim(2, 15, 12, 0)];
    let matmul = Matmul::of(&contract(&NONE, &[dim(5, 1, 0, 4)], &[dim(4, 0, 1, 1)], &sum)).unwrap();
    assert_eq!((matmul.a, matmul.transposed, matmul.b), (layout(4, 6, 4), [false, true], layout(5, 6, 5)));
}

#[test]
fn a_batch_is_one_stride_and_may_read_one_matrix() {
    let mut contract = plain();
    contract.batch = vec![dim(2, 90, 0, 72), dim(3, 30, 0, 24)];
    let matmul = Matmul::of(&contract).unwrap();
    assert_eq!([matmul.a.stride, matmul.b.stride, matmul.d.stride], [0, 30, 24]);
    assert_eq!([matmul.a, matmul.b, matmul.c, matmul.d].map(|layout| layout.batch), [6; 4]);
    // Heads beside one another in rows.
    contract.batch = vec![dim(3, 5, 20, 4)];
    (contract.m[0].a, contract.m[0].c) = (15, 12);
    let matmul = Matmul::of(&contract).unwrap();
    assert_eq!([matmul.b.leading, matmul.b.stride, matmul.d.leading, matmul.d.stride], [15, 5, 12, 4]);
}

#[test]
fn vectors_lie_as_they_are() {
    // A row whose elements are apart, and a column of neighbours.
    let matmul = Matmul::of(&contract(&NONE, &NONE, &[dim(4, 0, 1, 3)], &[dim(5, 7, 4, 0)])).unwrap();
    assert_eq!((matmul.swapped, matmul.d), (false, layout(1, 4, 3)));
    assert_eq!((matmul.a, matmul.transposed), (layout(1, 5, 7), [false, true]));
    let matmul = Matmul::of(&contract(&NONE, &NONE, &[dim(4, 0, 1, 1)], &NONE)).unwrap();
    assert_eq!((matmul.swapped, matmul.a, matmul.b, matmul.d), (true, layout(4, 1, 4), layout(1, 1, 1), layout(4, 1, 4)));
}

#[test]
fn alignments_are_powers_of_two_that_divide() {
    let matmul = Matmul::of(&plain()).unwrap();
    assert!(matmul.swapped);
    assert_eq!(matmul.clone().aligned([64, 16, 1024]).alignment, [16, 64, 256, 256]);
    assert_eq!(matmul.aligned([48, 4, 24]).alignment, [4, 16, 8, 8]);
}

#[test]
fn tf32_is_for_f32() {
    let of = |dtype| Matmul::of(&Contract { dtype, result: dtype, ..plain() }).unwrap().with_tf32().compute;
    assert_eq!([DType::F32, DType::BF16, DType::F64].map(of), [Compute::Tf32, Compute::F32, Compute::F64]);
}

#[test]
fn products_are_plain_data() {
    let matmul = Matmul::of(&plain()).unwrap();
    let text = serde_json::to_string(&matmul).unwrap();
    assert_eq!(serde_json::from_str::<Matmul>(&text).unwrap(), matmul);
}

/// A change that makes a contraction none of cuBLASLt's, and a part of the reason.
type Wrong = (fn(&mut Contract), &'static str);

const WRONG: &[Wrong] = &[
    (|contract| contract.dtype = DType::I64, "no products of i64 with results of f32"),
    (|contract| contract.result = DType::BF16, "no products of f32 with results of bf16"),
    (|contract| (contract.dtype, contract.result) = (DType::BF16, DType::F16), "no products of bf16 with results of f16"),
    (|contract| contract.k[0].size = 0, "a size is 0"),
    (|contract| contract.m[0].size = 0, "a size is 0"),
    (|contract| contract.m[0].a = -5, "a stride is negative"),
    (|contract| contract.m[0].b = 1, "of a letter that the operand lacks"),
    (|contract| contract.k[0].c = 1, "of a letter that the operand lacks"),
    (|contract| contract.batch = vec![dim(2, 30, 20, 24), dim(2, 100, 40, 48)], "the letters of the batch are 2 dimensions"),
    (|contract| contract.m.push(dim(2, 100, 0, 100)), "the letters of the rows are 2 dimensions"),
    (|contract| contract.n.push(dim(2, 0, 100, 100)), "the letters of the columns are 2 dimensions"),
    (|contract| contract.k.push(dim(2, 100, 100, 0)), "the letters of the sum are 2 dimensions"),
    // Letters that follow one another in one operand only.
    (|contract| contract.m = vec![dim(2, 15, 0, 40), dim(3, 5, 0, 4)], "the letters of the rows are 2 dimensions"),
    (|contract| contract.m = vec![dim(2, 40, 0, 12), dim(3, 5, 0, 4)], "the letters of the rows are 2 dimensions"),
    (|contract| contract.k = vec![dim(2, 3, 40, 0), dim(3, 1, 4, 0)], "the letters of the sum are 2 dimensions"),
    (|contract| contract.batch = vec![dim(1 << 31, 0, 0, 24)], "a dimension has more than 2147483647 positions"),
    (|contract| contract.n[0].c = 0, "results share elements"),
    (|contract| contract.batch = vec![dim(2, 0, 0, 0)], "results share elements"),
    (
        |contract| (contract.m[0].c, contract.n[0].c) = (8, 2),
        "the result is no matrix of neighbours that are apart: 6 steps of 8 by 4 steps of 2",
    ),
    (|contract| contract.k[0].a = 2, "`a` is no matrix of neighbours"),
    (|contract| contract.n[0].b = 2, "`b` is no matrix of neighbours"),
    // Elements that are read twice within a matrix.
    (|contract| contract.m[0].a = 0, "`a` is no matrix of neighbours"),
    (|contract| contract.n[0].b = 0, "`b` is no matrix of neighbours"),
    (|contract| contract.m[0].a = 4, "`a` is no matrix of neighbours"),
];

#[test]
fn what_is_no_product_has_a_reason() {
    for (number, (change, why)) in WRONG.iter().enumerate() {
        let mut contract = plain();
        change(&mut contract);
        let reason = Matmul::of(&contract).unwrap_err().to_string();
        assert!(reason.contains(why), "{number}: {reason}, not {why}");
    }
}

/// `p + v + m` in any order is one call; another function of the three, or another vector, is none.
#[test]
fn a_vector_and_a_matrix_are_added_in_one_call() {
    let product = Matmul::of(&plain()).unwrap();
    let (all, line): (&[i64], &[i64]) = (&[4, 1], &[0, 1]);
    let map = |inputs: &[&[i64]], code| Map::of_f32(&[6, 4], inputs, code);
    let add = |a, b| Instr::Binary(Binary::Add, a, b);
    for code in [vec![add(0, 1), add(3, 2)], vec![add(1, 2), add(0, 3)]] {
        let (with, vector, matrix) = product.with_bias_accumulating(&map(&[all, line, all], code), 0).unwrap();
        assert_eq!((with.epilogue, with.beta, vector, matrix), (Epilogue::Bias, 1.0, 1, 2));
    }
    let sums = || vec![add(0, 1), add(3, 2)];
    let refused = [
        map(&[all, line, all], vec![add(0, 1), Instr::Binary(Binary::Mul, 3, 2)]),
        map(&[all, line, all], vec![add(0, 1), add(3, 1)]),
        map(&[all, &[1, 0], all], sums()),
        map(&[all, line, line], sums()),
    ];
    for (number, map) in refused.iter().enumerate() {
        assert_eq!(product.with_bias_accumulating(map, 0), None, "{number}");
    }
}
