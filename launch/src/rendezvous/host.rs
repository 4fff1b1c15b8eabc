//! Rank 0's side: it waits until all are there, or says who is not.

use super::{MOST_HANDED, Met, Rendezvous, STOPPED, ranks_text, short};
use crate::handshake::door::{Arrived, Door};
use crate::handshake::{Answer, Word};
use crate::key::random;
use crate::wire::{is_wait, write_by};
use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The first byte of what ends the meeting.
pub const GO: u8 = 1;
pub const GIVEN_UP: u8 = 2;

/// Between two looks at the door.
const PAUSE: Duration = Duration::from_millis(2);
/// For how long a rank that is there may take to read the few bytes that end the meeting.
const READ: Duration = Duration::from_secs(1);

/// Those who have come.
struct Host<'a> {
    wish: &'a Rendezvous,
    until: Instant,
    here: BTreeMap<u64, TcpStream>,
    /// The wishes of ranks that were sent away.
    others: BTreeMap<u64, String>,
}

pub fn gather(wish: &Rendezvous, listener: TcpListener, hand: &[u8]) -> Result<Met, String> {
    if hand.len() > MOST_HANDED {
        return Err(format!("rank 0 has {} bytes for all ranks, more than {MOST_HANDED}", hand.len()));
    }
    let failed = |e: io::Error| format!("rank 0 cannot wait for the other ranks: {e}");
    let mut door = Door::new(listener, wish.key.clone()).map_err(failed)?;
    let until = Instant::now() + wish.timeout;
    let mut host = Host { wish, until, here: BTreeMap::new(), others: BTreeMap::new() };
    loop {
        for guest in door.look() {
            host.decide(&door, guest);
        }
        host.here.retain(|_, stream| is_silent(stream));
        if host.here.len() as u64 + 1 == wish.world_size {
            return host.go(hand);
        }
        if wish.is_stopped() {
            return Err(host.give_up(STOPPED.to_string()));
        }
        if Instant::now() >= until {
            let message = host.missing();
            return Err(host.give_up(message));
        }
        thread::sleep(PAUSE);
    }
}

impl Host<'_> {
    fn decide(&mut self, door: &Door, guest: Arrived) {
        let Rendezvous { world_size, plans, .. } = *self.wish;
        let claim = guest.claim();
        let rank = claim.rank;
        let is_rank = (1..world_size).contains(&rank);
        let word = if claim.world_size != world_size {
            Word::WorldSize
        } else if !is_rank || self.here.contains_key(&rank) {
            Word::Taken
        } else if claim.about != plans {
            Word::About
        } else {
            Word::Welcome
        };
        let wanted = match word {
            Word::WorldSize => Some(format!("was one of {} ranks, not of {world_size}", claim.world_size)),
            Word::About => Some(format!("came with plans {}, and rank 0 has {}", short(&claim.about), short(&plans))),
            _ => None,
        };
        if let Some(wanted) = wanted.filter(|_| is_rank) {
            self.others.insert(rank, wanted);
        }
        let waits = self.until.saturating_duration_since(Instant::now());
        let stream = door.answer(guest, &Answer { word, world_size, about: plans, waits });
        if let Some(stream) = stream.filter(|_| word == Word::Welcome) {
            self.here.insert(rank, stream);
        }
    }

    /// Ends the meeting: all are there.
    fn go(self, hand: &[u8]) -> Result<Met, String> {
        let session = random()?;
        let text = [&[GO][..], &session, &(hand.len() as u32).to_le_bytes(), hand].concat();
        let mut links = vec![];
        for (rank, mut stream) in self.here {
            let told = stream.set_nonblocking(false).and_then(|()| write_by(&mut stream, &text, Instant::now() + READ));
            told.map_err(|e| format!("rank {rank} left while the ranks met: {e}"))?;
            links.push((rank, stream));
        }
        Ok(Met { control: self.wish.control(session, links)?, handed: hand.to_vec() })
    }

    /// Who is missing, in words.
    fn missing(&self) -> String {
        let is_missing = |rank: &u64| !self.here.contains_key(rank);
        let missing: Vec<u64> = (1..self.wish.world_size).filter(is_missing).collect();
        let mut message = format!("{} did not come within {} s", ranks_text(&missing), self.wish.timeout.as_secs_f64());
        for (rank, wanted) in self.others.iter().filter(|(rank, _)| is_missing(rank)) {
            message.push_str(&format!("; rank {rank} {wanted}"));
        }
        message
    }

    /// Tells all who are there that the meeting is over.
    fn give_up(self, message: String) -> String {
        let cut = message.len().min(MOST_HANDED);
        let text = [&[GIVEN_UP][..], &(cut as u32).to_le_bytes(), &message.as_bytes()[..cut]].concat();
        for mut stream in self.here.into_values() {
            // Who does not hear it sees the end of the connection.
            let _ = stream.set_nonblocking(false).and_then(|()| write_by(&mut stream, &text, Instant::now() + READ));
        }
        message
    }
}

/// Whether a guest that waits is still there; it has nothing to say.
fn is_silent(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_err_and(|e| is_wait(&e))
}
