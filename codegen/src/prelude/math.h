// The scalar functions, the same steps as the CPU backend takes in Rust, so that results are equal
// to the bit. A multiply-add is fused where it is written and nowhere else: the text is compiled
// with `-fmad=false` or `-ffp-contract=off`. Truth values are 0 and 1.
#pragma once

// Conversions: floats truncate toward zero and saturate, what is no number is 0, and what is not 0
// is true. Floats of 16 bits are converted through `float`.
INLINE float to_f32(float x) { return x; }
INLINE float to_f32(double x) { return (float)x; }
INLINE float to_f32(i64 x) { return (float)x; }
INLINE float to_f32(u32 x) { return (float)x; }
INLINE float to_f32(bf16 x) { return widened(x); }
INLINE float to_f32(f16 x) { return widened(x); }
INLINE float to_f32(bool8 x) { return x.bits != 0 ? 1.0f : 0.0f; }
INLINE double to_f64(float x) { return (double)x; }
INLINE double to_f64(double x) { return x; }
INLINE double to_f64(i64 x) { return (double)x; }
INLINE double to_f64(bf16 x) { return (double)widened(x); }
INLINE double to_f64(f16 x) { return (double)widened(x); }
INLINE double to_f64(bool8 x) { return x.bits != 0 ? 1.0 : 0.0; }
INLINE i64 to_i64(double x) {
    bool inside = x > -9223372036854775808.0 && x < 9223372036854775808.0;
    i64 whole = (i64)(inside ? x : 0.0);
    i64 high = x >= 9223372036854775808.0 ? 0x7fffffffffffffffll : whole;
    return x <= -9223372036854775808.0 ? -0x7fffffffffffffffll - 1 : high;
}
INLINE i64 to_i64(float x) { return to_i64((double)x); }
INLINE i64 to_i64(i64 x) { return x; }
INLINE i64 to_i64(bf16 x) { return to_i64(widened(x)); }
INLINE i64 to_i64(f16 x) { return to_i64(widened(x)); }
INLINE i64 to_i64(bool8 x) { return x.bits != 0 ? 1 : 0; }
INLINE bf16 to_bf16(bf16 x) { return x; }
template <class T> INLINE bf16 to_bf16(T x) { return narrowed_bf16(to_f32(x)); }
INLINE f16 to_f16(f16 x) { return x; }
template <class T> INLINE f16 to_f16(T x) { return narrowed_f16(to_f32(x)); }
INLINE bool8 to_bool8(double x) { return bool8{(u8)(x != 0.0)}; }
INLINE bool8 to_bool8(float x) { return bool8{(u8)(x != 0.0f)}; }
INLINE bool8 to_bool8(i64 x) { return bool8{(u8)(x != 0)}; }
INLINE bool8 to_bool8(bf16 x) { return to_bool8(widened(x)); }
INLINE bool8 to_bool8(f16 x) { return to_bool8(widened(x)); }
INLINE bool8 to_bool8(bool8 x) { return bool8{(u8)(x.bits != 0)}; }

// The nearest number of a narrower format, in the same type. Wider numbers are rounded to `float`
// first.
INLINE float round_bf16(float x) { return widened(narrowed_bf16(x)); }
INLINE float round_f16(float x) { return widened(narrowed_f16(x)); }
INLINE float round_tf32(float x) {
    u32 bits = bits_of(x);
    u32 rounded = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    return float_of((bits & 0x7fffffffu) < 0x7f800000u ? rounded : bits);
}
INLINE double round_bf16(double x) { return (double)round_bf16((float)x); }
INLINE double round_f16(double x) { return (double)round_f16((float)x); }
INLINE double round_tf32(double x) { return (double)round_tf32((float)x); }
INLINE i64 round_bf16(i64 x) { return to_i64(round_bf16((float)x)); }
INLINE i64 round_f16(i64 x) { return to_i64(round_f16((float)x)); }
INLINE i64 round_tf32(i64 x) { return to_i64(round_tf32((float)x)); }

// `n` and `r` with `x = n ln 2 + r`; `n` is an integer modulo 2^32.
INLINE u32 halvings(float x, float& r) {
    float shifted = fmaf(x, 1.44269504f, 12582912.0f);
    float n = shifted - 12582912.0f;
    r = fmaf(n, 2.1219444e-4f, fmaf(n, -0.6933594f, x));
    return bits_of(shifted) - 0x4b400000u;
}
// `e^r - 1` for such an `r`.
INLINE float exp_m1(float r) {
    float p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3982e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    return fmaf(p * r, r, r);
}
INLINE float exp_(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -87.5f ? -87.5f : x;
    float r;
    u32 n = halvings(x, r);
    float p = exp_m1(r) + 1.0f;
    return (p + p) * float_of((n + 126u) << 23);
}
INLINE float log_(float x) {
    bool subnormal = x < 1.17549435e-38f;
    float scaled = subnormal ? x * 8388608.0f : x;
    i32 bits = (i32)(bits_of(scaled) - 0x3f3504f3u);
    float exponent = (float)(bits >> 23) - (subnormal ? 23.0f : 0.0f);
    float z = float_of(((u32)bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 7.0376836e-2f;
    p = fmaf(p, z, -1.151461e-1f);
    p = fmaf(p, z, 1.1676999e-1f);
    p = fmaf(p, z, -1.2420141e-1f);
    p = fmaf(p, z, 1.4249323e-1f);
    p = fmaf(p, z, -1.6668057e-1f);
    p = fmaf(p, z, 2.0000715e-1f);
    p = fmaf(p, z, -2.4999994e-1f);
    p = fmaf(p, z, 0.3333333f);
    float square = z * z;
    float y = p * z * square;
    y = fmaf(exponent, -2.1219444e-4f, y);
    y = fmaf(square, -0.5f, y);
    y = fmaf(exponent, 0.6933594f, z + y);
    y = x == float_of(0x7f800000u) ? x : y;
    y = x == 0.0f ? float_of(0xff800000u) : y;
    return x >= 0.0f ? y : float_of(0x7fc00000u);
}
INLINE float tanh_(float x) {
    float y = fabsf(x) + fabsf(x);
    y = y > 20.0f ? 20.0f : y;
    float r;
    u32 n = halvings(y, r);
    float power = float_of((n + 127u) << 23);
    float e = fmaf(power, exp_m1(r), power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}
INLINE float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }
INLINE float erf_(float x) {
    float t = fabsf(x), square = x * x;
    float far = fmaf(-1.7285347e-5f, t, 3.83198e-4f);
    float even = fmaf(-3.8839644e-3f, t, 2.4254622e-2f);
    far = fmaf(far, square, even);
    far = fmaf(far, t, -1.0677788e-1f);
    far = fmaf(far, t, -6.348469e-1f);
    far = fmaf(far, t, -1.2871751e-1f);
    far = 1.0f - exp_(fmaf(far, t, -t));
    float near = -5.967617e-4f;
    near = fmaf(near, square, 4.9911942e-3f);
    near = fmaf(near, square, -2.6768135e-2f);
    near = fmaf(near, square, 1.1281992e-1f);
    near = fmaf(near, square, -3.7612534e-1f);
    near = fmaf(near, square, 1.2837917e-1f);
    near = fmaf(near, x, x);
    return t > 0.9277344f ? copysignf(far, x) : near;
}
// `x` less a whole number of quarter turns, and that number modulo 4.
INLINE u64 quarter_turns(float x, double& r) {
    double wide = (double)x;
    double shifted = fma(wide, 0.6366197723675814, 6755399441055744.0);
    double n = shifted - 6755399441055744.0;
    r = fma(n, -6.123233995736766e-17, fma(n, -1.5707963267948966, wide));
    r = fabs(r) > 1.0 ? 0.0 : r;
    return bits_of(shifted);
}
// The sine of `r` radians and `quadrant` quarter turns.
INLINE float on_circle(double r, u64 quadrant) {
    double z = r * r;
    double s = fma(1.0 / 362880.0, z, -1.0 / 5040.0);
    s = fma(s, z, 1.0 / 120.0);
    s = fma(s, z, -1.0 / 6.0);
    s = fma(s * z, r, r);
    double c = fma(-1.0 / 3628800.0, z, 1.0 / 40320.0);
    c = fma(c, z, -1.0 / 720.0);
    c = fma(c, z, 1.0 / 24.0);
    c = fma(c, z, -0.5);
    c = fma(c, z, 1.0);
    double y = (quadrant & 1) == 0 ? s : c;
    return (float)((quadrant & 2) == 0 ? y : -y);
}
INLINE float sin_(float x) {
    double r;
    u64 quadrant = quarter_turns(x, r);
    return on_circle(r, quadrant);
}
INLINE float cos_(float x) {
    double r;
    u64 quadrant = quarter_turns(x, r);
    return on_circle(r, quadrant + 1);
}
INLINE float atan_(float x) {
    float t = fabsf(x);
    bool near = t <= 0.41421357f, far = t > 2.4142136f;
    float middle = (t - 1.0f) / (t + 1.0f);
    float y = near ? t : middle;
    y = far ? -1.0f / t : y;
    float turned = near ? 0.0f : 0.78539816339744830962f;
    turned = far ? 1.57079632679489661923f : turned;
    float z = y * y;
    float p = 8.0537445e-2f;
    p = fmaf(p, z, -1.3877686e-1f);
    p = fmaf(p, z, 1.9977711e-1f);
    p = fmaf(p, z, -3.333295e-1f);
    return copysignf(fmaf(p * z, y, y) + turned, x);
}

// The functions of `double`. The logarithm of 2 is in two parts, the first of 40 bits.
INLINE double polynomial(double, double c) { return c; }
template <class... C> INLINE double polynomial(double x, double c, C... more) {
    return fma(polynomial(x, more...), x, c);
}
// `(a + a_low) / (b + b_low)`, where the second parts are rounding errors of the first.
INLINE double quotient(double a, double a_low, double b, double b_low) {
    double inverse = 1.0 / b;
    double y = a * inverse;
    double rest = fma(-y, b_low, fma(-y, b, a)) + a_low;
    return fma(rest, inverse, y);
}
// `n`, `r` and `more` with `e^(x + low) = 2^n (1 + r + more)`; `n` is an integer modulo 2^64.
INLINE u64 exp_m1(double x, double low, double& r, double& more) {
    double shifted = fma(x, 1.4426950408889634, 6755399441055744.0);
    double n = shifted - 6755399441055744.0;
    double exact = fma(n, -0.6931471805592082, x);
    low = fma(n, -7.371002565167799e-13, low);
    r = exact + low;
    double p = polynomial(r,
        0.5,
        0.16666666666666677,
        0.0416666666666667,
        0.008333333333321532,
        0.0013888888888866622,
        0.00019841269886401743,
        2.4801587360968072e-5,
        2.7557243910846845e-6,
        2.7557242412741676e-7,
        2.5109147695083668e-8,
        2.092454984633336e-9);
    more = fma(r * r, p, (exact - r) + low);
    return bits_of(shifted) - 0x4338000000000000ull;
}
INLINE double exp_of_sum(double x, double low) {
    double r, more;
    u64 n = exp_m1(x, low, r, more) + 2046;
    u64 half = n >> 1;
    return (1.0 + (r + more)) * double_of(half << 52) * double_of((n - half) << 52);
}
INLINE double exp_(double x) {
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    return exp_of_sum(x, 0.0);
}
// The logarithm of a positive finite number, as a sum.
INLINE double ln_parts(double x, double& low) {
    bool subnormal = x < 2.2250738585072014e-308;
    double scaled = subnormal ? x * 18014398509481984.0 : x;
    u64 bits = bits_of(scaled) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
    double bias = subnormal ? 4503599627370496.0 + 1077.0 : 4503599627370496.0 + 1023.0;
    double exponent = double_of((bits >> 52) | 0x4330000000000000ull) - bias;
    double f = double_of((bits & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
    double sum = 2.0 + f;
    double sum_low = f - (sum - 2.0);
    double inverse = 1.0 / sum;
    double s = f * inverse;
    double s_low = fma(-s, sum_low, fma(-s, sum, f)) * inverse;
    double z = s * s;
    double z_low = fma(s + s, s_low, fma(s, s, -z));
    double q = z * polynomial(z,
        0.4000000000000227,
        0.28571428570092017,
        0.222222225213344,
        0.18181784238545726,
        0.15386763470491685,
        0.13256670100953474,
        0.13197739700387845);
    double c = 0.6666666666666666 + q;
    double c_low = (0.6666666666666666 - c) + q + 3.700743415417188e-17;
    double w = z * c;
    double w_low = fma(z, c, -w) + fma(z, c_low, z_low * c);
    double p = s * w;
    double p_low = fma(s, w, -p) + fma(s, w_low, s_low * w);
    double twice = s + s;
    double y = twice + p;
    double y_low = (twice - y) + p + (s_low + s_low + p_low);
    double whole = exponent * 0.6931471805592082;
    double high = whole + y;
    double rest = (whole - high) + y + fma(exponent, 7.371002565167799e-13, y_low);
    double rounded = high + rest;
    low = (high - rounded) + rest;
    return rounded;
}
INLINE double ends_of_ln(double x, double y) {
    y = x == double_of(0x7ff0000000000000ull) ? x : y;
    y = x == 0.0 ? double_of(0xfff0000000000000ull) : y;
    return x >= 0.0 ? y : double_of(0x7ff8000000000000ull);
}
INLINE double log_(double x) {
    double low;
    return ends_of_ln(x, ln_parts(x, low));
}
INLINE double tanh_(double x) {
    double y = fabs(x) + fabs(x);
    y = y > 44.0 ? 44.0 : y;
    double r, more;
    u64 n = exp_m1(y, 0.0, r, more);
    double q = r + more;
    double q_low = (r - q) + more;
    double power = double_of((n + 1023) << 52);
    double e = fma(power, q, power - 1.0);
    double e_low = fma(power, q_low, fma(power, q, (power - 1.0) - e));
    double sum = 2.0 + e;
    return copysign(quotient(e, e_low, sum, (2.0 - sum) + e), x);
}
INLINE double sigmoid_(double x) {
    double p = exp_(-fabs(x));
    double sum = 1.0 + p;
    return quotient(x < 0.0 ? p : 1.0, 0.0, sum, (1.0 - sum) + p);
}
INLINE double erf_(double x) {
    double e = polynomial(x * x,
        0.12837916709551256,
        -0.3761263890318355,
        0.11283791670945253,
        -0.026866170643276233,
        0.005223977607423621,
        -0.0008548325989705853,
        0.00012055295320815185,
        -1.4924744670342449e-5,
        1.6447517773201075e-6,
        -1.6209176697240427e-7,
        1.3722979850269634e-8,
        -7.801195822297999e-10);
    double near = fma(e, x, x);
    double t = fabs(x);
    t = t > 6.0 ? 6.0 : t;
    double scale = polynomial((3.0 - t) / (3.0 + t),
        0.17900115118139,
        0.32623356004316256,
        0.24560380170781074,
        0.15011593654566519,
        0.07166583744034208,
        0.024392489970539347,
        0.004269232716730044,
        -0.0007083055062171277,
        -0.0005950001944528316,
        -5.021834811579642e-5,
        7.162377259813015e-5,
        6.441136462939121e-6,
        -6.5794592596258345e-6);
    double far = 1.0 - exp_(-(t * t)) * scale;
    return t > 1.0 ? copysign(far, x) : near;
}
// `x` less a whole number of quarter turns, as a sum, and that number modulo 4.
INLINE u64 quarter_turns(double x, double& r, double& low) {
    double shifted = fma(x, 0.6366197723675814, 6755399441055744.0);
    double n = shifted - 6755399441055744.0;
    double exact = fma(n, -1.5707963267948966, x);
    double second = n * 6.123233995736766e-17;
    r = exact - second;
    double taken = r - exact;
    double lost = (exact - (r - taken)) - (second + taken);
    low = lost - fma(n, -1.4973849048591698e-33, fma(n, 6.123233995736766e-17, -second));
    bool none = fabs(r) > 1.0;
    r = none ? 0.0 : r;
    low = none ? 0.0 : low;
    return bits_of(shifted);
}
// The sine of `r + low` radians and `quadrant` quarter turns.
INLINE double on_circle(double r, double low, u64 quadrant) {
    double z = r * r;
    double half = 0.5 * z;
    double sine = polynomial(z,
        -0.16666666666666624,
        0.00833333333332004,
        -0.00019841269827855317,
        2.7557312999585028e-6,
        -2.5050647780100523e-8,
        1.5890307690094766e-10);
    double s = r + fma(r * z, sine, fma(-half, low, low));
    double cosine = polynomial(z,
        0.04166666666666658,
        -0.0013888888888870916,
        2.480158728742005e-5,
        -2.7557313742603086e-7,
        2.0875638795085684e-9,
        -1.1355204411148048e-11);
    double near = 1.0 - half;
    double c = near + ((1.0 - near) - half + fma(z * z, cosine, -(r * low)));
    double y = (quadrant & 1) == 0 ? s : c;
    return (quadrant & 2) == 0 ? y : -y;
}
INLINE double sin_(double x) {
    double r, low;
    u64 quadrant = quarter_turns(x, r, low);
    return on_circle(r, low, quadrant);
}
INLINE double cos_(double x) {
    double r, low;
    u64 quadrant = quarter_turns(x, r, low);
    return on_circle(r, low, quadrant + 1);
}
INLINE double atan_(double x) {
    double t = fabs(x);
    bool near = t <= 0.5, far = t > 2.0;
    double over = near ? t : t - 1.0, under = near ? 1.0 : t + 1.0;
    over = far ? -1.0 : over;
    under = far ? t : under;
    double turned = near ? 0.0 : 0.7853981633974483, low = near ? 0.0 : 3.061616997868383e-17;
    turned = far ? 1.5707963267948966 : turned;
    low = far ? 6.123233995736766e-17 : low;
    double y = over / under;
    double z = y * y;
    double p = polynomial(z,
        -0.33333333333332993,
        0.1999999999990527,
        -0.14285714276557643,
        0.11111110666444737,
        -0.09090896401514022,
        0.0769207618236587,
        -0.06663832142767073,
        0.058584346552471314,
        -0.05122569870664026,
        0.04187988369225159,
        -0.02745735032337121,
        0.010131625466293072);
    return copysign(turned + (y + fma(p * z, y, low)), x);
}
// The power whose magnitude is given, with its sign, and no number where it is not real.
INLINE double with_sign(double a, double b, double magnitude) {
    double half = b * 0.5;
    bool whole = floor(b) == b;
    bool odd = whole & (floor(half) != half);
    double power = fabs(a) == 1.0 ? 1.0 : magnitude;
    bool real = !((a < 0.0) & (a > double_of(0xfff0000000000000ull))) | whole;
    power = real ? power : double_of(0x7ff8000000000000ull);
    power = odd ? copysign(power, a) : power;
    return b == 0.0 ? 1.0 : power;
}
INLINE double pow_(double a, double b) {
    double base = fabs(a), low;
    double high = ln_parts(base, low);
    high = ends_of_ln(base, high);
    double y = b * high;
    double rest = fma(b, low, fma(b, high, -y));
    rest = fabs(y) < 800.0 ? rest : 0.0;
    y = y > 800.0 ? 800.0 : y;
    y = y < -800.0 ? -800.0 : y;
    double power = with_sign(a, b, exp_of_sum(y, rest));
    power = b == 2.0 ? a * a : power;
    power = b == 3.0 ? a * a * a : power;
    return b == -1.0 ? 1.0 / a : power;
}
INLINE float pow_(float a, float b) {
    double base = (double)a, exponent = (double)b;
    float power = (float)with_sign(base, exponent, exp_(exponent * log_(fabs(base))));
    power = b == 2.0f ? a * a : power;
    power = b == 3.0f ? a * a * a : power;
    return b == -1.0f ? 1.0f / a : power;
}

// What is left of the floats' functions is plain arithmetic. The greater and the less of two are no
// number if one of them is none.
INLINE float neg_(float x) { return -x; }
INLINE float abs_(float x) { return fabsf(x); }
INLINE float sqrt_(float x) { return sqrtf(x); }
INLINE float floor_(float x) { return floorf(x); }
INLINE float ceil_(float x) { return ceilf(x); }
INLINE float round_(float x) { return rintf(x); }
INLINE float remainder_of(float a, float b) { return fmodf(a, b); }
INLINE double neg_(double x) { return -x; }
INLINE double abs_(double x) { return fabs(x); }
INLINE double sqrt_(double x) { return sqrt(x); }
INLINE double floor_(double x) { return floor(x); }
INLINE double ceil_(double x) { return ceil(x); }
INLINE double round_(double x) { return rint(x); }
INLINE double remainder_of(double a, double b) { return fmod(a, b); }
template <class T> INLINE T sign_(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }
template <class T> INLINE T reciprocal_(T x) { return T(1) / x; }
template <class T> INLINE T add_(T a, T b) { return a + b; }
template <class T> INLINE T sub_(T a, T b) { return a - b; }
template <class T> INLINE T mul_(T a, T b) { return a * b; }
template <class T> INLINE T div_(T a, T b) { return a / b; }
template <class T> INLINE T mod_(T a, T b) {
    T rest = remainder_of(a, b);
    return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
}
template <class T> INLINE T max_(T a, T b) { return a > b || a != a ? a : b; }
template <class T> INLINE T min_(T a, T b) { return a < b || a != a ? a : b; }
template <class T> INLINE T not_(T x) { return x != T(0) ? T(0) : T(1); }
template <class T> INLINE T is_nan_(T x) { return x != x ? T(1) : T(0); }
template <class T> INLINE T eq_(T a, T b) { return a == b ? T(1) : T(0); }
template <class T> INLINE T lt_(T a, T b) { return a < b ? T(1) : T(0); }
template <class T> INLINE T le_(T a, T b) { return a <= b ? T(1) : T(0); }
template <class T> INLINE T and_(T a, T b) { return (a != T(0)) & (b != T(0)) ? T(1) : T(0); }
template <class T> INLINE T or_(T a, T b) { return (a != T(0)) | (b != T(0)) ? T(1) : T(0); }
template <class T> INLINE T xor_(T a, T b) { return (a != T(0)) ^ (b != T(0)) ? T(1) : T(0); }
template <class T> INLINE T select_(T test, T a, T b) { return test != T(0) ? a : b; }

// Integers wrap; a division by 0 gives 0; functions of real numbers truncate theirs.
INLINE i64 neg_(i64 x) { return (i64)(0 - (u64)x); }
INLINE i64 abs_(i64 x) { return x < 0 ? neg_(x) : x; }
INLINE i64 exp_(i64 x) { return to_i64(exp_((double)x)); }
INLINE i64 log_(i64 x) { return to_i64(log_((double)x)); }
INLINE i64 sqrt_(i64 x) { return to_i64(sqrt((double)x)); }
INLINE i64 sin_(i64 x) { return to_i64(sin_((double)x)); }
INLINE i64 cos_(i64 x) { return to_i64(cos_((double)x)); }
INLINE i64 atan_(i64 x) { return to_i64(atan_((double)x)); }
INLINE i64 tanh_(i64 x) { return to_i64(tanh_((double)x)); }
INLINE i64 erf_(i64 x) { return to_i64(erf_((double)x)); }
INLINE i64 sigmoid_(i64 x) { return to_i64(sigmoid_((double)x)); }
INLINE i64 floor_(i64 x) { return x; }
INLINE i64 ceil_(i64 x) { return x; }
INLINE i64 round_(i64 x) { return x; }
INLINE i64 add_(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
INLINE i64 sub_(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
INLINE i64 mul_(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
INLINE i64 div_(i64 a, i64 b) {
    if (b == 0) return 0;
    return b == -1 ? neg_(a) : a / b;
}
INLINE i64 reciprocal_(i64 x) { return div_((i64)1, x); }
INLINE i64 mod_(i64 a, i64 b) {
    if (b == 0 || b == -1) return 0;
    i64 rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
INLINE i64 pow_(i64 a, i64 b) {
    if (b < 0 || b > 0xffffffffll) return a == 1 ? 1 : a == -1 ? 1 - 2 * (b & 1) : 0;
    u64 product = 1, square = (u64)a;
    for (u32 rest = (u32)b; rest != 0; rest >>= 1) {
        product = (rest & 1) != 0 ? product * square : product;
        square *= square;
    }
    return (i64)product;
}
