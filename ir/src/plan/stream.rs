//! The queues of a device.

use super::{Message, Program};
use crate::mesh::{AxisId, Mesh};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A queue of a device. CPU ranks run all that there is in one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Computation.
    Main,
    /// Calls of collectives.
    Comm,
    /// Messages of one way; no step is meant for it.
    Messages(Way),
}

/// A way of messages: to one other rank, or from it. What goes one way comes in the order in which
/// it is sent, and no way waits for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// Whether this rank sends.
    pub sends: bool,
    /// The axis on which the two ranks differ.
    pub axis: AxisId,
    /// The position of the other rank on it.
    pub peer: u64,
}

impl Stream {
    /// Its name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Main => "main",
            Stream::Comm => "comm",
            Stream::Messages(_) => "messages",
        }
    }
}

impl Way {
    /// Its name in listings: `to pp=1`, `from pp=1`.
    pub fn name(self, mesh: &Mesh) -> String {
        format!("{} {}={}", if self.sends { "to" } else { "from" }, mesh.name(self.axis), self.peer)
    }
}

impl Message {
    /// The way that it goes.
    pub fn way(&self) -> Way {
        Way { sends: self.sends, axis: self.axis, peer: self.peer }
    }
}

impl Program {
    /// The ways that its messages go.
    pub fn ways(&self) -> BTreeSet<Way> {
        self.messages.iter().map(Message::way).collect()
    }

    /// The messages of a row by their ways, in the order in which the row has them, each message by
    /// position in [`Program::messages`] with its micro-batch; none of a row that runs a task.
    pub fn exchanged_by_way(&self, row: usize) -> Vec<(Way, Vec<(usize, u64)>)> {
        let mut ways: Vec<(Way, Vec<(usize, u64)>)> = vec![];
        for (message, time) in self.exchanged(row) {
            let way = self.messages[message].way();
            match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, messages)) => messages.push((message, time)),
                None => ways.push((way, vec![(message, time)])),
            }
        }
        ways
    }
}
