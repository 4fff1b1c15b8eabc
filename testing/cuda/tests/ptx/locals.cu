__device__ const i64 TABLE[5] = {3, -1, 4, 1, 5};
__constant__ float CONSTS[4] = {1.5f, -2.25f, 3.0f, 0.125f};
KERNEL(64) locals(const i64* a, i64* out, i64 n, i64 k0, i64 k1, i64 k2) {
    i64 at = (i64)blockIdx.x * 64 + threadIdx.x;
    if (at >= n) return;
    __shared__ i64 tile[64];
    i64 steps[6]; u8 small[16]; float f[4];
    for (int i = 0; i < 16; i++) small[i] = (u8)a[(at + i) % n];
    for (int i = 0; i < 6; i++) steps[i] = i == 0 ? k0 : i == 1 ? k1 : k2 * i;
    for (int i = 0; i < 4; i++) f[i] = (float)i;
    i64 x = a[at];
    for (int i = 0; i < (int)(x & 7); i++) steps[(x + i) % 6 < 0 ? 0 : (x + i) % 6] += i, f[(i * x) & 3] *= 2;
    tile[threadIdx.x] = steps[x & 3] + small[x & 15] + TABLE[(u64)x % 5] + (i64)CONSTS[x & 3] + (i64)f[(x >> 2) & 3];
    __syncwarp();
    out[at] = tile[threadIdx.x ^ 1];
}
template <class T, int W> INLINE void copy_row(T* to, const T* from, i64 n) {
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) { words<W> w; load(w, from + i * W * 4 / sizeof(T)); store(to + i * W * 4 / sizeof(T), w); }
}
KERNEL(128) vectors(const float* __restrict__ a, const bf16* b, const f16* __restrict__ c, const bool8* d, float* e, bf16* f, f16* g, bool8* h, i64 n) {
    copy_row<float, 4>(e, a, n / 4); copy_row<bf16, 2>(f, b, n / 4); copy_row<f16, 1>(g, c, n / 2); copy_row<bool8, 4>(h, d, n / 16);
    for (i64 i = threadIdx.x; i < n % 16; i += blockDim.x) { i64 j = n - 1 - i; e[j] = a[j]; f[j] = narrowed_bf16(widened(b[j]) + 1.0f); g[j] = narrowed_f16(widened(c[j])); h[j].bits = d[j].bits != 0; }
}
KERNEL(128) wide(const float* a, float* b, i64 n) {
    SHARED(raw);
    float4* s = (float4*)raw; const float4* p = (const float4*)a;
    for (i64 i = threadIdx.x; i < n / 4; i += 128) s[i] = p[i];
    BARRIER();
    for (i64 i = threadIdx.x; i < n / 4; i += 128) { float4 v = s[n / 4 - 1 - i]; ((float4*)b)[i] = make_float4(v.w, v.z, v.y, v.x); }
    double2 q = ((const double2*)a)[threadIdx.x]; ((double2*)raw)[threadIdx.x] = make_double2(q.y, q.x); BARRIER();
}
