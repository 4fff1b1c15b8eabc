//! One rank: its memory, its threads, and what it does in each turn of a step. How it meets other
//! ranks is for whoever runs it.

use crate::arena::{Arena, Operands};
use crate::cpu::Arguments;
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::finite::Oddity;
use crate::load::{ArenaRange, Loaded, ReadyStep};
use crate::shard::Layout;
use crate::tensor::Tensor;
use crate::transfer::Transfer;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, Kernel};
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::set::Name;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, HostScalar, Launch, Message, Program, Row};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::Range;
use std::sync::Arc;

/// One rank.
#[derive(Debug)]
pub struct Rank {
    loaded: Arc<Loaded>,
    arena: Arena,
    threads: Threads,
    coordinates: Vec<u64>,
}

impl Rank {
    /// Rank `rank`, with memory all zero but for the constants.
    pub fn new(loaded: Arc<Loaded>, rank: u64, threads: Threads) -> Result<Rank, Reason> {
        let arena = Arena::new(loaded.program().arena_bytes)?;
        let coordinates = loaded.program().mesh.coordinates(rank);
        let mut rank = Rank { loaded: loaded.clone(), arena, threads, coordinates };
        for constant in &loaded.program().constants {
            rank.write_bytes(constant.buffer, &constant.bytes)?;
        }
        Ok(rank)
    }

    /// Takes its inputs of step `number` (from 0) from those of all programs, in their order.
    ///
    /// # Errors
    /// If an input is not of the program's type.
    pub fn begin(&mut self, number: u64, inputs: &[Tensor]) -> Result<(), Fault> {
        let loaded = self.loaded.clone();
        for (input, at) in loaded.program().inputs.iter().zip(&loaded.inputs) {
            let tensor = inputs.get(*at).ok_or("an input without an array").map_err(Fault::of_data)?;
            self.write(input.buffer, tensor).map_err(Fault::of_data)?;
        }
        Ok(self.write_scalars(loaded.program(), number)?)
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
        let loaded = self.loaded.clone();
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
            let mut coordinates = self.coordinates.clone();
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
        let loaded = self.loaded.clone();
        let task = &loaded.program().tasks[turn.task];
        let step = &task.steps[turn.step];
        *self.coordinates.last_mut().ok_or("a mesh without axes")? = turn.time;
        let done = self.launch(&step.kernel, &loaded.tasks[turn.task][turn.step], call);
        done.map_err(|fault| Fault {
            message: format!("`{}` in task {}: {fault}", loaded.program().text_of(step), task.name),
            ..fault
        })
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.program().mesh.rank(&self.coordinates)
    }

    /// The program that it runs.
    pub fn program(&self) -> &Program {
        self.loaded.program()
    }

    /// Its buffer of what has that name.
    pub fn named(&self, name: &Name) -> Option<BufferId> {
        self.loaded.names.get(name).copied()
    }

    /// Keeps this rank's part of a whole array, in every slot.
    pub fn write(&mut self, id: BufferId, tensor: &Tensor) -> Result<(), Reason> {
        let loaded = self.loaded.clone();
        let found = loaded.program().buffer(id)?;
        if tensor.dtype != found.dtype || tensor.shape != found.shape {
            let (dtype, shape) = (tensor.dtype, &tensor.shape);
            return Err(reason!("`{}` is {}{:?}, not {dtype}{shape:?}", found.name, found.dtype, found.shape));
        }
        self.write_bytes(id, &tensor.bytes)
    }

    /// Whether this rank's part of a buffer of floats holds finite numbers only.
    pub fn is_finite(&self, id: BufferId) -> Result<bool, Reason> {
        let dtype = self.loaded.program().buffer(id)?.dtype;
        Ok(Oddity::of(dtype, &self.part(id)?).is_none())
    }

    /// The results of a launch that are not finite, by position, each with its oddity.
    pub fn oddities(&self, turn: Launch) -> Result<Vec<(usize, Oddity)>, Reason> {
        let writes = self.loaded.tasks[turn.task][turn.step].writes.iter().enumerate();
        let found = writes.map(|(i, place)| {
            let bytes = self.arena.bytes(place.at(turn.time))?;
            Ok(Oddity::of(place.dtype, bytes).map(|oddity| (i, oddity)))
        });
        Ok(found.collect::<Result<Vec<_>, Reason>>()?.into_iter().flatten().collect())
    }

    /// This rank's part of what has that name, slot after slot; `None` if it has none, or another
    /// rank with the same program holds the same.
    pub fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Reason> {
        let Some(id) = self.named(name) else { return Ok(None) };
        let found = self.loaded.program().buffer(id)?;
        let mut coordinates = self.coordinates.clone();
        for axis in self.loaded.programs.axes.iter().filter(|axis| !found.sharding.splits(**axis)) {
            coordinates[axis.index()] = 0;
        }
        let first = layout(&self.program().mesh, found).is_first_replica(&coordinates);
        if first { self.part(id).map(Some) } else { Ok(None) }
    }

    /// This rank's part of a buffer, slot after slot.
    pub fn part(&self, id: BufferId) -> Result<Vec<u8>, Reason> {
        let found = self.loaded.program().buffer(id)?;
        let local = layout(&self.program().mesh, found).local_bytes();
        let starts = (0..found.slots).map(|slot| found.offset + slot * found.slot_bytes);
        let slots: Vec<&[u8]> = starts.map(|start| self.arena.bytes(start..start + local)).collect::<Result<_, _>>()?;
        Ok(slots.concat())
    }

    /// Takes a buffer's one slot from the same part of another rank like this.
    ///
    /// # Errors
    /// If there is no such buffer, or `part` is not of its size.
    pub fn set_part(&mut self, id: BufferId, part: &[u8]) -> Result<(), Reason> {
        let loaded = self.loaded.clone();
        let found = loaded.program().buffer(id)?;
        if part.len() as u64 > found.slot_bytes {
            return Err(reason!("{} bytes are too many for `{}`", part.len(), found.name));
        }
        self.arena.bytes_mut(found.offset..found.offset + part.len() as u64)?.copy_from_slice(part);
        Ok(())
    }

    /// Its memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    fn write_bytes(&mut self, id: BufferId, global: &[u8]) -> Result<(), Reason> {
        let loaded = self.loaded.clone();
        let found = loaded.program().buffer(id)?;
        let layout = layout(&loaded.program().mesh, found);
        if global.len() as u64 != layout.global_bytes() {
            return Err(reason!("`{}` has {} bytes, not {}", found.name, layout.global_bytes(), global.len()));
        }
        let mut coordinates = self.coordinates.clone();
        for slot in 0..found.slots {
            *coordinates.last_mut().ok_or("a mesh without axes")? = slot;
            let start = found.offset + slot * found.slot_bytes;
            layout.shard(global, &coordinates, self.arena.bytes_mut(start..start + layout.local_bytes())?);
        }
        Ok(())
    }

    fn write_scalars(&mut self, program: &Program, number: u64) -> Result<(), Reason> {
        for (i, buffer) in program.buffers.iter().enumerate() {
            let BufferKind::Scalar(scalar) = buffer.kind else { continue };
            let float = |value: f64| Tensor::from_f64(&buffer.shape, &[value]).cast(buffer.dtype);
            let value = match scalar {
                HostScalar::LearningRate => float(program.learning_rate.at(number)),
                HostScalar::StepCount => float((number + 1) as f64),
                HostScalar::Seed => Tensor::from_i64(&buffer.shape, &[program.seed as i64]),
            };
            self.write(BufferId(i as u32), &value)?;
        }
        Ok(())
    }

    fn launch(
        &mut self,
        kernel: &Kernel,
        launch: &ReadyStep,
        call: impl FnOnce(&Collective, Operands<'_>) -> Result<(), Reason>,
    ) -> Result<(), Fault> {
        let time = self.coordinates.last().copied().unwrap_or(0);
        let reads: Vec<_> = launch.reads.iter().map(|place| place.at(time)).collect();
        let writes: Vec<_> = launch.writes.iter().map(|place| place.at(time)).collect();
        let operands = self.arena.operands(&reads, &writes, &launch.in_place)?;
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
            .launch(Arguments { reads: &reads, writes, coordinates: &self.coordinates, threads: self.threads })
            .map_err(Fault::of_data)
    }
}

/// How `buffer` is laid over a mesh.
pub fn layout<'a>(mesh: &'a Mesh, buffer: &'a Buffer) -> Layout<'a> {
    Layout { shape: &buffer.shape, sharding: &buffer.sharding, mesh, element: buffer.dtype.bytes() }
}
