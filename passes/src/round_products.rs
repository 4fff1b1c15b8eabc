//! Lets products be rounded as they are written.
//!
//! Before: `%p = contract %g, %w dtype=f32`, `%d = cast %p`, where nothing else reads `%p`. After:
//! `%d = contract %g, %w : bf16[…]`. Nodes that nothing needs are left out, such as casts of what a
//! gradient did not read after all. Needs and keeps phase `differentiated`.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, rebuild};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase};
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;

/// See the module.
pub struct RoundProducts;

impl Pass for RoundProducts {
    fn name(&self) -> &'static str {
        "round-products"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Differentiated
    }

    fn gives(&self) -> Phase {
        Phase::Differentiated
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        if cx.spec.precision.is_none() {
            return Ok(());
        }
        // Dead casts are no readers.
        let live = rebuild(graph, |_, _, _, _| None);
        let uses = live.use_counts();
        *graph = rebuild(&live, |b, _, node, map| {
            let Op::Cast(cast) = &node.op else { return None };
            let product = live.def(node.operands[0]);
            let Op::Contract(Contract { spec, dtype: Some(_) }) = &product.op else { return None };
            let factors: Vec<_> = product.operands.iter().map(|v| mapped(map, *v)).collect();
            let fits = uses[node.operands[0].index()] == 1 && b.ty(factors[0]).dtype == cast.dtype;
            if !fits {
                return None;
            }
            let rounded = b.op(Contract::new(spec), &factors);
            b.rename(rounded, &live.value(node.results[0]).name);
            Some(vec![rounded])
        });
        *graph = rebuild(graph, |_, _, _, _| None);
        Ok(())
    }
}
