//! The rows of every position: first what every micro-batch reads, then the table of the pipeline's
//! schedule, then what follows from all micro-batches; and when each row begins and ends by the
//! clock, which says between which rows messages stand.

use super::pace::Class;
use super::schedule::{self, Cell, Shape, Table, custom, gpipe, greedy, interleaved, links, one_f_one_b, zb_h1};
use super::tasks::{TaskNodes, Tasks};
use shardc_ir::clock::{self, Times};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::files;
use shardc_ir::spec::{Located, Pipeline, PipelineSchedule, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// The largest file with a table, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// A row: a task, and the micro-batch.
pub type Turn = (usize, u64);

/// The rows of each position, and when they begin and end.
pub struct Order {
    /// For each position its rows.
    pub rows: Vec<Vec<Turn>>,
    /// When each begins and ends, by the clock.
    pub times: Times,
}

/// A schedule, with what it read.
pub enum Schedule {
    /// One of those that have a rule.
    Rule(PipelineSchedule),
    /// That of a file.
    Custom { text: String, place: Place, file: std::path::PathBuf },
}

impl Schedule {
    /// The schedule of a spec; the default is 1F1B, which without a pipeline is one micro-batch
    /// after another.
    ///
    /// # Errors
    /// If the file with a table cannot be read.
    pub fn of(spec: &Spec) -> Result<Schedule, Diagnostics> {
        let Some(Located { value: pipeline, .. }) = &spec.pipeline else {
            return Ok(Schedule::Rule(PipelineSchedule::OneForwardOneBackward));
        };
        let Some(name) = &pipeline.custom else { return Ok(Schedule::Rule(pipeline.schedule)) };
        let file = spec.file.parent().map_or_else(|| name.value.clone().into(), |folder| folder.join(&name.value));
        let place = spec.place_of(name.source);
        let mut text = String::new();
        let read = files::open(&file).and_then(|open| open.take(MAX_BYTES).read_to_string(&mut text));
        match read {
            Ok(_) => Ok(Schedule::Custom { text, place, file }),
            Err(error) => {
                let message = format!("cannot read the schedule `{}`: {error}", file.display());
                Err(Diagnostic::error(message)
                    .at(place)
                    .help("it is a text file beside the spec, with a line for each position")
                    .into())
            }
        }
    }

    /// Whether it has tasks of their own for the gradients of weights.
    pub fn splits_weights(&self) -> bool {
        match self {
            Schedule::Rule(rule) => *rule == PipelineSchedule::ZeroBubbleH1,
            Schedule::Custom { text, .. } => custom::has_weights(text),
        }
    }

    /// The table for a pipeline of that shape.
    fn table(&self, shape: Shape) -> Result<Table, Diagnostics> {
        match self {
            Schedule::Rule(PipelineSchedule::Gpipe) => Ok(gpipe::table(shape)),
            Schedule::Rule(PipelineSchedule::OneForwardOneBackward) => Ok(one_f_one_b::table(shape)),
            Schedule::Rule(PipelineSchedule::Interleaved { .. }) => Ok(interleaved::table(shape)),
            Schedule::Rule(PipelineSchedule::ZeroBubbleH1) => Ok(zb_h1::table(shape)),
            Schedule::Custom { text, file, .. } => custom::parse(text, &shape, self.splits_weights()).map_err(|fault| {
                let place = Place::Text { file: file.clone(), span: fault.span };
                Diagnostic::error(fault.message).at(place).help(fault.help).into()
            }),
        }
    }
}

/// The rows of all tasks over `positions` positions and `microbatches` micro-batches; `weigh` is
/// what a task costs where branches are placed.
///
/// # Errors
/// If the table of a file is none, or cannot be run.
pub fn order(
    tasks: &Tasks,
    pipeline: Option<&Pipeline>,
    schedule: &Schedule,
    (positions, microbatches): (usize, u64),
    weigh: impl Fn(&TaskNodes) -> u64,
) -> Result<Order, Diagnostics> {
    let chunks = pipeline.map_or(1, |pipeline| pipeline.schedule.chunks());
    let shape = Shape { positions: positions as u64, chunks, microbatches };
    let main = match scheduled(tasks, schedule, shape)? {
        Some(main) => main,
        None => by_greed(tasks, shape, weigh),
    };
    let rows: Vec<Vec<Turn>> = main.into_iter().enumerate().map(|(at, main)| whole(tasks, at, main, microbatches)).collect();
    let times = run(tasks, &rows, microbatches, schedule.splits_weights());
    let times = times.unwrap_or_else(|stuck| panic!("rows that wait for ever: {stuck:?}"));
    Ok(Order { rows, times })
}

/// The main rows by the schedule's table; `None` where tasks do not follow one another as those of
/// stages do.
fn scheduled(tasks: &Tasks, schedule: &Schedule, shape: Shape) -> Result<Option<Vec<Vec<Turn>>>, Diagnostics> {
    let mut of: BTreeMap<(schedule::Pass, u32), usize> = BTreeMap::new();
    for (number, task) in tasks.all.iter().enumerate() {
        let Some(pass) = pass(task.class) else { continue };
        if task.part > 0 || of.insert((pass, task.stage), number).is_some() {
            return custom_must_fit(schedule);
        }
    }
    let trains = of.keys().any(|(pass, _)| *pass != schedule::Pass::Forward);
    let table = if trains { schedule.table(shape)? } else { gpipe::forward(shape) };
    let turn = |cell: &Cell| Some((*of.get(&(cell.pass, cell.stage))?, cell.time));
    let rows: Vec<Vec<Turn>> = table.iter().map(|cells| cells.iter().filter_map(turn).collect()).collect();
    if run(tasks, &rows, shape.microbatches, schedule.splits_weights()).is_ok() {
        return Ok(Some(rows));
    }
    let stage = |task: usize| tasks.all[task].stage;
    let forward = tasks.all.iter().filter(|task| task.class == Class::Forward);
    let reads = forward.flat_map(|task| task.after.iter().map(move |before| (stage(*before), task.stage)));
    let links: BTreeSet<(u32, u32)> = reads.filter(|(a, b)| a != b).collect();
    let links: Vec<(u32, u32)> = links.into_iter().collect();
    match (schedule, links::check(&table, shape, &links)) {
        (Schedule::Custom { file, .. }, Err(circle)) => {
            let error = Diagnostic::error(format!("the schedule waits for ever: {circle}")).at(Place::File(file.clone()));
            Err(error.help("a position runs a cell only when those that it reads have been run").into())
        }
        _ => custom_must_fit(schedule),
    }
}

/// Tasks that are not one for each stage and pass have no cells in a table of a file.
fn custom_must_fit(schedule: &Schedule) -> Result<Option<Vec<Vec<Turn>>>, Diagnostics> {
    match schedule {
        Schedule::Custom { place, .. } => {
            let error =
                Diagnostic::error("with branches that are placed, stages have several tasks, which a table has no cells for");
            Err(error.at(place.clone()).help("use a schedule that is built in, or remove the `place` lines").into())
        }
        Schedule::Rule(_) => Ok(None),
    }
}

fn pass(class: Class) -> Option<schedule::Pass> {
    match class {
        Class::Forward => Some(schedule::Pass::Forward),
        Class::Backward => Some(schedule::Pass::Backward),
        Class::Weight => Some(schedule::Pass::Weight),
        _ => None,
    }
}

fn by_greed(tasks: &Tasks, shape: Shape, weigh: impl Fn(&TaskNodes) -> u64) -> Vec<Vec<Turn>> {
    let main: Vec<usize> = (0..tasks.all.len()).filter(|task| tasks.all[*task].class.is_scheduled()).collect();
    let place: BTreeMap<usize, usize> = main.iter().copied().zip(0..).collect();
    let task = |number: &usize| {
        let task = &tasks.all[*number];
        let needs = task.after.iter().filter_map(|before| place.get(before).copied()).collect();
        let pass = pass(task.class).unwrap_or(schedule::Pass::Forward);
        greedy::Task { position: task.position, pass, cost: weigh(task).max(1), needs }
    };
    let listed: Vec<greedy::Task> = main.iter().map(task).collect();
    let limits: Vec<u64> = (0..shape.positions).map(|position| (shape.positions - position) * shape.chunks).collect();
    let rows = greedy::order(&listed, shape.microbatches, &limits);
    rows.into_iter().map(|rows| rows.into_iter().map(|(task, time)| (main[task], time)).collect()).collect()
}

/// The rows of a position with those before and after the table's.
fn whole(tasks: &Tasks, position: usize, main: Vec<Turn>, microbatches: u64) -> Vec<Turn> {
    let of = |class: Class| tasks.at(position).filter(move |(_, task)| task.class == class).map(|(number, _)| number);
    let prologue = (0..microbatches).flat_map(|time| of(Class::Prologue).map(move |task| (task, time)));
    let once = |class: Class| of(class).map(|task| (task, 0)).collect::<Vec<Turn>>();
    let before = once(Class::Prepare).into_iter().chain(prologue).chain(once(Class::Settle));
    before.chain(main).chain(once(Class::Update)).collect()
}

/// Runs rows by the clock.
fn run(tasks: &Tasks, rows: &[Vec<Turn>], microbatches: u64, splits_weights: bool) -> Result<Times, clock::Stuck> {
    let there: BTreeSet<usize> = rows.iter().flatten().map(|(task, _)| *task).collect();
    let is_loop = |task: usize| tasks.all[task].class.is_loop();
    let row = |(task, time): &Turn| {
        let before = tasks.all[*task].after.iter().copied().filter(|before| there.contains(before));
        let needs = before.flat_map(|before| match (is_loop(before), is_loop(*task)) {
            (true, true) => vec![(before, *time)],
            (true, false) => (0..microbatches).map(|time| (before, time)).collect(),
            (false, _) => vec![(before, 0)],
        });
        let cost = pass(tasks.all[*task].class).map_or(1, |pass| schedule::costs(pass, splits_weights));
        clock::Row { cost, needs: needs.collect(), gives: vec![(*task, *time)] }
    };
    let lists: Vec<Vec<clock::Row<Turn>>> = rows.iter().map(|rows| rows.iter().map(row).collect()).collect();
    clock::run(&lists)
}
