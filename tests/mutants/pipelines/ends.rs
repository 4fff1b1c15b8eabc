//! The ends of messages in a set of plans: which is the other end of which, and small changes of
//! rows. In these sets each position of the pipeline runs the program of its number.

use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Message, Program, Row};

/// One end of a message of one micro-batch: the program, the row, and the place in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub program: usize,
    pub row: usize,
    pub at: usize,
}

impl End {
    /// The message of its program, and the micro-batch.
    pub fn entry(self, set: &PlanSet) -> (u32, u64) {
        messages_of(&set.programs[self.program].order[self.row])[self.at]
    }

    /// The message.
    pub fn message(self, set: &PlanSet) -> &Message {
        &set.programs[self.program].messages[self.entry(set).0 as usize]
    }

    /// For people.
    pub fn text(self, set: &PlanSet) -> String {
        let (message, time) = (self.message(set), self.entry(set).1);
        let way = if message.sends { "to" } else { "from" };
        format!("`{}`.{time} of {} {way} {}, row {}", message.value, self.program, message.peer, self.row)
    }

    /// The other end, of the same op and micro-batch.
    pub fn other(self, set: &PlanSet) -> Option<End> {
        let (message, (_, time)) = (self.message(set), self.entry(set));
        ends(set).into_iter().find(|end| {
            let there = end.message(set);
            let of = (there.sends, there.peer as usize, &there.provenance.ops, end.entry(set).1);
            end.program == message.peer as usize && of == (!message.sends, self.program, &message.provenance.ops, time)
        })
    }

    /// It and its other end, if `both`.
    pub fn with_other(self, set: &PlanSet, both: bool) -> Vec<End> {
        [Some(self), self.other(set).filter(|_| both)].into_iter().flatten().collect()
    }
}

/// The messages of a row.
pub fn messages_of(row: &Row) -> &[(u32, u64)] {
    match row {
        Row::Exchange(messages) => messages,
        Row::Run { .. } => &[],
    }
}

/// Every end of every micro-batch.
pub fn ends(set: &PlanSet) -> Vec<End> {
    let mut all = vec![];
    for (program, rows) in set.programs.iter().map(|program| &program.order).enumerate() {
        for (row, messages) in rows.iter().map(messages_of).enumerate() {
            all.extend((0..messages.len()).map(|at| End { program, row, at }));
        }
    }
    all
}

/// Takes an end out of its row; a row without messages goes.
pub fn remove(set: &mut PlanSet, end: End) -> (u32, u64) {
    let order = &mut set.programs[end.program].order;
    let Row::Exchange(messages) = &mut order[end.row] else { panic!("a row of messages") };
    let entry = messages.remove(end.at);
    if messages.is_empty() {
        order.remove(end.row);
    }
    entry
}

/// Changes the message and the micro-batch of an end.
pub fn change(set: &mut PlanSet, end: End, with: impl FnOnce(&mut (u32, u64))) {
    if let Row::Exchange(messages) = &mut set.programs[end.program].order[end.row] {
        with(&mut messages[end.at]);
    }
}

/// An end has a message of its own, with a change.
pub fn change_message(set: &mut PlanSet, end: End, with: impl FnOnce(&mut Message)) {
    let mut message = end.message(set).clone();
    with(&mut message);
    let messages = &mut set.programs[end.program].messages;
    messages.push(message);
    let new = messages.len() as u32 - 1;
    change(set, end, |entry| entry.0 = new);
}

/// The rows that exchange messages.
pub fn exchanges(program: &Program) -> Vec<usize> {
    let order = &program.order;
    (0..order.len()).filter(|row| matches!(order[*row], Row::Exchange(_))).collect()
}

/// The rows that run tasks.
pub fn runs(program: &Program) -> Vec<usize> {
    let order = &program.order;
    (0..order.len()).filter(|row| matches!(order[*row], Row::Run { .. })).collect()
}
