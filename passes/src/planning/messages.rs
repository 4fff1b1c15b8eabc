//! Where messages stand: in the sender's gap right after what makes the value, and in the
//! receiver's first gap before a row that begins when the value is there, or later. All messages of
//! a gap begin together.
//!
//! So every list of rows is a restriction of one order by time, and no circle of waiting exists,
//! even where every send waits for its receive: an exchange waits only for rows that begin before
//! the next row of its own list does.

use super::order::{Order, Turn};
use super::tasks::Tasks;
use shardc_ir::graph::{Graph, NodeId, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use std::collections::BTreeMap;

/// One end of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The transfer.
    pub node: NodeId,
    /// What this position has of it: the operand where it sends, else the result.
    pub value: ValueId,
    /// Whether it sends.
    pub sends: bool,
    /// The axis.
    pub axis: AxisId,
    /// The position of the other end.
    pub peer: u64,
}

/// The messages of a position: its ends, and before which of its rows (or behind all) which of them
/// are exchanged, each with its micro-batch.
#[derive(Debug, Clone, Default)]
pub struct Messages {
    /// The ends.
    pub ends: Vec<End>,
    /// By the number of the row that follows.
    pub gaps: BTreeMap<usize, Vec<(u32, u64)>>,
}

/// When a message is there, and what tells it from others of that moment: the same at both ends.
type Moment = (u64, NodeId, u64);

/// The messages of all positions.
pub fn messages(graph: &Graph, tasks: &Tasks, order: &Order) -> Vec<Messages> {
    let positions = order.rows.len();
    let mut all = vec![Messages::default(); positions];
    let mut gaps: Vec<BTreeMap<usize, Vec<(Moment, u32)>>> = vec![BTreeMap::new(); positions];
    let index: Vec<BTreeMap<Turn, usize>> =
        order.rows.iter().map(|rows| rows.iter().enumerate().map(|(row, turn)| (*turn, row)).collect()).collect();
    let time = graph.mesh.microbatch_axis();
    for (id, node) in graph.nodes() {
        let Op::Transfer(op) = &node.op else { continue };
        let (from, operand, result) = (op.from as usize, node.operands[0], node.results[0]);
        let timed = graph.mesh.microbatches() > 1 && graph.sharding(operand).depends_on(time);
        let times = if timed { graph.mesh.microbatches() } else { 1 };
        let definer = graph.value(operand).node;
        // What a first loop reads too is sent in both.
        let made: Vec<(u64, Option<(usize, u64)>)> = (tasks.classes(id).iter())
            .map(|class| tasks.maker(from, definer, *class))
            .flat_map(|maker| (0..times).map(move |t| (t, maker)))
            .map(|(t, maker)| {
                (t, maker.and_then(|maker| made(graph, tasks, order, &index[from], from, maker, timed.then_some(t))))
            })
            .collect();
        for to in op.to.iter().copied().filter(|to| *to != op.from) {
            let mut end = |position: usize, value, sends, peer| {
                all[position].ends.push(End { node: id, value, sends, axis: op.axis, peer });
                all[position].ends.len() as u32 - 1
            };
            let (sent, received) = (end(from, operand, true, to), end(to as usize, result, false, op.from));
            for (t, made) in &made {
                let moment = (made.map_or(0, |(_, end)| end), id, *t);
                let gap = made.map_or(0, |(row, _)| row + 1);
                gaps[from].entry(gap).or_default().push((moment, sent));
                let gap = order.times[to as usize].partition_point(|(start, _)| *start < moment.0);
                gaps[to as usize].entry(gap).or_default().push((moment, received));
            }
        }
    }
    for (messages, gaps) in all.iter_mut().zip(gaps) {
        for (gap, mut there) in gaps {
            there.sort();
            messages.gaps.insert(gap, there.into_iter().map(|((_, _, time), end)| (end, time)).collect());
        }
    }
    all
}

/// The row of `position` after which what a task makes is there, with its end.
fn made(
    graph: &Graph,
    tasks: &Tasks,
    order: &Order,
    index: &BTreeMap<Turn, usize>,
    position: usize,
    task: usize,
    time: Option<u64>,
) -> Option<(usize, u64)> {
    // What sums up micro-batches is there with the last.
    let last = if tasks.all[task].class.is_loop() { graph.mesh.microbatches() - 1 } else { 0 };
    let row = *index.get(&(task, time.unwrap_or(last)))?;
    Some((row, order.times[position][row].1))
}
