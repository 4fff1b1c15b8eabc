KERNEL(64) ints(const i64* a, const i64* b, i64* out, i64 n, i64 seven) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    i64 x = a[at], y = b[at];
    u64 ux = (u64)x, uy = (u64)y;
    u32 wx = (u32)x, wy = (u32)y;
    i32 ix = (i32)x, iy = (i32)y;
    i64* o = out + at * 48;
    o[0] = x / 7; o[1] = x % 7; o[2] = (i64)(ux / 10); o[3] = (i64)(ux % 10);
    o[4] = wx / 7u; o[5] = wx % 1000u; o[6] = ix / 7; o[7] = ix % 12;
    o[8] = y ? x / y : 0; o[9] = y ? x % y : 0; o[10] = uy ? (i64)(ux / uy) : 0; o[11] = uy ? (i64)(ux % uy) : 0;
    o[12] = wy ? wx / wy : 0; o[13] = wy ? wx % wy : 0; o[14] = iy && iy != -1 ? ix / iy : 0; o[15] = iy && iy != -1 ? ix % iy : 0;
    o[16] = x * y; o[17] = (i64)__umulhi(wx, wy); o[18] = (i64)__umul64hi(ux, uy); o[19] = __mul64hi(x, y);
    o[20] = (i64)wx * wy; o[21] = (i64)ix * iy; o[22] = (i64)((u64)wx * wy + ux); o[23] = (i64)ix * iy + x;
    o[24] = ix * iy + 3; o[25] = x << (wy & 63); o[26] = x >> (wy & 63); o[27] = (i64)(ux >> (wy & 63));
    o[28] = (i32)(wx << (wy & 31)); o[29] = ix >> (wy & 31); o[30] = wx >> (wy & 31);
    o[31] = x < y ? x : y; o[32] = ux > uy ? (i64)ux : (i64)uy; o[33] = max(ix, iy); o[34] = min(wx, wy); o[35] = x < 0 ? -x : x;
    o[36] = __popc(wx) + 100 * __clz(wx) + 10000 * __brev(wx) ; o[37] = __popcll(x) + 100 * __clzll(x); o[38] = __ffs(ix) + 100 * __ffsll(x);
    o[39] = (i64)(signed char)x + 3 * (i64)(u8)x + 5 * (i64)(short)x + 7 * (i64)(u16)x;
    o[40] = (x & y) | (~x ^ y); o[41] = (ix & 0xff00) >> 8 | (wy >> 5 & 0x7f); o[42] = __funnelshift_l(wx, wy, 9) + __byte_perm(wx, wy, 0x5140);
    o[43] = (i64)__brevll(ux); o[44] = x / seven + x % seven; o[45] = (u8)x / 3 + (short)y % 5; o[46] = x == y || (x > 3 && y < -5) ; o[47] = abs(ix);
}
