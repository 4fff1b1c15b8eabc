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

/// The way from one rank to another; messages are taken in the order in which they were sent.
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

/// Makes the `transfers` of `rank` together: all of them begin before it waits for any.
///
/// # Errors
/// If the two ends of a message differ in type or size, a rank failed, or no rank can go on.
pub fn exchange(world: &World, rank: u64, transfers: &mut [Transfer<'_>]) -> Result<(), Reason> {
    world.pause(rank);
    let mut sent = vec![];
    for transfer in &*transfers {
        if let Transfer::Send { to, dtype, bytes } = transfer {
            let channel = world.channel(rank, *to);
            let mut line = channel.gate.lock();
            line.messages.push_back((*dtype, bytes.to_vec()));
            line.sent += 1;
            sent.push((*to, line.sent));
            world.wake(&channel.gate, &line);
        }
    }
    for transfer in transfers {
        if let Transfer::Receive { from, dtype, bytes } = transfer {
            receive(world, rank, *from, *dtype, bytes)?;
        }
    }
    for (to, number) in sent.into_iter().filter(|_| world.is_strict()) {
        let channel = world.channel(rank, to);
        let mut line = channel.gate.lock();
        while line.taken < number {
            line = world.sleep(rank, &channel.gate, line, Wait::Send(to))?;
        }
    }
    world.pause(rank);
    Ok(())
}

fn receive(world: &World, rank: u64, from: u64, dtype: DType, bytes: &mut [u8]) -> Result<(), Reason> {
    let channel = world.channel(from, rank);
    let mut line = channel.gate.lock();
    let (sent_dtype, message) = loop {
        match line.messages.pop_front() {
            Some(message) => break message,
            None => line = world.sleep(rank, &channel.gate, line, Wait::Receive(from))?,
        }
    };
    if (sent_dtype, message.len()) != (dtype, bytes.len()) {
        drop(line);
        let elements = |dtype: DType, bytes: usize| format!("{} {dtype}", bytes as u64 / dtype.bytes());
        let (sent, wanted) = (elements(sent_dtype, message.len()), elements(dtype, bytes.len()));
        let message = format!("rank {from} sends {sent} to rank {rank}, which expects {wanted}");
        world.fail(rank, message.clone());
        return Err(message.into());
    }
    bytes.copy_from_slice(&message);
    line.taken += 1;
    world.wake(&channel.gate, &line);
    Ok(())
}
