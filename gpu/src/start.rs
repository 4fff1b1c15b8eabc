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
use shardc_executor::worker::Worker;
use shardc_executor::world::World;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// How programs are started on GPUs.
pub struct Options<'a> {
    /// Whether steps are captured as graphs.
    pub graphs: bool,
    /// The machine code of kernels for an architecture, in their order.
    pub assemble: &'a (dyn Fn(&Kernels, u32) -> Result<Vec<Vec<u8>>, Reason> + Sync),
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
    let workers = workers(&loaded, &world, open, options);
    let workers =
        workers.map_err(|Failed { rank, why }| ExecutionError { rank, step: None, message: why.into(), of_data: false })?;
    Executor::over(loaded, world, workers, Threads(1))
}

/// Why a rank cannot start.
struct Failed {
    rank: Option<u64>,
    why: Reason,
}

impl From<Reason> for Failed {
    fn from(why: Reason) -> Failed {
        Failed { rank: None, why }
    }
}

fn workers<D: Device + 'static>(
    loaded: &LoadedSet,
    world: &Arc<World>,
    open: &dyn Open<D>,
    options: Options<'_>,
) -> Result<Vec<Box<dyn Worker>>, Failed> {
    let set = &*loaded.programs;
    let ranks = set.mesh().world_size();
    let (tables, kernels) = tables(set)?;
    let libraries = Libraries::find(needed(&tables, ranks)).map_err(|missing| reason!("{missing}"))?;
    if u64::from(libraries.gpus()) < ranks {
        return Err(reason!("the plan is for {ranks} GPUs, this machine has {}", libraries.gpus()).into());
    }
    let devices: Vec<D> = (0..ranks)
        .map(|rank| open.open(&libraries, rank).map_err(|why| Failed { rank: Some(rank), why }))
        .collect::<Result<_, _>>()?;
    let description = one_kind(&devices)?;
    let code = code(&kernels, (options.assemble)(&kernels, description.arch)?);
    let library = libraries.cublaslt();
    let version = library.map_or([0; 3], |library| library.version());
    if !options.choices.are_for(&description.name, version) {
        *options.choices = Choices { device: description.name.clone(), library: version, products: vec![] };
    }
    let id = if ranks > 1 { Some(devices[0].enter().and_then(|()| devices[0].comm_id())?) } else { None };
    let guards = Guards::of(set);
    let started = on_each(world, devices, |rank, device| {
        let at = set.at(set.mesh(), rank);
        let place = Place::new(loaded.of_rank(rank).clone(), rank);
        let guard = guards.as_ref().map(|guards| (guards.each[at].turn, guards.each[at].norm));
        let parts =
            Parts { place, table: &tables.programs[at], guard, kernels: &code, world: world.clone(), graphs: options.graphs };
        device.enter()?;
        let groups = joined(&device, id.as_ref(), set, rank, world)?;
        let mut gpu = GpuRank::new(device, parts, groups, library)?;
        let mut own = options.choices.clone();
        gpu.choose(&mut own)?;
        Ok((gpu, own))
    })?;
    let (ranks, chosen): (Vec<_>, Vec<_>) = started.into_iter().unzip();
    chosen.iter().for_each(|own| options.choices.add(own));
    let choices = &*options.choices;
    let ready = on_each(world, ranks, |_, mut gpu| gpu.begin(choices).map(|()| gpu))?;
    Ok(ready.into_iter().map(|gpu| Box::new(gpu) as Box<dyn Worker>).collect())
}

fn joined(device: &dyn Device, id: Option<&CommId>, set: &PlanSet, rank: u64, world: &World) -> Result<Groups, Reason> {
    match id {
        Some(id) => Groups::join(device, id, set, rank, &|| others_run(world)),
        None => Ok(Groups::default()),
    }
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

/// Does `f` for each of `items`, one for each rank, in threads of their own. Once one fails the
/// others' waits end.
fn on_each<T: Send, R: Send>(
    world: &World,
    items: Vec<T>,
    f: impl Fn(u64, T) -> Result<R, Reason> + Sync,
) -> Result<Vec<R>, Failed> {
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let f = &f;
    thread::scope(|scope| {
        for (rank, item) in (0..).zip(items) {
            let results = &results;
            scope.spawn(move || match f(rank, item) {
                Ok(result) => results.lock().unwrap_or_else(PoisonError::into_inner)[rank as usize] = Some(result),
                Err(why) => world.fail(rank, Fault::from(why)),
            });
        }
    });
    match world.failure() {
        Some(failure) => Err(Failed { rank: Some(failure.rank), why: failure.fault.message.into() }),
        None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()),
    }
}
