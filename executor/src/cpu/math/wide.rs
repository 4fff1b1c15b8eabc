//! Elementary functions of f64, and powers of f32 in f64 arithmetic, without branches or calls as
//! those of f32 are.
//!
//! Errors are below 1 ulp of exponentials, logarithms, sines, cosines and powers, and below 1.5 ulp
//! of the others, subnormal results included; sines and cosines keep that up to 2^40. Cubes are
//! products, rounded twice. The system's functions are not used because their last bits differ
//! between systems and devices. The coefficients are minimax fits of the series, found with the
//! Remez exchange.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, LOG2_E};

/// The sum with this leaves a whole number in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// The logarithm of 2 in two parts, the first of 40 bits, so that its products with exponents are
/// exact.
const LN_2: (f64, f64) = (0.693_147_180_559_208_2, 7.371_002_565_167_799e-13);

/// The bits of the root of 1/2, where mantissas start.
const ROOT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

/// `e^x`
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -746.0 { -746.0 } else { x };
    exp_of_sum(x, 0.0)
}

/// The natural logarithm.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
    ends_of_ln(x, ln_parts(x).0)
}

/// Hyperbolic tangent, as that of f32, but with the rounding errors of the quotient's parts.
#[inline(always)]
pub fn tanh(x: f64) -> f64 {
    let y = x.abs() + x.abs();
    let y = if y > 44.0 { 44.0 } else { y };
    let (n, r, more) = exp_m1(y, 0.0);
    let q = r + more;
    let q_low = (r - q) + more;
    let power = f64::from_bits(n.wrapping_add(1023) << 52);
    let e = power.mul_add(q, power - 1.0);
    let e_low = power.mul_add(q_low, power.mul_add(q, (power - 1.0) - e));
    let sum = 2.0 + e;
    quotient(e, e_low, sum, (2.0 - sum) + e).copysign(x)
}

/// `1/(1+e^-x)`, where `e^-x` is not infinite for any `x`.
#[inline(always)]
pub fn sigmoid(x: f64) -> f64 {
    let p = exp(-x.abs());
    let sum = 1.0 + p;
    quotient(if x < 0.0 { p } else { 1.0 }, 0.0, sum, (1.0 - sum) + p)
}

/// The error function: beyond 1 by `e^(x^2) (1 - erf x)`, which is a smooth function of
/// `(3 - x) / (3 + x)`.
#[inline(always)]
pub fn erf(x: f64) -> f64 {
    const NEAR: [f64; 12] = [
        0.128_379_167_095_512_56,
        -0.376_126_389_031_835_5,
        0.112_837_916_709_452_53,
        -0.026_866_170_643_276_233,
        0.005_223_977_607_423_621,
        -0.000_854_832_598_970_585_3,
        0.000_120_552_953_208_151_85,
        -1.492_474_467_034_244_9e-5,
        1.644_751_777_320_107_5e-6,
        -1.620_917_669_724_042_7e-7,
        1.372_297_985_026_963_4e-8,
        -7.801_195_822_297_999e-10,
    ];
    const FAR: [f64; 13] = [
        0.179_001_151_181_39,
        0.326_233_560_043_162_56,
        0.245_603_801_707_810_74,
        0.150_115_936_545_665_19,
        0.071_665_837_440_342_08,
        0.024_392_489_970_539_347,
        0.004_269_232_716_730_044,
        -0.000_708_305_506_217_127_7,
        -0.000_595_000_194_452_831_6,
        -5.021_834_811_579_642e-5,
        7.162_377_259_813_015e-5,
        6.441_136_462_939_121e-6,
        -6.579_459_259_625_834_5e-6,
    ];
    let near = polynomial(x * x, NEAR).mul_add(x, x);
    let t = x.abs();
    let t = if t > 6.0 { 6.0 } else { t };
    let far = 1.0 - exp(-(t * t)) * polynomial((3.0 - t) / (3.0 + t), FAR);
    if t > 1.0 { far.copysign(x) } else { near }
}

/// Sine.
#[inline(always)]
pub fn sin(x: f64) -> f64 {
    on_circle(quarter_turns(x), 0)
}

/// Cosine.
#[inline(always)]
pub fn cos(x: f64) -> f64 {
    on_circle(quarter_turns(x), 1)
}

/// Inverse tangent: of `x`, of `(x - 1) / (x + 1)` an eighth of a turn before, or of `-1 / x` a
/// quarter of a turn before.
#[inline(always)]
pub fn atan(x: f64) -> f64 {
    const SERIES: [f64; 12] = [
        -0.333_333_333_333_329_93,
        0.199_999_999_999_052_7,
        -0.142_857_142_765_576_43,
        0.111_111_106_664_447_37,
        -0.090_908_964_015_140_22,
        0.076_920_761_823_658_7,
        -0.066_638_321_427_670_73,
        0.058_584_346_552_471_314,
        -0.051_225_698_706_640_26,
        0.041_879_883_692_251_59,
        -0.027_457_350_323_371_21,
        0.010_131_625_466_293_072,
    ];
    let t = x.abs();
    let (near, far) = (t <= 0.5, t > 2.0);
    let (over, under) = if near { (t, 1.0) } else { (t - 1.0, t + 1.0) };
    let (over, under) = if far { (-1.0, t) } else { (over, under) };
    let (turned, low) = if near { (0.0, 0.0) } else { (FRAC_PI_4, 3.061_616_997_868_383e-17) };
    let (turned, low) = if far { (FRAC_PI_2, 6.123_233_995_736_766e-17) } else { (turned, low) };
    let y = over / under;
    let z = y * y;
    (turned + (y + (polynomial(z, SERIES) * z).mul_add(y, low))).copysign(x)
}

/// `a^b` with the special cases of C; squares, cubes and reciprocals are products and quotients.
#[inline(always)]
pub fn pow(a: f64, b: f64) -> f64 {
    let base = a.abs();
    let (high, low) = ln_parts(base);
    let high = ends_of_ln(base, high);
    let y = b * high;
    let rest = b.mul_add(low, b.mul_add(high, -y));
    let rest = if y.abs() < 800.0 { rest } else { 0.0 };
    let y = if y > 800.0 { 800.0 } else { y };
    let y = if y < -800.0 { -800.0 } else { y };
    let power = with_sign(a, b, exp_of_sum(y, rest));
    let power = if b == 2.0 { a * a } else { power };
    let power = if b == 3.0 { a * a * a } else { power };
    if b == -1.0 { 1.0 / a } else { power }
}

/// The same of f32, rounded once.
#[inline(always)]
pub fn pow_f32(a: f32, b: f32) -> f32 {
    let (base, exponent) = (f64::from(a), f64::from(b));
    let power = exp(exponent * ln(base.abs()));
    let power = with_sign(base, exponent, power) as f32;
    let power = if b == 2.0 { a * a } else { power };
    let power = if b == 3.0 { a * a * a } else { power };
    if b == -1.0 { 1.0 / a } else { power }
}

/// The power whose magnitude is given, of anything but not-a-number where that is computed: with
/// its sign, and not-a-number where it is not real.
#[inline(always)]
fn with_sign(a: f64, b: f64, magnitude: f64) -> f64 {
    let half = b * 0.5;
    let whole = b.floor() == b;
    let odd = whole & (half.floor() != half);
    let power = if a.abs() == 1.0 { 1.0 } else { magnitude };
    let power = if (a < 0.0) & (a > f64::NEG_INFINITY) & !whole { f64::NAN } else { power };
    let power = if odd { power.copysign(a) } else { power };
    if b == 0.0 { 1.0 } else { power }
}

/// `c[0] + c[1] x + ..`
#[inline(always)]
fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut p = c[N - 1];
    for c in c[..N - 1].iter().rev() {
        p = p.mul_add(x, *c);
    }
    p
}

/// `(a + a_low) / (b + b_low)`, where the second parts are rounding errors of the first.
#[inline(always)]
fn quotient(a: f64, a_low: f64, b: f64, b_low: f64) -> f64 {
    let inverse = 1.0 / b;
    let y = a * inverse;
    let rest = (-y).mul_add(b_low, (-y).mul_add(b, a)) + a_low;
    rest.mul_add(inverse, y)
}

/// `e^(x + low)`, where `low` is at most about an ulp of `x`, and `x` within 800.
#[inline(always)]
fn exp_of_sum(x: f64, low: f64) -> f64 {
    let (n, r, more) = exp_m1(x, low);
    // Both halves of the exponent have normal numbers, and only the last product rounds.
    let n = n.wrapping_add(2046);
    let half = n >> 1;
    (1.0 + (r + more)) * f64::from_bits(half << 52) * f64::from_bits(n.wrapping_sub(half) << 52)
}

/// `n`, `r` and `more` with `e^(x + low) = 2^n (1 + r + more)`, where `more` is less than a fifth
/// of `r`; `n` is an integer modulo 2^64.
#[inline(always)]
fn exp_m1(x: f64, low: f64) -> (u64, f64, f64) {
    const SERIES: [f64; 11] = [
        0.5,
        0.166_666_666_666_666_77,
        0.041_666_666_666_666_7,
        0.008_333_333_333_321_532,
        0.001_388_888_888_886_662_2,
        0.000_198_412_698_864_017_43,
        2.480_158_736_096_807_2e-5,
        2.755_724_391_084_684_5e-6,
        2.755_724_241_274_167_6e-7,
        2.510_914_769_508_366_8e-8,
        2.092_454_984_633_336e-9,
    ];
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let exact = n.mul_add(-LN_2.0, x);
    let low = n.mul_add(-LN_2.1, low);
    let r = exact + low;
    let more = (r * r).mul_add(polynomial(r, SERIES), (exact - r) + low);
    (shifted.to_bits().wrapping_sub(ROUND.to_bits()), r, more)
}

/// The logarithm of a positive finite number, as a sum whose first part is its rounded value. With
/// `s = (m - 1) / (m + 1)` for the mantissa `m`, it is twice the inverse hyperbolic tangent of `s`;
/// what matters to 2^-64 of it is computed with its rounding errors.
#[inline(always)]
fn ln_parts(x: f64) -> (f64, f64) {
    const SERIES: [f64; 7] = [
        0.400_000_000_000_022_7,
        0.285_714_285_700_920_17,
        0.222_222_225_213_344,
        0.181_817_842_385_457_26,
        0.153_867_634_704_916_85,
        0.132_566_701_009_534_74,
        0.131_977_397_003_878_45,
    ];
    let subnormal = x < f64::MIN_POSITIVE;
    let scaled = if subnormal { x * 18_014_398_509_481_984.0 } else { x };
    // The exponent, put into the low bits of 2^52, and the mantissa in sqrt(1/2)..sqrt(2).
    let bits = scaled.to_bits().wrapping_add((1023 << 52) - ROOT_HALF);
    let bias = if subnormal { 4_503_599_627_370_496.0 + 1077.0 } else { 4_503_599_627_370_496.0 + 1023.0 };
    let exponent = f64::from_bits((bits >> 52) | (1075 << 52)) - bias;
    let f = f64::from_bits((bits & ((1 << 52) - 1)) + ROOT_HALF) - 1.0;
    let sum = 2.0 + f;
    let sum_low = f - (sum - 2.0);
    let inverse = 1.0 / sum;
    let s = f * inverse;
    let s_low = (-s).mul_add(sum_low, (-s).mul_add(sum, f)) * inverse;
    let z = s * s;
    let z_low = (s + s).mul_add(s_low, s.mul_add(s, -z));
    // c = 2/3 + 2/5 z + ..
    let q = z * polynomial(z, SERIES);
    let c = 0.666_666_666_666_666_6 + q;
    let c_low = (0.666_666_666_666_666_6 - c) + q + 3.700_743_415_417_188e-17;
    let w = z * c;
    let w_low = z.mul_add(c, -w) + z.mul_add(c_low, z_low * c);
    let p = s * w;
    let p_low = s.mul_add(w, -p) + s.mul_add(w_low, s_low * w);
    let twice = s + s;
    let y = twice + p;
    let y_low = (twice - y) + p + (s_low + s_low + p_low);
    let whole = exponent * LN_2.0;
    let high = whole + y;
    let low = (whole - high) + y + exponent.mul_add(LN_2.1, y_low);
    let rounded = high + low;
    (rounded, (high - rounded) + low)
}

/// The logarithm `y` of `x`, but what it is where `x` is not positive and finite.
#[inline(always)]
fn ends_of_ln(x: f64, y: f64) -> f64 {
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// `x` less a whole number of quarter turns, as a sum, and that number modulo 4. The first of three
/// parts of a quarter turn is subtracted exactly. Beyond 2^51, where that number has no low bits
/// any more, the remainder is 0.
#[inline(always)]
fn quarter_turns(x: f64) -> (f64, f64, u64) {
    const SECOND: f64 = 6.123_233_995_736_766e-17;
    const THIRD: f64 = -1.497_384_904_859_169_8e-33;
    let shifted = x.mul_add(FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let exact = n.mul_add(-FRAC_PI_2, x);
    let second = n * SECOND;
    let r = exact - second;
    let taken = r - exact;
    let lost = (exact - (r - taken)) - (second + taken);
    let low = lost - n.mul_add(THIRD, n.mul_add(SECOND, -second));
    let void = r.abs() > 1.0;
    (if void { 0.0 } else { r }, if void { 0.0 } else { low }, shifted.to_bits())
}

/// The sine of `r + low` radians and `quadrant + more` quarter turns, for `r` in -pi/4..pi/4.
#[inline(always)]
fn on_circle((r, low, quadrant): (f64, f64, u64), more: u64) -> f64 {
    const SINE: [f64; 6] = [
        -0.166_666_666_666_666_24,
        0.008_333_333_333_320_04,
        -0.000_198_412_698_278_553_17,
        2.755_731_299_958_502_8e-6,
        -2.505_064_778_010_052_3e-8,
        1.589_030_769_009_476_6e-10,
    ];
    const COSINE: [f64; 6] = [
        0.041_666_666_666_666_58,
        -0.001_388_888_888_887_091_6,
        2.480_158_728_742_005e-5,
        -2.755_731_374_260_308_6e-7,
        2.087_563_879_508_568_4e-9,
        -1.135_520_441_114_804_8e-11,
    ];
    let quadrant = quadrant.wrapping_add(more);
    let z = r * r;
    let half = 0.5 * z;
    let s = r + (r * z).mul_add(polynomial(z, SINE), (-half).mul_add(low, low));
    let near = 1.0 - half;
    let c = near + ((1.0 - near) - half + (z * z).mul_add(polynomial(z, COSINE), -(r * low)));
    let y = if quadrant & 1 == 0 { s } else { c };
    if quadrant & 2 == 0 { y } else { -y }
}

#[cfg(test)]
mod tests;
