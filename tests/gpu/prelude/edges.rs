//! Values at which functions change what they do.

use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_testkit::random::Random;
use std::f32::consts::{E, FRAC_PI_2, LN_2, PI};

/// Edges of `f32`: ends of the type, of narrower types and of their roundings, of functions.
const F32: [f32; 52] = [
    0.0,
    1e-45,
    1.1754942e-38,
    f32::MIN_POSITIVE,
    1e-40,
    5.9604645e-8,
    2.9802322e-8,
    6.103_515_6e-5,
    1e-8,
    1e-3,
    0.1,
    0.25,
    0.4142,
    0.5,
    LN_2,
    0.9277344,
    0.99999994,
    1.0,
    1.0000001,
    1.0 + 1.0 / 256.0,
    1.0 + 3.0 / 256.0,
    1.0004883,
    1.5,
    FRAC_PI_2,
    2.0,
    2.4142137,
    2.5,
    E,
    3.0,
    PI,
    3.0 * FRAC_PI_2,
    7.0,
    10.0,
    20.0,
    87.5,
    88.72284,
    89.0,
    104.0,
    2048.5,
    65504.0,
    65519.0,
    65520.0,
    1e5,
    8388608.0,
    8388609.0,
    16777216.0,
    2147483648.0,
    9.223372e18,
    1e30,
    3.3895314e38,
    f32::MAX,
    f32::INFINITY,
];

/// Edges of `f64` beside these.
const F64: [f64; 14] = [
    5e-324,
    2.225_073_858_507_201e-308,
    f64::MIN_POSITIVE,
    1.1102230246251565e-16,
    1.0000000000000002,
    0.9999999999999999,
    709.782712893384,
    710.0,
    745.2,
    4503599627370496.5,
    9007199254740993.0,
    9223372036854774784.0,
    1e300,
    f64::MAX,
];

/// Edges of `i64`.
const I64: [i64; 30] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    -3,
    7,
    -7,
    10,
    19,
    31,
    32,
    33,
    62,
    63,
    64,
    -64,
    1 << 24,
    (1 << 24) + 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    -(1 << 31),
    (1 << 53) + 1,
    -(1 << 53) - 1,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
    1_000_000_007,
];

/// Patterns of 16 bits: `bf16` and `f16` alike have ends and neighbours among them.
const HALVES: [u16; 20] = [
    0x0000, 0x0001, 0x03ff, 0x0400, 0x007f, 0x0080, 0x3800, 0x3bff, 0x3c00, 0x3c01, 0x3f7f, 0x3f80, 0x3f81, 0x4000, 0x4248,
    0x7bff, 0x7c00, 0x7f7f, 0x7f80, 0x7fff,
];

/// The bytes of each edge of a type, of both signs, and one that is no number.
pub fn of(dtype: DType) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = match dtype {
        DType::F32 => F32.iter().flat_map(|x| [*x, -x]).chain([f32::NAN]).map(|x| x.to_le_bytes().to_vec()).collect(),
        DType::F64 => {
            let both = F32.iter().map(|x| f64::from(*x)).chain(F64).flat_map(|x| [x, -x]).chain([f64::NAN]);
            both.map(|x| x.to_le_bytes().to_vec()).collect()
        }
        DType::I64 => I64.iter().map(|x| x.to_le_bytes().to_vec()).collect(),
        DType::BF16 | DType::F16 => HALVES.iter().flat_map(|x| [*x, x | 0x8000]).map(|x| x.to_le_bytes().to_vec()).collect(),
        DType::Bool => vec![vec![0], vec![1]],
    };
    // Warps are whole.
    while !all.len().is_multiple_of(32) {
        all.push(all[0].clone());
    }
    all
}

/// Edges one after another, then as many random patterns.
pub fn line(dtype: DType) -> Vec<u8> {
    let edges = of(dtype);
    let mut random = Random(3);
    let bytes = edges.len() * dtype.bytes() as usize;
    let drawn = |random: &mut Random| if dtype == DType::Bool { random.below(2) as u8 } else { random.below(256) as u8 };
    edges.concat().into_iter().chain((0..bytes).map(|_| drawn(&mut random))).collect()
}

/// Each edge beside each.
pub fn pairs(dtype: DType) -> [Vec<u8>; 2] {
    let edges = of(dtype);
    let each = |f: &dyn Fn(usize, usize) -> usize| {
        let all = (0..edges.len()).flat_map(|a| (0..edges.len()).map(move |b| (a, b)));
        all.flat_map(|(a, b)| edges[f(a, b)].clone()).collect::<Vec<u8>>()
    };
    [each(&|a, _| a), each(&|_, b| b)]
}

/// So many small whole numbers, whose sums are exact.
pub fn whole(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let values: Vec<f64> = (0..count).map(|_| random.below(17) as f64 - 8.0).collect();
    Tensor::from_f64(&[count as u64], &values).cast(dtype).bytes
}

/// So many words without a pattern.
pub fn words(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..count * 4).map(|_| random.below(256) as u8).collect()
}
