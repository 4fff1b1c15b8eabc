//! Chains of elementwise ops of any length compile to kernels of bounded length.

use shardc_ir::kernel::Kernel;
use shardc_ir::text::parse;
use shardc_testkit::step;
use std::fmt::Write;

#[test]
fn a_chain_of_any_length_becomes_kernels_of_bounded_length() {
    let mut text = "graph @chain  phase imported\n  state \"w\" : f64[4]  parameter init=model\n".to_string();
    text += "  %x = input \"x\" : f64[2, 4]\n  %w = state \"w\" : f64[4]\n  %t0 = mul %x, %w : f64[2, 4]\n";
    for i in 1..=20_000 {
        writeln!(text, "  %t{i} = tanh %t{} : f64[2, 4]", i - 1).expect("a string takes everything");
    }
    text += "  output \"y\" %t20000\n";
    let spec = step::spec("batch 2\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n").expect("the spec parses");
    let graph = parse(&text).expect("the graph parses");
    let cx = shardc_passes::Context { spec: &spec, mode: shardc_passes::Mode::Train, verify: false };
    let program = shardc_passes::compile(graph, &cx).expect("the program compiles").into_first();
    let lengths = program.tasks.iter().flat_map(|task| &task.steps).filter_map(|step| match &step.kernel {
        Kernel::Map(map) => Some(map.program.code.len()),
        Kernel::Reduce(reduce) => Some(reduce.map.program.code.len()),
        _ => None,
    });
    let longest = lengths.max().expect("there are kernels");
    assert!((100..=300).contains(&longest), "{longest} instructions");
}
