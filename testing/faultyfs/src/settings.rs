//! What a test asks for: which call has a fault, and which fault.

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// There is no space.
    Enospc,
    /// The device fails.
    Eio,
    /// A signal interrupts the call.
    Eintr,
    /// Half of the bytes are moved.
    Short,
    /// The process dies before the call.
    Kill,
    /// It dies once half of the bytes are moved.
    KillWithin,
    /// It dies behind the call.
    KillAfter,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Moves bytes, perhaps fewer than wanted.
    Bytes,
    /// Does its work or fails, and may be interrupted.
    Whole,
    /// The same, but is never interrupted: what changes names.
    Name,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes through.
    Passes,
    /// It fails with a code.
    Fails(How),
    /// It moves half of its bytes.
    IsShort,
    /// The process dies before it, once half of it is done, or behind it.
    Dies(How),
}

/// Which calls have which fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The first call that has it, from 1.
    pub at: u64,
    /// Whether all behind it have it too.
    pub forever: bool,
    /// Which fault.
    pub how: How,
}

impl How {
    /// The kinds by their names.
    pub const NAMES: [(&str, How); 7] = [
        ("enospc", How::Enospc),
        ("eio", How::Eio),
        ("eintr", How::Eintr),
        ("short", How::Short),
        ("kill", How::Kill),
        ("kill-within", How::KillWithin),
        ("kill-after", How::KillAfter),
    ];

    /// The kind of that name.
    pub fn of(name: &[u8]) -> Option<How> {
        How::NAMES.iter().find_map(|(own, how)| (own.as_bytes() == name).then_some(*how))
    }
}

impl Fault {
    /// What becomes of call `number`, from 1.
    pub fn fate(&self, number: u64, kind: Kind) -> Fate {
        let has_it = number == self.at || (self.forever && number > self.at);
        // A caller that tries again must come through at some time.
        let is_retry = self.how == How::Eintr && number.wrapping_sub(self.at) % 2 == 1;
        let fits = match self.how {
            How::Eintr => kind != Kind::Name,
            How::Short | How::KillWithin => kind == Kind::Bytes,
            How::Enospc | How::Eio | How::Kill | How::KillAfter => true,
        };
        match self.how {
            _ if !has_it || is_retry => Fate::Passes,
            // What cannot be done by half is done.
            How::KillWithin if !fits => Fate::Dies(How::KillAfter),
            _ if !fits => Fate::Passes,
            How::Enospc | How::Eio | How::Eintr => Fate::Fails(self.how),
            How::Short => Fate::IsShort,
            How::Kill | How::KillWithin | How::KillAfter => Fate::Dies(self.how),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(how: &str, forever: bool, kind: Kind) -> Vec<Fate> {
        let fault = Fault { at: 2, forever, how: How::of(how.as_bytes()).unwrap() };
        (1..=4).map(|number| fault.fate(number, kind)).collect()
    }

    #[test]
    fn one_call_or_all_behind_it_have_the_fault() {
        use Fate::{Dies, Fails, IsShort, Passes};
        let (eio, eintr) = (Fails(How::Eio), Fails(How::Eintr));
        assert_eq!(fates("eio", false, Kind::Name), [Passes, eio, Passes, Passes]);
        assert_eq!(fates("eio", true, Kind::Whole), [Passes, eio, eio, eio]);
        assert_eq!(fates("eintr", false, Kind::Bytes), [Passes, eintr, Passes, Passes]);
        assert_eq!(fates("eintr", true, Kind::Bytes), [Passes, eintr, Passes, eintr]);
        assert_eq!(fates("eintr", true, Kind::Name), [Passes; 4]);
        assert_eq!(fates("short", true, Kind::Bytes), [Passes, IsShort, IsShort, IsShort]);
        assert_eq!(fates("short", true, Kind::Whole), [Passes; 4]);
        assert_eq!(fates("kill-within", false, Kind::Whole)[1], Dies(How::KillAfter));
        assert_eq!(fates("kill-within", false, Kind::Bytes)[1], Dies(How::KillWithin));
        assert_eq!(How::of(b"ekil"), None);
    }
}
