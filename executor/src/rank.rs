//! One rank: its memory, its threads, and what it does in each turn of a step. How it meets other
//! ranks is for whoever runs it.

use crate::arena::{Arena, Operands};
use crate::common::Member;
use crate::cpu::Arguments;
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::load::{ArenaRange, Loaded, ReadyStep};
use crate::memory::{Bytes, Memory, Place};
use crate::oddity::{Oddity, Spread};
use crate::tensor::Tensor;
use crate::transfer::Transfer;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, Kernel};
use shardc_ir::plan::{BufferId, Launch, Message, Program, Row, Turn};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::Range;
use std::sync::Arc;

/// One rank.
#[derive(Debug)]
pub struct Rank {
    place: Place,
    arena: Arena,
    /// What it holds in common with other ranks, which its arena has no use for.
    common: Option<Member>,
    threads: Threads,
}

impl Rank {
    /// Rank `rank`, with memory all zero but for the constants.
    pub fn new(loaded: Arc<Loaded>, rank: u64, threads: Threads) -> Result<Rank, Reason> {
        let arena = Arena::new(loaded.program().arena_bytes)?;
        let mut rank = Rank { place: Place::new(loaded.clone(), rank), arena, common: None, threads };
        for constant in &loaded.program().constants {
            rank.write_bytes(constant.buffer, &constant.bytes)?;
        }
        Ok(rank)
    }

    /// The same, which holds some of its memory in common with others.
    pub fn joined(self, common: Option<Member>) -> Rank {
        Rank { common, ..self }
    }

    /// The rank with its memory, of which it then holds nothing in common, for one thread; what
    /// stays has none.
    ///
    /// # Errors
    /// If what it holds in common is being changed.
    pub fn moved(&mut self) -> Result<Rank, Reason> {
        self.common.take().map_or(Ok(()), |common| common.leave(&mut self.arena))?;
        let arena = std::mem::take(&mut self.arena);
        Ok(Rank { place: self.place.clone(), arena, common: None, threads: Threads(1) })
    }

    /// What it holds in common with other ranks.
    pub fn common(&mut self) -> Option<&mut Member> {
        self.common.as_mut()
    }

    /// How many ranks share out a turn: each does its part of an update of what they hold in
    /// common.
    pub fn shared_by(&self, turn: Turn) -> usize {
        let Turn::Launch(launch) = turn else { return 1 };
        self.common.as_ref().map_or(1, |common| common.shared_by(launch))
    }

    /// The bytes of its memory that it holds in common with other ranks.
    pub fn in_common(&self) -> u64 {
        self.common.as_ref().map_or(0, Member::bytes_in_common)
    }

    /// The bytes that it has for its memory, and those up to the last that was ever written.
    pub fn memory(&self) -> (u64, u64) {
        let common = self.common.as_ref().map_or(0, Member::end_of_places);
        (self.arena.len(), self.arena.used().max(common))
    }

    /// Takes its inputs of step `number` (from 0) from those of all programs, in their order.
    ///
    /// # Errors
    /// If an input is not of the program's type.
    pub fn begin(&mut self, number: u64, inputs: &[Tensor]) -> Result<(), Fault> {
        let loaded = self.place.loaded.clone();
        for (input, at) in loaded.program().inputs.iter().zip(&loaded.inputs) {
            let tensor = inputs.get(*at).ok_or("an input without an array").map_err(Fault::of_data)?;
            self.write(input.buffer, tensor).map_err(Fault::of_data)?;
        }
        for (id, value) in self.place.scalars(number) {
            self.write(id, &value)?;
        }
        Ok(())
    }

    /// Exchanges the messages of a row: `exchange` gets them.
    ///
    /// # Errors
    /// What `exchange` says, with the first message.
    pub fn exchange(
        &mut self,
        row: usize,
        exchange: impl FnOnce(&mut [Transfer<'_>]) -> Result<(), Reason>,
    ) -> Result<(), Fault> {
        let loaded = self.place.loaded.clone();
        let program = loaded.program();
        let Some(Row::Exchange(messages)) = program.order.get(row) else { return Err("a row without messages".into()) };
        let ends: Vec<(&Message, ArenaRange, u64)> =
            messages.iter().map(|(m, time)| (&program.messages[*m as usize], loaded.messages[*m as usize], *time)).collect();
        let ranges = |sends: bool| -> Vec<Range<u64>> {
            ends.iter().filter(|(message, ..)| message.sends == sends).map(|(_, range, time)| range.at(*time)).collect()
        };
        let Operands { reads, writes } = self.arena.operands(&ranges(true), &ranges(false), &[])?;
        let (mut reads, mut writes) = (reads.into_iter(), writes.into_iter());
        let mut transfers = vec![];
        for (message, ArenaRange { dtype, .. }, _) in &ends {
            let mut coordinates = self.place.coordinates.clone();
            coordinates[message.axis.index()] = message.peer;
            let (peer, dtype) = (program.mesh.rank(&coordinates), *dtype);
            let transfer = match message.sends {
                true => reads.next().map(|bytes| Transfer::Send { to: peer, dtype, bytes }),
                false => writes.next().map(|bytes| Transfer::Receive { from: peer, dtype, bytes }),
            };
            transfers.push(transfer.ok_or("a message without bytes")?);
        }
        let first = || ends.first().map_or("", |(message, ..)| message.value.as_str()).to_string();
        exchange(&mut transfers).map_err(|why| Fault::from(format!("message `{}`: {why}", first())))
    }

    /// Does what the program says for a launch; a collective is for `call`, with its sources and
    /// its destinations (see [`crate::comm::Communicator::run`]).
    ///
    /// # Errors
    /// Bad data, or what `call` says, with the step's text.
    pub fn run(&mut self, turn: Launch, call: impl FnOnce(&Collective, Operands<'_>) -> Result<(), Reason>) -> Result<(), Fault> {
        let loaded = self.place.loaded.clone();
        let task = &loaded.program().tasks[turn.task];
        let step = &task.steps[turn.step];
        *self.place.coordinates.last_mut().ok_or("a mesh without axes")? = turn.time;
        let updates = self.common.as_ref().map(|common| common.updates().clone());
        let done = match updates.as_ref().and_then(|updates| updates.get(&(turn.task, turn.step))) {
            Some(share) => self.launch(&step.kernel, share, true, call),
            None => self.launch(&step.kernel, &loaded.tasks[turn.task][turn.step], false, call),
        };
        done.map_err(|fault| Fault {
            message: format!("`{}` in task {}: {fault}", loaded.program().text_of(step), task.name),
            ..fault
        })
    }

    /// The program that it runs.
    pub fn program(&self) -> &Program {
        self.place.program()
    }

    /// Whether this rank's part of a buffer of floats holds finite numbers only.
    pub fn is_finite(&self, id: BufferId) -> Result<bool, Reason> {
        let dtype = self.place.loaded.program().buffer(id)?.dtype;
        Ok(Oddity::of(dtype, &self.part(id)?).is_none())
    }

    /// The results of a launch that are not finite, by position, each with its oddity.
    pub fn oddities(&self, turn: Launch) -> Result<Vec<(usize, Oddity)>, Reason> {
        let writes = self.place.loaded.tasks[turn.task][turn.step].writes.iter().enumerate();
        let found = writes.map(|(i, place)| {
            let bytes = self.bytes(place.at(turn.time))?;
            Ok(Oddity::of(place.dtype, &bytes).map(|oddity| (i, oddity)))
        });
        Ok(found.collect::<Result<Vec<_>, Reason>>()?.into_iter().flatten().collect())
    }

    /// The ends of what a launch has read, operand by operand; `None` where it has written its
    /// results over it.
    pub fn read_by(&self, turn: Launch) -> Result<Vec<Option<Spread>>, Reason> {
        let step = &self.place.loaded.tasks[turn.task][turn.step];
        let spread = |(place, result): (&ArenaRange, &Option<usize>)| match result {
            Some(_) => Ok(None),
            None => Ok(Some(Spread::of(place.dtype, &self.bytes(place.at(turn.time))?))),
        };
        step.reads.iter().zip(&step.in_place).map(spread).collect()
    }

    /// Takes a buffer's one slot from the same part of another rank like this.
    ///
    /// # Errors
    /// If there is no such buffer, or `part` is not of its size.
    pub fn set_part(&mut self, id: BufferId, part: &[u8]) -> Result<(), Reason> {
        let loaded = self.place.loaded.clone();
        let found = loaded.program().buffer(id)?;
        if part.len() as u64 > found.slot_bytes {
            return Err(reason!("{} bytes are too many for `{}`", part.len(), found.name));
        }
        self.fill(found.offset..found.offset + part.len() as u64, &mut |bytes| bytes.copy_from_slice(part))
    }

    /// Its memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Runs a step; `is_share` says whether it is a share of an update of what ranks hold in
    /// common.
    fn launch(
        &mut self,
        kernel: &Kernel,
        launch: &ReadyStep,
        is_share: bool,
        call: impl FnOnce(&Collective, Operands<'_>) -> Result<(), Reason>,
    ) -> Result<(), Fault> {
        let time = self.place.coordinates.last().copied().unwrap_or(0);
        let reads: Vec<_> = launch.reads.iter().map(|place| place.at(time)).collect();
        let writes: Vec<_> = launch.writes.iter().map(|place| place.at(time)).collect();
        let operands = match &mut self.common {
            Some(common) if is_share => common.write(&self.arena, &reads, &writes, &launch.in_place)?,
            Some(common) => common.read(&mut self.arena, &reads, &writes, &launch.in_place)?,
            None => self.arena.operands(&reads, &writes, &launch.in_place)?,
        };
        let Some(prepared) = &launch.kernel else {
            let Kernel::Collective(collective) = kernel else { return Err("a step without a kernel".into()) };
            return Ok(call(collective, operands)?);
        };
        let Operands { reads, writes } = operands;
        let misaligned = || "an operand is not aligned".to_string();
        let typed = |dtype: DType, bytes| Slice::from_bytes(dtype, bytes).ok_or_else(misaligned);
        let reads: Vec<Slice<'_>> =
            launch.reads.iter().zip(reads).map(|(place, bytes)| typed(place.dtype, bytes)).collect::<Result<_, _>>()?;
        let typed = |dtype: DType, bytes| SliceMut::from_bytes(dtype, bytes).ok_or_else(misaligned);
        let writes: Vec<SliceMut<'_>> =
            launch.writes.iter().zip(writes).map(|(place, bytes)| typed(place.dtype, bytes)).collect::<Result<_, _>>()?;
        prepared
            .launch(Arguments { reads: &reads, writes, coordinates: &self.place.coordinates, threads: self.threads })
            .map_err(Fault::of_data)
    }
}

impl Memory for Rank {
    fn place(&self) -> &Place {
        &self.place
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Reason> {
        match self.common.as_ref().map_or(Ok(None), |common| common.bytes(&range))? {
            Some(bytes) => Ok(Bytes::Common(bytes)),
            None => self.arena.bytes(range).map(Bytes::Own),
        }
    }

    fn fill(&mut self, range: Range<u64>, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Reason> {
        let is_common = self.common.as_mut().map_or(Ok(false), |common| common.fill(&range, fill))?;
        if !is_common {
            fill(self.arena.bytes_mut(range)?);
        }
        Ok(())
    }
}
