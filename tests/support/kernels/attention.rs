//! Attention of more than a tile, with every mask, grouped heads and odd widths; and by how much
//! rounded weights may move it.

use super::{Case, case};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionGrad, AttentionMask, Kernel};
use shardc_ir::mesh::Mesh;
use shardc_testkit::reference;

/// Attention over rows that lie by position and head.
pub fn attention(
    dtype: DType,
    mask: AttentionMask,
    [heads, kv_heads]: [u64; 2],
    [q_len, kv_len]: [u64; 2],
    [width, v_width]: [u64; 2],
) -> Attention {
    let rows =
        |heads: u64, positions: u64, width: u64| [heads * positions * width, width, heads * width].map(|stride| stride as i64);
    Attention {
        dtype,
        batch: 2,
        heads,
        kv_heads,
        q_len,
        kv_len,
        width,
        v_width,
        // Weights of several sizes; the elements of 16 bits are exact, and so nearly are their
        // scores.
        scale: if dtype.bytes() == 2 { 7.0 } else { 1.0 } / (width as f64).sqrt(),
        mask,
        q: rows(heads, q_len, width),
        k: rows(kv_heads, kv_len, width),
        v: rows(kv_heads, kv_len, v_width),
        o: rows(heads, q_len, v_width),
    }
}

/// Attention and its gradient where tiles are several, whole, cut, or hidden.
pub fn cases() -> Vec<Case> {
    let operand = |dtype, strides| AttentionMask::Operand { dtype, strides };
    let all = [
        attention(DType::F32, AttentionMask::Causal, [4, 2], [130, 130], [33, 40]),
        attention(DType::F32, AttentionMask::None, [1, 1], [65, 128], [64, 16]),
        attention(DType::F32, AttentionMask::Causal, [1, 1], [70, 40], [8, 8]),
        attention(DType::F32, AttentionMask::Causal, [2, 1], [5, 90], [8, 8]),
        attention(DType::F32, operand(DType::Bool, [0, 0, 3, 1]), [2, 2], [67, 3], [16, 16]),
        attention(DType::F32, operand(DType::F32, [0, 70 * 72, 72, 1]), [2, 1], [70, 72], [24, 24]),
        attention(DType::F32, AttentionMask::None, [1, 1], [9, 33], [160, 256]),
        attention(DType::F64, AttentionMask::Causal, [2, 1], [40, 40], [10, 12]),
        // At least three steps, so that a stage is used again.
        attention(DType::BF16, AttentionMask::Causal, [2, 2], [140, 140], [32, 32]),
        attention(DType::F16, operand(DType::F32, [150, 0, 0, 1]), [2, 1], [10, 150], [32, 32]),
        attention(DType::BF16, AttentionMask::Causal, [4, 2], [130, 130], [64, 64]),
        attention(DType::BF16, AttentionMask::Causal, [2, 1], [128, 128], [64, 64]),
        attention(DType::F16, AttentionMask::None, [1, 1], [135, 150], [128, 96]),
        attention(DType::BF16, AttentionMask::Causal, [2, 1], [70, 130], [8, 24]),
        attention(DType::F16, AttentionMask::Causal, [1, 1], [210, 140], [16, 16]),
        attention(DType::BF16, operand(DType::Bool, [0, 0, 150, 1]), [2, 2], [140, 150], [64, 64]),
        attention(DType::F16, operand(DType::F32, [0, 40 * 140, 140, 1]), [2, 1], [40, 140], [24, 136]),
        attention(DType::BF16, AttentionMask::None, [1, 1], [33, 70], [256, 256]),
        attention(DType::BF16, AttentionMask::Causal, [1, 1], [100, 90], [192, 48]),
        attention(DType::BF16, operand(DType::F32, [0, 0, 40, 1]), [1, 1], [20, 40], [256, 256]),
        attention(DType::F16, AttentionMask::Causal, [1, 1], [30, 40], [12, 12]),
    ];
    let mesh = Mesh::new([], 1);
    let both = |a: Attention| [Kernel::Attention(a.clone()), Kernel::AttentionGrad(AttentionGrad(a))];
    all.into_iter().flat_map(both).map(|kernel| case("attention", kernel, &[None; 7], &mesh, true)).collect()
}

/// By how much each result may miss because weights are rounded to 16 bits before they are
/// multiplied: each by half a unit of its last place at most. A weight of the gradient of queries
/// and keys is rounded before it is scaled.
pub fn rounding(kernel: &Kernel, reads: &[Vec<f64>], results: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut most: Vec<Vec<f64>> = results.iter().map(|of| vec![0.0; of.len()]).collect();
    match kernel {
        Kernel::Attention(a) => {
            // Weights are positive, so a sum over magnitudes is one of magnitudes.
            let magnitudes: Vec<Vec<f64>> =
                (0..).zip(reads).map(|(at, of)| if at == 2 { absolute(of) } else { of.clone() }).collect();
            most = reference::run(kernel, &magnitudes, most, &[]);
            most[0].iter_mut().for_each(|sum| *sum *= half_unit(a.dtype));
            most[1].fill(0.0);
        }
        Kernel::AttentionGrad(AttentionGrad(a)) => {
            reference::attention::terms(a, reads, |result, to, weight, by| {
                let scale = if result == 2 { 1.0 } else { a.scale };
                let least = if a.dtype == DType::F16 { 2f64.powi(-25) * scale } else { 0.0 };
                most[result][to] += (weight.abs() * half_unit(a.dtype)).max(least) * by.abs();
            });
        }
        _ => {}
    }
    most
}

/// Half a unit of the last place, in part of a number.
fn half_unit(dtype: DType) -> f64 {
    if dtype == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) }
}

fn absolute(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.abs()).collect()
}
