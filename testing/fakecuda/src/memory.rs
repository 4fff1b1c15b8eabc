//! Memory of the devices, and memory of the host that it knows: bounds, lifetimes, and who touched
//! which bytes last.

use crate::clock::Clock;
use crate::pages::Pages;
use std::collections::BTreeMap;

/// The first address of the first device: no address of the host.
const FIRST: u64 = 0x0a00_0000_0000;
/// Addresses of one device.
const ROOM: u64 = 1 << 38;
/// What new memory holds: not-a-number in every float.
pub const POISON: u8 = 0xff;
/// Addresses that are never given, behind each allocation.
const GAP: u64 = 4096;

/// All memory.
#[derive(Debug, Default)]
pub struct Memory {
    blocks: BTreeMap<u64, Block>,
    /// Memory of the host that was allocated here, pinned: its bytes by where it begins.
    pinned: BTreeMap<u64, Block>,
    next: BTreeMap<usize, u64>,
}

/// An allocation.
#[derive(Debug)]
struct Block {
    device: usize,
    size: u64,
    is_freed: bool,
    /// What the device's memory holds.
    bytes: Pages,
    touched: Vec<Touch>,
}

/// An access of an operation.
#[derive(Debug, Clone)]
struct Touch {
    start: u64,
    end: u64,
    way: Way,
    stream: u64,
    number: u64,
    what: String,
}

/// What an operation does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It reads them.
    Reads,
    /// It writes them.
    Writes,
    /// It may write that something is wrong, which others may do at the same time.
    Marks,
}

/// The operation that touches memory now.
#[derive(Debug)]
pub struct Toucher<'t> {
    /// The stream.
    pub stream: u64,
    /// Its number in that stream.
    pub number: u64,
    /// What comes before it.
    pub clock: &'t Clock,
    /// Its name in reports.
    pub what: &'t str,
}

impl Way {
    fn verb(self) -> &'static str {
        match self {
            Way::Reads => "reads",
            Way::Writes => "writes",
            Way::Marks => "may mark",
        }
    }
}

impl Memory {
    /// New memory of a device, or `None` where there is too little.
    pub fn allocate(&mut self, device: usize, size: u64, most: u64) -> Option<u64> {
        if self.used(device).checked_add(size)? > most {
            return None;
        }
        let next = self.next.entry(device).or_insert(FIRST + device as u64 * ROOM);
        let at = *next;
        *next = (at + size + GAP).next_multiple_of(256);
        let bytes = Pages::new(usize::try_from(size).ok()?, POISON);
        self.blocks.insert(at, Block { device, size, is_freed: false, bytes, touched: vec![] });
        Some(at)
    }

    /// The bytes that a device has given.
    pub fn used(&self, device: usize) -> u64 {
        self.blocks.values().filter(|block| block.device == device && !block.is_freed).map(|block| block.size).sum()
    }

    /// Frees an allocation.
    pub fn free(&mut self, device: usize, at: u64) -> Result<(), String> {
        match self.blocks.get_mut(&at) {
            None => Err(format!("{at:#x} is freed, and was never allocated")),
            Some(block) if block.is_freed => Err(format!("the memory at {at:#x} is freed twice")),
            Some(block) if block.device != device => Err(format!("memory of device {} is freed", block.device)),
            Some(block) => {
                block.is_freed = true;
                block.bytes = Pages::default();
                block.touched = vec![];
                Ok(())
            }
        }
    }

    /// Frees all that a device has.
    pub fn forget(&mut self, device: usize) {
        for block in self.blocks.values_mut().filter(|block| block.device == device) {
            block.is_freed = true;
            block.bytes = Pages::default();
            block.touched = vec![];
        }
    }

    /// What pinned memory of the host begins at `at` with `size` bytes.
    pub fn pin(&mut self, at: u64, size: u64) {
        self.pinned.insert(at, Block { device: 0, size, is_freed: false, bytes: Pages::default(), touched: vec![] });
    }

    /// The bytes of pinned memory that is no longer.
    pub fn unpin(&mut self, at: u64) -> Option<u64> {
        self.pinned.remove(&at).map(|block| block.size)
    }

    /// Whether an address is one of a device.
    pub fn is_of_a_device(&self, at: u64) -> bool {
        at >= FIRST && self.next.values().any(|next| (FIRST..*next).contains(&at) && *next - at <= ROOM)
    }

    /// Where pinned memory that holds the address begins.
    pub fn pinned(&self, at: u64) -> Option<u64> {
        let (start, block) = self.pinned.range(..=at).next_back()?;
        (at < start + block.size).then_some(*start)
    }

    /// That pinned memory reaches so far.
    pub fn check_pinned(&self, at: u64, bytes: u64) -> Result<(), String> {
        let Some(start) = self.pinned(at) else { return Err("pinned memory of the host that was freed".into()) };
        let size = self.pinned[&start].size;
        match at - start + bytes <= size {
            true => Ok(()),
            false => Err(format!("bytes {} to {} of {size} of the host's pinned memory", at - start, at - start + bytes)),
        }
    }

    fn block(&self, device: usize, at: u64, bytes: u64) -> Result<u64, String> {
        let found = self.blocks.range(..=at).next_back().filter(|(start, block)| at < *start + block.size.max(1) + GAP);
        let Some((start, block)) = found else {
            return Err(match self.is_of_a_device(at) {
                true => format!("{at:#x}, where nothing was allocated"),
                false => format!("{at:#x}, which is no memory of a device"),
            });
        };
        let (from, to) = (at - start, (at - start).saturating_add(bytes));
        if block.is_freed {
            return Err(format!("memory at {start:#x} that was freed"));
        }
        if block.device != device {
            return Err(format!("memory of device {}", block.device));
        }
        if to > block.size {
            return Err(format!("bytes {from} to {to} of an allocation of {} at {start:#x}: out of bounds", block.size));
        }
        Ok(*start)
    }

    /// That a device's memory may be touched there; the error says what is.
    pub fn check(&self, device: usize, at: u64, bytes: u64) -> Result<(), String> {
        self.block(device, at, bytes).map(|_| ())
    }

    /// The bytes there.
    pub fn read(&self, device: usize, at: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let start = self.block(device, at, bytes)?;
        let from = (at - start) as usize;
        Ok(self.blocks[&start].bytes.read(from..from + bytes as usize))
    }

    /// Writes bytes there.
    pub fn write(&mut self, device: usize, at: u64, bytes: &[u8]) -> Result<(), String> {
        let start = self.block(device, at, bytes.len() as u64)?;
        if let Some(block) = self.blocks.get_mut(&start) {
            block.bytes.write((at - start) as usize, bytes);
        }
        Ok(())
    }

    /// Gives all bytes there one value.
    pub fn fill(&mut self, device: usize, at: u64, bytes: u64, value: u8) -> Result<(), String> {
        let start = self.block(device, at, bytes)?;
        let from = (at - start) as usize;
        if let Some(block) = self.blocks.get_mut(&start) {
            block.bytes.fill(from..from + bytes as usize, value);
        }
        Ok(())
    }

    /// An operation touches bytes of a device or of pinned memory. The error is a race, in words.
    pub fn touch(&mut self, by: &Toucher<'_>, at: u64, bytes: u64, way: Way) -> Result<(), String> {
        let is_of_host = self.pinned(at).is_some();
        let blocks = if is_of_host { &mut self.pinned } else { &mut self.blocks };
        let Some((base, block)) = blocks.range_mut(..=at).next_back().filter(|(base, block)| at < **base + block.size) else {
            return Ok(());
        };
        let (start, end) = (at - base, at - base + bytes);
        let before = |touch: &Touch| touch.stream == by.stream || by.clock.covers(touch.stream, touch.number);
        let meets = |touch: &Touch| touch.start < end && start < touch.end && (way != touch.way || way == Way::Writes);
        let race = block.touched.iter().find(|touch| meets(touch) && !before(touch)).map(|touch| {
            let of = if is_of_host { "pinned memory of the host" } else { "an allocation" };
            let (from, to) = (touch.start, touch.end);
            format!(
                "race: it {} bytes {start} to {end} of {of}, not ordered with {}, which {} bytes {from} to {to}",
                way.verb(),
                touch.what,
                touch.way.verb()
            )
        });
        // What is ordered before a write of all its bytes need not be remembered; nor what the same
        // stream did in the same way.
        block.touched.retain(|touch| {
            let within = touch.start >= start && touch.end <= end;
            let is_replaced = if way == Way::Writes { before(touch) } else { touch.way == way && touch.stream == by.stream };
            !(within && is_replaced)
        });
        let (stream, number, what) = (by.stream, by.number, by.what.to_owned());
        block.touched.push(Touch { start, end, way, stream, number, what });
        race.map_or(Ok(()), Err)
    }

    /// Forgets accesses of a device that come before all that it will be told.
    pub fn settle(&mut self, device: usize, before: &Clock) {
        for block in self.blocks.values_mut().filter(|block| block.device == device) {
            block.touched.retain(|touch| !before.covers(touch.stream, touch.number));
        }
        // Streams of another device are not ordered with this one's.
        for block in self.pinned.values_mut() {
            block.touched.retain(|touch| !before.covers(touch.stream, touch.number));
        }
    }
}
