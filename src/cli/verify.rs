//! `shardc verify PLAN/`: proves every program of a plan directory, or gives a counter-example.

use super::output::print;
use crate::failure::Failure;
use crate::plan_dir::{self, PlanDir};
use clap::Args;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::listing::units::bytes_text;
use shardc_ir::verify_plan::{Proof, Violation, verify};
use std::fs;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Verify {
    /// A plan directory
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
}

impl Verify {
    /// Prints what was proven.
    ///
    /// # Errors
    /// The first counter-example of the first program that has one.
    pub fn run(self) -> Result<(), Failure> {
        let plan = plan_dir::read(&self.plan)?;
        let training = plan.programs.training.iter().flat_map(|t| [("train", &t.program), ("reference", &t.reference)]);
        let mut out = String::new();
        for (name, program) in training.chain([("eval", &plan.programs.eval)]) {
            let proof = verify(program).map_err(|violation| counter_example(&plan, name, &violation))?;
            out.push_str(&proof_text(name, &proof));
        }
        print(&out)
    }
}

fn counter_example(plan: &PlanDir, program: &str, violation: &Violation) -> Diagnostic {
    let error = Diagnostic::error(format!("the {program} plan is wrong: {violation}"));
    let span = violation.spec_line.and_then(|line| line_span(plan, line));
    error.at(match span {
        Some(span) => Place::Text { file: plan.spec.file.clone(), span },
        None => Place::File(plan.path.clone()),
    })
}

/// The bytes of a line of the plan's spec, from 1.
fn line_span(plan: &PlanDir, line: u32) -> Option<(usize, usize)> {
    let text = fs::read_to_string(&plan.spec.file).ok()?;
    let mut start = 0;
    for (number, content) in (1..).zip(text.split_inclusive('\n')) {
        if number == line {
            return Some((start, start + content.trim_end().len()));
        }
        start += content.len();
    }
    None
}

fn proof_text(name: &str, proof: &Proof) -> String {
    let Proof { ranks, steps, buffers, peak_bytes, accesses, calls, updated } = proof;
    let state = match updated {
        0 => "no state variable is written".to_string(),
        n => format!("each of {n} state variables that move is written once a step, after the last micro-batch"),
    };
    format!(
        "{name}: {steps} steps that {ranks} ranks run alike\n  \
         memory         {buffers} buffers in an arena of {}, no access leaves its buffer\n  \
         order          {accesses} accesses a step: nothing is read before it is written or after its bytes were given away\n  \
         communication  {calls} calls a step, each by all members of its group with equal kind, type, count and operands\n  \
         state          {state}\n",
        bytes_text(*peak_bytes),
    )
}
