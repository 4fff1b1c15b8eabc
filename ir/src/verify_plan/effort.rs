//! How much a program does: one that does many times what its graph asks for is refused before its
//! rows are run, as the proof of a small file would else take minutes.

use super::subject::Subject;
use super::table::Lemmas;
use super::violation::Violation;
use crate::graph::Node;
use crate::lower::Lowered;
use crate::plan::Row;

/// A step is a launch of the graph, or copies an operand, or empties an accumulator. A kernel of
/// elementwise ops computes cheap ones again, each in a dozen kernels at most.
const TIMES: u64 = 16;
/// Reads and writes that nobody need count.
const FREE: u64 = 1 << 16;

/// Compares the contents that all rows need and give, and the `slots` that the proof looks at, with
/// those of the graph's launches.
///
/// # Errors
/// If there are far more.
pub fn check(subject: &Subject<'_>, lemmas: &[Lemmas], slots: u64) -> Result<(), Violation> {
    let most = TIMES.saturating_mul(asked(subject)).saturating_add(FREE);
    let of_row = |row: &Row| match row {
        Row::Run { task, .. } => lemmas[*task as usize].accesses(),
        Row::Exchange(_) => 0,
    };
    let accesses = subject.program.order.iter().map(of_row).sum();
    for (what, count) in [("contents", accesses), ("slots", slots)] {
        if count > most {
            let words = format!("its rows are of {count} {what}, more than {most}: many times what the graph asks for");
            return Err(Violation::of(words));
        }
    }
    Ok(())
}

/// The operands of all launches, for each micro-batch: what is made once a step may be made again
/// inside of what is made for each.
fn asked(subject: &Subject<'_>) -> u64 {
    let operands = |(id, node): (_, &Node)| match subject.lowered.node(id) {
        Lowered::Launches { launches, .. } => launches.iter().map(|launch| launch.reads.len() + launch.writes.len()).sum(),
        _ => node.operands.len() + node.results.len(),
    };
    let all: usize = subject.lowered.nodes_here().map(operands).sum();
    subject.microbatches().saturating_mul(all as u64)
}
