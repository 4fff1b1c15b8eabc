//! What [`Vectors`](super::Vectors) does, with AVX-512: a line is one register.
#![expect(unsafe_code, reason = "vectors are loaded and stored through pointers, and instructions used that were looked for")]

use super::{Block, HEIGHT, LINE, Line, Piece, Planes, first_lanes};
use std::arch::x86_64::*;

/// Terms are prefetched so many ahead, each time for two of the rows, in turn.
const AHEAD: usize = 24;

/// See [`Vectors::multiply`](super::Vectors::multiply).
///
/// # Safety
/// The processor has the instructions, every term of each row is readable, and `b` has `W` lines
/// for each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub unsafe fn multiply<const W: usize>(
    a: *const f32,
    rows: [usize; HEIGHT],
    offsets: &[u32],
    b: &[Line],
    block: &mut Block,
    accumulate: bool,
) {
    let mut sums = [[_mm512_setzero_ps(); W]; HEIGHT];
    // SAFETY: the caller has looked at the first element of each row.
    let rows = rows.map(|row| unsafe { a.add(row) });
    for (k, (offset, b)) in offsets.iter().zip(b.as_chunks::<W>().0).enumerate() {
        if let Some(soon) = offsets.get(k + AHEAD) {
            for row in [k, k + HEIGHT / 2] {
                _mm_prefetch::<_MM_HINT_T0>(rows[row % HEIGHT].wrapping_add(*soon as usize).cast());
            }
        }
        let mut columns = [_mm512_setzero_ps(); W];
        for (column, b) in columns.iter_mut().zip(b) {
            *column = load(b);
        }
        for (sums, row) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller has looked at the last term of each row.
            let a = _mm512_set1_ps(unsafe { *row.add(*offset as usize) });
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = _mm512_fmadd_ps(a, column, *sum);
            }
        }
    }
    for (lines, sums) in block.iter_mut().zip(sums) {
        for (line, sum) in lines.iter_mut().zip(sums) {
            put(line, if accumulate { _mm512_add_ps(load(line), sum) } else { sum });
        }
    }
}

/// See [`Vectors::pack`](super::Vectors::pack).
///
/// # Safety
/// The processor has the instructions, and every lane of each piece is readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,bmi2")]
pub unsafe fn pack(planes: &Planes<'_>, pieces: &[Piece], packed: &mut [Line], lines: usize) {
    let steps = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_set1_epi32(planes.step as i32),
    );
    let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    for (channel, packed) in packed.chunks_exact_mut(lines).enumerate() {
        let base = planes.data.as_ptr().wrapping_add(planes.start + channel * planes.plane);
        let mut value = _mm512_setzero_ps();
        for (i, piece) in pieces.iter().enumerate() {
            let (before, mask) = (if piece.begins { _mm512_setzero_ps() } else { value }, piece.mask);
            let from = base.wrapping_offset(piece.offset as isize);
            // SAFETY: the caller has looked at the first and the last lane of every piece.
            value = unsafe {
                match planes.step {
                    1 => _mm512_mask_loadu_ps(before, mask, from),
                    2 => {
                        let wide = _pdep_u32(mask.into(), 0x5555_5555);
                        let low = _mm512_maskz_loadu_ps(wide as u16, from);
                        let high = _mm512_maskz_loadu_ps((wide >> 16) as u16, from.wrapping_add(LINE));
                        _mm512_mask_mov_ps(before, mask, _mm512_permutex2var_ps(low, even, high))
                    }
                    _ => _mm512_mask_i32gather_ps::<4>(before, mask, steps, from),
                }
            };
            if pieces.get(i + 1).is_none_or(|next| next.begins) {
                put(&mut packed[usize::from(piece.line)], value);
            }
        }
    }
}

/// See [`Vectors::store`](super::Vectors::store).
///
/// # Safety
/// The processor has the instructions, and every lane of the piece is writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub unsafe fn store(line: &Line, piece: &Piece, step: usize, to: *mut f32) {
    let (mask, to) = (piece.mask, to.wrapping_offset(piece.offset as isize));
    // SAFETY: the caller has looked at the first and the last lane.
    unsafe {
        if step == 1 {
            _mm512_mask_storeu_ps(to, mask, load(line));
        } else {
            let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step as i32));
            _mm512_mask_i32scatter_ps::<4>(to, mask, steps, load(line));
        }
    }
}

/// See [`Vectors::columns`](super::Vectors::columns).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub fn columns(blocks: &[Block; 2], line: usize, out: &mut [Line; LINE]) {
    let mut rows = [_mm512_setzero_si512(); LINE];
    for (row, lines) in rows.iter_mut().zip(blocks.as_flattened()) {
        *row = _mm512_castps_si512(load(&lines[line]));
    }
    for (out, column) in out.iter_mut().zip(transposed(rows)) {
        put(out, _mm512_castsi512_ps(column));
    }
}

/// See [`Vectors::interleave`](super::Vectors::interleave).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub fn interleave(rows: &[&[f32]; LINE], lines: &mut [Line], width: usize, terms: usize) {
    let whole = rows.iter().map(|row| row.len()).min().unwrap_or(0) / LINE * LINE;
    for from in (0..whole).step_by(LINE) {
        // SAFETY: every row has as many elements.
        let part = rows.map(|row| unsafe { _mm512_loadu_si512(row.as_ptr().add(from).cast()) });
        let lines = &mut lines[from * width..][..(LINE - 1) * width + 1];
        let columns = transposed(part);
        for k in 0..LINE {
            put(&mut lines[k * width], _mm512_castsi512_ps(columns[k]));
        }
    }
    for from in (whole..terms).step_by(LINE) {
        let mut part = [_mm512_setzero_si512(); LINE];
        for (part, row) in part.iter_mut().zip(rows) {
            // Loads of nothing from nowhere take a thousand instructions' time.
            let Some(row) = row.get(from..).filter(|row| !row.is_empty()) else { continue };
            // SAFETY: the mask takes elements of the row only.
            *part = _mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(first_lanes(row.len()), row.as_ptr()) });
        }
        for (k, column) in transposed(part).into_iter().enumerate().take(terms - from) {
            put(&mut lines[(from + k) * width], _mm512_castsi512_ps(column));
        }
    }
}

/// See [`Vectors::side_by_side`](super::Vectors::side_by_side).
///
/// # Safety
/// There is room for the last column.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub unsafe fn side_by_side(lines: &[Line], out: *mut f32) {
    // Shuffles of rows that are known to be none are left out.
    match <&[Line; 9]>::try_from(lines) {
        // SAFETY: the caller has room.
        Ok(lines) => unsafe { columns_to(lines, lines.len(), out) },
        // SAFETY: the caller has room.
        Err(_) => unsafe { columns_to(lines, lines.len(), out) },
    }
}

/// Stores the columns of lines, so many elements apart.
///
/// # Safety
/// There is room for the last column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn columns_to(lines: &[Line], step: usize, out: *mut f32) {
    let mut rows = [_mm512_setzero_si512(); LINE];
    rows.iter_mut().zip(lines).for_each(|(row, line)| *row = _mm512_castps_si512(load(line)));
    for (number, column) in transposed(rows).into_iter().enumerate() {
        // SAFETY: the caller has room.
        unsafe { _mm512_storeu_ps(out.wrapping_add(number * step), _mm512_castsi512_ps(column)) }
    }
}

/// See [`Vectors::stream`](super::Vectors::stream).
#[target_feature(enable = "avx512f")]
pub fn stream(line: &Line, to: &mut Line) {
    if to.as_ptr().addr().is_multiple_of(size_of::<Line>()) {
        // SAFETY: a line is as long as a register, and this one is aligned like it.
        unsafe { _mm512_stream_ps(to.as_mut_ptr(), load(line)) }
    } else {
        put(to, load(line));
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512 {
    // SAFETY: a line is as long as a register.
    unsafe { _mm512_loadu_ps(line.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn put(line: &mut Line, value: __m512) {
    // SAFETY: a line is as long as a register.
    unsafe { _mm512_storeu_ps(line.as_mut_ptr(), value) }
}

/// Squares of four by four turned over, of `N` rows in fours: quarter `q` of result `4 g + j` is
/// column `4 q + j` of rows `4 g` to `4 g + 3`.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn turned_by_fours<const N: usize>(r: [__m512i; N]) -> [__m512i; N] {
    let mut t = r;
    for i in (0..N).step_by(2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    let mut s = t;
    for i in (0..N).step_by(4) {
        s[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        s[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        s[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        s[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    s
}

/// The transposed matrix of 16 rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transposed(rows: [__m512i; LINE]) -> [__m512i; LINE] {
    let s = turned_by_fours(rows);
    let mut out = s;
    for j in 0..4 {
        let low = _mm512_shuffle_i32x4::<0x88>(s[j], s[4 + j]);
        let high = _mm512_shuffle_i32x4::<0xdd>(s[j], s[4 + j]);
        let low2 = _mm512_shuffle_i32x4::<0x88>(s[8 + j], s[12 + j]);
        let high2 = _mm512_shuffle_i32x4::<0xdd>(s[8 + j], s[12 + j]);
        out[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
        out[8 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
        out[4 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
        out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
    }
    out
}
