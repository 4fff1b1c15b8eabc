KERNEL(96) warps(const double* a, double* sums, i64* totals, u32* votes, u32* fault, i64 n) {
    SHARED(raw);
    double* room = (double*)raw;
    i64 at = (i64)blockIdx.x * 96 + threadIdx.x;
    double x = at < n ? a[at] : 0.0;
    i64 t = (i64)x;
    if (x > 1e9) fail(fault, 3);
    for (int d = 16; d; d >>= 1) { x += shuffle_xor(x, d); t += shuffle_xor(t, d); }
    u32 v = ballot(at % 3 == 0);
    if (threadIdx.x % 32 == 0) { room[threadIdx.x / 32] = x; votes[at / 32] = v + lowest_bit(v); }
    BARRIER();
    if (threadIdx.x == 0) { sums[blockIdx.x] = room[0] + room[1] + room[2]; }
    totals[at] = t + __shfl_up_sync(~0u, (i32)t + (i32)threadIdx.x, 1) + __shfl_down_sync(~0u, threadIdx.x, 3) + __shfl_sync(~0u, threadIdx.x, 5, 8);
    if (__any_sync(~0u, at == 5) && !__all_sync(~0u, at < 7)) totals[at] += 1;
}
