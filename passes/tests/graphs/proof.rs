//! The proof of plans: for each of its rules a plan that breaks it, with the steps, ranks and line
//! that the counter-example names.

use shardc_ir::graph::Graph;
use shardc_ir::kernel::{CollectiveKind, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Buffer, BufferKind, Program, Row, Step};
use shardc_ir::scalar::{Instr, ScalarProgram};
use shardc_ir::sharding::Split;
use shardc_ir::text::{parse, print};
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{Violation, verify, verify_set};
use shardc_testkit::step;

/// Its results are too large for their sums over ranks to be joined as small ones are.
const MODEL: &str = r#"graph @mlp  phase imported
  state "a.w" : f64[4, 8]  parameter init=model
  state "a.b" : f64[8]  parameter init=model
  state "b.w" : f64[8, 2048]  parameter init=model
  state "c.w" : f64[4, 2048]  parameter init=model
  %x   = input "x"                        : f64[64, 4]
  %a.w = state "a.w"                      : f64[4, 8]
  %a.b = state "a.b"                      : f64[8]
  %b.w = state "b.w"                      : f64[8, 2048]
  %c.w = state "c.w"                      : f64[4, 2048]
  %h   = contract "bk,kn->bn" %x, %a.w    : f64[64, 8]
  %s   = add %h, %a.b                     : f64[64, 8]
  %t   = tanh %s                          : f64[64, 8]
  %p   = contract "bk,kn->bn" %t, %b.w    : f64[64, 2048]
  %q   = contract "bk,kn->bn" %x, %c.w    : f64[64, 2048]
  %y   = mul %p, %q                       : f64[64, 2048]
  output "y" %y
"#;

/// The job, its step of training and its graph. Both axes have two ranks.
fn job(microbatches: u64) -> (Graph, Program) {
    let spec = format!(
        "mesh dp=2 tp=2\nbatch 64 microbatches={microbatches}\ndata axis=dp\nshard \"a.w\" [-, tp]\nshard \"b.w\" [tp, -]\n\
         shard \"c.w\" [tp, -]\nloss mse prediction=y labels=t\noptimizer adamw lr=0.1\nclip norm=1\n"
    );
    let model = parse(MODEL).expect("the model parses");
    let (graph, programs) = step::proven(&model, &step::spec(&spec).expect("the spec parses")).expect("the job compiles");
    (graph, programs.into_first())
}

/// The axes of the job's ranks.
const BOTH: [AxisId; 2] = [AxisId(0), AxisId(1)];

/// Every step by task and place.
fn places(program: &Program) -> Vec<(usize, usize)> {
    program.tasks.iter().enumerate().flat_map(|(t, task)| (0..task.steps.len()).map(move |s| (t, s))).collect()
}

fn calls(program: &Program) -> Vec<(usize, usize)> {
    let is_call = |(t, s): &(usize, usize)| matches!(program.tasks[*t].steps[*s].kernel, Kernel::Collective(_));
    places(program).into_iter().filter(is_call).collect()
}

fn mutant(good: &Program, mutate: impl FnOnce(&mut Program)) -> Program {
    let mut mutant = good.clone();
    mutate(&mut mutant);
    mutant
}

fn refused(program: &Program, graph: &Graph, words: &str) -> Violation {
    let violation = verify(program, graph).expect_err(words);
    assert!(violation.message.contains(words), "`{words}` is not in: {violation}");
    violation
}

/// One number of a step's program, if it has any.
fn number(step: &mut Step) -> Option<&mut f64> {
    let program: &mut ScalarProgram = match &mut step.kernel {
        Kernel::Map(map) => &mut map.program,
        Kernel::Reduce(reduce) => &mut reduce.map.program,
        _ => return None,
    };
    program.code.iter_mut().find_map(|instr| match instr {
        Instr::Const(number) => Some(number),
        _ => None,
    })
}

#[test]
fn a_lost_factor_is_found() {
    let (graph, good) = job(4);
    let mut found = 0;
    for (t, s) in places(&good) {
        let mut changed = good.clone();
        let Some(factor) = number(&mut changed.tasks[t].steps[s]) else { continue };
        *factor = f64::from_bits(factor.to_bits() ^ 1);
        refused(&changed, &graph, "kernel than that of");
        found += 1;
    }
    assert!(found > 5, "{found} factors");
}

#[test]
fn a_sum_over_the_wrong_axis_names_the_ranks() {
    let (graph, good) = job(4);
    for (t, s) in calls(&good) {
        let other = mutant(&good, |program| {
            if let Kernel::Collective(call) = &mut program.tasks[t].steps[s].kernel {
                call.axes.iter_mut().for_each(|axis| *axis = AxisId(1 - axis.0));
            }
        });
        let violation = verify(&other, &graph).expect_err("another axis");
        assert!(violation.message.contains("is over `") || violation.message.contains("still depends"), "{violation}");
        assert!(violation.ranks.is_some_and(|(a, b)| a != b), "{violation}");
    }
}

/// Even where it works in place, and all ranks agree on the mistake.
#[test]
fn a_forgotten_reduction_is_a_partial_value_read_as_whole() {
    let (graph, good) = job(4);
    let reductions = calls(&good).into_iter().filter(
        |(t, s)| matches!(&good.tasks[*t].steps[*s].kernel, Kernel::Collective(c) if c.kind == CollectiveKind::AllReduce),
    );
    for (t, s) in reductions {
        let without = mutant(&good, |program| drop(program.tasks[t].steps.remove(s)));
        let violation = refused(&without, &graph, "bytes hold");
        assert!(violation.ranks.is_some() && !violation.steps.is_empty(), "{violation}");
        let twice = mutant(&good, |program| {
            let again = program.tasks[t].steps[s].clone();
            program.tasks[t].steps.insert(s, again);
        });
        refused(&twice, &graph, "bytes hold");
    }
}

#[test]
fn the_lines_of_the_spec_are_named() {
    let (graph, good) = job(1);
    let lines: Vec<Option<u32>> = calls(&good)
        .into_iter()
        .map(|(t, s)| {
            let without = mutant(&good, |program| drop(program.tasks[t].steps.remove(s)));
            verify(&without, &graph).expect_err("a call is missing").spec_line
        })
        .collect();
    assert!(lines.contains(&Some(3)) && lines.contains(&Some(5)), "{lines:?}");
}

#[test]
fn accumulators_are_read_after_the_last_micro_batch() {
    for microbatches in [2, 4, 8] {
        let (graph, good) = job(microbatches);
        let update = good.tasks.iter().position(|task| task.name == "update").expect("an update");
        assert_eq!(good.tasks[update - 1].name, "B");
        let early = mutant(&good, |program| {
            let first = program.tasks[update].steps.remove(0);
            program.tasks[update - 1].steps.push(first);
        });
        refused(&early, &graph, &format!("with 1 of {microbatches} micro-batches"));
        let begun = good.tasks[0].steps.len();
        assert!(begun > 1 && good.tasks[0].name == "prepare");
        for s in (0..begun).filter(|s| matches!(good.tasks[0].steps[*s].kernel, Kernel::Fill(_))) {
            let dirty = mutant(&good, |program| drop(program.tasks[0].steps.remove(s)));
            refused(&dirty, &graph, "nothing has written");
            let again = mutant(&good, |program| {
                let fill = program.tasks[0].steps.remove(s);
                program.tasks[update - 1].steps.insert(0, fill);
            });
            assert!(verify(&again, &graph).is_err());
        }
        let of_update = |row: &Row| matches!(row, Row::Run { task, .. } if *task as usize == update - 1);
        let once = mutant(&good, |program| {
            let mut first = true;
            program.order.retain(|row| !of_update(row) || std::mem::take(&mut first));
        });
        assert!(verify(&once, &graph).is_err());
    }
}

/// Every micro-batch is a row of the order, and counts as such.
#[test]
fn every_micro_batch_is_counted() {
    let accesses: Vec<u64> = [2, 4, 8]
        .into_iter()
        .map(|microbatches| {
            let (graph, program) = job(microbatches);
            verify(&program, &graph).expect("a good plan").accesses
        })
        .collect();
    assert_eq!((accesses[1] - accesses[0]) * 2, accesses[2] - accesses[1]);
}

#[test]
fn operands_of_a_joint_call_are_those_of_its_ops() {
    let (graph, good) = job(4);
    let is_joint = |(t, s): &(usize, usize)| good.tasks[*t].steps[*s].provenance.ops.len() > 1;
    let (t, s) = calls(&good).into_iter().find(is_joint).expect("a call over several gradients");
    let exchanged = mutant(&good, |program| program.tasks[t].steps[s].provenance.ops.swap(0, 1));
    assert!(verify(&exchanged, &graph).is_err());
    let fewer = mutant(&good, |program| drop(program.tasks[t].steps[s].provenance.ops.pop()));
    assert!(verify(&fewer, &graph).is_err());
    let other = mutant(&good, |program| program.tasks[t].steps[s].reads.swap(0, 1));
    refused(&other, &graph, "its operands have");
    let both = mutant(&good, |program| {
        let step = &mut program.tasks[t].steps[s];
        step.reads.swap(0, 1);
        step.writes.swap(0, 1);
    });
    assert!(verify(&both, &graph).is_err());
}

#[test]
fn what_the_host_fills_and_reads_is_the_graphs() {
    let (graph, good) = job(4);
    let buffer = |kind: fn(&BufferKind) -> bool| good.buffers.iter().position(|b| kind(&b.kind)).expect("such a buffer");
    let inputs = mutant(&good, |program| {
        let (x, t) = (program.inputs[0].buffer, program.inputs[1].buffer);
        (program.inputs[0].buffer, program.inputs[1].buffer) = (t, x);
    });
    refused(&inputs, &graph, "not what the program's tables say");
    let moments = mutant(&good, |program| {
        let (m, v) = (good.states.iter().position(|s| s.name == "a.w.m"), good.states.iter().position(|s| s.name == "a.w.v"));
        let (m, v) = (m.expect("a moment"), v.expect("a moment"));
        program.states[m].name = "a.w.v".into();
        program.states[v].name = "a.w.m".into();
    });
    assert!(verify(&moments, &graph).is_err());
    let output = mutant(&good, |program| drop(program.outputs.pop()));
    assert!(verify(&output, &graph).is_err());
    let split = mutant(&good, |program| {
        let matrix = |b: &Buffer| b.kind == BufferKind::Activation && b.shape.len() == 2;
        let activation = good.buffers.iter().position(matrix).expect("a matrix");
        let buffer = &mut program.buffers[activation];
        let dims = &mut buffer.sharding.dims;
        dims[0] = if dims[0].is_empty() { vec![Split { axis: AxisId(1), stride: 1 }] } else { vec![] };
        buffer.local = buffer.sharding.local(&buffer.shape, &good.mesh);
        buffer.slot_bytes = 1 << 20;
        program.arena_bytes = 1 << 40;
    });
    refused(&split, &graph, "in the graph it is");
    let slots = mutant(&good, |program| program.buffers[buffer(|kind| matches!(kind, BufferKind::Input(_)))].slots = 1);
    refused(&slots, &graph, "no slot for each micro-batch");
    let shared = mutant(&good, |program| {
        let input = good.buffers[buffer(|kind| matches!(kind, BufferKind::Input(_)))].clone();
        let activation = buffer(|kind| *kind == BufferKind::Activation);
        program.buffers[activation].offset = input.offset + 3 * input.slot_bytes;
    });
    refused(&shared, &graph, "share bytes");
    let role = mutant(&good, |program| program.states[0].init = shardc_ir::train::StateInit::Zeros);
    refused(&role, &graph, "begins otherwise");
}

#[test]
fn ranks_with_programs_of_their_own_must_meet() {
    let (graph, good) = job(2);
    let same = good.clone();
    let set = |other: &'_ Program| {
        verify_set(&PlanSet { axes: BOTH.to_vec(), programs: vec![&good, other], of: vec![0, 1, 0, 0] }, &graph)
    };
    let proof = set(&same).expect("the same program twice");
    assert_eq!((proof.programs, proof.ranks), (2, 4));
    let axes = |t: usize, s: usize| match &good.tasks[t].steps[s].kernel {
        Kernel::Collective(call) => call.axes.clone(),
        _ => vec![],
    };
    let (mut crossed, mut stuck) = (0, 0);
    for (t, s) in calls(&good) {
        for to in 0..s {
            let moved = mutant(&good, |program| {
                let step = program.tasks[t].steps.remove(s);
                program.tasks[t].steps.insert(to, step);
            });
            // By itself it may be as good; beside the other it is only where no call of a
            // communicator overtakes another.
            if verify(&moved, &graph).is_err() {
                continue;
            }
            let overtaken: Vec<Vec<AxisId>> = (to..s).map(|c| axes(t, c)).filter(|axes| !axes.is_empty()).collect();
            let named = |violation: Violation, words: &str| {
                let two = violation.steps.len() == 2 && violation.ranks.is_some_and(|(a, b)| a != b);
                assert!(two && violation.message.contains(words), "{violation}");
            };
            if overtaken.contains(&axes(t, s)) {
                named(set(&moved).expect_err("calls that do not meet"), "meets rank");
                crossed += 1;
            } else if overtaken.iter().any(|axes| axes.len() == 1) && axes(t, s).len() == 1 {
                // Each rank waits for the next around the mesh.
                let around = PlanSet { axes: BOTH.to_vec(), programs: vec![&good, &moved], of: vec![0, 1, 1, 0] };
                named(verify_set(&around, &graph).expect_err("a circle"), "waits for ever");
                stuck += 1;
            }
        }
    }
    assert!(crossed > 0 && stuck > 0, "{crossed} {stuck}");
    let other = mutant(&good, |program| program.seed += 1);
    assert!(set(&other).expect_err("another seed").message.contains("differ in seed"));
    let few = verify_set(&PlanSet { axes: BOTH.to_vec(), programs: vec![&good], of: vec![0; 3] }, &graph);
    assert!(few.expect_err("a rank without a program").message.contains("not every rank"));
}

#[test]
fn another_graph_is_not_the_references() {
    let (graph, _) = job(4);
    let text = print(&graph);
    let other = |from: &str, to: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        parse(&changed).expect("the changed graph parses")
    };
    same_when_erased(&graph, &other("= tanh %", "= tanh  %")).expect("the same graph");
    let differences = [("= tanh %", "= sigmoid %"), ("constant 0.9 ", "constant 0.8 "), ("init=model", "init=ones")];
    for (from, to) in differences {
        assert!(same_when_erased(&graph, &other(from, to)).is_err(), "{from} as {to}");
    }
}

#[test]
fn no_text_of_a_graph_makes_the_proof_panic() {
    let (graph, program) = job(2);
    let text = print(&graph);
    let mut state = 9u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    };
    let words: Vec<&str> = text.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let (mut parsed, mut refused) = (0, 0);
    for _ in 0..4000 {
        let (from, to) = (words[random(words.len())], words[random(words.len())]);
        let hits: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
        let at = hits[random(hits.len())];
        let changed = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
        let Ok(other) = parse(&changed) else { continue };
        parsed += 1;
        refused += usize::from(verify(&program, &other).is_err());
        let _ = same_when_erased(&graph, &other);
    }
    assert!(parsed > 200 && refused > 30, "{parsed} parsed, {refused} refused");
}
