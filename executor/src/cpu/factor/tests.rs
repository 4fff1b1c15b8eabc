//! Products with sums in f32 against plain loops in f64, by every way, in any layout.

use super::{Factor, Stored, packed, widened, x86};
use crate::cpu::contract::Product;
use crate::cpu::element::Element;
use crate::cpu::team::tests::with_threads;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps};
use ::half::{bf16, f16};
use faer::{Accum, MatMut, MatRef};
use shardc_ir::kernel::ContractDim;
use shardc_testkit::random::Random;

/// A way to multiply.
type Way<T> = fn(MatRef<'_, T>, MatRef<'_, T>, MatMut<'_, f32>, Accum);

fn packed(a: MatRef<'_, bf16>, b: MatRef<'_, bf16>, c: MatMut<'_, f32>, accumulate: Accum) {
    match x86::Pairs::detect() {
        Some(pairs) => packed::multiply(pairs, a, b, c, accumulate),
        None => widened::multiply(a, b, c, accumulate),
    }
}

fn packed_singles(a: MatRef<'_, f32>, b: MatRef<'_, f32>, c: MatMut<'_, f32>, accumulate: Accum) {
    match x86::Singles::detect() {
        Some(singles) => packed::multiply(singles, a, b, c, accumulate),
        None => f32::multiply(a, b, c, accumulate),
    }
}

fn packed_narrow(a: MatRef<'_, f32>, b: MatRef<'_, f32>, c: MatMut<'_, f32>, accumulate: Accum) {
    match x86::Singles::narrowest() {
        Some(singles) => packed::multiply(singles, a, b, c, accumulate),
        None => f32::multiply(a, b, c, accumulate),
    }
}

/// The element as f64, exactly.
fn number<E: Element>(element: E) -> f64 {
    element.cast()
}

/// In -2 to 2, with few digits, so that 16 bits hold it.
fn value(random: &mut Random) -> f32 {
    (random.below(129) as f32 - 64.0) / 32.0
}

fn values<T: Factor>(random: &mut Random, count: usize) -> Vec<T> {
    let wide: Vec<f32> = (0..count).map(|_| value(random)).collect();
    let mut all = vec![T::zeroed(); count];
    T::narrow(&wide, &mut all);
    all
}

/// One of the layouts of a matrix: by rows, by columns, with gaps, or neither contiguous; with the
/// elements that it takes.
fn layout(random: &mut Random, rows: usize, cols: usize) -> (Steps, Steps, usize) {
    let (r, c) = match random.below(5) {
        0 => (cols, 1),
        1 => (1, rows),
        2 => (cols + 3, 1),
        3 => (1, rows + 5),
        _ => (2 * cols + 1, 2),
    };
    let len = rows * r.max(1) + cols * c.max(1) + 1;
    (Steps { size: rows, stride: r }, Steps { size: cols, stride: c }, len)
}

/// Checks a way for random sizes and layouts.
fn check<T: Factor>(ways: &[Way<T>], rounds: usize, [most, most_terms]: [usize; 2]) {
    let mut random = Random(11);
    for _ in 0..rounds {
        let [m, n, k] = [most, most, most_terms].map(|most| random.below(most));
        let (a_rows, a_cols, a_len) = layout(&mut random, m, k);
        let (b_rows, b_cols, b_len) = layout(&mut random, k, n);
        let (a_data, b_data) = (values::<T>(&mut random, a_len), values::<T>(&mut random, b_len));
        let a = tiles::matrix(&a_data, 0, a_rows, a_cols);
        let b = tiles::matrix(&b_data, 0, b_rows, b_cols);
        let before: Vec<f32> = (0..m * (n + 1)).map(|_| value(&mut random)).collect();
        for accumulate in [Accum::Replace, Accum::Add] {
            for way in ways {
                let mut data = before.clone();
                // Rows have a gap, which stays as it is.
                let mut c = MatMut::from_row_major_slice_mut(&mut data, m, n + 1);
                way(a, b, c.as_mut().subcols_mut(0, n), accumulate);
                for row in 0..m {
                    assert_eq!(data[row * (n + 1) + n], before[row * (n + 1) + n]);
                    for col in 0..n {
                        let at = row * (n + 1) + col;
                        let start = if let Accum::Add = accumulate { f64::from(before[at]) } else { 0.0 };
                        let product = |i: usize| number(a[(row, i)]) * number(b[(i, col)]);
                        let sum: f64 = start + (0..k).map(product).sum::<f64>();
                        let size: f64 = start.abs() + (0..k).map(|i| product(i).abs()).sum::<f64>();
                        let difference = (f64::from(data[at]) - sum).abs();
                        assert!(difference <= size * (k + 2) as f64 * 6e-8, "{m}x{n}x{k} at {row} {col}: {} {sum}", data[at]);
                    }
                }
            }
        }
    }
}

#[test]
fn every_way_is_the_sum_of_products() {
    check::<bf16>(&[bf16::multiply, packed, widened::multiply], 400, [71, 71]);
    check::<f16>(&[f16::multiply], 300, [71, 71]);
    check::<f32>(&[f32::multiply, packed_singles, packed_narrow], 300, [71, 71]);
}

#[test]
fn sums_go_over_several_blocks() {
    check::<bf16>(&[packed, widened::multiply], 20, [30, 1500]);
    check::<f32>(&[f32::multiply, packed_singles, packed_narrow], 20, [30, 1500]);
    let mut random = Random(4);
    let (m, n, k) = (3, 5, 7001);
    let (a, b) = (values::<bf16>(&mut random, m * k), values::<bf16>(&mut random, k * n));
    let (a, b) = (MatRef::from_row_major_slice(&a, m, k), MatRef::from_row_major_slice(&b, k, n));
    let [mut c, mut d] = [vec![0f32; m * n], vec![0f32; m * n]];
    packed(a, b, MatMut::from_row_major_slice_mut(&mut c, m, n), Accum::Replace);
    widened::multiply(a, b, MatMut::from_row_major_slice_mut(&mut d, m, n), Accum::Replace);
    c.iter().zip(&d).for_each(|(c, d)| assert!((c - d).abs() < 0.02, "{c} {d}"));
}

#[test]
fn tiles_have_many_rows() {
    check::<f32>(&[packed_singles, packed_narrow], 12, [400, 120]);
    let (mut random, m, n, k) = (Random(12), 300, 50, 600);
    let (a, b) = (values::<f32>(&mut random, m * k), values::<f32>(&mut random, k * n));
    let (a, b) = (MatRef::from_row_major_slice(&a, m, k), MatRef::from_row_major_slice(&b, k, n));
    let [mut wide, mut narrow] = [vec![0f32; m * n], vec![0f32; m * n]];
    packed_singles(a, b, MatMut::from_row_major_slice_mut(&mut wide, m, n), Accum::Replace);
    packed_narrow(a, b, MatMut::from_row_major_slice_mut(&mut narrow, m, n), Accum::Replace);
    for (at, (x, y)) in wide.iter().zip(&narrow).enumerate() {
        let products = (0..k).map(|i| f64::from(a[(at / n, i)]) * f64::from(b[(i, at % n)]));
        let (sum, size) = products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()));
        assert!((f64::from(*x) - sum).abs() <= size * (k + 2) as f64 * 6e-8, "{x} for {sum}");
        assert_eq!(x.to_bits(), y.to_bits(), "registers of two widths add up in one order");
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    fn check<T: Factor>(way: Way<T>) {
        for (m, n, k) in [(1, 1, 1), (9, 17, 5), (20, 50, 33)] {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let narrow = |value: f32| {
                    let mut to = [T::zeroed()];
                    T::narrow(&[value], &mut to);
                    to[0]
                };
                let (mut a, b) = (vec![narrow(0.5); m * k], vec![narrow(1.0); k * n]);
                a[m * k - 1] = narrow(bad);
                let mut c = vec![0f32; m * n];
                let (a, b) = (MatRef::from_row_major_slice(&a, m, k), MatRef::from_row_major_slice(&b, k, n));
                way(a, b, MatMut::from_row_major_slice_mut(&mut c, m, n), Accum::Replace);
                let (good, last) = c.split_at((m - 1) * n);
                assert!(good.iter().all(|c| *c == k as f32 / 2.0));
                assert!(last.iter().all(|c| *c == bad || c.is_nan() && bad.is_nan()), "{bad}: {last:?}");
            }
        }
    }
    check::<bf16>(packed);
    check::<bf16>(widened::multiply);
    check::<f16>(f16::multiply);
    check::<f32>(f32::multiply);
    check::<f32>(packed_singles);
    check::<f32>(packed_narrow);
}

/// Products of which one operand is read as it lies: by rows, or with either or both transposed.
/// Any number of threads gives the same bits.
#[test]
fn operands_are_read_as_they_lie() {
    let Some(singles) = x86::Singles::detect().filter(|singles| singles.are_avx512()) else {
        return eprintln!("skipped: the processor has no AVX-512");
    };
    let mut random = Random(21);
    for round in 0..160 {
        let most_terms = if round / 4 % 4 == 0 { 7000 } else { 200 };
        let [m, n, k] = [130, 130, most_terms].map(|most| 2 + random.below(most));
        let steps = |rows: usize, cols: usize, transposed: bool, gap: usize| {
            let (r, c) = if transposed { (1, rows + gap) } else { (cols + gap, 1) };
            (Steps { size: rows, stride: r }, Steps { size: cols, stride: c }, (rows + gap) * (cols + gap))
        };
        let (of_a, of_b) = (round % 2 == 1, round % 4 >= 2);
        let (a_rows, a_cols, a_len) = steps(m, k, of_a, random.below(3));
        let (b_rows, b_cols, b_len) = steps(k, n, of_b, random.below(3));
        let (c_rows, c_cols, c_len) = steps(m, n, false, 2);
        let (a, b) = (values::<f32>(&mut random, a_len), values::<f32>(&mut random, b_len));
        let (a, b) = (tiles::matrix(&a, 0, a_rows, a_cols), tiles::matrix(&b, 0, b_rows, b_cols));
        let before: Vec<f32> = (0..c_len).map(|_| value(&mut random)).collect();
        for accumulate in [Accum::Replace, Accum::Add] {
            let run = |threads: usize| {
                let mut data = before.clone();
                let mut tile = tiles::cut(&mut data, &[], c_rows, c_cols).remove(0);
                let done =
                    with_threads(threads, || packed::plain::multiply(singles, a, b, &mut tile, accumulate, Threads(threads)));
                done.then_some(data)
            };
            let one = run(1);
            assert_eq!(one.is_some(), !(of_a && of_b) || m < n, "{m}x{n}x{k}, transposed: {of_a} {of_b}");
            assert_eq!(one, run(3));
            for (at, found) in one.into_iter().flatten().enumerate() {
                let (row, col) = (at / c_rows.stride, at % c_rows.stride);
                if row >= m || col >= n {
                    assert_eq!(found, before[at], "behind the columns");
                    continue;
                }
                let start = if let Accum::Add = accumulate { f64::from(before[at]) } else { 0.0 };
                let product = |i: usize| f64::from(a[(row, i)]) * f64::from(b[(i, col)]);
                let sum: f64 = start + (0..k).map(product).sum::<f64>();
                let size: f64 = start.abs() + (0..k).map(|i| product(i).abs()).sum::<f64>();
                assert!(
                    (f64::from(found) - sum).abs() <= size * (k + 2) as f64 * 6e-8,
                    "{m}x{n}x{k} at {row} {col}: {found} {sum}"
                );
            }
        }
    }
}

/// Random letters: the sizes of each group, and dense strides in any order for `a`, `b` and `c`.
fn contraction(random: &mut Random) -> ([Vec<ContractDim>; 4], [usize; 3]) {
    let sizes: Vec<Vec<usize>> = (0..4)
        .map(|_| (0..random.below(3)).map(|_| [0, 1, 2, 3, 7, 17, 40][random.below(7).max(random.below(3))]).collect())
        .collect();
    let mut groups = [0, 1, 2, 3].map(|g| {
        let dim = |size: &usize| ContractDim { size: *size as u64, a: 0, b: 0, c: 0 };
        sizes[g].iter().map(dim).collect::<Vec<_>>()
    });
    let mut lens = [1; 3];
    for (operand, of) in [[0, 1, 3], [0, 3, 2], [0, 1, 2]].into_iter().enumerate() {
        let mut letters: Vec<(usize, usize)> = of.iter().flat_map(|g| (0..sizes[*g].len()).map(move |i| (*g, i))).collect();
        for i in (1..letters.len()).rev() {
            letters.swap(i, random.below(i + 1));
        }
        for (g, i) in letters {
            let dim = &mut groups[g][i];
            *[&mut dim.a, &mut dim.b, &mut dim.c][operand] = lens[operand] as i64;
            lens[operand] *= dim.size as usize;
        }
    }
    (groups, lens)
}

/// Contractions of elements `T` into `C`, by loops in f64 and by any number of threads.
fn check_contractions<T: Factor, C: Stored + PartialEq + std::fmt::Debug>(seed: u64, relative: f64, zero: C) {
    let mut random = Random(seed);
    for _ in 0..300 {
        let (groups, lens) = contraction(&mut random);
        if lens.iter().any(|len| *len > 60_000) {
            continue;
        }
        let (a, b) = (values::<T>(&mut random, lens[0]), values::<T>(&mut random, lens[1]));
        let wide: Vec<f32> = (0..lens[2]).map(|_| value(&mut random)).collect();
        let mut before = vec![zero; lens[2]];
        C::narrow(&wide, &mut before);
        let product = Product::new([&groups[0], &groups[1], &groups[2], &groups[3]]);
        for accumulate in [Accum::Replace, Accum::Add] {
            let mut sums: Vec<[f64; 2]> = match accumulate {
                Accum::Add => before.iter().map(|c| [number(*c), number(*c).abs()]).collect(),
                Accum::Replace => vec![[0.0; 2]; lens[2]],
            };
            let dims: Vec<ContractDim> = groups.iter().flatten().cloned().collect();
            for position in 0..dims.iter().map(|d| d.size).product::<u64>() {
                let (mut rest, mut at) = (position, [0; 3]);
                for dim in &dims {
                    let index = (rest % dim.size) as i64;
                    rest /= dim.size;
                    [dim.a, dim.b, dim.c].iter().zip(&mut at).for_each(|(stride, at)| *at += (index * stride) as usize);
                }
                let term = number(a[at[0]]) * number(b[at[1]]);
                sums[at[2]][0] += term;
                sums[at[2]][1] += term.abs();
            }
            let run = |threads: usize| {
                let mut c = before.clone();
                with_threads(threads, || product.run_single(&a, &b, &mut c, accumulate, Threads(threads)));
                c
            };
            let c = run(1);
            assert_eq!(c, run(2));
            for (c, [sum, size]) in c.iter().zip(sums) {
                let difference = (number(*c) - sum).abs();
                assert!(difference <= size * 1e-5 + sum.abs() * relative, "{c:?} {sum}");
            }
        }
    }
}

#[test]
fn contractions_are_sums_of_products() {
    check_contractions::<bf16, f32>(1, 0.0, 0.0);
    check_contractions::<bf16, bf16>(2, 1.0 / 256.0, bf16::ZERO);
    check_contractions::<f16, f32>(3, 0.0, 0.0);
    check_contractions::<f16, f16>(4, 1.0 / 2048.0, f16::ZERO);
    check_contractions::<f32, f32>(5, 0.0, 0.0);
}

/// Large products, which threads share: the same bits by any number of them, and the sums of one
/// tile packed by itself. `by_rows` says how `a` lies.
fn check_threads<T: Factor, C: Stored + PartialEq + std::fmt::Debug>(way: Way<T>, by_rows: bool, zero: C, sizes: &[[usize; 3]]) {
    let dim = |size: usize, [a, b, c]: [usize; 3]| [ContractDim { size: size as u64, a: a as i64, b: b as i64, c: c as i64 }];
    let mut random = Random(9);
    for [m, n, k] in sizes.iter().copied() {
        let (a, b) = (values::<T>(&mut random, m * k), values::<T>(&mut random, k * n));
        let (of_m, of_k) = if by_rows { (k, 1) } else { (1, m) };
        let product = Product::new([&[], &dim(m, [of_m, 0, n]), &dim(n, [0, 1, 1]), &dim(k, [of_k, n, 0])]);
        let run = |threads: usize| {
            let mut c = vec![zero; m * n];
            with_threads(threads, || product.run_single(&a, &b, &mut c, Accum::Replace, Threads(threads)));
            c
        };
        let one = run(1);
        assert!(one == run(2) && one == run(7));
        let mut sums = vec![0f32; m * n];
        let a = tiles::matrix(&a, 0, Steps { size: m, stride: of_m }, Steps { size: k, stride: of_k });
        let b = MatRef::from_row_major_slice(&b, k, n);
        way(a, b, MatMut::from_row_major_slice_mut(&mut sums, m, n), Accum::Replace);
        let mut rounded = vec![zero; m * n];
        C::narrow(&sums, &mut rounded);
        assert!(one == rounded);
    }
}

#[test]
fn threads_change_no_bit() {
    let large = [[300, 1000, 1001], [1000, 530, 700], [70, 64, 60_001], [17_000, 65, 253]];
    check_threads::<f32, f32>(packed_singles, false, 0.0, &large);
    check_threads::<f32, f32>(packed_narrow, false, 0.0, &large);
    let sizes = [[300, 1000, 301], [1000, 130, 700], [70, 64, 9001], [17_000, 5, 3]];
    for by_rows in [false, true] {
        check_threads::<bf16, f32>(packed, by_rows, 0.0, &sizes);
        check_threads::<bf16, bf16>(packed, by_rows, bf16::ZERO, &sizes);
    }
}
