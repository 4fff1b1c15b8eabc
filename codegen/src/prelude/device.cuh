// What generated kernels use beyond plain C++, each name a few instructions. NVRTC needs no header besides this text and
// `math.h`; `host.h` of the tests gives the same names for a C++ compiler, so that one text runs on both.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
// One block at a time is enough: without that word the assembler may spill registers to have room for more of them.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define INLINE static __device__ __forceinline__
// The block's shared memory, whose bytes the launch says.
#define SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define BARRIER() __syncthreads()

// Floats of 16 bits have no operators: they are converted where they are read and written.
struct __align__(2) bf16 { u16 bits; };
struct __align__(2) f16 { u16 bits; };
struct __align__(1) bool8 { u8 bits; };

INLINE u32 bits_of(float x) { return __float_as_uint(x); }
INLINE float float_of(u32 x) { return __uint_as_float(x); }
INLINE u64 bits_of(double x) { return (u64)__double_as_longlong(x); }
INLINE double double_of(u64 x) { return __longlong_as_double((i64)x); }

INLINE float widened(bf16 x) { return float_of((u32)x.bits << 16); }
INLINE float widened(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
// The nearest number, ties to even.
INLINE bf16 narrowed_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
INLINE f16 narrowed_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Two of them as one word, `low` in the lower bits.
INLINE u32 packed_bf16(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
INLINE u32 packed_f16(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// The power of 2, as near as the GPU's instruction comes: within 2^-21 of it, and 0 where it is subnormal.
INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// `WORDS` times 4 bytes at an address that is a multiple of that many bytes.
template <int WORDS> struct words { u32 w[WORDS]; };
INLINE void load(words<1>& to, const void* p) { to.w[0] = *(const u32*)p; }
INLINE void load(words<2>& to, const void* p) {
    uint2 v = *(const uint2*)p;
    to.w[0] = v.x; to.w[1] = v.y;
}
INLINE void load(words<4>& to, const void* p) {
    uint4 v = *(const uint4*)p;
    to.w[0] = v.x; to.w[1] = v.y; to.w[2] = v.z; to.w[3] = v.w;
}
INLINE void store(void* p, words<1> from) { *(u32*)p = from.w[0]; }
// The compiler may cut an assignment of several words into one for each, so the instruction is asked for. A generic address
// of global memory is the global address.
INLINE void store(void* p, words<2> from) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(p), "r"(from.w[0]), "r"(from.w[1]) : "memory");
}
INLINE void store(void* p, words<4> from) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(from.w[0]), "r"(from.w[1]), "r"(from.w[2]), "r"(from.w[3]) : "memory");
}
// The same for shared memory.
INLINE void store_shared(void* p, words<2> from) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};"
                 :: "r"((u32)__cvta_generic_to_shared(p)), "r"(from.w[0]), "r"(from.w[1]) : "memory");
}
INLINE void store_shared(void* p, words<4> from) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"((u32)__cvta_generic_to_shared(p)),
                    "r"(from.w[0]), "r"(from.w[1]), "r"(from.w[2]), "r"(from.w[3]) : "memory");
}

// The value that the lane whose number differs in the bits of `lanes` gives; every lane of the warp takes part.
INLINE u32 shuffle_xor(u32 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
INLINE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
INLINE double shuffle_xor(double x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
INLINE i64 shuffle_xor(i64 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
// Bit `l` says whether `x` is true in lane `l`; every lane of the warp takes part.
INLINE u32 ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
// The number of the lowest bit that is 1; `x` is not 0.
INLINE u32 lowest_bit(u32 x) { return (u32)__ffs((i32)x) - 1; }
// How many bits are 1.
INLINE u32 count_bits(u32 x) { return (u32)__popc((i32)x); }
INLINE u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }

// Copies 16 bytes from global to shared memory beside what the thread does next, both addresses multiples of 16. Where `there`
// is false nothing is read, and zeros are written. The thread sees what it copied once it has waited, others behind a barrier.
INLINE void copy_async(void* shared, const void* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "r"(there ? 16 : 0) : "memory");
}
// Makes a group of the thread's copies since the last one.
INLINE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last `LEFT` groups are on their way.
template <int LEFT> INLINE void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }

// Reads four tiles of 8 by 8 elements of 16 bits from shared memory: lane `l` gives the address of row `l % 8` of tile `l / 8`,
// a multiple of 16, and gets of each tile the elements `l % 4 * 2` and the next one of row `l / 4`. Every lane takes part.
INLINE void load_tiles(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// The same, with rows and columns of what lanes get exchanged.
INLINE void load_tiles_turned(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// Adds to `d` (16 by 8) the product of `a` (16 by 16) and `b` (16 by 8), as lanes hold tiles: `a` has those at rows 0 and 8 of
// columns 0, then of columns 8; `b` those at rows 0 and 8, turned; `d` two sums of row `l / 4`, then of that plus 8.
INLINE void multiply_tile_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE void multiply_tile_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Says that the data are wrong, from any thread: `reason` is not 0. The launch's results mean nothing then.
INLINE void fail(u32* fault, u32 reason) { *(volatile u32*)fault = reason; }
