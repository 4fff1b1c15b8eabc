//! Whole programs, built by hand: sharded inputs, micro-batches, collectives, updates in place, and
//! what must be refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod faults;

use shardc_executor::data::{Dataset, Options, input_specs, write_npz};
use shardc_executor::replay::Replay;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_executor::train;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_ir::plan::*;
use shardc_ir::position::*;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram};
use shardc_ir::sharding::{Sharding, Split};
use shardc_ir::train::{Decay, LearningRate, StateInit};
use std::collections::BTreeMap;
use std::sync::Arc;

const DP: AxisId = AxisId(0);

fn buffer(name: &str, kind: BufferKind, dtype: DType, shape: &[u64], sharding: Sharding, mesh: &Mesh, slots: u64) -> Buffer {
    let local = sharding.local(shape, mesh);
    let slot_bytes = (local.iter().product::<u64>() * dtype.bytes()).next_multiple_of(64);
    Buffer { name: name.into(), kind, dtype, shape: shape.to_vec(), sharding, local, slots, offset: 0, slot_bytes }
}

fn view(program: &Program, buffer: u32) -> View {
    let b = &program.buffers[buffer as usize];
    View { buffer: BufferId(buffer), offset: 0, bytes: b.local.iter().product::<u64>() * b.dtype.bytes() }
}

fn step(program: &Program, kernel: Kernel, reads: &[u32], writes: &[u32]) -> Step {
    Step {
        stream: Stream::Main,
        op: kernel.name().to_string(),
        results: vec![],
        kernel,
        reads: reads.iter().map(|b| view(program, *b)).collect(),
        writes: writes.iter().map(|b| view(program, *b)).collect(),
        provenance: Provenance::default(),
        when: When::Each,
    }
}

fn map(shape: &[u64], strides: &[&[i64]], code: Vec<Instr>) -> Map {
    let inputs = strides.len() as u16;
    let last = inputs + code.len() as u16 - 1;
    Map {
        compute: DType::F32,
        shape: shape.to_vec(),
        inputs: strides.iter().map(|s| MapInput { dtype: DType::F32, strides: s.to_vec() }).collect(),
        program: ScalarProgram { inputs, code, outputs: vec![last] },
        outputs: vec![DType::F32],
        origins: vec![],
    }
}

/// `w -= lr * sum over the batch of x`; outputs the sum, and `x + w` of each sample.
fn program(mesh: Mesh) -> Program {
    program_of(mesh, 3)
}

/// The same of so many elements.
fn program_of(mesh: Mesh, width: u64) -> Program {
    let batch = 8u64;
    let time = mesh.microbatch_axis();
    let local = batch / mesh.size(DP) / mesh.microbatches();
    let split = |rank: usize| {
        let mut sharding = Sharding::replicated(rank);
        sharding.dims[0] = vec![
            Split { axis: time, stride: batch / mesh.microbatches() },
            Split { axis: DP, stride: batch / mesh.microbatches() / mesh.size(DP) },
        ];
        sharding
    };
    let whole = Sharding::replicated(1);
    let m = mesh.microbatches();
    let buffers = vec![
        buffer("x", BufferKind::Input(0), DType::F32, &[batch, width], split(2), &mesh, m),
        buffer("w", BufferKind::State(0), DType::F32, &[width], whole.clone(), &mesh, 1),
        buffer("sum", BufferKind::Gradient(0), DType::F32, &[width], whole.clone(), &mesh, 1),
        buffer("part", BufferKind::Activation, DType::F32, &[width], whole.clone(), &mesh, 1),
        buffer("lr", BufferKind::Scalar(HostScalar::LearningRate), DType::F32, &[], Sharding::default(), &mesh, 1),
        buffer("y", BufferKind::Output(0), DType::F32, &[batch, width], split(2), &mesh, m),
        buffer("total", BufferKind::Output(1), DType::F32, &[width], whole, &mesh, 1),
    ];
    let mut program = Program {
        name: "toy".into(),
        mesh: mesh.clone(),
        batch,
        buffers,
        arena_bytes: 0,
        states: vec![StateVariable {
            name: "w".into(),
            buffer: BufferId(1),
            role: StateRole::Parameter,
            init: StateInit::Ones,
            block: None,
        }],
        inputs: vec![ProgramInput { name: "x".into(), buffer: BufferId(0), range: None, except: None }],
        constants: vec![],
        outputs: vec![
            ProgramOutput { name: "y".into(), buffer: BufferId(5) },
            ProgramOutput { name: "total".into(), buffer: BufferId(6) },
        ],
        tasks: vec![],
        messages: vec![],
        order: vec![],
        learning_rate: LearningRate { lr: 0.5, warmup: 0, decay: Decay::Constant },
        seed: 1,
    };
    let mut end = 0;
    for buffer in &mut program.buffers {
        buffer.offset = end;
        end += buffer.slot_bytes * buffer.slots;
    }
    program.arena_bytes = end;
    let add = vec![Instr::Binary(Binary::Add, 0, 1)];
    let prologue = vec![step(&program, Kernel::Fill(Fill { dtype: DType::F32, count: width, value: 0.0 }), &[], &[2])];
    let reduce = Reduce {
        map: Map { program: ScalarProgram::identity(), ..map(&[local, width], &[&[width as i64, 1]], vec![]) },
        kind: ReduceKind::Sum,
        reduced: vec![true, false],
        accumulate: DType::F32,
    };
    let body = vec![
        step(&program, Kernel::Map(map(&[local, width], &[&[width as i64, 1], &[0, 1]], add.clone())), &[0, 1], &[5]),
        step(&program, Kernel::Reduce(reduce), &[0], &[3]),
        step(&program, Kernel::Map(map(&[width], &[&[1], &[1]], add)), &[2, 3], &[2]),
    ];
    let all_reduce = Collective {
        kind: CollectiveKind::AllReduce,
        op: ReduceKind::Sum,
        axes: vec![DP],
        dtype: DType::F32,
        counts: vec![width],
    };
    let update = vec![Instr::Binary(Binary::Mul, 1, 2), Instr::Binary(Binary::Sub, 0, 3)];
    let copy = Move {
        dtype: DType::F32,
        shape: vec![width],
        src_offset: Offset::default(),
        src_strides: vec![1],
        dst_offset: Offset::default(),
        dst_strides: vec![1],
    };
    let last = vec![
        step(&program, Kernel::Collective(all_reduce), &[2], &[2]),
        step(&program, Kernel::Map(map(&[width], &[&[1], &[1], &[0]], update)), &[1, 2, 4], &[1]),
        step(&program, Kernel::Move(copy), &[2], &[6]),
    ];
    program.tasks = vec![
        Task { name: "prologue".into(), stage: 0, steps: prologue },
        Task { name: "F".into(), stage: 0, steps: body },
        Task { name: "update".into(), stage: 0, steps: last },
    ];
    let run = |task, time| Row::Run { task, time };
    let body = (0..program.mesh.microbatches()).map(|time| run(1, time));
    program.order = [run(0, 0)].into_iter().chain(body).chain([run(2, 0)]).collect();
    program
}

fn batch() -> Arc<Vec<Tensor>> {
    batch_of(3)
}

fn batch_of(width: u64) -> Arc<Vec<Tensor>> {
    let values: Vec<f32> = (0..8 * width).map(|i| (i * i % 17) as f32).collect();
    Arc::new(vec![Tensor::from_f32(&[8, width], &values)])
}

#[test]
fn every_mesh_computes_the_same() {
    let x = batch()[0].to_f32();
    for (ranks, microbatches, threads) in [(1, 1, 1), (2, 1, 1), (1, 4, 2), (2, 2, 1), (4, 2, 2)] {
        let mesh = Mesh::new([("dp".to_string(), ranks)], microbatches);
        let mut executor = Executor::new(program(mesh), threads).unwrap();
        executor.set_state("w", &Tensor::from_f64(&[3], &[1.0, 2.0, 3.0])).unwrap();
        let mut w = [1.0f32, 2.0, 3.0];
        for _ in 0..2 {
            let result = executor.step(batch()).unwrap();
            let y: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + w[i % 3]).collect();
            assert_eq!(result.outputs["y"].to_f32(), y, "{ranks} ranks, {microbatches} micro-batches");
            let total: Vec<f32> = (0..3).map(|c| x.iter().skip(c).step_by(3).sum()).collect();
            assert_eq!(result.outputs["total"].to_f32(), total);
            assert_eq!(executor.read(&Name::Gradient("w".to_string())).unwrap().to_f32(), total);
            w.iter_mut().zip(&total).for_each(|(w, t)| *w -= 0.5 * t);
            assert_eq!(executor.get_state("w").unwrap().to_f32(), w);
        }
    }
}

/// The same program, its buffers in another order in memory and in its tables, its outputs too.
fn rearranged(program: &Program) -> Program {
    let mut other = program.clone();
    let last = program.buffers.len() as u32 - 1;
    let moved = |id: &mut BufferId| id.0 = last - id.0;
    other.buffers.reverse();
    other.outputs.reverse();
    let views =
        other.tasks.iter_mut().flat_map(|task| &mut task.steps).flat_map(|step| step.reads.iter_mut().chain(&mut step.writes));
    views.for_each(|view| moved(&mut view.buffer));
    other.states.iter_mut().for_each(|state| moved(&mut state.buffer));
    other.inputs.iter_mut().for_each(|input| moved(&mut input.buffer));
    other.outputs.iter_mut().for_each(|output| moved(&mut output.buffer));
    let outputs = other.outputs.len() as u32;
    let mut end = 0;
    for buffer in &mut other.buffers {
        if let BufferKind::Output(at) = &mut buffer.kind {
            *at = outputs - 1 - *at;
        }
        buffer.offset = end;
        end += buffer.slot_bytes * buffer.slots;
    }
    other
}

/// A buffer that one rank has under another id, or not at all, is asked for by name.
#[test]
fn ranks_may_run_different_programs() {
    let one = program(Mesh::new([("dp".to_string(), 2)], 2));
    let mut without_total = one.clone();
    without_total.buffers[6].kind = BufferKind::Activation;
    without_total.outputs.pop();
    let set = PlanSet { axes: vec![DP], programs: vec![without_total, rearranged(&one)], of: vec![0, 1] };
    let start = |programs: PlanSet| {
        let mut executor = Executor::new(programs, 1).unwrap();
        executor.set_state("w", &Tensor::from_f64(&[3], &[1.0, 2.0, 3.0])).unwrap();
        executor
    };
    let (mut alike, mut apart) = (start(one.clone().into()), start(set));
    for number in 0..2 {
        let mut replay = Replay::of(&apart).unwrap();
        replay.step(number, &batch()).unwrap();
        assert_eq!(apart.step_if_finite(batch()).unwrap(), alike.step(batch()).unwrap());
        let compared = replay.compare(&apart).unwrap().unwrap_or_else(|difference| panic!("{difference}"));
        assert_eq!((compared.ranks, compared.outputs, compared.gradients, compared.states), (2, 2, 1, 1));
        for name in [Name::State("w".to_string()), Name::Gradient("w".to_string())] {
            assert_eq!(apart.read(&name).unwrap(), alike.read(&name).unwrap());
        }
    }
    let none = PlanSet { axes: vec![DP], programs: vec![one], of: vec![0] };
    assert!(Executor::new(none, 1).unwrap_err().message.contains("not every rank"));
}

#[test]
fn states_begin_the_same_under_every_mesh() {
    let begin = |ranks| {
        let mut program = program(Mesh::new([("dp".to_string(), ranks)], 1));
        program.states[0].init = StateInit::Normal { std: 0.5 };
        let mut executor = Executor::new(program, 1).unwrap();
        executor.initialise(|_| None).unwrap();
        executor.get_state("w").unwrap().to_f32()
    };
    assert_eq!(begin(1), begin(2));
    assert!(begin(1).iter().all(|w| *w != 0.0 && w.abs() < 3.0));
    let mut program = program(Mesh::new([("dp".to_string(), 1)], 1));
    program.states[0].init = StateInit::Model;
    let mut executor = Executor::new(program, 1).unwrap();
    assert!(executor.initialise(|_| None).unwrap_err().message.contains("no weights for `w`"));
    executor.initialise(|name| (name == "w").then(|| Tensor::from_f32(&[3], &[7.0, 8.0, 9.0]))).unwrap();
    assert_eq!(executor.get_state("w").unwrap().to_f32(), [7.0, 8.0, 9.0]);
    assert!(executor.set_state("w", &Tensor::from_f32(&[2], &[7.0, 8.0])).unwrap_err().message.contains("not f32[2]"));
}

/// A gather that finds a bad index on one rank only, before a collective in which the others wait.
fn failing(ranks: u64) -> Program {
    let mut program = program(Mesh::new([("dp".to_string(), ranks)], 1));
    let mut add = |name: &str, kind, dtype, shape: &[u64]| {
        let mesh = program.mesh.clone();
        let mut sharding = Sharding::replicated(shape.len());
        if matches!(kind, BufferKind::Input(_)) {
            sharding.dims[0] = vec![Split { axis: DP, stride: shape[0] / ranks }];
        }
        let mut buffer = buffer(name, kind, dtype, shape, sharding, &mesh, 1);
        buffer.offset = program.arena_bytes;
        program.arena_bytes += buffer.slot_bytes;
        program.buffers.push(buffer);
    };
    add("ids", BufferKind::Input(1), DType::I64, &[8]);
    add("rows", BufferKind::Activation, DType::F32, &[8 / ranks, 1]);
    program.inputs.push(ProgramInput { name: "ids".into(), buffer: BufferId(7), range: None, except: None });
    let gather = Gather {
        dtype: DType::F32,
        batch: 1,
        outer: 1,
        rows: 3,
        total_rows: 3,
        inner: 1,
        count: 8 / ranks,
        origin: Origin::whole(3),
    };
    let bad = step(&program, Kernel::Gather(gather), &[1, 7], &[8]);
    program.tasks[1].steps.insert(0, bad);
    program
}

#[test]
fn one_failing_rank_ends_all_with_its_message() {
    for threads in [1, 2] {
        let mut executor = Executor::new(failing(4), threads).unwrap();
        let mut ids = vec![0, 1, 2, 0, 1, 2, 0, 1];
        let with = |ids: &[i64]| Arc::new(vec![batch()[0].clone(), Tensor::from_i64(&[8], ids)]);
        executor.step(with(&ids)).unwrap();
        ids[5] = 3;
        let error = executor.step(with(&ids)).unwrap_err();
        assert_eq!((error.rank, error.step), (Some(2), Some(1)));
        assert!(error.message.contains("`gather %w, %ids` in task F: index 3 at position 1 is outside"), "{error}");
        assert!(executor.step(with(&ids)).unwrap_err().message.contains("index 3"));
        assert!(executor.get_state("w").is_err());
    }
}

#[test]
fn training_tells_each_step() {
    let folder = std::env::temp_dir().join(format!("shardc-train-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("x.npz");
    let x = Tensor::from_f32(&[20, 3], &[1.0; 60]);
    write_npz(&path, &BTreeMap::from([("x".to_string(), x)])).unwrap();
    let mut program = program(Mesh::new([("dp".to_string(), 2)], 2));
    program.outputs[1].name = "loss".into();
    let data = Dataset::open(&path, input_specs(&program.clone().into()), program.batch, &Options::default()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let mut executor = Executor::new(program, 1).unwrap();
    for number in 0..3 {
        let (line, not_finite) = train::step(&mut executor, &data).unwrap();
        assert_eq!((line.step, line.loss, line.lr, line.grad_norm), (number, Some(8.0), 0.5, None));
        assert!(line.seconds > 0.0 && line.samples_per_second > 0.0);
        assert_eq!((not_finite, executor.next_step()), (None, number + 1));
    }
}

#[test]
fn batches_of_another_shape_are_errors() {
    let open = || Executor::new(program(Mesh::new([("dp".to_string(), 2)], 1)), 1).unwrap();
    assert!(open().step(Arc::new(vec![])).unwrap_err().message.contains("0 arrays for 1 input"));
    let wrong = Arc::new(vec![Tensor::from_f32(&[4, 3], &[0.0; 12])]);
    assert!(open().step(wrong).unwrap_err().message.contains("`x` is f32[8, 3], not f32[4, 3]"));
}

/// Whatever a plan file claims, loading it gives an error, not a panic, and nothing is run.
#[test]
fn forged_programs_are_refused() {
    type Forgery = (&'static str, fn(&mut Program));
    let forgeries: &[Forgery] = &[
        ("beyond the arena", |p| p.buffers[6].offset = p.arena_bytes),
        ("beyond the arena", |p| p.buffers[0].offset = u64::MAX - 63),
        ("not aligned", |p| p.buffers[3].offset += 4),
        ("too small for its elements", |p| p.buffers[0].slot_bytes = 0),
        ("local shape", |p| p.buffers[1].local = vec![1 << 60]),
        ("too large", |p| p.buffers[1].shape = vec![u64::MAX]),
        ("slots", |p| p.buffers[1].slots = 7),
        ("sharding", |p| p.buffers[1].sharding.dims.clear()),
        ("cannot be split", |p| p.buffers[1].sharding.dims[0] = vec![Split { axis: DP, stride: 0 }]),
        ("sharding", |p| p.buffers[1].sharding.dims[0] = vec![Split { axis: AxisId(77), stride: 1 }]),
        ("there is no buffer 99", |p| p.states[0].buffer = BufferId(99)),
        ("not all of it", |p| p.states[0].block = Some(Block { of: "v".into(), alias: None, axis: 0, start: 0, whole: 100 })),
        ("no block", |p| p.states[0].block = Some(Block { of: "v".into(), alias: None, axis: 7, start: 0, whole: 100 })),
        ("there is no buffer 99", |p| p.tasks[1].steps[0].reads[0].buffer = BufferId(99)),
        ("leaves buffer", |p| p.tasks[1].steps[0].reads[0].bytes = 1 << 40),
        ("leaves buffer", |p| p.tasks[1].steps[0].reads[0].offset = u64::MAX),
        ("the view has", |p| p.tasks[1].steps[0].reads[0].bytes = 4),
        ("takes 2 operands", |p| p.tasks[1].steps[0].reads.truncate(1)),
        ("writes what it reads", |p| p.tasks[1].steps[1].writes[0] = p.tasks[1].steps[1].reads[0]),
        ("writes what it reads", |p| p.buffers[3].offset = p.buffers[0].offset),
        ("constant", |p| p.constants.push(ProgramConstant { buffer: BufferId(1), bytes: vec![0; 3].into() })),
        ("partial", |p| p.buffers[6].sharding.add_partial(DP, ReduceKind::Sum)),
        ("the order never runs task 2", |p| p.order.retain(|row| !matches!(row, Row::Run { task: 2, .. }))),
        ("arena is too large", |p| p.arena_bytes = u64::MAX),
        ("memory", |p| p.arena_bytes = 1 << 49),
    ];
    for (expected, forge) in forgeries {
        let mut program = program(Mesh::new([("dp".to_string(), 2)], 2));
        forge(&mut program);
        let error = Executor::new(program, 1).expect_err(expected);
        assert!(error.message.contains(expected), "{error}, not {expected}");
    }
}
