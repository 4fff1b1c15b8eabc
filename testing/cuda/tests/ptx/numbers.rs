//! Arithmetic, compared with Rust's.

use super::{Access, bytes, drawn, job, operand, run, values};
use shardc_cuda_testing::ptx::Module;

#[test]
fn integers_are_those_of_rust() {
    let special = [0, 1, -1, 2, 7, -7, 10, i64::MAX, i64::MIN, 1 << 32, -(1 << 32), 0xffff_ffff, -(1 << 31), 12345, -99999];
    let mut pairs: Vec<(i64, i64)> = special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b))).collect();
    pairs.extend(drawn(600).chunks_exact(2).map(|p| ((p[0] >> (p[0] % 60)) as i64, (p[1] >> (p[1] % 60)) as i64)));
    // What overflows has no meaning.
    pairs.retain(|(a, b)| !(*a == i64::MIN && *b == -1));
    let n = pairs.len();
    let (a, b): (Vec<i64>, Vec<i64>) = pairs.iter().copied().unzip();
    let operands = vec![
        operand("a", Access::Read, bytes!(a)),
        operand("b", Access::Read, bytes!(b)),
        operand("out", Access::Write, vec![0; n * 48 * 8]),
    ];
    let ran = run(include_str!("ints.ptx"), &job("ints", n.div_ceil(64) as u32, 64, 0, operands, &[n as i64, 7]));
    let out = values!(i64, ran.operands[2]);
    for (i, (x, y)) in pairs.iter().copied().enumerate() {
        for (j, e) in expected_integers(x, y).iter().enumerate() {
            assert_eq!(out[i * 48 + j], *e, "value {j} of {x} and {y}");
        }
    }
}

fn expected_integers(x: i64, y: i64) -> [i64; 48] {
    let (ux, uy, wx, wy, ix, iy) = (x as u64, y as u64, x as u32, y as u32, x as i32, y as i32);
    let s = wy & 63;
    let both = (wy as u64) << 32 | wx as u64;
    let byte = |i: u32| (both >> (8 * i)) as u32 & 255;
    let permuted = byte(0) | byte(4) << 8 | byte(1) << 16 | byte(5) << 24;
    let funnel = wy << 9 | wx >> 23;
    let safe = iy != 0 && iy != -1;
    let place = |none: bool, zeros: u32| if none { 0 } else { zeros as i64 + 1 };
    let bits = (wx.count_ones() + 100 * wx.leading_zeros()).wrapping_add(wx.reverse_bits().wrapping_mul(10000));
    [
        x / 7,
        x % 7,
        (ux / 10) as i64,
        (ux % 10) as i64,
        (wx / 7) as i64,
        (wx % 1000) as i64,
        (ix / 7) as i64,
        (ix % 12) as i64,
        if y != 0 { x / y } else { 0 },
        if y != 0 { x % y } else { 0 },
        ux.checked_div(uy).unwrap_or(0) as i64,
        ux.checked_rem(uy).unwrap_or(0) as i64,
        wx.checked_div(wy).unwrap_or(0) as i64,
        wx.checked_rem(wy).unwrap_or(0) as i64,
        if safe { (ix / iy) as i64 } else { 0 },
        if safe { (ix % iy) as i64 } else { 0 },
        x.wrapping_mul(y),
        ((wx as u64 * wy as u64) >> 32) as i64,
        ((ux as u128 * uy as u128) >> 64) as i64,
        ((x as i128 * y as i128) >> 64) as i64,
        (wx as i64).wrapping_mul(wy as i64),
        ix as i64 * iy as i64,
        (wx as u64 * wy as u64).wrapping_add(ux) as i64,
        (ix as i64 * iy as i64).wrapping_add(x),
        ix.wrapping_mul(iy).wrapping_add(3) as i64,
        x << s,
        x >> s,
        (ux >> s) as i64,
        (wx << (wy & 31)) as i32 as i64,
        (ix >> (wy & 31)) as i64,
        (wx >> (wy & 31)) as i64,
        x.min(y),
        ux.max(uy) as i64,
        ix.max(iy) as i64,
        wx.min(wy) as i64,
        x.wrapping_abs(),
        bits as i64,
        (x.count_ones() + 100 * x.leading_zeros()) as i64,
        place(wx == 0, wx.trailing_zeros()) + 100 * place(x == 0, x.trailing_zeros()),
        x as i8 as i64 + 3 * (x as u8 as i64) + 5 * (x as i16 as i64) + 7 * (x as u16 as i64),
        (x & y) | (!x ^ y),
        ((ix & 0xff00) >> 8) as i64 | (wy >> 5 & 0x7f) as i64,
        funnel.wrapping_add(permuted) as i64,
        ux.reverse_bits() as i64,
        x / 7 + x % 7,
        (x as u8 / 3) as i64 + (y as i16 % 5) as i64,
        (x == y || x > 3 && y < -5) as i64,
        ix.wrapping_abs() as i64,
    ]
}

#[test]
fn f32_is_that_of_rust() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        3.5,
        0.1,
        1e-45,
        -1e-40,
        1e30,
        -3e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        65519.0,
        65520.0,
        1e-7,
        3e9,
        2e19,
    ];
    let mut pairs: Vec<(f32, f32)> = special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b))).collect();
    pairs.extend(drawn(2000).iter().map(|x| (f32::from_bits(*x as u32), f32::from_bits((x >> 32) as u32))));
    pairs.extend(drawn(2000).iter().map(|x| ((*x as i16) as f32 / 8.0, ((x >> 20) as i16) as f32 / 64.0)));
    let n = pairs.len();
    let (a, b): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let operands = vec![
        operand("a", Access::Read, bytes!(a)),
        operand("b", Access::Read, bytes!(b)),
        operand("out", Access::Write, vec![0; n * 40 * 4]),
    ];
    let ran = run(include_str!("floats.ptx"), &job("floats", n.div_ceil(64) as u32, 64, 0, operands, &[n as i64]));
    let out = values!(f32, ran.operands[2]);
    for (i, (x, y)) in pairs.iter().copied().enumerate() {
        let is = |b: bool| b as u8 as f32;
        let bf16 = if x.is_nan() {
            x
        } else {
            f32::from_bits((x.to_bits() as u64 + 0x7fff + (x.to_bits() as u64 >> 16 & 1)) as u32 & 0xffff_0000)
        };
        let expected = [
            (0, x + y),
            (1, x - y),
            (2, x * y),
            (3, x / y),
            (4, x.mul_add(y, 1.5)),
            (5, x.sqrt()),
            (6, 1.0 / x),
            (7, x % y),
            (8, x.round_ties_even()),
            (9, x.floor()),
            (10, x.ceil()),
            (11, x.trunc()),
            (12, x.copysign(y)),
            (13, x.max(y)),
            (14, x.min(y)),
            (15, x.abs()),
            (16, -x),
            (17, is(x < y)),
            (18, is(x <= y)),
            (19, is(x != y)),
            (20, is(x.is_nan())),
            (21, is(y.is_infinite())),
            (22, x as i32 as f32),
            (23, x.abs() as u32 as f32),
            (26, x),
            (27, if x > y { x } else { y }),
            (28, if x >= y || x.is_nan() || y.is_nan() { 1.0 } else { x }),
            (29, x.round()),
            (30, is(x == y)),
            (31, bf16),
            (33, -x),
            (34, x.round_ties_even() as i32 as f32),
            (35, y.sqrt()),
            (36, is(x != 0.0 && y != 0.0)),
            (37, if x.is_sign_negative() { 2.0 } else { 3.0 }),
            (38, (x as f64 / y as f64) as f32),
            (39, is(x.is_finite())),
        ];
        for (j, e) in expected {
            let got = out[i * 40 + j];
            // Which zero is the greater Rust does not say.
            let same = got.to_bits() == e.to_bits() || got.is_nan() && e.is_nan() || matches!(j, 13 | 14) && got == e;
            assert!(same, "value {j} of {x:e} and {y:e}: {got:e}, not {e:e}");
        }
        if !x.is_nan() {
            assert_eq!(out[i * 40 + 24], x as i64 as f32);
            assert_eq!(out[i * 40 + 25], x.abs() as u64 as f32);
        }
    }
}

#[test]
fn f64_is_that_of_rust() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        3.5,
        0.1,
        5e-324,
        -1e-310,
        1e300,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        3e9,
        2e19,
    ];
    let mut pairs: Vec<(f64, f64)> = special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b))).collect();
    let bits = drawn(4000);
    pairs.extend(bits.chunks_exact(2).map(|x| (f64::from_bits(x[0]), f64::from_bits(x[1]))));
    pairs.extend(bits.iter().map(|x| ((*x as i32) as f64 / 8.0, ((x >> 20) as i32) as f64 / 64.0)));
    let n = pairs.len();
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let operands = vec![
        operand("a", Access::Read, bytes!(a)),
        operand("b", Access::Read, bytes!(b)),
        operand("out", Access::Write, vec![0; n * 32 * 8]),
    ];
    let ran = run(include_str!("floats.ptx"), &job("doubles", n.div_ceil(64) as u32, 64, 0, operands, &[n as i64]));
    let out = values!(f64, ran.operands[2]);
    for (i, (x, y)) in pairs.iter().copied().enumerate() {
        let is = |b: bool| b as u8 as f64;
        let (xb, yb) = (x.to_bits(), y.to_bits());
        let expected = [
            (0, x + y),
            (1, x - y),
            (2, x * y),
            (3, x / y),
            (4, x.mul_add(y, 1.5)),
            (5, x.sqrt()),
            (6, 1.0 / x),
            (7, x % y),
            (8, x.round_ties_even()),
            (9, x.floor()),
            (10, x.ceil()),
            (11, x.trunc()),
            (12, x.copysign(y)),
            (13, x.max(y)),
            (14, x.min(y)),
            (15, x.abs()),
            (16, -x),
            (17, is(x < y)),
            (22, x as f32 as f64),
            (23, is(x.is_nan())),
            (24, x.round()),
            (25, f64::from_bits(xb.wrapping_add(1))),
            (26, if x > y { x } else { y }),
            (27, y as f32 as f64),
            (28, xb as i64 as f64),
            (29, yb as f64),
            (30, xb as i64 as f32 as f64),
            (31, yb as f32 as f64),
        ];
        for (j, e) in expected {
            let got = out[i * 32 + j];
            let same = got.to_bits() == e.to_bits() || got.is_nan() && e.is_nan() || matches!(j, 13 | 14) && got == e;
            assert!(same, "value {j} of {x:e} and {y:e}: {got:e}, not {e:e}");
        }
        if !x.is_nan() {
            let whole = [x as i32 as f64, x.abs() as u32 as f64, x as i64 as f64, x.abs() as u64 as f64];
            assert_eq!(out[i * 32 + 18..i * 32 + 22], whole, "{x:e}");
        }
    }
}

/// Instructions that the fixtures do not have, as NVRTC writes them.
#[test]
fn products_of_halves_and_constant_predicates() {
    let text = ".version 9.5\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 k_0)\n{\n\
        .reg .pred %p<3>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<3>;\n\
        ld.param.u64 %rd1, [k_0];\ncvta.to.global.u64 %rd2, %rd1;\n\
        mov.b32 %r1, 0x00030005;\nmov.b32 %r2, 0xffff0702;\nmov.b32 %r3, 100;\n\
        dp2a.lo.u32.u32 %r4, %r1, %r2, %r3;\n\
        dp4a.u32.u32 %r8, %r1, %r2, %r3;\n\
        mov.pred %p1, -1;\nmov.pred %p2, 0;\nselp.u32 %r5, 1, 2, %p1;\nselp.u32 %r6, 1, 2, %p2;\n\
        st.global.u32 [%rd2], %r4;\nst.global.u32 [%rd2+4], %r5;\nst.global.u32 [%rd2+8], %r6;\n\
        st.global.u32 [%rd2+12], %r8;\nret;\n}\n";
    let operands = vec![operand("y", Access::Write, vec![0; 16])];
    let ran = Module::parse(text).and_then(|m| m.run(&job("k", 1, 1, 0, operands, &[]))).expect("it runs");
    let words: Vec<u32> = ran.operands[0].as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(words, [100 + 5 * 2 + 3 * 7, 1, 2, 100 + 5 * 2 + 3 * 255]);
}
