//! The contents of bytes of the arena, in terms of the graph.

use super::subject::Subject;
use crate::dtype::DType;
use crate::graph::{NodeId, ValueId};
use crate::lower::Slot;

/// The content of some bytes at a moment of a step of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The rank's part of a value (by its storage), of one micro-batch where it depends on time.
    Value(ValueId, Option<u64>),
    /// An accumulator that has combined the first so many micro-batches, not all of them.
    Combined(ValueId, u64),
    /// A tensor of a node as one of its launches has left it: scratch, or a result that later
    /// launches go on with.
    Made(NodeId, Slot, usize, Option<u64>),
}

/// The content that a step reads or writes, whatever the micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Item {
    /// The rank's part of a value, by its storage.
    Value(ValueId),
    /// An accumulator before the first micro-batch.
    Empty(ValueId),
    /// An accumulator as this micro-batch finds it.
    Before(ValueId),
    /// An accumulator with this micro-batch.
    After(ValueId),
    /// A tensor of a node as one of its launches leaves it.
    Made(NodeId, Slot, usize),
}

impl Item {
    /// Its element type and its bytes.
    pub fn size(self, subject: &Subject<'_>) -> (DType, u64) {
        match self {
            Item::Value(value) | Item::Empty(value) | Item::Before(value) | Item::After(value) => subject.size_of(value),
            Item::Made(node, slot, _) => subject.size_of_slot(node, slot),
        }
    }

    /// At micro-batch `time`.
    pub fn at(self, subject: &Subject<'_>, time: u64) -> Content {
        match self {
            Item::Value(value) => Content::Value(value, subject.timed(value).then_some(time)),
            Item::Empty(value) => Content::Combined(value, 0),
            Item::Before(value) => Content::Combined(value, time),
            Item::After(value) if time + 1 == subject.microbatches() => Content::Value(value, None),
            Item::After(value) => Content::Combined(value, time + 1),
            Item::Made(node, slot, launch) => Content::Made(node, slot, launch, subject.node_is_timed(node).then_some(time)),
        }
    }
}

impl Content {
    /// The value that it is, or will be.
    pub fn value(self, subject: &Subject<'_>) -> ValueId {
        match self {
            Content::Value(value, _) | Content::Combined(value, _) => value,
            Content::Made(node, ..) => subject.graph.node(node).results[0],
        }
    }

    /// For people: `%g of micro-batch 1`.
    pub fn text(self, subject: &Subject<'_>) -> String {
        let name = &subject.graph.value(self.value(subject)).name;
        let of = |time: Option<u64>| match time {
            None => String::new(),
            Some(time) => format!(" of micro-batch {time}"),
        };
        match self {
            Content::Value(_, time) => format!("`%{name}`{}", of(time)),
            Content::Combined(_, parts) => {
                format!("`%{name}` with {parts} of {} micro-batches", subject.microbatches())
            }
            Content::Made(_, Slot::Scratch(_), _, time) => format!("scratch of `%{name}`{}", of(time)),
            Content::Made(_, _, _, time) => format!("an unfinished `%{name}`{}", of(time)),
        }
    }
}
