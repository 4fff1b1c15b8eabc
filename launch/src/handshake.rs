//! How two processes show one another that they hold the same key: the guest says who it is, the
//! host answers with a number that is used once, each proves that it knows the key for both
//! numbers and all that was said. All texts have fixed lengths, and are read with a time limit.
//!
//! What follows on the connection is neither encrypted nor signed: the key keeps out who can open
//! connections, not who can change what others send.

pub mod door;

use crate::key::{BYTES, Key, random};
use crate::wire::{Fields, read_by, write_by};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The protocol and its version.
const MAGIC: [u8; 8] = *b"shardc\0\x01";
/// For how long a connection may take to be proven.
pub const PATIENCE: Duration = Duration::from_secs(5);

const HELLO: usize = MAGIC.len() + 16 + 2 * BYTES;
const CHALLENGE: usize = MAGIC.len() + BYTES;
const ANSWER: usize = 1 + 16 + BYTES;

/// The claim of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its rank.
    pub rank: u64,
    /// How many ranks it is one of.
    pub world_size: u64,
    /// The hash of what it wants to run or take part in.
    pub about: [u8; BYTES],
}

/// The words of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Word {
    /// The guest is in.
    Welcome,
    /// It does not know the key.
    Key,
    /// It is one of another number of ranks.
    WorldSize,
    /// It wants something else.
    About,
    /// Its rank is here already, or is none that a guest can have.
    Taken,
}

/// The answer of a host to a proof. All but [`Word::Key`] are proven themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// In a word.
    pub word: Word,
    /// How many ranks the host is one of.
    pub world_size: u64,
    /// The hash of what the host wants.
    pub about: [u8; BYTES],
    /// For how long the host is going to wait for others.
    pub waits: Duration,
}

impl Claim {
    fn bytes(&self) -> [u8; 16 + BYTES] {
        let mut bytes = [0; 16 + BYTES];
        bytes[..8].copy_from_slice(&self.rank.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[16..].copy_from_slice(&self.about);
        bytes
    }

    /// The claim and the number of a hello.
    fn read(hello: &[u8]) -> Option<(Claim, [u8; BYTES])> {
        let mut fields = Fields(hello);
        if fields.array() != Some(MAGIC) {
            return None;
        }
        let claim = Claim { rank: fields.number()?, world_size: fields.number()?, about: fields.array()? };
        Some((claim, fields.array()?))
    }
}

impl Answer {
    fn bytes(&self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[0] = self.word as u8;
        bytes[1..9].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[9..17].copy_from_slice(&(self.waits.as_millis() as u64).to_le_bytes());
        bytes[17..].copy_from_slice(&self.about);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Answer> {
        let mut fields = Fields(bytes);
        let word = match fields.array::<1>()? {
            [0] => Word::Welcome,
            [1] => Word::Key,
            [2] => Word::WorldSize,
            [3] => Word::About,
            [4] => Word::Taken,
            _ => return None,
        };
        let (world_size, waits) = (fields.number()?, Duration::from_millis(fields.number()?));
        Some(Answer { word, world_size, waits, about: fields.array()? })
    }
}

/// What both sides have said before the proofs.
#[derive(Debug, Clone, Copy)]
struct Said {
    claim: Claim,
    guest: [u8; BYTES],
    host: [u8; BYTES],
}

impl Said {
    /// The guest's proof, or the host's of its answer.
    fn proof(&self, key: &Key, answer: Option<&Answer>) -> [u8; BYTES] {
        self.with_parts(answer, |parts| key.proof(parts))
    }

    fn proves(&self, key: &Key, answer: Option<&Answer>, proof: &[u8]) -> bool {
        self.with_parts(answer, |parts| key.proves(parts, proof))
    }

    fn with_parts<R>(&self, answer: Option<&Answer>, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        let (claim, answered) = (self.claim.bytes(), answer.map(Answer::bytes));
        let role: &[u8] = if answer.is_some() { b"host " } else { b"guest" };
        f(&[&MAGIC, role, &self.guest, &self.host, &claim, answered.as_ref().map_or(&[], |bytes| bytes)])
    }
}

/// Makes `claim` to the host at the other end, by `deadline`.
///
/// # Errors
/// If the host does not answer as one does, or does not know the key.
pub fn knock(stream: &mut TcpStream, key: &Key, claim: Claim, deadline: Instant) -> Result<Answer, String> {
    let guest = random()?;
    let deadline = deadline.min(Instant::now() + PATIENCE);
    let hello = [&MAGIC[..], &claim.bytes(), &guest].concat();
    write_by(stream, &hello, deadline).map_err(|e| e.to_string())?;
    let mut challenge = [0; CHALLENGE];
    read_by(stream, &mut challenge, deadline).map_err(|e| e.to_string())?;
    let mut fields = Fields(&challenge);
    let (true, Some(host)) = (fields.array() == Some(MAGIC), fields.array()) else {
        return Err("what waits there is no rank of this version of shardc".to_string());
    };
    let said = Said { claim, guest, host };
    write_by(stream, &said.proof(key, None), deadline).map_err(|e| e.to_string())?;
    let mut answered = [0; ANSWER + BYTES];
    read_by(stream, &mut answered, deadline).map_err(|e| e.to_string())?;
    let (answer, proof) = answered.split_at(ANSWER);
    let answer = Answer::read(answer).ok_or("its answer means nothing")?;
    if answer.word != Word::Key && !said.proves(key, Some(&answer), proof) {
        return Err("it does not know the key of this run".to_string());
    }
    Ok(answer)
}
