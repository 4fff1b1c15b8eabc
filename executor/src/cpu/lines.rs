//! Blocks of products by vector instructions: sums in registers over terms that one operand holds
//! anywhere and the other in packed lines. A line is one register of AVX-512, or two of AVX2; both
//! give the same bits.
#![expect(unsafe_code, reason = "instructions are used that were looked for, on elements that were looked at")]

pub mod avx2;
pub mod avx512;
#[cfg(test)]
mod tests;

use crate::cpu::scratch;

/// The elements of a line.
pub const LINE: usize = 16;

/// Neighbouring elements, as registers hold them.
pub type Line = [f32; LINE];

/// The elements of half a line.
pub const HALF: usize = LINE / 2;

/// The rows of a block.
pub const HEIGHT: usize = 8;

/// The most lines of a row of a block.
pub const WIDTH: usize = 3;

/// The largest distance between lanes: distances within a line fit 32 bits.
pub const MOST_STEP: usize = i32::MAX as usize / LINE;

/// So many elements are a page of memory.
const FAR: u32 = 1024;

/// If more than one in so many terms is far from the one before, many are.
const MANY: usize = 12;

/// Results in rows of lines.
pub type Block = [[Line; WIDTH]; HEIGHT];

/// The vector instructions that the processor has, which were looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vectors(Level);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Avx512,
    Avx2,
}

/// Where the terms of a sum are, from the first element of its row.
#[derive(Debug, Default)]
pub struct Terms {
    offsets: Vec<u32>,
    last: usize,
    /// Whether so many are far apart that the processor does not see for itself what is read next.
    are_far: bool,
}

impl Terms {
    /// The terms at those offsets.
    pub fn new(offsets: Vec<u32>) -> Terms {
        let last = offsets.iter().copied().max().unwrap_or(0) as usize;
        let far = offsets.windows(2).filter(|pair| pair[1].abs_diff(pair[0]) > FAR).count();
        let are_far = far * MANY > offsets.len();
        Terms { offsets, last, are_far }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }
}

/// Some elements of one line: lane `i` is the element at `offset + i * step`, for the lanes in the
/// mask.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub offset: i32,
    pub mask: u16,
    /// The number of the line.
    pub line: u16,
    /// Whether it is the first of its line, whose pieces follow one another. Lanes of no piece are
    /// 0.
    pub begins: bool,
}

impl Piece {
    /// The offsets of its first and last element; `None` if it has none.
    fn ends(&self, step: usize) -> Option<(i64, i64)> {
        let at = |lane: u32| i64::from(self.offset) + i64::from(lane) * step as i64;
        (self.mask != 0).then(|| (at(self.mask.trailing_zeros()), at(15 - self.mask.leading_zeros())))
    }
}

/// Runs `f` with `count` lines of whatever was there before, aligned as registers are.
pub fn with_lines<L: bytemuck::Pod, R>(count: usize, f: impl FnOnce(&mut [L]) -> R) -> R {
    const { assert!(size_of::<L>() == size_of::<Line>()) };
    scratch::with((count + 1) * LINE, |memory: &mut [f32]| {
        let start = memory.as_ptr().align_offset(size_of::<Line>()).min(LINE);
        f(bytemuck::cast_slice_mut(&mut memory[start..start + count * LINE]))
    })
}

impl Vectors {
    /// The widest that the processor has; `None` if that is none of them.
    pub fn detect() -> Option<Vectors> {
        Vectors::all().next()
    }

    /// All that the processor has, the widest first.
    pub fn all() -> impl Iterator<Item = Vectors> {
        let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let has_avx512 = has_avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("bmi2");
        let levels = [(has_avx512, Level::Avx512), (has_avx2, Level::Avx2)];
        levels.into_iter().filter(|(has, _)| *has).map(|(_, level)| Vectors(level))
    }

    /// Whether they are those of AVX-512.
    pub fn are_avx512(self) -> bool {
        self.0 == Level::Avx512
    }

    /// `block[i][v] = sum over k of a[rows[i] + terms[k]] * b[k * W + v]`, added to what it is if
    /// `accumulate`.
    ///
    /// # Panics
    /// If `b` does not fit the terms, or a term lies outside `a`.
    #[inline]
    pub fn multiply<const W: usize>(
        self,
        a: &[f32],
        rows: [usize; HEIGHT],
        terms: &Terms,
        b: &[Line],
        block: &mut Block,
        accumulate: bool,
    ) {
        assert!(W <= WIDTH && b.len() == W * terms.len(), "operands fit");
        let a = inside(a, &rows, terms);
        // SAFETY: the level was found, and every element that is read was looked at above.
        unsafe {
            match self.0 {
                Level::Avx512 => avx512::multiply::<W>(a, rows, &terms.offsets, b, block, accumulate),
                Level::Avx2 if terms.are_far => avx2::multiply::<W, true>(a, rows, &terms.offsets, b, block, accumulate),
                Level::Avx2 => avx2::multiply::<W, false>(a, rows, &terms.offsets, b, block, accumulate),
            }
        }
    }

    /// The same with `width` lines for each term, at most [`WIDTH`].
    #[expect(clippy::too_many_arguments, reason = "two operands, a result, and where they are")]
    pub fn multiply_lines(
        self,
        width: usize,
        a: &[f32],
        rows: [usize; HEIGHT],
        terms: &Terms,
        b: &[Line],
        block: &mut Block,
        accumulate: bool,
    ) {
        match width {
            1 => self.multiply::<1>(a, rows, terms, b, block, accumulate),
            2 => self.multiply::<2>(a, rows, terms, b, block, accumulate),
            _ => self.multiply::<WIDTH>(a, rows, terms, b, block, accumulate),
        }
    }

    /// The first half of the first line of each row of `block` as [`Vectors::multiply`] has it,
    /// where `b` has half a line for each term and perhaps more elements behind them.
    ///
    /// # Panics
    /// If `b` does not fit the terms, or a term lies outside `a`.
    pub fn multiply_halves(
        self,
        a: &[f32],
        rows: [usize; HEIGHT],
        terms: &Terms,
        b: &[f32],
        block: &mut Block,
        accumulate: bool,
    ) {
        let b = b.as_chunks().0;
        assert!(b.len() >= terms.len(), "operands fit");
        let a = inside(a, &rows, terms);
        // SAFETY: all levels have AVX2 and FMA, and every element that is read was looked at above.
        unsafe {
            match terms.are_far {
                true => avx2::multiply_halves::<true>(a, rows, &terms.offsets, b, block, accumulate),
                false => avx2::multiply_halves::<false>(a, rows, &terms.offsets, b, block, accumulate),
            }
        }
    }

    /// Packs the lines of a panel, `lines` for each channel of `planes`, whose numbers `pieces`
    /// have.
    ///
    /// # Panics
    /// If a piece lies outside `planes`.
    pub fn pack(self, planes: &Planes<'_>, pieces: &[Piece], packed: &mut [Line], lines: usize) {
        assert!(planes.step <= MOST_STEP, "lanes are near each other");
        let ends = pieces.iter().filter_map(|piece| piece.ends(planes.step));
        let (low, high) = ends.fold((i64::MAX, i64::MIN), |(low, high), ends| (low.min(ends.0), high.max(ends.1)));
        let channels = packed.len() / lines;
        if low <= high && channels > 0 {
            let start = planes.start as i128;
            let last = start + (channels - 1) as i128 * planes.plane as i128;
            let is_inside = start + i128::from(low) >= 0 && last + i128::from(high) < planes.data.len() as i128;
            assert!(is_inside, "pieces are inside");
        }
        assert!(pieces.iter().all(|piece| usize::from(piece.line) < lines), "lines fit");
        // SAFETY: the level was found, and every element that is read was looked at above.
        unsafe {
            match self.0 {
                Level::Avx512 => avx512::pack(planes, pieces, packed, lines),
                Level::Avx2 => avx2::pack(planes, pieces, packed, lines),
            }
        }
    }

    /// Stores the lanes of a line that a piece says.
    ///
    /// # Panics
    /// If the piece lies outside `to`.
    #[inline]
    pub fn store(self, line: &Line, piece: &Piece, step: usize, to: &mut [f32]) {
        let Some((low, high)) = piece.ends(step) else { return };
        assert!(step <= MOST_STEP && low >= 0 && high < to.len() as i64, "a piece is inside");
        let to = to.as_mut_ptr();
        // SAFETY: the level was found, and every element that is written was looked at above.
        unsafe {
            match self.0 {
                Level::Avx512 => avx512::store(line, piece, step, to),
                Level::Avx2 => avx2::store(line, piece, step, to),
            }
        }
    }

    /// `out` becomes the columns of one line of two blocks, of which the first is above.
    #[inline]
    pub fn columns(self, blocks: &[Block; 2], line: usize, out: &mut [Line; LINE]) {
        // SAFETY: the level was found.
        unsafe {
            match self.0 {
                Level::Avx512 => avx512::columns(blocks, line, out),
                Level::Avx2 => avx2::columns(blocks, line, out),
            }
        }
    }

    /// Stores a line past the caches, where it is aligned; [`Vectors::settle`] must follow.
    #[inline]
    pub fn stream(self, line: &Line, to: &mut Line) {
        // SAFETY: the level was found.
        unsafe {
            match self.0 {
                Level::Avx512 => avx512::stream(line, to),
                Level::Avx2 => avx2::stream(line, to),
            }
        }
    }

    /// Orders what was stored past the caches before all that follows.
    pub fn settle(self) {
        // SAFETY: every processor of this architecture has the instruction.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }

    /// The columns of at most 16 lines, missing ones 0.
    pub fn columns_of(self, lines: &[Line]) -> [Line; LINE] {
        let (mut rows, mut columns): ([&[f32]; LINE], _) = ([&[]; LINE], [[0.0; LINE]; LINE]);
        rows.iter_mut().zip(lines).for_each(|(row, line)| *row = line);
        self.interleave(&rows, &mut columns, 1);
        columns
    }

    /// Puts the columns of at most 16 lines side by side, each with whatever follows it up to the
    /// next.
    ///
    /// # Panics
    /// If there is no room for the last and a line behind it.
    #[inline]
    pub fn side_by_side(self, lines: &[Line], out: &mut [f32]) {
        assert!(lines.len() <= LINE && (LINE - 1) * lines.len() + LINE <= out.len(), "columns fit");
        match self.0 {
            // SAFETY: the level was found, and the last column fits.
            Level::Avx512 => unsafe { avx512::side_by_side(lines, out.as_mut_ptr()) },
            Level::Avx2 => {
                for (column, elements) in self.columns_of(lines).iter().enumerate() {
                    out[column * lines.len()..][..LINE].copy_from_slice(elements);
                }
            }
        }
    }

    /// Packs terms of 16 rows, missing ones 0: `lines[k * width][i]` is `rows[i][k]`.
    ///
    /// # Panics
    /// If there is no room for the longest row.
    pub fn interleave(self, rows: &[&[f32]; LINE], lines: &mut [Line], width: usize) {
        let terms = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        assert!(terms == 0 || (terms - 1) * width < lines.len(), "lines fit");
        // SAFETY: the level was found.
        unsafe {
            match self.0 {
                Level::Avx512 => avx512::interleave(rows, lines, width, terms),
                Level::Avx2 => avx2::interleave(rows, lines, width, terms),
            }
        }
    }
}

/// Where `a` begins.
///
/// # Panics
/// If a term of a row lies outside.
#[inline]
fn inside(a: &[f32], rows: &[usize; HEIGHT], terms: &Terms) -> *const f32 {
    let is_inside = |row: &usize| row.checked_add(terms.last).is_some_and(|last| last < a.len());
    assert!(rows.iter().all(is_inside), "terms are inside");
    a.as_ptr()
}

/// Planes of channels, `plane` elements apart, the first at `start`; lanes are `step` apart.
#[derive(Debug, Clone, Copy)]
pub struct Planes<'a> {
    pub data: &'a [f32],
    pub start: usize,
    pub plane: usize,
    pub step: usize,
}

/// The lines of a panel where `lines` are cut into panels; the last may have fewer. Four are better
/// cut in the middle than into three and one.
pub fn panel_width(lines: usize) -> usize {
    if lines == 4 { 2 } else { WIDTH }
}

/// The mask of the first `count` lanes.
#[inline]
pub fn first_lanes(count: usize) -> u16 {
    if count >= LINE { !0 } else { (1 << count) - 1 }
}
