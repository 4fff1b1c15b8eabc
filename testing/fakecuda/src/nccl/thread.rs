//! The group that a thread has open.

use super::Call;
use std::cell::RefCell;

#[derive(Default)]
struct Open {
    depth: usize,
    calls: Vec<(u64, Call)>,
    /// Communicators whose ranks must all be there when the group ends.
    joins: Vec<u64>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

/// `ncclGroupStart`
pub fn begin() {
    OPEN.with(|open| open.borrow_mut().depth += 1);
}

/// Whether a group is open.
pub fn is_open() -> bool {
    OPEN.with(|open| open.borrow().depth > 0)
}

/// `ncclGroupEnd`: what the group holds where it is the outermost, `None` where none is open.
#[allow(clippy::type_complexity, reason = "calls with their streams, and communicators")]
pub fn end() -> Option<(Vec<(u64, Call)>, Vec<u64>)> {
    OPEN.with(|open| {
        let mut open = open.borrow_mut();
        open.depth = open.depth.checked_sub(1)?;
        match open.depth {
            0 => Some((std::mem::take(&mut open.calls), std::mem::take(&mut open.joins))),
            _ => Some(Default::default()),
        }
    })
}

/// Adds a call on a stream.
pub fn add(stream: u64, call: Call) {
    OPEN.with(|open| open.borrow_mut().calls.push((stream, call)));
}

/// Adds a communicator that is made.
pub fn join(comm: u64) {
    OPEN.with(|open| open.borrow_mut().joins.push(comm));
}
