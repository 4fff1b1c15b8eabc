//! The positions of a convolution's results along each dimension, and what they see of the other
//! tensor, for outputs and for inputs alike.

use crate::text::{digit, over, plus, times};
use shardc_ir::kernel::{Conv, ConvResult, WindowDim};

/// Residues whose results are launched apart, at most.
const MOST_CLASSES: u64 = 8;

/// Positions along one dimension: number `i` is `first + i * every` in the result's plane, and sees
/// through tap `t`, which is `first_tap + t * tap_step` of the kernel, the position
/// `(i * step + t * shift + start) / divisor` of the source, where that is whole and below `limit`.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub count: u64,
    pub first: u64,
    pub every: u64,
    /// Positions of the result's plane.
    pub result: u64,
    pub taps: u64,
    pub first_tap: u64,
    pub tap_step: u64,
    /// Taps of the kernel.
    pub kernel: u64,
    pub step: u64,
    pub shift: i64,
    pub start: i64,
    pub divisor: u64,
    pub limit: u64,
}

impl Axis {
    fn output(dim: &WindowDim) -> Axis {
        Axis {
            count: dim.output,
            first: 0,
            every: 1,
            result: dim.output,
            taps: dim.kernel,
            first_tap: 0,
            tap_step: 1,
            kernel: dim.kernel,
            step: dim.stride,
            shift: dim.dilation as i64,
            start: -dim.pad,
            divisor: 1,
            limit: dim.input,
        }
    }

    /// All inputs: those that a tap misses are found by the remainder.
    fn inputs(dim: &WindowDim) -> Axis {
        Axis {
            count: dim.input,
            result: dim.input,
            step: 1,
            shift: -(dim.dilation as i64),
            start: dim.pad,
            divisor: dim.stride,
            limit: dim.output,
            ..Axis::output(dim)
        }
    }

    /// The inputs with a remainder by the stride: they are hit by every so many taps, and always.
    fn residue(dim: &WindowDim, residue: u64) -> Axis {
        let stride = dim.stride as i64;
        let hits = |tap: &u64| (residue as i64 + dim.pad - (tap * dim.dilation) as i64) % stride == 0;
        let tap_step = dim.stride / common_divisor(dim.stride, dim.dilation);
        let hit = (0..dim.kernel.min(tap_step)).find(hits);
        let first_tap = hit.unwrap_or(0);
        let taps = hit.map_or(0, |first| (dim.kernel - first).div_ceil(tap_step));
        Axis {
            count: (dim.input - residue).div_ceil(dim.stride),
            first: residue,
            every: dim.stride,
            result: dim.input,
            taps,
            first_tap,
            tap_step,
            kernel: dim.kernel,
            step: 1,
            shift: -((tap_step * dim.dilation / dim.stride) as i64),
            start: (residue as i64 + dim.pad - (first_tap * dim.dilation) as i64).div_euclid(stride),
            divisor: 1,
            limit: dim.output,
        }
    }

    /// Whether every position sees itself alone.
    pub fn is_pointwise(&self) -> bool {
        let is_whole = self.count == self.limit && self.every == 1 && self.divisor == 1;
        is_whole && self.taps == 1 && self.step == 1 && self.start == 0
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The results of a convolution in classes that are launched one after another: each has its axes.
pub fn classes(conv: &Conv) -> Vec<Vec<Axis>> {
    if conv.result != ConvResult::Input {
        return vec![conv.window.iter().map(Axis::output).collect()];
    }
    let residues = |dim: &WindowDim| dim.stride.min(dim.input);
    if conv.window.iter().try_fold(1u64, |all, dim| all.checked_mul(residues(dim))).is_none_or(|all| all > MOST_CLASSES) {
        return vec![conv.window.iter().map(Axis::inputs).collect()];
    }
    let mut classes = vec![vec![]];
    for dim in &conv.window {
        let with = |class: &Vec<Axis>| {
            let class = class.clone();
            (0..residues(dim)).map(move |residue| [class.clone(), vec![Axis::residue(dim, residue)]].concat())
        };
        classes = classes.iter().flat_map(with).collect();
    }
    classes
}

/// The product of a number of each axis.
pub fn all(axes: &[Axis], number: fn(&Axis) -> u64) -> u64 {
    axes.iter().map(number).product()
}

/// For each axis how far apart neighbours along it are in a plane that has `number` of each.
pub fn strides(axes: &[Axis], number: fn(&Axis) -> u64) -> Vec<u64> {
    (1..=axes.len()).map(|d| all(&axes[d..], number)).collect()
}

/// Lines that find the indices `name0`, `name1`... of `at`, which counts `number` of each axis.
pub fn indices(axes: &[Axis], number: fn(&Axis) -> u64, at: &str, name: &str, kind: &str) -> Vec<String> {
    let strides = strides(axes, number);
    let index = |(d, axis)| match d {
        0 if number(axis) > 1 => format!("{at}{}", over(strides[0])),
        _ => digit(at, strides[d], number(axis)),
    };
    axes.iter().enumerate().map(|(d, axis)| format!("{kind} {name}{d} = {};", index((d, axis)))).collect()
}

/// The sum of the `terms` that are not 0.
pub fn sum(terms: impl Iterator<Item = String>) -> String {
    let terms: Vec<String> = terms.filter(|term| term != "0").collect();
    if terms.is_empty() { "0".into() } else { terms.join(" + ").replace("+ -", "- ") }
}

/// `name * factor`, where the index `name` has `size` values.
pub fn term(name: &str, size: u64, factor: i64) -> String {
    match factor {
        _ if size == 1 => "0".into(),
        -1 => format!("-{name}"),
        factor => format!("{name}{}", times(factor)),
    }
}

/// Lines that find the positions `s0`, `s1`... of the source that the positions `p0`... see through
/// the taps `k0`....
pub fn seen(axes: &[Axis], kind: &str) -> Vec<String> {
    let line = |(d, axis): (usize, &Axis)| {
        let position = term(&format!("p{d}"), axis.count, axis.step as i64);
        let tap = term(&format!("k{d}"), axis.taps, axis.shift);
        let start = plus(axis.start.into());
        let terms = sum([position, tap].into_iter());
        if axis.divisor == 1 {
            return format!("{kind} s{d} = {terms}{start};");
        }
        format!("{kind} r{d} = {terms}{start}, s{d} = r{d} / {};", axis.divisor)
    };
    axes.iter().enumerate().map(line).collect()
}

/// What holds where the source has the `position` along each dimension; beside a divisor `r0`,
/// `r1`... are what was divided.
pub fn is_there(axes: &[Axis], position: impl Fn(usize) -> String) -> Vec<String> {
    let mut tests = vec![];
    for (d, axis) in axes.iter().enumerate() {
        let reach = |sign: i64| {
            let tap = axis.shift * (axis.taps as i64 - 1);
            let position = if sign > 0 { (axis.step * (axis.count - 1)) as i64 } else { 0 };
            axis.start + position + if tap * sign > 0 { tap } else { 0 }
        };
        if reach(-1) < 0 {
            tests.push(if axis.divisor == 1 { format!("{} >= 0", position(d)) } else { format!("r{d} >= 0") });
        }
        if axis.divisor > 1 {
            tests.push(format!("r{d} % {} == 0", axis.divisor));
        }
        if reach(1) / axis.divisor as i64 >= axis.limit as i64 {
            tests.push(format!("{} < {}", position(d), axis.limit));
        }
    }
    tests
}

/// The name of the position that [`seen`] finds along a dimension.
pub fn position(d: usize) -> String {
    format!("s{d}")
}

/// The place in the source's plane.
pub fn source(axes: &[Axis]) -> String {
    let strides = strides(axes, |axis| axis.limit);
    sum(axes.iter().enumerate().map(|(d, axis)| term(&format!("s{d}"), axis.limit, strides[d] as i64)))
}

/// The place in the result's plane of the positions `p0`, `p1`....
pub fn place(axes: &[Axis]) -> String {
    let strides = strides(axes, |axis| axis.result);
    let terms =
        sum(axes.iter().enumerate().map(|(d, axis)| term(&format!("p{d}"), axis.count, (axis.every * strides[d]) as i64)));
    let first: u64 = axes.iter().zip(&strides).map(|(axis, stride)| axis.first * stride).sum();
    terms + &plus(first.into())
}

/// The number of the taps `k0`, `k1`... in the kernel.
pub fn tap(axes: &[Axis]) -> String {
    let strides = strides(axes, |axis| axis.kernel);
    let terms =
        sum(axes.iter().enumerate().map(|(d, axis)| term(&format!("k{d}"), axis.taps, (axis.tap_step * strides[d]) as i64)));
    let first: u64 = axes.iter().zip(&strides).map(|(axis, stride)| axis.first_tap * stride).sum();
    terms + &plus(first.into())
}
