//! Whole programs, built by hand: sharded inputs, micro-batches, collectives, updates in place, and what must be refused.

use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::plan::*;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram};
use shardc_ir::sharding::{Sharding, Split};
use shardc_ir::train::{Decay, LearningRate, StateInit};
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
        text: kernel.form().to_string(),
        kernel,
        reads: reads.iter().map(|b| view(program, *b)).collect(),
        writes: writes.iter().map(|b| view(program, *b)).collect(),
        provenance: Provenance::default(),
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
    let (batch, width) = (8u64, 3u64);
    let time = mesh.time();
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
        states: vec![StateVariable { name: "w".into(), buffer: BufferId(1), role: StateRole::Parameter, init: StateInit::Ones }],
        inputs: vec![ProgramInput { name: "x".into(), buffer: BufferId(0), range: None, except: None }],
        constants: vec![],
        outputs: vec![
            ProgramOutput { name: "y".into(), buffer: BufferId(5) },
            ProgramOutput { name: "total".into(), buffer: BufferId(6) },
        ],
        tasks: vec![],
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
    let prologue = vec![step(&program, Kernel::Fill { dtype: DType::F32, count: width, value: 0.0 }, &[], &[2])];
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
        count: width,
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
        Task { name: "prologue".into(), repeat: Repeat::Once, steps: prologue },
        Task { name: "F".into(), repeat: Repeat::EachMicrobatch, steps: body },
        Task { name: "update".into(), repeat: Repeat::Once, steps: last },
    ];
    program
}

fn batch() -> Arc<Vec<Tensor>> {
    let values: Vec<f32> = (0..24).map(|i| (i * i % 17) as f32).collect();
    Arc::new(vec![Tensor::from_f32(&[8, 3], &values)])
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
            assert_eq!(executor.read(BufferId(2)).unwrap().to_f32(), total);
            w.iter_mut().zip(&total).for_each(|(w, t)| *w -= 0.5 * t);
            assert_eq!(executor.get_state("w").unwrap().to_f32(), w);
        }
    }
}
