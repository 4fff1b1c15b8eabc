// Pieces of kernels, the same text on the device and on the host: vectors of elements, reductions of a warp or a block, tiles.
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

// Floats of 16 bits in the lanes' shares of tiles: two in a word, and products of tiles.
template <class T> struct Half;
template <> struct Half<bf16> {
    INLINE u32 packed(float low, float high) { return packed_bf16(low, high); }
    INLINE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_tile_bf16(d, a, b0, b1); }
};
template <> struct Half<f16> {
    INLINE u32 packed(float low, float high) { return packed_f16(low, high); }
    INLINE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_tile_f16(d, a, b0, b1); }
};

// Where a row of a tile in shared memory has its 8 elements `word`. Rows have `WORDS` times 8: 2, 4 or a multiple of 8 words.
// Neither 8 rows at one word nor 8 neighbouring words meet in a bank.
template <int WORDS> INLINE u32 tile_at(u32 row, u32 word) {
    constexpr u32 EACH = WORDS < 8 ? WORDS : 8;
    return (row * WORDS + word / EACH * EACH + (word ^ row / (8 / EACH)) % EACH) * 16;
}

// The same `more` words on, of which the word there has no bit.
template <int WORDS> INLINE u32 words_on(u32 at, u32 more) {
    constexpr u32 EACH = WORDS < 8 ? WORDS : 8;
    return (at ^ more % EACH * 16) + more / EACH * EACH * 16;
}

// Begins to copy the first `width` elements of `ROWS` rows, from the row `first` on, to such a tile. What is not there is 0.
template <int THREADS, int ROWS, int WORDS, class T, class I>
INLINE void copy_rows(unsigned char* to, const T* from, I first, I count, I stride, u32 width) {
    #pragma unroll
    for (u32 at = threadIdx.x; at < ROWS * WORDS; at += THREADS) {
        u32 row = at / WORDS, word = at % WORDS;
        bool there = first + row < count && word * 8 < width;
        copy_async(to + tile_at<WORDS>(row, word), from + (there ? (first + row) * stride + word * 8 : 0), there);
    }
}

// The same where all rows are there, and as wide as the tile. The next row of a thread is always as far from the one before.
template <int THREADS, int ROWS, int WORDS, class T, class I>
INLINE void copy_whole_rows(unsigned char* to, const T* from, I first, i64 stride) {
    constexpr u32 LINES = THREADS / WORDS;
    static_assert(THREADS % WORDS == 0 && LINES % 8 == 0, "a thread has one word of every row that it copies");
    u32 row = threadIdx.x / WORDS, word = threadIdx.x % WORDS;
    to += tile_at<WORDS>(row, word);
    from += (first + row) * (I)stride + word * 8;
    #pragma unroll
    for (u32 line = 0; line < ROWS; line += LINES)
        if (ROWS % LINES == 0 || line + row < ROWS) copy_async(to + line * WORDS * 16, from + line * stride, true);
}

// Writes the rows of a tile to where they are.
template <int THREADS, int ROWS, int WORDS, class T, class I>
INLINE void store_rows(T* to, const unsigned char* from, I first, I count, I stride, i32 width) {
    #pragma unroll
    for (u32 at = threadIdx.x; at < ROWS * WORDS; at += THREADS) {
        u32 row = at / WORDS, word = at % WORDS;
        if (first + row < count && (i32)word * 8 < width)
            write(to + (first + row) * stride + word * 8, read<8>((const T*)(from + tile_at<WORDS>(row, word))));
    }
}

// Adds the products of the warp's rows `a`, 16 in each of `PARTS`, with `COLUMNS` rows `b`, of `TERMS` terms each.
template <class T, int TERMS, int COLUMNS, int WORDS, int PARTS>
INLINE void rows_times_rows(float (&sum)[PARTS][COLUMNS / 8][4], const unsigned char* a, const unsigned char* b) {
    u32 lane = threadIdx.x % 32;
    // 8 rows on, words lie in the same order.
    u32 own = tile_at<WORDS>(lane % 16, lane / 16), other = tile_at<WORDS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    // Wide rows leave few registers for terms that come early.
    constexpr int TOGETHER = TERMS > 64 ? 2 : 4;
    #pragma unroll TOGETHER
    for (u32 c = 0; c < TERMS / 16; c++) {
        u32 x[PARTS][4];
        #pragma unroll
        for (u32 m = 0; m < PARTS; m++) load_tiles(x[m], a + words_on<WORDS>(own, c * 2) + m * 16 * WORDS * 16);
        #pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n += 2) {
            u32 y[4];
            load_tiles(y, b + words_on<WORDS>(other, c * 2) + n * 8 * WORDS * 16);
            #pragma unroll
            for (u32 m = 0; m < PARTS; m++) {
                Half<T>::multiply(sum[m][n], x[m], y[0], y[1]);
                Half<T>::multiply(sum[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

// Adds the products of the warp's weights, rounded, with `COLUMNS` columns of `TERMS` rows, from the word `first` on.
template <class T, int TERMS, int COLUMNS, int WORDS, int PARTS>
INLINE void weights_times_rows(
    float (&sum)[PARTS][COLUMNS / 8][4], const float (&weights)[PARTS][TERMS / 8][4], const unsigned char* b, u32 first) {
    u32 lane = threadIdx.x % 32, at = tile_at<WORDS>(lane % 16, lane / 16);
    #pragma unroll
    for (u32 c = 0; c < TERMS / 16; c++) {
        u32 x[PARTS][4];
        #pragma unroll
        for (u32 m = 0; m < PARTS; m++) {
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const float (&pair)[4] = weights[m][c * 2 + i / 2];
                x[m][i] = Half<T>::packed(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
        }
        #pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n += 2) {
            u32 y[4];
            load_tiles_turned(y, b + words_on<WORDS>(at, first + n) + c * 16 * WORDS * 16);
            #pragma unroll
            for (u32 m = 0; m < PARTS; m++) {
                Half<T>::multiply(sum[m][n], x[m], y[0], y[1]);
                Half<T>::multiply(sum[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

// Writes the warp's sums, rounded, to the rows of a tile, 16 in each of `PARTS`.
template <class T, int COLUMNS, int WORDS, int PARTS>
INLINE void put_rows(unsigned char* to, const float (&sum)[PARTS][COLUMNS / 8][4]) {
    u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 n = 0; n < COLUMNS / 8; n++) {
        #pragma unroll
        for (u32 p = 0; p < 2 * PARTS; p++) {
            const float* pair = sum[p / 2][n] + p % 2 * 2;
            *(u32*)(to + tile_at<WORDS>(lane / 4 + p * 8, n) + lane % 4 * 4) = Half<T>::packed(pair[0], pair[1]);
        }
    }
}
