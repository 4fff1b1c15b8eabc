//! The first meeting of all ranks of a run: rank 0 waits at an address, the others connect, each
//! side proves that it knows the key, and all agree on what they run. Rank 0 hands a few bytes to
//! all, and each rank gets its [`Control`].
//!
//! Who cannot prove that it knows the key is no rank, whatever it says. Who knows the key and wants
//! something else, or a place that is taken, is sent away with words; the meeting goes on, and if
//! its rank is missing at the end, rank 0 says what it wanted.

mod guest;
mod host;

use crate::control::{Control, Secret, Settings};
use crate::environment::RENDEZVOUS_KEY;
use crate::key::{BYTES, FEWEST, Key};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The most bytes that rank 0 can hand to all.
pub const MOST_HANDED: usize = 4096;

/// A rank's wish to meet the others.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// Its number.
    pub rank: u64,
    /// How many ranks there are.
    pub world_size: u64,
    /// The key that all share. Empty it is good for ranks of one machine only, and lets any process
    /// of that machine take the place of one that has not come yet.
    pub key: Key,
    /// The hash of what the rank wants to run.
    pub plans: [u8; BYTES],
    /// For how long it waits for the others.
    pub timeout: Duration,
    /// Those of the connections that follow.
    pub settings: Settings,
    /// Once it is not 0, such as the number of a signal, the rank waits no longer.
    pub stop: Arc<AtomicI32>,
}

/// The outcome of a meeting.
#[derive(Debug)]
pub struct Met {
    /// This rank's end of what holds the ranks together.
    pub control: Control,
    /// The bytes that rank 0 has handed to all.
    pub handed: Vec<u8>,
}

impl Rendezvous {
    /// Meets the other ranks; rank 0 waits at `address` (`HOST:PORT`), and hands `hand` to all.
    ///
    /// # Errors
    /// If ranks do not come in time, disagree or have other keys, or if the address cannot be used.
    pub fn meet(&self, address: &str, hand: &[u8]) -> Result<Met, String> {
        if self.world_size == 1 {
            return Ok(Met { control: Control::alone(), handed: hand.to_vec() });
        }
        if self.rank > 0 {
            return guest::join(self, &self.resolve(address)?, address);
        }
        self.host(self.bind(address)?, hand)
    }

    /// As [`Rendezvous::meet`] for rank 0, at a listener that is there already.
    ///
    /// # Errors
    /// As [`Rendezvous::meet`].
    pub fn host(&self, listener: TcpListener, hand: &[u8]) -> Result<Met, String> {
        let address = listener.local_addr().map_err(|e| format!("the address of the rendezvous is unknown: {e}"))?;
        self.allow(&[address])?;
        host::gather(self, listener, hand)
    }

    /// A listener for rank 0 at `address`.
    ///
    /// # Errors
    /// If the address is none of this machine, is in use, or is open to others without a key.
    pub fn bind(&self, address: &str) -> Result<TcpListener, String> {
        let addresses = self.resolve(address)?;
        TcpListener::bind(&addresses[..]).map_err(|e| format!("rank 0 cannot wait for the other ranks at {address}: {e}"))
    }

    /// Whether the wait is to end.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    /// The end of the run that drew `session`, over its links.
    fn control(&self, session: [u8; BYTES], links: Vec<(u64, TcpStream)>) -> Result<Control, String> {
        let secret = Secret { key: self.key.clone(), session };
        let made = Control::new(self.rank, self.world_size, self.settings, secret, links);
        made.map_err(|e| format!("rank {} cannot hold its connections: {e}", self.rank))
    }

    /// The addresses of `HOST:PORT`, if the key is good enough for them.
    fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>, String> {
        let resolved = address.to_socket_addrs();
        let found: Vec<_> = resolved.map_err(|e| format!("`{address}` is no HOST:PORT of a rendezvous: {e}"))?.collect();
        if found.is_empty() {
            return Err(format!("`{address}` has no address"));
        }
        self.allow(&found)?;
        Ok(found)
    }

    /// Refuses addresses that others reach, but for those who have a key that nobody guesses.
    fn allow(&self, addresses: &[SocketAddr]) -> Result<(), String> {
        match addresses.iter().find(|address| !address.ip().is_loopback()) {
            Some(open) if self.key.len() < FEWEST => {
                let reason = if self.key.is_empty() { "needs a key".to_string() } else { "needs a longer key".to_string() };
                let help = format!("set {RENDEZVOUS_KEY} to the same text of {FEWEST} bytes or more on all ranks");
                Err(format!("the rendezvous at {open}, which other machines may reach, {reason}: {help}"))
            }
            _ => Ok(()),
        }
    }
}

/// Why a rank that is to end does not meet the others.
const STOPPED: &str = "the end was asked for before all ranks had come";

/// The beginning of a hash, for people.
fn short(hash: &[u8; BYTES]) -> String {
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `ranks 2, 3 and 7`.
fn ranks_text(ranks: &[u64]) -> String {
    match ranks {
        [] => "no rank".to_string(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u64::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}
