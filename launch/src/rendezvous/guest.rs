//! The side of all ranks but rank 0: they connect again and again until rank 0 is there.

use super::host::{GIVEN_UP, GO};
use super::{MOST_HANDED, Met, Rendezvous, STOPPED, short};
use crate::environment::RENDEZVOUS_KEY;
use crate::handshake::{Answer, Claim, PATIENCE, Word, knock};
use crate::key::BYTES;
use crate::wire::{is_wait, read_by};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Between two attempts, at first and at most.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// For how long after its own end rank 0 may take to say who is missing.
const GRACE: Duration = Duration::from_secs(2);

pub fn join(wish: &Rendezvous, addresses: &[SocketAddr], named: &str) -> Result<Met, String> {
    let Rendezvous { rank, world_size, plans, .. } = *wish;
    let until = Instant::now() + wish.timeout;
    let (mut pause, mut addresses) = (PAUSE, addresses.iter().cycle());
    let mut last;
    loop {
        let Some(address) = addresses.next() else { return Err(format!("`{named}` has no address")) };
        match attempt(wish, address, until) {
            Ok((stream, answer)) => match answer.word {
                Word::Welcome => return wait(wish, stream, answer.waits.min(wish.timeout) + GRACE),
                Word::Key => {
                    let help = format!("set {RENDEZVOUS_KEY} to the same text on all ranks");
                    return Err(format!("rank {rank} does not have the key of rank 0 at {named}: {help}"));
                }
                Word::WorldSize => {
                    return Err(format!("rank {rank} is one of {world_size} ranks, and rank 0 of {}", answer.world_size));
                }
                Word::About => {
                    let (own, its) = (short(&plans), short(&answer.about));
                    return Err(format!("rank {rank} has plans {own}, and rank 0 has {its}: all ranks run the same job"));
                }
                Word::Taken => return Err(format!("another process is rank {rank} already")),
            },
            Err(why) => last = why,
        }
        if wish.is_stopped() {
            return Err(STOPPED.to_string());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = wish.timeout.as_secs_f64();
            return Err(format!("rank {rank} did not reach rank 0 at {named} within {seconds} s: {last}"));
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attempt(wish: &Rendezvous, address: &SocketAddr, until: Instant) -> Result<(TcpStream, Answer), String> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(address, left.min(PATIENCE)).map_err(|e| e.to_string())?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let claim = Claim { rank: wish.rank, world_size: wish.world_size, about: wish.plans };
    let answer = knock(&mut stream, &wish.key, claim, until)?;
    Ok((stream, answer))
}

/// Waits for the end of the meeting.
fn wait(wish: &Rendezvous, mut stream: TcpStream, longest: Duration) -> Result<Met, String> {
    let (rank, until) = (wish.rank, Instant::now() + longest);
    let wait = stream.set_read_timeout(Some(PAUSE));
    while wait.is_ok() && stream.peek(&mut [0]).is_err_and(|e| is_wait(&e)) && Instant::now() < until {
        if wish.is_stopped() {
            return Err(STOPPED.to_string());
        }
    }
    let heard = hear(&mut stream, until);
    let (session, handed) = heard.map_err(|e| format!("rank {rank} lost rank 0 before all ranks had come: {e}"))??;
    Ok(Met { control: wish.control(session, vec![(0, stream)])?, handed })
}

/// The number of the run and the bytes for all, or why rank 0 has given up.
type Heard = Result<([u8; BYTES], Vec<u8>), String>;

fn hear(stream: &mut TcpStream, until: Instant) -> io::Result<Heard> {
    let unknown = || io::Error::other("its words mean nothing");
    let (mut word, mut session) = ([0], [0; BYTES]);
    read_by(stream, &mut word, until)?;
    if word == [GO] {
        read_by(stream, &mut session, until)?;
    } else if word != [GIVEN_UP] {
        return Err(unknown());
    }
    let mut length = [0; 4];
    read_by(stream, &mut length, until)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_HANDED {
        return Err(unknown());
    }
    let mut bytes = vec![0; length];
    read_by(stream, &mut bytes, until)?;
    Ok(match word {
        [GO] => Ok((session, bytes)),
        _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
    })
}
