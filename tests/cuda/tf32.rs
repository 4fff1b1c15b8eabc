//! Products in TF32: those whose operands a plan rounds to it, and no others.

use super::programs;
use shardc_codegen::matmul::Compute;
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{Work, check, derive};
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::Program;
use shardc_ir::scalar::{Instr, Rounding, Unary};

/// A line of the spec.
pub const LINE: &str = "precision compute=tf32\n";

/// How many products are in f32, and in TF32.
fn products(program: &Program) -> [usize; 2] {
    let mut kernels = Kernels::default();
    let table = derive(program, &mut kernels);
    check(&table, program, &mut kernels).unwrap();
    let mut found = [0; 2];
    for row in table.sections.iter().flat_map(|section| &section.rows) {
        if let Work::Product { product, .. } = &row.work {
            found[usize::from(product.compute == Compute::Tf32)] += 1;
        }
    }
    found
}

#[test]
fn products_of_rounded_operands_are_in_tf32() {
    let zero = format!("{LINE}zero stage=3 axis=dp\n");
    for (model, mesh, line) in [("mlp", "dp=2", LINE), ("mlp", "dp=2", &zero), ("gpt2", "tp=2", LINE), ("llama", "dp=1", LINE)] {
        for program in programs(model, mesh, line) {
            let [wide, rounded] = products(&program);
            assert!(wide == 0 && rounded > 2, "{model} with `{line}`: {wide} in f32, {rounded} in TF32");
        }
    }
    for line in ["", "precision compute=f32\n", "precision compute=bf16\n"] {
        for program in programs("gpt2", "tp=2", line) {
            let [wide, rounded] = products(&program);
            assert!(wide > 2 && rounded == 0, "`{line}`: {wide} in f32, {rounded} in TF32");
        }
    }
}

/// The rounding of one product is taken out of the plan.
#[test]
fn products_of_other_operands_are_not() {
    let mut program = programs("mlp", "dp=1", LINE).remove(0);
    let [_, before] = products(&program);
    let steps = program.tasks.iter_mut().flat_map(|task| &mut task.steps);
    let mut codes =
        steps.filter_map(|step| if let Kernel::Map(map) = &mut step.kernel { map.program.code.last_mut() } else { None });
    let rounding = codes.find(|last| matches!(last, Instr::Round(Rounding::Tf32, _))).expect("a step that rounds");
    *rounding = Instr::Unary(Unary::Neg, 0);
    let [wide, rounded] = products(&program);
    assert!(wide > 0 && rounded < before, "{wide} in f32, {rounded} in TF32 of {before}");
}
