//! The proof of a job's programs before any of them runs: each carries out its graph, the training
//! graph is the reference's but for communication, and what a rank holds fits its device. The
//! reference itself is planned, and proven, when somebody runs it.
//!
//! A job that is compiled, or opened as a plan directory, is proven already. What its proof found:
//!
//! ```no_run
//! use shardc::proof::sent;
//! use shardc::Job;
//! use shardc_ir::programs::ProgramKind;
//!
//! let job = Job::open("model.onnx", "dp2-tp2.shard")?;
//! for (program, calls) in sent(&job.proven, Some(ProgramKind::Train)).iter().enumerate() {
//!     let bytes: u64 = calls.iter().map(|call| call.bytes_sent).sum();
//!     println!("a rank of program {program} sends {bytes} bytes a step");
//! }
//! # Ok::<_, shardc::Error>(())
//! ```

use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Phase};
use shardc_ir::listing::units::bytes_text;
use shardc_ir::listing::{Communication, fullest_place, parts_text, report as listed};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Buffer, BufferKind, Program, ProgramInput};
use shardc_ir::programs::{Plan, ProgramKind, Programs};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::spec::Spec;
use shardc_ir::verify::{report, verify as verify_graph};
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{Proof, Violation, verify, verify_set};
use shardc_passes::planning::inputs::{Allowed, allowed};
use shardc_passes::{Context, Mode, loss_outputs, planning};

/// The proof of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Proven {
    /// Which program.
    pub kind: ProgramKind,
    /// Its proof.
    pub proof: Proof,
}

/// Which program is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disproof {
    /// Which program.
    pub kind: ProgramKind,
    /// The counter-example.
    pub violation: Violation,
}

/// Proves every program against its graph, the training graph against `reference`, and the numbers
/// that come from the spec alone.
///
/// # Errors
/// The first counter-example.
pub fn prove(plans: &Programs<Plan>, reference: Option<&Graph>, spec: &Spec) -> Result<Vec<Proven>, Disproof> {
    let wrong = |kind, why: &str| Disproof { kind, violation: Violation::of(why) };
    let prove = |(kind, plan): (ProgramKind, &Plan)| {
        let proof = verify_set(&plan.programs.as_ref(), &plan.graph).map_err(|violation| Disproof { kind, violation })?;
        Ok(Proven { kind, proof })
    };
    let proven = plans.iter().map(prove).collect::<Result<Vec<Proven>, Disproof>>()?;
    if let Some(training) = &plans.training {
        is_reference(reference, &training.graph).map_err(|why| wrong(ProgramKind::Reference, &why.to_string()))?;
        if spec.learning_rate() != Some(training.programs.first().learning_rate) {
            return Err(wrong(ProgramKind::Train, "its learning rate is not the spec's"));
        }
    }
    evaluates(&plans.eval.programs, spec).map_err(|why| wrong(ProgramKind::Eval, why))?;
    let (mesh, seed) = (spec.mesh(), spec.seed.as_ref().map_or(0, |s| s.value));
    let batch = spec.batch.as_ref().map_or(0, |b| b.value.size);
    for (kind, program, graph) in
        plans.iter().flat_map(|(kind, plan)| plan.programs.programs.iter().map(move |p| (kind, p, &plan.graph)))
    {
        if program.mesh != mesh || program.seed != seed || program.batch != batch {
            return Err(wrong(kind, "its mesh, batch or seed is not the spec's"));
        }
        let allowed = allowed(graph, spec);
        let differs = |input: &&ProgramInput| {
            let own = Allowed { range: input.range, except: input.except };
            allowed.get(&input.name) != Some(&own)
        };
        if let Some(input) = program.inputs.iter().find(differs) {
            return Err(wrong(kind, &format!("its input `{}` may hold other values than the graph takes", input.name)));
        }
    }
    Ok(proven)
}

/// The reference is the training graph with one rank on each axis, and keeps the rules of graphs.
fn is_reference(reference: Option<&Graph>, training: &Graph) -> Result<(), Reason> {
    let reference = reference.ok_or("it is not there")?;
    if training.mesh.reference() != reference.mesh {
        return Err("it is of another mesh than the training step with one rank on each axis".into());
    }
    if reference.phase != Phase::Explicit {
        return Err(reason!("it is {}, not {}", reference.phase, Phase::Explicit));
    }
    verify_graph(reference).map_err(|violations| report(reference, &violations))?;
    same_when_erased(training, reference).map_err(|why| reason!("it is of another graph: {why}"))
}

/// What each program of the plan of `kind`, or of the first, sends in a step; empty without a
/// proof.
pub fn sent(proven: &[Proven], kind: Option<ProgramKind>) -> &[Vec<Communication>] {
    let of_kind = proven.iter().find(|proven| kind.is_none_or(|kind| proven.kind == kind));
    of_kind.map_or(&[], |proven| &proven.proof.sent)
}

/// The program of the reference, from its graph.
///
/// # Errors
/// A bug of shardc: what could be planned over many ranks can be on one.
pub fn plan_reference(reference: &Graph, spec: &Spec) -> Result<Program, Diagnostics> {
    let spec = spec.reference();
    let program = planning::plan(reference, &Context { spec: &spec, mode: Mode::Train, verify: false })?;
    let program = program.into_first();
    let wrong = |violation| Diagnostic::error(format!("a bug of shardc: the reference plan is wrong: {violation}"));
    verify(&program, reference).map_err(wrong)?;
    Ok(program)
}

/// Evaluation has no gradients and no state of an optimizer, and gives the sum of the loss where
/// the spec has one.
fn evaluates(eval: &PlanSet, spec: &Spec) -> Result<(), &'static str> {
    let is_gradient = |b: &Buffer| matches!(b.kind, BufferKind::Gradient(_));
    let trains =
        |program: &Program| program.states.iter().any(|s| !s.role.is_of_model()) || program.buffers.iter().any(is_gradient);
    if eval.programs.iter().any(trains) {
        return Err("it trains");
    }
    if spec.loss.is_some() && loss_outputs(eval).is_none() {
        return Err("it does not give the loss that the spec asks for");
    }
    Ok(())
}

/// Whether the programs that run on the spec's devices fit them.
///
/// # Errors
/// What fills the memory, at the line that limits it.
pub fn check_memory(plans: &Programs<Plan>, spec: &Spec) -> Result<(), Diagnostic> {
    let Some(limit) = &spec.device_memory else { return Ok(()) };
    for (kind, plan) in plans.iter() {
        let set = &plan.programs;
        if set.fullest().arena_bytes <= limit.value {
            continue;
        }
        let words = format!("the {kind} plan needs {}, the device has {}", fullest_place(set), bytes_text(limit.value));
        let held = parts_text(&listed(set.fullest()).peak.kinds, usize::MAX);
        return Err(Diagnostic::error(words).at(spec.place_of(limit.source)).label(held));
    }
    Ok(())
}
