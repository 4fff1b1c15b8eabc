//! What is sent back leaves a position before the gradients of weights are computed.

use super::job::{Job, spec};
use shardc::Options;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{BufferId, Step};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn gradients_of_weights_come_behind_what_is_sent_back() {
    for (model, schedule) in [("gpt2", "1f1b"), ("llama", "interleaved(chunks=2)")] {
        let spec = spec(model, "pp=2", 4, &format!("pipeline axis=pp schedule={schedule}\n"));
        let job = Job::new(&format!("sent-first-{model}"), model, &spec);
        let read = shardc_frontend::spec::load(&job.here.join("job.shard")).unwrap();
        let compiled = shardc::compile(Path::new(&job.model), &read, &Options::default()).unwrap();
        let program = &compiled.plans.main().programs.programs[1];
        let is_of_last = |(_, time): &(usize, u64)| *time + 1 == program.mesh.microbatches();
        let messages = (0..program.order.len()).flat_map(|row| program.exchanged(row)).filter(is_of_last);
        let messages = messages.map(|(message, _)| &program.messages[message]);
        let sent: BTreeSet<BufferId> = messages.filter(|message| message.sends).map(|message| message.view.buffer).collect();
        let mut held = 0;
        for task in program.tasks.iter().filter(|task| task.name.starts_with('B')) {
            let makes = |step: &Step| step.writes.iter().any(|view| sent.contains(&view.buffer));
            let Some(made) = task.steps.iter().rposition(makes) else { continue };
            let products = |steps: &[Step]| steps.iter().filter(|step| is_gradient(step)).count();
            assert_eq!(products(&task.steps[..made]), 0, "{model}: {}", task.name);
            held += products(&task.steps[made..]);
        }
        assert!(held > 3, "{model}: {held} gradients of weights");
    }
}

/// Whether a step is a product that is the gradient of a weight.
fn is_gradient(step: &Step) -> bool {
    matches!(step.kernel, Kernel::Contract(_)) && step.results.iter().any(|name| name.contains("weight.grad"))
}
