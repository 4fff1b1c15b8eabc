//! Kernels of the same kind that are small enough to run thread by thread: the largest sizes are
//! halved, and once more made odd.

use shardc_ir::kernel::{Attention, AttentionMask, Bundle, Contract, ContractDim, Gather, Kernel, Map, Move};
use shardc_ir::position::Origin;

/// The kernel as it is where it touches few elements; else a smaller one, and one of odd sizes.
pub fn sizes(kernel: &Kernel, elements: u64) -> Vec<Kernel> {
    if work(kernel) <= elements {
        return vec![kernel.clone()];
    }
    [false, true].into_iter().filter_map(|is_odd| smaller(kernel, elements, is_odd)).collect()
}

/// Elements read, written and multiplied.
fn work(kernel: &Kernel) -> u64 {
    let mesh = shardc_ir::mesh::Mesh::new([("dp".to_string(), 2)], 1);
    let work = kernel.work(&mesh).map_or(0, |work| work.read / 4 + work.written / 4);
    match kernel {
        Kernel::Contract(_) | Kernel::Conv(_) => work.max(kernel.flops() / 32),
        _ => work,
    }
}

fn smaller(kernel: &Kernel, elements: u64, is_odd: bool) -> Option<Kernel> {
    let mut kernel = kernel.clone();
    while work(&kernel) > elements {
        if !halve(&mut kernel) {
            return None;
        }
    }
    Some(if is_odd { odd(&kernel) } else { kernel })
}

/// The kernel with odd sizes, which no block or vector divides.
pub fn odd(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    change(&mut kernel, |size| if size > 2 && size.is_multiple_of(2) { size - 1 } else { size });
    kernel
}

/// Halves the largest size.
fn halve(kernel: &mut Kernel) -> bool {
    let mut largest = 0;
    change(kernel, |size| {
        largest = largest.max(size);
        size
    });
    let mut is_done = largest < 4;
    let could = !is_done;
    change(kernel, |size| {
        if size == largest && !is_done {
            is_done = true;
            return size.div_ceil(2);
        }
        size
    });
    could
}

/// Gives each size that may change another one; strides follow.
fn change(kernel: &mut Kernel, mut to: impl FnMut(u64) -> u64) {
    match kernel {
        Kernel::Map(map) => change_map(map, to),
        Kernel::Reduce(reduce) => change_map(&mut reduce.map, to),
        Kernel::Contract(contract) => change_contract(contract, to),
        Kernel::Rowwise(rowwise) => rowwise.rows = to(rowwise.rows),
        Kernel::Conv(conv) => {
            for size in [&mut conv.batch, &mut conv.inputs, &mut conv.outputs] {
                *size = to(*size);
            }
        }
        Kernel::MaxPool(pool) => pool.planes = to(pool.planes),
        Kernel::MaxPoolGrad(pool) => pool.0.planes = to(pool.0.planes),
        Kernel::Move(copy) => change_move(copy, to),
        Kernel::Gather(gather) => change_gather(gather, to),
        Kernel::ScatterAdd(scatter) => change_gather(&mut scatter.0, to),
        Kernel::Fill(fill) => fill.count = to(fill.count),
        Kernel::Random(random) => random.shape.iter_mut().for_each(|size| *size = to(*size)),
        Kernel::Bundle(bundle) => change_bundle(bundle, to),
        Kernel::Attention(attention) => change_attention(attention, to),
        Kernel::AttentionGrad(gradient) => change_attention(&mut gradient.0, to),
        Kernel::Collective(_) => {}
    }
}

/// As many query heads read a head of keys, and rows lie without gaps by position and head.
fn change_attention(a: &mut Attention, mut to: impl FnMut(u64) -> u64) {
    let group = a.heads / a.kv_heads;
    for size in [&mut a.batch, &mut a.kv_heads, &mut a.q_len, &mut a.kv_len] {
        *size = to(*size);
    }
    a.heads = a.kv_heads * group;
    let rows =
        |heads: u64, positions: u64, width: u64| [heads * positions * width, width, heads * width].map(|stride| stride as i64);
    a.q = rows(a.heads, a.q_len, a.width);
    a.k = rows(a.kv_heads, a.kv_len, a.width);
    a.v = rows(a.kv_heads, a.kv_len, a.v_width);
    a.o = rows(a.heads, a.q_len, a.v_width);
    let sizes = [a.batch, a.heads, a.q_len, a.kv_len];
    if let AttentionMask::Operand { strides, .. } = &mut a.mask {
        let mut below = 1;
        for (stride, size) in strides.iter_mut().zip(sizes).rev().filter(|(stride, _)| **stride != 0) {
            *stride = below;
            below *= size as i64;
        }
    }
}

/// A table that is whole stays so.
fn change_gather(gather: &mut Gather, mut to: impl FnMut(u64) -> u64) {
    gather.inner = to(gather.inner);
    gather.count = to(gather.count);
    if gather.rows == gather.total_rows && gather.origin == Origin::whole(gather.rows) {
        gather.rows = to(gather.rows);
        gather.total_rows = gather.rows;
        gather.origin = Origin::whole(gather.rows);
    }
}

/// A side that is read backwards keeps its strides.
fn change_move(copy: &mut Move, to: impl FnMut(u64) -> u64) {
    let old = copy.shape.clone();
    copy.shape = old.iter().copied().map(to).collect();
    let sides = [(&mut copy.src_strides, &mut copy.src_offset), (&mut copy.dst_strides, &mut copy.dst_offset)];
    for (strides, offset) in sides.into_iter().filter(|(strides, _)| strides.iter().all(|stride| *stride >= 0)) {
        let dims: Vec<_> = (0..old.len()).map(|d| (old[d], copy.shape[d], strides[d])).collect();
        let new = scaled(&dims);
        for distance in offset.terms.iter_mut().map(|(_, by)| by).chain([&mut offset.base]) {
            *distance = moved(*distance, strides, &new);
        }
        *strides = new;
    }
}

/// A distance that is as many steps along each dimension under the strides `new` as under `old`.
fn moved(distance: i64, old: &[i64], new: &[i64]) -> i64 {
    let mut strides: Vec<(i64, i64)> = old.iter().copied().zip(new.iter().copied()).filter(|(old, _)| *old != 0).collect();
    strides.sort_by_key(|(old, _)| std::cmp::Reverse(*old));
    let (mut left, mut sum) = (distance, 0);
    for (old, new) in strides {
        sum += left / old * new;
        left %= old;
    }
    sum + left
}

fn change_map(map: &mut Map, to: impl FnMut(u64) -> u64) {
    let old = map.shape.clone();
    map.shape = old.iter().copied().map(to).collect();
    for input in &mut map.inputs {
        let dims: Vec<_> = (0..old.len()).map(|d| (old[d], map.shape[d], input.strides[d])).collect();
        input.strides = scaled(&dims);
    }
}

/// Members side by side change each for itself, rows and their width in all members alike.
fn change_bundle(bundle: &mut Bundle, mut to: impl FnMut(u64) -> u64) {
    if bundle.rows == 1 && bundle.is_side_by_side() {
        bundle.members.iter_mut().for_each(|member| change_map(member.kernel.map_mut(), &mut to));
        return;
    }
    let width = bundle.members.iter().filter_map(|member| member.kernel.width(bundle.rows)).max().unwrap();
    let (rows, new_width) = (to(bundle.rows), to(width));
    for member in &mut bundle.members {
        *member = member.over(bundle.rows, bundle.rows).expect("rows that are alike");
        let mut is_first = true;
        change_map(member.kernel.map_mut(), |size| match size {
            _ if std::mem::take(&mut is_first) => rows,
            size if size == width => new_width,
            size => size,
        });
    }
    bundle.rows = rows;
}

fn change_contract(contract: &mut Contract, to: impl FnMut(u64) -> u64) {
    let mut dims: Vec<&mut ContractDim> =
        [&mut contract.batch, &mut contract.m, &mut contract.n, &mut contract.k].into_iter().flatten().collect();
    let old: Vec<u64> = dims.iter().map(|dim| dim.size).collect();
    let new: Vec<u64> = old.iter().copied().map(to).collect();
    let strides: [fn(&mut ContractDim) -> &mut i64; 3] = [|dim| &mut dim.a, |dim| &mut dim.b, |dim| &mut dim.c];
    for stride in strides {
        let all: Vec<_> = dims.iter_mut().zip(&old).zip(&new).map(|((dim, old), new)| (*old, *new, *stride(dim))).collect();
        dims.iter_mut().zip(scaled(&all)).for_each(|(dim, by)| *stride(dim) = by);
    }
    dims.iter_mut().zip(new).for_each(|(dim, size)| dim.size = size);
}

/// Strides for new sizes: each stays the multiple that it was of all that smaller ones reach.
fn scaled(dims: &[(u64, u64, i64)]) -> Vec<i64> {
    let mut order: Vec<usize> = (0..dims.len()).filter(|d| dims[*d].2 != 0).collect();
    order.sort_by_key(|d| dims[*d].2);
    let mut strides = vec![0; dims.len()];
    let mut below = (1, 1);
    for d in order {
        let (old, new, stride) = dims[d];
        strides[d] = (stride / below.0).max(1) * below.1;
        below = (stride * old as i64, strides[d] * new as i64);
    }
    strides
}
