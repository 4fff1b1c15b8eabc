//! What the tests of meetings share: ranks as threads, at a port that is free.
#![allow(dead_code, reason = "each test crate uses some of what is here")]

use shardc_launch::control::{Control, Settings};
use shardc_launch::key::Key;
use shardc_launch::rendezvous::{Met, Rendezvous};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The key of the tests.
pub const KEY: &str = "the key of all good ranks";

/// The plans of the tests.
pub const PLANS: [u8; 32] = [7; 32];

/// A rank's wish, with a timeout that no good test reaches.
pub fn wish(rank: u64, world_size: u64) -> Rendezvous {
    let settings = Settings { silence: Duration::from_secs(2) };
    let (key, timeout) = (Key::of_text(KEY), Duration::from_secs(30));
    Rendezvous { rank, world_size, key, plans: PLANS, timeout, settings, stop: Arc::default() }
}

/// A free port of this machine.
pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

/// A rank that meets the others in a thread of its own.
pub fn join(wish: Rendezvous, address: SocketAddr) -> JoinHandle<Result<Met, String>> {
    thread::spawn(move || wish.meet(&address.to_string(), b""))
}

/// The controls of `world_size` ranks that have met.
pub fn met(world_size: u64) -> Vec<Control> {
    let (listener, address) = listener();
    let others: Vec<_> = (1..world_size).map(|rank| join(wish(rank, world_size), address)).collect();
    let first = wish(0, world_size).host(listener, b"id").expect("they meet");
    let others = others.into_iter().map(|other| other.join().expect("no panic").expect("it meets"));
    [first].into_iter().chain(others).map(|met| met.control).collect()
}

/// Runs `f` on each in a thread of its own.
pub fn on_each<R: Send>(controls: Vec<Control>, f: impl Fn(Control) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = controls.into_iter().map(|control| scope.spawn(move || f(control))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
