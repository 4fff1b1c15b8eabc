// Pieces of kernels, the same text on the device and on the host: vectors of elements, and reductions of a warp or a block.
#pragma once

// `N` neighbouring elements.
template <class T, int N> struct vec { T at[N]; };

// Reads `N` elements, of 4, 8 or 16 bytes together, from an address that is a multiple of these.
template <int N, class T> INLINE vec<T, N> read(const T* from) {
    union { vec<T, N> v; words<(int)sizeof(T) * N / 4> w; } u;
    load(u.w, from);
    return u.v;
}

// Writes them to such an address of global memory.
template <class T, int N> INLINE void write(T* to, vec<T, N> v) {
    union { vec<T, N> v; words<(int)sizeof(T) * N / 4> w; } u;
    u.v = v;
    store(to, u.w);
}
// The same for shared memory.
template <class T, int N> INLINE void write_shared(T* to, vec<T, N> v) {
    union { vec<T, N> v; words<(int)sizeof(T) * N / 4> w; } u;
    u.v = v;
    store_shared(to, u.w);
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
