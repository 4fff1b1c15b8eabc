//! Why a run of several ranks ends early, the same on all ranks.

use crate::wire::Fields;
use std::fmt;

/// The first failure of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The rank that failed.
    pub rank: u64,
    /// What happened to it.
    pub cause: Cause,
    /// What it did, as far as the others know.
    pub place: Place,
    /// Its own words; empty if it could say nothing.
    pub message: String,
}

/// What happened to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// It said that it failed.
    Reported,
    /// Its process ended without a word.
    Died,
    /// Its process is there, or its machine was, and does nothing.
    Stopped,
    /// It ended well while others needed it.
    Left,
    /// It sent what a rank of this program does not send.
    Strange,
}

/// What a rank does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// The step, from 0, if one runs.
    pub step: Option<u64>,
    /// The call, in words; empty if it is in none.
    pub call: String,
}

/// Bytes of a text on the wire, at most.
const MOST: usize = 16 << 10;
/// A step that is none.
const NONE: u64 = u64::MAX;

/// For people, who count steps from 1.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: ", self.rank)?;
        if let Some(step) = self.place.step {
            write!(f, "step {}: ", step + 1)?;
        }
        f.write_str(&self.told())
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// What happened, without the rank and where it was.
    pub fn what(&self) -> String {
        match self.cause {
            Cause::Reported => self.message.clone(),
            Cause::Died => "its process ended without a word".to_string(),
            Cause::Stopped => "its process has stopped, or cannot be reached".to_string(),
            Cause::Left => format!("its process has ended, and others still need it{}", self.message),
            Cause::Strange => format!("it sent what means nothing{}", self.message),
        }
    }

    /// What happened, in which call.
    pub fn told(&self) -> String {
        let is_silent = matches!(self.cause, Cause::Died | Cause::Stopped);
        match &self.place.call[..] {
            "" if is_silent => format!("between two calls: {}", self.what()),
            "" => self.what(),
            call => format!("{call}: {}", self.what()),
        }
    }

    /// Its form on the wire.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.rank.to_le_bytes().to_vec();
        bytes.push(self.cause as u8);
        bytes.extend(self.place.bytes());
        push_text(&mut bytes, &self.message);
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Failure> {
        let mut fields = Fields(bytes);
        let rank = fields.number()?;
        let causes = [Cause::Reported, Cause::Died, Cause::Stopped, Cause::Left, Cause::Strange];
        let [cause] = fields.array()?;
        let cause = causes.into_iter().find(|known| *known as u8 == cause)?;
        Some(Failure { rank, cause, place: Place::take(&mut fields)?, message: text(&mut fields)? })
    }
}

impl Place {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.step.unwrap_or(NONE).to_le_bytes().to_vec();
        push_text(&mut bytes, &self.call);
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Place> {
        Place::take(&mut Fields(bytes))
    }

    fn take(fields: &mut Fields<'_>) -> Option<Place> {
        let step = Some(fields.number()?).filter(|step| *step != NONE);
        Some(Place { step, call: text(fields)? })
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text.as_bytes()[..text.len().min(MOST)];
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
}

fn text(fields: &mut Fields<'_>) -> Option<String> {
    let length = usize::try_from(fields.number()?).ok().filter(|length| *length <= MOST)?;
    Some(String::from_utf8_lossy(fields.bytes(length)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_gives_back_what_it_took() {
        let place = Place { step: Some(6), call: "all_reduce".to_string() };
        let failure = Failure { rank: 3, cause: Cause::Died, place: place.clone(), message: String::new() };
        assert_eq!(failure.to_string(), "rank 3: step 7: all_reduce: its process ended without a word");
        assert_eq!(Failure::read(&failure.bytes()), Some(failure.clone()));
        let long = Failure { message: "é".repeat(MOST), cause: Cause::Reported, ..failure };
        assert!(Failure::read(&long.bytes()).is_some_and(|read| read.message.len() <= MOST));
        assert_eq!(Place::read(&Place::default().bytes()), Some(Place::default()));
        let bytes = long.bytes();
        for cut in [0, 7, 8, 9, 16, 20, bytes.len() - 1] {
            assert_eq!(Failure::read(&bytes[..cut]), None, "{cut}");
        }
        let mut huge = place.bytes();
        huge[8..16].fill(0xff);
        assert_eq!(Place::read(&huge), None);
    }
}
