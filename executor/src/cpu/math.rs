//! Elementary functions of f32 without branches or calls, so that loops over them become vector
//! code.
//!
//! Errors are below 2 ulp (checked in the tests against f64). Every multiply-add is fused and
//! nothing else is, so that a result is the same in every instruction set and in every lane.
//! Methods and coefficients: Cephes (S. Moshier) for exp, log, tanh and atan; N. Juffa's `erff` for
//! the error function.

pub mod wide;

pub use wide::pow_f32 as pow;

/// `e^x`; 0 where that is below 2e-38, because subnormal numbers are slow.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -87.5 { -87.5 } else { x };
    let (n, r) = halvings(x);
    let p = exp_m1(r) + 1.0;
    // 2^n as 2 * 2^(n-1), whose exponent has a normal number for n up to 128, and is that of 0 for
    // n of -126.
    (p + p) * f32::from_bits(n.wrapping_add(126) << 23)
}

/// The natural logarithm.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    // The mantissa in sqrt(1/2)..sqrt(2), and its exponent.
    let bits = (scaled.to_bits() as i32).wrapping_sub(0x3f35_04f3);
    let exponent = (bits >> 23) as f32 - if subnormal { 23.0 } else { 0.0 };
    let z = f32::from_bits(((bits & 0x007f_ffff) + 0x3f35_04f3) as u32) - 1.0;
    let p = 7.037_683_6e-2_f32;
    let p = p.mul_add(z, -1.151_461e-1);
    let p = p.mul_add(z, 1.167_699_9e-1);
    let p = p.mul_add(z, -1.242_014_1e-1);
    let p = p.mul_add(z, 1.424_932_3e-1);
    let p = p.mul_add(z, -1.666_805_7e-1);
    let p = p.mul_add(z, 2.000_071_5e-1);
    let p = p.mul_add(z, -2.499_999_4e-1);
    let p = p.mul_add(z, 0.333_333_3);
    let square = z * z;
    let y = p * z * square;
    let y = exponent.mul_add(-2.121_944_4e-4, y);
    let y = square.mul_add(-0.5, y);
    let y = exponent.mul_add(0.693_359_4, z + y);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// Hyperbolic tangent: `e / (e + 2)` with `e = exp(2 |x|) - 1`, which is exact near 0 as it is far
/// from it.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let y = x.abs() + x.abs();
    let y = if y > 20.0 { 20.0 } else { y };
    let (n, r) = halvings(y);
    let power = f32::from_bits(n.wrapping_add(127) << 23);
    let e = power.mul_add(exp_m1(r), power - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// `1/(1+e^-x)`
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = x.abs();
    let square = x * x;
    let far = (-1.728_534_7e-5_f32).mul_add(t, 3.831_98e-4);
    let even = (-3.883_964_4e-3_f32).mul_add(t, 2.425_462_2e-2);
    let far = far.mul_add(square, even);
    let far = far.mul_add(t, -1.067_778_8e-1);
    let far = far.mul_add(t, -6.348_469e-1);
    let far = far.mul_add(t, -1.287_175_1e-1);
    let far = 1.0 - exp(far.mul_add(t, -t));
    let near = -5.967_617e-4_f32;
    let near = near.mul_add(square, 4.991_194_2e-3);
    let near = near.mul_add(square, -2.676_813_5e-2);
    let near = near.mul_add(square, 1.128_199_2e-1);
    let near = near.mul_add(square, -3.761_253_4e-1);
    let near = near.mul_add(square, 1.283_791_7e-1);
    let near = near.mul_add(x, x);
    if t > 0.927_734_4 { far.copysign(x) } else { near }
}

/// Sine.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (r, quadrant) = quarter_turns(x);
    on_circle(r, quadrant)
}

/// Cosine.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (r, quadrant) = quarter_turns(x);
    on_circle(r, quadrant.wrapping_add(1))
}

/// Inverse tangent: of `x`, of `(x - 1) / (x + 1)` an eighth of a turn before, or of `-1 / x` a
/// quarter of a turn before.
#[inline(always)]
pub fn atan(x: f32) -> f32 {
    use std::f32::consts::{FRAC_PI_2, FRAC_PI_4};
    let t = x.abs();
    let (near, far) = (t <= 0.414_213_57, t > 2.414_213_6);
    let middle = (t - 1.0) / (t + 1.0);
    let y = if near { t } else { middle };
    let y = if far { -1.0 / t } else { y };
    let turned = if near { 0.0 } else { FRAC_PI_4 };
    let turned = if far { FRAC_PI_2 } else { turned };
    let z = y * y;
    let p = 8.053_744_5e-2_f32;
    let p = p.mul_add(z, -1.387_768_6e-1);
    let p = p.mul_add(z, 1.997_771_1e-1);
    let p = p.mul_add(z, -3.333_295e-1);
    ((p * z).mul_add(y, y) + turned).copysign(x)
}

/// `n` and `r` with `x = n ln 2 + r`, `r` at most half of `ln 2` either way; `n` is an integer
/// modulo 2^32.
#[inline(always)]
fn halvings(x: f32) -> (u32, f32) {
    const ROUND: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    (shifted.to_bits().wrapping_sub(ROUND.to_bits()), n.mul_add(2.121_944_4e-4, r))
}

/// `e^r - 1` for such an `r`.
#[inline(always)]
fn exp_m1(r: f32) -> f32 {
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    (p * r).mul_add(r, r)
}

/// `x` less a whole number of quarter turns, and that number modulo 4. In f64, so that the
/// remainder is exact for every position that a model counts; beyond 2^50, where an f32 holds no
/// phase any more, the remainder is 0.
#[inline(always)]
fn quarter_turns(x: f32) -> (f64, u64) {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    (if r.abs() > 1.0 { 0.0 } else { r }, shifted.to_bits())
}

/// The sine of `r` radians and `quadrant` quarter turns, for `r` in -pi/4..pi/4: Taylor series,
/// below 1e-11 there.
#[inline(always)]
fn on_circle(r: f64, quadrant: u64) -> f32 {
    let z = r * r;
    let s = (1.0 / 362_880.0_f64).mul_add(z, -1.0 / 5040.0);
    let s = s.mul_add(z, 1.0 / 120.0);
    let s = s.mul_add(z, -1.0 / 6.0);
    let s = (s * z).mul_add(r, r);
    let c = (-1.0 / 3_628_800.0_f64).mul_add(z, 1.0 / 40_320.0);
    let c = c.mul_add(z, -1.0 / 720.0);
    let c = c.mul_add(z, 1.0 / 24.0);
    let c = c.mul_add(z, -0.5);
    let c = c.mul_add(z, 1.0);
    let y = if quadrant & 1 == 0 { s } else { c };
    (if quadrant & 2 == 0 { y } else { -y }) as f32
}

#[cfg(test)]
mod text;

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error in ulps over a sweep of `low..high`.
    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, low: f32, high: f32) -> f64 {
        let steps = 400_000;
        (0..=steps)
            .map(|i| low + (high - low) * (i as f32 / steps as f32))
            .map(|x| {
                let want = exact(f64::from(x));
                let ulp = f64::from((want as f32).abs().max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON) / 2.0;
                (f64::from(f(x)) - want).abs() / ulp / 2.0
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_within_two_ulp() {
        for (name, f, exact, low, high) in [
            ("exp", exp as fn(f32) -> f32, f64::exp as fn(f64) -> f64, -86.9, 88.7),
            ("exp", exp, f64::exp, -1.0, 1.0),
            ("ln", ln, f64::ln, 1e-6, 4.0),
            ("ln", ln, f64::ln, 1.0, 1e6),
            ("tanh", tanh, f64::tanh, -10.0, 10.0),
            ("tanh", tanh, f64::tanh, -0.01, 0.01),
            ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -80.0, 30.0),
            ("erf", erf, libm::erf, -5.0, 5.0),
            ("erf", erf, libm::erf, -0.01, 0.01),
            ("sin", sin, f64::sin, -1e5, 1e5),
            ("cos", cos, f64::cos, -100.0, 100.0),
            ("atan", atan, f64::atan, -5.0, 5.0),
            ("atan", atan, f64::atan, -1e4, 1e4),
        ] {
            let error = worst(f, exact, low, high);
            assert!(error < 2.5, "{name} on {low}..{high}: {error} ulp");
        }
    }

    #[test]
    fn ends_are_exact() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-100.0), 0.0);
        assert!(exp(-87.5) < 2e-38);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(-1.0).is_nan());
        assert!((ln(1e-40) - (1e-40f32 as f64).ln() as f32).abs() < 1e-4);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(-30.0), -1.0);
        assert_eq!(erf(f32::NEG_INFINITY), -1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(atan(f32::NEG_INFINITY), -std::f32::consts::FRAC_PI_2);
        for f in [exp, ln, tanh, erf, sigmoid, sin, cos, atan] {
            assert!(f(f32::NAN).is_nan());
        }
        assert!(sin(f32::INFINITY).is_nan());
        assert!(sin(3e38).abs() <= 1.0);
    }
}
