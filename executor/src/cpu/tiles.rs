//! Strided matrices inside a slice: shared ones for reading, and cuts of one mutable slice into
//! tiles that share no element.
#![expect(unsafe_code, reason = "a strided tile is no slice; that tiles are inside and disjoint is checked where they are made")]

use faer::{MatMut, MatRef};
use std::marker::PhantomData;

/// A size with its stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// How many positions.
    pub size: usize,
    /// Elements from one to the next.
    pub stride: usize,
}

/// The `rows x cols` matrix of `data` whose first element is at `start`.
///
/// # Panics
/// If an element would lie outside `data`.
pub fn matrix<T>(data: &[T], start: usize, rows: Steps, cols: Steps) -> MatRef<'_, T> {
    if rows.size == 0 || cols.size == 0 {
        return MatRef::from_row_major_slice(&[], rows.size, cols.size);
    }
    assert!(start.checked_add(reach(&[rows, cols])).is_some_and(|last| last < data.len()), "a matrix lies inside its data");
    // SAFETY: the last element is inside `data`, strides are not negative, and the borrow of `data`
    // is kept.
    unsafe { MatRef::from_raw_parts(data.as_ptr().add(start), rows.size, cols.size, rows.stride as isize, cols.stride as isize) }
}

/// A matrix inside a slice, the only way to its elements while it lives.
#[derive(Debug)]
pub struct Tile<'a, T> {
    first: *mut T,
    rows: Steps,
    cols: Steps,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: a tile is a mutable borrow of its elements, which no other tile has.
unsafe impl<T: Send> Send for Tile<'_, T> {}

/// Cuts `data` into one tile of `rows x cols` for each position over `outer`, in row-major order.
///
/// # Panics
/// If two positions would share an element, or one would lie outside `data`.
pub fn cut<'a, T>(data: &'a mut [T], outer: &[Steps], rows: Steps, cols: Steps) -> Vec<Tile<'a, T>> {
    let all: Vec<Steps> = outer.iter().copied().chain([rows, cols]).collect();
    if all.iter().any(|s| s.size == 0) {
        return vec![];
    }
    assert!(distinct(&all), "tiles share no element");
    assert!(reach(&all) < data.len(), "tiles lie inside their data");
    let mut starts = vec![0];
    for steps in outer {
        starts = starts.iter().flat_map(|start| (0..steps.size).map(move |i| start + i * steps.stride)).collect();
    }
    let first = data.as_mut_ptr();
    // SAFETY: every start plus the reach of a tile is inside `data`.
    starts.into_iter().map(|start| Tile { first: unsafe { first.add(start) }, rows, cols, data: PhantomData }).collect()
}

/// Whether different positions over `steps` are always different elements (kernels are refused by
/// the same rule before, in `shardc_ir::kernel::signature`; this one keeps the unsafe code sound
/// whatever it is given): each stride passes all that smaller ones reach.
pub fn distinct(steps: &[Steps]) -> bool {
    let mut steps: Vec<Steps> = steps.iter().copied().filter(|s| s.size > 1).collect();
    steps.sort_by_key(|s| s.stride);
    let mut below = 0usize;
    steps.iter().all(|s| {
        let fits = s.stride > below;
        below = below.saturating_add((s.size - 1).saturating_mul(s.stride));
        fits
    })
}

/// The offset of the last position.
fn reach(steps: &[Steps]) -> usize {
    steps.iter().fold(0usize, |sum, s| sum.saturating_add(s.size.saturating_sub(1).saturating_mul(s.stride)))
}

impl<'a, T> Tile<'a, T> {
    /// The tile as a matrix.
    pub fn matrix(&mut self) -> MatMut<'_, T> {
        // SAFETY: the elements are inside the slice that was cut, distinct, and borrowed through
        // `self`.
        unsafe {
            MatMut::from_raw_parts_mut(
                self.first,
                self.rows.size,
                self.cols.size,
                self.rows.stride as isize,
                self.cols.stride as isize,
            )
        }
    }

    /// Row `row` as a slice.
    ///
    /// # Panics
    /// If there is no such row, or its elements are not neighbours.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows.size && (self.cols.stride == 1 || self.cols.size <= 1), "a row of neighbours");
        // SAFETY: the row's elements are inside the slice that was cut, and borrowed through
        // `self`.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.rows.stride), self.cols.size) }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows.size
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols.size
    }

    /// The same tile, for a while.
    pub fn part(&mut self) -> Tile<'_, T> {
        Tile { first: self.first, rows: self.rows, cols: self.cols, data: PhantomData }
    }

    /// Cuts rows and columns into parts of at most `height` and `width`; each with its first row
    /// and column.
    pub fn split(self, height: usize, width: usize) -> Vec<(usize, usize, Tile<'a, T>)> {
        let mut parts = vec![];
        for row in (0..self.rows.size).step_by(height.max(1)) {
            for col in (0..self.cols.size).step_by(width.max(1)) {
                let rows = Steps { size: height.min(self.rows.size - row), ..self.rows };
                let cols = Steps { size: width.min(self.cols.size - col), ..self.cols };
                // SAFETY: the part's first element is one of this tile's.
                let first = unsafe { self.first.add(row * self.rows.stride + col * self.cols.stride) };
                parts.push((row, col, Tile { first, rows, cols, data: PhantomData }));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(size: usize, stride: usize) -> Steps {
        Steps { size, stride }
    }

    #[test]
    fn tiles_cover_each_element_once() {
        let mut data = vec![0; 4 * 3 * 6];
        for (i, mut tile) in cut(&mut data, &[steps(3, 6)], steps(4, 18), steps(6, 1)).into_iter().enumerate() {
            for row in 0..tile.rows() {
                tile.row(row).iter_mut().for_each(|x| *x += i + 1);
            }
        }
        assert_eq!(&data[..18], &[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]);
        let mut data = vec![0; 35];
        for tile in cut(&mut data, &[], steps(5, 7), steps(7, 1)) {
            for (row, col, mut part) in tile.split(2, 3) {
                part.matrix().fill(row * 10 + col);
            }
        }
        assert_eq!(&data[28..], &[40, 40, 40, 43, 43, 43, 46]);
    }

    #[test]
    fn shared_elements_are_seen() {
        assert!(distinct(&[steps(4, 6), steps(3, 24), steps(6, 1)]));
        assert!(!distinct(&[steps(4, 5), steps(6, 1)]));
        assert!(!distinct(&[steps(2, 0)]));
        assert!(!distinct(&[steps(usize::MAX, 2), steps(3, 4)]));
    }

    #[test]
    #[should_panic(expected = "tiles share no element")]
    fn overlapping_tiles_are_refused() {
        cut(&mut [0; 100], &[steps(3, 5)], steps(2, 10), steps(6, 1));
    }

    #[test]
    #[should_panic(expected = "inside")]
    fn matrices_outside_are_refused() {
        matrix(&[0; 10], 1, steps(2, 5), steps(5, 1));
    }
}
