//! Turns every `reshard` into communication ops, one change a line.
//!
//! Before: `%q = reshard %p` from `partial(sum: tp time)` to whole. After: `%a = accumulate %p`,
//! `%q = all_reduce axes=[tp] %a`. In order: micro-batches are accumulated, partial sums reduced,
//! values moved to other positions, split dimensions gathered, whole ones sliced; an axis that is
//! partial before and splits after is scattered as it is reduced, one that splits before and after
//! is exchanged. Refuses: a value that is split over micro-batches and needed whole. Needs and
//! keeps phase `explicit`.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, rebuild};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, Phase};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::Op;
use shardc_ir::ops::comm::{Accumulate, AllGather, AllReduce, AllToAll, ReduceScatter, ShardSlice, Transfer};
use shardc_ir::ops::flat::{FlatGather, FlatScatter, FlatSlice};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Partial, Sharding, Split, inserted, well_formed};

/// See the module.
pub struct LowerReshards;

impl Pass for LowerReshards {
    fn name(&self) -> &'static str {
        "lower-reshards"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Explicit
    }

    fn gives(&self) -> Phase {
        Phase::Explicit
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let mut errors = vec![];
        let lowered = rebuild(graph, |b, _, node, map| {
            let Op::Reshard(reshard) = &node.op else { return None };
            Some({
                let operand = mapped(map, node.operands[0]);
                let target = graph.sharding(node.results[0]);
                let (at, ty) = (b.graph().sharding(operand).clone(), b.ty(operand).clone());
                let mut path =
                    Path { mesh: &graph.mesh, at, ops: vec![], shape: &ty.shape, kept: reshard.kept, gathers_time: false };
                path.to(target);
                if path.gathers_time {
                    errors.push(needs_whole_batch(graph, node, cx));
                }
                let name = &graph.value(node.operands[0]).name;
                let lowered = path.ops.into_iter().fold(operand, |value, (op, sharding)| {
                    let value = b.push(op, &[value], vec![ty.clone()], name)[0];
                    b.graph_mut().set_sharding(value, sharding);
                    value
                });
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
        Ok(())
    }
}

/// The ops that lead from one sharding to another, in order; a value that is needed whole over
/// micro-batches is an error.
struct Path<'m> {
    mesh: &'m Mesh,
    at: Sharding,
    ops: Vec<(Op, Sharding)>,
    shape: &'m [u64],
    kept: bool,
    gathers_time: bool,
}

impl Path<'_> {
    fn to(&mut self, target: &Sharding) {
        let time = self.mesh.microbatch_axis();
        let gone: Vec<Partial> = self.at.partial.iter().filter(|p| !target.partial.contains(p)).copied().collect();
        for p in gone.iter().filter(|p| p.axis == time) {
            self.step(Accumulate { kind: p.kind }.into(), |s| s.partial.retain(|q| q != p));
        }
        self.scatter_line(target);
        for p in gone.iter().filter(|p| p.axis != time && self.at.partial.contains(p)).copied().collect::<Vec<_>>() {
            if let Some((dim, split)) = self.free_place(target, p.axis) {
                self.step(ReduceScatter { kind: p.kind, dim, split }.into(), |s| {
                    s.partial.retain(|q| *q != p);
                    s.dims[dim] = inserted(&s.dims[dim], split);
                });
            }
        }
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
            let left = gone.iter().filter(|p| p.kind == kind && self.at.partial.contains(p));
            let axes: Vec<AxisId> = left.map(|p| p.axis).collect();
            if !axes.is_empty() {
                self.step(AllReduce { kind, axes: axes.clone() }.into(), |s| s.partial.retain(|p| !axes.contains(&p.axis)));
            }
        }
        if let Some((from, at)) =
            self.at.at.as_ref().map(|at| (at.positions[0], at)).filter(|(_, at)| target.at.as_ref() != Some(at))
        {
            let axis = at.axis;
            let everywhere = || (0..self.mesh.size(axis)).collect();
            let to = target.at.as_ref().map_or_else(everywhere, |at| at.positions.clone());
            self.step(Transfer { axis, from, to }.into(), |s| s.at = target.at.clone());
        }
        if !self.at.flat.is_empty() && (&self.at.flat, &self.at.dims) != (&target.flat, &target.dims) {
            let axes = self.at.flat.clone();
            self.step(FlatGather { axes, kept: self.kept }.into(), |s| s.flat.clear());
        }
        for (dim, splits) in target.dims.iter().enumerate() {
            let whole: Vec<Split> = self.at.dims[dim].iter().rev().filter(|s| !splits.contains(s)).copied().collect();
            for split in whole {
                self.make_whole(target, dim, split);
            }
        }
        for (dim, splits) in target.dims.iter().enumerate() {
            for split in splits {
                if !self.at.dims[dim].contains(split) {
                    self.step(ShardSlice { dim, split: *split }.into(), |s| s.dims[dim] = inserted(&s.dims[dim], *split));
                }
            }
        }
        if self.at.flat != target.flat {
            let axes = target.flat.clone();
            self.step(FlatSlice { axes: axes.clone() }.into(), |s| s.flat = axes);
        }
    }

    /// Cuts a line over the axes over which it is partial, as it is reduced over them.
    fn scatter_line(&mut self, target: &Sharding) {
        let flat = &target.flat;
        let kind = flat.first().and_then(|axis| self.at.partial_over(*axis));
        let is_partial = |axis: &AxisId| self.at.partial_over(*axis) == kind && target.partial_over(*axis).is_none();
        let Some(kind) = kind.filter(|_| flat.iter().all(is_partial)) else { return };
        if self.at.flat.is_empty() && self.at.dims == target.dims {
            self.step(FlatScatter { kind, axes: flat.clone() }.into(), |s| {
                s.partial.retain(|p| !flat.contains(&p.axis));
                s.flat = flat.clone();
            });
        }
    }

    fn make_whole(&mut self, target: &Sharding, dim: usize, split: Split) {
        if split.axis == self.mesh.microbatch_axis() {
            self.gathers_time = true;
            return;
        }
        let drop = |s: &mut Sharding| s.dims[dim].retain(|other| *other != split);
        match self.free_place(target, split.axis) {
            Some((to_dim, to)) => self.step(AllToAll { dim, split, to_dim, to_split: to }.into(), |s| {
                drop(s);
                s.dims[to_dim] = inserted(&s.dims[to_dim], to);
            }),
            None => self.step(AllGather { dim, split }.into(), drop),
        }
    }

    /// The dimension that `target` splits over `axis`, with the split, if nothing is in the way
    /// there.
    fn free_place(&self, target: &Sharding, axis: AxisId) -> Option<(usize, Split)> {
        let found = |(dim, splits): (usize, &Vec<Split>)| splits.iter().find(|s| s.axis == axis).map(|s| (dim, *s));
        let (dim, split) = target.dims.iter().enumerate().find_map(found)?;
        well_formed(&inserted(&self.at.dims[dim], split), self.shape[dim], self.mesh).then_some((dim, split))
    }

    fn step(&mut self, op: Op, change: impl FnOnce(&mut Sharding)) {
        change(&mut self.at);
        self.ops.push((op, self.at.clone()));
    }
}

fn needs_whole_batch(graph: &Graph, node: &Node, cx: &Context<'_>) -> Diagnostic {
    let name = &graph.value(node.operands[0]).name;
    let wants = node.origin.reason.clone().unwrap_or_default();
    Diagnostic::error(format!("`{name}` is needed for the whole batch at once ({wants}), but the batch comes in micro-batches"))
        .at_opt(cx.spec.batch.as_ref().map(|b| cx.spec.place_of(b.source)))
        .help("use `microbatches=1`")
}
