//! The launch table of a program: all that a device is told in one step of training, with every
//! address. Whoever executes it decides nothing.
//!
//! A table has sections: one before a step, one for each task, one for each set of messages that
//! go one way together, and one behind the step. Its order says which section runs when, and with
//! which micro-batches. The rows of a queue run in the order of the table: one has kernels,
//! products and copies, one calls, and one for each way the messages that go it. A row that waits
//! for another begins when the last run of that one has ended, and with it all that its queue began
//! earlier, and what that had waited for. So a wait is one event of the device, which each run
//! records anew.

mod bytes;
mod check;
mod derive;
mod products;
mod seconds;
mod sections;
mod tf32;

pub use check::{Checked, check, check_shape};
pub use derive::derive;
pub use seconds::check as check_seconds;

use crate::generated::Parameter;
use crate::matmul::Matmul;
use serde::{Deserialize, Serialize};
use shardc_ir::kernel::Collective;
use shardc_ir::plan::{HostScalar, Stream, Way, When};
use shardc_ir::position::Offset;
use std::ops::Range as Bytes;

/// Bytes of the word that kernels set where data are wrong, with what keeps it apart.
pub const FAULT_BYTES: u64 = 64;

/// Where room for partial results begins: at multiples of so many bytes, as cuBLASLt wants it.
pub const ROOM_ALIGNMENT: u64 = 256;

/// What a device is told in one step of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Bytes of the program's arena, which lies at the start of the device's memory.
    pub arena: u64,
    /// Where partial results lie that launches of a row's kernel hand on: of the main queue only.
    pub workspace: Bytes<u64>,
    /// Where the word for wrong data lies.
    pub fault: Bytes<u64>,
    /// The sections.
    pub sections: Vec<Section>,
    /// The sections in the order in which they run in a step.
    pub order: Vec<Run>,
}

/// Rows that run together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// What of the program it carries out.
    pub part: Part,
    /// The rows, in the order of the program.
    pub rows: Vec<Row>,
}

/// The part of a program that a section carries out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    /// What the host writes before the step.
    Begin,
    /// A task, by position.
    Task(u32),
    /// Messages that go one way together, by position.
    Messages(Vec<u32>),
    /// What the host reads behind the step.
    End,
}

/// A section runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The section, by position.
    pub section: u32,
    /// Its micro-batch; of messages that of each.
    pub times: Vec<u64>,
}

/// What a device is told at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The step of the task that it is of, by position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Another step that it carries out as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<u32>,
    /// The queue.
    pub stream: Stream,
    /// With which micro-batches of its section it runs.
    pub when: When,
    /// The rows of other queues that it waits for, by their numbers through all sections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<u32>,
    /// What it does.
    pub work: Work,
}

/// What a row does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// A kernel is launched; none is where the grid has a 0.
    Launch {
        /// The text.
        kernel: String,
        /// The function.
        entry: String,
        /// Blocks along x, y and z.
        grid: [u32; 3],
        /// Threads of a block, along x.
        block: u32,
        /// Bytes of shared memory of a block.
        shared: u32,
        /// The first parameters.
        pointers: Vec<Pointer>,
        /// The other parameters, of 64 bits each: numbers of the rank's position.
        numbers: Vec<Offset>,
    },
    /// The library cuBLASLt multiplies matrices.
    Product {
        /// What it is told.
        product: Box<Matmul>,
        /// `A`.
        a: Range,
        /// `B`.
        b: Range,
        /// `D`.
        d: Range,
        /// `C` where something is added.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        added: Option<Range>,
        /// The vector of the epilogue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vector: Option<Range>,
        /// The room that it may use.
        room: Range,
    },
    /// A communicator is called.
    Call {
        /// The call.
        call: Collective,
        /// The sources.
        reads: Vec<Range>,
        /// The destinations.
        writes: Vec<Range>,
    },
    /// Messages go one way, as one group, in the order of the section's messages.
    Messages {
        /// The way.
        way: Way,
        /// For each message what is sent, or where it comes.
        ranges: Vec<Range>,
    },
    /// The host's bytes of an input, by position, are copied in, all micro-batches.
    CopyInput {
        /// The position.
        input: u32,
        /// Where they come.
        to: Range,
    },
    /// A number of the host is copied in.
    CopyScalar {
        /// The number.
        scalar: HostScalar,
        /// Where it comes.
        to: Range,
    },
    /// Zeros are written.
    Clear {
        /// Where.
        to: Range,
    },
    /// A result, by position, is copied to the host, all micro-batches.
    CopyOutput {
        /// The position.
        output: u32,
        /// Where it lies.
        from: Range,
    },
    /// The word for wrong data is copied to the host.
    CopyFault {
        /// Where it lies.
        from: Range,
    },
}

/// A pointer of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointer {
    /// The parameter's name in the text.
    pub name: String,
    /// What it points to.
    pub range: Range,
    /// Whether the kernel reads there.
    pub is_read: bool,
    /// Whether the kernel writes there.
    pub is_written: bool,
}

/// Bytes of the device's memory: micro-batch `t` has those at slot `t` modulo their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first byte in slot 0.
    pub start: u64,
    /// How many.
    pub bytes: u64,
    /// Slots; at least 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u64,
    /// Bytes from a slot to the next.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slot_bytes: u64,
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(slots: &u64) -> bool {
    *slots == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Range {
    /// The bytes of micro-batch `time`.
    pub fn at(&self, time: u64) -> Bytes<u64> {
        let start = self.start + time % self.slots.max(1) * self.slot_bytes;
        start..start + self.bytes
    }
}

impl Work {
    /// All ranges that it names.
    pub fn ranges(&self) -> Vec<&Range> {
        match self {
            Work::Launch { pointers, .. } => pointers.iter().map(|pointer| &pointer.range).collect(),
            Work::Product { a, b, d, added, vector, room, .. } => {
                [a, b, d, room].into_iter().chain(added).chain(vector).collect()
            }
            Work::Call { reads, writes, .. } => reads.iter().chain(writes).collect(),
            Work::Messages { ranges, .. } => ranges.iter().collect(),
            Work::CopyInput { to, .. } | Work::CopyScalar { to, .. } | Work::Clear { to } => vec![to],
            Work::CopyOutput { from, .. } | Work::CopyFault { from } => vec![from],
        }
    }
}

impl Pointer {
    fn of(parameter: &Parameter, range: Range) -> Pointer {
        let Parameter { name, is_read, is_written, .. } = parameter;
        Pointer { name: name.clone(), range, is_read: *is_read, is_written: *is_written }
    }
}

/// A run of a row.
#[derive(Debug, Clone, Copy)]
pub struct Ran<'t> {
    /// The row's number through all sections.
    pub number: usize,
    /// The row.
    pub row: &'t Row,
    /// The section.
    pub part: &'t Part,
    /// The micro-batches of the section's run.
    pub times: &'t [u64],
}

impl Table {
    /// Bytes of the device's memory.
    pub fn bytes(&self) -> u64 {
        [self.arena, self.workspace.end, self.fault.end].into_iter().max().unwrap_or(0)
    }

    /// The number of each section's first row, and at the end how many rows there are.
    pub fn first_rows(&self) -> Vec<usize> {
        let mut firsts = vec![0];
        self.sections.iter().for_each(|section| firsts.push(firsts[firsts.len() - 1] + section.rows.len()));
        firsts
    }

    /// All rows in the order in which they run in a step, where there are `microbatches`.
    pub fn runs(&self, microbatches: u64) -> impl Iterator<Item = Ran<'_>> {
        let firsts = self.first_rows();
        self.order.iter().flat_map(move |run| {
            let at = run.section as usize;
            let (first, section) = (firsts[at], &self.sections[at]);
            let is_last = run.times.first().is_none_or(|time| time + 1 == microbatches);
            let runs = move |row: &Row| row.when == When::Each || is_last;
            let numbered = section.rows.iter().enumerate().filter(move |(_, row)| runs(row));
            numbered.map(move |(i, row)| Ran { number: first + i, row, part: &section.part, times: &run.times })
        })
    }
}

impl Ran<'_> {
    /// The bytes that it reads and those that it writes; what is updated is in both.
    pub fn touches(&self) -> [Vec<Bytes<u64>>; 2] {
        let time = self.times.first().copied().unwrap_or(0);
        let at = |ranges: &[Range]| ranges.iter().map(|range| range.at(time)).collect::<Vec<_>>();
        match &self.row.work {
            Work::Launch { grid, .. } if grid.contains(&0) => [vec![], vec![]],
            Work::Launch { pointers, .. } => {
                let those = |is: fn(&Pointer) -> bool| pointers.iter().filter(|p| is(p)).map(|p| p.range.at(time)).collect();
                [those(|pointer| pointer.is_read), those(|pointer| pointer.is_written)]
            }
            Work::Product { product, a, b, d, added, vector, room } => {
                let (mut reads, mut writes) = (vec![*a, *b], vec![*d, *room]);
                reads.extend(added);
                if product.epilogue.is_gradient() {
                    writes.extend(vector)
                } else {
                    reads.extend(vector)
                }
                [at(&reads), at(&writes)]
            }
            Work::Call { reads, writes, .. } => [at(reads), at(writes)],
            Work::Messages { way, ranges } => {
                let bytes = ranges.iter().zip(self.times).map(|(range, time)| range.at(*time)).collect();
                if way.sends { [bytes, vec![]] } else { [vec![], bytes] }
            }
            Work::CopyInput { to, .. } | Work::CopyScalar { to, .. } | Work::Clear { to } => [vec![], at(&[*to])],
            Work::CopyOutput { from, .. } | Work::CopyFault { from } => [at(&[*from]), vec![]],
        }
    }
}
