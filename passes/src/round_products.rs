//! Lets products be rounded as they are written.
//!
//! Before: `%p = contract %g, %w dtype=f32`, `%d = cast %p`, where nothing else reads `%p`. After:
//! `%d = contract %g, %w : bf16[…]`. Where sums over ranks are of 16 bits, every product is
//! rounded, unless it is of the gradient of a weight, so that what is reduced is what one rank
//! computes. Nodes that nothing needs are left out, such as casts of what a gradient did not read
//! after all. Needs and keeps phase `differentiated`.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, rebuild};
use crate::weights::gradients_of_weights;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase};
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;
use shardc_ir::spec::FloatType;

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
        let Some(line) = &cx.spec.precision else { return Ok(()) };
        let reduced = line.value.reduce.map(FloatType::dtype).filter(|dtype| dtype.is_half());
        // Dead casts are no readers.
        let live = rebuild(graph, |_, _, _, _| None);
        let (uses, of_weights) = (live.use_counts(), gradients_of_weights(&live));
        *graph = rebuild(&live, |b, _, node, map| {
            if let Op::Contract(Contract { spec, dtype: Some(wide) }) = &node.op {
                let factors: Vec<_> = node.operands.iter().map(|v| mapped(map, *v)).collect();
                if of_weights[node.results[0].index()] || Some(b.ty(factors[0]).dtype) != reduced {
                    return None;
                }
                let rounded = b.op(Contract::new(spec), &factors);
                b.rename(rounded, &live.value(node.results[0]).name);
                return Some(vec![b.cast(rounded, *wide)]);
            }
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
