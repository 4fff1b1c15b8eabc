//! State variables that replicas hold in common: results are those of ranks with copies of their
//! own, and what anything else touches stays with each rank.

use super::{batch_of, map, program_of, step};
use shardc_executor::inject::Injections;
use shardc_executor::replay::Replay;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_executor::world::World;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::set::Name;
use shardc_ir::plan::*;
use std::time::Duration;

/// Elements and bytes of the toy's one state variable, of which two, three or four ranks have
/// shares of different lengths.
const WIDTH: u64 = 208;
const W: u64 = 4 * WIDTH;

fn toy(ranks: u64) -> Program {
    program_of(Mesh::new([("dp".to_string(), ranks)], 2), WIDTH)
}

fn start(world: World, program: Program) -> Executor {
    let mut executor = Executor::within(world, program, 1).unwrap();
    let w: Vec<f32> = (0..WIDTH).map(|i| 1.0 + i as f32).collect();
    executor.set_state("w", &Tensor::from_f32(&[WIDTH], &w)).unwrap();
    executor
}

/// What three steps give, and how many bytes ranks hold in common.
fn run(world: World, program: Program) -> (Vec<Vec<f32>>, u64) {
    let mut executor = start(world, program);
    let in_common = executor.in_common().unwrap();
    assert!(in_common.windows(2).all(|pair| pair[0] == pair[1]));
    let mut found = vec![];
    for _ in 0..3 {
        found.extend(executor.step(batch_of(WIDTH)).unwrap().outputs.into_values().map(|output| output.to_f32()));
        found.push(executor.get_state("w").unwrap().to_f32());
        found.push(executor.read(&Name::Gradient("w".to_string())).unwrap().to_f32());
        assert_eq!(executor.replicas().unwrap(), None);
    }
    (found, in_common[0])
}

/// Demands that ranks hold so many bytes of a program in common, and compute what they do apart.
fn check(program: &Program, in_common: u64) {
    let (apart, none) = run(World::default(), program.clone());
    let delays = World::with_delays(3, Duration::from_micros(300));
    assert_eq!((none, run(delays.together(), program.clone())), (0, (apart, in_common)));
}

/// The position of the step that changes `w` in the last task.
const UPDATE: usize = 1;

#[test]
fn replicas_hold_one_copy() {
    for (ranks, in_common) in [(1, 0), (2, W), (4, W)] {
        check(&toy(ranks), in_common);
    }
}

/// A map of one operand.
fn copy(program: &Program, from: u32, to: u32) -> Step {
    step(program, Kernel::Map(map(&[WIDTH], &[&[1]], vec![])), &[from], &[to])
}

#[test]
fn a_state_may_be_read_before_its_first_update_and_behind_its_last() {
    let mut before = toy(2);
    let reads = copy(&before, 1, 3);
    before.tasks[2].steps.insert(UPDATE, reads.clone());
    check(&before, W);
    let mut behind = toy(2);
    behind.tasks[2].steps.insert(UPDATE + 1, reads.clone());
    check(&behind, W);

    let mut between = toy(2);
    let update = between.tasks[2].steps[UPDATE].clone();
    between.tasks[2].steps.splice(UPDATE + 1..UPDATE + 1, [reads, update.clone()]);
    check(&between, 0);
    let mut twice = toy(2);
    twice.tasks[2].steps.insert(UPDATE, update);
    check(&twice, W);
}

#[test]
fn what_is_not_written_element_by_element_is_not_in_common() {
    // A constant for all elements, which is no map.
    let mut filled = toy(2);
    let fill = step(&filled, Kernel::Fill(Fill { dtype: DType::F32, count: WIDTH, value: 2.0 }), &[], &[1]);
    filled.tasks[0].steps.push(fill);
    check(&filled, 0);
    // All elements but one, from all but another.
    let mut moved = toy(2);
    let mut shifted = step(&moved, Kernel::Map(map(&[WIDTH - 1], &[&[1]], vec![])), &[1], &[1]);
    shifted.reads[0] = View { offset: 4, bytes: W - 4, ..shifted.reads[0] };
    shifted.writes[0] = View { offset: 0, bytes: W - 4, ..shifted.writes[0] };
    let through = View { offset: 0, bytes: W - 4, ..moved.tasks[1].steps[1].writes[0] };
    let mut away = shifted.clone();
    (away.writes[0], shifted.reads[0]) = (through, through);
    moved.tasks[2].steps.extend([away, shifted]);
    check(&moved, 0);
}

#[test]
fn a_silent_rank_ends_the_run_and_a_replay_takes_copies() {
    let faults = Injections::parse(["drop:rank=1,step=2"]).unwrap();
    let mut executor = start(World::default().with_faults(faults).together(), toy(2));
    executor.step(batch_of(WIDTH)).unwrap();
    let error = executor.step(batch_of(WIDTH)).unwrap_err().to_string();
    assert!(error.starts_with("rank 0: step 2: ") && error.contains("rank 0 waits in a collective"), "{error}");

    let mut apart = start(World::default(), toy(2));
    let mut together = start(World::default().together(), toy(2));
    for executor in [&mut apart, &mut together] {
        executor.step(batch_of(WIDTH)).unwrap();
    }
    let mut replay = Replay::in_place_of(together).unwrap();
    apart.step(batch_of(WIDTH)).unwrap();
    replay.step(1, &batch_of(WIDTH)).unwrap();
    assert!(replay.compare(&apart).unwrap().is_ok());
}
