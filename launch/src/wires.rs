//! Connections between each two ranks, for what they send to one another without rank 0. They are
//! laid by all ranks together, and each end proves that it is of this run.

use crate::control::{Control, Failure};
use crate::handshake::door::{Arrived, Door};
use crate::handshake::{Answer, Claim, PATIENCE, Word, knock};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// For how long laying them may take.
const LONGEST: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of an address, at most.
const ADDRESS: u64 = 100;

/// A connection to every other rank, in their order.
///
/// # Errors
/// The failure of a rank, on all of them.
pub fn lay(control: &Control) -> Result<Vec<(u64, TcpStream)>, Failure> {
    let listener = TcpListener::bind((control.here(), 0)).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = listener.map_err(|e| control.fail(format!("it cannot listen to other ranks: {e}")))?;
    let addresses = control.all_gather(address.to_string().as_bytes(), ADDRESS)?;
    let until = Instant::now() + LONGEST;
    let mut wires = vec![];
    // Rank 0 only listens, and who has reached all before it listens too, so nobody waits in vain.
    for (rank, address) in (0..control.rank()).zip(&addresses) {
        let stream = reach(control, address, until);
        wires.push((rank, stream.map_err(|why| control.fail(format!("it does not reach rank {rank}: {why}")))?));
    }
    let door = Door::new(listener, control.secret().key.clone());
    let mut door = door.map_err(|e| control.fail(format!("it cannot listen to other ranks: {e}")))?;
    while wires.len() as u64 + 1 < control.world_size() {
        for guest in door.look() {
            let rank = guest.claim().rank;
            wires.extend(let_in(control, &door, guest, &wires).map(|stream| (rank, stream)));
        }
        if let Some(failure) = control.failure() {
            return Err(failure);
        }
        if Instant::now() > until {
            return Err(control.fail("other ranks do not reach it"));
        }
        thread::sleep(PAUSE);
    }
    wires.sort_by_key(|(rank, _)| *rank);
    let prepared = wires.iter().try_for_each(|(_, stream)| prepare(stream));
    prepared.map_err(|e: io::Error| control.fail(format!("its connections fail: {e}")))?;
    control.barrier()?;
    Ok(wires)
}

/// What ends a handshake ends no wait for another rank, however long that one computes.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)
}

fn reach(control: &Control, address: &[u8], until: Instant) -> Result<TcpStream, String> {
    let address = String::from_utf8_lossy(address);
    let address: SocketAddr = address.parse().map_err(|_| format!("`{address}` is no address"))?;
    let claim = Claim { rank: control.rank(), world_size: control.world_size(), about: control.secret().session };
    let mut last = String::new();
    while Instant::now() < until {
        if let Some(failure) = control.failure() {
            return Err(failure.to_string());
        }
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|e| e.to_string());
        let answered = stream.and_then(|mut stream| Ok((knock(&mut stream, &control.secret().key, claim, until)?, stream)));
        match answered {
            Ok((Answer { word: Word::Welcome, .. }, stream)) => return Ok(stream),
            Ok(_) => last = "it was sent away".to_string(),
            Err(why) => last = why,
        }
        thread::sleep(PAUSE);
    }
    Err(last)
}

/// The stream of a guest, if it is a rank of this run behind this one that has not come yet.
fn let_in(control: &Control, door: &Door, guest: Arrived, wires: &[(u64, TcpStream)]) -> Option<TcpStream> {
    let (claim, world_size, about) = (guest.claim(), control.world_size(), control.secret().session);
    let expected = (control.rank() + 1..world_size).contains(&claim.rank) && wires.iter().all(|(rank, _)| *rank != claim.rank);
    let word = if (claim.world_size, claim.about) != (world_size, about) {
        Word::About
    } else if expected {
        Word::Welcome
    } else {
        Word::Taken
    };
    let stream = door.answer(guest, &Answer { word, world_size, about, waits: Duration::ZERO });
    stream.filter(|_| word == Word::Welcome)
}
