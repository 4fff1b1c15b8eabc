//! A state is written where it is, by the kernel or the call that ends its update, whenever nothing
//! reads the old value any more.

use shardc_ir::plan::{BufferKind, Program};
use shardc_ir::text::parse;
use shardc_ir::verify_plan::verify;
use shardc_passes::{Context, Mode, planning};
use shardc_testkit::step;

const HALF: &str = "%h = shard_slice dim=0 split=dp@4 %w : f64[8, 4]{dp, -} update";
const DOUBLE: &str = "%d = add %h, %h : f64[8, 4]{dp, -} update";
const GATHER: &str = "%n = all_gather dim=0 split=dp@4 %d : f64[8, 4] update";
const NORM: &str = "%s = square_sum %w : f64[] update";

/// The program of a graph with these nodes between the reading of `w` and its update to `%n`.
fn planned(nodes: [&str; 4]) -> Program {
    let begin = "graph @half  phase explicit\n  mesh dp=2 time=1\n  state \"w\" : f64[8, 4]  parameter init=model\n  %w = state \"w\" : f64[8, 4]\n";
    let end = "  output \"s\" %s\n  update \"w\" <- %n\n";
    let nodes: String = nodes.iter().map(|node| format!("  {node}\n")).collect();
    let graph = parse(&format!("{begin}{nodes}{end}")).expect("the graph parses");
    let spec = step::spec("mesh dp=2\nbatch 8\ndata axis=dp\n").expect("the spec parses");
    let program = planning::plan(&graph, &Context { spec: &spec, mode: Mode::Evaluate, verify: true })
        .map(|programs| programs.into_first());
    let program = program.expect("the graph is planned");
    verify(&program, &graph).expect("the plan is right");
    program
}

/// Steps that copy into the state what was computed elsewhere.
fn copies(program: &Program) -> usize {
    let is_state = |id: usize| matches!(program.buffers[id].kind, BufferKind::State(_));
    let steps = program.tasks.iter().flat_map(|task| &task.steps);
    steps.filter(|step| step.op == "copy" && is_state(step.writes[0].buffer.index())).count()
}

#[test]
fn a_call_writes_the_state_that_nobody_reads_any_more() {
    assert_eq!(copies(&planned([NORM, HALF, DOUBLE, GATHER])), 0);
    assert_eq!(copies(&planned([HALF, DOUBLE, GATHER, NORM])), 1);
}
