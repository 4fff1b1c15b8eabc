//! `shardc verify PLAN/`: proves every program of a plan directory, or gives a counter-example.

use super::failure::Failure;
use super::job::TrustArgs;
use super::output::print;
use crate::certificate::{Certificate, Finding};
use crate::cuda;
use crate::cuda::tables;
use crate::plan_dir::{self, MODEL, PlanDir, SPEC, Trust};
use crate::proof::Proven;
use clap::Args;
use shardc_codegen::table::Checked;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::listing::Communication;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::programs::ProgramKind;
use shardc_ir::verify_plan::Proof;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Verify {
    /// A plan directory
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
}

impl Verify {
    /// Prints what was proven.
    ///
    /// # Errors
    /// The first counter-example of the first program that has one.
    pub fn run(self) -> Result<(), Failure> {
        let plan = plan_dir::read(&self.plan, self.trust.trust())?;
        plan.check_files()?;
        let mut texts: Vec<String> = plan.proven.iter().map(|proven| proof_text(&plan, proven)).collect();
        texts.push(graphs_text(self.trust.trust(), plan.manifest.certificate.as_ref()));
        if cuda::list_path(&plan.path).exists() {
            texts.extend(tables::verify(&plan)?.iter().map(tables_text));
        }
        print(&texts.concat())
    }
}

fn proof_text(plan: &PlanDir, Proven { kind, proof }: &Proven) -> String {
    let Proof { ranks, steps, ops, buffers, peak_bytes, accesses, calls, updated, sent, .. } = proof;
    let limit = plan.spec.device_memory.as_ref();
    let within = limit.map_or(String::new(), |limit| format!(" of {}", bytes_text(limit.value)));
    let graph = match kind {
        ProgramKind::Train => ", which is the reference's but for communication",
        _ => "",
    };
    let state = match updated {
        0 => "no variable is written".to_string(),
        1 => "1 variable is written once a step, under its own sharding".to_string(),
        n => format!("{n} variables are written once a step, each under its own sharding"),
    };
    let are = if *steps == 1 { "is" } else { "are" };
    let hold = if *accesses == 1 { "holds" } else { "hold" };
    let mut rows = vec![
        (
            "kernels",
            format!("{} {are} the lowering of {} of `{kind}.shir.gz`{graph}", counted(steps, "step"), counted(ops, "op")),
        ),
        ("contents", format!("{} a step {hold} the right value, whole, of the right micro-batch", counted(accesses, "operand"))),
        ("memory", format!("{} in {}{within}", counted(buffers, "buffer"), bytes_text(*peak_bytes))),
        ("state", state),
    ];
    if *calls > 0 {
        rows.push(("calls", format!("{calls} a step, each by all members of its group with equal arguments, in one order")));
    }
    let texts = most_sent(sent).into_iter().enumerate();
    rows.extend(texts.map(|(i, most)| (if i == 0 { "bytes" } else { "" }, sent_text(&most, sent.len() > 1))));
    let rows: Vec<[String; 2]> = rows.into_iter().map(|(what, text)| [what.to_string(), text]).collect();
    format!("{kind}: proven on {}\n{}", counted(ranks, "rank"), align(&rows, [Column::WORDS, Column::WORDS]))
}

/// What was proven of launch tables: of several programs the most of each number.
fn tables_text(tables::Proven { kind, checked }: &tables::Proven) -> String {
    let most = |of: fn(&Checked) -> u64| checked.iter().map(of).max().unwrap_or(0);
    let numbers = [
        counted(most(|c| c.launches as u64), "launch"),
        counted(most(|c| c.products as u64), "product"),
        counted(most(|c| c.calls as u64), "call"),
        counted(most(|c| c.waits as u64), "wait"),
    ];
    let rows = [
        ("rows", format!("{} are what the plan's steps become again, at their bytes", most(|c| c.rows as u64))),
        (
            "order",
            format!("{} a step: what touches the same bytes is ordered as in the plan, between steps too", numbers.join(", ")),
        ),
        ("memory", format!("every access lies inside its operand; {} with partial results", bytes_text(most(|c| c.bytes)))),
    ];
    let rows = rows.map(|(what, text)| [what.to_string(), text]);
    format!("cuda {kind}: proven of {}\n{}", counted(checked.len() as u64, "launch table"), align(&rows, [Column::WORDS; 2]))
}

/// Of each kind over the same axes with the same in it, that of the program that sends most.
fn most_sent(programs: &[Vec<Communication>]) -> Vec<Communication> {
    let mut most: Vec<Communication> = vec![];
    for sent in programs.iter().flatten() {
        let alike = |m: &&mut Communication| (m.kind, &m.axis, &m.carries) == (sent.kind, &sent.axis, &sent.carries);
        match most.iter_mut().find(alike) {
            Some(most) if most.bytes_sent >= sent.bytes_sent => {}
            Some(most) => most.clone_from(sent),
            None => most.push(sent.clone()),
        }
    }
    most.sort_by(|a, b| (a.kind, &a.axis, &a.carries).cmp(&(b.kind, &b.axis, &b.carries)));
    most
}

fn sent_text(sent: &Communication, differ: bool) -> String {
    let (kind, axis, carries, bytes) = (sent.kind_name(), &sent.axis, &sent.carries, bytes_text(sent.bytes_sent));
    let from = if differ { "the rank that sends most" } else { "each rank" };
    let least = sent.least_bytes.map_or(String::new(), |least| format!(", the least is {}", bytes_text(least)));
    format!("{kind} of {carries} over {axis}: {bytes} from {from}{least}")
}

/// The words on where the graphs come from, and what compiling found of them.
fn graphs_text(trust: Trust, certificate: Option<&Certificate>) -> String {
    let derived = match trust {
        Trust::Nothing => format!("graphs: those that `{MODEL}` gives under `{SPEC}`, byte by byte\n"),
        Trust::Graphs => "graphs: believed\n".to_string(),
    };
    let Some(certificate) = certificate else { return format!("{derived}not certified when compiled\n") };
    let table = |head: &str, findings: &[Finding]| match findings {
        [] => String::new(),
        _ => {
            let rows: Vec<[String; 2]> = findings.iter().map(|finding| [finding.what.clone(), finding.how.clone()]).collect();
            format!("{head}\n{}", align(&rows, [Column::WORDS, Column::WORDS]))
        }
    };
    [
        derived,
        table("certified when compiled, as `manifest.json` says", &certificate.certified),
        table("not certified", &certificate.not_certified),
        table("doubted", &certificate.doubted),
    ]
    .concat()
}
