//! What the ends of messages need and give: each is one end of a `transfer` of the graph, between
//! the positions that it names, of all of the value.

use super::contents::Item;
use super::memory::check_view;
use super::subject::Subject;
use super::violation::Violation;
use crate::ops::Op;
use crate::plan::{BufferKind, Message};
use crate::reason;
use crate::reason::Reason;

/// For each message of the program, the content that its bytes must hold, or hold afterwards.
///
/// # Errors
/// The first message that is no transfer of the graph.
pub fn ends(subject: &Subject<'_>) -> Result<Vec<Item>, Violation> {
    let refuse = |message: &Message, why: Reason| Violation {
        spec_line: message.provenance.spec_line,
        ..Violation::of(format!("message `{}` {why}", message.value))
    };
    subject.program.messages.iter().map(|message| end(subject, message).map_err(|why| refuse(message, why))).collect()
}

fn end(subject: &Subject<'_>, message: &Message) -> Result<Item, Reason> {
    let [name] = &message.provenance.ops[..] else { return Err("is not of one op".into()) };
    let result = subject.named(name).ok_or_else(|| reason!("carries out `%{name}`, which the graph does not have"))?;
    let node = subject.graph.def(result);
    let Op::Transfer(op) = &node.op else { return Err(reason!("carries out `%{name}`, which is no transfer")) };
    let own = subject.coordinates[op.axis.index()];
    let (from, to) = if message.sends { (own, message.peer) } else { (message.peer, own) };
    if message.axis != op.axis || from != op.from || to == from || !op.to.contains(&to) {
        return Err(reason!("goes from {from} to {to}, `%{name}` from {} to {:?}", op.from, op.to));
    }
    let value = subject.stored_in(if message.sends { node.operands[0] } else { result });
    let buffer = &subject.program.buffers[message.view.buffer.index()];
    let (dtype, bytes) = subject.size_of(value);
    if (buffer.dtype, message.view.bytes) != (dtype, bytes) {
        let (own, name, found) = (buffer.dtype, &buffer.name, message.view.bytes);
        return Err(reason!("has {found} bytes of {own} in `{name}` for {bytes} bytes of {dtype}"));
    }
    check_view(subject.program, &message.view)?;
    let holds = matches!(
        buffer.kind,
        BufferKind::Activation | BufferKind::Communication | BufferKind::Gradient(_) | BufferKind::Output(_)
    );
    match message.sends || holds {
        true => Ok(Item::Value(value)),
        false => Err(reason!("is received in `{}`, which no message may write", buffer.name)),
    }
}
