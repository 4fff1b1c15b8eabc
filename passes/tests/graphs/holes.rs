//! Faults that no plan may have although every step of it is right: fill bytes twice, keep a table
//! entry that nobody asks for, leave a reshard in its graph, or run the rows of its order
//! otherwise. Each is a good plan with one change.

use shardc_ir::graph::Graph;
use shardc_ir::kernel::Kernel;
use shardc_ir::lower::fused::fuse;
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Program, ProgramConstant, Row, Step, Task, View, When, aligned};
use shardc_ir::text::{parse, print};
use shardc_ir::verify_plan::{Proof, Violation, verify, verify_set};
use shardc_testkit::step;

const MODEL: &str = r#"graph @mlp  phase imported
  state "w" : f64[4, 8]  parameter init=model
  state "v" : f64[8, 4]  parameter init=model
  %x = input "x"                      : f64[24, 4]
  %w = state "w"                      : f64[4, 8]
  %v = state "v"                      : f64[8, 4]
  %h = contract "bk,kn->bn" %x, %w    : f64[24, 8]
  %t = tanh %h                        : f64[24, 8]
  %y = contract "bk,kn->bn" %t, %v    : f64[24, 4]
  output "y" %y
"#;

fn job(microbatches: u64) -> (Graph, Program) {
    compiled(MODEL, microbatches)
}

fn compiled(model: &str, microbatches: u64) -> (Graph, Program) {
    let spec = format!(
        "mesh dp=2\nbatch 24 microbatches={microbatches}\ndata axis=dp\nloss mse prediction=y labels=t\noptimizer adamw lr=0.1\n"
    );
    let model = parse(model).expect("the model parses");
    let (graph, programs) = step::proven(&model, &step::spec(&spec).expect("the spec parses")).expect("the job compiles");
    (graph, programs.into_first())
}

fn proof(microbatches: u64, change: impl FnOnce(&mut Program)) -> Result<Proof, Violation> {
    let (graph, mut program) = job(microbatches);
    change(&mut program);
    verify(&program, &graph)
}

fn refused(microbatches: u64, words: &str, change: impl FnOnce(&mut Program)) {
    let violation = proof(microbatches, change).expect_err(words);
    assert!(violation.message.contains(words), "{violation} does not say: {words}");
}

fn position(program: &Program, kind: fn(&BufferKind) -> bool) -> usize {
    program.buffers.iter().position(|buffer| kind(&buffer.kind)).expect("such a buffer")
}

fn row(program: &Program, name: &str, of: u64) -> usize {
    let is_it = |row: &Row| matches!(row, Row::Run { task, time } if program.tasks[*task as usize].name == name && *time == of);
    program.order.iter().position(is_it).expect("such a row")
}

/// It is an alias on a rank, so a plan without the calls would carry it out.
#[test]
fn a_reshard_in_an_explicit_graph_is_refused() {
    let (graph, mut program) = job(1);
    let text: String = print(&graph).lines().map(|line| format!("{}\n", with_a_reshard(line))).collect();
    let graph = parse(&text).expect("the text is a graph");
    for task in &mut program.tasks {
        task.steps.retain(|step| !matches!(step.kernel, Kernel::Collective(_)));
    }
    let violation = verify(&program, &graph).expect_err("a reshard is left");
    assert!(violation.message.contains("is a reshard"), "{violation}");
}

/// A line of a graph with a reshard in place of its sum over ranks.
fn with_a_reshard(line: &str) -> String {
    let Some(call) = line.find("= all_reduce") else { return line.to_string() };
    let operand = call + line[call..].find('%').expect("an operand");
    format!("{}= reshard {}", &line[..call], &line[operand..])
}

#[test]
fn the_host_fills_no_byte_twice() {
    refused(1, "the host fills both", |program| {
        let (state, input) =
            (position(program, |k| matches!(k, BufferKind::State(_))), position(program, |k| matches!(k, BufferKind::Input(_))));
        program.buffers[input].offset = program.buffers[state].offset;
    });
    refused(1, "is a scalar that has a buffer already", |program| {
        let scalar = position(program, |k| matches!(k, BufferKind::Scalar(_)));
        let mut again = program.buffers[scalar].clone();
        again.offset = program.arena_bytes;
        program.arena_bytes += again.slot_bytes;
        program.buffers.push(again);
    });
}

#[test]
fn constants_are_for_buffers_of_their_own() {
    refused(1, "is for `", |program| {
        let at = position(program, |k| matches!(k, BufferKind::State(_)));
        let buffer = &program.buffers[at];
        let bytes = vec![0; (buffer.shape.iter().product::<u64>() * buffer.dtype.bytes()) as usize];
        program.constants.push(ProgramConstant { buffer: BufferId(at as u32), bytes: bytes.into() });
    });
}

/// Two buffers of one constant hold the same, but the graph has it once.
#[test]
fn constants_are_there_once() {
    let numbers = "  %c = constant [1.0, 2.0, 3.0, 4.0] : f64[4]\n  %z = mul %y, %c : f64[24, 4]\n  output \"y\" %z\n";
    let (graph, mut program) = compiled(&MODEL.replace("  output \"y\" %y\n", numbers), 1);
    let entry = program.constants.first().expect("it is not a number of a kernel").clone();
    let mut again = program.buffers[entry.buffer.index()].clone();
    (again.kind, again.offset) = (BufferKind::Constant(program.constants.len() as u32), program.arena_bytes);
    program.arena_bytes += again.slot_bytes;
    program.constants.push(ProgramConstant { buffer: BufferId(program.buffers.len() as u32), ..entry });
    program.buffers.push(again);
    let violation = verify(&program, &graph).expect_err("it is there twice");
    assert!(violation.message.contains("is there twice"), "{violation}");
}

#[test]
fn sizes_are_what_is_needed() {
    refused(1, "the arena has", |program| program.arena_bytes += 64);
    refused(1, "a slot of `", |program| {
        let last = (0..program.buffers.len()).max_by_key(|i| program.buffers[*i].offset).expect("buffers");
        program.buffers[last].slot_bytes += 64;
        program.arena_bytes += 64;
    });
    refused(1, "begins inside an element", |program| {
        let (buffers, steps) = (&program.buffers, program.tasks.iter_mut().flat_map(|task| &mut task.steps));
        let mut views = steps.flat_map(|step| &mut step.reads);
        let view =
            views.find(|view| buffers[view.buffer.index()].slot_bytes >= view.bytes + 4).expect("a view with room behind it");
        view.offset += 4;
    });
}

/// Behind the elements of a slot lies nothing that a call may send.
#[test]
fn no_call_takes_padding() {
    refused(1, "runs another collective kernel", |program| {
        let steps = program.tasks.iter_mut().flat_map(|task| &mut task.steps);
        let is_scalar = |step: &&mut Step| matches!(&step.kernel, Kernel::Collective(call) if call.counts == [1]);
        let step = { steps }.find(is_scalar).expect("the loss is summed over ranks");
        let Kernel::Collective(call) = &mut step.kernel else { unreachable!("it is a call") };
        call.counts = vec![2];
        step.reads.iter_mut().chain(&mut step.writes).for_each(|view| view.bytes *= 2);
    });
}

#[test]
fn rows_run_once_each_and_in_their_order() {
    for microbatches in [1, 2, 4] {
        let rows = job(microbatches).1.order.len();
        for at in 0..rows {
            let without = proof(microbatches, |program| {
                program.order.remove(at);
            });
            assert!(without.is_err(), "row {at} of {microbatches} is not missed");
        }
    }
    for (name, first, second) in [("F", 0, 1), ("B", 1, 2), ("B", 0, 3)] {
        let exchanged = proof(4, |program| {
            let (a, b) = (row(program, name, first), row(program, name, second));
            program.order.swap(a, b);
        });
        assert!(exchanged.is_err(), "{name} of {first} and {second}");
    }
    refused(4, "micro-batch", |program| {
        let b = row(program, "B", 2);
        let Row::Run { task, .. } = program.order[b] else { panic!("a row that runs a task") };
        program.order[b] = Row::Run { task, time: 1 };
    });
    let beyond = proof(2, |program| program.order.push(Row::Run { task: 0, time: 2 }));
    assert!(beyond.expect_err("no such micro-batch").message.contains("is not there"));
    let absent = proof(2, |program| program.order.push(Row::Run { task: 99, time: 0 }));
    assert!(absent.expect_err("no such task").message.contains("is not there"));
}

/// A gradient that is reduced with the last micro-batch is not complete with an earlier one.
#[test]
fn gradients_are_reduced_with_the_last_micro_batch() {
    let is_last = |step: &Step| step.when == When::Last;
    let (_, good) = job(4);
    let task = good.tasks.iter().find(|task| task.steps.iter().any(is_last)).expect("calls with the last micro-batch");
    assert_eq!(task.name, "B");
    assert!(good.tasks.iter().filter(|task| task.name == "update").all(|task| !task.steps.iter().any(is_last)));
    let early = proof(4, |program| {
        let steps = program.tasks.iter_mut().flat_map(|task| &mut task.steps);
        steps.filter(|step| is_last(step)).for_each(|step| step.when = When::Each);
    });
    assert!(early.is_err());
}

/// Slots are taken in turn: with as many as micro-batches each has its own, with fewer a later one
/// takes an earlier one's place, which holds where that is read no more.
#[test]
fn any_number_of_slots_is_proven_or_refused() {
    let with_slots = |slots: u64| {
        proof(4, |program| {
            let name = "h";
            let at =
                program.buffers.iter().position(|buffer| buffer.name == name).expect("the value is kept for the backward pass");
            let buffer = &mut program.buffers[at];
            (buffer.slots, buffer.offset) = (slots, program.arena_bytes);
            program.arena_bytes += slots * buffer.slot_bytes;
        })
    };
    for slots in [1, 2, 3, 4] {
        with_slots(slots).unwrap_or_else(|violation| panic!("{slots} slots: {violation}"));
    }
    assert!(with_slots(5).is_err());
}

/// All forward passes come first: then what they leave to the backward passes needs a slot for each
/// micro-batch, and one fewer is refused.
#[test]
fn forward_passes_may_come_first_where_there_are_slots() {
    let forward_first = |fewer: Option<usize>| {
        proof(4, |program| {
            let of = |name: &str| program.tasks.iter().find(|task| task.name == name).expect("a task");
            let touches = |task: &Task, id: BufferId| {
                task.steps.iter().any(|step| step.reads.iter().chain(&step.writes).any(|view| view.buffer == id))
            };
            let ids = (0..program.buffers.len() as u32).map(BufferId);
            let passed: Vec<BufferId> = ids
                .filter(|id| program.buffers[id.index()].kind == BufferKind::Activation)
                .filter(|id| touches(of("F"), *id) && touches(of("B"), *id))
                .collect();
            assert!(passed.len() > 1);
            for (i, id) in passed.iter().enumerate() {
                let buffer = &mut program.buffers[id.index()];
                (buffer.slots, buffer.offset) = (if fewer == Some(i) { 3 } else { 4 }, program.arena_bytes);
                program.arena_bytes += buffer.slots * buffer.slot_bytes;
            }
            let rows = |name| (0..4).map(|time| program.order[row(program, name, time)].clone()).collect::<Vec<_>>();
            let (first, last) = (row(program, "F", 0), row(program, "B", 3));
            let all = [rows("F"), rows("B")].concat();
            program.order.splice(first..=last, all);
        })
    };
    forward_first(None).unwrap_or_else(|violation| panic!("{violation}"));
    for fewer in 0..2 {
        assert!(forward_first(Some(fewer)).is_err());
    }
}

/// The program with one op of a fused kernel in a kernel of its own, before it.
fn unfused(graph: &Graph, good: &Program) -> Program {
    let lowered = LoweredGraph::new(graph);
    let steps = good.tasks.iter().enumerate().flat_map(|(t, task)| (0..task.steps.len()).map(move |s| (t, s)));
    let split = |(t, s): (usize, usize)| {
        let step = &good.tasks[t].steps[s];
        let node = |name: &String| graph.values().find(|(_, value)| *value.name == **name).map(|(_, value)| value.node);
        let nodes: Vec<_> = step.provenance.ops.iter().filter_map(node).collect();
        let end = *nodes.iter().max()?;
        let whole = fuse(&lowered, end, &|id| id != end && nodes.contains(&id))?;
        let apart = nodes.iter().filter(|id| **id != end).find_map(|id| {
            let first = fuse(&lowered, *id, &|_| false)?;
            first.reads.iter().all(|value| whole.reads.contains(value)).then_some((*id, first))
        });
        let (id, first) = apart?;
        let rest = fuse(&lowered, end, &|other| other != end && other != id && nodes.contains(&other))?;
        Some((t, s, whole, id, first, rest))
    };
    let (t, s, whole, id, first, rest) = steps.into_iter().find_map(split).expect("a fused kernel");
    let mut program = good.clone();
    let (value, names) = (graph.node(id).results[0], |ids: &[_]| -> Vec<String> {
        ids.iter().map(|id| graph.value(graph.node(*id).results[0]).name.to_string()).collect()
    });
    let extent = lowered.extent(value);
    let (dtype, bytes) = (extent.ty.dtype, extent.elements() * extent.ty.dtype.bytes());
    let (buffer, offset) = (BufferId(good.buffers.len() as u32), good.arena_bytes);
    program.buffers.push(Buffer {
        name: graph.value(value).name.to_string(),
        kind: BufferKind::Activation,
        dtype,
        shape: extent.ty.shape.clone(),
        sharding: extent.sharding.clone(),
        local: extent.local.clone(),
        slots: 1,
        offset,
        slot_bytes: aligned(bytes),
    });
    program.arena_bytes += aligned(bytes);
    let step = good.tasks[t].steps[s].clone();
    let view = |read| match whole.reads.iter().position(|value| value == read) {
        Some(at) => step.reads[at],
        None => View { buffer, offset: 0, bytes },
    };
    let alone = Step {
        reads: first.reads.iter().map(view).collect(),
        writes: vec![View { buffer, offset: 0, bytes }],
        provenance: shardc_ir::plan::Provenance { ops: names(&first.nodes), ..step.provenance.clone() },
        kernel: first.kernel,
        ..step.clone()
    };
    let ending = Step {
        reads: rest.reads.iter().map(view).collect(),
        provenance: shardc_ir::plan::Provenance { ops: names(&rest.nodes), ..step.provenance.clone() },
        kernel: rest.kernel,
        ..step.clone()
    };
    program.tasks[t].steps.splice(s..=s, [alone, ending]);
    program
}

/// Each of two programs carries out the graph, but what one keeps in registers the other rounds.
#[test]
fn ranks_with_the_same_state_run_the_same_kernels() {
    let (graph, good) = job(1);
    let other = unfused(&graph, &good);
    verify(&other, &graph).expect("by itself it is as good");
    let set = |second| PlanSet { axes: vec![AxisId(0)], programs: vec![&good, second], of: vec![0, 1] };
    verify_set(&set(&good), &graph).expect("the same program twice");
    let violation = verify_set(&set(&other), &graph).expect_err("replicas differ");
    assert!(violation.message.contains("by other kernels") && violation.ranks == Some((0, 1)), "{violation}");
}
