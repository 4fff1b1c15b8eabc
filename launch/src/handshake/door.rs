//! The host's side: many connections at once, in one thread. A connection that has proven nothing
//! gets a few seconds and the bytes of two texts, and is the first to go when there are too many;
//! no read or write waits.

use super::{ANSWER, Answer, Claim, HELLO, MAGIC, PATIENCE, Said, Word};
use crate::key::{BYTES, Key, random};
use crate::wire::{is_wait, write_by};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Connections that have proven nothing yet, at most. A good one needs two round trips, so it is
/// not among the oldest for long.
const MOST: usize = 256;
/// Connections taken at a time, before those that are there are looked at.
const EACH_TIME: usize = 64;

/// A listener and those who stand before it.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    key: Key,
    sessions: VecDeque<Session>,
}

/// A guest that has proven that it knows the key, and waits for an answer.
#[derive(Debug)]
pub struct Arrived {
    stream: TcpStream,
    said: Said,
}

#[derive(Debug)]
struct Session {
    stream: TcpStream,
    until: Instant,
    received: Vec<u8>,
    /// From the hello on.
    said: Option<Said>,
}

/// Where a session stands after a look.
enum State {
    Waits,
    Over,
    Proven,
}

impl Door {
    /// A door at `listener` for holders of `key`.
    pub fn new(listener: TcpListener, key: Key) -> io::Result<Door> {
        listener.set_nonblocking(true)?;
        Ok(Door { listener, key, sessions: VecDeque::new() })
    }

    /// Looks once who has come, and who of them has proven to know the key.
    pub fn look(&mut self) -> Vec<Arrived> {
        for _ in 0..EACH_TIME {
            match self.listener.accept() {
                Ok((stream, _)) => self.take(stream),
                // The queue is empty, or the machine has no handles left: then the oldest go.
                Err(e) if is_wait(&e) => break,
                Err(_) => {
                    self.sessions.drain(..self.sessions.len().div_ceil(2));
                    break;
                }
            }
        }
        let (mut arrived, mut waiting) = (vec![], VecDeque::new());
        for mut session in self.sessions.drain(..) {
            match session.look(&self.key) {
                State::Waits => waiting.push_back(session),
                State::Over => {}
                State::Proven => {
                    arrived.extend(session.said.map(|said| Arrived { stream: session.stream, said }));
                }
            }
        }
        self.sessions = waiting;
        arrived
    }

    /// The guest's stream, after it was given `answer`; `None` if it is gone.
    pub fn answer(&self, guest: Arrived, answer: &Answer) -> Option<TcpStream> {
        let Arrived { mut stream, said } = guest;
        let text = [&answer.bytes()[..], &said.proof(&self.key, Some(answer))].concat();
        // It fits into the empty buffers of the connection.
        stream.write_all(&text).ok()?;
        Some(stream)
    }

    fn take(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
            return;
        }
        if self.sessions.len() == MOST {
            self.sessions.pop_front();
        }
        let until = Instant::now() + PATIENCE;
        self.sessions.push_back(Session { stream, until, received: vec![], said: None });
    }
}

impl Arrived {
    /// The claim that it has made.
    pub fn claim(&self) -> Claim {
        self.said.claim
    }
}

impl Session {
    fn look(&mut self, key: &Key) -> State {
        loop {
            let wanted = if self.said.is_some() { BYTES } else { HELLO };
            let mut bytes = [0; HELLO];
            match self.stream.read(&mut bytes[..wanted - self.received.len()]) {
                Ok(0) => return State::Over,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(e) if is_wait(&e) => return if Instant::now() < self.until { State::Waits } else { State::Over },
                Err(_) => return State::Over,
            }
            // Who speaks another language is sent away at once.
            if self.said.is_none() && !MAGIC.starts_with(&self.received[..self.received.len().min(MAGIC.len())]) {
                return State::Over;
            }
            if self.received.len() < wanted {
                continue;
            }
            let received = std::mem::take(&mut self.received);
            match self.said {
                None => {
                    let (Some((claim, guest)), Ok(host)) = (Claim::read(&received), random()) else { return State::Over };
                    let challenge = [&MAGIC[..], &host].concat();
                    if self.stream.write_all(&challenge).is_err() {
                        return State::Over;
                    }
                    self.said = Some(Said { claim, guest, host });
                }
                Some(said) if said.proves(key, None, &received) => return State::Proven,
                Some(_) => {
                    self.refuse();
                    return State::Over;
                }
            }
        }
    }

    /// Says that the key is another.
    fn refuse(&mut self) {
        let answer = Answer { word: Word::Key, world_size: 0, about: [0; BYTES], waits: Duration::ZERO };
        let text = [&answer.bytes()[..], &[0; BYTES]].concat();
        debug_assert_eq!(text.len(), ANSWER + BYTES);
        // If it does not hear that, it sees the end of the connection.
        let _ = write_by(&mut self.stream, &text, Instant::now() + Duration::from_millis(1));
    }
}
