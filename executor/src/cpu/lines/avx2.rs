//! What [`Vectors`](super::Vectors) does, with AVX2: a line is two registers of eight elements.
#![expect(unsafe_code, reason = "vectors are loaded and stored through pointers, and instructions used that were looked for")]

use super::{Block, HALF, HEIGHT, LINE, Line, Piece, Planes, WIDTH, first_lanes};
use std::arch::x86_64::*;

/// The rows whose sums are in registers at once.
const ROWS: usize = 4;

/// So many terms are multiplied with all rows of a block before the next ones: their lines stay in
/// the first cache.
pub const NEAR: usize = 96;

/// Terms that are far apart are prefetched so many ahead, each time for one row of four in turn.
const AHEAD: usize = 64;

/// See [`Vectors::multiply`](super::Vectors::multiply). Terms are brought into the
/// caches ahead if `FETCH`.
///
/// # Safety
/// The processor has the instructions, every term of each row is readable, and `b` has `W` lines
/// for each, no more than [`WIDTH`].
#[target_feature(enable = "avx2,fma")]
pub unsafe fn multiply<const W: usize, const FETCH: bool>(
    a: *const f32,
    rows: [usize; HEIGHT],
    offsets: &[u32],
    b: &[Line],
    block: &mut Block,
    accumulate: bool,
) {
    let mut sums = [[[0.0; LINE]; WIDTH]; HEIGHT];
    // SAFETY: the caller promises the first element of each row, its terms, and their lines.
    unsafe { add_products::<W, FETCH>(rows.map(|row| a.add(row)), offsets, b, W, &mut sums) };
    for (lines, sums) in block.iter_mut().zip(&sums) {
        for (line, sum) in lines.iter_mut().zip(sums).take(W) {
            let of = |half: usize| if accumulate { _mm256_add_ps(load(line, half), load(sum, half)) } else { load(sum, half) };
            let halves = [of(0), of(1)];
            put(line, halves);
        }
    }
}

/// Adds to the first `lines` lines of each row of `sums` its terms times lines of `b`, which has
/// `W` for each term.
///
/// # Safety
/// As [`multiply`], and `lines` are no more than `W`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn add_products<const W: usize, const FETCH: bool>(
    rows: [*const f32; HEIGHT],
    offsets: &[u32],
    b: &[Line],
    lines: usize,
    sums: &mut Block,
) {
    const { assert!(W <= WIDTH && HEIGHT.is_multiple_of(ROWS)) };
    for (chunk, (near, b)) in offsets.chunks(NEAR).zip(b.chunks(NEAR * W)).enumerate() {
        let soon = offsets.get(chunk * NEAR + AHEAD..).unwrap_or_default();
        for (rows, sums) in rows.as_chunks::<ROWS>().0.iter().zip(sums.as_chunks_mut::<ROWS>().0) {
            let (b, sums) = (b.as_flattened().as_ptr(), sums.as_flattened_mut().as_flattened_mut().as_mut_ptr());
            if lines == WIDTH && !FETCH {
                for at in [0, 3 * HALF] {
                    // SAFETY: each of `b` and of a row of `sums` has so many columns.
                    unsafe { add_wide::<W>(*rows, near, b.add(at), sums.add(at)) }
                }
                continue;
            }
            for line in 0..lines {
                let at = line * LINE;
                // SAFETY: each of `b` and of a row of `sums` has so many lines.
                unsafe {
                    match FETCH && line == 0 {
                        true => add_line::<W, true>(*rows, near, soon, b.add(at), sums.add(at)),
                        false => add_line::<W, false>(*rows, near, &[], b.add(at), sums.add(at)),
                    }
                }
            }
        }
    }
}

/// The same for one line of some rows. Inlined, the sums of several calls would want registers at
/// once, and have none.
///
/// # Safety
/// The processor has the instructions, every term of each row is readable, and there is a line in
/// every `W` lines of `b` and every [`WIDTH`] lines of `sums`.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_line<const W: usize, const FETCH: bool>(
    rows: [*const f32; ROWS],
    offsets: &[u32],
    soon: &[u32],
    mut b: *const f32,
    sums: *mut f32,
) {
    let at = |row: usize, half: usize| sums.wrapping_add(row * WIDTH * LINE + half * HALF);
    let mut registers = [[_mm256_setzero_ps(); 2]; ROWS];
    // SAFETY: the caller promises all of these.
    unsafe {
        for (row, registers) in registers.iter_mut().enumerate() {
            *registers = [_mm256_loadu_ps(at(row, 0)), _mm256_loadu_ps(at(row, 1))];
        }
        for (k, offset) in offsets.iter().enumerate() {
            if let (true, Some(soon)) = (FETCH, soon.get(k)) {
                prefetch(rows[k % ROWS], *soon);
            }
            let halves = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(HALF))];
            b = b.wrapping_add(W * LINE);
            for (row, registers) in rows.iter().zip(&mut registers) {
                let a = _mm256_set1_ps(*row.add(*offset as usize));
                for (register, half) in registers.iter_mut().zip(halves) {
                    *register = _mm256_fmadd_ps(a, half, *register);
                }
            }
        }
        for (row, registers) in registers.iter().enumerate() {
            _mm256_storeu_ps(at(row, 0), registers[0]);
            _mm256_storeu_ps(at(row, 1), registers[1]);
        }
    }
}

/// The same for three registers of columns of some rows: twelve sums, three columns and a term are
/// all registers that there are, and a compiler would move a sum to memory and back each time.
///
/// # Safety
/// The processor has the instructions, every term of each row is readable, and there are so many
/// columns in every `W` lines of `b` and every [`WIDTH`] lines of `sums`.
#[target_feature(enable = "avx2,fma")]
unsafe fn add_wide<const W: usize>(rows: [*const f32; ROWS], offsets: &[u32], b: *const f32, sums: *mut f32) {
    if offsets.is_empty() {
        return;
    }
    let at = |row: usize, i: usize| sums.wrapping_add(row * WIDTH * LINE + i * HALF);
    // SAFETY: the caller promises all of these, and the loop ends with the last offset.
    unsafe {
        let mut r: [[__m256; 3]; ROWS] = std::array::from_fn(|row| std::array::from_fn(|i| _mm256_loadu_ps(at(row, i))));
        std::arch::asm!(
            "2:",
            "mov {k:e}, dword ptr [{offsets}]",
            "vmovups {b0}, ymmword ptr [{b}]",
            "vmovups {b1}, ymmword ptr [{b} + 32]",
            "vmovups {b2}, ymmword ptr [{b} + 64]",
            "vbroadcastss {a}, dword ptr [{row0} + 4 * {k}]",
            "vfmadd231ps {r00}, {a}, {b0}",
            "vfmadd231ps {r01}, {a}, {b1}",
            "vfmadd231ps {r02}, {a}, {b2}",
            "vbroadcastss {a}, dword ptr [{row1} + 4 * {k}]",
            "vfmadd231ps {r10}, {a}, {b0}",
            "vfmadd231ps {r11}, {a}, {b1}",
            "vfmadd231ps {r12}, {a}, {b2}",
            "vbroadcastss {a}, dword ptr [{row2} + 4 * {k}]",
            "vfmadd231ps {r20}, {a}, {b0}",
            "vfmadd231ps {r21}, {a}, {b1}",
            "vfmadd231ps {r22}, {a}, {b2}",
            "vbroadcastss {a}, dword ptr [{row3} + 4 * {k}]",
            "vfmadd231ps {r30}, {a}, {b0}",
            "vfmadd231ps {r31}, {a}, {b1}",
            "vfmadd231ps {r32}, {a}, {b2}",
            "add {b}, {step}",
            "add {offsets}, 4",
            "cmp {offsets}, {end}",
            "jne 2b",
            b = inout(reg) b => _,
            offsets = inout(reg) offsets.as_ptr() => _,
            end = in(reg) offsets.as_ptr_range().end,
            row0 = in(reg) rows[0],
            row1 = in(reg) rows[1],
            row2 = in(reg) rows[2],
            row3 = in(reg) rows[3],
            k = out(reg) _,
            step = const W * LINE * size_of::<f32>(),
            r00 = inout(ymm_reg) r[0][0],
            r01 = inout(ymm_reg) r[0][1],
            r02 = inout(ymm_reg) r[0][2],
            r10 = inout(ymm_reg) r[1][0],
            r11 = inout(ymm_reg) r[1][1],
            r12 = inout(ymm_reg) r[1][2],
            r20 = inout(ymm_reg) r[2][0],
            r21 = inout(ymm_reg) r[2][1],
            r22 = inout(ymm_reg) r[2][2],
            r30 = inout(ymm_reg) r[3][0],
            r31 = inout(ymm_reg) r[3][1],
            r32 = inout(ymm_reg) r[3][2],
            a = out(ymm_reg) _,
            b0 = out(ymm_reg) _,
            b1 = out(ymm_reg) _,
            b2 = out(ymm_reg) _,
            options(nostack, readonly),
        );
        for (row, registers) in r.iter().enumerate() {
            for (i, register) in registers.iter().enumerate() {
                _mm256_storeu_ps(at(row, i), *register);
            }
        }
    }
}

/// See [`Vectors::multiply_halves`](super::Vectors::multiply_halves).
///
/// # Safety
/// The processor has the instructions, every term of each row is readable, and `b` has half a line
/// for each.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn multiply_halves<const FETCH: bool>(
    a: *const f32,
    rows: [usize; HEIGHT],
    offsets: &[u32],
    b: &[[f32; HALF]],
    block: &mut Block,
    accumulate: bool,
) {
    // SAFETY: the caller promises the first element of each row.
    let rows = rows.map(|row| unsafe { a.add(row) });
    let mut sums = [_mm256_setzero_ps(); HEIGHT];
    for (k, (offset, b)) in offsets.iter().zip(b).enumerate() {
        if let (true, Some(soon)) = (FETCH, offsets.get(k + AHEAD)) {
            [k, k + HEIGHT / 2].into_iter().for_each(|row| prefetch(rows[row % HEIGHT], *soon));
        }
        // SAFETY: half a line is as long as a register, and the caller promises the terms.
        unsafe {
            let b = _mm256_loadu_ps(b.as_ptr());
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = _mm256_fmadd_ps(_mm256_set1_ps(*row.add(*offset as usize)), b, *sum);
            }
        }
    }
    for (lines, sum) in block.iter_mut().zip(sums) {
        let sum = if accumulate { _mm256_add_ps(load(&lines[0], 0), sum) } else { sum };
        put_half(&mut lines[0], 0, sum);
    }
}

/// Brings a term of a row into the first cache.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch(row: *const f32, term: u32) {
    _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(term as usize).cast());
}

/// See [`Vectors::pack`](super::Vectors::pack).
///
/// # Safety
/// The processor has the instructions, and every lane of each piece is readable.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn pack(planes: &Planes<'_>, pieces: &[Piece], packed: &mut [Line], lines: usize) {
    for (channel, packed) in packed.chunks_exact_mut(lines).enumerate() {
        let base = planes.data.as_ptr().wrapping_add(planes.start + channel * planes.plane);
        let mut value = [_mm256_setzero_ps(); 2];
        for (i, piece) in pieces.iter().enumerate() {
            let from = base.wrapping_offset(piece.offset as isize);
            for (half, value) in value.iter_mut().enumerate() {
                let before = if piece.begins { _mm256_setzero_ps() } else { *value };
                let from = from.wrapping_add(half * HALF * planes.step);
                // SAFETY: the caller promises the lanes of the piece.
                *value = unsafe { spaced(before, lanes(piece.mask, half), from, planes.step) };
            }
            if pieces.get(i + 1).is_none_or(|next| next.begins) {
                put(&mut packed[usize::from(piece.line)], value);
            }
        }
    }
}

/// Eight elements, `step` apart, for the lanes in the mask; the others are as `before`.
///
/// # Safety
/// The elements of the mask's lanes are readable.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn spaced(before: __m256, mask: __m256i, from: *const f32, step: usize) -> __m256 {
    // SAFETY: masked loads read the lanes of their masks only, which the caller promises.
    unsafe {
        let elements = match step {
            1 => _mm256_maskload_ps(from, mask),
            2 => {
                let even = _mm256_set_epi32(0, -1, 0, -1, 0, -1, 0, -1);
                let first = _mm256_permutevar8x32_epi32(mask, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0));
                let second = _mm256_permutevar8x32_epi32(mask, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4));
                let first = _mm256_maskload_ps(from, _mm256_and_si256(first, even));
                let second = _mm256_maskload_ps(from.wrapping_add(HALF), _mm256_and_si256(second, even));
                let pairs = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(first, second));
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(pairs))
            }
            _ => {
                let numbers = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
                let steps = _mm256_mullo_epi32(numbers, _mm256_set1_epi32(step as i32));
                _mm256_mask_i32gather_ps::<4>(_mm256_setzero_ps(), from, steps, _mm256_castsi256_ps(mask))
            }
        };
        _mm256_blendv_ps(before, elements, _mm256_castsi256_ps(mask))
    }
}

/// See [`Vectors::store`](super::Vectors::store).
///
/// # Safety
/// The processor has the instructions, and every lane of the piece is writable.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub unsafe fn store(line: &Line, piece: &Piece, step: usize, to: *mut f32) {
    let to = to.wrapping_offset(piece.offset as isize);
    // SAFETY: the caller promises the lanes of the piece.
    unsafe {
        if step == 1 && piece.mask == !0 {
            to.cast::<Line>().write_unaligned(*line);
        } else if step == 1 {
            for half in 0..2 {
                _mm256_maskstore_ps(to.wrapping_add(half * HALF), lanes(piece.mask, half), load(line, half));
            }
        } else {
            let mut rest = piece.mask;
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                *to.wrapping_add(lane * step) = line[lane];
                rest &= rest - 1;
            }
        }
    }
}

/// See [`Vectors::columns`](super::Vectors::columns).
///
/// # Panics
/// If a block has no such line.
#[target_feature(enable = "avx2,fma")]
pub fn columns(blocks: &[Block; 2], line: usize, out: &mut [Line; LINE]) {
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut rows = [_mm256_setzero_ps(); HALF];
        for (row, lines) in rows.iter_mut().zip(&blocks[from]) {
            *row = load(&lines[line], to);
        }
        for (out, column) in out[to * HALF..].iter_mut().zip(transposed(rows)) {
            put_half(out, from, column);
        }
    }
}

/// See [`Vectors::interleave`](super::Vectors::interleave).
#[target_feature(enable = "avx2,fma")]
pub fn interleave(rows: &[&[f32]; LINE], lines: &mut [Line], width: usize, terms: usize) {
    for from in (0..terms).step_by(HALF) {
        for (half, rows) in rows.as_chunks::<HALF>().0.iter().enumerate() {
            let mut part = [_mm256_setzero_ps(); HALF];
            for (part, row) in part.iter_mut().zip(rows) {
                // Loads of nothing from nowhere take a thousand instructions' time.
                let Some(row) = row.get(from..).filter(|row| !row.is_empty()) else { continue };
                // SAFETY: the mask takes elements of the row only.
                *part = unsafe { _mm256_maskload_ps(row.as_ptr(), lanes(first_lanes(row.len()), 0)) };
            }
            for (k, column) in transposed(part).into_iter().enumerate().take(terms - from) {
                put_half(&mut lines[(from + k) * width], half, column);
            }
        }
    }
}

/// See [`Vectors::stream`](super::Vectors::stream).
#[target_feature(enable = "avx2,fma")]
pub fn stream(line: &Line, to: &mut Line) {
    if to.as_ptr().addr().is_multiple_of(size_of::<Line>()) {
        for half in 0..2 {
            // SAFETY: a line is as long as two registers, and this one is aligned as they want.
            unsafe { _mm256_stream_ps(to.as_mut_ptr().add(half * HALF), load(line, half)) }
        }
    } else {
        *to = *line;
    }
}

/// All ones in the lanes of one half of a line that a mask has.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(mask: u16, half: usize) -> __m256i {
    let bits = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    let mask = _mm256_set1_epi32(i32::from(mask >> (half * HALF)));
    _mm256_cmpeq_epi32(_mm256_and_si256(mask, bits), bits)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(line: &Line, half: usize) -> __m256 {
    let part: &[f32; HALF] = &line.as_chunks().0[half];
    // SAFETY: half a line is as long as a register.
    unsafe { _mm256_loadu_ps(part.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn put_half(line: &mut Line, half: usize, value: __m256) {
    let part: &mut [f32; HALF] = &mut line.as_chunks_mut().0[half];
    // SAFETY: half a line is as long as a register.
    unsafe { _mm256_storeu_ps(part.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn put(line: &mut Line, halves: [__m256; 2]) {
    put_half(line, 0, halves[0]);
    put_half(line, 1, halves[1]);
}

/// The transposed matrix of eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(r: [__m256; HALF]) -> [__m256; HALF] {
    let mut t = r;
    for i in (0..HALF).step_by(2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    let mut s = t;
    for i in (0..HALF).step_by(4) {
        s[i] = _mm256_shuffle_ps::<0x44>(t[i], t[i + 2]);
        s[i + 1] = _mm256_shuffle_ps::<0xee>(t[i], t[i + 2]);
        s[i + 2] = _mm256_shuffle_ps::<0x44>(t[i + 1], t[i + 3]);
        s[i + 3] = _mm256_shuffle_ps::<0xee>(t[i + 1], t[i + 3]);
    }
    // Half `h` of `s[4 g + j]` is column `4 h + j` of rows `4 g` to `4 g + 3`.
    let mut out = s;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(s[j], s[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(s[j], s[4 + j]);
    }
    out
}
