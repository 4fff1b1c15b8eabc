//! Every kernel form against plain loops, over random small shapes and strides, in f64 and f32; and
//! with several threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod reference;

use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, prepare};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::position::*;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::unary::EVERYWHERE;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram, Unary};

/// Splitmix64: small, and good enough to find shapes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn size(&mut self) -> u64 {
        [1, 2, 3, 4, 5, 7, 16, 33][self.below(8) as usize]
    }

    /// In -2..2, with a short binary fraction, so that f32 holds it.
    fn value(&mut self) -> f64 {
        (self.below(4097) as f64 - 2048.0) / 1024.0
    }

    fn values(&mut self, dtype: DType, n: u64) -> Vec<f64> {
        (0..n)
            .map(|_| match dtype {
                DType::Bool => self.below(2) as f64,
                DType::I64 => self.below(9) as f64 - 4.0,
                _ => self.value(),
            })
            .collect()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A random permutation of dimensions: strides of a dense layout in another order.
    fn permuted_strides(&mut self, shape: &[u64]) -> Vec<i64> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        for d in order {
            strides[d] = stride;
            stride *= shape[d] as i64;
        }
        strides
    }
}

fn mesh() -> Mesh {
    Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 2)
}

fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    Tensor::from_f64(&[values.len() as u64], values).cast(dtype).bytes
}

fn aligned(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

/// Runs a kernel over `reads`, and gives its results; NaN fills what it does not write.
fn launch(kernel: &Kernel, reads: &[Vec<f64>], coordinates: &[u64], threads: Threads) -> Vec<Vec<f64>> {
    let signature = kernel.signature(&mesh()).expect("a good kernel");
    let prepared = prepare(kernel, &vec![None; reads.len()]).expect("a good kernel");
    let words: Vec<Vec<u64>> =
        signature.reads.iter().zip(reads).map(|(operand, values)| aligned(&bytes(operand.dtype, values))).collect();
    let slices: Vec<Slice<'_>> = signature
        .reads
        .iter()
        .zip(&words)
        .map(|(operand, words)| {
            let bytes = (operand.elements * operand.dtype.bytes()) as usize;
            Slice::from_bytes(operand.dtype, &bytemuck::cast_slice(words)[..bytes]).unwrap()
        })
        .collect();
    let mut results: Vec<Vec<u64>> = signature
        .writes
        .iter()
        .map(|operand| vec![u64::MAX; (operand.elements * operand.dtype.bytes()).div_ceil(8) as usize])
        .collect();
    let writes: Vec<SliceMut<'_>> = signature
        .writes
        .iter()
        .zip(&mut results)
        .map(|(operand, words)| {
            let bytes = (operand.elements * operand.dtype.bytes()) as usize;
            SliceMut::from_bytes(operand.dtype, &mut bytemuck::cast_slice_mut(words)[..bytes]).unwrap()
        })
        .collect();
    prepared.launch(Arguments { reads: &slices, writes, coordinates, threads }).expect("good data");
    let read = |(operand, words): (&signature::Operand, &Vec<u64>)| {
        let bytes = (operand.elements * operand.dtype.bytes()) as usize;
        Tensor { dtype: operand.dtype, shape: vec![], bytes: bytemuck::cast_slice(words)[..bytes].to_vec() }.to_f64()
    };
    signature.writes.iter().zip(&results).map(read).collect()
}

/// Compares a kernel with its reference; `scale` is how large the terms are that were added up.
/// What the reference does not write is 0 there, and anything here.
fn check(kernel: &Kernel, reads: &[Vec<f64>], coordinates: &[u64], tolerance: f64) {
    let signature = kernel.signature(&mesh()).unwrap();
    let zeros = signature.writes.iter().map(|w| vec![0.0; w.elements as usize]).collect();
    let want = reference::run(kernel, reads, zeros, coordinates);
    let got = launch(kernel, reads, coordinates, Threads(1));
    for (o, (want, got)) in want.iter().zip(&got).enumerate() {
        for (i, (want, got)) in want.iter().zip(got).enumerate() {
            let same = want == got || (want.is_nan() && got.is_nan()) || (got.is_nan() && *want == 0.0);
            let close = (want - got).abs() <= tolerance * (1.0 + want.abs());
            assert!(same || close, "result {o}[{i}] is {got}, not {want}\n{kernel:?}");
        }
    }
}

fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-12 } else { 4e-6 }
}

fn operands(random: &mut Random, kernel: &Kernel) -> Vec<Vec<f64>> {
    let signature = kernel.signature(&mesh()).unwrap();
    signature.reads.iter().map(|operand| random.values(operand.dtype, operand.elements)).collect()
}

/// Functions that take any number.
fn unary() -> Vec<Unary> {
    Unary::ALL.into_iter().filter(|f| f.facts().domain == EVERYWHERE).collect()
}

const BINARY: [Binary; 11] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Max,
    Binary::Min,
    Binary::Eq,
    Binary::Lt,
    Binary::Le,
    Binary::And,
    Binary::Or,
    Binary::Xor,
];

/// A random elementwise kernel. Steps of a function (floor, comparisons) are only taken of exact
/// values: of inputs.
fn random_map(random: &mut Random, compute: DType, shape: Vec<u64>) -> Map {
    let inputs: Vec<MapInput> = (0..1 + random.below(3))
        .map(|_| {
            let dtype = if random.below(4) == 0 { random.pick(&DType::ALL) } else { compute };
            let dtype = if compute == DType::F32 && dtype == DType::F64 { DType::F32 } else { dtype };
            let mut strides = random.permuted_strides(&shape);
            if random.below(2) == 0 {
                strides = random.permuted_strides(&shape.iter().rev().copied().collect::<Vec<_>>());
                strides = shape
                    .iter()
                    .rev()
                    .scan(1, |s, n| {
                        let now = *s;
                        *s *= *n as i64;
                        Some(now)
                    })
                    .collect::<Vec<_>>();
                strides.reverse();
            }
            for stride in &mut strides {
                if random.below(4) == 0 {
                    *stride = 0;
                }
            }
            MapInput { dtype, strides }
        })
        .collect();
    let count = inputs.len() as u16;
    let mut code = vec![];
    let mut exact: Vec<u16> = (0..count).collect();
    for _ in 0..random.below(6) {
        let registers = count + code.len() as u16;
        let any = |random: &mut Random| random.below(u64::from(registers)) as u16;
        let instr = match random.below(8) {
            0 => Instr::Const(random.value()),
            1 if !shape.is_empty() => Instr::Index(random.below(shape.len() as u64) as u16),
            2 => Instr::Select(random.pick(&exact), any(random), any(random)),
            3 | 4 => {
                let f = random.pick(&unary());
                let stepped = matches!(f, Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not);
                let of = if stepped || f == Unary::Exp { random.pick(&exact) } else { any(random) };
                Instr::Unary(f, of)
            }
            _ => {
                let f = random.pick(&BINARY);
                let stepped = f.is_logical();
                let mut operand = || if stepped { random.pick(&exact) } else { random.below(u64::from(registers)) as u16 };
                Instr::Binary(f, operand(), operand())
            }
        };
        if matches!(instr, Instr::Const(_) | Instr::Index(_)) {
            exact.push(registers);
        }
        code.push(instr);
    }
    let registers = count + code.len() as u16;
    let outputs: Vec<u16> = (0..1 + random.below(2)).map(|_| random.below(u64::from(registers)) as u16).collect();
    let dims: Vec<u16> = code.iter().filter_map(|i| if let Instr::Index(d) = i { Some(*d) } else { None }).collect();
    let mut origins: Vec<(u16, Origin)> = vec![];
    for d in dims {
        if random.below(2) == 0 && origins.iter().all(|(of, _)| *of != d) {
            let offset = Offset { base: 1, terms: vec![(AxisId(1), 40), (AxisId(2), 7)] };
            origins.push((d, Origin { offset, ..Origin::whole(shape[d as usize]) }));
        }
    }
    let results = outputs.len();
    Map {
        compute,
        shape,
        inputs,
        program: ScalarProgram { inputs: count, code, outputs },
        outputs: vec![compute; results],
        origins,
    }
}

/// A shape of up to 4 dimensions and a few thousand elements.
fn random_shape(random: &mut Random) -> Vec<u64> {
    let mut room = 4000;
    let mut sizes = |random: &mut Random| {
        let size = random.size();
        let size = if size <= room { size } else { 1 };
        room /= size;
        size
    };
    (0..random.below(5)).map(|_| sizes(random)).collect()
}

const COORDINATES: [u64; 3] = [1, 2, 1];

/// A run on one thread.
fn run<'a>(reads: &'a [Slice<'a>], writes: Vec<SliceMut<'a>>) -> Arguments<'a> {
    Arguments { reads, writes, coordinates: &COORDINATES, threads: Threads(1) }
}

#[test]
fn map() {
    let mut random = Random(1);
    for case in 0..1500 {
        let compute = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let shape = random_shape(&mut random);
        let kernel = Kernel::Map(random_map(&mut random, compute, shape));
        let reads = operands(&mut random, &kernel);
        check(&kernel, &reads, &COORDINATES, if compute == DType::F64 { 1e-12 } else { 1e-5 });
    }
}

#[test]
fn map_functions_that_need_chosen_arguments() {
    let shape = vec![7, 300];
    for (code, low, high) in [
        (vec![Instr::Unary(Unary::Log, 0)], 0.1, 9.0),
        (vec![Instr::Unary(Unary::Sqrt, 0)], 0.0, 9.0),
        (vec![Instr::Unary(Unary::Reciprocal, 0)], 0.5, 9.0),
        (vec![Instr::Binary(Binary::Div, 1, 0)], 0.5, 9.0),
        (vec![Instr::Binary(Binary::Pow, 0, 1)], 0.5, 9.0),
        (vec![Instr::Const(2.0), Instr::Binary(Binary::Pow, 0, 2)], -3.0, 3.0),
        (vec![Instr::Const(3.0), Instr::Binary(Binary::Pow, 0, 2)], -3.0, 3.0),
        (vec![Instr::Const(0.5), Instr::Binary(Binary::Pow, 0, 2)], 0.0, 3.0),
        (vec![Instr::Const(3.0), Instr::Binary(Binary::Mod, 0, 2)], -9.0, 9.0),
        (vec![Instr::Const(-3.0), Instr::Binary(Binary::Mod, 0, 2)], -9.0, 9.0),
    ] {
        for dtype in [DType::F64, DType::F32] {
            let strides = vec![300, 1];
            let inputs = vec![MapInput { dtype, strides: strides.clone() }, MapInput { dtype, strides }];
            let last = 1 + code.len() as u16;
            let program = ScalarProgram { inputs: 2, code: code.clone(), outputs: vec![last] };
            let map = Map { compute: dtype, shape: shape.clone(), inputs, program, outputs: vec![dtype], origins: vec![] };
            let mut random = Random(3);
            let fraction: Vec<f64> = (0..2100).map(|_| (random.below(1024) as f64 + 0.5) / 1024.0).collect();
            let first = fraction.iter().map(|f| f64::from((low + (high - low) * f) as f32)).collect();
            check(&Kernel::Map(map), &[first, random.values(dtype, 2100)], &COORDINATES, tolerance(dtype) * 4.0);
        }
    }
}

#[test]
fn integers_and_casts() {
    let run = |compute, from, to, code: Vec<Instr>, values: &[f64]| {
        let last = code.len() as u16;
        let program = ScalarProgram { inputs: 1, code, outputs: vec![last] };
        let inputs = vec![MapInput { dtype: from, strides: vec![1] }];
        let map = Map { compute, shape: vec![values.len() as u64], inputs, program, outputs: vec![to], origins: vec![] };
        launch(&Kernel::Map(map), &[values.to_vec()], &COORDINATES, Threads(1)).remove(0)
    };
    use DType::{Bool, F32, F64, I64};
    assert_eq!(run(F32, F32, I64, vec![], &[1.9, -1.9, 0.0]), [1.0, -1.0, 0.0]);
    assert_eq!(run(F32, F32, Bool, vec![], &[1.9, -0.5, 0.0]), [1.0, 1.0, 0.0]);
    assert_eq!(run(Bool, Bool, F64, vec![Instr::Unary(Unary::Not, 0)], &[1.0, 0.0]), [0.0, 1.0]);
    let div = |f, n| run(I64, I64, I64, vec![Instr::Const(n), Instr::Binary(f, 0, 1)], &[7.0, -7.0, 6.0, -6.0]);
    assert_eq!(div(Binary::Div, 2.0), [3.0, -3.0, 3.0, -3.0]);
    assert_eq!(div(Binary::Mod, 3.0), [1.0, 2.0, 0.0, 0.0]);
    assert_eq!(div(Binary::Pow, 2.0), [49.0, 49.0, 36.0, 36.0]);
}

#[test]
fn reduce() {
    let mut random = Random(2);
    for case in 0..1500 {
        let compute = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let mut shape = random_shape(&mut random);
        if case % 10 == 0 {
            shape.push(random.pick(&[1, 600, 1100, 5000]));
        }
        if case % 50 == 7 {
            shape = vec![random.pick(&[300, 700]), random.pick(&[40, 1300])];
        }
        let mut map = random_map(&mut random, compute, shape.clone());
        map.program.outputs.truncate(1);
        map.outputs.truncate(1);
        let kind = random.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
        let reduced: Vec<bool> = shape.iter().map(|_| random.below(2) == 0).collect();
        let accumulate = if random.below(4) == 0 { DType::F64 } else { compute };
        let terms: u64 = shape.iter().zip(&reduced).filter(|(_, r)| **r).map(|(n, _)| *n).product();
        let kernel = Kernel::Reduce(Reduce { map, kind, reduced, accumulate });
        let reads = operands(&mut random, &kernel);
        let scale = if kind == ReduceKind::Sum { terms as f64 * 30.0 } else { 30.0 };
        check(&kernel, &reads, &COORDINATES, if compute == DType::F64 { 1e-14 } else { 1e-7 } * scale.max(30.0));
    }
}

#[test]
fn reductions_of_single_elements_along_long_rows() {
    let (rows, width) = (3, 1280);
    let map = Map {
        compute: DType::F32,
        shape: vec![rows, width, 1],
        inputs: [width as i64, 0].map(|stride| MapInput { dtype: DType::F32, strides: vec![stride, 1, 1] }).to_vec(),
        program: ScalarProgram { inputs: 2, code: vec![Instr::Binary(Binary::Add, 0, 1)], outputs: vec![2] },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    let kernel = Kernel::Reduce(Reduce { map, kind: ReduceKind::Sum, reduced: vec![false, false, true], accumulate: DType::F32 });
    let x: Vec<f64> = (0..rows * width).map(|i| i as f64).collect();
    let row: Vec<f64> = (0..width).map(|i| 0.5 * i as f64).collect();
    let want: Vec<f64> = x.iter().enumerate().map(|(i, x)| x + row[i % width as usize]).collect();
    assert_eq!(launch(&kernel, &[x, row], &COORDINATES, Threads(2))[0], want);
}

#[test]
fn reductions_of_nothing() {
    for (kind, want) in [(ReduceKind::Sum, 0.0), (ReduceKind::Max, f64::NEG_INFINITY), (ReduceKind::Min, f64::INFINITY)] {
        let map = Map {
            compute: DType::F32,
            shape: vec![3, 0],
            inputs: vec![MapInput { dtype: DType::F32, strides: vec![0, 1] }],
            program: ScalarProgram::identity(),
            outputs: vec![DType::F32],
            origins: vec![],
        };
        let kernel = Kernel::Reduce(Reduce { map, kind, reduced: vec![false, true], accumulate: DType::F32 });
        assert_eq!(launch(&kernel, &[vec![]], &COORDINATES, Threads(1))[0], [want; 3]);
    }
}

/// The sum of many equal numbers that f32 cannot hold exactly: adding them one by one would be off
/// by thousands of ulps.
#[test]
fn long_sums_are_exact_to_a_few_ulp() {
    for (shape, reduced) in
        [(vec![1 << 20], vec![true]), (vec![1 << 17, 8], vec![true, false]), (vec![8, 1 << 17], vec![false, true])]
    {
        let strides = if shape.len() == 1 { vec![1] } else { vec![shape[1] as i64, 1] };
        let map = Map {
            compute: DType::F32,
            shape: shape.clone(),
            inputs: vec![MapInput { dtype: DType::F32, strides }],
            program: ScalarProgram::identity(),
            outputs: vec![DType::F32],
            origins: vec![],
        };
        let terms: u64 = shape.iter().zip(&reduced).filter(|(_, r)| **r).map(|(n, _)| *n).product();
        let kernel = Kernel::Reduce(Reduce { map, kind: ReduceKind::Sum, reduced, accumulate: DType::F32 });
        let value = f64::from(0.1f32);
        for got in &launch(&kernel, &[vec![value; shape.iter().product::<u64>() as usize]], &COORDINATES, Threads(1))[0] {
            let want = value * terms as f64;
            assert!((got / want - 1.0).abs() < 4.0 * f64::from(f32::EPSILON), "{shape:?}: {got}, not {want}");
        }
    }
}

#[test]
fn rowwise() {
    let mut random = Random(4);
    for case in 0..300 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let program = [
            RowProgram::Softmax,
            RowProgram::SoftmaxGrad,
            RowProgram::LayerNorm { eps: 1e-2 },
            RowProgram::LayerNormGrad,
            RowProgram::RmsNorm { eps: 1e-2 },
            RowProgram::RmsNormGrad,
            RowProgram::Rotary { repeat: random.size(), period: random.size(), transposed: case % 4 < 2 },
        ][case / 2 % 7];
        let even = if let RowProgram::Rotary { .. } = program { 2 } else { 1 };
        let width = random.pick(&[1, 2, 5, 31, 32, 33, 100, 1500]) * even;
        let kernel = Kernel::Rowwise(Rowwise { dtype, rows: random.size(), width, program });
        let reads = operands(&mut random, &kernel);
        check(&kernel, &reads, &COORDINATES, tolerance(dtype) * 8.0);
    }
}

#[test]
fn contract() {
    let mut random = Random(5);
    for case in 0..400 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let mut room = 30_000;
        let mut size = |random: &mut Random| {
            let size = random.size();
            let size = if size <= room { size } else { 1 };
            room /= size;
            size
        };
        let sizes: Vec<Vec<u64>> = (0..4).map(|_| (0..random.below(3)).map(|_| size(&mut random)).collect()).collect();
        let mut letters = |groups: [usize; 3]| {
            let shape: Vec<u64> = groups.iter().flat_map(|g| sizes[*g].clone()).collect();
            let strides = if random.below(2) == 0 {
                let mut stride = 1;
                let mut strides: Vec<i64> = shape
                    .iter()
                    .rev()
                    .map(|n| {
                        let now = stride;
                        stride *= *n as i64;
                        now
                    })
                    .collect();
                strides.reverse();
                strides
            } else {
                random.permuted_strides(&shape)
            };
            let mut rest = strides.into_iter();
            let mut of = vec![vec![]; 4];
            for g in groups {
                of[g] = rest.by_ref().take(sizes[g].len()).collect();
            }
            of
        };
        let (a, b, c) = (letters([0, 1, 3]), letters([0, 3, 2]), letters([0, 1, 2]));
        let group = |g: usize| -> Vec<ContractDim> {
            let stride = |of: &Vec<Vec<i64>>, i: usize| of[g].get(i).copied().unwrap_or(0);
            (0..sizes[g].len())
                .map(|i| ContractDim { size: sizes[g][i], a: stride(&a, i), b: stride(&b, i), c: stride(&c, i) })
                .collect()
        };
        let kernel = Kernel::Contract(Contract { dtype, batch: group(0), m: group(1), n: group(2), k: group(3) });
        let reads = operands(&mut random, &kernel);
        let terms: u64 = sizes[3].iter().product();
        check(&kernel, &reads, &COORDINATES, tolerance(dtype) / 8.0 * (terms as f64).max(8.0));
    }
}

#[test]
fn an_empty_sum_is_zero() {
    let dim = |size, a, b, c| ContractDim { size, a, b, c };
    let contract = Contract {
        dtype: DType::F32,
        batch: vec![],
        m: vec![dim(2, 0, 0, 3)],
        n: vec![dim(3, 0, 1, 1)],
        k: vec![dim(0, 1, 3, 0)],
    };
    assert_eq!(launch(&Kernel::Contract(contract), &[vec![], vec![]], &COORDINATES, Threads(1))[0], [0.0; 6]);
}

fn random_attention(random: &mut Random, dtype: DType) -> Attention {
    let kv_heads = random.pick(&[1, 2, 3]);
    let heads = kv_heads * random.pick(&[1, 2]);
    let (batch, q_len, kv_len) = (random.pick(&[1, 2]), random.pick(&[1, 5, 70]), random.pick(&[1, 5, 70]));
    let (width, v_width) = (random.pick(&[1, 4, 32]), random.pick(&[1, 4, 32]));
    // Positions outside or inside heads: `b t h e` or `b h t e`.
    let inside = random.below(2) == 0;
    let strides = |heads: u64, positions: u64, width: u64| {
        let batch = (heads * positions * width) as i64;
        if inside { [batch, width as i64, (heads * width) as i64] } else { [batch, (positions * width) as i64, width as i64] }
    };
    let mask = match random.below(4) {
        0 => AttentionMask::None,
        1 => AttentionMask::Causal,
        2 => AttentionMask::Operand { dtype: DType::Bool, strides: [0, 0, kv_len as i64, 1] },
        _ => AttentionMask::Operand { dtype, strides: [(q_len * kv_len) as i64, 0, kv_len as i64, 1] },
    };
    Attention {
        dtype,
        batch,
        heads,
        kv_heads,
        q_len,
        kv_len,
        width,
        v_width,
        scale: 0.3,
        mask,
        q: strides(heads, q_len, width),
        k: strides(kv_heads, kv_len, width),
        v: strides(kv_heads, kv_len, v_width),
        o: strides(heads, q_len, v_width),
    }
}

#[test]
fn attention_and_its_gradient() {
    let mut random = Random(6);
    for case in 0..200 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let attention = random_attention(&mut random, dtype);
        let forward = Kernel::Attention(attention.clone());
        let mut reads = operands(&mut random, &forward);
        check(&forward, &reads, &COORDINATES, tolerance(dtype) * 8.0);
        let results = launch(&forward, &reads, &COORDINATES, Threads(1));
        let d_o = random.values(dtype, results[0].len() as u64);
        reads.extend(results);
        reads.push(d_o);
        check(&Kernel::AttentionGrad(AttentionGrad(attention)), &reads, &COORDINATES, tolerance(dtype) * 64.0);
    }
}

/// A window of one to three dimensions with at least one output.
fn random_window(random: &mut Random) -> Vec<WindowDim> {
    let dims = 1 + random.below(3);
    let mut window = vec![];
    while window.len() < dims as usize {
        let input = if dims == 1 { random.pick(&[1, 5, 40, 200]) } else { random.pick(&[1, 2, 5, 9]) };
        let (kernel, stride) = (random.pick(&[1, 2, 3, 5]), random.pick(&[1, 1, 2, 3]));
        let (dilation, pad, after) = (random.pick(&[1, 1, 2]), random.below(4) as i64 - 1, random.below(4) as i64 - 1);
        let room = input as i64 + pad + after - ((kernel - 1) * dilation + 1) as i64;
        if room >= 0 {
            window.push(WindowDim { input, output: room as u64 / stride + 1, kernel, stride, dilation, pad });
        }
    }
    window
}

/// The same window over both dimensions of a square.
fn square(input: u64, kernel: u64, stride: u64, pad: u64) -> Vec<WindowDim> {
    let output = (input + 2 * pad - kernel) / stride + 1;
    vec![WindowDim { input, output, kernel, stride, dilation: 1, pad: pad as i64 }; 2]
}

#[test]
fn convolutions_and_their_gradients() {
    let mut random = Random(16);
    for case in 0..450 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let (inputs, outputs) = random.pick(&[(1, 1), (1, 1), (2, 3), (5, 4), (20, 3), (7, 33)]);
        let (batch, groups) = (random.pick(&[1, 2, 5]), random.pick(&[1, 1, 2, 3]));
        let pointwise = WindowDim { input: 6, output: 6, kernel: 1, stride: 1, dilation: 1, pad: 0 };
        let window = if random.below(5) == 0 { vec![pointwise; 2] } else { random_window(&mut random) };
        for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
            let conv = Conv { dtype, result, batch, groups, inputs, outputs, window: window.clone() };
            let kernel = Kernel::Conv(conv);
            let reads = operands(&mut random, &kernel);
            check(&kernel, &reads, &COORDINATES, tolerance(dtype) * 8.0);
        }
    }
}

/// Sizes at which convolutions are cut into parts: of a sample, of several samples with wide and
/// with narrow planes.
#[test]
fn convolutions_in_parts() {
    let mut random = Random(17);
    let line = |input, kernel| vec![WindowDim { input, output: input + 2 - kernel, kernel, stride: 1, dilation: 1, pad: 1 }];
    let cases = [
        (3, 1, 5, 5, square(60, 3, 1, 1)),
        (1, 1, 200, 3, square(80, 3, 1, 1)),
        (40, 1, 40, 30, square(4, 3, 1, 1)),
        (9, 1, 600, 20, square(5, 3, 2, 1)),
        (2, 3, 6, 8, line(9000, 5)),
        (3, 1, 40, 30, square(16, 1, 1, 0)),
        (3, 1, 40, 30, square(15, 1, 2, 0)),
    ];
    for (batch, groups, inputs, outputs, window) in cases {
        for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
            let kernel = Kernel::Conv(Conv { dtype: DType::F64, result, batch, groups, inputs, outputs, window: window.clone() });
            let reads = operands(&mut random, &kernel);
            check(&kernel, &reads, &COORDINATES, 1e-11);
        }
    }
}

#[test]
fn pools_and_their_gradients() {
    let mut random = Random(18);
    for case in 0..400 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let mut window = random_window(&mut random);
        if case % 10 == 9 {
            // So spread out that planes are walked by tables.
            window = vec![WindowDim { input: 40, output: 40, kernel: 3, stride: 1, dilation: 9000, pad: 9000 }];
        }
        let pool = MaxPool { dtype, planes: random.pick(&[1, 2, 5]), window };
        let forward = Kernel::MaxPool(pool.clone());
        let mut reads = operands(&mut random, &forward);
        // Equal elements, and some that are infinite or no number.
        for value in &mut reads[0] {
            *value = match random.below(40) {
                0 => f64::NAN,
                1 => f64::NEG_INFINITY,
                n => (n % 7) as f64,
            };
        }
        check(&forward, &reads, &COORDINATES, 0.0);
        let outputs = forward.signature(&mesh()).unwrap().writes[0].elements;
        reads.push(random.values(dtype, outputs));
        check(&Kernel::MaxPoolGrad(MaxPoolGrad(pool)), &reads, &COORDINATES, tolerance(dtype));
    }
}

#[test]
fn moves() {
    let mut random = Random(7);
    for case in 0..600 {
        let shape = random_shape(&mut random);
        let (mut src_strides, dst_strides) = (random.permuted_strides(&shape), random.permuted_strides(&shape));
        let mut base = 0;
        for (stride, size) in src_strides.iter_mut().zip(&shape) {
            match random.below(6) {
                0 => *stride = 0,
                1 => {
                    base += *stride * (*size as i64 - 1);
                    *stride = -*stride;
                }
                _ => {}
            }
        }
        let src_offset = Offset { base, terms: vec![(AxisId(1), 5)] };
        let gap = if case % 3 == 0 { 2 } else { 1 };
        let kernel = Kernel::Move(Move {
            dtype: random.pick(&DType::ALL),
            shape,
            src_offset,
            src_strides,
            dst_offset: Offset { base: 3, terms: vec![(AxisId(2), 4)] },
            dst_strides: dst_strides.iter().map(|s| s * gap).collect(),
        });
        let reads = operands(&mut random, &kernel);
        let signature = kernel.signature(&mesh()).unwrap();
        let want = reference::run(&kernel, &reads, vec![vec![0.0; signature.writes[0].elements as usize]], &COORDINATES);
        let got = launch(&kernel, &reads, &COORDINATES, Threads(1));
        let Kernel::Move(m) = &kernel else { unreachable!() };
        for index in reference::indices(&m.shape) {
            let to = index.iter().zip(&m.dst_strides).map(|(i, s)| *i as i64 * s).sum::<i64>() + m.dst_offset.at(&COORDINATES);
            assert_eq!(want[0][to as usize], got[0][to as usize], "{kernel:?}");
        }
    }
}

#[test]
fn gather_and_scatter() {
    let mut random = Random(8);
    for case in 0..300 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let rows = random.pick(&[4, 6, 12]);
        // Whole; the middle third; or blocks of two, every third one ours.
        let (total_rows, origin) = match case % 3 {
            0 => (rows, Origin::whole(rows)),
            1 => (rows * 3, Origin { offset: Offset { base: 0, terms: vec![(AxisId(1), rows as i64)] }, ..Origin::whole(rows) }),
            _ => {
                let digits =
                    vec![OriginDigit { divisor: 2, size: rows / 2, stride: 6 }, OriginDigit { divisor: 1, size: 2, stride: 1 }];
                (rows * 3, Origin { offset: Offset { base: 0, terms: vec![(AxisId(1), 2)] }, digits })
            }
        };
        let gather = Gather {
            dtype,
            batch: random.pick(&[1, 3]),
            outer: random.pick(&[1, 3]),
            rows,
            total_rows,
            inner: random.size(),
            count: random.size(),
            origin,
        };
        let indices = |random: &mut Random| -> Vec<f64> {
            (0..gather.batch * gather.count).map(|_| random.below(2 * total_rows) as f64 - total_rows as f64).collect()
        };
        let table = random.values(dtype, gather.batch * gather.outer * gather.rows * gather.inner);
        let reads = [table, indices(&mut random)];
        check(&Kernel::Gather(gather.clone()), &reads, &COORDINATES, 0.0);
        let source = random.values(dtype, gather.batch * gather.outer * gather.count * gather.inner);
        check(&Kernel::ScatterAdd(ScatterAdd(gather.clone())), &[indices(&mut random), source], &COORDINATES, tolerance(dtype));
    }
}

#[test]
fn an_index_outside_the_table_is_an_error() {
    let gather =
        Gather { dtype: DType::F32, batch: 1, outer: 1, rows: 4, total_rows: 4, inner: 2, count: 2, origin: Origin::whole(4) };
    for (bad, found) in
        [(4i64, "index 4 at position 1"), (-5, "index -5 at position 1"), (i64::MIN, "is outside a table of 4 rows")]
    {
        let prepared = prepare(&Kernel::Gather(gather.clone()), &[None, None]).unwrap();
        let mut out = [0f32; 4];
        let reads = [Slice::F32(&[0.0; 8]), Slice::I64(&[1, bad])];
        let error = prepared.launch(run(&reads, vec![SliceMut::F32(&mut out)])).unwrap_err();
        assert!(error.contains(found), "{error}");
    }
}

/// A dimension of `size` on this rank: whole, a third of a larger one, or blocks of which every
/// third is ours.
fn random_origin(random: &mut Random, size: u64) -> (u64, Origin) {
    let third = |stride| Offset { base: 0, terms: vec![(AxisId(1), stride as i64)] };
    match random.below(4) {
        0 => (size * 3, Origin { offset: third(size), ..Origin::whole(size) }),
        1 if size.is_multiple_of(2) => {
            let digits =
                vec![OriginDigit { divisor: 2, size: size / 2, stride: 6 }, OriginDigit { divisor: 1, size: 2, stride: 1 }];
            (size * 3, Origin { offset: third(2), digits })
        }
        2 => (size * 3, Origin { offset: third(1), digits: vec![OriginDigit { divisor: 1, size, stride: 3 }] }),
        _ => (size, Origin::whole(size)),
    }
}

fn random_drawing(random: &mut Random, shape: Vec<u64>) -> Kernel {
    let (sizes, origins): (Vec<u64>, Vec<Origin>) = shape.iter().map(|size| random_origin(random, *size)).unzip();
    let strides = (0..shape.len()).map(|d| sizes[d + 1..].iter().product()).collect();
    let threshold = random.pick(&[0, 1 << 30, u32::MAX]);
    Kernel::Random(shardc_ir::kernel::Random { shape, strides, origins, threshold, stream: random.below(9) as u32 })
}

#[test]
fn drawings() {
    let mut random = Random(11);
    for _ in 0..300 {
        let shape = (0..random.below(4)).map(|_| random.size()).collect();
        let kernel = random_drawing(&mut random, shape);
        let counters = [vec![random.below(1 << 40) as f64], vec![random.below(1 << 34) as f64]];
        check(&kernel, &counters, &COORDINATES, 0.0);
    }
}

/// Shares of three standard deviations around what is asked for; streams, steps and seeds have
/// nothing to do with each other.
#[test]
fn drawings_keep_the_share_that_is_asked_for() {
    let (n, ratio) = (1u64 << 18, 0.1);
    let draw = |seed: f64, step: f64, stream: u32| {
        let threshold = shardc_ir::philox::threshold(ratio);
        let whole =
            shardc_ir::kernel::Random { shape: vec![n], strides: vec![1], origins: vec![Origin::whole(n)], threshold, stream };
        launch(&Kernel::Random(whole), &[vec![seed], vec![step]], &COORDINATES, Threads(1)).swap_remove(0)
    };
    let masks = [draw(1.0, 1.0, 0), draw(1.0, 1.0, 1), draw(1.0, 2.0, 0), draw(2.0, 1.0, 0)];
    let near = |count: usize, share: f64| {
        let deviation = (share * (1.0 - share) * n as f64).sqrt();
        assert!((count as f64 - share * n as f64).abs() <= 3.0 * deviation, "{count} of {n} for {share}");
    };
    for (i, mask) in masks.iter().enumerate() {
        near(mask.iter().filter(|v| **v == 1.0).count(), 1.0 - ratio);
        // Neighbours are dropped independently, and so are the same elements of two masks.
        near(mask.windows(2).filter(|w| w == &[0.0, 0.0]).count(), ratio * ratio);
        for other in &masks[..i] {
            near(mask.iter().zip(other).filter(|(a, b)| **a == 0.0 && **b == 0.0).count(), ratio * ratio);
        }
    }
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
    let mut random = Random(9);
    let strided = |shape: &[u64]| {
        let mut stride = 1;
        let mut strides: Vec<i64> = shape
            .iter()
            .rev()
            .map(|n| {
                let now = stride;
                stride *= *n as i64;
                now
            })
            .collect();
        strides.reverse();
        strides
    };
    let gelu = |shape: Vec<u64>| Map {
        compute: DType::F32,
        inputs: vec![
            MapInput { dtype: DType::F32, strides: strided(&shape) },
            MapInput { dtype: DType::F32, strides: strided(&shape) },
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
        ..random_attention(&mut random, DType::F32)
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
        convolutions.push(conv(result, 9, 1, [200, 70], square(4, 3, 1, 1)));
        convolutions.push(conv(result, 2, 1, [30, 20], square(61, 5, 2, 2)));
        convolutions.push(conv(result, 3, 40, [1, 1], square(30, 5, 1, 2)));
        convolutions.push(conv(result, 3, 1, [50, 60], square(20, 1, 1, 0)));
    }
    let pool = MaxPool { dtype: DType::F32, planes: 90, window: square(40, 3, 2, 1) };
    let pools = [Kernel::MaxPool(pool.clone()), Kernel::MaxPoolGrad(MaxPoolGrad(pool))];
    let others = [
        Kernel::Map(gelu(vec![301, 517])),
        sum(vec![301, 517], vec![true, false]),
        sum(vec![301, 517], vec![false, true]),
        sum(vec![301, 517], vec![true, true]),
        sum(vec![7, 301, 5, 41], vec![true, false, true, false]),
        sum(vec![400_001], vec![true]),
        sum(vec![100_001, 3], vec![true, false]),
        product(1, 700, 800, 64),
        product(50, 33, 40, 64),
        product(1, 48, 48, 3000),
        Kernel::Attention(attention.clone()),
        Kernel::AttentionGrad(AttentionGrad(attention)),
        Kernel::Rowwise(Rowwise { dtype: DType::F32, rows: 500, width: 300, program: RowProgram::LayerNorm { eps: 1e-5 } }),
        Kernel::Move(Move {
            dtype: DType::F32,
            shape: vec![500, 800],
            src_offset: Offset::default(),
            src_strides: vec![1, 500],
            dst_offset: Offset::default(),
            dst_strides: vec![800, 1],
        }),
        Kernel::Gather(gather.clone()),
        Kernel::ScatterAdd(ScatterAdd(gather)),
        random_drawing(&mut random, vec![7, 301, 66]),
        random_drawing(&mut random, vec![400_001]),
    ];
    for kernel in others.into_iter().chain(convolutions).chain(pools) {
        let mut reads = operands(&mut random, &kernel);
        for (values, operand) in reads.iter_mut().zip(kernel.signature(&mesh()).unwrap().reads) {
            if operand.dtype == DType::I64 {
                values.iter_mut().for_each(|v| *v = random.below(50) as f64);
            }
        }
        let one = launch(&kernel, &reads, &COORDINATES, Threads(1));
        for threads in [2, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let many = pool.install(|| launch(&kernel, &reads, &COORDINATES, Threads(threads)));
            let bits = |results: &[Vec<f64>]| -> Vec<u64> { results.iter().flatten().map(|v| v.to_bits()).collect() };
            assert!(bits(&one) == bits(&many), "{} with {threads} threads", kernel.name());
        }
    }
}

#[test]
fn forged_kernels_are_refused() {
    let map = Map {
        compute: DType::F32,
        shape: vec![4],
        inputs: vec![MapInput { dtype: DType::F32, strides: vec![1] }],
        program: ScalarProgram { inputs: 1, code: vec![Instr::Unary(Unary::Neg, 9)], outputs: vec![1] },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    assert!(prepare(&Kernel::Map(map.clone()), &[]).is_err());
    let forward =
        Map { program: ScalarProgram { inputs: 1, code: vec![Instr::Unary(Unary::Neg, 1)], outputs: vec![1] }, ..map.clone() };
    assert!(prepare(&Kernel::Map(forward), &[]).is_err());
    let result = Map { program: ScalarProgram { inputs: 1, code: vec![], outputs: vec![7] }, ..map.clone() };
    assert!(prepare(&Kernel::Map(result), &[]).is_err());
    let index = Map { program: ScalarProgram { inputs: 1, code: vec![Instr::Index(3)], outputs: vec![1] }, ..map.clone() };
    assert!(prepare(&Kernel::Map(index), &[]).is_err());
    let bad = |kernel: &Kernel| kernel.signature(&mesh()).is_err();
    assert!(bad(&Kernel::Map(Map { inputs: vec![MapInput { dtype: DType::F32, strides: vec![-1] }], ..map.clone() })));
    assert!(bad(&Kernel::Map(Map { shape: vec![u64::MAX, 3], inputs: vec![], ..map.clone() })));
    let origin = Origin { offset: Offset { base: 0, terms: vec![(AxisId(9), 1)] }, ..Origin::whole(4) };
    assert!(bad(&Kernel::Map(Map { origins: vec![(0, origin)], ..map })));
    let copy = Move {
        dtype: DType::F32,
        shape: vec![4, 4],
        src_offset: Offset::default(),
        src_strides: vec![4, 1],
        dst_offset: Offset::default(),
        dst_strides: vec![2, 1],
    };
    assert!(bad(&Kernel::Move(copy.clone())));
    assert!(bad(&Kernel::Move(Move { dst_strides: vec![4, -1], ..copy })));
    let dim = |size, c| ContractDim { size, a: 1, b: 1, c };
    assert!(bad(&Kernel::Contract(Contract {
        dtype: DType::F32,
        batch: vec![],
        m: vec![dim(4, 1)],
        n: vec![dim(4, 1)],
        k: vec![]
    })));
    assert!(bad(&Kernel::Contract(Contract { dtype: DType::I64, batch: vec![], m: vec![], n: vec![], k: vec![] })));
    let dim = WindowDim { input: 4, output: 4, kernel: 3, stride: 1, dilation: 1, pad: 1 };
    let conv = |dim: WindowDim, batch| {
        let (dtype, result) = (DType::F32, ConvResult::Output);
        Kernel::Conv(Conv { dtype, result, batch, groups: 1, inputs: 2, outputs: 2, window: vec![dim; 2] })
    };
    assert!(!bad(&conv(dim, 1)));
    assert!(bad(&conv(dim, u64::MAX)));
    for forged in [
        WindowDim { stride: 0, ..dim },
        WindowDim { kernel: 0, ..dim },
        WindowDim { dilation: u64::MAX, ..dim },
        WindowDim { pad: i64::MIN, ..dim },
        WindowDim { output: 1 << 30, ..dim },
    ] {
        assert!(bad(&conv(forged, 1)));
        assert!(bad(&Kernel::MaxPool(MaxPool { dtype: DType::F32, planes: 1, window: vec![forged; 2] })));
    }
    assert!(bad(&Kernel::MaxPool(MaxPool { dtype: DType::I64, planes: 1, window: vec![dim] })));
    assert!(bad(&Kernel::MaxPool(MaxPool { dtype: DType::F32, planes: 1, window: vec![dim; 4] })));
    let collective =
        Collective { kind: CollectiveKind::AllGather, op: ReduceKind::Sum, axes: vec![AxisId(2)], dtype: DType::F32, count: 4 };
    assert!(bad(&Kernel::Collective(collective.clone())));
    assert!(bad(&Kernel::Collective(Collective { axes: vec![AxisId(0), AxisId(0)], ..collective })));
}
