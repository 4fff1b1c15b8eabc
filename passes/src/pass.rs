//! The trait of passes, the context that they may read, and how one is run.

use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, Phase};
use shardc_ir::names::Patterns;
use shardc_ir::spec::Spec;
use shardc_ir::verify::{report, verify};

/// The purpose of a program.
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

/// The context that passes may read beside the graph.
pub struct Context<'a> {
    /// The job.
    pub spec: &'a Spec,
    /// The purpose of the program.
    pub mode: Mode,
    /// Whether the graph is verified after every pass.
    pub verify: bool,
}

impl<'a> Context<'a> {
    /// The values that `shard` lines name.
    pub fn named(&self) -> Named<'a> {
        Named(Patterns::new(self.spec.shard.iter().map(|shard| shard.value.pattern.value.as_str())))
    }
}

/// The values that `shard` lines name, to be asked of every node.
pub struct Named<'a>(Patterns<'a>);

impl Named<'_> {
    /// Whether a `shard` line names a result of the node: then the value must stay as the model has
    /// it.
    pub fn is_named(&self, graph: &Graph, node: &Node) -> bool {
        node.results.iter().any(|v| self.0.any(&graph.value(*v).name))
    }

    /// Whether the node makes or reads a value that a `shard` line names: then no rewrite may pass
    /// that value by.
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

/// Runs a pass alone.
///
/// # Errors
/// The refusals of the pass; a graph that is not well-formed behind it, if the context asks for
/// that check.
///
/// # Panics
/// If the graph has not reached the phase that the pass needs, or the pass does not run in this
/// mode.
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
