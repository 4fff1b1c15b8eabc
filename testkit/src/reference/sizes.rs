//! Strides for other sizes.

/// Strides for new sizes: each stays the multiple that it was of all that smaller ones reach.
pub(super) fn scaled(dims: &[(u64, u64, i64)]) -> Vec<i64> {
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

/// A distance that is as many steps along each dimension under the strides `new` as under `old`.
pub(super) fn moved(distance: i64, old: &[i64], new: &[i64]) -> i64 {
    let mut strides: Vec<(i64, i64)> = old.iter().copied().zip(new.iter().copied()).filter(|(old, _)| *old != 0).collect();
    strides.sort_by_key(|(old, _)| std::cmp::Reverse(*old));
    let (mut left, mut sum) = (distance, 0);
    for (old, new) in strides {
        sum += left / old * new;
        left %= old;
    }
    sum + left
}
