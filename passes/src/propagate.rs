//! Carries the splits of the spec to every value, letter by letter, to a fixed point.
//!
//! Before: `%h = contract %x, %w1 : f32[8, 16]` with `%x {dp, -}` and `%w1 {-, tp}`. After:
//! `%h : f32[8, 16]{dp, tp}`. Facts of the spec come first and are never changed; then values take
//! splits from what defines them (in program order), then from what reads them (in reverse), until
//! nothing moves. Then `tensor` lines find the blocks that they split ([`tensor`]), and last
//! `sequence` splits what is left between them ([`sequence`]). Of two that disagree the first wins;
//! the reshard comes later. Refuses splits that no op can use ([`refuse`]), and sizes that do not
//! divide. Needs phase `differentiated` (or `raised` for evaluation), gives `annotated`. Source:
//! GSPMD (Xu et al., 2021); Shardy's propagation.

pub mod facts;
mod refuse;
mod samples;
mod scopes;
mod sequence;
mod tensor;

use crate::annotate::annotations;
use crate::pass::{Context, Mode, Pass};
use facts::{Facts, LetterTable};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase};

/// See the module.
pub struct Propagate;

impl Pass for Propagate {
    fn name(&self) -> &'static str {
        "propagate"
    }

    fn needs(&self, mode: Mode) -> Phase {
        match mode {
            Mode::Train => Phase::Differentiated,
            Mode::Evaluate => Phase::Raised,
        }
    }

    fn gives(&self) -> Phase {
        Phase::Annotated
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let annotations = annotations(graph, cx)?;
        let mut facts = Facts::new(graph, &annotations);
        let mut rules = LetterTable::of(graph);
        refuse::useless_splits(graph, cx, &rules, &annotations)?;
        scopes::separate(graph, cx, &mut rules, &mut facts)?;
        facts.settle(&rules);
        refuse::broken_units(graph, cx, &rules, &facts)?;
        if !cx.spec.tensor.is_empty() {
            tensor::split_blocks(graph, cx, &rules, &mut facts)?;
            facts.settle(&rules);
        }
        if let Some(line) = &cx.spec.sequence {
            sequence::split_tokens(graph, cx, line, &rules, &mut facts)?;
            facts.settle(&rules);
        }
        facts.store(graph);
        Ok(())
    }
}
