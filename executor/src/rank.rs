//! One rank: its memory, its threads, and the loop over a step's tasks.

use crate::arena::{Arena, Operands};
use crate::comm::Communicator;
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::threads::Threads;
use crate::load::{Launch, Loaded, buffer};
use crate::shard::Layout;
use crate::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, HostScalar, Program, Repeat, Step};
use std::sync::Arc;

/// One rank.
#[derive(Debug)]
pub struct Rank {
    loaded: Arc<Loaded>,
    arena: Arena,
    /// Its end of the communicators.
    pub communicator: Communicator,
    threads: Threads,
    coordinates: Vec<u64>,
}

impl Rank {
    /// Rank `rank`, with memory all zero but for the constants.
    pub fn new(loaded: Arc<Loaded>, rank: u64, communicator: Communicator, threads: Threads) -> Result<Rank, String> {
        let arena = Arena::new(loaded.program.arena_bytes)?;
        let coordinates = loaded.program.mesh.coordinates(rank);
        let mut rank = Rank { loaded: loaded.clone(), arena, communicator, threads, coordinates };
        for constant in &loaded.program.constants {
            rank.write_bytes(constant.buffer, &constant.bytes)?;
        }
        Ok(rank)
    }

    /// Runs step `number` (from 0) over the inputs, in the order of the program's table.
    ///
    /// # Errors
    /// Bad data (with the step's text), or the failure of another rank.
    pub fn step(&mut self, number: u64, inputs: &[Tensor]) -> Result<(), String> {
        let loaded = self.loaded.clone();
        let program = &loaded.program;
        for (input, tensor) in program.inputs.iter().zip(inputs) {
            self.write(input.buffer, tensor)?;
        }
        self.write_scalars(program, number)?;
        let mut task = 0;
        while task < program.tasks.len() {
            let repeat = program.tasks[task].repeat;
            let end = task + program.tasks[task..].iter().take_while(|t| t.repeat == repeat).count();
            let times = if repeat == Repeat::EachMicrobatch { program.mesh.microbatches() } else { 1 };
            for time in 0..times {
                *self.coordinates.last_mut().ok_or("a mesh without axes")? = time;
                for (task, launches) in program.tasks[task..end].iter().zip(&loaded.tasks[task..end]) {
                    for (step, launch) in task.steps.iter().zip(launches) {
                        self.launch(step, launch).map_err(|e| format!("`{}` in task {}: {e}", step.text, task.name))?;
                    }
                }
            }
            task = end;
        }
        Ok(())
    }

    /// Keeps this rank's part of a whole array, in every slot.
    pub fn write(&mut self, id: BufferId, tensor: &Tensor) -> Result<(), String> {
        let loaded = self.loaded.clone();
        let found = buffer(&loaded.program, id)?;
        if tensor.dtype != found.dtype || tensor.shape != found.shape {
            let (dtype, shape) = (tensor.dtype, &tensor.shape);
            return Err(format!("`{}` is {}{:?}, not {dtype}{shape:?}", found.name, found.dtype, found.shape));
        }
        self.write_bytes(id, &tensor.bytes)
    }

    /// This rank's part of a buffer, slot after slot; `None` if another rank holds the same.
    pub fn read(&self, id: BufferId) -> Result<Option<Vec<u8>>, String> {
        let found = buffer(&self.loaded.program, id)?;
        let layout = layout(&self.loaded.program, found);
        if !layout.is_first_replica(&self.coordinates) {
            return Ok(None);
        }
        let mut bytes = vec![];
        for slot in 0..found.slots {
            let start = found.offset + slot * found.slot_bytes;
            bytes.extend_from_slice(self.arena.bytes(start..start + layout.local_bytes())?);
        }
        Ok(Some(bytes))
    }

    fn write_bytes(&mut self, id: BufferId, global: &[u8]) -> Result<(), String> {
        let loaded = self.loaded.clone();
        let found = buffer(&loaded.program, id)?;
        let layout = layout(&loaded.program, found);
        if global.len() as u64 != layout.global_bytes() {
            return Err(format!("`{}` has {} bytes, not {}", found.name, layout.global_bytes(), global.len()));
        }
        let mut coordinates = self.coordinates.clone();
        for slot in 0..found.slots {
            *coordinates.last_mut().ok_or("a mesh without axes")? = slot;
            let start = found.offset + slot * found.slot_bytes;
            layout.shard(global, &coordinates, self.arena.bytes_mut(start..start + layout.local_bytes())?);
        }
        Ok(())
    }

    fn write_scalars(&mut self, program: &Program, number: u64) -> Result<(), String> {
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

    fn launch(&mut self, step: &Step, launch: &Launch) -> Result<(), String> {
        let time = self.coordinates.last().copied().unwrap_or(0);
        let reads: Vec<_> = launch.reads.iter().map(|place| place.at(time)).collect();
        let writes: Vec<_> = launch.writes.iter().map(|place| place.at(time)).collect();
        let Operands { reads, mut writes } = self.arena.operands(&reads, &writes, &launch.in_place)?;
        let Some(kernel) = &launch.kernel else {
            let Kernel::Collective(collective) = &step.kernel else { return Err("a step without a kernel".to_string()) };
            return self.communicator.run(collective, reads[0], writes[0]);
        };
        let misaligned = || "an operand is not aligned".to_string();
        let typed = |dtype: DType, bytes| Slice::from_bytes(dtype, bytes).ok_or_else(misaligned);
        let reads: Vec<Slice<'_>> =
            launch.reads.iter().zip(reads).map(|(place, bytes)| typed(place.dtype, bytes)).collect::<Result<_, _>>()?;
        let typed = |dtype: DType, bytes| SliceMut::from_bytes(dtype, bytes).ok_or_else(misaligned);
        let writes: Vec<SliceMut<'_>> =
            launch.writes.iter().zip(writes).map(|(place, bytes)| typed(place.dtype, bytes)).collect::<Result<_, _>>()?;
        kernel.launch(&reads, writes, &self.coordinates, self.threads)
    }
}

/// How `buffer` is laid over the program's mesh.
pub fn layout<'a>(program: &'a Program, buffer: &'a Buffer) -> Layout<'a> {
    Layout { shape: &buffer.shape, sharding: &buffer.sharding, mesh: &program.mesh, element: buffer.dtype.bytes() }
}
