//! How much a program does: one that does many times what its graph asks for is refused before its
//! rows are run, so that no proof takes much longer than that of an honest plan of this graph.

use super::subject::Subject;
use super::table::Lemmas;
use super::violation::Violation;
use crate::lower::Lowered;
use crate::plan::Row;

/// A step is a launch of the graph, or copies an operand, or empties an accumulator. A kernel of
/// elementwise ops computes cheap ones again, each in a dozen kernels at most.
const READ: u64 = 16;
/// A value is in the buffer of its op, and in one that it is copied to.
const KEPT: u64 = 2;
/// So many contents, and slots, nobody need count.
const FREE: u64 = 1 << 16;

/// Compares the contents that all rows need and give, and the `slots` of the places that they and
/// the host read, with those of the graph; the host reads `lasting` values.
///
/// # Errors
/// If there are far more.
pub fn check(subject: &Subject<'_>, lemmas: &[Lemmas], slots: u64, lasting: usize) -> Result<(), Violation> {
    let of_row = |row: &Row| match row {
        Row::Run { task, .. } => lemmas[*task as usize].accesses(),
        Row::Exchange(_) => 0,
    };
    let accesses = subject.program.order.iter().map(of_row).sum();
    let (operands, values) = asked(subject);
    // What is made once a step may be made again inside of what is made for each micro-batch.
    let most = |times: u64, count: usize| times * subject.microbatches() * (count + lasting) as u64 + FREE;
    for (what, count, most) in [("contents", accesses, most(READ, operands)), ("slots", slots, most(KEPT, values))] {
        if count > most {
            let words = format!("its rows are of {count} {what}, more than {most}: many times what the graph asks for");
            return Err(Violation::of(words));
        }
    }
    Ok(())
}

/// The operands of all launches, and the values that they make.
fn asked(subject: &Subject<'_>) -> (usize, usize) {
    let (mut operands, mut values) = (0, 0);
    for (id, node) in subject.lowered.nodes_here() {
        let of_launches = match subject.lowered.node(id) {
            Lowered::Launches { launches, scratch } => {
                values += scratch.len();
                launches.iter().map(|launch| launch.reads.len() + launch.writes.len()).sum()
            }
            _ => node.operands.len(),
        };
        operands += of_launches + node.results.len();
        values += node.results.len();
    }
    (operands, values)
}
