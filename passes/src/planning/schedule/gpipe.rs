//! GPipe: each position runs F of all micro-batches, then B of all.
//!
//! ```text
//! pp=0 |F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  ·  ·  ·  B0─── B1─── B2─── B3─── |
//! pp=1 |·  F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  B0─── B1─── B2─── B3─── ·  ·  |
//! pp=2 |·  ·  F0 F1 F2 F3 ·  ·  ·  B0─── B1─── B2─── B3─── ·  ·  ·  ·  |
//! pp=3 |·  ·  ·  F0 F1 F2 F3 B0─── B1─── B2─── B3─── ·  ·  ·  ·  ·  ·  |
//! ```
//!
//! It idles (p-1)/m of the ideal time, and everything from F to B is kept of all m micro-batches.
//! A pipeline of one position runs F B F B.

use super::{Cell, Shape, Table, one_position};

/// The table of a training step; a position has one stage.
pub fn table(shape: Shape) -> Table {
    if shape.positions == 1 {
        return one_position(shape);
    }
    let m = shape.microbatches;
    let row = |s| (0..m).map(|t| Cell::forward(s, t)).chain((0..m).map(|t| Cell::backward(s, t))).collect();
    (0..shape.positions).map(row).collect()
}

/// The table of an evaluation: F alone, for any number of stages a position. A position runs each
/// of its stages for a group of at least p micro-batches, if there are so many: when the first of
/// them comes back to the first position, that has just begun its stages of the last.
pub fn forward(shape: Shape) -> Table {
    let groups = (shape.microbatches / shape.positions).max(1);
    let group = |g| {
        let end = if g + 1 == groups { shape.microbatches } else { (g + 1) * shape.positions };
        g * shape.positions..end
    };
    let row = |r| {
        let stages = move || (0..shape.chunks).map(move |c| c * shape.positions + r);
        let cells = |g| stages().flat_map(move |s| group(g).map(move |t| Cell::forward(s, t)));
        (0..groups).flat_map(cells).collect()
    };
    (0..shape.positions).map(row).collect()
}
