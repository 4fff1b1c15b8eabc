//! The ranks of a program, and the steps they run together: all of them in this process, or one of
//! them, with the others in processes of their own.

mod carry;
pub mod follow;
pub mod processes;
pub mod replicas;
mod state;

use crate::comm::TrafficTable;
use crate::common::{self, Member};
use crate::cpu::team::Team;
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::guard::Guards;
use crate::load::LoadedSet;
use crate::profile::Profile;
use crate::tensor::Tensor;
use crate::worker::{Asked, CpuWorker, Worker};
use crate::world::World;
use processes::{Company, Request};
use shardc_ir::diagnostic::counted;
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

/// A running program: one thread (or team) for each rank that is here, waiting for what to do.
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
        let ranks = loaded.programs.mesh().world_size();
        let together = if world.is_together() { common::members(&loaded) } else { Ok((0..ranks).map(|_| None).collect()) };
        let worker = |(rank, common): (u64, Option<Member>)| {
            let worker = CpuWorker::new(loaded.of_rank(rank).clone(), rank, threads, world.clone())?;
            Ok(Box::new(worker.joined(common)) as Box<dyn Worker>)
        };
        let workers = together.and_then(|together| (0..).zip(together).map(worker).collect::<Result<_, Reason>>());
        let workers = workers.map_err(ExecutionError::before)?;
        Executor::over(loaded, world.clone(), workers, threads)
    }

    /// Starts ranks of any backend, one for each of the mesh, whose memory is zero but for the
    /// constants. Each has a thread of its own, or a team of `threads`.
    ///
    /// # Errors
    /// If the machine lacks threads.
    pub fn over(
        loaded: LoadedSet,
        world: Arc<World>,
        workers: Vec<Box<dyn Worker>>,
        threads: Threads,
    ) -> Result<Executor, ExecutionError> {
        let workers = crate::inject::inject(workers, &world);
        let started = (0..).zip(workers).map(|(rank, worker)| start(rank, worker, threads));
        let ranks = started.collect::<Result<_, _>>().map_err(ExecutionError::before)?;
        let guard = Guards::of(&loaded.programs).map(Arc::new);
        Ok(Executor { loaded, world, ranks, first: 0, company: None, guard, profile: None, step: 0 })
    }

    /// The programs.
    pub fn programs(&self) -> &PlanSet {
        &self.loaded.programs
    }

    /// The number of the first rank that is here.
    pub fn first_rank(&self) -> u64 {
        self.first
    }

    /// Where ranks meet.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// How many ranks are here: all of them, or the one of this process.
    pub fn ranks_here(&self) -> usize {
        self.ranks.len()
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
        self.run_step(batch, self.outputs(), None)
    }

    /// As [`Executor::step`], but of the program's outputs only those of these names are given, and
    /// brought from the ranks.
    ///
    /// # Errors
    /// As [`Executor::step`]; before it, if there is no output of a name.
    pub fn step_for(&mut self, batch: Arc<Vec<Tensor>>, outputs: &[String]) -> Result<StepResult, ExecutionError> {
        outputs.iter().try_for_each(|name| self.named(&Name::Output(name.clone())).map(drop))?;
        self.run_step(batch, outputs.to_vec(), None)
    }

    /// The names of all outputs.
    fn outputs(&self) -> Vec<String> {
        self.programs().outputs().into_iter().map(|(_, output)| output.name.clone()).collect()
    }

    /// Runs a step for the outputs of these names, but for what follows a norm at the guard that is
    /// not finite.
    fn run_step(
        &mut self,
        batch: Arc<Vec<Tensor>>,
        names: Vec<String>,
        guard: Option<Arc<Guards>>,
    ) -> Result<StepResult, ExecutionError> {
        let step = self.step;
        let inputs = self.programs().inputs().len();
        if batch.len() != inputs {
            let message = format!("{} for {}", counted(batch.len(), "array"), counted(inputs, "input"));
            return Err(ExecutionError { rank: None, step: Some(step), message, of_data: true });
        }
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
        self.run_step(batch, self.outputs(), self.guard.clone())
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

    /// For each rank that is here the bytes of its memory that it holds in common with others (see
    /// [`World::together`]).
    ///
    /// # Errors
    /// If a rank failed.
    pub fn in_common(&self) -> Result<Vec<u64>, ExecutionError> {
        self.on_each(None, |worker| Ok(worker.in_common()))
    }

    /// Runs `f` on every rank that is here at once. After an error no rank runs anything any more.
    pub(crate) fn on_each<R: Send + 'static>(
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

    /// As [`Executor::on_each`], with an item for each rank that is here, in their order.
    pub(crate) fn on_each_with<T: Send + 'static, R: Send + 'static>(
        &self,
        items: Vec<T>,
        f: impl Fn(&mut dyn Worker, T) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ExecutionError> {
        let (items, first): (Vec<_>, u64) = (items.into_iter().map(|item| Mutex::new(Some(item))).collect(), self.first);
        self.on_each(None, move |worker| {
            let slot = items.get((worker.place().number() - first) as usize);
            let item = slot.and_then(|slot| slot.lock().ok()?.take()).ok_or("a rank lacks its item")?;
            f(worker, item)
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

/// Starts the thread of a rank, which leads the others.
fn start(number: u64, mut worker: Box<dyn Worker>, threads: Threads) -> Result<Handle, Reason> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    let work = move || {
        while let Ok(job) = inbox.recv() {
            job(&mut *worker);
        }
    };
    let name = format!("rank {number}");
    let team = Team::new(threads.0, |helper| format!("rank {number}.{helper}"));
    let mut team = team.map_err(|why| reason!("rank {number}: {why}"))?;
    let thread = thread::Builder::new().name(name).spawn(move || team.lead(work));
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
