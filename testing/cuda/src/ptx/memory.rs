//! The memory that a kernel sees: its operands, the module's arrays, shared and local memory.

use crate::job::{Access, Operand};

/// Where addresses point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Global,
    Shared,
    Local,
    Const,
    /// Any of them, by the address.
    Generic,
}

impl Space {
    pub(super) fn of(name: &str) -> Option<Space> {
        Some(match name {
            "global" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            "const" => Space::Const,
            _ => return None,
        })
    }

    /// The generic address of the space's byte 0.
    pub(super) fn window(self) -> u64 {
        match self {
            Space::Shared => 1 << 60,
            Space::Local => 2 << 60,
            _ => 0,
        }
    }
}

/// The address of the first array of the module; those of constants follow in a range of their own.
pub(super) const ARRAYS: u64 = 3 << 60;
pub(super) const CONSTANTS: u64 = 4 << 60;

/// The address of operand `i`.
pub(super) fn operand_address(i: usize, operand: &Operand) -> u64 {
    ((i as u64 + 1) << 40) + u64::from(operand.past)
}

/// The operand that an address is of.
pub(super) fn operand_at(address: u64) -> Option<usize> {
    usize::try_from(address >> 40).ok()?.checked_sub(1)
}

/// What all blocks share.
pub(super) struct Memory<'a> {
    pub(super) operands: &'a [Operand],
    /// The operands' bytes, as the kernel has left them.
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) arrays: Vec<u8>,
    pub(super) constants: &'a [u8],
}

/// An access of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Load,
    /// A load through a cache that does not see stores.
    Fixed,
    Store,
}

impl Use {
    fn name(self) -> &'static str {
        if self == Use::Store { "store" } else { "load" }
    }
}

fn part<'m>(memory: &'m mut [u8], at: u64, n: usize, how: Use, what: &str) -> Result<&'m mut [u8], String> {
    let size = memory.len();
    let from = usize::try_from(at).ok();
    from.and_then(|from| memory.get_mut(from..from.checked_add(n)?))
        .ok_or_else(|| format!("{} of {n} bytes at {} of {what}, which has {size}", how.name(), at as i64))
}

impl Memory<'_> {
    /// The bytes of an access to global or constant memory.
    pub(super) fn global(&mut self, at: u64, n: usize, how: Use) -> Result<&mut [u8], String> {
        if at >= CONSTANTS {
            return Err(format!("{} at {at:#x}, where nothing is", how.name()));
        }
        if at >= ARRAYS {
            return part(&mut self.arrays, at - ARRAYS, n, how, "the module's arrays");
        }
        let index = (at >> 40) as usize;
        // What is a little before an operand is told by its name.
        let near = at & ((1 << 40) - 1) >= 1 << 39;
        let index = (index + usize::from(near)).wrapping_sub(1);
        let (Some(operand), Some(bytes)) = (self.operands.get(index), self.bytes.get_mut(index)) else {
            return Err(format!("{} at {at:#x}, where nothing is", how.name()));
        };
        let offset = at.wrapping_sub(operand_address(index, operand));
        let named = || format!("operand '{}'", operand.name);
        let allowed = match how {
            Use::Load => matches!(operand.access, Access::Read | Access::Update),
            Use::Fixed => operand.access == Access::Read,
            Use::Store => operand.access != Access::Read,
        };
        if !allowed {
            let cached = if how == Use::Fixed { " through the cache of what is fixed" } else { "" };
            return Err(format!("{}{cached} from {}, whose access is {:?}", how.name(), named(), operand.access));
        }
        let size = bytes.len();
        let from = usize::try_from(offset).ok();
        from.and_then(|from| bytes.get_mut(from..from.checked_add(n)?))
            .ok_or_else(|| format!("{} of {n} bytes at {} of {}, which has {size}", how.name(), offset as i64, named()))
    }

    pub(super) fn constant(&self, at: u64, n: usize) -> Result<&[u8], String> {
        usize::try_from(at.wrapping_sub(CONSTANTS))
            .ok()
            .and_then(|from| self.constants.get(from..from.checked_add(n)?))
            .ok_or_else(|| format!("load of {n} bytes at {at:#x}, beyond the constants"))
    }
}

/// The bytes of an access to shared memory.
pub(super) fn shared(memory: &mut [u8], at: u64, n: usize, how: Use) -> Result<&mut [u8], String> {
    part(memory, at, n, how, "shared memory")
}

/// The bytes of an access to a lane's local memory.
pub(super) fn local(memory: &mut [u8], size: usize, lane: usize, at: u64, n: usize, how: Use) -> Result<&mut [u8], String> {
    part(memory.get_mut(lane * size..(lane + 1) * size).unwrap_or_default(), at, n, how, "local memory")
}

/// The number of up to 8 bytes.
pub(super) fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |x, b| x << 8 | u64::from(*b))
}
