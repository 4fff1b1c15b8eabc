KERNEL(64) floats(const float* a, const float* b, float* out, i64 n) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    float x = a[at], y = b[at];
    float* o = out + at * 40;
    o[0] = x + y; o[1] = x - y; o[2] = x * y; o[3] = x / y; o[4] = fmaf(x, y, 1.5f); o[5] = sqrtf(x); o[6] = 1.0f / x; o[7] = fmodf(x, y);
    o[8] = rintf(x); o[9] = floorf(x); o[10] = ceilf(x); o[11] = truncf(x); o[12] = copysignf(x, y); o[13] = fmaxf(x, y); o[14] = fminf(x, y);
    o[15] = fabsf(x); o[16] = -x; o[17] = x < y; o[18] = x <= y; o[19] = x != y; o[20] = isnan(x); o[21] = isinf(y);
    o[22] = (float)(i32)x; o[23] = (float)(u32)fabsf(x); o[24] = (float)(i64)x; o[25] = (float)(u64)fabsf(x); o[26] = (float)(double)x;
    o[27] = x > y ? x : y; o[28] = !(x < y) ? 1.0f : x; o[29] = roundf(x); o[30] = x == y; o[31] = widened(narrowed_bf16(x)); o[32] = widened(narrowed_f16(y));
    o[33] = float_of(bits_of(x) ^ 0x80000000u); o[34] = (float)__float2int_rn(x); o[35] = __fsqrt_rn(y); o[36] = (float)(x && y); o[37] = signbit(x) ? 2.0f : 3.0f;
    o[38] = (float)((double)x / (double)y); o[39] = isfinite(x);
}
KERNEL(64) doubles(const double* a, const double* b, double* out, i64 n) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    double x = a[at], y = b[at];
    double* o = out + at * 32;
    o[0] = x + y; o[1] = x - y; o[2] = x * y; o[3] = x / y; o[4] = fma(x, y, 1.5); o[5] = sqrt(x); o[6] = 1.0 / x; o[7] = fmod(x, y);
    o[8] = rint(x); o[9] = floor(x); o[10] = ceil(x); o[11] = trunc(x); o[12] = copysign(x, y); o[13] = fmax(x, y); o[14] = fmin(x, y);
    o[15] = fabs(x); o[16] = -x; o[17] = x < y; o[18] = (double)(i32)x; o[19] = (double)(u32)fabs(x); o[20] = (double)(i64)x; o[21] = (double)(u64)fabs(x);
    o[22] = (float)x; o[23] = isnan(x); o[24] = round(x); o[25] = double_of(bits_of(x) + 1); o[26] = x > y ? x : y; o[27] = (double)(float)y; o[28] = (double)(i64)bits_of(x); o[29] = (double)bits_of(y);
    o[30] = (float)(i64)bits_of(x); o[31] = (float)bits_of(y);
}
