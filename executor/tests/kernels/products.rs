//! Contractions and attention.

use crate::{COORDINATES, Random, check, launch, operands, tolerance};
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::*;

#[test]
fn contract() {
    let mut random = Random::new(5);
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
            let strides = if random.below(2) == 0 { row_major(&shape) } else { random.permuted_strides(&shape) };
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
        let kernel = Kernel::Contract(Contract { dtype, result: dtype, batch: group(0), m: group(1), n: group(2), k: group(3) });
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
        result: DType::F32,
        batch: vec![],
        m: vec![dim(2, 0, 0, 3)],
        n: vec![dim(3, 0, 1, 1)],
        k: vec![dim(0, 1, 3, 0)],
    };
    assert_eq!(launch(&Kernel::Contract(contract), &[vec![], vec![]], &COORDINATES, Threads(1))[0], [0.0; 6]);
}

pub(crate) fn random_attention(random: &mut Random, dtype: DType) -> Attention {
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
    let mut random = Random::new(6);
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
