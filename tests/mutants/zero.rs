//! Mutants of plans with lines that ranks hold ranges of.

mod jobs;

use crate::sets::agree_with_the_executor;

#[test]
fn good_plans_of_zero_mean_the_same_to_the_executor() {
    let jobs = jobs::all();
    agree_with_the_executor(&jobs);
    for job in &jobs {
        eprintln!("=== {}", job.name);
        for program in &job.plans.set.programs {
            for b in &program.buffers { eprintln!("  buf {} {:?} {:?} local {:?} {} slots {} at {}+{}", b.name, b.kind, b.shape, b.local, b.sharding.text(&b.shape, &program.mesh), b.slots, b.offset, b.slot_bytes); }
            for t in &program.tasks {
                eprintln!(" task {}", t.name);
                for s in &t.steps {
                    let n = |v: &shardc_ir::plan::View| format!("{}:{}", v.buffer.0, program.buffers[v.buffer.index()].name);
                    eprintln!("   {} {:?} r[{}] w[{}] {:?}", s.text(), s.when, s.reads.iter().map(n).collect::<Vec<_>>().join(" "), s.writes.iter().map(n).collect::<Vec<_>>().join(" "), s.kernel.name());
                }
            }
            eprintln!(" order {:?}", program.order);
        }
    }
}
