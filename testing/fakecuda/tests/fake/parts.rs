//! What the fake is made of, each part alone.

use half::bf16;
use shardc_cuda_testing::job::Access;
use shardc_fakecuda::parts::{Clock, Dtype, Op, PAGE, Pages, entries, reduce};

#[test]
fn clocks_join() {
    let (mut a, mut b) = (Clock::default(), Clock::default());
    a.reach(1, 5);
    b.reach(1, 3);
    b.reach(2, 2);
    a.join(&b);
    assert!(a.covers(1, 5) && a.covers(2, 2) && !a.covers(2, 3) && a.covers(3, 0) && !a.covers(3, 1));
}

#[test]
fn pages_hold_what_one_vector_would() {
    let size = 3 * PAGE + 77;
    let (mut pages, mut bytes) = (Pages::new(size, 0xff), vec![0xff; size]);
    let places = [0, 1, PAGE - 1, PAGE, PAGE + 9, 2 * PAGE, 3 * PAGE, size];
    let ranges = || places.iter().flat_map(|from| places.iter().filter(move |to| from <= to).map(move |to| *from..*to));
    for (number, range) in ranges().chain(ranges()).enumerate() {
        if number % 3 == 0 {
            pages.fill(range.clone(), number as u8);
            bytes[range].fill(number as u8);
        } else {
            let new: Vec<u8> = (0..range.len()).map(|i| (i * 7 + number) as u8).collect();
            pages.write(range.start, &new);
            bytes[range].copy_from_slice(&new);
        }
        assert!(pages.read(0..size) == bytes, "after {number}");
    }
    assert!(ranges().all(|range| pages.read(range.clone()) == bytes[range]));
}

#[test]
fn functions_say_what_they_take() {
    let text = "//@ x read f32 64 bytes\n//@ y updated bf16 32 bytes\n//@ fault written u32 4 bytes\n\
                KERNEL(32) k_0(const float* x, bf16* y, u32* fault, i64 n0) {\n}\n\
                KERNEL(256) k_1() {\n}\n";
    let found = entries(text).expect("a text");
    let ways: Vec<_> = found[0].operands.iter().map(|o| (o.access, o.bytes)).collect();
    assert_eq!(ways, [(Access::Read, 64), (Access::Update, 32), (Access::Fault, 4)]);
    assert_eq!((found[0].numbers, found[1].operands.len(), found[1].threads), (1, 0, 256));
    for wrong in ["", "KERNEL(32) k(float* x) {\n}", "//@ x reads f32 4 bytes\nKERNEL(32) k(float* x) {\n}"] {
        assert!(entries(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn sums_are_rounded_in_the_order_of_ranks() {
    let bytes = |x: f32| bf16::from_f32(x).to_le_bytes();
    // 256 + 1 is 256 in bf16, where 1 + 1 + 256 is 258.
    let (large, one) = (bytes(256.0), bytes(1.0));
    assert_eq!(reduce(&[&large, &one, &one], Dtype::BF16, Op::Sum), bytes(256.0));
    assert_eq!(reduce(&[&one, &one, &large], Dtype::BF16, Op::Sum), bytes(258.0));
    let [a, b] = [3.5f64, -1.0].map(f64::to_le_bytes);
    assert_eq!(reduce(&[&a, &b], Dtype::F64, Op::Max), a);
    assert_eq!(reduce(&[&a, &b], Dtype::F64, Op::Min), b);
    assert_eq!(reduce(&[&[200], &[100]], Dtype::U8, Op::Sum), [44]);
    assert_eq!(reduce(&[&(-2i64).to_le_bytes(), &1i64.to_le_bytes()], Dtype::I64, Op::Max), 1i64.to_le_bytes());
}
