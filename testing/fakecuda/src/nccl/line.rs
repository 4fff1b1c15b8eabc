//! A connection to where ranks of several processes meet. What comes is kept until the world is
//! looked at: whoever holds its lock may be sending.

use super::hub::{Heard, Member, Told};
use super::wire;
use crate::world::wake;
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a rank hears on the line of a number; nothing where the line is broken.
type Come = (u64, Option<(Member, Heard)>);

static COME: Mutex<VecDeque<Come>> = Mutex::new(VecDeque::new());

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection, closed with this value.
#[derive(Debug)]
pub struct Line {
    /// Its number in this process.
    pub number: u64,
    stream: Mutex<TcpStream>,
}

impl Line {
    /// A connection to a server.
    pub fn open(address: &str) -> Result<Arc<Line>, String> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let wrong = |e: std::io::Error| format!("no connection to the ranks at {address}: {e}");
        let parsed = address.parse().map_err(|e| format!("{address}: {e}"))?;
        let stream = TcpStream::connect_timeout(&parsed, CONNECT).map_err(wrong)?;
        stream.set_nodelay(true).map_err(wrong)?;
        let mut from = stream.try_clone().map_err(wrong)?;
        std::thread::spawn(move || {
            loop {
                let come = wire::read::<(Member, Heard)>(&mut from).ok();
                let is_end = come.is_none();
                COME.lock().unwrap_or_else(PoisonError::into_inner).push_back((number, come));
                wake();
                if is_end {
                    return;
                }
            }
        });
        Ok(Arc::new(Line { number, stream: Mutex::new(stream) }))
    }

    /// Sends what a rank tells; a line that is broken is heard of.
    pub fn tell(&self, member: &Member, told: &Told) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = wire::write(&mut *stream, &(member, told));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let _ = self.stream.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
    }
}

/// The next that has come on any line.
pub fn next() -> Option<Come> {
    COME.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// Whether anything has come.
pub fn has_come() -> bool {
    !COME.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}
