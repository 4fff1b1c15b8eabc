//! The trace: what each device was given to do, in the order in which it was enqueued, launches of
//! graphs unfolded.
//!
//! As text it is one JSON object a line, a [`Row`]. `FAKE_CUDA_TRACE=FILE` appends rows to a file
//! as they come; `fake_trace` gives all of this world. Records of events are no rows: a row says
//! which rows it waits for. Streams are numbered on each device in the order in which they were
//! made, and in a graph a row has the number of the stream that was captured.

use crate::settings;
use crate::work::{End, Work};
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::io::Write;

/// An operation that was enqueued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The device.
    pub device: usize,
    /// The number of the row, from 0 on each device.
    pub row: u64,
    /// The stream.
    pub stream: u32,
    /// The rows that it waits for by events, sorted, but for the last one of its own stream. The
    /// first rows of a graph wait for the last row of the stream that it was launched on.
    pub waits: Vec<u64>,
    /// What is done.
    pub work: Traced,
}

/// What a row does. Addresses are those of the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traced {
    /// A kernel.
    Launch {
        /// The function.
        entry: String,
        /// Blocks along x, y and z.
        grid: [u32; 3],
        /// Threads of a block.
        block: [u32; 3],
        /// Bytes of shared memory of a block.
        shared: u32,
        /// The pointers that it takes.
        pointers: Vec<u64>,
        /// The numbers behind them.
        numbers: Vec<i64>,
    },
    /// A copy.
    Copy {
        /// Where to; `None` is the host.
        to: Option<u64>,
        /// Where from; `None` is the host.
        from: Option<u64>,
        /// How many bytes.
        bytes: u64,
        /// Whether the host's memory is pinned.
        is_pinned: bool,
    },
    /// Bytes are filled.
    Memset {
        /// Where.
        to: u64,
        /// With what.
        value: u8,
        /// How many.
        bytes: u64,
    },
    /// A product of matrices.
    Product {
        /// What cuBLASLt was told.
        product: Description,
        /// `A`.
        a: u64,
        /// `B`.
        b: u64,
        /// `C`.
        c: u64,
        /// `D`.
        d: u64,
        /// The vector of the epilogue.
        bias: Option<u64>,
        /// The room, and its bytes.
        workspace: [u64; 2],
    },
    /// Calls of communicators that go together.
    Nccl {
        /// The calls.
        calls: Vec<Called>,
    },
}

/// What a product is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The compute type and the type of the scales.
    pub compute: [String; 2],
    /// The factors of the product and of `C`.
    pub scales: [f64; 2],
    /// Whether `A`, and `B`, are transposed.
    pub transposed: [bool; 2],
    /// `A`, `B`, `C` and `D` as they lie.
    pub layouts: Vec<Lies>,
    /// The epilogue.
    pub epilogue: String,
    /// From which of its candidates it was chosen.
    pub candidate: Option<u64>,
}

/// How a matrix lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lies {
    /// The element type.
    pub element: String,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// From one column to the next.
    pub leading: i64,
    /// Matrices.
    pub batch: u64,
    /// From one to the next.
    pub stride: i64,
}

/// A call of a communicator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Called {
    /// `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `send` or `recv`.
    pub call: String,
    /// The number of the communicator on its device, from 0 in the order in which they were made.
    pub comm: u32,
    /// The rank in it.
    pub rank: usize,
    /// Its ranks.
    pub size: usize,
    /// The other rank of a message, or the root of a broadcast.
    pub peer: Option<usize>,
    /// The source.
    pub from: Option<u64>,
    /// The destination.
    pub to: Option<u64>,
    /// Elements, as the call counts them.
    pub count: u64,
    /// The element type.
    pub dtype: String,
    /// The reduction.
    pub op: Option<String>,
}

/// All rows.
#[derive(Debug, Default)]
pub struct Trace {
    rows: Vec<Row>,
    counts: std::collections::BTreeMap<usize, u64>,
}

impl Trace {
    /// The rows as text.
    pub fn text(&self) -> String {
        let line = |row: &Row| serde_json::to_string(row).map_or_else(|e| e.to_string(), |line| line + "\n");
        self.rows.iter().map(line).collect()
    }
}

impl World {
    /// Writes down what a stream was given; nothing for events.
    pub fn traced(&mut self, stream: u64, work: &Work) -> Option<u64> {
        let at = |end: &End| match end {
            End::Device(at) => Some(*at),
            _ => None,
        };
        let is_pinned = |end: &End| matches!(end, End::Pinned(_));
        let work = match work {
            Work::Record(_) | Work::Wait(_) => return None,
            Work::Copy { to, from, bytes } => {
                Traced::Copy { to: at(to), from: at(from), bytes: *bytes, is_pinned: is_pinned(to) || is_pinned(from) }
            }
            Work::Set { to, value, bytes } => Traced::Memset { to: *to, value: *value, bytes: *bytes },
            Work::Kernel(launch) => Traced::Launch {
                entry: launch.entry.name.clone(),
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
                pointers: launch.pointers.clone(),
                numbers: launch.numbers.clone(),
            },
            Work::Product(call) => call.traced(),
            Work::Nccl(group) => Traced::Nccl { calls: self.nccl.traced(group) },
        };
        let stream = &self.streams[&stream];
        let count = self.trace.counts.entry(stream.device).or_default();
        let mut waits = stream.waits.clone();
        waits.sort_unstable();
        let row = Row { device: stream.device, row: *count, stream: stream.shown, waits, work };
        *count += 1;
        if let Some(file) = settings::text("TRACE") {
            let opened = std::fs::OpenOptions::new().create(true).append(true).open(&file);
            let line = serde_json::to_string(&row).map_err(std::io::Error::other);
            let written = opened.and_then(|mut opened| opened.write_all((line? + "\n").as_bytes()));
            if let Err(e) = written {
                self.report(format!("no trace in {file}: {e}"));
            }
        }
        let number = row.row;
        self.trace.rows.push(row);
        Some(number)
    }
}
