// The same names as `device.cuh`, for a C++ compiler on the host. A thread is a fiber of
// `host.cpp`, and whatever waits for other threads is a call into it. It also defines the hooks that
// `-fsanitize=thread` puts before loads and stores.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
namespace host {
struct Dim { u32 x, y, z; };
struct Position { Dim thread, block, block_size, grid_size; u8* shared; };
void barrier(u32 site);
u64 exchange(u64 value, int lanes, u32 site);
u32 vote(bool value, u32 site);
// What a lane has of four tiles.
struct Words { u32 w[4]; };
void copy_async(void* shared, const void* global, bool there);
void copy_commit();
void copy_wait(int left);
Words tiles(const void* row, bool turned, u32 site);
Words product(Words sums, Words a, u32 b0, u32 b1, bool is_bf16, u32 site);
void fail(void* fault, u32 reason);
void misuse(const char* what);
}
#ifndef HOST_RUNNER
// A thread never sees its own position change, so the compiler may keep it, and no hook watches it.
extern "C" const host::Position host_position;
#define threadIdx host_position.thread
#define blockIdx host_position.block
#define blockDim host_position.block_size
#define gridDim host_position.grid_size
#define KERNEL(threads) extern "C" void
#define INLINE static inline __attribute__((always_inline))
#define SHARED(name) unsigned char* name = host_position.shared
// Each place in the text that waits for other threads has a number.
#define BARRIER() host::barrier(__COUNTER__)
#define shuffle_xor(value, lanes) shuffle_xor_at(value, lanes, __COUNTER__)
#define ballot(value) host::vote(value, __COUNTER__)
#define load_tiles(to, row) load_tiles_at(to, row, false, __COUNTER__)
#define load_tiles_turned(to, row) load_tiles_at(to, row, true, __COUNTER__)
#define multiply_tile_bf16(d, a, b0, b1) multiply_tile_at(d, a, b0, b1, true, __COUNTER__)
#define multiply_tile_f16(d, a, b0, b1) multiply_tile_at(d, a, b0, b1, false, __COUNTER__)

struct alignas(2) bf16 { u16 bits; };
struct alignas(2) f16 { u16 bits; };
struct alignas(1) bool8 { u8 bits; };

INLINE u32 bits_of(float x) { u32 y; __builtin_memcpy(&y, &x, 4); return y; }
INLINE float float_of(u32 x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
INLINE u64 bits_of(double x) { u64 y; __builtin_memcpy(&y, &x, 8); return y; }
INLINE double double_of(u64 x) { double y; __builtin_memcpy(&y, &x, 8); return y; }

namespace host {
typedef float Floats __attribute__((vector_size(16)));
typedef short Halves __attribute__((vector_size(16)));
typedef u32 Words4 __attribute__((vector_size(16)));
}
INLINE float widened(bf16 x) { return float_of((u32)x.bits << 16); }
INLINE float widened(f16 x) { return __builtin_ia32_vcvtph2ps(host::Halves{(short)x.bits})[0]; }
// Not-a-number becomes the one that the GPU makes.
INLINE bf16 narrowed_bf16(float x) {
    u32 b = bits_of(x);
    return x != x ? bf16{0x7fff} : bf16{(u16)((b + 0x7fff + (b >> 16 & 1)) >> 16)};
}
INLINE f16 narrowed_f16(float x) {
    return x != x ? f16{0x7fff} : f16{(u16)__builtin_ia32_vcvtps2ph(host::Floats{x}, 0)[0]};
}
INLINE u32 packed_bf16(float low, float high) {
    return narrowed_bf16(low).bits | (u32)narrowed_bf16(high).bits << 16;
}
INLINE u32 packed_f16(float low, float high) {
    return narrowed_f16(low).bits | (u32)narrowed_f16(high).bits << 16;
}

// One access of the whole width, whose hook also checks the alignment.
template <int WORDS> struct words { u32 w[WORDS]; };
INLINE void load(words<1>& to, const void* p) { to.w[0] = *(const u32*)p; }
INLINE void load(words<2>& to, const void* p) {
    u64 v = *(const u64*)p;
    to.w[0] = (u32)v; to.w[1] = (u32)(v >> 32);
}
INLINE void load(words<4>& to, const void* p) {
    host::Words4 v = *(const host::Words4*)p;
    to.w[0] = v[0]; to.w[1] = v[1]; to.w[2] = v[2]; to.w[3] = v[3];
}
INLINE void store(void* p, words<1> from) { *(u32*)p = from.w[0]; }
INLINE void store(void* p, words<2> from) { *(u64*)p = from.w[0] | (u64)from.w[1] << 32; }
INLINE void store(void* p, words<4> from) {
    *(host::Words4*)p = host::Words4{from.w[0], from.w[1], from.w[2], from.w[3]};
}
template <int WORDS> INLINE void store_shared(void* p, words<WORDS> from) { store(p, from); }

INLINE u32 shuffle_xor_at(u32 x, int lanes, u32 site) { return (u32)host::exchange(x, lanes, site); }
INLINE float shuffle_xor_at(float x, int lanes, u32 site) {
    return float_of((u32)host::exchange(bits_of(x), lanes, site));
}
INLINE double shuffle_xor_at(double x, int lanes, u32 site) {
    return double_of(host::exchange(bits_of(x), lanes, site));
}
INLINE i64 shuffle_xor_at(i64 x, int lanes, u32 site) { return (i64)host::exchange((u64)x, lanes, site); }
INLINE void copy_async(void* shared, const void* global, bool there) { host::copy_async(shared, global, there); }
INLINE void copy_commit() { host::copy_commit(); }
template <int LEFT> INLINE void copy_wait() { host::copy_wait(LEFT); }
INLINE void load_tiles_at(u32 (&to)[4], const void* row, bool turned, u32 site) {
    host::Words w = host::tiles(row, turned, site);
    for (int i = 0; i < 4; i++) to[i] = w.w[i];
}
INLINE void multiply_tile_at(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bool is_bf16, u32 site) {
    host::Words sums = {bits_of(d[0]), bits_of(d[1]), bits_of(d[2]), bits_of(d[3])};
    sums = host::product(sums, host::Words{a[0], a[1], a[2], a[3]}, b0, b1, is_bf16, site);
    for (int i = 0; i < 4; i++) d[i] = float_of(sums.w[i]);
}
INLINE u32 count_bits(u32 x) { return (u32)__builtin_popcount(x); }
INLINE u32 lowest_bit(u32 x) {
    if (x == 0) host::misuse("lowest_bit of 0");
    return (u32)__builtin_ctz(x);
}
INLINE u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
INLINE void fail(u32* fault, u32 reason) { host::fail(fault, reason); }

#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
extern "C" {
float fmaf(float, float, float) noexcept;
double fma(double, double, double) noexcept;
float sqrtf(float) noexcept;
double sqrt(double) noexcept;
float fabsf(float) noexcept;
double fabs(double) noexcept;
float floorf(float) noexcept;
double floor(double) noexcept;
float ceilf(float) noexcept;
double ceil(double) noexcept;
float rintf(float) noexcept;
double rint(double) noexcept;
float fmodf(float, float) noexcept;
double fmod(double, double) noexcept;
double exp2(double) noexcept;
float copysignf(float, float) noexcept;
double copysign(double, double) noexcept;
}
// The nearest number, but for subnormal ones, which are 0. A GPU may be two units off in the last place.
INLINE float exp2_fast(float x) {
    float y = (float)exp2((double)x);
    return y < 1.17549435e-38f ? 0.0f : y;
}
// As on the GPU: a number wins over not-a-number, and -0 is less than 0.
INLINE float fminf(float a, float b) {
    if (a != a) return b == b ? b : float_of(0x7fffffff);
    if (b != b) return a;
    return a == b ? float_of(bits_of(a) | bits_of(b)) : a < b ? a : b;
}
INLINE float fmaxf(float a, float b) {
    if (a != a) return b == b ? b : float_of(0x7fffffff);
    if (b != b) return a;
    return a == b ? float_of(bits_of(a) & bits_of(b)) : a < b ? b : a;
}
INLINE double fmin(double a, double b) {
    if (a != a) return b;
    if (b != b) return a;
    return a == b ? double_of(bits_of(a) | bits_of(b)) : a < b ? a : b;
}
INLINE double fmax(double a, double b) {
    if (a != a) return b;
    if (b != b) return a;
    return a == b ? double_of(bits_of(a) & bits_of(b)) : a < b ? b : a;
}
INLINE float min(float a, float b) { return fminf(a, b); }
INLINE float max(float a, float b) { return fmaxf(a, b); }
INLINE double min(double a, double b) { return fmin(a, b); }
INLINE double max(double a, double b) { return fmax(a, b); }
#define HOST_MIN_MAX(type) \
    INLINE type min(type a, type b) { return a < b ? a : b; } \
    INLINE type max(type a, type b) { return a < b ? b : a; }
HOST_MIN_MAX(i32)
HOST_MIN_MAX(u32)
HOST_MIN_MAX(i64)
HOST_MIN_MAX(u64)
#undef HOST_MIN_MAX
#endif
