//! What is proven of a job's programs before any of them runs: each carries out its graph, the training graph is the reference's but for
//! communication, and what a rank holds fits its device.

use crate::{Graphs, Programs};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::graph::Graph;
use shardc_ir::listing::summary;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::plan::{Buffer, BufferKind, Program, ProgramInput};
use shardc_ir::spec::Spec;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{Proof, Violation, verify};
use shardc_passes::loss_outputs;
use shardc_passes::planning::inputs::{Allowed, allowed};

/// The proof of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Proven {
    /// `train`, `reference` or `eval`.
    pub name: &'static str,
    /// What was proven of it.
    pub proof: Proof,
}

/// Which program is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disproof {
    /// `train`, `reference` or `eval`.
    pub name: &'static str,
    /// The counter-example.
    pub violation: Violation,
}

/// Proves every program against its graph, the training graph against the reference's, and the numbers that come from the spec alone.
///
/// # Errors
/// The first counter-example.
pub fn prove(programs: &Programs, graphs: &Graphs, spec: &Spec) -> Result<Vec<Proven>, Disproof> {
    let mut proven = vec![];
    let mut prove = |name, program: &Program, graph: &Graph| {
        let proof = verify(program, graph).map_err(|violation| Disproof { name, violation })?;
        proven.push(Proven { name, proof });
        Ok(())
    };
    let wrong = |name, why: &str| Disproof { name, violation: Violation::of(why) };
    if let (Some(training), Some((graph, reference))) = (&programs.training, &graphs.training) {
        prove("train", &training.program, graph)?;
        prove("reference", &training.reference, reference)?;
        if graph.mesh.reference() != reference.mesh {
            return Err(wrong("reference", "it is of another mesh than the training step with one rank on each axis"));
        }
        same_when_erased(graph, reference).map_err(|why| wrong("reference", &format!("it is of another graph: {why}")))?;
        for (name, program) in [("train", &training.program), ("reference", &training.reference)] {
            if spec.learning_rate() != Some(program.learning_rate) {
                return Err(wrong(name, "its learning rate is not the spec's"));
            }
        }
    } else if programs.training.is_some() || graphs.training.is_some() {
        return Err(wrong("train", "it has no graph"));
    }
    prove("eval", &programs.eval, &graphs.eval)?;
    evaluates(&programs.eval, spec).map_err(|why| wrong("eval", why))?;
    let (mesh, seed) = (spec.mesh(), spec.seed.as_ref().map_or(0, |s| s.value));
    let batch = spec.batch.as_ref().map_or(0, |b| b.value.size);
    for (name, program) in programs.named() {
        let own = if name == "reference" { mesh.reference() } else { mesh.clone() };
        if program.mesh != own || program.seed != seed || program.batch != batch {
            return Err(wrong(name, "its mesh, batch or seed is not the spec's"));
        }
        let allowed = allowed(graphs.of(name), spec);
        let differs = |input: &&ProgramInput| {
            let own = Allowed { range: input.range, except: input.except };
            allowed.get(&input.name) != Some(&own)
        };
        if let Some(input) = program.inputs.iter().find(differs) {
            return Err(wrong(name, &format!("its input `{}` may hold other values than the graph takes", input.name)));
        }
    }
    Ok(proven)
}

/// Evaluation has no gradients and no state of an optimizer, and gives the sum of the loss where the spec has one.
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
pub fn check_memory(programs: &Programs, spec: &Spec) -> Result<(), Diagnostic> {
    let Some(limit) = &spec.device_memory else { return Ok(()) };
    for (name, program) in programs.named().filter(|(name, _)| *name != "reference") {
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
            "the {name} plan needs {} on each rank, the device has {}",
            bytes_text(program.arena_bytes),
            bytes_text(limit.value)
        );
        let error = Diagnostic::error(words).at(spec.place_of(limit.source)).label(held.join(", "));
        let (what, _, are, help) = parts[0];
        return Err(error.help(format!("{what} {are} the largest part: {help}")));
    }
    Ok(())
}
