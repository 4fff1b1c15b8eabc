//! What ranks of one process hold in common: state variables of which each would hold the same
//! bits. There is one copy of them, and each rank does its share of their updates.
//!
//! All read what they hold in common until a step's first update. There they meet, and each goes on
//! alone with its share of the elements; behind the last update they meet again.

mod kept;
mod memory;

use crate::arena::{Arena, Operands, operands};
use crate::load::{LoadedSet, ReadyStep};
use kept::Kept;
pub use memory::BytesInCommon;
use memory::{Common, Reading, Writing};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::Launch;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A rank's end of what it holds in common with others.
#[derive(Debug)]
pub struct Member {
    common: Arc<Common>,
    kept: Arc<Kept>,
    /// Which share it has.
    part: usize,
    /// Its share of each update, by task and step.
    updates: Arc<BTreeMap<(usize, usize), ReadyStep>>,
    held: Held,
}

/// What a rank may do with it.
#[derive(Debug)]
enum Held {
    /// It is between two steps.
    Nothing,
    Reading(Reading),
    Writing(Writing),
}

/// For each rank its end of what it holds in common with others, if that is anything.
///
/// # Errors
/// If the machine lacks memory.
pub fn members(loaded: &LoadedSet) -> Result<Vec<Option<Member>>, Reason> {
    let mesh = loaded.programs.mesh();
    let kept = loaded.programs.programs.iter().map(|program| Kept::of(&loaded.programs, program).map(Arc::new));
    let kept: Vec<_> = kept.collect();
    let mut groups: BTreeMap<u64, Arc<Common>> = BTreeMap::new();
    let mut member = |rank: u64| {
        let Some(kept) = &kept[loaded.programs.at(mesh, rank)] else { return Ok(None) };
        let group = mesh.group(rank, &kept.axes);
        let part = group.iter().position(|member| *member == rank).ok_or("a rank outside its group")?;
        if part == 0 {
            groups.insert(rank, Arc::new(Common::new(kept.places.clone(), group.len())?));
        }
        let common = groups.get(&group[0]).ok_or("a group without its first rank")?.clone();
        let updates = Arc::new(kept.shared_out(loaded.of_rank(rank).program(), part, group.len())?);
        Ok(Some(Member { common, kept: kept.clone(), part, updates, held: Held::Nothing }))
    };
    (0..mesh.world_size()).map(&mut member).collect()
}

impl Member {
    /// A step begins: it reads.
    ///
    /// # Errors
    /// If others write, as they do not between steps.
    pub fn begin(&mut self) -> Result<(), Reason> {
        self.held = Held::Reading(self.common.reading()?);
        Ok(())
    }

    /// A step has ended.
    pub fn end(&mut self) {
        self.held = Held::Nothing;
    }

    /// Before turn `at`: where it is the first that changes something, all `meet`, and then each
    /// writes its share.
    ///
    /// # Errors
    /// As `meet`.
    pub fn before(&mut self, at: usize, meet: impl FnOnce(&[AxisId]) -> Result<(), Reason>) -> Result<(), Reason> {
        if self.kept.changing.as_ref().is_some_and(|changing| *changing.start() == at) {
            self.held = Held::Nothing;
            meet(&self.kept.axes)?;
            self.held = Held::Writing(self.common.writing(self.part..self.part + 1)?);
        }
        Ok(())
    }

    /// Behind turn `at`: where it is the last that changes something, all `meet`, and then read.
    ///
    /// # Errors
    /// As `meet`.
    pub fn behind(&mut self, at: usize, meet: impl FnOnce(&[AxisId]) -> Result<(), Reason>) -> Result<(), Reason> {
        if self.kept.changing.as_ref().is_some_and(|changing| *changing.end() == at) {
            self.held = Held::Nothing;
            meet(&self.kept.axes)?;
            self.held = Held::Reading(self.common.reading()?);
        }
        Ok(())
    }

    /// Its share of the updates, by task and step.
    pub fn updates(&self) -> &Arc<BTreeMap<(usize, usize), ReadyStep>> {
        &self.updates
    }

    /// How many ranks share out a launch.
    pub fn shared_by(&self, launch: Launch) -> usize {
        if self.updates.contains_key(&(launch.task, launch.step)) { self.common.parts() } else { 1 }
    }

    /// As [`Arena::operands`], where what is held in common is read.
    ///
    /// # Errors
    /// As [`Arena::operands`]; if it changes.
    pub fn read<'a>(
        &'a self,
        arena: &'a mut Arena,
        reads: &[Range<u64>],
        writes: &[Range<u64>],
        in_place: &[Option<usize>],
    ) -> Result<Operands<'a>, Reason> {
        let mut found = arena.operands(&self.only(false, reads), writes, in_place)?;
        for (range, bytes) in reads.iter().zip(&mut found.reads).filter(|(range, _)| self.common.holds(range)) {
            let Held::Reading(reading) = &self.held else { return Err("a step reads what ranks are changing".into()) };
            *bytes = reading.bytes(range).unwrap_or_default();
        }
        Ok(found)
    }

    /// As [`Arena::operands`], where this rank's share of what is held in common is written.
    ///
    /// # Errors
    /// As [`Arena::operands`]; if it is not the time for that.
    pub fn write<'a>(
        &'a mut self,
        arena: &'a Arena,
        reads: &[Range<u64>],
        writes: &[Range<u64>],
        in_place: &[Option<usize>],
    ) -> Result<Operands<'a>, Reason> {
        let (own, is_common) = (self.only(true, reads), |range: &Range<u64>| self.common.holds(range));
        let is_common: Vec<bool> = reads.iter().map(is_common).collect();
        let Held::Writing(writing) = &mut self.held else { return Err("an update before the ranks have met".into()) };
        let mut found = operands(writing.pieces(), &own, writes, in_place)?;
        for ((range, bytes), _) in reads.iter().zip(&mut found.reads).zip(is_common).filter(|(_, is_common)| !is_common) {
            *bytes = arena.bytes(range.clone())?;
        }
        Ok(found)
    }

    /// These ranges, but empty where they are not held in common, or where they are.
    fn only(&self, common: bool, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let only = |range: &Range<u64>| if self.common.holds(range) == common { range.clone() } else { 0..0 };
        ranges.iter().map(only).collect()
    }

    /// Bytes that are held in common; `None` if they are not.
    ///
    /// # Errors
    /// If others write.
    pub fn bytes(&self, range: &Range<u64>) -> Result<Option<BytesInCommon>, Reason> {
        if self.common.holds(range) { self.common.reading().map(|reading| reading.hold(range)) } else { Ok(None) }
    }

    /// Lets `fill` write bytes, where it is the first rank of those that hold them, between two
    /// steps; whether they are held in common.
    ///
    /// # Errors
    /// If others read or write.
    pub fn fill(&mut self, range: &Range<u64>, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, Reason> {
        if !self.common.holds(range) {
            return Ok(false);
        }
        if self.part == 0 {
            let mut all = self.common.writing(0..self.common.parts())?;
            let written = operands(all.pieces(), &[], std::slice::from_ref(range), &[])?;
            written.writes.into_iter().for_each(fill);
        }
        Ok(true)
    }

    /// Copies all that is held in common to where it lies in a rank's memory.
    ///
    /// # Errors
    /// If others write.
    pub fn leave(self, arena: &mut Arena) -> Result<(), Reason> {
        let reading = self.common.reading()?;
        for place in self.common.places() {
            let bytes = reading.bytes(&place.range).unwrap_or_default();
            arena.bytes_mut(place.range.clone())?.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// The bytes that are held in common.
    pub fn bytes_in_common(&self) -> u64 {
        self.common.places().map(|place| place.range.end - place.range.start).sum()
    }

    /// The end of the last place in a rank's memory that is held in common.
    pub fn end_of_places(&self) -> u64 {
        self.common.places().map(|place| place.range.end).max().unwrap_or(0)
    }
}
