//! Ops that move elements without changing them.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::kernel::signature::row_major;
use crate::kernel::{Fill, Kernel, Move};
use crate::letters::{Letter, Letters, Role};
use crate::lower::{Launch, LowerContext, Lowered, Slot};
use crate::position::Offset;
use crate::reason;
use crate::reason::Reason;
use crate::scalar::ScalarProgram;
use crate::types::{Type, checked_elements};
use serde::{Deserialize, Serialize};

/// The same elements in row-major order under another shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reshape {
    /// The result's shape.
    pub shape: Vec<u64>,
}
named!(Reshape, "reshape");

impl Rules for Reshape {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        if checked_elements(&self.shape) != Some(x.elements()) {
            return Err(reason!("{x} has {} elements, {:?} does not", x.elements(), self.shape));
        }
        Ok(vec![Type::new(x.dtype, self.shape.clone())])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        regroup(&operands[0].shape, &results[0].shape)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (shape, g) = (cx.b.ty(cx.operands[0]).shape.clone(), cx.grad());
        let dx = cx.b.reshape(g, &shape);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, _: &LowerContext<'_>) -> Lowered {
        Lowered::Alias(0)
    }
}

/// The letters of a reshape: dimensions that cover the same elements are cut into common factors
/// where those nest, and are whole where they do not (6x4 to 4x6).
fn regroup(from: &[u64], to: &[u64]) -> Letters {
    let mut letters = Letters::new();
    letters.operands.push(vec![vec![]; from.len()]);
    letters.results.push(vec![vec![]; to.len()]);
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (start_i, start_j) = (i, j);
        let (mut m, mut n) = (1, 1);
        loop {
            if m <= n && i < from.len() && (m < n || i == start_i) {
                m *= from[i];
                i += 1;
            } else if j < to.len() && (n < m || j == start_j) {
                n *= to[j];
                j += 1;
            }
            let stuck = (i == from.len() || m > n) && (j == to.len() || n > m);
            if (m == n && (i > start_i || i == from.len()) && (j > start_j || j == to.len())) || stuck || m == 0 || n == 0 {
                break;
            }
        }
        group(&mut letters, from, start_i..i, to, start_j..j);
        if i == start_i && j == start_j {
            break;
        }
    }
    letters
}

fn group(letters: &mut Letters, from: &[u64], is: std::ops::Range<usize>, to: &[u64], js: std::ops::Range<usize>) {
    let weights = |sizes: &[u64]| -> Vec<u64> {
        let mut out = vec![1];
        for n in sizes.iter().rev() {
            out.push(out[out.len() - 1] * n);
        }
        out
    };
    let (a, b) = (weights(&from[is.clone()]), weights(&to[js.clone()]));
    let mut cuts: Vec<u64> = a.iter().chain(&b).copied().collect();
    cuts.sort();
    cuts.dedup();
    let nests = a.last() == b.last() && cuts[0] > 0 && cuts.windows(2).all(|w| w[1].is_multiple_of(w[0]));
    if !nests {
        for i in is {
            let letter = letters.letter(from[i], Role::Whole);
            letters.operands[0][i] = vec![letter];
        }
        for j in js {
            let letter = letters.letter(to[j], Role::Whole);
            letters.results[0][j] = vec![letter];
        }
        return;
    }
    let mut factors: Vec<(u64, Letter)> = cuts.windows(2).map(|w| (w[0], letters.letter(w[1] / w[0], Role::Kept))).collect();
    factors.reverse();
    let within = |low: u64, high: u64| factors.iter().filter(|(w, _)| *w >= low && *w < high).map(|(_, l)| *l).collect();
    for (k, i) in is.rev().enumerate() {
        letters.operands[0][i] = within(a[k], a[k + 1]);
    }
    for (k, j) in js.rev().enumerate() {
        letters.results[0][j] = within(b[k], b[k + 1]);
    }
}

/// Dimension `i` of the result is dimension `perm[i]` of the operand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transpose {
    /// The order.
    pub perm: Vec<usize>,
}
named!(Transpose, "transpose");

impl Rules for Transpose {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        let mut sorted = self.perm.clone();
        sorted.sort();
        if sorted != (0..x.rank()).collect::<Vec<_>>() {
            return Err(reason!("{:?} is no order of the dimensions of {x}", self.perm));
        }
        Ok(vec![Type::new(x.dtype, self.perm.iter().map(|p| x.shape[*p]).collect::<Vec<_>>())])
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        let mut letters = dimension_letters(&operands[0]);
        letters.results.push(self.perm.iter().map(|p| vec![*p]).collect());
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let mut inverse = vec![0; self.perm.len()];
        self.perm.iter().enumerate().for_each(|(i, p)| inverse[*p] = i);
        let g = cx.grad();
        let dx = cx.b.transpose(g, &inverse);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let strides = cx.operands[0].strides();
        let src_strides = self.perm.iter().map(|p| strides[*p]).collect();
        Lowered::launch(Kernel::Move(gather_move(cx, 0, src_strides)), 1, 1)
    }
}

/// One kept letter for each dimension of the operand, in order.
fn dimension_letters(operand: &Type) -> Letters {
    let mut letters = Letters::new();
    let dims = operand.shape.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect();
    letters.operands.push(dims);
    letters
}

fn gather_move(cx: &LowerContext<'_>, src_offset: i64, src_strides: Vec<i64>) -> Move {
    Move {
        dtype: cx.results[0].ty.dtype,
        shape: cx.results[0].local.clone(),
        src_offset: Offset::constant(src_offset),
        src_strides,
        dst_offset: Offset::default(),
        dst_strides: cx.results[0].strides(),
    }
}

/// Repeated along new leading dimensions and along dimensions of size 1, as numpy broadcasts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Broadcast {
    /// The result's shape.
    pub shape: Vec<u64>,
}
named!(Broadcast, "broadcast");

impl Rules for Broadcast {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        let fits = x.rank() <= self.shape.len()
            && x.shape.iter().rev().zip(self.shape.iter().rev()).all(|(m, n)| m == n || *m == 1)
            && checked_elements(&self.shape).is_some();
        if !fits {
            return Err(reason!("{x} does not broadcast to {:?}", self.shape));
        }
        Ok(vec![Type::new(x.dtype, self.shape.clone())])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let g = cx.grad();
        cx.give(0, g);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        Lowered::Map(crate::lower::Elementwise {
            compute: Some(cx.results[0].ty.dtype),
            program: ScalarProgram::identity(),
            origins: vec![],
        })
    }
}

/// Every `step`-th element of a dimension from `start` on: `result[i] = x[start + i * step]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The dimension.
    pub axis: usize,
    /// The first element.
    pub start: u64,
    /// The distance between elements; may be negative.
    pub step: i64,
    /// How many.
    pub size: u64,
}
named!(Slice, "slice");

impl Rules for Slice {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        let size = *x.shape.get(self.axis).ok_or_else(|| reason!("axis {} of {x}", self.axis))?;
        let last = i128::from(self.start) + i128::from(self.step) * (i128::from(self.size) - 1);
        let inside = self.start < size && (0..i128::from(size)).contains(&last);
        if self.step == 0 || self.size > size || (self.size > 0 && !inside) {
            return Err(reason!("elements {} + {} i, i < {} of axis {} of {x}", self.start, self.step, self.size, self.axis));
        }
        let mut shape = x.shape.clone();
        shape[self.axis] = self.size;
        Ok(vec![Type::new(x.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let aligned = self.step == 1 && self.size > 0 && self.start.is_multiple_of(self.size);
        block_letters(&[&results[0]], &operands[0], self.axis, aligned, true)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let g = cx.grad();
        let size = cx.b.ty(cx.operands[0]).shape[self.axis];
        let dx = cx.b.op(Pad { axis: self.axis, start: self.start, step: self.step, size }, &[g]);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let mut strides = cx.operands[0].strides();
        let start = local_start(self.start, cx.results[0].local[self.axis], cx.results[0].ty.shape[self.axis]);
        let offset = start * strides[self.axis];
        strides[self.axis] *= self.step;
        Lowered::launch(Kernel::Move(gather_move(cx, offset, strides)), 1, 1)
    }
}

/// The first index of a block that begins at `start`, on a rank that holds `local` of its `global`
/// elements.
fn local_start(start: u64, local: u64, global: u64) -> i64 {
    if local == global { start as i64 } else { (start * local / global) as i64 }
}

/// The letters of parts and their whole along `axis`: where all parts have equal size and begin at
/// multiples of it, the whole is (blocks whole) x (part kept); otherwise the axis is whole on both
/// sides.
fn block_letters(parts: &[&Type], whole: &Type, axis: usize, aligned: bool, parts_are_results: bool) -> Letters {
    let mut letters = Letters::new();
    let size = parts[0].shape[axis];
    let blocks = aligned && size > 0 && parts.iter().all(|p| p.shape[axis] == size) && whole.shape[axis].is_multiple_of(size);
    let other: Vec<Option<Letter>> =
        (0..whole.rank()).map(|d| (d != axis).then(|| letters.letter(whole.shape[d], Role::Kept))).collect();
    let dims =
        |along: Vec<Letter>| -> Vec<Vec<Letter>> { other.iter().map(|l| l.map_or_else(|| along.clone(), |l| vec![l])).collect() };
    let (whole_dims, part_dims): (Vec<Vec<Letter>>, Vec<Vec<Vec<Letter>>>) = if blocks {
        let outer = letters.letter(whole.shape[axis] / size, Role::Whole);
        let inner = letters.letter(size, Role::Kept);
        (dims(vec![outer, inner]), parts.iter().map(|_| dims(vec![inner])).collect())
    } else {
        let along = letters.letter(whole.shape[axis], Role::Whole);
        let own: Vec<Letter> = parts.iter().map(|p| letters.letter(p.shape[axis], Role::Whole)).collect();
        (dims(vec![along]), own.into_iter().map(|l| dims(vec![l])).collect())
    };
    if parts_are_results {
        letters.operands = vec![whole_dims];
        letters.results = part_dims;
    } else {
        letters.operands = part_dims;
        letters.results = vec![whole_dims];
    }
    letters
}

/// The inverse of a slice: zeros of `size` along `axis`, with the operand's elements at
/// `start + i * step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    /// The dimension.
    pub axis: usize,
    /// The position of the first element.
    pub start: u64,
    /// The distance between elements; may be negative.
    pub step: i64,
    /// The result's size.
    pub size: u64,
}
named!(Pad, "pad");

impl Rules for Pad {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [x] = operands else { return Err("takes one operand".into()) };
        let mut shape = x.shape.clone();
        *shape.get_mut(self.axis).ok_or_else(|| reason!("axis {} of {x}", self.axis))? = self.size;
        let result = Type::new(x.dtype, shape);
        self.slice(x.shape[self.axis]).result(std::slice::from_ref(&result))?;
        Ok(vec![result])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let size = operands[0].shape[self.axis];
        let aligned = self.step == 1 && size > 0 && self.start.is_multiple_of(size);
        block_letters(&[&operands[0]], &results[0], self.axis, aligned, false)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let g = cx.grad();
        let size = cx.b.ty(cx.operands[0]).shape[self.axis];
        let dx = cx.b.op(self.slice(size), &[g]);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let result = &cx.results[0];
        let start = local_start(self.start, cx.operands[0].local[self.axis], cx.operands[0].ty.shape[self.axis]);
        let zero = Kernel::Fill(Fill { dtype: result.ty.dtype, count: result.elements(), value: 0.0 });
        Lowered::sequence(vec![
            Launch { kernel: zero, reads: vec![], writes: vec![Slot::Result(0)] },
            place(cx, 0, self.axis, start, self.step),
        ])
    }
}

impl Pad {
    fn slice(&self, size: u64) -> Slice {
        Slice { axis: self.axis, start: self.start, step: self.step, size }
    }
}

/// Copies operand `i` into the result from `start` on along `axis`; backward steps are taken from
/// the far end.
fn place(cx: &LowerContext<'_>, i: usize, axis: usize, start: i64, step: i64) -> Launch {
    let part = &cx.operands[i].local;
    let (mut from, mut to) = (row_major(part), cx.results[0].strides());
    let last = part[axis] as i64 - 1;
    let (first, source) = if step < 0 { (start + step * last, last * from[axis]) } else { (start, 0) };
    let offset = first * to[axis];
    to[axis] *= step.abs();
    from[axis] *= step.signum();
    let kernel = Kernel::Move(Move {
        dtype: cx.results[0].ty.dtype,
        shape: part.clone(),
        src_offset: Offset::constant(source),
        src_strides: from,
        dst_offset: Offset::constant(offset),
        dst_strides: to,
    });
    Launch { kernel, reads: vec![Slot::Operand(i)], writes: vec![Slot::Result(0)] }
}

/// The operands one after another along `axis`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Concat {
    /// The dimension.
    pub axis: usize,
}
named!(Concat, "concat");

impl Rules for Concat {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [first, rest @ ..] = operands else { return Err("takes at least one operand".into()) };
        let mut shape = first.shape.clone();
        let axis = self.axis;
        if axis >= first.rank() {
            return Err(reason!("axis {axis} of {first}"));
        }
        for ty in rest {
            let same = ty.dtype == first.dtype
                && ty.rank() == first.rank()
                && (0..ty.rank()).all(|d| d == axis || ty.shape[d] == shape[d]);
            if !same {
                return Err(reason!("{first} and {ty} do not join along axis {axis}"));
            }
            shape[axis] = shape[axis].checked_add(ty.shape[axis]).ok_or("the result is too large")?;
        }
        Ok(vec![Type::new(first.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        block_letters(&operands.iter().collect::<Vec<_>>(), &results[0], self.axis, true, false)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Together
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let g = cx.grad();
        let mut start = 0;
        for i in 0..cx.operands.len() {
            let size = cx.b.ty(cx.operands[i]).shape[self.axis];
            if cx.needs[i] {
                let part = cx.b.op(Slice { axis: self.axis, start, step: 1, size }, &[g]);
                cx.give(i, part);
            }
            start += size;
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let mut start = 0;
        let mut launches = vec![];
        for (i, operand) in cx.operands.iter().enumerate() {
            launches.push(place(cx, i, self.axis, start, 1));
            start += operand.local[self.axis] as i64;
        }
        Lowered::sequence(launches)
    }
}
