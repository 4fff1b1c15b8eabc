//! Steps that are given up because the norm of the gradients is not finite: no stage waits for
//! another.

use super::job::{Job, spec};
use shardc::Options;
use shardc_executor::guard::Guards;
use shardc_ir::plan::Turn;
use std::collections::BTreeMap;
use std::path::Path;

/// What each rank sends to another one before it gives a step up is what the other one receives
/// before it does.
#[test]
fn messages_before_a_step_is_given_up_have_both_ends() {
    for (mesh, schedule) in [("pp=2", "1f1b"), ("pp=4", "gpipe"), ("pp=2", "interleaved(chunks=2)"), ("dp=2 pp=2", "zb-h1")] {
        let spec = spec("gpt2", mesh, 4, &format!("pipeline axis=pp schedule={schedule}\n"));
        let job = Job::new(&format!("given-up-{mesh}-{schedule}").replace([' ', '='], ""), "gpt2", &spec);
        let read = shardc_frontend::spec::load(&job.here.join("job.shard")).unwrap();
        let compiled = shardc::compile(Path::new(&job.model), &read, &Options::default()).unwrap();
        let programs = &compiled.plans.main().programs;
        let guards = Guards::of(programs).expect("the norm is known before a parameter changes");
        let mesh = programs.mesh();
        let mut ends: BTreeMap<(u64, u64, &str), [u64; 2]> = BTreeMap::new();
        for rank in 0..mesh.world_size() {
            let (program, guard) = (programs.of_rank(mesh, rank), &guards.each[programs.at(mesh, rank)]);
            for turn in program.turns().take(guard.turn) {
                let Turn::Exchange(row) = turn else { continue };
                for (message, _) in program.exchange(row) {
                    let mut coordinates = mesh.coordinates(rank);
                    coordinates[message.axis.index()] = message.peer;
                    let peer = mesh.rank(&coordinates);
                    let (from, to) = if message.sends { (rank, peer) } else { (peer, rank) };
                    ends.entry((from, to, &message.value)).or_default()[usize::from(message.sends)] += 1;
                }
            }
        }
        assert!(ends.keys().any(|(_, _, value)| *value == "grad_norm"), "{schedule}: nobody is told the norm: {ends:?}");
        let one_ended: Vec<_> = ends.iter().filter(|(_, [received, sent])| received != sent).collect();
        assert!(one_ended.is_empty(), "{schedule}: {one_ended:?}");
    }
}
