//! The steps of random graphs: every op family, by itself and as models combine them.

use super::Maker;
use shardc_ir::dtype::DType;
use shardc_ir::graph::ValueId;
use shardc_ir::ops::attention::{Attention, HeadLayout, MaskKind};
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::conv::{Conv, ConvInput};
use shardc_ir::ops::elementwise::{Cast, Detach, UnaryFn};
use shardc_ir::ops::index::{Gather, OneHot, Range, ScatterAdd};
use shardc_ir::ops::layout::{Concat, Pad, Slice};
use shardc_ir::ops::norm::{LayerNorm, RmsNorm, Softmax};
use shardc_ir::ops::pool::MaxPool;
use shardc_ir::ops::random::Dropout;
use shardc_ir::ops::rotary::Rotary;
use shardc_ir::ops::window::Window;
use shardc_ir::plan::StateRole;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::unary::EVERYWHERE;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};

/// Kinds of steps.
const STEPS: usize = 29;

impl Maker<'_> {
    pub fn step(&mut self, x: ValueId, earlier: &[ValueId]) -> ValueId {
        match self.c.below(STEPS) {
            0 | 1 => self.linear(x),
            2 => self.activation(x),
            3 => self.broadcast_parameter(x),
            4 => self.residual(x, earlier),
            5 => self.normalised(x),
            6 => self.softmax(x),
            7 => self.attention(x),
            8 => self.merged(x),
            9 => self.transposed(x),
            10 => self.sliced(x),
            11 => self.concatenated(x),
            12 => self.reduced(x),
            13 => self.compared(x),
            14 => self.indexed(x),
            15 => self.batch_normalised(x),
            16 => self.convolved(x),
            17 => self.pooled(x),
            18 => self.dropped(x),
            19 => self.bounded(x),
            20 => self.stepped(x),
            21 => self.decided(x),
            22 => self.scattered(x),
            23 => self.fused(x),
            24 => self.matched(x),
            25 => self.detached(x),
            26 => self.counted(x),
            27 => self.picked(x),
            _ => self.remainder(x),
        }
    }

    /// A product with a parameter along the last dimension, or with a dimension of letters kept.
    pub fn linear(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let k = shape[shape.len() - 1];
        let n = self.c.pick(&[4, 8, 6]);
        let letters: String = "abcdefgh".chars().take(shape.len() - 1).collect();
        let transposed = self.c.one_in(2);
        let w = self.parameter(if transposed { [n, k] } else { [k, n] }.as_slice());
        let w_term = if transposed { "nk" } else { "kn" };
        let y = self.b.op(Contract::new(format!("{letters}k,{w_term}->{letters}n")), &[x, w]);
        let y = self.b.scale(y, 1.0 / (k as f64).sqrt());
        if self.c.one_in(2) {
            let bias = self.parameter(&[n]);
            return self.b.add(y, bias);
        }
        y
    }

    fn activation(&mut self, x: ValueId) -> ValueId {
        // Powers of e grow beyond every tolerance.
        let is_tame = |f: &UnaryFn| f.derivative().is_some() && f.domain() == EVERYWHERE && *f != Unary::Exp.into();
        let smooth: Vec<UnaryFn> = UnaryFn::ALL.into_iter().filter(is_tame).collect();
        let f = self.c.pick(&smooth);
        self.b.unary(f, x)
    }

    /// `exp`, `log`, `sqrt`, `reciprocal`, `pow` and `div` on values in a safe range.
    fn bounded(&mut self, x: ValueId) -> ValueId {
        let s = self.b.unary(Unary::Sigmoid.into(), x);
        let s = self.b.offset(s, 0.5);
        match self.c.below(6) {
            0 => self.b.unary(Unary::Exp.into(), s),
            1 => self.b.unary(Unary::Log.into(), s),
            2 => self.b.unary(Unary::Sqrt.into(), s),
            3 => self.b.unary(Unary::Reciprocal.into(), s),
            4 => {
                let exponent = self.b.number(self.dtype, 1.7);
                self.b.binary(Binary::Pow, s, exponent)
            }
            _ => self.b.div(x, s),
        }
    }

    fn broadcast_parameter(&mut self, x: ValueId) -> ValueId {
        let mut shape = self.shape(x);
        shape.remove(0);
        for size in &mut shape {
            if self.c.one_in(3) {
                *size = 1;
            }
        }
        let p = self.parameter(&shape);
        let f = self.c.pick(&[Binary::Add, Binary::Mul, Binary::Sub, Binary::Max, Binary::Min]);
        if self.c.one_in(4) { self.b.binary(f, p, x) } else { self.b.binary(f, x, p) }
    }

    fn residual(&mut self, x: ValueId, earlier: &[ValueId]) -> ValueId {
        let ty = self.b.ty(x).clone();
        let same: Vec<ValueId> = earlier.iter().copied().filter(|v| *self.b.ty(*v) == ty).collect();
        let other = same[self.c.below(same.len())];
        let f = self.c.pick(&[Binary::Add, Binary::Mul, Binary::Sub]);
        // What is 0 everywhere has gradients of rounding only.
        let f = if other == x && f == Binary::Sub { Binary::Add } else { f };
        let y = self.b.binary(f, x, other);
        if f == Binary::Mul { self.b.unary(Unary::Tanh.into(), y) } else { y }
    }

    fn normalised(&mut self, x: ValueId) -> ValueId {
        let width = [*self.shape(x).last().expect("a width")];
        let scale = self.parameter(&width);
        if self.c.one_in(2) {
            return self.b.op(RmsNorm { eps: 0.1 }, &[x, scale]);
        }
        let bias = self.parameter(&width);
        self.b.op(LayerNorm { eps: 0.1 }, &[x, scale, bias])
    }

    fn batch_normalised(&mut self, x: ValueId) -> ValueId {
        let mut column = self.shape(x);
        column.remove(0);
        let channels = [column[0]];
        column[1..].fill(1);
        let vectors = [StateRole::Parameter, StateRole::Parameter, StateRole::Statistic, StateRole::Statistic]
            .map(|role| self.variable(&channels, role))
            .map(|vector| self.b.reshape(vector, &column));
        self.b.op(BatchNorm { eps: 0.1, momentum: 0.7 }, &[&[x], &vectors[..]].concat())
    }

    fn dropped(&mut self, x: ValueId) -> ValueId {
        self.dropouts += 1;
        let ratio = self.c.pick(&[0.1, 0.5]);
        self.b.op(Dropout { ratio, stream: self.dropouts }, &[x])
    }

    fn softmax(&mut self, x: ValueId) -> ValueId {
        let y = self.b.op(Softmax {}, &[x]);
        self.b.scale(y, 3.0)
    }

    /// Self-attention with projections, over the second dimension; heads of queries may share those
    /// of keys.
    fn attention(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let [batch, tokens, width] = shape[..] else { return self.linear(x) };
        let (kv, group) = self.c.pick(&[(2u64, 1u64), (2, 2), (4, 1), (3, 2), (1, 4)]);
        let heads = kv * group;
        let mut project = |count: u64| {
            let layout = self.c.pick(&[HeadLayout::HeadMajor, HeadLayout::TokenMajor]);
            let w = self.parameter(&[width, count * 2]);
            let y = self.b.op(Contract::new("btk,kn->btn"), &[x, w]);
            let y = self.b.reshape(y, &[batch, tokens, count, 2]);
            (if layout == HeadLayout::HeadMajor { self.b.transpose(y, &[0, 2, 1, 3]) } else { y }, layout)
        };
        let ((mut q, of_q), (mut k, of_k), (v, of_v)) = (project(heads), project(kv), project(kv));
        if self.c.one_in(2) {
            let angles: Vec<f64> = (0..tokens * 2).map(|i| (i as f64 * 0.9).sin()).collect();
            let table = self.b.constant(Tensor::from_f64(Type::new(self.dtype, [tokens, 2]), &angles));
            let transposed = self.c.one_in(4);
            q = self.b.op(Rotary { layout: of_q, transposed }, &[q, table, table]);
            k = self.b.op(Rotary { layout: of_k, transposed }, &[k, table, table]);
        }
        let mask = self.c.pick(&[MaskKind::Causal, MaskKind::None, MaskKind::Operand]);
        let mut operands = vec![q, k, v];
        if mask == MaskKind::Operand {
            operands.push(self.mask(batch, tokens));
        }
        let o = self.c.pick(&[HeadLayout::TokenMajor, HeadLayout::HeadMajor]);
        let y = self.b.op(Attention { scale: 0.7, mask, q: of_q, k: of_k, v: of_v, o }, &operands);
        let y = if o == HeadLayout::HeadMajor { self.b.transpose(y, &[0, 2, 1, 3]) } else { y };
        self.b.reshape(y, &[batch, tokens, heads * 2])
    }

    /// What each query sees: constant truths, numbers that are added, or truths of each sample.
    fn mask(&mut self, batch: u64, tokens: u64) -> ValueId {
        let pairs = [tokens, tokens];
        let near = |i: u64| (i / tokens).abs_diff(i % tokens) < 2;
        match self.c.below(3) {
            0 => {
                let bits: Vec<f64> = (0..tokens * tokens).map(|i| f64::from(u8::from(near(i)))).collect();
                self.b.constant(Tensor::from_f64(Type::new(DType::Bool, pairs), &bits))
            }
            1 => {
                let distances: Vec<f64> =
                    (0..tokens * tokens).map(|i| -((i / tokens).abs_diff(i % tokens) as f64) * 0.3).collect();
                self.b.constant(Tensor::from_f64(Type::new(self.dtype, pairs), &distances))
            }
            _ => {
                let seen = self.input(Type::new(DType::Bool, [batch, tokens]));
                let first: Vec<f64> = (0..tokens).map(|i| f64::from(u8::from(i == 0))).collect();
                let first = self.b.constant(Tensor::from_f64(Type::new(DType::Bool, [tokens]), &first));
                let seen = self.b.binary(Binary::Or, seen, first);
                self.b.reshape(seen, &[batch, 1, 1, tokens])
            }
        }
    }

    /// Dimensions merged, with the batch or among themselves, and split again around an elementwise
    /// op or a product.
    fn merged(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        if shape.len() < 3 {
            let last = shape[shape.len() - 1];
            if !last.is_multiple_of(2) {
                return self.activation(x);
            }
            let mut split = shape.clone();
            split.pop();
            split.extend([2, last / 2]);
            return self.b.reshape(x, &split);
        }
        let at = self.c.below(shape.len() - 1);
        let mut flat = shape.clone();
        let inner = flat.remove(at + 1);
        flat[at] *= inner;
        let y = self.b.reshape(x, &flat);
        let y = self.activation(y);
        if at == 0 || self.c.one_in(2) {
            let y = if at + 2 == shape.len() { y } else { self.linear(y) };
            let mut back = shape.clone();
            let last = back.len() - 1;
            back[last] = if at + 1 == last { back[last] } else { self.shape(y)[last - 1] };
            return self.b.reshape(y, &back);
        }
        y
    }

    fn transposed(&mut self, x: ValueId) -> ValueId {
        let rank = self.shape(x).len();
        if rank < 3 {
            return self.linear(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(1 + self.c.below(rank - 1), rank - 1);
        self.b.transpose(x, &perm)
    }

    fn sliced(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let axis = shape.len() - 1;
        let n = shape[axis];
        if n < 4 {
            return self.linear(x);
        }
        let (start, step, size) = self.c.pick(&[(0, 1, n / 2), (n / 2, 1, n / 2), (1, 1, n - 2), (n - 1, -1, n), (0, 2, n / 2)]);
        let y = self.b.op(Slice { axis, start, step, size }, &[x]);
        if self.c.one_in(3) { self.b.op(Pad { axis, start: 1, step: 1, size: size + 2 }, &[y]) } else { y }
    }

    fn concatenated(&mut self, x: ValueId) -> ValueId {
        let axis = self.shape(x).len() - 1;
        if self.shape(x)[axis] > 8 {
            return self.linear(x);
        }
        let y = self.activation(x);
        self.b.op(Concat { axis }, &[x, y])
    }

    /// A reduction that is broadcast back.
    fn reduced(&mut self, x: ValueId) -> ValueId {
        let mut shape = self.shape(x);
        if shape.len() < 2 {
            return x;
        }
        let axis = 1 + self.c.below(shape.len() - 1);
        if shape[axis] == 1 {
            return self.activation(x);
        }
        let kind = self.c.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
        let y = self.b.reduce(kind, x, &[axis]);
        let y = if kind == ReduceKind::Sum { self.b.scale(y, 1.0 / shape[axis] as f64) } else { y };
        shape[axis] = 1;
        let y = self.b.reshape(y, &shape);
        self.b.sub(x, y)
    }

    /// A window over all dimensions after the first two, with `kernel` taps along each.
    fn window(&mut self, dims: usize, kernel: u64) -> Window {
        let (stride, pads) = (self.c.pick(&[1, 1, 2]), self.c.pick(&[[1, 1], [0, 1], [1, 0]]));
        let pads = if kernel == 1 { [0, 0] } else { pads };
        Window { strides: vec![stride; dims], dilations: vec![1; dims], pads: vec![pads; dims] }
    }

    /// A convolution over the dimensions after the first two, in one group, in two or one for each
    /// channel, or a transposed one.
    fn convolved(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        if shape.len() < 3 {
            return self.linear(x);
        }
        let (dims, channels, kernel) = (shape.len() - 2, shape[1], self.c.pick(&[3, 1, 2]));
        let groups = if channels.is_multiple_of(2) { self.c.pick(&[1, 1, 2, channels]) } else { 1 };
        let window = self.window(dims, kernel);
        let taps = vec![kernel; dims];
        let y = if self.c.one_in(4) {
            let w = self.parameter(&[&[channels, 2], &taps[..]].concat());
            let sizes: Vec<u64> = (0..dims)
                .map(|d| {
                    ((shape[d + 2] - 1) * window.strides[d] + kernel)
                        .saturating_add_signed(-window.pads[d][0] - window.pads[d][1])
                })
                .collect();
            if sizes.contains(&0) {
                return self.linear(x);
            }
            self.b.op(ConvInput { of: Conv { window, groups }, sizes }, &[x, w])
        } else {
            let outputs = groups * self.c.pick(&[1, 2, 4]);
            let w = self.parameter(&[&[outputs, channels / groups], &taps[..]].concat());
            if window.over(&shape[2..], &taps).is_err() {
                return self.linear(x);
            }
            self.b.op(Conv { window, groups }, &[x, w])
        };
        let y = self.b.scale(y, 0.5);
        let mut bias = vec![1; dims + 1];
        bias[0] = self.shape(y)[1];
        let bias = self.parameter(&bias);
        self.b.add(y, bias)
    }

    /// The largest element under a window, or the mean, as a convolution of each plane.
    fn pooled(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let kernel = vec![2; shape.len().saturating_sub(2)];
        let window = self.window(kernel.len(), 2);
        if window.over(&shape[2.min(shape.len())..], &kernel).is_err() {
            return self.linear(x);
        }
        if self.c.one_in(2) {
            return self.b.op(MaxPool { kernel, window }, &[x]);
        }
        let planes = self.b.reshape(x, &[&[shape[0] * shape[1], 1], &shape[2..]].concat());
        let mean = self.b.number(self.dtype, 0.5f64.powi(kernel.len() as i32));
        let mean = self.b.broadcast(mean, &[&[1, 1], &kernel[..]].concat());
        let y = self.b.op(Conv { window, groups: 1 }, &[planes, mean]);
        let outputs = self.shape(y)[2..].to_vec();
        self.b.reshape(y, &[&shape[..2], &outputs[..]].concat())
    }

    fn compared(&mut self, x: ValueId) -> ValueId {
        let zero = self.b.number(self.dtype, 0.1);
        let f = self.c.pick(&[Binary::Lt, Binary::Le]);
        let condition = self.b.binary(f, x, zero);
        let other = self.b.scale(x, 0.3);
        if self.c.one_in(2) {
            let number = self.b.op(Cast { dtype: self.dtype }, &[condition]);
            return self.b.add(other, number);
        }
        self.b.select(condition, other, x)
    }

    /// Ops that know positions: a one-hot of constant indices times a parameter, a table read by a
    /// constant, or each row of x read by indices of its own.
    fn indexed(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let last = shape[shape.len() - 1];
        if self.c.one_in(3) {
            let axis = shape.len() - 1;
            let indices: Vec<i64> = (0..last as i64).map(|i| (i * 5 + 1) % last as i64).collect();
            let indices = self.b.constant(Tensor::from_i64([last], &indices));
            let indices = self.b.broadcast(indices, &shape);
            return self.b.op(Gather::batched(axis, axis), &[x, indices]);
        }
        let indices: Vec<i64> = (0..last as i64).map(|i| (i * 5 + 1) % 6).collect();
        if self.c.one_in(2) {
            let indices = self.b.constant(Tensor::from_i64([last], &indices));
            let table = self.parameter(&[6]);
            let row = self.b.op(Gather::along(0), &[table, indices]);
            return self.b.add(x, row);
        }
        let column = self.b.constant(Tensor::from_i64([last, 1], &indices));
        let hot = self.b.op(OneHot { size: 6 }, &[column]);
        let hot = self.b.cast(hot, self.dtype);
        let table = self.parameter(&[6]);
        let row = self.b.op(Contract::new("nv,v->n"), &[hot, table]);
        self.b.mul(x, row)
    }

    /// Functions that jump: whole numbers near the value, signs, and what is not a number.
    fn stepped(&mut self, x: ValueId) -> ValueId {
        let scaled = self.b.scale(x, 3.7);
        let f = self.c.pick(&[Unary::Floor, Unary::Ceil, Unary::Round, Unary::Sign]);
        let steps = self.b.unary(f.into(), scaled);
        let near = self.b.scale(steps, 0.1);
        if self.c.one_in(3) {
            let odd = self.b.unary(Unary::IsNan.into(), near);
            return self.b.select(odd, near, x);
        }
        self.b.add(x, near)
    }

    /// One of two values, by truths of several kinds.
    fn decided(&mut self, x: ValueId) -> ValueId {
        let (low, high) = (self.b.number(self.dtype, -0.2), self.b.number(self.dtype, 0.3));
        let above = self.b.binary(Binary::Lt, low, x);
        let below = self.b.binary(Binary::Le, x, high);
        let f = self.c.pick(&[Binary::And, Binary::Or, Binary::Xor, Binary::Eq]);
        let truth = if f == Binary::Eq {
            let [above, below] = [above, below].map(|truth| self.b.cast(truth, DType::I64));
            self.b.binary(f, above, below)
        } else {
            self.b.binary(f, above, below)
        };
        let truth = if self.c.one_in(3) { self.b.unary(Unary::Not.into(), truth) } else { truth };
        let other = self.b.unary(Unary::Tanh.into(), x);
        self.b.select(truth, x, other)
    }

    /// Columns added up in places of others, by constant indices.
    fn scattered(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let axis = shape.len() - 1;
        let (n, size) = (shape[axis], self.c.pick(&[4, 6, 8]));
        let indices: Vec<i64> = (0..n as i64).map(|i| (i * 3 + 1) % size as i64).collect();
        if self.c.one_in(3) {
            let indices = self.b.constant(Tensor::from_i64([n], &indices));
            let indices = self.b.broadcast(indices, &shape);
            return self.b.op(ScatterAdd { axis, batch: axis, size }, &[indices, x]);
        }
        let indices = self.b.constant(Tensor::from_i64([n], &indices));
        self.b.op(ScatterAdd { axis, batch: 0, size }, &[indices, x])
    }

    /// One product whose result is cut into parts of different sizes, as a fused projection is.
    fn fused(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let axis = shape.len() - 1;
        let sizes = self.c.pick(&[[8u64, 4, 4], [12, 6, 6], [4, 8, 8]]);
        let (total, k) = (sizes.iter().sum::<u64>(), shape[axis]);
        let letters: String = "abcdefgh".chars().take(axis).collect();
        let stored = self.c.one_in(2);
        let w = self.parameter(if stored { [total, k] } else { [k, total] }.as_slice());
        self.note_fused(w, usize::from(!stored), &sizes);
        let y = self.b.op(Contract::new(format!("{letters}k,{}->{letters}n", if stored { "nk" } else { "kn" })), &[x, w]);
        let mut y = self.b.scale(y, 1.0 / (k as f64).sqrt());
        if self.c.one_in(2) {
            let bias = self.parameter(&[total]);
            self.note_fused(bias, 0, &sizes);
            y = self.b.add(y, bias);
        }
        if self.c.one_in(4) {
            y = self.activation(y);
        }
        let mut start = 0;
        let parts = sizes.map(|size| {
            start += size;
            self.b.op(Slice { axis, start: start - size, step: 1, size }, &[y])
        });
        let gate = self.b.mul(parts[1], parts[2]);
        let gate = self.b.unary(Unary::Tanh.into(), gate);
        self.b.op(Concat { axis }, &[parts[0], gate])
    }

    fn note_fused(&mut self, parameter: ValueId, dim: usize, sizes: &[u64]) {
        self.fused.push((self.b.graph().value(parameter).name.clone(), dim, sizes.to_vec()));
    }

    /// Every row against every row of a sample, and a mean of them by the weights.
    fn matched(&mut self, x: ValueId) -> ValueId {
        if self.shape(x).len() != 3 {
            return self.residual(x, &[x]);
        }
        let scores = self.b.op(Contract::new("btk,bsk->bts"), &[x, x]);
        let scores = self.b.unary(Unary::Tanh.into(), scores);
        let y = self.b.op(Contract::new("bts,bsk->btk"), &[scores, x]);
        self.b.scale(y, 0.3)
    }

    /// A value through which nothing flows back.
    fn detached(&mut self, x: ValueId) -> ValueId {
        let y = self.activation(x);
        let still = self.b.op(Detach {}, &[y]);
        self.b.sub(x, still)
    }

    /// Positions as numbers.
    fn counted(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let size = shape[shape.len() - 1];
        let positions = self.b.op(Range { size }, &[]);
        let positions = self.b.cast(positions, self.dtype);
        let waves = self.b.scale(positions, 0.7);
        let waves = self.b.unary(Unary::Sin.into(), waves);
        self.b.add(x, waves)
    }

    /// Elements along a dimension, picked for each sample by an input, or rows of one table.
    fn picked(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        if shape.len() < 3 || self.c.one_in(3) {
            let ids = self.input(Type::new(DType::I64, [shape[0]]));
            let table = self.parameter(&[6, shape[shape.len() - 1]]);
            let untrained = self.c.one_in(2).then_some(1);
            let rows = self.b.op(Gather { untrained, ..Gather::along(0) }, &[table, ids]);
            let mut column = vec![1; shape.len()];
            (column[0], column[shape.len() - 1]) = (shape[0], shape[shape.len() - 1]);
            let rows = self.b.reshape(rows, &column);
            return self.b.mul(x, rows);
        }
        let count = self.c.pick(&[2, 4]);
        let ids = self.input(Type::new(DType::I64, [shape[0], count]));
        self.b.op(Gather::batched(1, 1), &[x, ids])
    }

    fn remainder(&mut self, x: ValueId) -> ValueId {
        let s = self.b.unary(Unary::Sigmoid.into(), x);
        let wide = self.b.scale(s, 2.3);
        let one = self.b.number(self.dtype, 1.0);
        let rest = self.b.binary(Binary::Mod, wide, one);
        self.b.add(x, rest)
    }
}
