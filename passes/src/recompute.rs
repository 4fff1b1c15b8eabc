//! Computes activations again in the backward pass instead of keeping them from the forward pass.
//!
//! Before: `%g = mul %dy, %h`, where `%h = gelu %x` is of the forward pass and of a scope that is
//! recomputed. After: `%h_1 = gelu %x backward`, `%g = mul %dy, %h_1`, so `%h` is gone when the
//! forward pass no longer reads it. Which values are kept is decided first ([`keep`], and
//! [`budget`] for `recompute budget=`); then the backward pass is built anew on these (`again`).
//! It runs on the explicit graph: copies have the shardings of what they repeat, and repeat its
//! communication, so they are the same to the bit. Refuses: a scope that no module matches, a
//! budget that cannot be kept. Needs and keeps phase `explicit`. Sources: Chen et al., Training
//! Deep Nets with Sublinear Memory Cost (2016); for `selective` Korthikanti et al., Reducing
//! Activation Recomputation in Large Transformer Models (2022).

mod again;
mod budget;
mod frontier;
mod keep;
mod profile;
#[cfg(test)]
mod tests;

use crate::pass::{Context, Mode, Pass};
use again::again;
use keep::Forward;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase};
use shardc_ir::spec::{Located, Recompute as Line};

/// See the module.
pub struct Recompute;

impl Pass for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Explicit
    }

    fn gives(&self) -> Phase {
        Phase::Explicit
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(first) = cx.spec.recompute.first() else { return Ok(()) };
        let forward = Forward::of(graph);
        let line = first.source.line as u32;
        let built = match &first.value {
            Line::Scope(_) => {
                let units = keep::units(graph, cx.spec)?;
                let kept = forward.kept(|id| forward.leaves(id, &units.of));
                again(graph, &kept, |id| units.of[id.index()].map_or(line, |unit| units.lines[unit as usize]))
            }
            Line::Selective => again(graph, &forward.kept(|id| forward.is_dear(id)), |_| line),
            Line::Budget(bytes) => {
                let limit = Located { value: *bytes, source: first.source };
                budget::built(&forward, &limit, cx)?
            }
        };
        *graph = built;
        Ok(())
    }
}
