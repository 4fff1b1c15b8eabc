//! Changes of graph and program together: a reshard in the place of communication, a value that is
//! elsewhere.

use super::{Plan, at_the_end, replan, without_op};
use crate::jobs::Job;
use crate::rewrite::repair;
use shardc_ir::graph::{Graph, Phase, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::plan::{BufferId, Program, View, aligned};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Sharding, Split, inserted};
use shardc_ir::text::{parse, print};
use shardc_testkit::random::Random;

/// The lines of a graph with a reshard in the place of one op.
fn with_a_reshard(graph: &Graph, of: &str) -> Option<Graph> {
    let line = |line: &str| {
        let is_it = line.trim_start().strip_prefix('%').and_then(|rest| rest.strip_prefix(of));
        let call = line.find("= ").filter(|_| is_it.is_some_and(|rest| rest.starts_with([' ', ':'])));
        let operand = call.and_then(|call| Some((call, call + line[call..].find('%')?)));
        match operand {
            Some((call, operand)) => format!("{}= reshard {}\n", &line[..call], &line[operand..]),
            None => format!("{line}\n"),
        }
    };
    parse(&print(graph).lines().map(line).collect::<String>()).ok()
}

/// The steps that make a value are gone; what read it reads its operand, or its own bytes.
fn without_steps(program: &mut Program, op: &str, random: &mut Random) {
    let gone = without_op(program, op);
    let follow = random.below(2) == 0;
    for (from, to) in gone.iter().filter(|(from, to)| follow && from.buffer != to.buffer) {
        let steps = program.tasks.iter_mut().flat_map(|task| &mut task.steps);
        for view in steps.flat_map(|step| &mut step.reads).filter(|view| view.buffer == to.buffer) {
            let room = program.buffers[from.buffer.index()].slot_bytes;
            *view = View { buffer: from.buffer, offset: view.offset.min(room), bytes: view.bytes.min(room) };
        }
    }
}

/// Communication is a reshard of the graph, which nobody carries out.
pub fn reshard(plan: &mut Plan, job: &Job, random: &mut Random) -> Option<String> {
    let all: Vec<ValueId> = plan.graph.nodes().filter(|(_, n)| n.op.is_comm()).map(|(_, n)| n.results[0]).collect();
    let value = random.pick(&all)?;
    let name = plan.graph.value(value).name.clone();
    plan.graph = with_a_reshard(&plan.graph, &name)?;
    let how = random.below(4);
    match how {
        // The sharding that the operand has.
        0 => {
            let operand = plan.graph.def(value).operands[0];
            let sharding = plan.graph.sharding(operand).clone();
            plan.graph.set_sharding(value, sharding);
            without_steps(&mut plan.program, &name, random);
        }
        1 => plan.graph.phase = Phase::Annotated,
        2 if random.below(2) == 0 => plan.program = replan(job, &plan.graph)?,
        _ => without_steps(&mut plan.program, &name, random),
    }
    Some(format!("`%{name}` is a reshard, way {how}"))
}

/// A sharding with one thing else.
fn other_sharding(graph: &Graph, value: ValueId, random: &mut Random) -> Option<Sharding> {
    let (mesh, shape) = (&graph.mesh, &graph.ty(value).shape);
    let mut sharding = graph.sharding(value).clone();
    let splits: Vec<(usize, usize)> =
        sharding.dims.iter().enumerate().flat_map(|(d, splits)| (0..splits.len()).map(move |s| (d, s))).collect();
    let axis = AxisId(random.below(mesh.axes().len()) as u8);
    let kind = random.pick(&[ReduceKind::Sum, ReduceKind::Sum, ReduceKind::Max])?;
    match (random.below(6), random.pick(&splits)) {
        (0, Some((d, s))) => {
            let split = sharding.dims[d].remove(s);
            let to = random.below(shape.len());
            sharding.dims[to] = inserted(&sharding.dims[to], split);
        }
        (1, Some((d, s))) => drop(sharding.dims[d].remove(s)),
        (2, _) if !sharding.partial.is_empty() => drop(sharding.partial.remove(random.below(sharding.partial.len()))),
        (3, Some((d, s))) if !sharding.depends_on(axis) => sharding.dims[d][s].axis = axis,
        (4, _) if !sharding.depends_on(axis) => sharding.add_partial(axis, kind),
        (5, Some((d, s))) if random.below(2) == 0 => {
            let split = sharding.dims[d].remove(s);
            sharding.add_partial(split.axis, kind);
        }
        _ if !shape.is_empty() && !sharding.depends_on(axis) => {
            let d = random.below(shape.len());
            let stride = [1, shape[d] / mesh.size(axis)][random.below(2)].max(1);
            sharding.dims[d] = inserted(&sharding.dims[d], Split { axis, stride });
        }
        _ => return None,
    }
    let fits = |(splits, size): (&shardc_ir::sharding::Splits, &u64)| shardc_ir::sharding::well_formed(splits, *size, mesh);
    sharding.dims.iter().zip(shape).all(fits).then_some(sharding)
}

/// A value has another sharding in the graph, and so have its buffer, its state, or all that is
/// planned anew.
pub fn sharding(plan: &mut Plan, job: &Job, random: &mut Random) -> Option<String> {
    let (value, _) = random.pick(&plan.graph.values().map(|(id, _)| (id, ())).collect::<Vec<_>>())?;
    let name = plan.graph.value(value).name.clone();
    let other = other_sharding(&plan.graph, value, random)?;
    let before = plan.graph.sharding(value).clone();
    if before == other {
        return None;
    }
    let mut names = vec![name.clone()];
    plan.graph.set_sharding(value, other.clone());
    if let Op::State(read) = plan.graph.def(value).op.clone() {
        plan.graph.states[read.state.index()].sharding = other.clone();
        names.push(plan.graph.states[read.state.index()].name.as_str().into());
    }
    let how = random.below(6);
    match how {
        0 => {
            for id in 0..plan.program.buffers.len() {
                let mesh = plan.program.mesh.clone();
                let buffer = &mut plan.program.buffers[id];
                if names.iter().any(|name| **name == *buffer.name) && buffer.sharding == before {
                    buffer.sharding = other.clone();
                    buffer.local = other.local(&buffer.shape, &mesh);
                    let bytes = aligned(buffer.local.iter().product::<u64>() * buffer.dtype.bytes());
                    if bytes > buffer.slot_bytes {
                        buffer.slot_bytes = bytes;
                        at_the_end(&mut plan.program, BufferId(id as u32));
                    } else {
                        buffer.slot_bytes = bytes;
                    }
                }
            }
            super::fit_arena(&mut plan.program);
        }
        1 | 2 => plan.program = replan(job, &plan.graph)?,
        _ => {
            repair(&mut plan.graph);
            plan.program = replan(job, &plan.graph)?;
        }
    }
    Some(format!("`%{name}` is {other:?}, way {how}"))
}
