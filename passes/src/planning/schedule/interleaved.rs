//! Interleaved 1F1B (Narayanan et al., 2021, Megatron-LM): a position has v stages, and each of
//! them is smaller by so much, so the pipeline fills and drains v times as fast.
//!
//! A position runs its stages in turn, each for p micro-batches: F from the first stage on, B from
//! the last. Position r begins with 2(p-1-r)+(v-1)p cells of F, then F and B take turns, and what
//! is left of B ends it. So p divides m; where it does not, this order cannot be run.
//!
//! ```text
//! pp=0 |F0 F1 f0 f1 F2 ·  b0─── F3 b1─── f2 B0─── f3 B1─── ·  b2─── ·  b3─── B2─── B3─── |
//! pp=1 |·  F0 F1 f0 b0─── f1 b1─── F2 B0─── F3 B1─── f2 b2─── f3 b3─── B2─── B3─── ·  ·  |
//!       lower case: the second stage of the position
//! ```
//!
//! It idles (p-1)/(vm) of the ideal time. Of the cells of F that a position has run, at most one
//! more than it begins with waits for its B, and at most 2p of one stage. A pipeline of one
//! position runs all F and then all B of one micro-batch after the other.

use super::{Cell, Shape, Table, one_position};

/// The table of a training step. The number of positions divides that of micro-batches.
pub fn table(shape: Shape) -> Table {
    if shape.positions == 1 {
        return one_position(shape);
    }
    (0..shape.positions).map(|r| row(shape, r)).collect()
}

/// The cells of a position.
fn row(shape: Shape, r: u64) -> Vec<Cell> {
    let Shape { positions: p, chunks: v, microbatches: m } = shape;
    let all = v * m;
    let warm_up = (2 * (p - 1 - r) + (v - 1) * p).min(all);
    // The chunk and the micro-batch of the i-th cell of a pass.
    let turn = |i: u64| (i / p % v, i / (p * v) * p + i % p);
    let forward = |i| {
        let (chunk, t) = turn(i);
        Cell::forward(chunk * p + r, t)
    };
    let backward = |i| {
        let (chunk, t) = turn(i);
        Cell::backward((v - 1 - chunk) * p + r, t)
    };
    let mut cells: Vec<Cell> = (0..warm_up).map(forward).collect();
    for i in 0..all {
        cells.extend((warm_up + i < all).then(|| forward(warm_up + i)));
        cells.push(backward(i));
    }
    cells
}
