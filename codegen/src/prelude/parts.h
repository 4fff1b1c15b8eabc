// Pieces of kernels, the same text on the device and on the host: vectors of elements, and reductions of a warp or a block.
#pragma once

// `N` neighbouring elements.
template <class T, int N> struct vec { T at[N]; };

// Reads `N` elements from an address that is a multiple of their bytes, or of 16 where these are more.
template <int N, class T> INLINE vec<T, N> read(const T* from) {
    constexpr int BYTES = sizeof(T) * N;
    if constexpr (BYTES < 4) {
        vec<T, N> v;
        #pragma unroll
        for (int i = 0; i < N; i++) v.at[i] = from[i];
        return v;
    } else {
        constexpr int WORDS = BYTES < 16 ? BYTES / 4 : 4, PARTS = BYTES / (4 * WORDS);
        union { vec<T, N> v; words<WORDS> w[PARTS]; } u;
        #pragma unroll
        for (int i = 0; i < PARTS; i++) load(u.w[i], (const u32*)from + i * WORDS);
        return u.v;
    }
}

// Writes them to such an address of global memory.
template <class T, int N> INLINE void write(T* to, vec<T, N> v) {
    constexpr int BYTES = sizeof(T) * N;
    if constexpr (BYTES < 4) {
        #pragma unroll
        for (int i = 0; i < N; i++) to[i] = v.at[i];
    } else {
        constexpr int WORDS = BYTES < 16 ? BYTES / 4 : 4, PARTS = BYTES / (4 * WORDS);
        union { vec<T, N> v; words<WORDS> w[PARTS]; } u;
        u.v = v;
        #pragma unroll
        for (int i = 0; i < PARTS; i++) store((u32*)to + i * WORDS, u.w[i]);
    }
}

// How partial results meet.
template <class T> struct Sum {
    INLINE T both(T a, T b) { return add_(a, b); }
};
template <class T> struct Max {
    INLINE T both(T a, T b) { return max_(a, b); }
};
template <class T> struct Min {
    INLINE T both(T a, T b) { return min_(a, b); }
};

// The combination of `x` over the lanes of a warp, in all of them.
template <template <class> class Kind, class T> INLINE T over_warp(T x) {
    #pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = Kind<T>::both(x, shuffle_xor(x, lanes));
    return x;
}

// The combination of `x` over a block of `WARPS` warps, a power of 2, in all threads. `shared` has room for `WARPS` values.
template <template <class> class Kind, int WARPS, class T> INLINE T over_block(T x, unsigned char* shared) {
    x = over_warp<Kind>(x);
    if constexpr (WARPS > 1) {
        T* part = (T*)shared;
        u32 lane = threadIdx.x % 32;
        if (lane == 0) part[threadIdx.x / 32] = x;
        BARRIER();
        x = part[lane % WARPS];
        #pragma unroll
        for (int lanes = WARPS / 2; lanes > 0; lanes /= 2) x = Kind<T>::both(x, shuffle_xor(x, lanes));
        BARRIER();
    }
    return x;
}
