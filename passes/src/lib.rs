//! From the model's graph to a program: one pass a file, and this file says in which order and why.
//!
//! | what | where |
//! |---|---|
//! | the passes in their order | [`PIPELINE`], run by [`run`] and [`observed`] |
//! | what a pass is | [`Pass`] |
//! | what several passes ask | [`annotate`], `blocks`, `weights`, `rewrite` |
//! | from the explicit graph to buffers, tasks and steps | [`planning`] |
//!
//! A graph of one matrix product, trained over two ranks that share out the samples:
//!
//! ```
//! use shardc_ir::text;
//! use shardc_passes::{Context, Mode, compile};
//! use std::path::Path;
//!
//! let graph = text::parse(
//!     "graph @linear  phase imported
//!   state \"w\" : f32[4, 2]  parameter init=model
//!   %x = input \"x\"                     : f32[8, 4]
//!   %w = state \"w\"                     : f32[4, 2]
//!   %y = contract \"bk,kn->bn\" %x, %w   : f32[8, 2]
//!   output \"y\" %y
//! ",
//! )
//! .unwrap();
//! let job = "mesh dp=2\nbatch 8\ndata axis=dp\nloss mse labels=t\noptimizer sgd lr=0.1\n";
//! let spec = shardc_frontend::spec::parse(Path::new("job.shard"), job).unwrap();
//! let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
//! let programs = compile(graph, &cx).unwrap();
//! assert_eq!(programs.mesh().world_size(), 2);
//! ```

mod add_optimizer;
pub mod annotate;
mod attach_loss;
mod batch_statistics;
mod blocks;
mod cut_stages;
mod differentiate;
mod dropout;
mod fold_layout;
mod follow_batch;
mod gather_factors;
mod idle;
mod insert_reshards;
mod lower_reshards;
mod pass;
pub mod planning;
mod precision;
mod propagate;
mod raise;
mod raise_attention;
mod rebatch;
mod recompute;
pub mod repeats;
mod rewrite;
mod round_products;
mod separate_blocks;
mod unmerge;
mod weights;
mod without_samples;
mod zero;

pub use attach_loss::{PADDING_LABEL, loss_outputs};
pub use idle::check_axes;
pub use pass::{Context, Mode, Named, Pass, run_pass};
pub use without_samples::outputs_without_samples;

use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase};
use shardc_ir::plan::set::PlanSet;
use std::convert::Infallible;
use std::ops::ControlFlow;

/// The passes from the imported graph to the explicit one.
pub const PIPELINE: &[&dyn Pass] = &[
    // The batch is followed through the model as it was written, before anything is moved.
    &rebatch::Rebatch,
    // Evaluation has no dropout, and shows its forms without it.
    &dropout::Dropout,
    // Exporters wrap everything in reshapes and transposes; the forms below show without them.
    &fold_layout::FoldLayout,
    // Linear layers are wrapped in merges of batch and tokens; without them letters stay what they
    // are in the model.
    &unmerge::Unmerge,
    // Activations and norms first: they stand alone.
    &raise::Raise,
    // Attention is recognised around its softmax, whatever scaled, masked or repeated its operands.
    &raise_attention::RaiseAttention,
    // Statistics of the batch are part of what is differentiated.
    &batch_statistics::BatchStatistics,
    // Parameters and inputs with blocks of different sizes come apart when the forms are
    // recognised, and before gradients and moments multiply them.
    &separate_blocks::SeparateBlocks,
    // Types are chosen for the model as it is recognised. The loss is computed in its own type, and
    // the backward pass follows the forward pass.
    &precision::Precision,
    // The loss comes before differentiation, which treats it as part of the model.
    &attach_loss::AttachLoss,
    // Stages are stretches of the model with its loss; gradients and updates follow them.
    &cut_stages::CutStages,
    // The backward pass is made of ordinary ops, so it is sharded by the same rules as the model.
    &differentiate::Differentiate,
    // What rounds a product is known when all of its readers are.
    &round_products::RoundProducts,
    // Norm, clip and updates read complete gradients; propagation needs them to see parameters and
    // moments as one.
    &add_optimizer::AddOptimizer,
    // The spec's splits reach every value before anything is decided about partial sums.
    &propagate::Propagate,
    // What a parameter is trained with is cut as a line, which is no split that spreads.
    &zero::CutStates,
    // Gradients that stay whole may be made by rows, where that sends less than their sum.
    &gather_factors::GatherFactors,
    // Now every op knows its letters: what disagrees becomes a reshard …
    &insert_reshards::InsertReshards,
    // … and every reshard the communication that it costs.
    &lower_reshards::LowerReshards,
    // Copies of what the backward pass computes again are sharded as what they repeat, and repeat
    // its communication, which is all there now.
    &recompute::Recompute,
];

/// The first so many passes recognise what the model is: of the spec they ask the batch and what it
/// names, and nothing of how the job is spread.
const RECOGNISING: usize = 6;

/// Runs the passes that recognise what the model is, for jobs that are spread in several ways.
///
/// # Errors
/// All diagnostics of the first pass that refuses.
pub fn recognise(mut graph: Graph, cx: &Context<'_>) -> Result<Graph, Diagnostics> {
    graph.mesh = cx.spec.mesh();
    run_passes(&PIPELINE[..RECOGNISING], graph, cx)
}

/// Runs the passes behind [`recognise`], for the same batch and names.
///
/// # Errors
/// All diagnostics of the first pass that refuses.
pub fn spread(mut graph: Graph, cx: &Context<'_>) -> Result<Graph, Diagnostics> {
    graph.mesh = cx.spec.mesh();
    run_passes(&PIPELINE[RECOGNISING..], graph, cx)
}

fn run_passes(passes: &[&dyn Pass], mut graph: Graph, cx: &Context<'_>) -> Result<Graph, Diagnostics> {
    for pass in passes.iter().filter(|pass| pass.modes().contains(&cx.mode)) {
        run_pass(*pass, &mut graph, cx)?;
    }
    Ok(graph)
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
            // Wrong names in the spec show with the first mistake, not after it is mended.
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

/// The whole way from an imported graph to the programs of all ranks.
///
/// # Errors
/// All diagnostics of the first pass that refuses.
pub fn compile(graph: Graph, cx: &Context<'_>) -> Result<PlanSet, Diagnostics> {
    let explicit = run(graph, cx)?;
    planning::plan(&explicit, cx)
}
