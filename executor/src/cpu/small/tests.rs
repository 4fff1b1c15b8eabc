//! Products with and without triangles against plain sums.

use super::*;
use faer::Mat;

/// Small whole numbers, whose sums are exact.
fn numbers(rows: usize, cols: usize, seed: usize) -> Mat<f32> {
    Mat::from_fn(rows, cols, |row, col| ((row * 7 + col * 13 + seed) % 11) as f32 - 5.0)
}

/// Whether an element is in the triangle of the row and the columns before `row + n`.
fn is_in(row: usize, col: usize, n: isize) -> bool {
    (col as isize) < row as isize + n
}

fn check([rows, cols, terms]: [usize; 3], triangle: Triangle, [a_turned, b_turned, c_turned]: [bool; 3], accumulate: Accum) {
    let mut a = numbers(rows, terms, 1);
    for row in 0..rows {
        for term in 0..terms {
            let matters = match triangle {
                Triangle::OfA(n) => is_in(row, term, n),
                Triangle::OfTransposedA(n) => is_in(term, row, n),
                Triangle::Whole | Triangle::OfTransposedC(_) => true,
            };
            a[(row, term)] *= f32::from(matters);
        }
    }
    let b = numbers(terms, cols, 2);
    let before = numbers(rows, cols, 3);
    // Columns of a `Mat` are contiguous; of what is turned, rows are.
    let turned = |matrix: &Mat<f32>| matrix.transpose().to_owned();
    let (a_rows, b_rows) = (turned(&a), turned(&b));
    let of_a = if a_turned { a_rows.transpose() } else { a.as_ref() };
    let of_b = if b_turned { b_rows.transpose() } else { b.as_ref() };
    let mut c = if c_turned { turned(&before) } else { before.clone() };
    let of_c = if c_turned { c.as_mut().transpose_mut() } else { c.as_mut() };
    f32::multiply(of_a, of_b, of_c, accumulate, 0.5, triangle);
    let c = if c_turned { turned(&c) } else { c };
    for row in 0..rows {
        for col in 0..cols {
            let sum: f32 = (0..terms).map(|term| a[(row, term)] * b[(term, col)]).sum();
            let begun = if matches!(accumulate, Accum::Add) { before[(row, col)] } else { 0.0 };
            let is_wanted = if let Triangle::OfTransposedC(n) = triangle { is_in(col, row, n) } else { true };
            if is_wanted {
                let got = c[(row, col)];
                assert_eq!(got, begun + 0.5 * sum, "{rows} x {cols} x {terms}, {triangle:?}: ({row}, {col})");
            }
        }
    }
}

#[test]
fn triangles_leave_out_only_what_does_not_matter() {
    let triangles = [-3, 0, 1, 2, 9, 30, 100]
        .into_iter()
        .flat_map(|n| [Triangle::OfA(n), Triangle::OfTransposedA(n), Triangle::OfTransposedC(n)]);
    for triangle in triangles.chain([Triangle::Whole]) {
        for sizes in [
            [1, 1, 1],
            [8, 16, 4],
            [64, 64, 32],
            [33, 50, 70],
            [17, 96, 9],
            [7, 49, 1],
            [40, 5, 40],
            [9, 20, 0],
            [48, 48, 8],
            [80, 96, 9],
        ] {
            for layout in 0..8 {
                let turned = [layout & 1 > 0, layout & 2 > 0, layout & 4 > 0];
                check(sizes, triangle, turned, Accum::Replace);
                check(sizes, triangle, turned, Accum::Add);
            }
        }
    }
}

#[test]
fn sums_go_over_several_blocks_of_terms() {
    for triangle in
        [Triangle::Whole, Triangle::OfA(700), Triangle::OfA(-3), Triangle::OfTransposedA(1), Triangle::OfTransposedC(-9)]
    {
        check([20, 40, 1600], triangle, [true, true, true], Accum::Replace);
        check([20, 40, 1600], triangle, [true, true, true], Accum::Add);
    }
}
