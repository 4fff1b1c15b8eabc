//! The ranks of a program, and the steps they run together: all of them in this process, or one of
//! them, with the others in processes of their own.

mod carry;
pub mod processes;
pub mod replicas;

use crate::comm::TrafficTable;
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::guard::Guards;
use crate::init::initial_value;
use crate::load::LoadedSet;
use crate::memory::layout;
use crate::profile::Profile;
use crate::tensor::Tensor;
use crate::worker::{Asked, CpuWorker, Worker};
use crate::world::World;
use processes::{Company, Request};
use shardc_ir::diagnostic::counted;
use shardc_ir::plan::Buffer;
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

/// A running program: one thread (or pool) for each rank that is here, waiting for what to do.
#[derive(Debug)]
pub struct Executor {
    pub(crate) loaded: LoadedSet,
    world: Arc<World>,
    ranks: Vec<Handle>,
    /// The number of the first rank that is here.
    first: u64,
    company: Option<Company>,
    guard: Option<Arc<Guards>>,
    profile: Option<Profile>,
    step: u64,
}

/// Why a run ended; the machine's failure or bad data, never the program's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionError {
    /// The first rank that failed.
    pub rank: Option<u64>,
    /// The step, from 0, if one ran.
    pub step: Option<u64>,
    /// The error, with the text of the op.
    pub message: String,
    /// Whether the data or the weights are wrong, and not the machine.
    pub of_data: bool,
}

/// The result of one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepResult {
    /// The program's outputs, whole, by name.
    pub outputs: BTreeMap<String, Tensor>,
}

/// For people, who count steps from 1.
impl fmt::Display for ExecutionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some(step) = self.step {
            write!(f, "step {}: ", step + 1)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExecutionError {}

#[derive(Debug)]
struct Handle {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
}

type Job = Box<dyn FnOnce(&mut dyn Worker) + Send>;

impl Executor {
    /// Checks the programs of a mesh, or the one of all its ranks, and starts the ranks, each with
    /// `threads` threads. Memory is zero but for the constants.
    ///
    /// # Errors
    /// If a program is not safe to run, or the machine lacks memory or threads.
    pub fn new(programs: impl Into<PlanSet>, threads: usize) -> Result<Executor, ExecutionError> {
        Executor::within(World::default(), programs, threads)
    }

    /// As [`Executor::new`], in a world of one's own.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn within(world: World, programs: impl Into<PlanSet>, threads: usize) -> Result<Executor, ExecutionError> {
        let loaded = LoadedSet::new(programs).map_err(ExecutionError::before)?;
        let world = Arc::new(world);
        let threads = Threads(threads.max(1));
        let worker = |rank| CpuWorker::new(loaded.of_rank(rank).clone(), rank, threads, world.clone());
        let workers = (0..loaded.programs.mesh().world_size()).map(|rank| Ok(Box::new(worker(rank)?) as Box<dyn Worker>));
        let workers = workers.collect::<Result<_, Reason>>().map_err(ExecutionError::before)?;
        Executor::over(loaded, world.clone(), workers, threads)
    }

    /// Starts ranks of any backend, one for each of the mesh, whose memory is zero but for the
    /// constants. Each has a thread of its own, or a pool of `threads`.
    ///
    /// # Errors
    /// If the machine lacks threads.
    pub fn over(
        loaded: LoadedSet,
        world: Arc<World>,
        workers: Vec<Box<dyn Worker>>,
        threads: Threads,
    ) -> Result<Executor, ExecutionError> {
        let started = (0..).zip(workers).map(|(rank, worker)| start(rank, worker, threads));
        let ranks = started.collect::<Result<_, _>>().map_err(ExecutionError::before)?;
        let guard = Guards::of(&loaded.programs).map(Arc::new);
        Ok(Executor { loaded, world, ranks, first: 0, company: None, guard, profile: None, step: 0 })
    }

    /// The programs.
    pub fn programs(&self) -> &PlanSet {
        &self.loaded.programs
    }

    /// The number of the next step, from 0.
    pub fn next_step(&self) -> u64 {
        self.step
    }

    /// Sets the number of the next step: where training resumes.
    pub fn set_next_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Times every turn of the steps that follow.
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// The times since [`Executor::start_profile`].
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Runs one step over a batch: a whole array for each input of [`PlanSet::inputs`], in
    /// their order.
    ///
    /// # Errors
    /// Bad data or a failed rank. No step can follow.
    pub fn step(&mut self, batch: Arc<Vec<Tensor>>) -> Result<StepResult, ExecutionError> {
        self.run_step(batch, None)
    }

    /// Runs a step, but for what follows a norm at the guard that is not finite.
    fn run_step(&mut self, batch: Arc<Vec<Tensor>>, guard: Option<Arc<Guards>>) -> Result<StepResult, ExecutionError> {
        let step = self.step;
        let inputs = self.programs().inputs().len();
        if batch.len() != inputs {
            let message = format!("{} for {}", counted(batch.len(), "array"), counted(inputs, "input"));
            return Err(ExecutionError { rank: None, step: Some(step), message, of_data: true });
        }
        let names: Vec<String> = self.programs().outputs().into_iter().map(|(_, output)| output.name.clone()).collect();
        let outputs = Arc::new(names.iter().cloned().map(Name::Output).collect());
        let guards = guard.as_ref().map(|guard| guard.each.clone());
        let timed_from = self.profile.is_some().then(Instant::now);
        let asked = Asked { number: step, batch, outputs, guards, timed_from };
        let mut parts = self.on_all(Some(step), move |worker| worker.step(&asked))?;
        if let Some(profile) = &mut self.profile {
            profile.add(parts.iter_mut().filter_map(|rank| rank.timed.take()).collect());
        }
        let guard = guard.filter(|_| parts.iter().any(|rank| rank.given_up));
        self.step += u64::from(guard.is_none());
        let mut result = StepResult::default();
        for (i, name) in names.into_iter().enumerate() {
            if guard.as_ref().is_some_and(|guard| !guard.known.contains(&name)) {
                continue;
            }
            let parts = parts.iter_mut().map(|rank| rank.outputs[i].take()).collect();
            let whole = self.whole(&Name::Output(name.clone()), parts)?;
            result.outputs.insert(name, whole);
        }
        Ok(result)
    }

    /// As [`Executor::step`], but a step whose gradients are not finite is given up before they
    /// change any parameter: it gives the outputs that are known by then, the norm of the gradients
    /// among them, and the next step has the same number.
    ///
    /// # Errors
    /// As [`Executor::step`].
    pub fn step_if_finite(&mut self, batch: Arc<Vec<Tensor>>) -> Result<StepResult, ExecutionError> {
        self.run_step(batch, self.guard.clone())
    }

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
            let found = program.buffer(state.buffer).map_err(ExecutionError::before)?;
            let (name, block) = (state.initializer(), &state.block);
            let shape = block.as_ref().map_or(found.shape.clone(), |block| block.whole_shape(&found.shape));
            let value = initial_value(&state.init, name, found.dtype, &shape, program.seed);
            let value = value.or_else(|| model(name));
            let value = value.ok_or_else(|| ExecutionError::before(format!("the model has no weights for `{name}`")))?;
            match block {
                Some(_) if value.shape != shape => {
                    let message = format!("`{name}` is {:?}, not {shape:?}", value.shape);
                    return Err(ExecutionError { of_data: true, ..ExecutionError::before(message) });
                }
                Some(block) => self.set_state(&state.name, &value.block(block.axis, block.start, found.shape[block.axis]))?,
                None => self.set_state(&state.name, &value)?,
            }
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
        let mut whole: Option<Tensor> = None;
        for state in self.loaded.initializers.get(name).into_iter().flatten() {
            let value = self.get_state(&state.name)?;
            let Some(block) = &state.block else { return Ok(value) };
            let whole = whole.get_or_insert_with(|| Tensor::zeros(value.dtype, &block.whole_shape(&value.shape)));
            whole.set_block(block.axis, block.start, &value);
        }
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

    /// The traffic of each rank so far, by kind and axes.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn traffic(&self) -> Result<Vec<TrafficTable>, ExecutionError> {
        self.ask(&Request::Traffic, |worker| Ok(worker.traffic()))
    }

    /// For each rank the bytes of memory that it has taken from the machine, and those up to the
    /// last that was used, where its backend sees that.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn memory(&self) -> Result<Vec<Option<(u64, u64)>>, ExecutionError> {
        self.ask(&Request::Memory, |worker| Ok(worker.memory()))
    }

    fn named(&self, name: &Name) -> Result<&Buffer, ExecutionError> {
        let none = || match name {
            Name::State(name) => format!("there is no state `{name}`"),
            Name::Gradient(name) => format!("there is no gradient of `{name}`"),
            Name::Output(name) => format!("there is no output `{name}`"),
        };
        self.loaded.named(name).ok_or_else(|| ExecutionError::before(none()))
    }

    /// Puts the parts of all ranks together.
    fn whole(&self, name: &Name, mut parts: Vec<Option<Vec<u8>>>) -> Result<Tensor, ExecutionError> {
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

    /// Runs `f` on every rank that is here at once. After an error no rank runs anything any more.
    fn on_each<R: Send + 'static>(
        &self,
        step: Option<u64>,
        f: impl Fn(&mut dyn Worker) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ExecutionError> {
        if let Some(error) = self.failed(step, None) {
            return Err(error);
        }
        let f = Arc::new(f);
        // Of ranks elsewhere nobody here knows whether they can go on.
        self.world.begin(if self.company.is_some() { 0 } else { self.ranks.len() as u64 });
        let mut replies = vec![];
        for (number, handle) in (self.first..).zip(&self.ranks) {
            let (sender, receiver) = mpsc::channel();
            let (f, world) = (f.clone(), self.world.clone());
            let job: Job = Box::new(move |worker| {
                let result =
                    catch_unwind(AssertUnwindSafe(|| f(worker))).unwrap_or_else(|panic| Err(panic_message(&*panic).into()));
                let result = result.inspect_err(|fault| world.fail(number, fault.clone()));
                world.end(number);
                // The executor waits for this reply; if it is gone, nobody needs it.
                let _ = sender.send(result);
            });
            if handle.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
                self.world.fail(number, "its thread is gone");
            }
            replies.push(receiver);
        }
        let gone = || Err(Fault::from("a rank's thread is gone"));
        let results: Vec<Result<R, Fault>> = replies.into_iter().map(|reply| reply.recv().unwrap_or_else(|_| gone())).collect();
        results.into_iter().collect::<Result<_, _>>().map_err(|fault| {
            let message = fault.message.clone();
            self.failed(step, Some(fault)).unwrap_or_else(|| ExecutionError::before(message))
        })
    }

    /// The first failure of a rank, if there was one; `fault` is that of a rank that is here.
    fn failed(&self, step: Option<u64>, fault: Option<Fault>) -> Option<ExecutionError> {
        if let Some(company) = &self.company {
            return company.failed(step, fault);
        }
        let failure = self.world.failure()?;
        let Fault { message, of_data } = failure.fault;
        Some(ExecutionError { rank: Some(failure.rank), step, message, of_data })
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.dismiss();
        for handle in &mut self.ranks {
            handle.jobs = None;
        }
        for handle in &mut self.ranks {
            if let Some(thread) = handle.thread.take() {
                // A panic of the thread was reported as the failure of its rank.
                let _ = thread.join();
            }
        }
    }
}

impl ExecutionError {
    /// An error before any step.
    pub(crate) fn before(message: impl Into<String>) -> ExecutionError {
        ExecutionError { rank: None, step: None, message: message.into(), of_data: false }
    }
}

/// Starts the thread of a rank. With several threads, it is a pool's first, so that kernels find
/// the others beside them.
fn start(number: u64, mut worker: Box<dyn Worker>, threads: Threads) -> Result<Handle, Reason> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    let work = move || {
        while let Ok(job) = inbox.recv() {
            job(&mut *worker);
        }
    };
    let name = format!("rank {number}");
    let thread = if threads.0 == 1 {
        thread::Builder::new().name(name).spawn(work)
    } else {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.0)
            .thread_name(move |i| format!("rank {number}.{i}"))
            .build()
            .map_err(|e| reason!("rank {number} has no threads: {e}"))?;
        thread::Builder::new().name(name).spawn(move || pool.install(work))
    };
    let thread = thread.map_err(|e| reason!("rank {number} has no thread: {e}"))?;
    Ok(Handle { jobs: Some(jobs), thread: Some(thread) })
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("internal error: {}", text.unwrap_or_else(|| "a panic without words".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Operands;
    use crate::comm::Communicator;
    use shardc_ir::dtype::DType;
    use shardc_ir::kernel::{Collective, CollectiveKind};
    use shardc_ir::mesh::{AxisId, Mesh};
    use shardc_ir::plan::Program;
    use shardc_ir::reduce_kind::ReduceKind;
    use shardc_ir::train::{Decay, LearningRate};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn people_count_steps_from_1() {
        let error = ExecutionError { rank: Some(1), step: Some(0), message: "lost".to_string(), of_data: false };
        assert_eq!(error.to_string(), "rank 1: step 1: lost");
    }

    #[test]
    fn a_panic_wakes_the_ranks_that_wait() {
        let program = Program {
            name: "empty".into(),
            mesh: Mesh::new([("dp".to_string(), 3)], 1),
            batch: 3,
            buffers: vec![],
            arena_bytes: 0,
            states: vec![],
            inputs: vec![],
            constants: vec![],
            outputs: vec![],
            tasks: vec![],
            messages: vec![],
            order: vec![],
            learning_rate: LearningRate { lr: 0.0, warmup: 0, decay: Decay::Constant },
            seed: 0,
        };
        let executor = Executor::new(program, 1).unwrap();
        let (first, world) = (AtomicBool::new(true), executor.world.clone());
        let error = executor.on_each(Some(7), move |worker| {
            assert!(!first.swap(false, Ordering::SeqCst), "it broke");
            let (kind, op, axes) = (CollectiveKind::AllReduce, ReduceKind::Sum, vec![AxisId(0)]);
            let call = Collective { kind, op, axes, dtype: DType::F32, counts: vec![1] };
            let mut number = [0.0f32];
            let operands = Operands { reads: vec![&[]], writes: vec![bytemuck::cast_slice_mut(&mut number)] };
            let mut communicator =
                Communicator::new(world.clone(), worker.place().program().mesh.clone(), worker.place().number());
            Ok(communicator.run(&call, operands)?)
        });
        let error = error.unwrap_err();
        assert_eq!((error.step, error.message.as_str()), (Some(7), "internal error: it broke"));
        assert!(executor.traffic().is_err());
    }
}
