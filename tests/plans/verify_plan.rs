//! The verifier of plans has teeth: every mutant below does harm, and none is accepted.

use crate::support::{example, folder, shardc};
use shardc::Options;
use shardc_ir::graph::Graph;
use shardc_ir::kernel::{CollectiveKind, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::packed::{pack, unpack};
use shardc_ir::plan::{BufferId, BufferKind, Program, Row, Step, Stream};
use shardc_ir::plan_file::{decode, encode, hash};
use shardc_ir::verify_plan::{Violation, verify};
use std::fs;
use std::path::Path;

/// A job's step of training, and the graph that it carries out.
fn job(job: &str, spec: &str) -> (Program, Graph) {
    let spec = shardc_frontend::spec::load(Path::new(&example(&format!("{job}/{spec}.shard")))).expect("the spec is good");
    let path = example(&format!("{job}/model.onnx"));
    let compiled = shardc::compile(Path::new(&path), &spec, &Options::default()).expect("the job compiles");
    let plan = compiled.plans.training.expect("the job trains");
    (plan.programs.first().clone(), plan.graph)
}

fn refused((program, graph): (&Program, &Graph)) -> Violation {
    verify(program, graph).expect_err("the mutant is refused")
}

#[test]
fn good_plans_are_proven() {
    for (job, spec) in [("digits", "one"), ("digits", "dp2-tp2"), ("tiny-gpt", "one"), ("tiny-gpt", "dp2")] {
        let (program, graph) = self::job(job, spec);
        let proof = verify(&program, &graph).expect("the plan is right");
        let moving = program.states.iter().filter(|s| s.role != shardc_ir::plan::StateRole::Frozen).count();
        assert_eq!((proof.ranks, proof.updated), (program.mesh.world_size(), moving));
    }
}

/// Without any step, something is missing: what it writes, or, where it works in place, what it
/// makes of that.
#[test]
fn a_dropped_step_is_missed() {
    for (job, spec) in [("digits", "dp2-tp2"), ("tiny-gpt", "dp2")] {
        let (good, graph) = self::job(job, spec);
        let mut dropped = 0;
        for t in 0..good.tasks.len() {
            for s in 0..good.tasks[t].steps.len() {
                let mut mutant = good.clone();
                let step = mutant.tasks[t].steps.remove(s);
                let violation = verify(&mutant, &graph).expect_err(&step.text());
                let causes = ["nothing has written", "bytes hold"];
                assert!(causes.iter().any(|cause| violation.message.contains(cause)), "{violation}");
                dropped += 1;
            }
        }
        assert!(dropped > 20, "{dropped} steps were dropped");
    }
}

/// Neighbours of which the second reads what the first writes.
#[test]
fn exchanged_steps_are_found() {
    let (good, graph) = job("digits", "dp2-tp2");
    let mut exchanged = 0;
    for t in 0..good.tasks.len() {
        for s in 1..good.tasks[t].steps.len() {
            let steps = &good.tasks[t].steps;
            let fresh = |w: BufferId| !steps[s - 1].reads.iter().any(|r| r.buffer == w);
            let needs =
                steps[s - 1].writes.iter().any(|w| fresh(w.buffer) && steps[s].reads.iter().any(|r| r.buffer == w.buffer));
            if needs {
                let mut mutant = good.clone();
                mutant.tasks[t].steps.swap(s - 1, s);
                refused((&mutant, &graph));
                exchanged += 1;
            }
        }
    }
    assert!(exchanged > 10, "{exchanged} pairs were exchanged");
}

#[test]
fn buffers_that_live_together_must_not_meet() {
    let (good, graph) = job("digits", "dp2-tp2");
    let mut moved = 0;
    for i in 0..good.buffers.len() {
        if good.buffers[i].kind != BufferKind::Activation || good.buffers[i].slot_bytes < 512 {
            continue;
        }
        // A state is alive all the time.
        let state = &good.buffers[good.states[0].buffer.index()];
        let mut mutant = good.clone();
        mutant.buffers[i].offset = state.offset;
        let violation = refused((&mutant, &graph));
        assert!(violation.message.contains("bytes hold") || violation.message.contains("over bytes"), "{violation}");
        moved += 1;
    }
    assert!(moved > 5, "{moved} buffers were moved");
}

#[test]
fn accesses_stay_inside() {
    let (good, graph) = job("digits", "dp2-tp2");
    let mut mutant = good.clone();
    mutant.tasks[0].steps[0].writes[0].bytes += 1 << 20;
    assert!(refused((&mutant, &graph)).message.contains("leaves its buffer"));
    let mut mutant = good.clone();
    mutant.tasks[0].steps[0].reads[0].offset = u64::MAX;
    assert!(refused((&mutant, &graph)).message.contains("leaves its buffer"));
    let mut mutant = good.clone();
    mutant.arena_bytes -= 64;
    assert!(refused((&mutant, &graph)).message.contains("beyond the arena"));
    let mut mutant = good;
    mutant.tasks[0].steps[0].reads[0].buffer = BufferId(u32::MAX);
    assert!(refused((&mutant, &graph)).message.contains("there is no buffer"));
}

/// A change to one call of a program, and what the refusal says.
type CallMutant = (fn(&mut shardc_ir::kernel::Collective), &'static str);

#[test]
fn calls_fit_their_operands() {
    let (good, graph) = job("digits", "dp2-tp2");
    let mutants: [CallMutant; 6] = [
        (|call| call.counts[0] /= 2, "its operands have"),
        (|call| call.counts[0] = u64::MAX, "too large"),
        (|call| call.kind = CollectiveKind::AllGather, "its operands have"),
        (|call| call.axes = vec![], "no product of axes"),
        (|call| call.axes = vec![call.axes[0], call.axes[0]], "no product of axes"),
        (|call| call.axes = vec![AxisId(9)], "the mesh does not have"),
    ];
    let calls = good.tasks.iter().enumerate().flat_map(|(t, task)| (0..task.steps.len()).map(move |s| (t, s)));
    let calls: Vec<_> = calls.filter(|(t, s)| matches!(good.tasks[*t].steps[*s].kernel, Kernel::Collective(_))).collect();
    assert!(calls.len() >= 4);
    for (t, s) in calls {
        for (mutate, expected) in mutants {
            let mut mutant = good.clone();
            let Kernel::Collective(call) = &mut mutant.tasks[t].steps[s].kernel else { unreachable!("only calls") };
            if call.counts == [1] && expected == "its operands have" {
                call.counts = vec![2];
            } else {
                mutate(call);
            }
            assert!(refused((&mutant, &graph)).message.contains(expected), "{expected}: {}", refused((&mutant, &graph)));
        }
        let mut mutant = good.clone();
        mutant.tasks[t].steps[s].stream = Stream::Main;
        assert!(refused((&mutant, &graph)).message.contains("stream"));
    }
}

#[test]
fn state_moves_once_a_step() {
    let (good, graph) = job("tiny-gpt", "dp2");
    let update = good.tasks.len() - 1;
    let mut mutant = good.clone();
    let is_update = |s: &&Step| s.writes.iter().any(|w| matches!(good.buffers[w.buffer.index()].kind, BufferKind::State(_)));
    let again = good.tasks[update].steps.iter().find(is_update).expect("an update").clone();
    mutant.tasks[update].steps.push(again);
    assert!(refused((&mutant, &graph)).message.contains("has updated already"));
    let mut mutant = good.clone();
    mutant.order.push(Row::Run { task: update as u32, time: 0 });
    assert!(refused((&mutant, &graph)).message.contains("for micro-batch 0 twice"));
    let mut mutant = good;
    let constant = mutant.buffers.iter().position(|b| matches!(b.kind, BufferKind::Input(_))).expect("an input");
    let view = &mut mutant.tasks[update].steps[0].writes[0];
    (view.buffer, view.offset, view.bytes) = (BufferId(constant as u32), 0, 8);
    assert!(verify(&mutant, &graph).is_err());
}

/// A limit below the peak is refused with what fills the memory, at the line; by `compile` and, if
/// the limit came later, by `verify`.
#[test]
fn the_peak_must_fit_the_device() {
    let here = folder("device-memory");
    let job = fs::read_to_string(example("digits/dp2-tp2.shard")).expect("a spec");
    let compile = |limit: &str| {
        fs::write(here.join("job.shard"), format!("{job}\ndevice memory={limit}\n")).expect("a file can be written");
        shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", "job.shard", "-o", "plan"])
    };
    let refused = compile("100KiB").expect(1).err;
    for words in [
        "the train plan needs 194 KiB",
        "the device has 100 KiB",
        "device memory=100KiB",
        "gradients 38 KiB",
        "parameters 54 KiB",
        "help: these would fit: ",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    compile("1MiB").expect(0);
    let verified = shardc(&here, &["verify", "plan"]).expect(0).out;
    assert!(verified.contains(" of 1 MiB"), "{verified}");
}

/// Someone who forges a directory can make its hashes fit, but not its proof.
#[test]
fn a_forged_directory_is_told_by_its_proof() {
    let here = folder("forged-directory");
    shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard"), "-o", "plan"])
        .expect(0);
    let plan = here.join("plan");
    let read = |file: &str| fs::read(plan.join(file)).expect("a file");
    let manifest = String::from_utf8(read("manifest.json")).expect("JSON is text");
    let forge = |file: &str, bytes: &[u8]| {
        let (old, new) = (hash(&read(file)), hash(bytes));
        let manifest = String::from_utf8(read("manifest.json")).expect("JSON is text");
        fs::write(plan.join(file), bytes).expect("a file can be written");
        fs::write(plan.join("manifest.json"), manifest.replace(&old, &new)).expect("a file can be written");
    };
    let told = |words: &[&str]| {
        for command in [&["verify", "plan"][..], &["inspect", "plan"], &["train", "plan", "--data", &example("digits/train.npz")]]
        {
            let said = shardc(&here, command).expect(1).err;
            assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        }
    };
    let good = decode(&read("train.plan")).expect("the plan is good").first().clone();
    let mut mutant = good.clone();
    let is_sum = |step: &&Step| matches!(step.kernel, Kernel::Collective(_));
    let task = mutant.tasks.iter().position(|task| task.steps.iter().any(|s| is_sum(&s))).expect("a sum over ranks");
    let at = mutant.tasks[task].steps.iter().position(|s| is_sum(&s)).expect("a sum over ranks");
    mutant.tasks[task].steps.remove(at);
    forge("train.plan", &encode(&mutant.into()).expect("programs can be written"));
    told(&["this plan directory is wrong: the train plan", "seen between ranks", "job.shard:12", "compile the job again"]);
    let mut mutant = good.clone();
    mutant.inputs.iter_mut().for_each(|input| input.range = None);
    forge("train.plan", &encode(&mutant.into()).expect("programs can be written"));
    told(&["this plan directory is wrong: the train plan", "may hold other values than the graph takes"]);
    forge("train.plan", &encode(&good.into()).expect("programs can be written"));
    let packed = |text: &str| pack(text.as_bytes()).expect("text can be packed");
    let graph = unpack(&read("reference.shir.gz")).expect("graphs are packed");
    let graph = String::from_utf8(graph).expect("graphs are text");
    forge("reference.shir.gz", &packed(&graph.replacen("= relu ", "= tanh ", 1)));
    told(&["this plan directory is wrong: the reference plan"]);
    forge("reference.shir.gz", &packed("graph @x  phase explicit\n  %a = nonsense : f32[2]\n"));
    told(&["this plan directory is damaged", "reference.shir.gz", "line 2"]);
    forge("reference.shir.gz", graph.as_bytes());
    told(&["this plan directory is damaged", "reference.shir.gz", "not packed"]);
    forge("reference.shir.gz", &packed(&graph));
    fs::write(plan.join("manifest.json"), manifest.replace("\"calls\": 1", "\"calls\": 2")).expect("a file can be written");
    told(&["this plan directory is damaged", "what their program does not do"]);
    fs::write(plan.join("manifest.json"), manifest.replace("\"dp\": 2", "\"dp\": 4")).expect("a file can be written");
    told(&["this plan directory is damaged"]);
    fs::write(plan.join("manifest.json"), &manifest).expect("a file can be written");
    forge("eval.plan", &read("train.plan"));
    forge("eval.shir.gz", &read("train.shir.gz"));
    told(&["this plan directory is wrong: the eval plan", "it trains"]);
}

#[test]
fn many_ranks_may_have_many_micro_batches() {
    let here = folder("many-ranks");
    let spec = here.join("job.shard");
    let lines = "mesh dp=16384\nbatch 1572864 microbatches=96\nloss cross_entropy logits=logits labels=y\n\
                 optimizer sgd lr=0.1\ndata axis=dp\n";
    fs::write(&spec, lines).expect("a file can be written");
    let spec = spec.to_string_lossy();
    shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &spec, "-o", "p"]).expect(0);
    let proven = shardc(&here, &["verify", "p"]).expect(0).out;
    assert!(proven.contains("train: proven on 16384 ranks"), "{proven}");
}
