//! A state is written where it is, by the kernel or the call that ends its update, whenever nothing
//! reads the old value any more; the gradient of a table that is read by index and multiplied, too,
//! is in one place.

use shardc_ir::kernel::{Kernel, ScatterAdd};
use shardc_ir::plan::{BufferKind, Program, Step};
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

const TIED: &str = r#"graph @tied  phase imported
  state "table" : f64[8, 4]  parameter init=model
  %ids = input "ids"                           : i64[8]
  %table = state "table"                       : f64[8, 4]
  %row = gather axis=0 %table, %ids            : f64[8, 4]
  %y = contract "bk,nk->bn" %row, %table       : f64[8, 8]
  output "y" %y
"#;

/// The steps of training `TIED` under these lines, by a plan that is proven.
fn tied(lines: &str) -> Vec<(Program, Step)> {
    let spec = step::spec(&format!("{lines}loss mse prediction=y labels=t\noptimizer sgd lr=0.1\n")).expect("the spec parses");
    let programs = step::programs(&parse(TIED).expect("the graph parses"), &spec).expect("the job compiles");
    let steps = |program: &Program| program.tasks.iter().flat_map(|task| task.steps.clone()).collect::<Vec<_>>();
    programs.programs.iter().flat_map(|program| steps(program).into_iter().map(|step| (program.clone(), step))).collect()
}

#[test]
fn a_scatter_adds_to_the_product_that_is_the_rest_of_a_gradient() {
    for lines in ["batch 8\n", "batch 8 microbatches=2\n", "mesh dp=2\nbatch 8\ndata axis=dp\n"] {
        let steps = tied(lines);
        let is_onto = |step: &Step| matches!(step.kernel, Kernel::ScatterAdd(ScatterAdd { onto: true, .. }));
        let (program, scatter) = steps.iter().find(|(_, step)| is_onto(step)).unwrap_or_else(|| panic!("{lines}: no scatter"));
        assert_eq!(scatter.op, "add(scatter_add axis=0 size=8)", "{lines}");
        assert_eq!(scatter.reads[2], scatter.writes[0], "{lines}: the table is elsewhere");
        let tables = program.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Activation && buffer.shape == [8, 4]);
        assert!(steps.iter().all(|(_, step)| step.op != "copy"), "{lines}: something is copied");
        // The rows that are read, their gradient, and with micro-batches the sum of one.
        assert!(tables.count() <= 3, "{lines}");
    }
}

const SCALED: &str = r#"graph @scaled  phase imported
  state "table" : f64[8, 8]  parameter init=model
  state "half" : f64[]  parameter init=model
  state "w" : f64[8, 8]  parameter init=model
  %ids = input "ids"                           : i64[8]
  %table = state "table"                       : f64[8, 8]
  %half = state "half"                         : f64[]
  %w = state "w"                               : f64[8, 8]
  %row = gather axis=0 %table, %ids            : f64[8, 8] @h.0
  %first = contract "bk,kn->bn" %row, %w       : f64[8, 8] @h.0
  %second = tanh %first                        : f64[8, 8] @h.1
  %again = gather axis=0 %table, %ids          : f64[8, 8] @h.1
  %third = mul %second, %again                 : f64[8, 8] @h.1
  %head = mul %table, %half                    : f64[8, 8] @h.1
  %y = contract "bk,nk->bn" %third, %head      : f64[8, 8] @h.1
  output "y" %y
"#;

/// The gradient of the table is the last that reads `half`, in a task behind the one with the other
/// updates: it comes from the other stage.
#[test]
fn an_update_waits_for_a_gradient_that_comes_later() {
    let lines = "mesh pp=2\nbatch 8 microbatches=2\npipeline axis=pp cut=after(\"h.0\")\nloss cross_entropy logits=y labels=t ignore_index=1\noptimizer sgd lr=0.1\n";
    let spec = step::spec(lines).expect("the spec parses");
    step::programs(&parse(SCALED).expect("the graph parses"), &spec).expect("the job compiles");
}
