//! Messages between ranks, in the strict reading: a row is over when all that it receives is there
//! and all that it sends has been taken.
//!
//! Between two ranks the n-th message sent is the n-th received, and nobody chooses among several;
//! so a step that ends in this reading ends in every other, with the same bytes.

use super::{Rank, Turn};
use shardc_ir::dtype::DType;
use shardc_ir::plan::Row;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// A message that has been sent.
struct Letter {
    dtype: DType,
    bytes: Vec<u8>,
}

/// One end of a message of a row that has begun.
struct End {
    sends: bool,
    peer: usize,
    dtype: DType,
    place: Range<usize>,
}

/// The row that a rank is at.
struct Begun {
    /// What it has not received yet.
    wanted: VecDeque<End>,
    /// How many of its messages nobody has taken.
    sent: usize,
}

/// All messages on their way.
pub struct Post {
    /// From a rank to a rank.
    lines: BTreeMap<(usize, usize), VecDeque<Letter>>,
    begun: Vec<Option<Begun>>,
}

impl Post {
    /// Nothing on its way between so many ranks.
    pub fn new(ranks: usize) -> Post {
        Post { lines: BTreeMap::new(), begun: (0..ranks).map(|_| None).collect() }
    }

    /// Begins, carries and ends what can be; whether there was any such.
    pub fn carry(&mut self, ranks: &mut [Rank<'_>]) -> Result<bool, String> {
        let mut moved = false;
        for (number, rank) in ranks.iter().enumerate() {
            if let (Some(Turn::Exchange(row)), None) = (rank.turns.get(rank.next), &self.begun[number]) {
                self.begin(number, rank, *row)?;
                moved = true;
            }
        }
        for (number, rank) in ranks.iter_mut().enumerate() {
            moved |= self.receive(number, rank)?;
        }
        for (begun, rank) in self.begun.iter_mut().zip(ranks) {
            if begun.as_ref().is_some_and(|row| row.wanted.is_empty() && row.sent == 0) {
                *begun = None;
                rank.next += 1;
                moved = true;
            }
        }
        Ok(moved)
    }

    /// All messages of a row begin: none writes what another touches.
    fn begin(&mut self, number: usize, rank: &Rank<'_>, row: usize) -> Result<(), String> {
        let Some(Row::Exchange(messages)) = rank.program.order.get(row) else { return Err("no row of messages".into()) };
        let ends: Vec<End> =
            messages.iter().map(|(message, time)| end(number, rank, *message, *time)).collect::<Result<_, _>>()?;
        for (i, a) in ends.iter().enumerate() {
            let meets = |b: &End| a.place.start < b.place.end && b.place.start < a.place.end;
            if ends[..i].iter().any(|b| !(a.sends && b.sends) && meets(b)) {
                return Err("a message is received over another of its row".into());
            }
        }
        let mut begun = Begun { wanted: VecDeque::new(), sent: 0 };
        for end in ends {
            if !end.sends {
                begun.wanted.push_back(end);
                continue;
            }
            let letter = Letter { dtype: end.dtype, bytes: rank.memory[end.place].to_vec() };
            self.lines.entry((number, end.peer)).or_default().push_back(letter);
            begun.sent += 1;
        }
        self.begun[number] = Some(begun);
        Ok(())
    }

    /// A rank takes what there is for it.
    fn receive(&mut self, number: usize, rank: &mut Rank<'_>) -> Result<bool, String> {
        let Some(begun) = &mut self.begun[number] else { return Ok(false) };
        let (mut left, mut taken) = (VecDeque::new(), vec![]);
        for end in std::mem::take(&mut begun.wanted) {
            let Some(letter) = self.lines.get_mut(&(end.peer, number)).and_then(VecDeque::pop_front) else {
                left.push_back(end);
                continue;
            };
            if (letter.dtype, letter.bytes.len()) != (end.dtype, end.place.len()) {
                return Err("a message is not what its receiver takes".into());
            }
            rank.memory[end.place].copy_from_slice(&letter.bytes);
            taken.push(end.peer);
        }
        begun.wanted = left;
        for peer in &taken {
            if let Some(sender) = &mut self.begun[*peer] {
                sender.sent -= 1;
            }
        }
        Ok(!taken.is_empty())
    }
}

fn end(number: usize, rank: &Rank<'_>, message: u32, time: u64) -> Result<End, String> {
    let program = rank.program;
    let message = program.messages.get(message as usize).ok_or("no such message")?;
    let buffer = program.buffers.get(message.view.buffer.index()).ok_or("a message of no buffer")?;
    let (mesh, axis) = (&program.mesh, message.axis.index());
    if axis >= mesh.rank_axes().len() || message.peer >= mesh.size(message.axis) {
        return Err("a message for nobody".into());
    }
    let mut coordinates = rank.coordinates.clone();
    coordinates[axis] = message.peer;
    let peer = mesh.rank(&coordinates) as usize;
    if peer == number {
        return Err("a message to itself".into());
    }
    let place = rank.place(&message.view, time, buffer.dtype)?;
    if place.len() as u64 != message.view.bytes || time >= mesh.microbatches() {
        return Err("a message of half an element, or of no micro-batch".into());
    }
    Ok(End { sends: message.sends, peer, dtype: buffer.dtype, place })
}
