//! Mutants of plans and graphs in which the backward pass computes activations again: copies that
//! are left out, come too late, read something else, of another place, of another micro-batch or of
//! another mask, and borders that are given away before they are read again.

use crate::jobs::{Model, compiled};
use crate::mutate::{places, step};
use crate::sets::{Class, Job, agree_with_the_executor, do_no_harm_to_the_executor, fit, graph, harmful_are_rejected, program};
use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId, Part, ValueId};
use shardc_ir::kernel::Kernel;
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::norm::LayerNorm;
use shardc_ir::ops::random::Dropout;
use shardc_ir::plan::{BufferKind, Program, Step};
use shardc_testkit::random::Random;
use std::collections::BTreeSet;

/// Every class.
const CLASSES: &[Class] = &[
    program("copy dropped", 6, dropped),
    program("copy too late", 5, late),
    program("copy of other values", 6, other_values),
    program("copy into another place", 5, other_place),
    program("what was kept is read", 5, stale),
    program("copy of another mask", 4, other_mask),
    program("border with fewer slots", 3, fewer_slots),
    program("border given away", 5, given_away),
    graph("graph: copy of other values", 6, graph_other_values),
    graph("graph: copy of another op", 5, graph_other_op),
    graph("graph: another copy is read", 4, graph_other_copy),
];

/// Its name, mesh and batch, and the rest of its spec.
type Row = (&'static str, &'static str, &'static str);

const JOBS: &[Row] = &[
    ("one rank", "mesh dp=1\nbatch 8\n", "recompute \"h.*\"\n"),
    ("micro-batches", "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\n", "recompute \"h.*\"\n"),
    ("cheap ones", "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\n", "recompute selective\n"),
    (
        "columns and rows",
        "mesh dp=2 tp=2\nbatch 8\ndata axis=dp\nshard \"v1\" [-, tp]\nshard \"w1\" [tp, -]\nshard \"v2\" [tp, -]\n",
        "recompute \"h.1\"\nrecompute \"h.2\"\n",
    ),
    ("gathered", "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\nzero stage=3 axis=dp\n", "recompute \"h.*\"\n"),
    ("1f1b", "mesh pp=2\nbatch 8 microbatches=4\npipeline axis=pp schedule=1f1b\n", "recompute \"h.*\"\n"),
    ("gpipe", "mesh pp=2\nbatch 8 microbatches=4\npipeline axis=pp schedule=gpipe\n", "recompute \"h.*\"\n"),
    ("zb-h1", "mesh pp=2\nbatch 8 microbatches=4\npipeline axis=pp schedule=zb-h1\n", "recompute \"h.*\"\n"),
];

fn all() -> Vec<Job> {
    let job = |(name, mesh, more): &Row| {
        let spec = format!("{mesh}loss mse prediction=y labels=t\noptimizer adamw lr=0.01\nclip norm=0.5\n{more}");
        let plans = compiled(&blocks(), &spec).unwrap_or_else(|why| panic!("{name}: {why}"));
        Job { name, plans }
    };
    JOBS.iter().map(job).collect()
}

/// Four residual blocks with a norm and a mask each.
fn blocks() -> Graph {
    let mut m = Model::new("blocks");
    let mut x = m.input("x", DType::F64, &[8, 4]);
    for i in 0..4 {
        m.0.origin.scope = Some(format!("h.{i}").into());
        let (v, w) = (m.parameter(&format!("v{i}"), &[4, 6]), m.parameter(&format!("w{i}"), &[6, 4]));
        let (scale, bias) = (m.parameter(&format!("scale{i}"), &[4]), m.parameter(&format!("bias{i}"), &[4]));
        let h = m.0.op(LayerNorm { eps: 0.1, dtype: None }, &[x, scale, bias]);
        let h = m.0.op(Contract::new("bk,kn->bn"), &[h, v]);
        let h = m.0.unary(UnaryFn::GeluTanh, h);
        let h = m.0.op(Dropout { ratio: 0.3, stream: i }, &[h]);
        let h = m.0.op(Contract::new("bk,kn->bn"), &[h, w]);
        x = m.0.add(x, h);
    }
    m.finish(x)
}

fn is_copy(step: &Step) -> bool {
    step.provenance.reason.as_deref() == Some("computed again")
}

/// A copy is left out.
fn dropped(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, is_copy))?;
    let step = program.tasks[t].steps.remove(s);
    Some(format!("`{}` {t}.{s}", step.text()))
}

/// A copy comes behind a step that reads what it makes.
fn late(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, is_copy))?;
    let steps = &program.tasks[t].steps;
    let written = |step: &Step| step.reads.iter().any(|read| steps[s].writes.iter().any(|view| view.buffer == read.buffer));
    let readers: Vec<usize> = (s + 1..steps.len()).filter(|i| written(&steps[*i])).collect();
    let to = random.pick(&readers)?;
    let text = steps[s].text();
    program.tasks[t].steps[s..=to].rotate_left(1);
    Some(format!("`{text}` {t}.{s} behind {to}"))
}

/// A copy reads another buffer of the same size.
fn other_values(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, is_copy))?;
    let step = &program.tasks[t].steps[s];
    let operand = random.below(step.reads.len().max(1));
    let own = *step.reads.get(operand)?;
    let fits = |id: &usize| {
        let (other, buffer) = (&program.buffers[*id], &program.buffers[own.buffer.index()]);
        *id != own.buffer.index() && other.dtype == buffer.dtype && other.local == buffer.local
    };
    let other = random.pick(&(0..program.buffers.len()).filter(fits).collect::<Vec<_>>())?;
    let text = step.text();
    program.tasks[t].steps[s].reads[operand].buffer.0 = other as u32;
    Some(format!("`{text}` {t}.{s} reads buffer {other} for {}", own.buffer.0))
}

/// A copy is written into another buffer.
fn other_place(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, is_copy)?;
    let (text, own) = (step.text(), step.writes[0].buffer);
    let at = places(program, |step| step.text() == text && step.writes.first().is_some_and(|view| view.buffer == own));
    let fits = |id: &usize| {
        let (other, buffer) = (&program.buffers[*id], &program.buffers[own.index()]);
        *id != own.index() && other.kind == BufferKind::Activation && other.local == buffer.local && other.dtype == buffer.dtype
    };
    let other = random.pick(&(0..program.buffers.len()).filter(fits).collect::<Vec<_>>())?;
    let (t, s) = *at.first()?;
    program.tasks[t].steps[s].writes[0].buffer.0 = other as u32;
    Some(format!("`{text}` {t}.{s} is written into buffer {other} for {}", own.0))
}

/// A step of the backward pass reads what the forward pass has made, for which no place is kept.
fn stale(program: &mut Program, random: &mut Random) -> Option<String> {
    let copies: Vec<_> = places(program, is_copy);
    let (t, s) = random.pick(&copies)?;
    let copy = program.tasks[t].steps[s].clone();
    let own = copy.writes[0].buffer;
    let original = program.buffers[own.index()].name.rsplit_once('_')?.0.to_string();
    let first = program.buffers.iter().position(|buffer| buffer.name == original)?;
    let mut changed = 0;
    for step in program.tasks[t].steps[s + 1..].iter_mut() {
        for view in step.reads.iter_mut().filter(|view| view.buffer == own) {
            view.buffer.0 = first as u32;
            changed += 1;
        }
    }
    (changed > 0).then(|| format!("`{original}` is read for `{}` {changed} times", copy.text()))
}

/// A mask is drawn again from other numbers.
fn other_mask(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |step| is_copy(step) && matches!(step.kernel, Kernel::Random(_)))?;
    let Kernel::Random(kernel) = &mut step.kernel else { return None };
    match random.below(2) {
        0 => kernel.stream += 1,
        _ => kernel.threshold /= 2,
    }
    Some(step.text())
}

/// A border that several micro-batches have at a time has fewer slots.
fn fewer_slots(program: &mut Program, random: &mut Random) -> Option<String> {
    let several = |id: &usize| program.buffers[*id].slots > 1 && program.buffers[*id].kind == BufferKind::Activation;
    let id = random.pick(&(0..program.buffers.len()).filter(several).collect::<Vec<_>>())?;
    program.buffers[id].slots -= 1;
    fit(program);
    Some(format!("`{}` has {} slots", program.buffers[id].name, program.buffers[id].slots))
}

/// What a copy reads shares bytes with another buffer that passes.
fn given_away(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, is_copy))?;
    let read = random.pick(&program.tasks[t].steps[s].reads)?.buffer.index();
    let passes = |id: &usize| *id != read && program.buffers[*id].kind == BufferKind::Activation;
    let other = random.pick(&(0..program.buffers.len()).filter(passes).collect::<Vec<_>>())?;
    program.buffers[other].offset = program.buffers[read].offset;
    fit(program);
    Some(format!("buffer {other} lies on `{}`", program.buffers[read].name))
}

fn copies(graph: &Graph) -> Vec<NodeId> {
    let is_copy = |node: &Node| node.origin.reason.as_deref() == Some("computed again");
    graph.nodes().filter(|(_, node)| is_copy(node)).map(|(id, _)| id).collect()
}

/// The graph with another node in the place of one.
fn with(graph: &Graph, place: NodeId, changed: &Node) -> Graph {
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        b.copy(graph, if id == place { changed } else { node }, &mut map);
    }
    b.copy_roots(graph, &map);
    b.finish()
}

/// The name without the number that tells a copy from what it repeats.
fn stem(graph: &Graph, value: ValueId) -> &str {
    let name = &graph.value(value).name;
    name.rsplit_once('_').filter(|(_, number)| number.bytes().all(|b| b.is_ascii_digit())).map_or(name, |(stem, _)| stem)
}

/// Another value of the type and sharding, which does not repeat `own`.
fn another(graph: &Graph, own: ValueId, before: NodeId, random: &mut Random) -> Option<ValueId> {
    let fits = |v: &ValueId| {
        graph.value(*v).node < before
            && graph.ty(*v) == graph.ty(own)
            && graph.sharding(*v) == graph.sharding(own)
            && stem(graph, *v) != stem(graph, own)
    };
    random.pick(&graph.values().map(|(v, _)| v).filter(fits).collect::<Vec<_>>())
}

/// A copy reads another value.
fn graph_other_values(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let id = random.pick(&copies(graph))?;
    let mut node = graph.node(id).clone();
    let operand = random.below(node.operands.len().max(1));
    let own = *node.operands.get(operand)?;
    node.operands[operand] = another(graph, own, id, random)?;
    let text = format!("`%{}` reads `%{}`", graph.value(node.results[0]).name, graph.value(node.operands[operand]).name);
    Some((with(graph, id, &node), text))
}

/// A copy is another op of its kind.
fn graph_other_op(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let id = random.pick(&copies(graph))?;
    let mut node = graph.node(id).clone();
    match &mut node.op {
        Op::KeepMask(mask) => mask.stream += 1,
        Op::LayerNorm(norm) => norm.eps *= 2.0,
        Op::Unary(unary) if unary.f != UnaryFn::Silu => unary.f = UnaryFn::Silu,
        _ => return None,
    }
    Some((with(graph, id, &node), format!("`%{}` is {:?}", graph.value(node.results[0]).name, node.op)))
}

/// A step of the backward pass reads another copy.
fn graph_other_copy(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let made: BTreeSet<ValueId> = copies(graph).iter().flat_map(|id| graph.node(*id).results.clone()).collect();
    let reads = |node: &Node| node.origin.part == Part::Backward && node.operands.iter().any(|v| made.contains(v));
    let readers: Vec<NodeId> = graph.nodes().filter(|(_, node)| reads(node)).map(|(id, _)| id).collect();
    let id = random.pick(&readers)?;
    let mut node = graph.node(id).clone();
    let operand = node.operands.iter().position(|v| made.contains(v))?;
    node.operands[operand] = another(graph, node.operands[operand], id, random)?;
    let text = format!("`%{}` reads `%{}`", graph.value(node.results[0]).name, graph.value(node.operands[operand]).name);
    Some((with(graph, id, &node), text))
}

#[test]
fn harmful_mutants_of_what_is_computed_again_are_rejected() {
    harmful_are_rejected(&all(), CLASSES, 900, 250);
}

/// The interpreter and the executor agree about good plans, which have copies of masks, norms and
/// sums over ranks, and borders in several slots.
#[test]
fn good_plans_that_compute_again_mean_the_same_to_the_executor() {
    let jobs = all();
    agree_with_the_executor(&jobs);
    let steps =
        || jobs.iter().flat_map(|job| &job.plans.set.programs).flat_map(|program| &program.tasks).flat_map(|task| &task.steps);
    for form in ["Random", "Rowwise", "Contract", "Collective", "Map"] {
        let has = |step: &Step| is_copy(step) && format!("{:?}", step.kernel).starts_with(form);
        assert!(steps().any(has), "no copy is {form}");
    }
    let buffers = || jobs.iter().flat_map(|job| &job.plans.set.programs).flat_map(|program| &program.buffers);
    assert!(buffers().any(|buffer| buffer.slots > 1 && buffer.kind == BufferKind::Activation));
}

#[test]
fn mutants_of_what_is_computed_again_do_no_harm_to_the_executor() {
    let [refused, failed, ran] = do_no_harm_to_the_executor(&all(), CLASSES, 1000);
    assert!(refused + failed + ran > 40 && ran > 10, "{refused} {failed} {ran}");
}
