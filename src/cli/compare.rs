//! One step of a plan beside the same step of its reference: loss, norm, every gradient, and what
//! every state variable has become.

use super::failure::Failure;
use shardc_executor::run::{Executor, StepResult};
use shardc_executor::tensor::Tensor;
use shardc_ir::columns::{Column, align};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::BufferKind;
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_ir::scalar::{Instr, Rounding};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One number of the table.
pub struct Row {
    what: String,
    plan: f64,
    reference: f64,
    /// How far the plan is off, relative to the reference.
    pub difference: f64,
    tolerance: f64,
}

/// How far the plan may be from the reference.
struct Tolerances {
    /// Loss and norm, relative.
    numbers: f64,
    /// A gradient, relative to the norm of all.
    gradients: f64,
    /// A state variable after the step, relative to how far it has moved.
    states: f64,
    /// Elements of a gradient that differ by more, relative, are sums that cancel to their
    /// rounding. An optimizer that divides by their size makes of rounding a whole step, so their
    /// states are not compared.
    rounding: f64,
    /// The relative distance of neighbouring numbers.
    epsilon: f64,
}

impl Tolerances {
    fn of(programs: &PlanSet) -> Tolerances {
        let buffers = programs.programs.iter().flat_map(|program| &program.buffers);
        let gradients = buffers.filter(|b| matches!(b.kind, BufferKind::Gradient(_)));
        let is_double = gradients.map(|b| b.dtype).all(|dtype| dtype == DType::F64);
        match unit(programs) {
            None if is_double => {
                Tolerances { numbers: 1e-10, gradients: 1e-10, states: 1e-6, rounding: 1e-8, epsilon: f64::EPSILON }
            }
            Some(unit) => {
                let epsilon = f64::from(f32::EPSILON);
                // A sum that is rounded the other way may flip a rectifier behind it.
                Tolerances { numbers: unit, gradients: 8.0 * unit, states: 8.0 * unit, rounding: 2.0 * unit, epsilon }
            }
            None => {
                let epsilon = f64::from(f32::EPSILON);
                Tolerances { numbers: 1e-5, gradients: 1e-4, states: 1e-2, rounding: 1e-3, epsilon }
            }
        }
    }
}

/// The relative distance of neighbouring numbers in the narrowest format that a kernel rounds to.
fn unit(programs: &PlanSet) -> Option<f64> {
    let steps = programs.programs.iter().flat_map(|program| &program.tasks).flat_map(|task| &task.steps);
    let codes = steps.filter_map(|step| if let Kernel::Map(map) = &step.kernel { Some(&map.program.code) } else { None });
    let rounds = codes.flatten().filter_map(|instr| match instr {
        Instr::Round(Rounding::Bf16, _) => Some(1.0 / 128.0),
        Instr::Round(Rounding::F16 | Rounding::Tf32, _) => Some(1.0 / 1024.0),
        _ => None,
    });
    rounds.max_by(f64::total_cmp)
}

/// The arrays of a batch in the order in which `to` takes them; `of` gives the one that they have,
/// which for a pipeline is that of its positions.
fn reordered(batch: &Arc<Vec<Tensor>>, of: &PlanSet, to: &PlanSet) -> Arc<Vec<Tensor>> {
    let names = |programs: &PlanSet| programs.inputs().into_iter().map(|(_, input)| input.name.clone()).collect::<Vec<_>>();
    let (from, to) = (names(of), names(to));
    if from == to {
        return batch.clone();
    }
    let place = |name: &String| from.iter().position(|own| own == name);
    Arc::new(to.iter().filter_map(|name| batch.get(place(name)?).cloned()).collect())
}

/// Runs a batch on both, which are in the same state, and compares what they have then: loss and
/// norm, then a row for each gradient, then one for each state variable.
///
/// # Errors
/// If a rank fails.
pub fn step(plan: &mut Executor, reference: &mut Executor, batch: &Arc<Vec<Tensor>>) -> Result<Vec<Row>, Failure> {
    let tolerances = Tolerances::of(plan.programs());
    let names: Vec<String> = reference.programs().states().into_iter().map(|(_, state)| state.name.clone()).collect();
    let before = names.iter().map(|name| reference.get_state(name)).collect::<Result<Vec<Tensor>, _>>()?;
    let alone = reordered(batch, plan.programs(), reference.programs());
    let mut results = vec![];
    for (executor, batch) in [(&mut *plan, batch.clone()), (&mut *reference, alone)] {
        executor.set_next_step(0);
        results.push(executor.step(batch)?);
    }
    let mut rows: Vec<Row> = [("loss", "loss"), ("gradient norm", "grad_norm")]
        .map(|(what, output)| number(what, output, &results[0], &results[1], tolerances.numbers))
        .into();
    let of_reference = gradients(reference.programs());
    let pair = |name: &str| -> Result<(Vec<f64>, Vec<f64>), Failure> {
        if !of_reference.contains(name) {
            return Ok((vec![], vec![]));
        }
        let name = Name::Gradient(name.to_string());
        Ok((plan.read(&name)?.to_f64(), reference.read(&name)?.to_f64()))
    };
    let mut squares = 0.0;
    let mut apart = vec![];
    for name in &of_reference {
        let (found, expected) = pair(name)?;
        squares += norm(&expected).powi(2);
        let off = if found.len() == expected.len() { norm(&differences(&found, &expected)) } else { f64::NAN };
        apart.push((format!("gradient of \"{name}\""), norm(&found), norm(&expected), off));
    }
    rows.extend(apart.into_iter().map(|(what, plan, reference, off)| {
        let difference = if off == 0.0 { 0.0 } else { off / squares.sqrt() };
        Row { what, plan, reference, difference, tolerance: tolerances.gradients }
    }));
    for (name, before) in names.iter().zip(before) {
        let states = [plan.get_state(name)?.to_f64(), reference.get_state(name)?.to_f64()];
        let parameter = if of_reference.contains(name) { name } else { name.rsplit_once('.').map_or("", |(of, _)| of) };
        rows.push(state(name, &before.to_f64(), states, pair(parameter)?, &tolerances));
    }
    Ok(rows)
}

/// The parameters that have a gradient.
fn gradients(programs: &PlanSet) -> BTreeSet<String> {
    let of = |name| match name {
        Name::Gradient(of) => Some(of),
        _ => None,
    };
    programs.names().into_iter().filter_map(of).collect()
}

fn number(what: &str, output: &str, plan: &StepResult, reference: &StepResult, tolerance: f64) -> Row {
    let [plan, reference] =
        [plan, reference].map(|result| result.outputs.get(output).and_then(Tensor::first).unwrap_or(f64::NAN));
    let difference = if plan == reference { 0.0 } else { (plan - reference).abs() / reference.abs().max(f64::MIN_POSITIVE) };
    Row { what: what.to_string(), plan, reference, difference, tolerance }
}

/// How a state variable has moved, where its parameter's gradients are more than rounding.
fn state(
    name: &str,
    before: &[f64],
    [found, expected]: [Vec<f64>; 2],
    (g, of_reference): (Vec<f64>, Vec<f64>),
    tolerances: &Tolerances,
) -> Row {
    let is_rounding = |i: usize| match (g.get(i), of_reference.get(i)) {
        (Some(a), Some(b)) => (a - b).abs() > tolerances.rounding * b.abs(),
        _ => false,
    };
    let off = |i: usize| {
        let off = (found[i] - expected[i]).abs();
        if is_rounding(i) || off <= 4.0 * tolerances.epsilon * expected[i].abs() { 0.0 } else { off }
    };
    let off = match found.len() == expected.len() && before.len() == expected.len() {
        true => norm(&(0..expected.len()).map(off).collect::<Vec<_>>()),
        false => f64::NAN,
    };
    let moved = norm(&differences(&expected, before));
    let difference = if off == 0.0 { 0.0 } else { off / moved };
    let plan = norm(&differences(&found, before));
    Row { what: format!("step of \"{name}\""), plan, reference: moved, difference, tolerance: tolerances.states }
}

fn differences(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

impl Row {
    /// Whether the plan is near enough; not a number is not.
    pub fn holds(&self) -> bool {
        self.difference <= self.tolerance
    }

    /// The difference as a share of what is allowed.
    pub fn share(&self) -> f64 {
        self.difference / self.tolerance
    }
}

/// The rows for people.
pub fn table(rows: &[Row]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use shardc_ir::text::parse;
    use shardc_testkit::step as job;

    const MODEL: &str = r#"graph @line  phase imported
  state "w" : f64[4, 3]  parameter init=model
  %x = input "x"                    : f64[8, 4]
  %w = state "w"                    : f64[4, 3]
  %y = contract "bk,kn->bn" %x, %w  : f64[8, 3]
  output "y" %y
"#;

    /// Its second stage takes the first input.
    const OF_TWO: &str = r#"graph @two  phase imported
  state "w" : f64[4, 3]  parameter init=model
  %late = input "late"               : f64[8, 3]
  %x = input "x"                     : f64[8, 4]
  %w = state "w"                     : f64[4, 3]
  %h = contract "bk,kn->bn" %x, %w   : f64[8, 3] @h.0
  %y = mul %h, %late                 : f64[8, 3] @h.1
  output "y" %y
"#;

    fn started(model: &str, lines: &str) -> Executor {
        let spec = job::spec(&format!("{lines}loss mse prediction=y labels=t\n")).expect("the spec parses");
        let program = job::programs(&parse(model).expect("the model parses"), &spec).expect("the job compiles");
        let mut executor = Executor::new(program, 1).expect("the program loads");
        executor.initialise(|_| Some(waves(&[4, 3], 0.3))).expect("the state fits");
        executor
    }

    fn waves(shape: &[u64], seed: f64) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|i: u64| ((i + 1) as f64 * seed).sin()).collect();
        Tensor::from_f64(shape, &values)
    }

    /// Which rows of a step under `plan` do not hold beside one under `reference`.
    fn wrong(plan: &str, reference: &str) -> Vec<String> {
        let batch = Arc::new(vec![waves(&[8, 4], 0.7), waves(&[8, 3], 0.2)]);
        let rows = step(&mut started(MODEL, plan), &mut started(MODEL, reference), &batch).expect("no rank fails");
        assert_eq!(rows.iter().filter(|row| row.what.starts_with("step of")).count(), 3);
        rows.into_iter().filter(|row| !row.holds()).map(|row| row.what).collect()
    }

    /// Gradients alone say nothing of updates.
    #[test]
    fn a_wrong_update_is_seen() {
        let one = "batch 8\noptimizer adamw lr=0.1\n";
        assert!(wrong("mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\noptimizer adamw lr=0.1\n", one).is_empty());
        assert_eq!(wrong("batch 8\noptimizer adamw lr=0.11\n", one), ["step of \"w\""]);
        assert_eq!(wrong("batch 8\noptimizer adamw lr=0.1 beta2=0.99\n", one), ["step of \"w.v\""]);
        assert_eq!(wrong("batch 8\noptimizer adamw lr=0.1 weight_decay=0.5\n", one), ["step of \"w\""]);
    }

    #[test]
    fn both_get_the_arrays_by_name() {
        let reference = "batch 8\noptimizer sgd lr=0.1\n";
        let mut plan = started(OF_TWO, &format!("mesh pp=2\n{reference}pipeline axis=pp cut=after(\"h.0\")\n"));
        let names = |executor: &Executor| executor.programs().inputs().iter().map(|(_, i)| i.name.clone()).collect::<Vec<_>>();
        let (own, mut reference) = (names(&plan), started(OF_TWO, reference));
        assert_ne!(own, names(&reference), "their orders differ");
        let array = |name: &String| waves(if name == "x" { &[8, 4] } else { &[8, 3] }, if name == "late" { 0.5 } else { 0.7 });
        let batch = Arc::new(own.iter().map(array).collect());
        let rows = step(&mut plan, &mut reference, &batch).expect("no rank fails");
        let wrong: Vec<String> = rows.into_iter().filter(|row| !row.holds()).map(|row| row.what).collect();
        assert_eq!(wrong, [""; 0]);
    }
}
