//! Draws the masks of dropout for training, and takes dropout out of evaluation.
//!
//! Before: `%y, %mask = dropout ratio=0.1 stream=3 %x`. After, for training: `%mask = keep_mask …`,
//! and `%y` is `%x / 0.9` where the mask is true, else 0; for evaluation `%y` is `%x`, unless a
//! `shard` line names it. Needs and keeps phase `imported`. Refuses nothing.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Phase, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Host;
use shardc_ir::ops::random::KeepMask;
use shardc_ir::plan::HostScalar;

/// See the module.
pub struct Dropout;

impl Pass for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Imported
    }

    fn gives(&self) -> Phase {
        Phase::Imported
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        if !graph.nodes().any(|(_, node)| matches!(node.op, Op::Dropout(_))) {
            return Ok(());
        }
        let mut counters = None;
        let named = cx.named();
        *graph = rebuild(graph, |b, _, node, map| {
            let Op::Dropout(dropout) = &node.op else { return None };
            b.base = Some(graph.value(node.results[0]).name.clone());
            let x = mapped(map, node.operands[0]);
            let shape = b.ty(x).shape.clone();
            if cx.mode == Mode::Evaluate {
                let all = b.number(DType::Bool, 1.0);
                return if named.is_named(graph, node) { None } else { Some(vec![x, b.broadcast(all, &shape)]) };
            }
            let counters: &[ValueId; 2] = counters.get_or_insert_with(|| counters_of(b));
            let mask = b.op(KeepMask { shape, ratio: dropout.ratio, stream: dropout.stream }, counters);
            let scaled = b.scale(x, 1.0 / (1.0 - dropout.ratio));
            let zero = b.number_like(x, 0.0);
            let y = b.select(mask, scaled, zero);
            for (new, old) in [y, mask].into_iter().zip(&node.results) {
                b.rename(new, &graph.value(*old).name);
            }
            Some(vec![y, mask])
        });
        Ok(())
    }
}

/// The seed and the number of the step.
fn counters_of(b: &mut Builder) -> [ValueId; 2] {
    let base = b.base.replace("dropout".into());
    let counters = [HostScalar::Seed, HostScalar::StepCount].map(|scalar| b.op(Host { scalar }, &[]));
    b.base = base;
    counters
}
