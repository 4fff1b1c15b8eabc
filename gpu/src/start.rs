//! From checked programs to ranks that run on GPUs.

use crate::choices::Choices;
use crate::cuda::{Cuda, Libraries, Needed};
use crate::device::{CommId, Description, Device};
use crate::groups::Groups;
use crate::rank::{Code, GpuRank, Parts, others_run};
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{self, Table, Work};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::fault::Fault;
use shardc_executor::guard::Guards;
use shardc_executor::load::LoadedSet;
use shardc_executor::memory::Place;
use shardc_executor::run::{ExecutionError, Executor};
use shardc_executor::wires;
use shardc_executor::worker::Worker;
use shardc_executor::world::World;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_launch::control::Control;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long NCCL may take to connect ranks that are all there.
const JOIN: Duration = Duration::from_secs(60);

/// Bytes of what a rank has chosen, at most.
const MOST_CHOSEN: u64 = 64 << 20;

/// Makes the machine code of kernels for an architecture, in their order.
pub type Assemble<'a> = &'a (dyn Fn(&Kernels, u32) -> Result<Vec<Vec<u8>>, Reason> + Sync);

/// How programs are started on GPUs.
pub struct Options<'a> {
    /// Whether steps are captured as graphs.
    pub graphs: bool,
    /// Whether algorithms of products that have none yet are timed.
    pub tune: bool,
    /// What makes the machine code of kernels.
    pub assemble: Assemble<'a>,
    /// What was chosen for products before; what is chosen now is added.
    pub choices: &'a mut Choices,
}

/// A device that ranks compute on: made of a GPU, or a GPU that is watched.
pub trait Open<D>: Sync {
    /// The device of a rank.
    ///
    /// # Errors
    /// If there is none.
    fn open(&self, libraries: &Libraries, rank: u64) -> Result<D, Reason>;
}

/// The GPU with the number of a rank that is a process, among the processes of its machine. Where
/// there are fewer GPUs several ranks share one, which NCCL allows to ranks of different hosts
/// only.
#[derive(Debug)]
pub struct LocalGpu(pub u64);

impl Open<Cuda> for LocalGpu {
    fn open(&self, libraries: &Libraries, _: u64) -> Result<Cuda, Reason> {
        Cuda::open(libraries, (self.0 % u64::from(libraries.gpus())) as u32)
    }
}

/// The GPU with the number of the rank.
#[derive(Debug)]
pub struct OwnGpu;

impl Open<Cuda> for OwnGpu {
    fn open(&self, libraries: &Libraries, rank: u64) -> Result<Cuda, Reason> {
        Cuda::open(libraries, rank as u32)
    }
}

/// The launch tables of programs, all of them proven, and their kernels.
///
/// # Errors
/// The steps that have no kernel, or what is wrong with a table.
pub fn tables(set: &PlanSet) -> Result<(PlanSet<Table>, Kernels), Reason> {
    let mut kernels = Kernels::default();
    let programs = set.programs.iter().map(|program| table::derive(program, &mut kernels)).collect();
    if !kernels.missing.is_empty() {
        let lines = kernels.missing.iter().map(|(why, (steps, first))| format!("{why}: {steps} steps, first `{first}`"));
        return Err(reason!("steps of the plan cannot run on a GPU\n{}", lines.collect::<Vec<_>>().join("\n")));
    }
    let tables = PlanSet { axes: set.axes.clone(), programs, of: set.of.clone() };
    for (table, program) in tables.programs.iter().zip(&set.programs) {
        table::check(table, program, &mut kernels)
            .map_err(|why| reason!("a launch table does not carry out its program: {why}"))?;
    }
    Ok((tables, kernels))
}

/// What tables need beside the driver.
pub fn needed(tables: &PlanSet<Table>, ranks: u64) -> Needed {
    let rows = tables.programs.iter().flat_map(|table| &table.sections).flat_map(|section| &section.rows);
    let cublaslt = { rows }.any(|row| matches!(row.work, Work::Product { .. }));
    Needed { cublaslt, nccl: ranks > 1 }
}

/// Starts all ranks of programs in this process, each with a device of its own, at memory that is
/// zero but for the constants.
///
/// # Errors
/// Everything that is missing; too few GPUs, or too little memory; what a library says.
pub fn start<D: Device + 'static>(
    loaded: LoadedSet,
    world: World,
    open: &dyn Open<D>,
    options: Options<'_>,
) -> Result<Executor, ExecutionError> {
    let world = Arc::new(world);
    let ranks: Vec<u64> = (0..loaded.programs.mesh().world_size()).collect();
    let workers = Start { loaded: &loaded, world: &world, open, control: None }.workers(&ranks, options)?;
    Executor::over(loaded, world, workers, Threads(1))
}

/// Starts the rank of `control`, which is a process of its own, as [`start`] starts all.
///
/// # Errors
/// As [`start`], here or on another rank.
pub fn start_among<D: Device + 'static>(
    control: Arc<Control>,
    loaded: LoadedSet,
    world: World,
    open: &dyn Open<D>,
    options: Options<'_>,
) -> Result<Executor, ExecutionError> {
    let world = Arc::new(world);
    wires::hear(&control, &world);
    let start = Start { loaded: &loaded, world: &world, open, control: Some(&control) };
    let worker = start.workers(&[control.rank()], options).inspect_err(|error| {
        control.fail(error.message.clone());
    });
    let worker = worker?.pop().ok_or_else(|| failed(None, "a rank is not there".into()))?;
    Executor::of_process(loaded, world, worker, Threads(1), control)
}

fn failed(rank: Option<u64>, why: Reason) -> ExecutionError {
    ExecutionError { rank, step: None, message: why.into(), of_data: false }
}

/// What ranks are started with.
struct Start<'a, D> {
    loaded: &'a LoadedSet,
    world: &'a Arc<World>,
    open: &'a dyn Open<D>,
    /// The other processes, if ranks are processes.
    control: Option<&'a Control>,
}

impl<D: Device + 'static> Start<'_, D> {
    /// The `ranks` that are here.
    fn workers(&self, ranks: &[u64], options: Options<'_>) -> Result<Vec<Box<dyn Worker>>, ExecutionError> {
        let Start { loaded, world, .. } = *self;
        let before = |why: Reason| failed(None, why);
        let set = &*loaded.programs;
        let all = set.mesh().world_size();
        let (tables, kernels) = tables(set).map_err(before)?;
        let libraries = Libraries::find(needed(&tables, all)).map_err(|missing| before(reason!("{missing}")))?;
        if u64::from(libraries.gpus()) < ranks.len() as u64 {
            return Err(before(reason!("the plan is for {all} GPUs, this machine has {}", libraries.gpus())));
        }
        let open = |rank: &u64| self.open.open(&libraries, *rank).map_err(|why| failed(Some(*rank), why));
        let devices: Vec<D> = ranks.iter().map(open).collect::<Result<_, _>>()?;
        let description = one_kind(&devices).map_err(before)?;
        let code = code(&kernels, (options.assemble)(&kernels, description.arch).map_err(before)?);
        let library = libraries.cublaslt();
        let version = library.map_or([0; 3], |library| library.version());
        if !options.choices.are_for(&description.name, version) {
            *options.choices = Choices { device: description.name.clone(), library: version, products: vec![] };
        }
        let id = if all > 1 { Some(self.id(&devices[0]).map_err(before)?) } else { None };
        let (guards, began) = (Guards::of(set), Instant::now());
        let started = on_each(world, ranks, devices, |rank, device| {
            let at = set.at(set.mesh(), rank);
            let place = Place::new(loaded.of_rank(rank).clone(), rank);
            let guard = guards.as_ref().map(|guards| (guards.each[at].turn, guards.each[at].norm));
            let (table, graphs) = (&tables.programs[at], options.graphs);
            let parts = Parts { place, table, guard, kernels: &code, world: world.clone(), graphs };
            device.enter()?;
            let groups = match &id {
                Some(id) => Groups::join(&device, id, set, rank, &|| all_come(world, began))?,
                None => Groups::default(),
            };
            let mut gpu = GpuRank::new(device, parts, groups, library)?;
            let mut own = options.choices.clone();
            gpu.choose(&mut own, options.tune)?;
            Ok((gpu, own))
        })?;
        let (gpus, chosen): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        self.all_chosen(chosen).map_err(before)?.iter().for_each(|own| options.choices.add(own));
        let choices = &*options.choices;
        let ready = on_each(world, ranks, gpus, |_, mut gpu| gpu.begin(choices).map(|()| gpu))?;
        Ok(ready.into_iter().map(|gpu| Box::new(gpu) as Box<dyn Worker>).collect())
    }

    /// The id by which all ranks meet: rank 0 makes it.
    fn id(&self, device: &D) -> Result<CommId, Reason> {
        device.enter()?;
        let Some(control) = self.control else { return device.comm_id() };
        let own = if control.rank() == 0 { device.comm_id()?.to_vec() } else { vec![] };
        let id = control.broadcast(&own, size_of::<CommId>() as u64).map_err(|failure| failure.what())?;
        id.try_into().map_err(|_| "rank 0 has sent no id of a communicator".into())
    }

    /// What each rank has chosen, in the order of ranks.
    fn all_chosen(&self, own: Vec<Choices>) -> Result<Vec<Choices>, Reason> {
        let Some(control) = self.control else { return Ok(own) };
        let bytes = serde_json::to_vec(&own).map_err(|e| e.to_string())?;
        let all = control.all_gather(&bytes, MOST_CHOSEN).map_err(|failure| failure.what())?;
        let of = |bytes: &Vec<u8>| serde_json::from_slice::<Vec<Choices>>(bytes);
        let all: Vec<Vec<Choices>> =
            all.iter().map(of).collect::<Result<_, _>>().map_err(|e| reason!("a rank has sent no choices: {e}"))?;
        Ok(all.into_iter().flatten().collect())
    }
}

/// An error once another rank has failed, or one that all have met does not come to NCCL.
fn all_come(world: &World, began: Instant) -> Result<(), Reason> {
    others_run(world)?;
    if began.elapsed() < JOIN {
        return Ok(());
    }
    let help = "`NCCL_DEBUG=INFO` shows whom it waits for, `NCCL_SOCKET_IFNAME` says over which network";
    Err(reason!("NCCL does not connect the ranks within {} s; {help}", JOIN.as_secs()))
}

/// What all devices are; kernels and choices are made once for all.
fn one_kind<D: Device>(devices: &[D]) -> Result<Description, Reason> {
    let first = devices.first().ok_or("a plan without ranks")?.description();
    match devices.iter().map(Device::description).find(|other| (&other.name, other.arch) != (&first.name, first.arch)) {
        Some(other) => {
            Err(reason!("GPU 0 is {}, GPU {} is {}: ranks need GPUs of one kind", first.name, other.ordinal, other.name))
        }
        None => Ok(first.clone()),
    }
}

fn code(kernels: &Kernels, cubins: Vec<Vec<u8>>) -> Vec<Code> {
    let all = kernels.all.iter().zip(cubins);
    let of = |(used, cubin): (&shardc_codegen::program::Used, Vec<u8>)| {
        let entries = used.generated.launches.iter().map(|launch| (launch.entry.clone(), launch.shared)).collect();
        Code { name: used.generated.name.clone(), cubin, entries }
    };
    all.map(of).collect()
}

/// Does `f` for each of `items`, one for each of `ranks`, in threads of their own. Once one fails
/// the others' waits end.
fn on_each<T: Send, R: Send>(
    world: &World,
    ranks: &[u64],
    items: Vec<T>,
    f: impl Fn(u64, T) -> Result<R, Reason> + Sync,
) -> Result<Vec<R>, ExecutionError> {
    let f = |(rank, item): (u64, T)| f(rank, item).map_err(|why| world.fail(rank, Fault::from(why))).ok();
    let f = &f;
    let results: Vec<Option<R>> = thread::scope(|scope| {
        let each: Vec<_> = ranks.iter().copied().zip(items).map(|item| scope.spawn(move || f(item))).collect();
        each.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    if let Some(failure) = world.failure() {
        return Err(failed(Some(failure.rank), failure.fault.message.into()));
    }
    results.into_iter().collect::<Option<_>>().ok_or_else(|| failed(None, "a rank's thread has ended".into()))
}

/// Refuses a GPU with too little memory before any is taken.
pub(crate) fn check_memory(device: &dyn Device, table: &Table) -> Result<(), Reason> {
    let memory = device.memory()?;
    if table.bytes() <= memory.free {
        return Ok(());
    }
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    Err(reason!(
        "the plan needs {} on a GPU ({} for its arena, {} of room for partial results), and {} has {} free of {}",
        mib(table.bytes()),
        mib(table.arena),
        mib(table.workspace.end - table.workspace.start),
        device.description().name,
        mib(memory.free),
        mib(memory.total),
    ))
}
