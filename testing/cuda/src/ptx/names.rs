//! What the names in an entry stand for: registers, constants, special registers, addresses.

use super::kinds::Kind;
use super::lanes::Guard;
use super::parse::Argument;
use super::text::number;
use std::collections::HashMap;

/// A register of numbers: where it is and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) at: usize,
    pub(super) bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Name {
    Number(Slot),
    Predicate(usize),
}

/// A value that differs between lanes, warps or blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    Thread,
    Lane,
    Warp,
    Block(usize),
    Blocks(usize),
    Threads,
    Parameter(usize),
    /// Bits of the lanes that are below, and so on.
    Lanes(LaneMask),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneMask {
    Same,
    Below,
    Above,
    NotAbove,
    NotBelow,
}

/// The names of an entry. Slot 0 and predicate 0 take what nothing reads.
#[derive(Debug)]
pub(super) struct Names {
    scopes: Vec<HashMap<String, Name>>,
    pub(super) slots: usize,
    pub(super) predicates: usize,
    pub(super) constants: HashMap<u64, usize>,
    pub(super) specials: Vec<(Special, usize)>,
    pub(super) addresses: HashMap<String, u64>,
    pub(super) labels: HashMap<String, usize>,
    pub(super) targets: HashMap<String, Vec<String>>,
    pub(super) parameters: HashMap<String, usize>,
}

impl Names {
    pub(super) fn new() -> Names {
        Names {
            scopes: vec![HashMap::new()],
            slots: 1,
            predicates: 1,
            constants: HashMap::new(),
            specials: Vec::new(),
            addresses: HashMap::new(),
            labels: HashMap::new(),
            targets: HashMap::new(),
            parameters: HashMap::new(),
        }
    }

    pub(super) fn open(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(super) fn close(&mut self) {
        if self.scopes.len() > 1 {
            self.scopes.pop();
        }
    }

    pub(super) fn declare(&mut self, kind: Kind, name: &str, count: Option<usize>) {
        let names = match count {
            None => vec![name.to_string()],
            Some(n) => (0..n).map(|i| format!("{name}{i}")).collect(),
        };
        for name in names {
            let new = if kind == Kind::Pred {
                self.predicates += 1;
                Name::Predicate(self.predicates - 1)
            } else {
                self.slots += 1;
                Name::Number(Slot { at: self.slots - 1, bytes: kind.bytes() })
            };
            if let Some(scope) = self.scopes.last_mut() {
                scope.insert(name, new);
            }
        }
    }

    fn find(&self, name: &str) -> Option<Name> {
        self.scopes.iter().rev().find_map(|s| s.get(name)).copied()
    }

    pub(super) fn constant(&mut self, x: u64) -> Slot {
        let next = self.slots;
        let at = *self.constants.entry(x).or_insert(next);
        self.slots += usize::from(at == next);
        Slot { at, bytes: 8 }
    }

    pub(super) fn special(&mut self, s: Special) -> Slot {
        if let Some((_, at)) = self.specials.iter().find(|(t, _)| *t == s) {
            return Slot { at: *at, bytes: 8 };
        }
        self.slots += 1;
        self.specials.push((s, self.slots - 1));
        Slot { at: self.slots - 1, bytes: 8 }
    }

    fn source_name(&mut self, name: &str) -> Result<Slot, String> {
        if let Some(found) = self.find(name) {
            return match found {
                Name::Number(slot) => Ok(slot),
                Name::Predicate(_) => Err(format!("'{name}' is a predicate")),
            };
        }
        if let Some(x) = number(name) {
            return Ok(self.constant(x));
        }
        if let Some(at) = self.addresses.get(name).copied() {
            return Ok(self.constant(at));
        }
        let axis = |n: &str| match n {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        let special = match name {
            "%tid.x" => Special::Thread,
            "%tid.y" | "%tid.z" => return Ok(self.constant(0)),
            "%ntid.x" => Special::Threads,
            "%ntid.y" | "%ntid.z" => return Ok(self.constant(1)),
            "WARP_SZ" => return Ok(self.constant(32)),
            "%laneid" => Special::Lane,
            "%warpid" => Special::Warp,
            "%lanemask_eq" => Special::Lanes(LaneMask::Same),
            "%lanemask_lt" => Special::Lanes(LaneMask::Below),
            "%lanemask_gt" => Special::Lanes(LaneMask::Above),
            "%lanemask_le" => Special::Lanes(LaneMask::NotAbove),
            "%lanemask_ge" => Special::Lanes(LaneMask::NotBelow),
            _ => match (name.strip_prefix("%ctaid.").and_then(axis), name.strip_prefix("%nctaid.").and_then(axis)) {
                (Some(a), _) => Special::Block(a),
                (_, Some(a)) => Special::Blocks(a),
                _ => return Err(format!("'{name}' is not known")),
            },
        };
        Ok(self.special(special))
    }

    /// The register, constant or address that is read.
    pub(super) fn source(&mut self, a: &Argument) -> Result<Slot, String> {
        match a {
            Argument::Name(name) => self.source_name(name),
            Argument::Sum(name, by) => match self.addresses.get(name).copied() {
                Some(at) => Ok(self.constant(at.wrapping_add(*by as u64))),
                None => Err(format!("'{name}' is not an address")),
            },
            _ => Err("an argument is not a number".to_string()),
        }
    }

    /// The register that is written.
    pub(super) fn target(&self, a: &Argument) -> Result<Slot, String> {
        match a {
            Argument::Name(name) if name == "_" => Ok(Slot { at: 0, bytes: 8 }),
            Argument::Name(name) => match self.find(name) {
                Some(Name::Number(slot)) => Ok(slot),
                _ => Err(format!("'{name}' is not a register of numbers")),
            },
            _ => Err("the result is not a register".to_string()),
        }
    }

    pub(super) fn predicate_name(&self, name: &str) -> Result<usize, String> {
        match self.find(name) {
            Some(Name::Predicate(p)) => Ok(p),
            _ if name == "_" => Ok(0),
            _ => Err(format!("'{name}' is not a predicate")),
        }
    }

    /// The predicate that is read or written.
    pub(super) fn predicate(&self, a: &Argument) -> Result<Guard, String> {
        match a {
            Argument::Name(n) => Ok(Guard { predicate: self.predicate_name(n)?, negated: false }),
            Argument::Not(n) => Ok(Guard { predicate: self.predicate_name(n)?, negated: true }),
            _ => Err("an argument is not a predicate".to_string()),
        }
    }

    /// The base and offset of an address.
    pub(super) fn place(&mut self, a: &Argument) -> Result<(Slot, u64), String> {
        match a {
            Argument::Place(name, offset) => Ok((self.source_name(name)?, *offset as u64)),
            _ => Err("an argument is not an address".to_string()),
        }
    }

    pub(super) fn label(&self, name: &str) -> Result<usize, String> {
        self.labels.get(name).copied().ok_or_else(|| format!("there is no label '{name}'"))
    }
}
