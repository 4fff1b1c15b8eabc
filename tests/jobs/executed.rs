//! Runs do what their plans say: the bytes that each rank sends and holds; and the bits of a step
//! are those of all ranks in lockstep, whatever the timing of the threads, and whether replicas
//! hold their state in common.

use shardc::Options;
use shardc_executor::data::{Dataset, Options as DataOptions, input_specs};
use shardc_executor::replay::Replay;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_executor::world::World;
use shardc_frontend::spec;
use shardc_ir::dtype::DType;
use shardc_ir::plan::StateRole;
use shardc_ir::plan::set::PlanSet;
use shardc_testkit::counted;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ADAMW: &str = "optimizer adamw lr=1e-3 weight_decay=0.1 decay=matrices\nclip norm=1.0\n";
const SGD: &str = "optimizer sgd lr=0.05 momentum=0.9\n";

/// A model's folder, its data, and what its spec says besides the loss.
const JOBS: &[(&str, &str, &str, &str)] = &[
    ("mlp", "data.npz", SGD, "mesh dp=3\nbatch 24\ndata axis=dp\n"),
    (
        "mlp",
        "data.npz",
        SGD,
        "mesh dp=2 tp=2\nbatch 32 microbatches=2\ndata axis=dp\nshard \"1.weight\" [tp, -]\nshard \"3.weight\" [-, tp]\n",
    ),
    ("mlp", "data.npz", SGD, "mesh a=2 b=2\nbatch 32\ndata axis=(a,b)\nzero stage=3 axis=b\n"),
    ("mlp", "data.npz", SGD, "mesh dp=2\nbatch 32\ndata axis=dp\nzero stage=2 axis=dp\n"),
    ("gpt2", "data.npz", ADAMW, "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\n"),
    (
        "gpt2",
        "data.npz",
        ADAMW,
        "mesh dp=2 tp=2\nbatch 8\ndata axis=dp\nshard \"*.c_fc.weight\" [-, tp]\nshard \"*.mlp.c_proj.weight\" [tp, -]\n",
    ),
    ("mlp", "data.npz", SGD, "mesh pp=2 dp=2\nbatch 32 microbatches=2\ndata axis=dp\npipeline axis=pp\n"),
    ("llama", "data.npz", ADAMW, "mesh a=2 b=2\nbatch 8 microbatches=2\ndata axis=(a,b)\n"),
    (
        "inception",
        "data.npz",
        SGD,
        "mesh dp=2 tp=2\nbatch 16\ndata axis=dp\nshard \"mix.*.0.weight\" [tp, -, -, -]\nshard \"mix.*.2.weight\" [-, tp, -, -]\n",
    ),
    ("batchnorm", "../mlp/data.npz", SGD, "mesh dp=4\nbatch 32\ndata axis=dp\n"),
    ("vit", "data.npz", ADAMW, "mesh dp=8\nbatch 8\ndata axis=dp\n"),
];

/// The programs of a job, its data, and what starts its ranks in a world.
fn job(model: &str, data: &str, rest: &str) -> (PlanSet, Dataset, impl Fn(World) -> Executor + use<>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(model);
    let text = format!("{rest}loss cross_entropy logits=logits labels=y\n");
    let spec = spec::parse(Path::new("job.shard"), &text).expect("the spec is good");
    let compiled = shardc::compile(&folder.join("model.onnx"), &spec, &Options::default()).expect("the job compiles");
    let programs = compiled.plans.training.expect("the job trains").programs;
    let options = DataOptions::default();
    let data = Dataset::open(&folder.join(data), input_specs(&programs), programs.first().batch, &options).expect("data fit");
    let own = programs.clone();
    let start = move |world: World| {
        let mut executor = Executor::within(world, own.clone(), 1).expect("the program loads");
        let weight = |name: &str| compiled.weights.get(name).and_then(|w| w.load().ok()).map(Tensor::from);
        executor.initialise(weight).expect("the weights are there");
        executor
    };
    (programs, data, start)
}

#[test]
fn plans_say_what_is_sent_held_and_computed() {
    for (model, data, optimizer, layout) in JOBS {
        let (program, data, start) = job(model, data, &format!("{layout}{optimizer}"));
        let mut executor = start(World::default());
        executor.step(data.batch(0)).expect("the step runs");
        let mut delayed = start(World::with_delays(7, Duration::from_micros(200)));
        delayed.step(data.batch(0)).expect("the step runs");
        let mut together = start(World::with_delays(8, Duration::from_micros(200)).together());
        together.step(data.batch(0)).expect("the step runs");
        for (rank, in_common) in (0..).zip(together.in_common().expect("ranks are there")) {
            let program = program.of_rank(program.mesh(), rank);
            let states = program.states.iter().filter(|state| state.role != StateRole::Statistic);
            let of_training: u64 = states.map(|state| program.buffers[state.buffer.index()].slot_bytes).sum();
            // Of moments each rank has a part of its own.
            let wanted = if layout.contains("zero stage=2") { 0 } else { of_training };
            assert!(of_training > 0 && in_common == wanted, "{model} {layout}: {in_common} of {of_training} bytes");
        }
        assert!(delayed.in_common().expect("ranks are there").iter().all(|bytes| *bytes == 0));
        // The second step begins with moments that are not zero.
        let mut replay = Replay::of(&executor).expect("memory for the ranks");
        for executor in [&mut executor, &mut delayed, &mut together] {
            executor.step(data.batch(1)).expect("the step runs");
            counted::check(executor, 2);
        }
        replay.step(1, &data.batch(1)).expect("the step runs");
        for executor in [&executor, &delayed, &together] {
            let compared = replay.compare(executor).expect("the ranks are there").expect("the bits are the same");
            assert_eq!(
                (compared.ranks, compared.states),
                (program.mesh().world_size(), program.states().len()),
                "{model} {layout}"
            );
            assert!(compared.outputs >= 2 && compared.gradients > 0 && compared.elements > 100);
        }
    }
}

/// A step that is given up changes nothing of what ranks hold in common, and they go on.
#[test]
fn a_step_is_given_up_by_all_ranks() {
    let (_, data, start) = job("mlp", "data.npz", &format!("mesh dp=2\nbatch 32\ndata axis=dp\n{SGD}"));
    let mut bad = (*data.batch(0)).clone();
    let x = bad.iter_mut().find(|array| array.dtype == DType::F32).expect("an input of floats");
    x.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let bad = Arc::new(bad);
    let states = |world: World| {
        let mut executor = start(world);
        for batch in [data.batch(0), bad.clone(), data.batch(1)] {
            let given = executor.step_if_finite(batch).expect("the step runs");
            assert!(given.outputs.contains_key("grad_norm"));
        }
        assert_eq!(executor.next_step(), 2, "one of three was given up");
        let names: Vec<String> = executor.programs().states().iter().map(|(_, state)| state.name.clone()).collect();
        names.iter().map(|name| executor.get_state(name).expect("the state is there").bytes).collect::<Vec<_>>()
    };
    assert_eq!(states(World::default()), states(World::default().together()));
}

/// A replay from another state is told apart, at the first element that differs.
#[test]
fn a_replay_shows_the_first_difference() {
    let (_, data, start) = job("mlp", "data.npz", &format!("mesh dp=2\nbatch 32\ndata axis=dp\n{SGD}"));
    let mut executor = start(World::default());
    let mut replay = Replay::of(&executor).expect("memory for the ranks");
    executor.step(data.batch(0)).expect("the step runs");
    replay.step(0, &data.batch(0)).expect("the step runs");
    assert!(replay.compare(&executor).expect("the ranks are there").is_ok());
    let name = executor.programs().states()[0].1.name.clone();
    let mut state = executor.get_state(&name).expect("the state is there");
    state.bytes[4 * 5] ^= 1;
    executor.set_state(&name, &state).expect("the state fits");
    let difference = replay.compare(&executor).expect("the ranks are there").expect_err("a bit differs");
    assert_eq!((difference.buffer.as_str(), difference.rank, difference.element), (name.as_str(), 0, 5));
    assert!(difference.to_string().contains("element 5 of `") && difference.threads != difference.replay, "{difference}");
}
