//! How fast training is, in the units in which machines and programs are compared.

use shardc_executor::data::{InputSpec, input_specs};
use shardc_ir::dtype::DType;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Turn};

/// What a step does, and what the machine could do.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Tokens that a step takes in, where the model reads rows of them.
    pub tokens: Option<u64>,
    /// Floating point operations of a step, on all ranks together.
    pub flops: f64,
    /// Operations a second of the fastest products of f32 on all ranks together, where they are
    /// known.
    pub peak: Option<f64>,
}

impl Rates {
    /// Tokens a second in a step of so many seconds.
    pub fn tokens_per_second(&self, seconds: f64) -> Option<f64> {
        self.tokens.map(|tokens| tokens as f64 / seconds.max(1e-9))
    }

    /// The share of the peak that a step of so many seconds comes to, 0 to 1.
    pub fn share_of_peak(&self, seconds: f64) -> Option<f64> {
        self.peak.map(|peak| self.flops / seconds.max(1e-9) / peak)
    }
}

/// Floating point operations of a step of `programs`, on all ranks together.
pub fn flops(programs: &PlanSet) -> f64 {
    let mesh = programs.mesh();
    let of_program = |program: &Program| -> f64 {
        let launches = program.turns().filter_map(|turn| match turn {
            Turn::Launch(launch) => Some(&program.tasks[launch.task].steps[launch.step]),
            Turn::Exchange(_) => None,
        });
        launches.filter_map(|step| step.kernel.work(&program.mesh).ok()).map(|work| work.flops as f64).sum()
    };
    let each: Vec<f64> = programs.programs.iter().map(of_program).collect();
    (0..mesh.world_size()).map(|rank| each[programs.at(mesh, rank)]).sum()
}

/// Tokens that a step of `programs` takes in, where the model reads rows of them.
pub fn tokens(programs: &PlanSet, is_label: impl Fn(&str) -> bool) -> Option<u64> {
    let inputs = input_specs(programs);
    let of_tokens = |input: &&InputSpec| input.dtype == DType::I64 && input.sample.len() == 1 && !is_label(&input.name);
    inputs.iter().find(of_tokens).map(|input| programs.first().batch * input.sample[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_step() {
        let rates = Rates { tokens: Some(512), flops: 3e9, peak: Some(2e9) };
        assert_eq!((rates.tokens_per_second(2.0), rates.share_of_peak(2.0)), (Some(256.0), Some(0.75)));
        assert_eq!(Rates::default().share_of_peak(1.0), None);
    }
}
