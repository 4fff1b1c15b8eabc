// The scalar functions, the same steps as the CPU backend takes in Rust, so that results are equal
// to the bit. A multiply-add is fused where it is written and nowhere else: the text is compiled
// with `-fmad=false` or `-ffp-contract=off`. Truth values are 0 and 1.
#pragma once

// Conversions: floats truncate toward zero and saturate, what is no number is 0, and what is not 0
// is true. Floats of 16 bits are converted through `float`.
INLINE float to_f32(float x) { return x; }
INLINE float to_f32(double x) { return (float)x; }
INLINE float to_f32(i64 x) { return (float)x; }
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
INLINE float ln_(float x) {
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

//WIDE
INLINE double exp_(double x) { return exp(x); }
INLINE double ln_(double x) { return log(x); }
INLINE double tanh_(double x) { return tanh(x); }
INLINE double sigmoid_(double x) { return 1.0 / (1.0 + exp(-x)); }
INLINE double erf_(double x) { return erf(x); }
INLINE double sin_(double x) { return sin(x); }
INLINE double cos_(double x) { return cos(x); }
INLINE double atan_(double x) { return atan(x); }
INLINE double pow_(double a, double b) {
    double y = pow(a, b);
    y = b == 2.0 ? a * a : y;
    y = b == 3.0 ? a * a * a : y;
    return b == -1.0 ? 1.0 / a : y;
}
INLINE float pow_(float a, float b) {
    float y = (float)pow((double)a, (double)b);
    y = b == 2.0f ? a * a : y;
    y = b == 3.0f ? a * a * a : y;
    return b == -1.0f ? 1.0f / a : y;
}
//END

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
template <class T> INLINE T recip_(T x) { return T(1) / x; }
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
INLINE i64 ln_(i64 x) { return to_i64(ln_((double)x)); }
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
INLINE i64 recip_(i64 x) { return div_((i64)1, x); }
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
