//! What holds the ranks of a run together once they have met: a star around rank 0, over which they
//! gather bytes, and learn within a second that one of them has failed, or was killed; within
//! [`Settings::silence`] that one was stopped.
//!
//! Failures are values, the first is the same on all ranks but where two happen at once, and every
//! call ends with it. A rank that ends well says goodbye.

mod failure;
mod link;
mod state;

pub use failure::{Cause, Failure, Place};

use crate::key::{BYTES, Key};
use link::Link;
use state::{Message, Shared};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The times of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A rank that gives no sign of life for so long has stopped.
    pub silence: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { silence: Duration::from_secs(4) }
    }
}

impl Settings {
    /// Reads wait for so long at a time.
    fn tick(self) -> Duration {
        (self.silence / 16).clamp(Duration::from_millis(5), Duration::from_millis(250))
    }

    /// Ticks of silence.
    fn ticks(self) -> u32 {
        self.silence.as_millis().div_ceil(self.tick().as_millis()) as u32
    }

    /// Between two signs of life.
    fn beat(self) -> Duration {
        self.tick()
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// For how long the last words of a rank may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One rank's end.
#[derive(Debug)]
pub struct Control {
    world_size: u64,
    secret: Secret,
    here: IpAddr,
    shared: Arc<Shared>,
    /// Calls so far; held during a call, as they come in the same order on all ranks.
    calls: Mutex<u64>,
}

/// What only the ranks of one run know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secret {
    /// Their key.
    pub key: Key,
    /// The number of the run, which rank 0 has drawn.
    pub session: [u8; BYTES],
}

/// The kinds of calls.
#[derive(Debug, Clone, Copy)]
enum Call {
    AllGather = 1,
    Broadcast = 2,
    Barrier = 3,
    Gather = 4,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::AllGather => "all_gather",
            Call::Broadcast => "broadcast",
            Call::Barrier => "barrier",
            Call::Gather => "gather",
        }
    }
}

impl Control {
    /// The end of `rank` over its links, each with the rank at the other end: of rank 0 in the
    /// order of ranks, of others to rank 0.
    pub(crate) fn new(
        rank: u64,
        world_size: u64,
        settings: Settings,
        secret: Secret,
        links: Vec<(u64, TcpStream)>,
    ) -> io::Result<Control> {
        let here = links.first().map_or(Ok(LOCALHOST), |(_, stream)| stream.local_addr().map(|address| address.ip()))?;
        let made = links.into_iter().map(|(peer, stream)| Link::new(peer, stream, settings.tick()));
        let (links, readers): (Vec<Link>, Vec<TcpStream>) = made.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        let shared = Arc::new(Shared::new(rank, settings, links));
        let control = Control { world_size, secret, here, shared, calls: Mutex::new(0) };
        for (index, reader) in readers.into_iter().enumerate() {
            link::start(&control.shared, index, reader)?;
        }
        Ok(control)
    }

    /// The end of the only rank.
    pub fn alone() -> Control {
        let shared = Arc::new(Shared::new(0, Settings::default(), vec![]));
        Control { world_size: 1, secret: Secret::default(), here: LOCALHOST, shared, calls: Mutex::new(0) }
    }

    /// Its number.
    pub fn rank(&self) -> u64 {
        self.shared.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u64 {
        self.world_size
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The address of this machine that other ranks reach.
    pub(crate) fn here(&self) -> IpAddr {
        self.here
    }

    /// Says what this rank does from now on, so that others can name it.
    pub fn at(&self, place: Place) {
        self.shared.set_place(place);
    }

    /// The bytes of every rank, in their order; each has `most` at most.
    ///
    /// # Errors
    /// The first failure of a rank; a rank that is in another call, or has too many bytes.
    pub fn all_gather(&self, bytes: &[u8], most: u64) -> Result<Vec<Vec<u8>>, Failure> {
        self.call(Call::AllGather, bytes, most)
    }

    /// The bytes of every rank for rank 0, in their order; each has `most` at most. The others get
    /// nothing, and do not wait.
    ///
    /// # Errors
    /// As [`Control::all_gather`].
    pub fn gather(&self, bytes: &[u8], most: u64) -> Result<Vec<Vec<u8>>, Failure> {
        self.call(Call::Gather, bytes, most)
    }

    /// The bytes of rank 0, `most` at most; those of others are not looked at.
    ///
    /// # Errors
    /// As [`Control::all_gather`].
    pub fn broadcast(&self, bytes: &[u8], most: u64) -> Result<Vec<u8>, Failure> {
        let own = if self.rank() == 0 { bytes } else { &[] };
        Ok(self.call(Call::Broadcast, own, most)?.swap_remove(0))
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As [`Control::all_gather`].
    pub fn barrier(&self) -> Result<(), Failure> {
        self.call(Call::Barrier, &[], 0).map(drop)
    }

    /// This rank cannot go on: all ranks get `message`, or what was the first failure, and so does
    /// every call that follows. Returns when those that can be told have been.
    pub fn fail(&self, message: impl Into<String>) -> Failure {
        let failure = self.shared.own(message.into());
        self.shared.fail(failure.clone());
        self.shared.all_told(LAST_WORDS);
        self.failure().unwrap_or(failure)
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure()
    }

    /// Whether there was a failure, or this rank is at its end as all others are.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Lets `heard` hear of the first failure, from a thread of its own, or at once if there was
    /// one already.
    pub fn watch(&self, heard: impl FnOnce(&Failure) + Send + 'static) {
        self.shared.watch(Box::new(heard));
    }

    /// Waits until all ranks have come here, and ends the connections; from then on it is no
    /// failure that a process ends.
    ///
    /// # Errors
    /// As [`Control::all_gather`].
    pub fn finish(&self) -> Result<(), Failure> {
        self.barrier()?;
        self.shared.leave(LAST_WORDS);
        Ok(())
    }

    fn call(&self, call: Call, own: &[u8], most: u64) -> Result<Vec<Vec<u8>>, Failure> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if own.len() as u64 > most {
            return Err(self.fail(format!("{} bytes are more than `{}` takes, which are {most}", own.len(), call.name())));
        }
        match self.rank() {
            0 => self.lead(call, *calls, own, most),
            _ => self.take_part(call, *calls, own, most),
        }
    }

    /// Rank 0's part: it takes from all, and gives to all.
    fn lead(&self, call: Call, number: u64, own: &[u8], most: u64) -> Result<Vec<Vec<u8>>, Failure> {
        let mut all = vec![own.to_vec()];
        for index in 0..self.shared.links.len() {
            let bytes = self.next(index, call, number)?;
            if bytes.len() as u64 > most {
                let (rank, name) = (self.shared.links[index].peer, call.name());
                return Err(self.fail(format!("rank {rank} has {} bytes for `{name}`, more than {most}", bytes.len())));
            }
            all.push(bytes);
        }
        if matches!(call, Call::Gather) {
            return Ok(all);
        }
        let lengths: Vec<u8> = all.iter().flat_map(|part| (part.len() as u64).to_le_bytes()).collect();
        let parts: Vec<&[u8]> = [&lengths[..]].into_iter().chain(all.iter().map(Vec::as_slice)).collect();
        for (index, link) in self.shared.links.iter().enumerate() {
            if link.send(&self.shared, call as u8, number, &parts).is_err() {
                return Err(self.shared.failure_of(index, call.name()));
            }
        }
        Ok(all)
    }

    /// The part of another rank.
    fn take_part(&self, call: Call, number: u64, own: &[u8], most: u64) -> Result<Vec<Vec<u8>>, Failure> {
        if self.shared.links[0].send(&self.shared, call as u8, number, &[own]).is_err() {
            return Err(self.shared.failure_of(0, call.name()));
        }
        if matches!(call, Call::Gather) {
            return Ok(vec![]);
        }
        let bytes = self.next(0, call, number)?;
        let strange = || self.fail(format!("what rank 0 gives in `{}` means nothing", call.name()));
        let (lengths, mut rest) = bytes.split_at_checked(8 * self.world_size as usize).ok_or_else(strange)?;
        let mut all = vec![];
        for length in lengths.as_chunks::<8>().0 {
            let length = u64::from_le_bytes(*length);
            let part = if length > most { None } else { rest.split_at_checked(length as usize) };
            let (part, others) = part.ok_or_else(strange)?;
            all.push(part.to_vec());
            rest = others;
        }
        if rest.is_empty() { Ok(all) } else { Err(strange()) }
    }

    /// The bytes that come next over link `index`, which must be for this call.
    fn next(&self, index: usize, call: Call, number: u64) -> Result<Vec<u8>, Failure> {
        let Message { call: its, number: its_number, bytes } = self.shared.next(index, call.name())?;
        if (its, its_number) != (call as u8, number) {
            let (peer, own) = (self.shared.links[index].peer, self.rank());
            let known =
                [Call::AllGather, Call::Broadcast, Call::Barrier, Call::Gather].into_iter().find(|known| *known as u8 == its);
            let its = known.map_or("none", Call::name);
            let name = call.name();
            return Err(
                self.fail(format!("rank {own} is in call {number}, `{name}`, and rank {peer} in call {its_number}, `{its}`"))
            );
        }
        Ok(bytes)
    }
}

/// A rank that has not said goodbye is missed by the others. Of a failure they hear first.
impl Drop for Control {
    fn drop(&mut self) {
        if self.failure().is_some() {
            self.shared.all_told(LAST_WORDS);
        }
        self.shared.close();
        self.shared.links.iter().for_each(|link| link.close(Shutdown::Both));
    }
}
