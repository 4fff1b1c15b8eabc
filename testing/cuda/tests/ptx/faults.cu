// What the run counts and refuses.
KERNEL(64) strided(const float* a, float* b, i64 by) { b[threadIdx.x] = a[threadIdx.x * by]; }
KERNEL(32) banked(float* b, i64 by) {
    SHARED(raw);
    volatile float* room = (volatile float*)raw;
    room[threadIdx.x * by] = 1.0f;
    BARRIER();
    b[threadIdx.x] = room[threadIdx.x * by];
}
KERNEL(32) misaligned(const u8* a, float* b) { b[threadIdx.x] = *(const float*)(a + threadIdx.x); }
KERNEL(64) missing(float* b, i64 n) {
    SHARED(raw);
    ((float*)raw)[threadIdx.x] = 1.0f;
    if (threadIdx.x < n) { BARRIER(); ((float*)raw)[threadIdx.x] += 1.0f; BARRIER(); }
    else { ((float*)raw)[threadIdx.x] = 3.0f; BARRIER(); ((float*)raw)[threadIdx.x] *= 2.0f; }
    b[threadIdx.x] = ((float*)raw)[threadIdx.x];
}
KERNEL(64) early(float* b, i64 n) {
    if (threadIdx.x >= n) return;
    SHARED(raw);
    ((float*)raw)[threadIdx.x] = threadIdx.x;
    BARRIER();
    b[threadIdx.x] = ((float*)raw)[threadIdx.x ^ 1];
}
KERNEL(32) partly(i32* b, i64 n) { if (threadIdx.x < n) b[threadIdx.x] = __shfl_xor_sync(~0u, (i32)threadIdx.x, 1); }
KERNEL(32) faulty(u32* fault, const i64* a) { if (a[threadIdx.x] < 0) fail(fault, 7); }
KERNEL(64) guarded(u32* fault, i64 n) { fail(fault, n); u32 x = *(volatile u32*)fault; if (x) fail(fault, x + 1); }
KERNEL(32) endless(volatile i64* b) { while (b[0] == 0) {} }
