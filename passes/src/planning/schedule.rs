//! Schedules of a pipeline: in which order each position runs the passes of its stages.
//!
//! A schedule is a function from the shape of a pipeline to a table, one row of cells a position.
//! Every table runs each pass of each stage once for every micro-batch, and B and W of a stage in
//! ascending micro-batch order, because accumulators add micro-batches in that order.

pub mod custom;
pub mod gpipe;
pub mod greedy;
pub mod interleaved;
pub mod links;
pub mod one_f_one_b;
pub mod zb_h1;

#[cfg(test)]
mod tests;

use shardc_ir::clock::idle::idle;
use shardc_ir::clock::run;
use shardc_ir::spec::PipelineSchedule;
use std::fmt;

/// What is computed of a stage for a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// The stage itself.
    Forward,
    /// Its gradients; where weights are separate, those of its inputs only.
    Backward,
    /// The gradients of its weights, where they are separate.
    Weight,
}

impl Pass {
    /// `F`, `B` or `W`.
    pub fn letter(self) -> &'static str {
        match self {
            Pass::Forward => "F",
            Pass::Backward => "B",
            Pass::Weight => "W",
        }
    }
}

/// A cell of the table: a pass of a stage for a micro-batch. Text `F0.3`: stage 0, micro-batch 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// What is computed.
    pub pass: Pass,
    /// Of which stage.
    pub stage: u32,
    /// For which micro-batch.
    pub time: u64,
}

impl Cell {
    /// The forward pass of a stage for a micro-batch.
    pub fn forward(stage: u64, time: u64) -> Cell {
        Cell { pass: Pass::Forward, stage: stage as u32, time }
    }

    /// The backward pass of a stage for a micro-batch.
    pub fn backward(stage: u64, time: u64) -> Cell {
        Cell { pass: Pass::Backward, stage: stage as u32, time }
    }

    /// The gradients of the weights of a stage for a micro-batch.
    pub fn weight(stage: u64, time: u64) -> Cell {
        Cell { pass: Pass::Weight, stage: stage as u32, time }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}.{}", self.pass.letter(), self.stage, self.time)
    }
}

/// The shape of a pipeline. Stage s is at position s % p, so a position has as many stages as there
/// are chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// p, the number of positions.
    pub positions: u64,
    /// v, the number of stages at each position.
    pub chunks: u64,
    /// m, the number of micro-batches of a step.
    pub microbatches: u64,
}

impl Shape {
    /// The number of stages.
    pub fn stages(&self) -> u64 {
        self.positions * self.chunks
    }

    /// The position that a stage is at.
    pub fn position(&self, stage: u32) -> u64 {
        u64::from(stage) % self.positions
    }
}

/// The cells of each position in order.
pub type Table = Vec<Vec<Cell>>;

/// What a pass costs where nothing better is known: a backward pass is as much as two forward
/// passes, one for the gradients of inputs and one for those of weights.
pub fn costs(pass: Pass, splits_weights: bool) -> u64 {
    if pass == Pass::Backward && !splits_weights { 2 } else { 1 }
}

/// The share of a step that a pipeline idles at costs where nothing better is known; `None` where
/// the schedule does not take so many micro-batches.
pub fn idle_share(schedule: PipelineSchedule, shape: Shape) -> Option<f64> {
    let splits_weights = schedule == PipelineSchedule::ZeroBubbleH1;
    let table = match schedule {
        PipelineSchedule::Gpipe => gpipe::table(shape),
        PipelineSchedule::OneForwardOneBackward => one_f_one_b::table(shape),
        PipelineSchedule::Interleaved { .. } if !shape.microbatches.is_multiple_of(shape.positions) => return None,
        PipelineSchedule::Interleaved { .. } => interleaved::table(shape),
        PipelineSchedule::ZeroBubbleH1 if shape.microbatches == 1 => return None,
        PipelineSchedule::ZeroBubbleH1 => zb_h1::table(shape),
    };
    let lists = links::rows(&table, &links::chain(shape.stages()), |cell| costs(cell.pass, splits_weights));
    Some(idle(&run(&lists).ok()?, &lists).share)
}

/// The table of a pipeline of one position, which nothing makes wait: one micro-batch after the
/// other, so that no more than one is in flight.
fn one_position(shape: Shape) -> Table {
    let forward = |t| (0..shape.chunks).map(move |s| Cell::forward(s, t));
    let backward = |t| (0..shape.chunks).rev().map(move |s| Cell::backward(s, t));
    vec![(0..shape.microbatches).flat_map(|t| forward(t).chain(backward(t))).collect()]
}
