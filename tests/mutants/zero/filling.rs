//! Other optimizers, in a graph and in its reference alike, so that both agree: what they make of
//! the zeros that fill up lines is for the rules of lines to say. Harm is what differs from the
//! reference, run by one rank, or what fills up a line and is not zero.

use crate::harm::Good;
use crate::sets::{Job, of_ranks, replan};
use crate::{Tally, keep_kernels_quiet, tries};
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, Part, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::elementwise::{BinaryOp, UnaryFn};
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::verify::verify;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::verify_set;
use shardc_passes::{Context, Mode};
use shardc_testkit::random::Random;
use std::io::Write;

/// Optimizers that are tried for each job.
const TRIES: usize = 20;

/// A change of the node that makes a value of this name.
struct Change {
    of: String,
    what: What,
}

enum What {
    /// It is another op.
    Op(Op),
    /// It takes a function of an operand.
    Function(usize, Unary),
    /// It takes another value.
    Operand(usize, String),
}

fn name(graph: &Graph, value: ValueId) -> String {
    graph.value(value).name.to_string()
}

/// A change of a node of an update that is elementwise, if the graph has one.
fn draw(graph: &Graph, random: &mut Random) -> Option<Change> {
    let is_update = |node: &Node| node.origin.part == Part::Update && !node.op.is_comm() && !node.operands.is_empty();
    let is_flat = |v: &ValueId| !graph.sharding(*v).flat.is_empty();
    let near = |node: &Node| node.operands.iter().any(is_flat);
    let nodes: Vec<NodeId> = graph.nodes().filter(|(_, node)| is_update(node) && near(node)).map(|(id, _)| id).collect();
    let id = random.pick(&nodes)?;
    let node = graph.node(id);
    let operand = random.below(node.operands.len());
    let what = match (&node.op, random.below(3)) {
        (Op::Binary(_), 0) => {
            let f = random.pick(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min])?;
            What::Op(BinaryOp { f }.into())
        }
        (_, 0 | 1) => {
            let fits = |v: ValueId| {
                graph.value(v).node < id && v != node.operands[operand] && graph.ty(v) == graph.ty(node.operands[operand])
            };
            let others: Vec<ValueId> = graph.values().map(|(v, _)| v).filter(|v| fits(*v)).collect();
            What::Operand(operand, name(graph, random.pick(&others)?))
        }
        _ => What::Function(operand, random.pick(&[Unary::Exp, Unary::Sigmoid, Unary::Tanh, Unary::Abs, Unary::Neg])?),
    };
    Some(Change { of: name(graph, node.results[0]), what })
}

/// The graph with a change, if it has the values that the change names.
fn changed(graph: &Graph, change: &Change) -> Option<Graph> {
    let place = graph.value(graph.named(&change.of)?).node;
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        let mut node = node.clone();
        match &change.what {
            What::Op(op) if id == place => node.op = op.clone(),
            What::Operand(i, other) if id == place => {
                let other = graph.named(other)?;
                *node.operands.get_mut(*i)? = map[other.index()].map(|_| other)?;
            }
            What::Function(i, f) if id == place => {
                let from = *node.operands.get(*i)?;
                b.origin = node.origin.clone();
                let made = b.unary(UnaryFn::Scalar(*f), map[from.index()]?);
                b.graph_mut().set_sharding(made, graph.sharding(from).clone());
                let before = map[from.index()].replace(made);
                b.copy(graph, &node, &mut map);
                map[from.index()] = before;
                continue;
            }
            _ => {}
        }
        b.copy(graph, &node, &mut map);
    }
    b.copy_roots(graph, &map);
    Some(b.finish())
}

/// The name of a value in the reference: reshards give what they make other names.
fn in_reference(job: &Job, change: Change) -> Option<Change> {
    let known = |name: &String| job.plans.reference.named(name).map(|_| name.clone());
    let without = |name: &String| known(name).or_else(|| known(&name.rsplit_once('_')?.0.to_string()));
    let what = match change.what {
        What::Operand(i, other) => What::Operand(i, without(&other)?),
        what => what,
    };
    Some(Change { of: known(&change.of)?, what })
}

fn try_job(job: &Job, number: u64, tally: &mut Tally) {
    let mut random = Random(900 + number);
    let spec = job.plans.spec.reference();
    for _ in 0..tries(TRIES) {
        let (mut graph, mut reference) = (job.plans.graph.clone(), job.plans.reference.clone());
        let mut done = vec![];
        for _ in 0..1 + random.below(3) {
            let Some(change) = draw(&graph, &mut random) else { continue };
            let Some(next) = changed(&graph, &change) else { continue };
            let text = format!("`%{}`: {}", change.of, change.what.text());
            let Some(other) = in_reference(job, change).and_then(|change| changed(&reference, &change)) else { continue };
            (graph, reference) = (next, other);
            done.push(text);
        }
        if done.is_empty() || verify(&reference).is_err() || same_when_erased(&graph, &reference).is_err() {
            continue;
        }
        let cx = Context { spec: &spec, mode: Mode::Train, verify: false };
        let (Ok(alone), Some(set)) = (shardc_passes::planning::plan(&reference, &cx), replan(job, &graph)) else { continue };
        // An optimizer that makes no numbers is no good plan.
        let Ok(good) = Good::try_of_ranks(&of_ranks(&alone), &mut random) else { continue };
        let harm = good.harm_anywhere(&of_ranks(&set));
        let accepted = verify(&graph).is_ok() && verify_set(&set.as_ref(), &graph).is_ok();
        tally.harmful += usize::from(harm.is_some());
        match (harm, accepted) {
            (Some(harm), true) => tally.missed.push(format!("{}: {}: {harm}\n", job.name, done.join("; "))),
            (None, false) => tally.overcautious += 1,
            (None, true) => tally.equivalent += 1,
            (Some(_), false) => {}
        }
    }
}

impl What {
    fn text(&self) -> String {
        match self {
            What::Op(op) => op.name().to_string(),
            What::Function(i, f) => format!("{f:?} of operand {i}"),
            What::Operand(i, other) => format!("`%{other}` as operand {i}"),
        }
    }
}

#[test]
fn what_fills_up_lines_stays_zero() {
    keep_kernels_quiet();
    let mut tally = Tally::default();
    for (number, job) in super::jobs::all().iter().enumerate() {
        try_job(job, number as u64, &mut tally);
    }
    std::io::stderr().write_all(tally.line("other optimizers").as_bytes()).expect("stderr is open");
    assert!(tally.missed.is_empty(), "{} harmful optimizers are accepted:\n{}", tally.missed.len(), tally.missed.concat());
    assert!(tally.harmful > 20 && tally.equivalent > 20, "{} {}", tally.harmful, tally.equivalent);
}
