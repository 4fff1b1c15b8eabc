//! Messages from one rank to another, for stages of a pipeline. A sender goes on at once; in a
//! strict world when its message has been received.

use crate::world::{Gate, Wait, World};
use shardc_ir::dtype::DType;
use shardc_ir::reason::Reason;
use std::collections::VecDeque;

/// One message, seen from one of its ends.
#[derive(Debug)]
pub enum Transfer<'a> {
    /// Gives elements to a rank.
    Send {
        /// The rank.
        to: u64,
        /// The element type.
        dtype: DType,
        /// The elements.
        bytes: &'a [u8],
    },
    /// Takes elements from a rank.
    Receive {
        /// The rank.
        from: u64,
        /// The element type.
        dtype: DType,
        /// The destination of the elements.
        bytes: &'a mut [u8],
    },
}

/// The way from one rank to another for one purpose; messages are taken in the order in which they
/// were sent.
#[derive(Debug, Default)]
pub struct Channel {
    /// The messages on their way.
    pub(crate) gate: Gate<Line>,
}

/// Messages that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Line {
    sent: u64,
    taken: u64,
    messages: VecDeque<(DType, Vec<u8>)>,
}

/// The purpose of messages between stages; those of calls have the set of their axes.
pub const MESSAGES: u64 = 0;

/// The ends of a channel, and its purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The rank that sends.
    pub from: u64,
    /// The rank that receives.
    pub to: u64,
    /// What for.
    pub purpose: u64,
}

/// Makes the `transfers` of `rank` together: all of them begin before it waits for any.
///
/// # Errors
/// If the two ends of a message differ in type or size, a rank failed, or no rank can go on.
pub fn exchange(world: &World, rank: u64, transfers: &mut [Transfer<'_>]) -> Result<(), Reason> {
    world.pause(rank);
    let mut sent = vec![];
    for transfer in &*transfers {
        if let Transfer::Send { to, dtype, bytes } = transfer {
            let route = Route { from: rank, to: *to, purpose: MESSAGES };
            world.post(route, *dtype, &[bytes])?;
            sent.push(route);
        }
    }
    for transfer in transfers {
        if let Transfer::Receive { from, dtype, bytes } = transfer {
            receive(world, rank, *from, *dtype, bytes)?;
        }
    }
    // All that this rank has sent, it has sent here, so what lies there is its own.
    for route in sent.into_iter().filter(|_| world.is_strict()) {
        let channel = world.channel(route);
        let mut line = channel.gate.lock();
        while line.taken < line.sent {
            line = world.sleep(rank, &channel.gate, line, Wait::Send(route.to))?;
        }
    }
    world.pause(rank);
    Ok(())
}

/// Puts a message where its receiver takes it.
pub(crate) fn deliver(world: &World, route: Route, dtype: DType, bytes: Vec<u8>) {
    let channel = world.channel(route);
    let mut line = channel.gate.lock();
    line.messages.push_back((dtype, bytes));
    line.sent += 1;
    world.wake(&channel.gate, &line);
}

/// Takes the next message of a route, for which its receiver waits as `why` says.
pub(crate) fn take(world: &World, route: Route, why: Wait) -> Result<(DType, Vec<u8>), Reason> {
    let channel = world.channel(route);
    let mut line = channel.gate.lock();
    let message = loop {
        match line.messages.pop_front() {
            Some(message) => break message,
            None => line = world.sleep(route.to, &channel.gate, line, why)?,
        }
    };
    line.taken += 1;
    world.wake(&channel.gate, &line);
    Ok(message)
}

fn receive(world: &World, rank: u64, from: u64, dtype: DType, bytes: &mut [u8]) -> Result<(), Reason> {
    let (sent_dtype, message) = take(world, Route { from, to: rank, purpose: MESSAGES }, Wait::Receive(from))?;
    if (sent_dtype, message.len()) != (dtype, bytes.len()) {
        let elements = |dtype: DType, bytes: usize| format!("{} {dtype}", bytes as u64 / dtype.bytes());
        let (sent, wanted) = (elements(sent_dtype, message.len()), elements(dtype, bytes.len()));
        let message = format!("rank {from} sends {sent} to rank {rank}, which expects {wanted}");
        world.fail(rank, message.clone());
        return Err(message.into());
    }
    bytes.copy_from_slice(&message);
    Ok(())
}
