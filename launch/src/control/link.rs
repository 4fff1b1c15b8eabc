//! One connection between rank 0 and another rank: a thread that reads, and one that gives signs of
//! life and tells of failures. What is sent is cut into small frames, so that none of that waits
//! for long behind large data.

use super::failure::{Cause, Failure, Place};
use super::state::{Message, Shared};
use crate::wire::{Fields, is_wait};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of data in a frame, at most.
const CHUNK: usize = 256 << 10;
/// Bytes of a frame, at most.
const MOST: usize = CHUNK + 64;
/// For how long a frame may still be written after a failure.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The kinds of frames.
const ALIVE: u8 = 1;
const DATA: u8 = 2;
const FAILED: u8 = 3;
const GOODBYE: u8 = 4;

/// A connection to another rank.
#[derive(Debug)]
pub struct Link {
    /// That rank.
    pub peer: u64,
    writer: Mutex<TcpStream>,
}

impl Link {
    /// The link over `stream`, and the stream to read from.
    pub fn new(peer: u64, stream: TcpStream, tick: Duration) -> io::Result<(Link, TcpStream)> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(tick))?;
        stream.set_write_timeout(Some(tick))?;
        let reader = stream.try_clone()?;
        Ok((Link { peer, writer: Mutex::new(stream) }, reader))
    }

    /// Sends `parts`, one after another, as message `number` of a call of that kind.
    pub fn send(&self, shared: &Shared, call: u8, number: u64, parts: &[&[u8]]) -> io::Result<()> {
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let head = [&[call][..], &number.to_le_bytes(), &total.to_le_bytes()].concat();
        let chunks = parts.iter().flat_map(|part| part.chunks(CHUNK)).map(Some);
        let mut chunks = chunks.chain((total == 0).then_some(None));
        chunks.try_for_each(|chunk| self.frame(shared, DATA, &[&head, chunk.unwrap_or_default()]))
    }

    /// No data in either direction any more.
    pub fn close(&self, how: Shutdown) {
        // It may be closed already.
        let _ = self.writer.lock().unwrap_or_else(PoisonError::into_inner).shutdown(how);
    }

    fn frame(&self, shared: &Shared, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut head = vec![kind];
        head.extend((length as u32).to_le_bytes());
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut since_failure = None;
        for mut bytes in [&head[..]].into_iter().chain(parts.iter().copied()) {
            while !bytes.is_empty() {
                match writer.write(bytes) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(count) => bytes = &bytes[count..],
                    Err(e) if is_wait(&e) => {
                        if shared.is_over() && since_failure.get_or_insert_with(Instant::now).elapsed() > LAST_WORDS {
                            return Err(ErrorKind::TimedOut.into());
                        }
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }
}

/// Starts the two threads of link `index`.
pub fn start(shared: &Arc<Shared>, index: usize, reader: TcpStream) -> io::Result<()> {
    let peer = shared.links[index].peer;
    let (reads, gives) = (shared.clone(), shared.clone());
    let name = |what: &str| thread::Builder::new().name(format!("{what} rank {peer}"));
    name("from").spawn(move || read(&reads, index, reader))?;
    name("to").spawn(move || give_signs(&gives, index))?;
    Ok(())
}

/// Gives signs of life until there is a failure to tell, or the run ends.
fn give_signs(shared: &Shared, index: usize) {
    let link = &shared.links[index];
    loop {
        let sign = shared.next_sign();
        let sent = match &sign {
            Sign::Alive(place) => link.frame(shared, ALIVE, &[&place.bytes()]),
            Sign::Failed(failure) => link.frame(shared, FAILED, &[&failure.bytes()]),
            Sign::Goodbye => link.frame(shared, GOODBYE, &[]),
            Sign::Nothing => Ok(()),
        };
        let is_last = !matches!(sign, Sign::Alive(_));
        // Who cannot be written to is missed by the thread that reads.
        if is_last || sent.is_err() {
            if is_last {
                link.close(Shutdown::Write);
            }
            return shared.signed(index);
        }
    }
}

/// What is to be told next.
pub enum Sign {
    Alive(Place),
    Failed(Failure),
    Goodbye,
    Nothing,
}

/// Reads until the other side ends or fails.
fn read(shared: &Shared, index: usize, mut stream: TcpStream) {
    let mut incoming = None;
    let ended = loop {
        if let Err(ended) = read_frame(shared, index, &mut stream, &mut incoming) {
            break ended;
        }
    };
    let message = String::new();
    match ended {
        Ended::Closed => shared.lost(index, Cause::Died, message),
        Ended::Silent => shared.lost(index, Cause::Stopped, message),
        Ended::Strange(what) => shared.lost(index, Cause::Strange, format!(": {what}")),
        Ended::Over => {}
    }
    shared.ended(index);
}

enum Ended {
    Closed,
    Silent,
    Strange(&'static str),
    /// This side has ended.
    Over,
}

/// A message of which more is to come.
struct Incoming {
    message: Message,
    total: usize,
}

fn read_frame(shared: &Shared, index: usize, stream: &mut TcpStream, incoming: &mut Option<Incoming>) -> Result<(), Ended> {
    let mut head = [0; 5];
    fill(shared, stream, &mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST {
        return Err(Ended::Strange("a frame of too many bytes"));
    }
    let mut bytes = vec![0; length];
    fill(shared, stream, &mut bytes)?;
    match kind {
        ALIVE => shared.is_at(index, Place::read(&bytes).ok_or(Ended::Strange("a sign of life"))?),
        FAILED => shared.fail(Failure::read(&bytes).ok_or(Ended::Strange("a failure"))?),
        GOODBYE => shared.said_goodbye(index),
        DATA => {
            let mut fields = Fields(&bytes);
            let head = (|| Some((fields.array()?, fields.number()?, fields.number()?)))();
            let Some(([call], number, total)) = head else { return Err(Ended::Strange("data without a head")) };
            let total = usize::try_from(total).map_err(|_| Ended::Strange("data of too many bytes"))?;
            let more = incoming.get_or_insert_with(|| Incoming { message: Message { call, number, bytes: vec![] }, total });
            let same = (more.message.call, more.message.number, more.total) == (call, number, total);
            if !same || more.message.bytes.len() + fields.0.len() > total {
                return Err(Ended::Strange("data that do not belong together"));
            }
            more.message.bytes.extend_from_slice(fields.0);
            if let Some(whole) = incoming.take_if(|more| more.message.bytes.len() == total) {
                shared.received(index, whole.message);
            }
        }
        _ => return Err(Ended::Strange("a frame of no kind")),
    }
    Ok(())
}

/// Fills `bytes`; each read waits for a tick at most. A tick counts as one, however long this
/// process was itself stopped in it.
fn fill(shared: &Shared, stream: &mut TcpStream, bytes: &mut [u8]) -> Result<(), Ended> {
    let (mut done, mut silent) = (0, 0);
    while done < bytes.len() {
        match stream.read(&mut bytes[done..]) {
            Ok(0) => return Err(Ended::Closed),
            Ok(count) => (done, silent) = (done + count, 0),
            Err(e) if is_wait(&e) => {
                silent += u32::from(e.kind() != ErrorKind::Interrupted);
                if shared.has_closed() {
                    return Err(Ended::Over);
                }
                if silent > shared.settings.ticks() {
                    return Err(Ended::Silent);
                }
            }
            Err(_) => return Err(Ended::Closed),
        }
    }
    Ok(())
}
