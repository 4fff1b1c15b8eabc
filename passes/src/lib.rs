//! From the model's graph to a plan: one pass a file, and this file says in which order and why.

mod add_optimizer;
pub mod annotate;
mod attach_loss;
mod batch_statistics;
mod blocks;
mod differentiate;
mod dropout;
mod fold_layout;
mod idle;
mod insert_reshards;
mod lower_reshards;
pub mod planning;
mod propagate;
mod raise;
mod raise_attention;
mod rebatch;
mod rewrite;
mod separate_blocks;
mod unmerge;
mod weights;

pub use attach_loss::{PADDING_LABEL, loss_outputs};
pub use idle::check_axes;

use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, Phase};
use shardc_ir::names::Patterns;
use shardc_ir::plan::Program;
use shardc_ir::spec::Spec;
use shardc_ir::verify::{report, verify};
use std::convert::Infallible;
use std::ops::ControlFlow;

/// What a program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Loss, gradients, updates.
    Train,
    /// The model's outputs, the sum of the loss and how many labels it is over.
    Evaluate,
}

impl Mode {
    /// Both.
    pub const ALL: &[Mode] = &[Mode::Train, Mode::Evaluate];

    /// The name of its folder of dumps, and in the cases of passes: `train`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Train => "train",
            Mode::Evaluate => "eval",
        }
    }
}

/// What passes may know beside the graph.
pub struct Context<'a> {
    /// The job.
    pub spec: &'a Spec,
    /// What the program is for.
    pub mode: Mode,
    /// Whether the graph is verified after every pass.
    pub verify: bool,
}

impl<'a> Context<'a> {
    /// What `shard` lines name.
    pub fn named(&self) -> Named<'a> {
        Named(Patterns::new(self.spec.shard.iter().map(|shard| shard.value.pattern.value.as_str())))
    }
}

/// What `shard` lines name, to be asked of every node.
pub struct Named<'a>(Patterns<'a>);

impl Named<'_> {
    /// Whether a `shard` line names a result of the node: then the value must stay as the model has it.
    pub fn is_named(&self, graph: &Graph, node: &Node) -> bool {
        node.results.iter().any(|v| self.0.any(&graph.value(*v).name))
    }

    /// Whether the node makes or reads a value that a `shard` line names: then no rewrite may pass that value by.
    pub fn touches_named(&self, graph: &Graph, node: &Node) -> bool {
        self.is_named(graph, node)
            || node.operands.iter().any(|v| graph.def(*v).op.is_rearrangement() && self.is_named(graph, graph.def(*v)))
    }
}

/// A pass over the graph. It keeps no state.
pub trait Pass: Sync {
    /// Kebab-case: the name on the command line, of dumps, of the test folder.
    fn name(&self) -> &'static str;

    /// The phase that the graph must have reached.
    fn needs(&self, mode: Mode) -> Phase;

    /// The phase that the graph has reached behind it.
    fn gives(&self) -> Phase;

    /// The modes in which it runs.
    fn modes(&self) -> &'static [Mode];

    /// Changes the graph.
    ///
    /// # Errors
    /// The user's mistakes that only show here.
    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics>;
}

/// The passes from the imported graph to the explicit one.
pub const PIPELINE: &[&dyn Pass] = &[
    // The batch is followed through the model as it was written, before anything is moved.
    &rebatch::Rebatch,
    // Evaluation has no dropout, and shows its forms without it.
    &dropout::Dropout,
    // Exporters wrap everything in reshapes and transposes; the forms below show without them.
    &fold_layout::FoldLayout,
    // Linear layers are wrapped in merges of batch and tokens; without them letters stay what they are in the model.
    &unmerge::Unmerge,
    // Activations and norms first: they stand alone.
    &raise::Raise,
    // Attention is recognised around its softmax, whatever scaled, masked or repeated its operands.
    &raise_attention::RaiseAttention,
    // Statistics of the batch are part of what is differentiated.
    &batch_statistics::BatchStatistics,
    // What has blocks of different sizes comes apart when the forms are recognised, and before gradients and moments multiply it.
    &separate_blocks::SeparateBlocks,
    // The loss comes before differentiation, which treats it as part of the model.
    &attach_loss::AttachLoss,
    // The backward pass is made of ordinary ops, so it is sharded by the same rules as the model.
    &differentiate::Differentiate,
    // Norm, clip and updates read complete gradients; propagation needs them to see parameters and moments as one.
    &add_optimizer::AddOptimizer,
    // The spec's splits reach every value before anything is decided about partial sums.
    &propagate::Propagate,
    // Now every op knows its letters: what disagrees becomes a reshard …
    &insert_reshards::InsertReshards,
    // … and every reshard the communication that it costs.
    &lower_reshards::LowerReshards,
];

/// Runs a pass alone.
///
/// # Errors
/// What the pass refuses; a graph that is not well-formed behind it, where the context asks for that.
///
/// # Panics
/// If the graph has not reached the phase that the pass needs, or the pass does not run in this mode.
pub fn run_pass(pass: &dyn Pass, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
    let (name, needs) = (pass.name(), pass.needs(cx.mode));
    assert!(pass.modes().contains(&cx.mode), "`{name}` does not run in this mode");
    assert!(graph.phase >= needs, "`{name}` needs phase `{needs}`, the graph is in `{}`", graph.phase);
    pass.run(graph, cx)?;
    graph.phase = graph.phase.max(pass.gives());
    if cx.verify {
        verify(graph).map_err(|violations| {
            let words = format!("a bug of shardc: after pass `{name}`\n{}", report(graph, &violations));
            Diagnostics::from(Diagnostic::error(words))
        })?;
    }
    Ok(())
}

/// Runs the pipeline on an imported graph, and `observe` after each pass, until it breaks off.
///
/// # Errors
/// All diagnostics of the first pass that refuses.
pub fn observed<B>(
    mut graph: Graph,
    cx: &Context<'_>,
    mut observe: impl FnMut(&dyn Pass, &Graph) -> ControlFlow<B>,
) -> Result<ControlFlow<B, Graph>, Diagnostics> {
    graph.mesh = cx.spec.mesh();
    let misnamed = annotate::annotations(&graph, cx).err().unwrap_or_default();
    for pass in PIPELINE.iter().filter(|pass| pass.modes().contains(&cx.mode)) {
        run_pass(*pass, &mut graph, cx).map_err(|mut errors| {
            // What the spec names wrongly shows with the first mistake, not after it is mended.
            if pass.gives() < Phase::Annotated {
                let more = misnamed.iter().filter(|error| !errors.contains(error)).cloned().collect::<Diagnostics>();
                errors.extend(more);
            }
            errors
        })?;
        if let ControlFlow::Break(broken) = observe(*pass, &graph) {
            return Ok(ControlFlow::Break(broken));
        }
    }
    Ok(ControlFlow::Continue(graph))
}

/// Runs the pipeline on an imported graph.
///
/// # Errors
/// All diagnostics of the first pass that refuses.
pub fn run(graph: Graph, cx: &Context<'_>) -> Result<Graph, Diagnostics> {
    match observed(graph, cx, |_, _| ControlFlow::<Infallible>::Continue(()))? {
        ControlFlow::Continue(graph) => Ok(graph),
        ControlFlow::Break(never) => match never {},
    }
}

/// The whole way from an imported graph to a program.
///
/// # Errors
/// All diagnostics of the first pass that refuses.
pub fn compile(graph: Graph, cx: &Context<'_>) -> Result<Program, Diagnostics> {
    let explicit = run(graph, cx)?;
    planning::plan(&explicit, cx)
}
