//! Turns every `reshard` into communication ops, one change a line.
//!
//! Before: `%q = reshard %p` from `partial(sum: tp time)` to whole. After: `%a = accumulate %p`, `%q = all_reduce axes=[tp] %a`.
//! In order: micro-batches are accumulated, partial sums reduced, split dimensions gathered, whole ones sliced.
//! Refuses: a value that is split over micro-batches and needed whole. Needs and keeps phase `explicit`.

use crate::rewrite::{mapped, rebuild};
use crate::{Changed, Context, Pass};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, Phase, ValueId};
use shardc_ir::kernel::ReduceKind;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::Op;
use shardc_ir::ops::comm::{Accumulate, AllGather, AllReduce, ShardSlice};
use shardc_ir::sharding::{Sharding, Split};

/// See the module.
pub struct LowerReshards;

impl Pass for LowerReshards {
    fn name(&self) -> &'static str {
        "lower-reshards"
    }

    fn phases(&self) -> (Phase, Phase) {
        (Phase::Explicit, Phase::Explicit)
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<Changed, Diagnostics> {
        let mut errors = vec![];
        let lowered = rebuild(graph, |b, _, node, map| {
            matches!(node.op, Op::Reshard(_)).then(|| {
                let operand = mapped(map, node.operands[0]);
                let target = graph.sharding(node.results[0]);
                let changes = changes(b.graph().sharding(operand), target, &graph.mesh);
                if changes.iter().any(|c| matches!(c, Change::GatherTime)) {
                    errors.push(needs_whole_batch(graph, node, cx));
                }
                let lowered = apply(b, operand, &graph.value(node.operands[0]).name, changes);
                if lowered != operand {
                    b.rename(lowered, &graph.value(node.results[0]).name);
                }
                vec![lowered]
            })
        });
        if !errors.is_empty() {
            errors.dedup();
            return Err(errors);
        }
        *graph = lowered;
        Ok(Changed::Yes)
    }
}

enum Change {
    Accumulate(ReduceKind),
    Reduce(ReduceKind, Vec<AxisId>),
    Gather(usize, Split),
    GatherTime,
    Slice(usize, Split),
}

/// What leads from one sharding to another, in order.
fn changes(from: &Sharding, to: &Sharding, mesh: &Mesh) -> Vec<Change> {
    let mut out = vec![];
    let gone: Vec<_> = from.partial.iter().filter(|p| !to.partial.contains(p)).collect();
    out.extend(gone.iter().filter(|p| p.axis == mesh.time()).map(|p| Change::Accumulate(p.kind)));
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
        let axes: Vec<AxisId> = gone.iter().filter(|p| p.axis != mesh.time() && p.kind == kind).map(|p| p.axis).collect();
        if !axes.is_empty() {
            out.push(Change::Reduce(kind, axes));
        }
    }
    for (dim, (a, b)) in from.dims.iter().zip(&to.dims).enumerate() {
        for split in a.iter().rev().filter(|s| !b.contains(s)) {
            out.push(if split.axis == mesh.time() { Change::GatherTime } else { Change::Gather(dim, *split) });
        }
    }
    for (dim, (a, b)) in from.dims.iter().zip(&to.dims).enumerate() {
        out.extend(b.iter().filter(|s| !a.contains(s)).map(|s| Change::Slice(dim, *s)));
    }
    out
}

fn apply(b: &mut Builder, mut value: ValueId, name: &str, changes: Vec<Change>) -> ValueId {
    for change in changes {
        let mut sharding = b.graph().sharding(value).clone();
        let op: Op = match change {
            Change::Accumulate(kind) => {
                let time = b.graph().mesh.time();
                sharding.partial.retain(|p| p.axis != time);
                Accumulate { kind }.into()
            }
            Change::Reduce(kind, axes) => {
                sharding.partial.retain(|p| !axes.contains(&p.axis));
                AllReduce { kind, axes }.into()
            }
            Change::Gather(dim, split) => {
                sharding.dims[dim].retain(|s| *s != split);
                AllGather { dim, split }.into()
            }
            Change::Slice(dim, split) => {
                let at = sharding.dims[dim].iter().position(|s| s.stride < split.stride);
                let at = at.unwrap_or(sharding.dims[dim].len());
                sharding.dims[dim].insert(at, split);
                ShardSlice { dim, split }.into()
            }
            Change::GatherTime => continue,
        };
        let ty = b.ty(value).clone();
        value = b.push(op, &[value], vec![ty], name)[0];
        b.graph_mut().set_sharding(value, sharding);
    }
    value
}

fn needs_whole_batch(graph: &Graph, node: &Node, cx: &Context<'_>) -> Diagnostic {
    let name = &graph.value(node.operands[0]).name;
    let wants = node.origin.reason.clone().unwrap_or_default();
    Diagnostic::error(format!("`{name}` is needed for the whole batch at once ({wants}), but the batch comes in micro-batches"))
        .at_opt(cx.spec.batch.as_ref().map(|b| cx.spec.place_of(b.source)))
        .help("use `microbatches=1`")
}
