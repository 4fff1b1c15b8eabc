//! What the host writes to ranks and reads from them between steps: whole arrays by name.

use super::processes::Request;
use super::{ExecutionError, Executor};
use crate::fault::Fault;
use crate::init::{initial_state, put_together};
use crate::memory::layout;
use crate::tensor::Tensor;
use crate::worker::Worker;
use shardc_ir::plan::Buffer;
use shardc_ir::plan::set::Name;
use std::sync::Arc;

impl Executor {
    /// Sets a state variable from its whole array; floats are converted.
    ///
    /// # Errors
    /// If there is no such state, or the shape differs.
    pub fn set_state(&mut self, name: &str, value: &Tensor) -> Result<(), ExecutionError> {
        let state = Name::State(name.to_string());
        let found = self.named(&state)?;
        let value = if value.dtype.is_float() && found.dtype.is_float() { value.cast(found.dtype) } else { value.clone() };
        let value = Arc::new(value);
        let write = move |worker: &mut dyn Worker| {
            let Some(id) = worker.named(&state) else { return Ok(()) };
            worker.place().check_type(id, &value).map_err(Fault::of_data)?;
            Ok(worker.write(id, &value)?)
        };
        self.on_each(None, write).map(drop)
    }

    /// Gives every state variable its initial value; `model` is asked for those that come from the
    /// model.
    ///
    /// # Errors
    /// If the model has no value for a state, or one of another shape.
    pub fn initialise(&mut self, mut model: impl FnMut(&str) -> Option<Tensor>) -> Result<(), ExecutionError> {
        let programs = self.loaded.programs.clone();
        for (program, state) in programs.states() {
            self.set_state(&state.name, &initial_state(program, state, &mut model)?)?;
        }
        Ok(())
    }

    /// A state variable as a whole array.
    ///
    /// # Errors
    /// If there is no such state, or a rank failed.
    pub fn get_state(&self, name: &str) -> Result<Tensor, ExecutionError> {
        self.read(&Name::State(name.to_string()))
    }

    /// An initializer of the model as it is now, put together where it is in blocks.
    ///
    /// # Errors
    /// If no state is it or a part of it, or a rank failed.
    pub fn initializer(&self, name: &str) -> Result<Tensor, ExecutionError> {
        let states = self.loaded.initializers.get(name).into_iter().flatten();
        let parts = states.map(|state| (state.name.as_str(), state.block.as_ref()));
        let whole = put_together(parts, |state| self.get_state(state))?;
        whole.ok_or_else(|| ExecutionError::before(format!("there is no state `{name}`")))
    }

    /// The whole array of that name, with its last contents. Of replicas the first is taken.
    ///
    /// # Errors
    /// If no program has it, it is partial, or a rank failed.
    pub fn read(&self, name: &Name) -> Result<Tensor, ExecutionError> {
        let of_rank = name.clone();
        let parts = self.ask(&Request::Read(name.clone()), move |worker| Ok(worker.read(&of_rank)?))?;
        self.whole(name, parts)
    }

    /// The part of each rank of the array of that name, slot after slot; `None` if it has none.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn parts(&self, name: &Name) -> Result<Vec<Option<Vec<u8>>>, ExecutionError> {
        let (name, request) = (name.clone(), Request::Parts(name.clone()));
        self.ask(&request, move |worker| Ok(worker.named(&name).map(|id| worker.part(id)).transpose()?))
    }

    pub(super) fn named(&self, name: &Name) -> Result<&Buffer, ExecutionError> {
        let none = || match name {
            Name::State(name) => format!("there is no state `{name}`"),
            Name::Gradient(name) => format!("there is no gradient of `{name}`"),
            Name::Output(name) => format!("there is no output `{name}`"),
        };
        self.loaded.named(name).ok_or_else(|| ExecutionError::before(none()))
    }

    /// Puts the parts of all ranks together.
    pub(super) fn whole(&self, name: &Name, mut parts: Vec<Option<Vec<u8>>>) -> Result<Tensor, ExecutionError> {
        let found = self.named(name)?;
        let mesh = self.programs().mesh();
        let time_split = found.sharding.splits(mesh.microbatch_axis());
        if !found.sharding.partial.is_empty() || (time_split && found.slots != mesh.microbatches()) {
            return Err(ExecutionError::before(format!("`{}` is not whole on all ranks together", found.name)));
        }
        let layout = layout(mesh, found);
        let local = layout.local_bytes() as usize;
        // An array that one rank holds whole is not copied.
        let is_whole = |bytes: &mut Vec<u8>| local == bytes.len() && bytes.len() as u64 == layout.global_bytes();
        if let Some(bytes) = parts.iter_mut().find_map(|part| part.take_if(is_whole)) {
            return Ok(Tensor { dtype: found.dtype, shape: found.shape.clone(), bytes });
        }
        let mut tensor = Tensor::zeros(found.dtype, &found.shape);
        for (rank, part) in parts.iter().enumerate() {
            let Some(part) = part else { continue };
            let mut coordinates = mesh.coordinates(rank as u64);
            for (slot, bytes) in part.chunks_exact(local.max(1)).enumerate() {
                if let Some(time) = coordinates.last_mut() {
                    *time = slot as u64;
                }
                layout.unshard(bytes, &coordinates, &mut tensor.bytes);
            }
        }
        Ok(tensor)
    }
}
