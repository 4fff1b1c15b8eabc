//! The functions of f64 and powers against functions of more bits, at their ends, and beside f32.

use super::*;

/// The distance in ulps, those of subnormal numbers near 0; 0 between two that are not-a-number.
fn ulps(have: f64, want: f64) -> f64 {
    if have.to_bits() == want.to_bits() || (have.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if !have.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    let below = f64::from_bits(want.abs().max(f64::MIN_POSITIVE).to_bits() & (0x7ff << 52));
    (have - want).abs() / f64::EPSILON / below
}

/// Evenly spread over `low..high`.
fn sweep(low: f64, high: f64) -> impl Iterator<Item = f64> {
    (0..=200_000).map(move |i| low + (high - low) * (f64::from(i) / 200_000.0))
}

type Function = fn(f64) -> f64;

/// The functions and those of other libraries, whose own errors are up to an ulp.
const FUNCTIONS: [(&str, Function, Function); 8] = [
    ("exp", exp, libm::exp),
    ("ln", ln, libm::log),
    ("sin", sin, f64::sin),
    ("cos", cos, f64::cos),
    ("atan", atan, f64::atan),
    ("tanh", tanh, libm::tanh),
    ("erf", erf, libm::erf),
    ("sigmoid", sigmoid, |x| {
        let (e, f) = (f64::exp(-x.abs()), f64::exp(-x.abs()) / (1.0 + f64::exp(-x.abs())));
        if x < 0.0 { e - e * f } else { 1.0 - f }
    }),
];

#[test]
fn functions_are_within_two_ulp() {
    let ranges: [&[(f64, f64)]; 8] = [
        &[(-746.0, 710.0), (-1.0, 1.0), (-745.2, -708.0), (-1e-9, 1e-9)],
        &[(0.0, 1e-308), (1e-6, 4.0), (0.999, 1.001), (1.0, 1e300), (0.0, 1e-320)],
        &[(-1e6, 1e6), (-7.0, 7.0), (-0.01, 0.01), (0.0, 1e12)],
        &[(-1e6, 1e6), (-7.0, 7.0), (-0.01, 0.01), (0.0, 1e12)],
        &[(-5.0, 5.0), (-1e4, 1e4), (-1e-3, 1e-3)],
        &[(-25.0, 25.0), (-1.0, 1.0), (-1e-3, 1e-3)],
        &[(-6.5, 6.5), (-1.1, 1.1), (-1e-3, 1e-3), (0.0, 1e-307)],
        &[(-746.0, 40.0), (-5.0, 5.0)],
    ];
    for ((name, f, want), ranges) in FUNCTIONS.into_iter().zip(ranges) {
        for (low, high) in ranges {
            let worst =
                sweep(*low, *high).map(|x| (ulps(f(x), want(x)), x)).fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
            assert!(worst.0 < 2.7, "{name} on {low}..{high}: {} ulp at {:e}", worst.0, worst.1);
        }
    }
}

#[test]
fn powers_are_within_one_ulp_and_a_half() {
    // The last factor of the exponent takes the result from the least number to the greatest.
    for (base, scale) in [(1e-3, 1.0), (0.999_999, 1.0), (1.000_001, 1.0), (7.25, 1.0), (1e250, 1.0), (5e-320, 1.0)] {
        for y in sweep(-746.0, 710.0) {
            let b = scale * y / f64::ln(base);
            let error = ulps(pow(base, b), base.powf(b));
            assert!(error < 1.9, "{base}^{b}: {error} ulp");
        }
    }
    for b in sweep(-104.0, 89.0).map(|y| y as f32) {
        for base in [0.3f32, 0.9999, 1.0001, 2.5, 1e30] {
            let b = b / base.ln();
            let (have, want) = (pow_f32(base, b), f64::from(base).powf(f64::from(b)) as f32);
            assert!(have.to_bits().abs_diff(want.to_bits()) <= 1, "{base}^{b}: {have:e}, not {want:e}");
        }
    }
}

#[test]
fn powers_have_the_special_cases_of_c() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let edges = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        4.0,
        5.0,
        7.0,
        1e-320,
        1e300,
        9_007_199_254_740_991.0,
        9_007_199_254_740_992.0,
        3e20,
        inf,
        nan,
    ];
    let edges: Vec<f64> = edges.into_iter().flat_map(|x| [x, -x]).collect();
    for a in &edges {
        for b in &edges {
            let (have, want) = (pow(*a, *b), a.powf(*b));
            // A cube is rounded twice.
            assert!(
                ulps(have, want) <= 2.0 && (have.is_nan() || have.is_sign_negative() == want.is_sign_negative()),
                "{a}^{b}: {have}, not {want}"
            );
            let (a, b) = (*a as f32, *b as f32);
            let (have, want) = (pow_f32(a, b), a.powf(b));
            assert!(
                have == want || (have.is_nan() && want.is_nan()) || ((have - want) / want).abs() < 1e-6,
                "{a}^{b}: {have}, not {want}"
            );
            assert!(have.is_nan() || have.is_sign_negative() == want.is_sign_negative(), "{a}^{b}: {have}, not {want}");
        }
    }
}

#[test]
fn ends_are_exact() {
    let inf = f64::INFINITY;
    for (f, x, want) in [
        (exp as fn(f64) -> f64, -inf, 0.0),
        (exp, inf, inf),
        (exp, 0.0, 1.0),
        (exp, 709.782_712_893_384, f64::MAX - f64::MAX * 2.3e-14),
        (ln, 0.0, -inf),
        (ln, 1.0, 0.0),
        (ln, inf, inf),
        (tanh, inf, 1.0),
        (tanh, -30.0, -1.0),
        (erf, -inf, -1.0),
        (erf, -0.0, -0.0),
        (sigmoid, -inf, 0.0),
        (sigmoid, inf, 1.0),
        (sigmoid, 0.0, 0.5),
        (atan, -inf, -FRAC_PI_2),
        (cos, 0.0, 1.0),
    ] {
        let near = if want.abs() > 1e300 && want.is_finite() { 1e-13 * want } else { 0.0 };
        assert!(f(x) == want || (f(x) - want).abs() <= near, "of {x}: {:e}, not {want:e}", f(x));
    }
    for (name, f, _) in FUNCTIONS {
        assert!(f(f64::NAN).is_nan(), "{name}");
    }
    assert!(ln(-1.0).is_nan() && sin(inf).is_nan() && cos(-inf).is_nan());
    for x in [1e16, -3e20, 1e300, f64::MAX] {
        assert!(sin(x).abs() <= 1.0 && cos(x).abs() <= 1.0);
    }
}
