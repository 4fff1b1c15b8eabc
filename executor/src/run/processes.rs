//! An executor of one rank, with the others in processes of their own. All processes run the same
//! steps. Of what is read between steps, rank 0 says what it is: the others serve it until it ends.

use super::carry::Carry;
use super::{ExecutionError, Executor};
use crate::cpu::threads::Threads;
use crate::fault::Fault;
use crate::load::LoadedSet;
use crate::wires;
use crate::worker::{CpuWorker, Worker};
use crate::world::World;
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_launch::control::{Control, Failure, Place};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The other ranks.
#[derive(Debug)]
pub(super) struct Company {
    control: Arc<Control>,
    /// They have ended together with this one, or will with another executor.
    parted: AtomicBool,
    /// What an executor is for that ends with another one.
    purpose: String,
}

/// What rank 0 wants of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Their parts of an array, each once.
    Read(Name),
    /// Their parts of an array.
    Parts(Name),
    /// What they have sent.
    Traffic,
    /// The memory that they have taken.
    Memory,
    /// That they end.
    End,
}

/// Bytes of a rank's answer, and of a request, at most.
const MOST: u64 = 1 << 40;
const MOST_ASKED: u64 = 1 << 20;

impl Executor {
    /// The rank of `control` on the CPU, in a world of its own; the other processes start the same
    /// programs.
    ///
    /// # Errors
    /// As [`Executor::new`], here or on another rank.
    pub fn among(
        control: Arc<Control>,
        world: World,
        programs: impl Into<PlanSet>,
        threads: usize,
    ) -> Result<Executor, ExecutionError> {
        let rank = control.rank();
        let failed = |message: String| {
            control.fail(message.clone());
            ExecutionError { rank: Some(rank), ..ExecutionError::before(message) }
        };
        let loaded = LoadedSet::new(programs).map_err(|why| failed(why.into()))?;
        let ranks = loaded.programs.mesh().world_size();
        if ranks != control.world_size() {
            return Err(failed(format!("the plan has {ranks} ranks, and there are {} processes", control.world_size())));
        }
        let (world, threads) = (Arc::new(world), Threads(threads.max(1)));
        let worker = CpuWorker::new(loaded.of_rank(rank).clone(), rank, threads, world.clone());
        let worker = worker.map_err(|why| failed(why.into()))?;
        wires::connect(&control, &world).map_err(|failure| of_failure(&failure, None))?;
        Executor::of_process(loaded, world, Box::new(worker), threads, control)
    }

    /// One rank of any backend, which is that of `control`; its `world` is to hear of the failures
    /// of others ([`wires::hear`]).
    ///
    /// # Errors
    /// If the machine lacks threads.
    pub fn of_process(
        loaded: LoadedSet,
        world: Arc<World>,
        worker: Box<dyn Worker>,
        threads: Threads,
        control: Arc<Control>,
    ) -> Result<Executor, ExecutionError> {
        let mut executor = Executor::over(loaded, world, vec![worker], threads)?;
        executor.first = control.rank();
        executor.company = Some(Company { control, parted: AtomicBool::new(false), purpose: String::new() });
        Ok(executor)
    }

    /// An executor that runs beside another one among the same processes, if ranks are processes:
    /// they end with that one. What fails is told to be in the call `purpose`.
    pub fn beside(mut self, purpose: &str) -> Executor {
        if let Some(company) = &mut self.company {
            company.purpose = purpose.to_string();
            *company.parted.get_mut() = true;
        }
        self
    }

    /// Ends together with the ranks that are other processes, if there are any: on rank 0 when it
    /// has read all that it wants; the others serve it until then.
    ///
    /// # Errors
    /// If a rank fails meanwhile.
    pub fn part(&self) -> Result<(), ExecutionError> {
        let Some(company) = &self.company else { return Ok(()) };
        if company.is_first() {
            company.announce(&Request::End)?;
        } else {
            self.serve(company)?;
        }
        company.parted.store(true, Ordering::SeqCst);
        company.control.finish().map_err(|failure| of_failure(&failure, None))
    }

    fn serve(&self, company: &Company) -> Result<(), ExecutionError> {
        loop {
            match company.request()? {
                Request::Read(name) => {
                    let asked = name.clone();
                    self.ask(&Request::Read(name), move |worker| Ok(worker.read(&asked)?))?;
                }
                Request::Parts(name) => drop(self.parts(&name)?),
                Request::Traffic => drop(self.traffic()?),
                Request::Memory => drop(self.memory()?),
                Request::End => return Ok(()),
            }
        }
    }

    /// As [`Executor::part`] of an executor that is given up on rank 0.
    pub(super) fn dismiss(&mut self) {
        if let Some(company) = &self.company
            && company.is_first()
            && !company.parted.load(Ordering::SeqCst)
            && company.control.failure().is_none()
        {
            // Whoever gave it up has a reason of its own.
            let _ = self.part();
        }
    }

    /// Runs `f` on every rank, here and elsewhere; all get the results of all.
    pub(super) fn on_all<R: Carry + Send + 'static>(
        &self,
        step: Option<u64>,
        f: impl Fn(&mut dyn Worker) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ExecutionError> {
        let Some(company) = &self.company else { return self.on_each(step, f) };
        let step_of_all = step.filter(|_| company.purpose.is_empty());
        company.control.at(Place { step: step_of_all, call: company.purpose.clone() });
        let own = self.on_each(step, f)?;
        let all = company.control.all_gather(&own.bytes(), MOST).map_err(|failure| of_failure(&failure, step))?;
        company.read(&all)
    }

    /// Runs `f` on every rank as rank 0 wants it, which alone gets the results.
    pub(super) fn ask<R: Carry + Send + 'static>(
        &self,
        request: &Request,
        f: impl Fn(&mut dyn Worker) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ExecutionError> {
        let Some(company) = &self.company else { return self.on_each(None, f) };
        if company.is_first() {
            company.announce(request)?;
        }
        let own = self.on_each(None, f)?;
        let all = company.control.gather(&own.bytes(), MOST).map_err(|failure| of_failure(&failure, None))?;
        company.read(&all)
    }
}

impl Company {
    fn is_first(&self) -> bool {
        self.control.rank() == 0
    }

    fn announce(&self, request: &Request) -> Result<(), ExecutionError> {
        let sent = self.control.broadcast(&request.bytes(), MOST_ASKED);
        sent.map(drop).map_err(|failure| of_failure(&failure, None))
    }

    fn request(&self) -> Result<Request, ExecutionError> {
        let bytes = self.control.broadcast(&[], MOST_ASKED).map_err(|failure| of_failure(&failure, None))?;
        Request::of(&bytes).ok_or_else(|| self.strange())
    }

    /// The results of ranks, each of which has one.
    fn read<R: Carry>(&self, all: &[Vec<u8>]) -> Result<Vec<R>, ExecutionError> {
        let each: Option<Vec<Vec<R>>> = all.iter().map(|bytes| Vec::of(bytes)).collect();
        each.map(|each| each.into_iter().flatten().collect()).ok_or_else(|| self.strange())
    }

    fn strange(&self) -> ExecutionError {
        of_failure(&self.control.fail("what another rank has sent means nothing"), None)
    }

    /// The first failure; all ranks hear of `fault`, of the rank that is here.
    pub(super) fn failed(&self, step: Option<u64>, fault: Option<Fault>) -> Option<ExecutionError> {
        let Some(fault) = fault else { return self.control.failure().map(|failure| of_failure(&failure, step)) };
        let failure = self.control.failure().unwrap_or_else(|| self.control.fail(fault.message.clone()));
        if failure.rank == self.control.rank() {
            return Some(ExecutionError { rank: Some(failure.rank), step, message: fault.message, of_data: fault.of_data });
        }
        let error = of_failure(&failure, step);
        // Where this rank waited for one that can say nothing, it says itself.
        let says_more = wires::was_silent(&failure) && fault.message != failure.what();
        Some(if says_more { ExecutionError { message: fault.message, ..error } } else { error })
    }
}

/// The error of a failure, in its step or that of this rank.
fn of_failure(failure: &Failure, step: Option<u64>) -> ExecutionError {
    let message = if wires::was_silent(failure) { failure.told() } else { failure.what() };
    ExecutionError { rank: Some(failure.rank), step: failure.place.step.or(step), message, of_data: false }
}

impl Carry for Request {
    fn put(&self, to: &mut Vec<u8>) {
        let (kind, name) = match self {
            Request::Read(name) => (0, Some(name)),
            Request::Parts(name) => (1, Some(name)),
            Request::Traffic => (2, None),
            Request::Memory => (3, None),
            Request::End => (4, None),
        };
        let (of, text) = match name {
            Some(Name::State(text)) => (0, text.as_str()),
            Some(Name::Gradient(text)) => (1, text.as_str()),
            Some(Name::Output(text)) => (2, text.as_str()),
            None => (0, ""),
        };
        (kind, (of, text.as_bytes().to_vec())).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Request> {
        let (kind, (of, text)) = <(u64, (u64, Vec<u8>))>::take(from)?;
        let text = String::from_utf8(text).ok()?;
        let name = match of {
            0 => Name::State(text),
            1 => Name::Gradient(text),
            2 => Name::Output(text),
            _ => return None,
        };
        let known = [Request::Read(name.clone()), Request::Parts(name), Request::Traffic, Request::Memory, Request::End];
        known.into_iter().nth(kind as usize)
    }
}
