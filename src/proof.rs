//! What is proven of a job's programs before any of them runs: each carries out its graph, the
//! training graph is the reference's but for communication, and what a rank holds fits its device.

use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::listing::summary;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::plan::{Buffer, BufferKind, Program, ProgramInput};
use shardc_ir::programs::{Plan, ProgramKind, Programs, Training};
use shardc_ir::spec::Spec;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{Proof, Violation, verify};
use shardc_passes::loss_outputs;
use shardc_passes::planning::inputs::{Allowed, allowed};

/// The proof of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Proven {
    /// Which program.
    pub kind: ProgramKind,
    /// What was proven of it.
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

/// Proves every program against its graph, the training graph against the reference's, and the
/// numbers that come from the spec alone.
///
/// # Errors
/// The first counter-example.
pub fn prove(plans: &Programs<Plan>, spec: &Spec) -> Result<Vec<Proven>, Disproof> {
    let wrong = |kind, why: &str| Disproof { kind, violation: Violation::of(why) };
    let prove = |(kind, plan): (ProgramKind, &Plan)| {
        let proof = verify(&plan.program, &plan.graph).map_err(|violation| Disproof { kind, violation })?;
        Ok(Proven { kind, proof })
    };
    let proven = plans.iter().map(prove).collect::<Result<Vec<Proven>, Disproof>>()?;
    if let Some(Training { program, reference }) = &plans.training {
        if program.graph.mesh.reference() != reference.graph.mesh {
            let why = "it is of another mesh than the training step with one rank on each axis";
            return Err(wrong(ProgramKind::Reference, why));
        }
        let same = same_when_erased(&program.graph, &reference.graph);
        same.map_err(|why| wrong(ProgramKind::Reference, &format!("it is of another graph: {why}")))?;
        for (kind, plan) in [(ProgramKind::Train, program), (ProgramKind::Reference, reference)] {
            if spec.learning_rate() != Some(plan.program.learning_rate) {
                return Err(wrong(kind, "its learning rate is not the spec's"));
            }
        }
    }
    evaluates(&plans.eval.program, spec).map_err(|why| wrong(ProgramKind::Eval, why))?;
    let (mesh, seed) = (spec.mesh(), spec.seed.as_ref().map_or(0, |s| s.value));
    let batch = spec.batch.as_ref().map_or(0, |b| b.value.size);
    for (kind, Plan { program, graph }) in plans.iter() {
        let own = if kind == ProgramKind::Reference { mesh.reference() } else { mesh.clone() };
        if program.mesh != own || program.seed != seed || program.batch != batch {
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

/// Evaluation has no gradients and no state of an optimizer, and gives the sum of the loss where
/// the spec has one.
fn evaluates(eval: &Program, spec: &Spec) -> Result<(), &'static str> {
    let is_gradient = |b: &Buffer| matches!(b.kind, BufferKind::Gradient(_));
    if eval.states.iter().any(|s| !s.role.is_of_model()) || eval.buffers.iter().any(is_gradient) {
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
    for (kind, Plan { program, .. }) in plans.iter().filter(|(kind, _)| *kind != ProgramKind::Reference) {
        if program.arena_bytes <= limit.value {
            continue;
        }
        let held = summary(program, 0);
        let mut parts = [
            ("parameters", held.parameter_bytes, "are", "split them with `shard`"),
            ("gradients", held.gradient_bytes, "are", "split their parameters with `shard`"),
            ("optimizer state", held.optimizer_bytes, "is", "split its parameters with `shard`, or use `sgd`"),
            ("activations", held.activation_bytes, "are", "use more `microbatches`, or split the batch with `data`"),
        ];
        parts.sort_by_key(|(_, bytes, ..)| std::cmp::Reverse(*bytes));
        let held: Vec<String> =
            parts.iter().filter(|p| p.1 > 0).map(|(what, n, ..)| format!("{} of {what}", bytes_text(*n))).collect();
        let words = format!(
            "the {kind} plan needs {} on each rank, the device has {}",
            bytes_text(program.arena_bytes),
            bytes_text(limit.value)
        );
        let error = Diagnostic::error(words).at(spec.place_of(limit.source)).label(held.join(", "));
        let (what, _, are, help) = parts[0];
        return Err(error.help(format!("{what} {are} the largest part: {help}")));
    }
    Ok(())
}
