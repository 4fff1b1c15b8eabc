//! Every kernel form against plain loops, over random small shapes and strides, in f64 and f32; and
//! with several threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bundle;
mod drawings;
mod forged;
mod formulas;
mod map;
mod moves;
mod products;
mod reduce;
mod updates;
mod windows;

use crate::windows::square;
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::team::Team;
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, prepare};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::*;
use shardc_ir::position::*;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram, Unary};
use shardc_testkit::parallel;
use shardc_testkit::reference::draw::{COORDINATES, Draw, mesh};
use shardc_testkit::reference::{self, attention, random};
use std::sync::Barrier;

fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    Tensor::from_f64(&[values.len() as u64], values).cast(dtype).bytes
}

fn aligned(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

/// Runs `f` where so many threads are awake.
pub(crate) fn with_threads<R>(threads: Threads, f: impl FnOnce() -> R) -> R {
    let mut team = Team::new(threads.0, |helper| helper.to_string()).expect("threads");
    let all = Barrier::new(threads.0);
    team.lead(|| {
        threads.for_each(usize::MAX, vec![(); threads.0], |()| {
            all.wait();
        });
        f()
    })
}

/// Runs a kernel over `reads`, and gives its results; NaN fills what it does not write.
pub(crate) fn launch(kernel: &Kernel, reads: &[Vec<f64>], coordinates: &[u64], threads: Threads) -> Vec<Vec<f64>> {
    launch_over(kernel, reads, &vec![None; reads.len()], coordinates, threads)
}

/// The same, where `in_place` says for each read which write is in its memory.
pub(crate) fn launch_over(
    kernel: &Kernel,
    reads: &[Vec<f64>],
    in_place: &[Option<usize>],
    coordinates: &[u64],
    threads: Threads,
) -> Vec<Vec<f64>> {
    let signature = kernel.signature(&mesh()).expect("a good kernel");
    let prepared = prepare(kernel, in_place).expect("a good kernel");
    let words: Vec<Vec<u64>> =
        signature.reads.iter().zip(reads).map(|(operand, values)| aligned(&bytes(operand.dtype, values))).collect();
    let slices: Vec<Slice<'_>> = signature
        .reads
        .iter()
        .zip(words.iter().zip(in_place))
        .map(|(operand, (words, place))| {
            let bytes = if place.is_some() { 0 } else { (operand.elements * operand.dtype.bytes()) as usize };
            Slice::from_bytes(operand.dtype, &bytemuck::cast_slice(words)[..bytes]).unwrap()
        })
        .collect();
    let mut results: Vec<Vec<u64>> = signature
        .writes
        .iter()
        .map(|operand| vec![u64::MAX; (operand.elements * operand.dtype.bytes()).div_ceil(8) as usize])
        .collect();
    for (read, write) in in_place.iter().enumerate().filter_map(|(read, write)| Some((read, (*write)?))) {
        results[write].clone_from(&words[read]);
    }
    let writes: Vec<SliceMut<'_>> = signature
        .writes
        .iter()
        .zip(&mut results)
        .map(|(operand, words)| {
            let bytes = (operand.elements * operand.dtype.bytes()) as usize;
            SliceMut::from_bytes(operand.dtype, &mut bytemuck::cast_slice_mut(words)[..bytes]).unwrap()
        })
        .collect();
    let arguments = Arguments { reads: &slices, writes, coordinates, threads };
    with_threads(threads, || prepared.launch(arguments)).expect("good data");
    let read = |(operand, words): (&signature::Operand, &Vec<u64>)| {
        let bytes = (operand.elements * operand.dtype.bytes()) as usize;
        Tensor { dtype: operand.dtype, shape: vec![], bytes: bytemuck::cast_slice(words)[..bytes].to_vec() }.to_f64()
    };
    signature.writes.iter().zip(&results).map(read).collect()
}

/// What no kernel computes.
const UNWRITTEN: f64 = -1e300;

/// Compares a kernel with its reference, wherever that writes: a result may miss so much of itself
/// and of 1.
pub(crate) fn check(kernel: &Kernel, reads: &[Vec<f64>], tolerance: f64) {
    let signature = kernel.signature(&mesh()).unwrap();
    let before = signature.writes.iter().map(|w| vec![UNWRITTEN; w.elements as usize]).collect();
    let want = reference::run(kernel, reads, before, &COORDINATES);
    let got = launch(kernel, reads, &COORDINATES, Threads(1));
    for (o, (want, got)) in want.iter().zip(&got).enumerate() {
        for (i, (want, got)) in want.iter().zip(got).enumerate().filter(|(_, (want, _))| **want != UNWRITTEN) {
            let same = want == got || (want.is_nan() && got.is_nan());
            let close = (want - got).abs() <= tolerance * (1.0 + want.abs());
            assert!(same || close, "result {o}[{i}] is {got}, not {want}\n{kernel:?}");
        }
    }
}

/// Runs a kernel with each operand in the place of each result that may be there, and says how
/// often.
fn check_in_place(kernel: &Kernel, reads: &[Vec<f64>]) -> usize {
    let signature = kernel.signature(&mesh()).unwrap();
    let apart = launch(kernel, reads, &COORDINATES, Threads(1));
    let mut count = 0;
    for (read, operand) in signature.reads.iter().enumerate() {
        for (write, _) in signature.writes.iter().enumerate().filter(|(_, result)| *result == operand) {
            if kernel.in_place(read, write) {
                let place = |at: usize| (at == read).then_some(write);
                let in_place: Vec<Option<usize>> = (0..reads.len()).map(place).collect();
                let over = launch_over(kernel, reads, &in_place, &COORDINATES, Threads(1));
                let bits = |all: &[Vec<f64>]| all.iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&over), bits(&apart), "operand {read} in the place of result {write}\n{kernel:?}");
                count += 1;
            }
        }
    }
    count
}

/// A run on one thread.
pub(crate) fn run<'a>(reads: &'a [Slice<'a>], writes: Vec<SliceMut<'a>>) -> Arguments<'a> {
    Arguments { reads, writes, coordinates: &COORDINATES, threads: Threads(1) }
}

/// Collectives alone have no instances: they are tried among ranks.
#[test]
fn random_instances_of_every_form() {
    let counts = parallel::map(reference::INSTANCES.len(), |form| {
        let mut count = 0;
        reference::INSTANCES[form](&mut |kernel, reads, tolerance| {
            check(kernel, reads, tolerance);
            count += 1;
        });
        count
    });
    let empty = counts.iter().filter(|count| **count == 0).count();
    assert_eq!(empty, 1, "forms without random instances");
}

/// A kernel gives the same bits over an operand as beside it, also where it computes in f32 what is
/// stored in 16 bits.
#[test]
fn results_in_the_place_of_operands() {
    let counts = parallel::map(reference::INSTANCES.len(), |form| {
        let mut count = 0;
        reference::INSTANCES[form](&mut |kernel, reads, _| {
            count += check_in_place(kernel, reads);
            if let Kernel::ScatterAdd(scatter) = kernel {
                let gather = Gather { dtype: DType::BF16, ..scatter.gather.clone() };
                count += check_in_place(&Kernel::ScatterAdd(ScatterAdd { gather, ..*scatter }), reads);
            }
        });
        count
    });
    let forms = counts.iter().filter(|count| **count > 0).count();
    assert!(forms >= 3, "{counts:?}: maps, bundles and scatters work in place");
}

#[test]
fn updates_in_place() {
    let map = Map {
        compute: DType::F32,
        shape: vec![5000],
        inputs: vec![MapInput { dtype: DType::F32, strides: vec![1] }, MapInput { dtype: DType::F32, strides: vec![1] }],
        program: ScalarProgram {
            inputs: 2,
            code: vec![Instr::Binary(Binary::Add, 0, 1), Instr::Binary(Binary::Mul, 0, 1)],
            outputs: vec![2, 3],
        },
        outputs: vec![DType::F32, DType::F32],
        origins: vec![],
    };
    assert!(Kernel::Map(map.clone()).in_place(0, 0));
    let prepared = prepare(&Kernel::Map(map), &[Some(1), Some(0)]).unwrap();
    let mut a: Vec<f32> = (0..5000).map(|i| i as f32).collect();
    let mut b: Vec<f32> = (0..5000).map(|i| 2.0 + i as f32).collect();
    let writes = vec![SliceMut::F32(&mut b), SliceMut::F32(&mut a)];
    prepared.launch(run(&[Slice::F32(&[]), Slice::F32(&[])], writes)).unwrap();
    for i in 0..5000 {
        let x = i as f32;
        assert_eq!((b[i], a[i]), (x + (2.0 + x), x * (2.0 + x)));
    }
}

/// Any number of threads gives the same bits, for sizes that are shared out.
#[test]
fn threads_change_nothing() {
    let mut draw = Draw::new(9);
    let gelu = |shape: Vec<u64>| Map {
        compute: DType::F32,
        inputs: vec![
            MapInput { dtype: DType::F32, strides: row_major(&shape) },
            MapInput { dtype: DType::F32, strides: row_major(&shape) },
        ],
        shape,
        program: ScalarProgram {
            inputs: 2,
            code: vec![Instr::Unary(Unary::Tanh, 0), Instr::Binary(Binary::Mul, 1, 2)],
            outputs: vec![3],
        },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    let sum = |shape: Vec<u64>, reduced: Vec<bool>| {
        Kernel::Reduce(Reduce { map: gelu(shape), kind: ReduceKind::Sum, reduced, accumulate: DType::F32 })
    };
    let dim = |size, a, b, c| ContractDim { size, a, b, c };
    let product = |batch, m, n, k: u64| {
        Kernel::Contract(Contract {
            dtype: DType::F32,
            result: DType::F32,
            batch: vec![dim(batch, (m * k) as i64, (n * k) as i64, (m * n) as i64)],
            m: vec![dim(m, k as i64, 0, n as i64)],
            n: vec![dim(n, 0, 1, 1)],
            k: vec![dim(k, 1, n as i64, 0)],
        })
    };
    let attention = Attention {
        batch: 3,
        heads: 4,
        kv_heads: 2,
        q_len: 130,
        kv_len: 130,
        width: 16,
        v_width: 16,
        mask: AttentionMask::Causal,
        q: [130 * 64, 16, 64],
        k: [130 * 32, 16, 32],
        v: [130 * 32, 16, 32],
        o: [130 * 64, 16, 64],
        ..attention::drawn(&mut draw, DType::F32)
    };
    let gather = Gather {
        dtype: DType::F32,
        batch: 1,
        outer: 1,
        rows: 50,
        total_rows: 50,
        inner: 900,
        count: 700,
        origin: Origin::whole(50),
    };
    let conv = |result, batch, groups, [inputs, outputs]: [u64; 2], window| {
        Kernel::Conv(Conv { dtype: DType::F32, result, batch, groups, inputs, outputs, window })
    };
    let mut convolutions = vec![];
    for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
        convolutions.push(conv(result, 5, 1, [33, 40], square(16, 3, 1, 1)));
        convolutions.push(conv(result, 7, 2, [70, 50], square(23, 3, 1, 1)));
        convolutions.push(conv(result, 9, 1, [200, 70], square(4, 3, 1, 1)));
        convolutions.push(conv(result, 8, 1, [200, 170], square(3, 3, 1, 1)));
        convolutions.push(conv(result, 16, 2, [140, 70], square(3, 3, 1, 1)));
        convolutions.push(conv(result, 16, 1, [140, 170], square(2, 3, 1, 1)));
        convolutions.push(conv(result, 8, 1, [100, 90], square(4, 3, 1, 1)));
        convolutions.push(conv(result, 16, 2, [100, 120], square(4, 5, 1, 2)));
        convolutions.push(conv(result, 2, 1, [30, 20], square(61, 5, 2, 2)));
        convolutions.push(conv(result, 3, 40, [1, 1], square(30, 5, 1, 2)));
        convolutions.push(conv(result, 3, 40, [1, 1], square(33, 3, 2, 1)));
        convolutions.push(conv(result, 3, 1, [50, 60], square(20, 1, 1, 0)));
    }
    let pools = [(90, 40), (40, 80)].into_iter().flat_map(|(planes, side)| {
        let pool = MaxPool { dtype: DType::F32, planes, window: square(side, 3, 2, 1) };
        [Kernel::MaxPool(pool.clone()), Kernel::MaxPoolGrad(MaxPoolGrad(pool))]
    });
    let others = [
        Kernel::Map(gelu(vec![301, 517])),
        sum(vec![301, 517], vec![true, false]),
        sum(vec![301, 517], vec![false, true]),
        sum(vec![301, 517], vec![true, true]),
        sum(vec![7, 301, 5, 41], vec![true, false, true, false]),
        sum(vec![128, 64, 4, 4], vec![true, false, true, true]),
        sum(vec![20, 5000, 7], vec![true, false, true]),
        sum(vec![400_001], vec![true]),
        sum(vec![100_001, 3], vec![true, false]),
        product(1, 700, 800, 64),
        product(50, 33, 40, 64),
        product(1, 48, 48, 3000),
        Kernel::Attention(attention.clone()),
        Kernel::AttentionGrad(AttentionGrad(attention)),
        Kernel::Rowwise(Rowwise {
            dtype: DType::F32,
            flow: DType::F32,
            rows: 500,
            width: 300,
            program: RowProgram::LayerNorm { eps: 1e-5 },
        }),
        Kernel::Move(Move {
            dtype: DType::F32,
            shape: vec![500, 800],
            src_offset: Offset::default(),
            src_strides: vec![1, 500],
            dst_offset: Offset::default(),
            dst_strides: vec![800, 1],
        }),
        Kernel::Gather(gather.clone()),
        Kernel::ScatterAdd(ScatterAdd { gather: gather.clone(), onto: false }),
        Kernel::ScatterAdd(ScatterAdd { gather, onto: true }),
        random::drawn(&mut draw, vec![7, 301, 66]),
        random::drawn(&mut draw, vec![400_001]),
    ];
    for kernel in others.into_iter().chain(convolutions).chain(pools) {
        let mut reads = draw.operands(&kernel);
        for (values, operand) in reads.iter_mut().zip(kernel.signature(&mesh()).unwrap().reads) {
            if operand.dtype == DType::I64 {
                values.iter_mut().for_each(|v| *v = draw.below(50) as f64);
            }
        }
        let one = launch(&kernel, &reads, &COORDINATES, Threads(1));
        for threads in [2, 3] {
            let many = launch(&kernel, &reads, &COORDINATES, Threads(threads));
            let bits = |results: &[Vec<f64>]| -> Vec<u64> { results.iter().flatten().map(|v| v.to_bits()).collect() };
            assert!(bits(&one) == bits(&many), "{} with {threads} threads", kernel.name());
        }
    }
}
