//! How long the proof of a plan takes: a deep MLP over 1,024 ranks, in 1 to 64 micro-batches. Run
//! with `cargo bench -p shardc-passes`.

use shardc_ir::graph::Graph;
use shardc_ir::plan::Program;
use shardc_ir::text::{parse, print};
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::verify;
use shardc_passes::{Context, Mode, planning};
use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

fn main() {
    println!("ranks  micro-batches   steps  nodes   read back   graph alone   proof   erasure");
    for (layers, dp, tp, microbatches) in [(430, 1, 1, 1), (430, 32, 32, 1), (430, 32, 32, 4), (430, 32, 32, 64), (43, 32, 32, 4)]
    {
        let (graph, program) = compiled(layers, dp, tp, microbatches);
        let (reference, _) = compiled(layers, 1, 1, microbatches);
        let text = print(&graph);
        let steps: usize = program.tasks.iter().map(|task| task.steps.len()).sum();
        let read = best(|| drop(black_box(parse(&text).expect("the text parses"))));
        let alone = best(|| shardc_ir::verify::verify(&graph).expect("the graph is right"));
        let proof = best(|| drop(black_box(verify(&program, &graph).expect("the plan is right"))));
        let erasure = best(|| same_when_erased(&graph, &reference).expect("the graphs are the same"));
        let nodes = graph.node_count();
        println!(
            "{:5}  {microbatches:13}  {steps:6}  {nodes:5}  {read:>10.1?}  {alone:>12.1?}  {proof:>6.1?}  {erasure:>8.1?}",
            dp * tp
        );
    }
}

/// The explicit graph and the program of a step of training; layers are split by columns and by
/// rows in turn.
fn compiled(layers: usize, dp: u64, tp: u64, microbatches: u64) -> (Graph, Program) {
    let mut text = "graph @deep  phase imported\n".to_string();
    for i in 0..layers {
        for name in [format!("a{i}"), format!("b{i}")] {
            writeln!(text, "  state \"{name}.w\" : f32[64, 64]  parameter init=model").expect("a string takes everything");
            writeln!(text, "  state \"{name}.b\" : f32[64]  parameter init=model").expect("a string takes everything");
        }
    }
    text += "  %x = input \"x\" : f32[4096, 64]\n";
    let mut x = "x".to_string();
    for i in 0..layers {
        for n in ["a", "b"] {
            let name = format!("{n}{i}");
            writeln!(text, "  %{name}.w = state \"{name}.w\" : f32[64, 64]").expect("a string takes everything");
            writeln!(text, "  %{name}.b = state \"{name}.b\" : f32[64]").expect("a string takes everything");
            writeln!(text, "  %{name}.c = contract \"bk,kn->bn\" %{x}, %{name}.w : f32[4096, 64]")
                .expect("a string takes everything");
            writeln!(text, "  %{name}.s = add %{name}.c, %{name}.b : f32[4096, 64]").expect("a string takes everything");
            writeln!(text, "  %{name}.t = tanh %{name}.s : f32[4096, 64]").expect("a string takes everything");
            x = format!("{name}.t");
        }
    }
    writeln!(text, "  output \"y\" %{x}").expect("a string takes everything");
    let spec = format!(
        "mesh dp={dp} tp={tp}\nbatch 4096 microbatches={microbatches}\ndata axis=dp\nshard \"a*.w\" [-, tp]\nshard \"a*.b\" [tp]\n\
         shard \"b*.w\" [tp, -]\nloss mse prediction=y labels=t\noptimizer adamw lr=0.1\nclip norm=1\n"
    );
    let spec = shardc_frontend::spec::parse(Path::new("job.shard"), &spec).expect("the spec parses");
    let cx = Context { spec: &spec, mode: Mode::Train, verify: false };
    let imported = parse(&text).expect("the graph parses");
    let graph = shardc_passes::run(imported, &cx).expect("the graph compiles");
    let program = planning::plan(&graph, &cx).expect("the graph is planned").into_first();
    (graph, program)
}

fn best(mut run: impl FnMut()) -> Duration {
    let time = |()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..5).map(|_| ()).map(time).min().expect("five runs")
}
