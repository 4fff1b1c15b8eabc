//! `shardc check PLAN/`: one step of the plan against the same step of its reference, from equal
//! parameters; with `--replay` also against all its ranks in lockstep in one thread, to the bit.

use super::job::{DataArgs, Job, JobArgs, MachineArgs};
use super::output::print;
use crate::failure::Failure;
use clap::Args;
use shardc_executor::data::{Dataset, input_specs};
use shardc_executor::replay::{Compared, Replay};
use shardc_executor::run::Executor;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::{Diagnostic, Place, counted};
use shardc_ir::dtype::DType;
use shardc_ir::plan::{BufferId, BufferKind, Program};
use std::collections::BTreeMap;

/// Gradients that the table shows, the worst first.
const SHOWN: usize = 10;

/// The arguments.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// How many batches, each from the initial parameters
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batches: u64,
    /// Show every gradient
    #[arg(long)]
    verbose: bool,
    /// Also run all ranks in turn, in one thread, and demand the same bits
    #[arg(long)]
    replay: bool,
}

/// What one step computes.
struct Step {
    loss: f64,
    norm: f64,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// One number of the table.
struct Row {
    what: String,
    plan: f64,
    reference: f64,
    difference: f64,
    tolerance: f64,
}

impl Check {
    /// Prints the differences.
    ///
    /// # Errors
    /// If one is beyond tolerance; all that is wrong with the plan or its data.
    pub fn run(self) -> Result<(), Failure> {
        let job = self.job.open(true)?;
        let training = job.training()?;
        let data = self.data.open(input_specs(training), job.batches(training))?;
        let there = data.steps_per_epoch();
        if self.batches > there {
            let error = Diagnostic::error(format!("the data has {}, not {}", counted(there, "batch"), self.batches));
            return Err(error.at(Place::File(self.data.path)).help("use a smaller `--batches`").into());
        }
        let plan = self.steps(&job, training, &data)?;
        let reference = self.steps(&job, &job.reference()?, &data)?;
        let (numbers, gradients) = tolerances(training);
        let mut holds = true;
        for (batch, (plan, reference)) in plan.iter().zip(&reference).enumerate() {
            let mut rows = compare(plan, reference, numbers, gradients);
            holds &= rows.iter().all(Row::holds);
            let all = rows.len() - 2;
            if !self.verbose {
                rows[2..].sort_by(|a, b| b.difference.total_cmp(&a.difference));
                rows.truncate(2 + SHOWN);
            }
            let more = if rows.len() < all + 2 {
                format!(", the {} worst of {}", rows.len() - 2, counted(all, "gradient"))
            } else {
                String::new()
            };
            let ranks = counted(training.mesh.world_size(), "rank");
            print(&format!("batch {}: {ranks} against one{more}\n{}", batch + 1, table(&rows)))?;
        }
        if self.replay {
            holds &= self.replays(&job, training, &data)?;
        }
        if holds {
            print("the plan computes what its reference computes\n")
        } else {
            print("the plan does not compute what it should\n")?;
            Err(Failure::Disproved)
        }
    }

    /// Runs each batch at once and in turn, and prints what was compared; whether all bits are the
    /// same.
    fn replays(&self, job: &Job, program: &Program, data: &Dataset) -> Result<bool, Failure> {
        let mut executor = job.start(program, &self.machine)?;
        for batch in 0..self.batches {
            if batch > 0 {
                job.reset(&mut executor)?;
            }
            executor.set_next_step(0);
            let mut replay = Replay::of(&executor)?;
            let arrays = data.batch(batch);
            executor.step(arrays.clone())?;
            replay.step(0, &arrays)?;
            match replay.compare(&executor)? {
                Ok(Compared { ranks, outputs, gradients, states, elements }) => print(&format!(
                    "batch {}: the replay of {} in one thread has the same bits: {}, {}, {} after the step; {} on all ranks\n",
                    batch + 1,
                    counted(ranks, "rank"),
                    counted(outputs, "output"),
                    counted(gradients, "gradient"),
                    counted(states, "state"),
                    counted(elements, "element"),
                ))?,
                Err(difference) => {
                    print(&format!("batch {}: the replay differs: {difference}\n", batch + 1))?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn steps(&self, job: &Job, program: &Program, data: &Dataset) -> Result<Vec<Step>, Failure> {
        let mut executor = job.start(program, &self.machine)?;
        let mut out = vec![];
        for batch in 0..self.batches {
            if batch > 0 {
                job.reset(&mut executor)?;
            }
            executor.set_next_step(0);
            out.push(step(&mut executor, data, batch)?);
        }
        Ok(out)
    }
}

fn step(executor: &mut Executor, data: &Dataset, batch: u64) -> Result<Step, Failure> {
    let result = executor.step(data.batch(batch))?;
    let number = |name: &str| result.outputs.get(name).and_then(|t| t.first()).unwrap_or(f64::NAN);
    let (loss, norm) = (number("loss"), number("grad_norm"));
    let mut gradients = BTreeMap::new();
    for (i, buffer) in executor.program().buffers.iter().enumerate() {
        if let BufferKind::Gradient(state) = buffer.kind {
            let name = executor.program().states[state as usize].name.clone();
            gradients.insert(name, executor.read(BufferId(i as u32))?.to_f64());
        }
    }
    Ok(Step { loss, norm, gradients })
}

/// How far loss and norm, and each gradient, may be from the reference.
fn tolerances(program: &Program) -> (f64, f64) {
    let gradients = program.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Gradient(_)));
    if gradients.map(|b| b.dtype).all(|dtype| dtype == DType::F64) { (1e-10, 1e-10) } else { (1e-5, 1e-4) }
}

fn compare(plan: &Step, reference: &Step, numbers: f64, gradients: f64) -> Vec<Row> {
    let number = |what: &str, plan: f64, reference: f64| {
        let difference = (plan - reference).abs() / reference.abs().max(f64::MIN_POSITIVE);
        let difference = if plan == reference { 0.0 } else { difference };
        Row { what: what.to_string(), plan, reference, difference, tolerance: numbers }
    };
    let mut rows = vec![number("loss", plan.loss, reference.loss), number("gradient norm", plan.norm, reference.norm)];
    let global = reference.gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt();
    for (name, expected) in &reference.gradients {
        let found = plan.gradients.get(name).map_or(&[][..], Vec::as_slice);
        let off = match found.len() == expected.len() {
            true => found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
            false => f64::NAN,
        };
        rows.push(Row {
            what: format!("gradient of \"{name}\""),
            plan: norm(found),
            reference: norm(expected),
            difference: if off == 0.0 { 0.0 } else { off / global },
            tolerance: gradients,
        });
    }
    rows
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

impl Row {
    /// Not a number does not hold.
    fn holds(&self) -> bool {
        self.difference <= self.tolerance
    }
}

fn table(rows: &[Row]) -> String {
    let header = ["", "plan", "reference", "difference", "tolerance", ""].map(str::to_string);
    let cells = rows.iter().map(|row| {
        let verdict = if row.holds() { "" } else { "differs" };
        [
            row.what.clone(),
            format!("{:.6}", row.plan),
            format!("{:.6}", row.reference),
            format!("{:.1e}", row.difference),
            format!("{:.0e}", row.tolerance),
            verdict.to_string(),
        ]
    });
    let all: Vec<[String; 6]> = std::iter::once(header).chain(cells).collect();
    let numbers = Column::NUMBERS;
    align(&all, [Column::WORDS, numbers, numbers, numbers, numbers, Column::WORDS])
}
