//! What the host writes to ranks and reads from them between steps: whole arrays by name.

use super::processes::Request;
use super::{ExecutionError, Executor};
use crate::fault::Fault;
use crate::init::{initial_state, put_together};
use crate::memory::layout;
use crate::oddity::Oddity;
use crate::rank::Rank;
use crate::tensor::Tensor;
use crate::worker::Worker;
use shardc_ir::plan::set::Name;
use shardc_ir::plan::{Buffer, StateVariable};
use shardc_ir::train::StateInit;

/// Bytes of whole arrays that are handed over together: each time, every rank's thread is woken.
const TOGETHER: u64 = 1 << 20;

/// Bytes of a piece of an array, a multiple of those of any element.
const PIECE: u64 = 1 << 23;

/// The part of each rank of an array, if it has one.
type Parts = Vec<Option<Vec<u8>>>;

impl Executor {
    /// Sets a state variable from its whole array; floats are converted.
    ///
    /// # Errors
    /// If there is no such state, or the shape differs.
    pub fn set_state(&mut self, name: &str, value: &Tensor) -> Result<(), ExecutionError> {
        self.set_states([(name, value.clone())])
    }

    /// As [`Executor::set_state`] of several, many of them at once.
    ///
    /// # Errors
    /// As [`Executor::set_state`]; those before may be set.
    pub fn set_states<'n>(&mut self, values: impl IntoIterator<Item = (&'n str, Tensor)>) -> Result<(), ExecutionError> {
        self.write_states(values.into_iter().map(|(name, value)| self.state_value(name, value)))
    }

    fn write_states(&self, values: impl Iterator<Item = Result<(Name, Tensor), ExecutionError>>) -> Result<(), ExecutionError> {
        let (mut together, mut bytes) = (vec![], 0);
        for value in values {
            let (state, value) = value?;
            bytes += value.bytes.len() as u64;
            together.push((state, value));
            if bytes > TOGETHER {
                self.write_together(std::mem::take(&mut together))?;
                bytes = 0;
            }
        }
        self.write_together(together)
    }

    /// The value of a state variable, in its type where both are floats.
    fn state_value(&self, name: &str, value: Tensor) -> Result<(Name, Tensor), ExecutionError> {
        let state = Name::State(name.to_string());
        let found = self.named(&state)?;
        let casts = value.dtype.is_float() && found.dtype.is_float();
        Ok((state, if casts { value.into_dtype(found.dtype) } else { value }))
    }

    /// Wakes every rank once, for all of them.
    fn write_together(&self, values: Vec<(Name, Tensor)>) -> Result<(), ExecutionError> {
        let write = move |worker: &mut dyn Worker| {
            for (state, value) in &values {
                let Some(id) = worker.named(state) else { continue };
                worker.place().check_type(id, value).map_err(Fault::of_data)?;
                worker.write(id, value)?;
            }
            Ok(())
        };
        self.on_each(None, write).map(drop)
    }

    /// Makes all elements of state variables zero, where they are.
    fn zero_states(&self, states: Vec<Name>) -> Result<(), ExecutionError> {
        let zero = move |worker: &mut dyn Worker| {
            for state in &states {
                let Some(id) = worker.named(state) else { continue };
                worker.zero(id)?;
            }
            Ok(())
        };
        self.on_each(None, zero).map(drop)
    }

    /// Gives every state variable its initial value; `model` is asked for those that come from the
    /// model.
    ///
    /// # Errors
    /// If the model has no value for a state, or one of another shape.
    pub fn initialise(&mut self, mut model: impl FnMut(&str) -> Option<Tensor>) -> Result<(), ExecutionError> {
        let programs = self.loaded.programs.clone();
        let is_zero = |state: &StateVariable| state.init == StateInit::Zeros;
        let (zeros, others): (Vec<_>, Vec<_>) = programs.states().into_iter().partition(|(_, state)| is_zero(state));
        let value =
            |(program, state): (_, &StateVariable)| self.state_value(&state.name, initial_state(program, state, &mut model)?);
        self.write_states(others.into_iter().map(value))?;
        // Last, so that less is in memory beside a value of the model.
        self.zero_states(zeros.iter().map(|(_, state)| Name::State(state.name.clone())).collect())
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

    /// As [`Executor::initializer`], piece by piece: lists of elements that follow one another.
    ///
    /// # Errors
    /// As [`Executor::initializer`]; those of `each`.
    pub fn initializer_in_pieces<E: From<ExecutionError>>(
        &self,
        name: &str,
        each: &mut dyn FnMut(Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.loaded.initializers.get(name).map(Vec::as_slice) {
            Some([state]) if state.block.is_none() => self.state_in_pieces(&state.name, each),
            _ => each(self.initializer(name)?),
        }
    }

    /// As [`Executor::get_state`], piece by piece: lists of elements that follow one another. What
    /// no rank here holds whole is one piece.
    ///
    /// # Errors
    /// As [`Executor::get_state`]; those of `each`.
    pub fn state_in_pieces<E: From<ExecutionError>>(
        &self,
        name: &str,
        each: &mut dyn FnMut(Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let state = Name::State(name.to_string());
        let found = self.named(&state)?;
        let layout = layout(self.programs().mesh(), found);
        let whole = layout.global_bytes();
        if self.company.is_some() || found.slots != 1 || layout.local_bytes() != whole {
            return each(self.get_state(name)?);
        }
        for start in (0..whole).step_by(PIECE as usize) {
            let (of_rank, piece) = (state.clone(), start..whole.min(start + PIECE));
            let parts = self.on_each(None, move |worker| Ok(worker.read_piece(&of_rank, piece.clone())?))?;
            let bytes = parts.into_iter().flatten().next();
            let bytes = bytes.ok_or_else(|| ExecutionError::before(format!("no rank holds `{name}`")))?;
            let elements = bytes.len() as u64 / found.dtype.bytes();
            each(Tensor { dtype: found.dtype, shape: vec![elements], bytes })?;
        }
        Ok(())
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
        self.ask(&request, move |worker| part(worker, &name))
    }

    /// For each rank the worst oddity of its part of the array of that name.
    ///
    /// # Errors
    /// If there is no such array, or a rank failed.
    pub(crate) fn oddities(&self, name: &Name) -> Result<Vec<Option<Oddity>>, ExecutionError> {
        let (name, dtype) = (name.clone(), self.named(name)?.dtype);
        if self.company.is_some() {
            let parts = self.parts(&name)?.into_iter();
            return Ok(parts.map(|part| Oddity::of(dtype, &part?)).collect());
        }
        self.on_each(None, move |worker| {
            let Some(id) = worker.named(&name) else { return Ok(None) };
            let mut worst = None;
            for range in worker.place().ranges(id)? {
                worst = worst.max(Oddity::of(dtype, &worker.bytes(range)?));
            }
            Ok(worst)
        })
    }

    /// The ranks themselves, which are without memory here from then on; `None` where they are not
    /// all on the CPU of this process.
    pub(crate) fn give_ranks(&self) -> Result<Option<Vec<Rank>>, ExecutionError> {
        match self.company {
            Some(_) => Ok(None),
            None => Ok(self.on_each(None, |worker| Ok(worker.give_rank()?))?.into_iter().collect()),
        }
    }

    /// As [`Executor::parts`] of several arrays, one after another.
    pub(crate) fn parts_of(&self, names: &[Name]) -> Result<Vec<Parts>, ExecutionError> {
        if self.company.is_some() {
            return names.iter().map(|name| self.parts(name)).collect();
        }
        let own = names.to_vec();
        self.of_each_rank(names.len(), move |worker, at| part(worker, &own[at]))
    }

    /// As [`Executor::read`] of several arrays, one after another.
    ///
    /// # Errors
    /// As [`Executor::read`].
    pub fn read_each(&self, names: &[Name]) -> Result<Vec<Tensor>, ExecutionError> {
        if self.company.is_some() {
            return names.iter().map(|name| self.read(name)).collect();
        }
        let own = names.to_vec();
        let parts = self.of_each_rank(names.len(), move |worker, at| Ok(worker.read(&own[at])?))?;
        names.iter().zip(parts).map(|(name, parts)| self.whole(name, parts)).collect()
    }

    /// For each of `count` arrays what every rank that is here has of it.
    fn of_each_rank(
        &self,
        count: usize,
        of: impl Fn(&mut dyn Worker, usize) -> Result<Option<Vec<u8>>, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<Parts>, ExecutionError> {
        let ranks = self.on_each(None, move |worker| (0..count).map(|at| of(worker, at)).collect::<Result<Parts, Fault>>())?;
        let mut arrays = vec![vec![]; count];
        for rank in ranks {
            arrays.iter_mut().zip(rank).for_each(|(array, part)| array.push(part));
        }
        Ok(arrays)
    }

    /// The names of arrays, those together that are small.
    pub(crate) fn together(&self, names: Vec<Name>) -> Vec<Vec<Name>> {
        let (mut all, mut bytes) = (vec![], u64::MAX);
        for name in names {
            let own = self.loaded.named(&name).map_or(0, |found| found.shape.iter().product::<u64>() * found.dtype.bytes());
            bytes = bytes.saturating_add(own);
            if bytes > TOGETHER {
                all.push(vec![]);
                bytes = own;
            }
            if let Some(last) = all.last_mut() {
                last.push(name);
            }
        }
        all
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

/// The part of this rank of an array, slot after slot, if it has one.
fn part(worker: &mut dyn Worker, name: &Name) -> Result<Option<Vec<u8>>, Fault> {
    Ok(worker.named(name).map(|id| worker.part(id)).transpose()?)
}
