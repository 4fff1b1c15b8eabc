//! Layers of random graphs, as models combine them.

use super::Maker;
use shardc_ir::dtype::DType;
use shardc_ir::graph::ValueId;
use shardc_ir::ops::attention::{Attention, HeadLayout, MaskKind};
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::conv::{Conv, ConvInput};
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::norm::{LayerNorm, RmsNorm, Softmax};
use shardc_ir::ops::pool::MaxPool;
use shardc_ir::ops::random::Dropout;
use shardc_ir::ops::rotary::Rotary;
use shardc_ir::ops::window::Window;
use shardc_ir::plan::StateRole;
use shardc_ir::scalar::unary::EVERYWHERE;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};

impl Maker<'_> {
    /// A product with a parameter along the last dimension, or with a dimension of letters kept.
    pub(super) fn linear(&mut self, x: ValueId) -> ValueId {
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

    pub(super) fn activation(&mut self, x: ValueId) -> ValueId {
        // Powers of e grow beyond every tolerance.
        let is_tame = |f: &UnaryFn| f.derivative().is_some() && f.domain() == EVERYWHERE && *f != Unary::Exp.into();
        let smooth: Vec<UnaryFn> = UnaryFn::ALL.into_iter().filter(is_tame).collect();
        let f = self.c.pick(&smooth);
        self.b.unary(f, x)
    }

    /// `exp`, `log`, `sqrt`, `reciprocal`, `pow` and `div` on values in a safe range.
    pub(super) fn bounded(&mut self, x: ValueId) -> ValueId {
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

    pub(super) fn broadcast_parameter(&mut self, x: ValueId) -> ValueId {
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

    pub(super) fn residual(&mut self, x: ValueId, earlier: &[ValueId]) -> ValueId {
        let ty = self.b.ty(x).clone();
        let same: Vec<ValueId> = earlier.iter().copied().filter(|v| *self.b.ty(*v) == ty).collect();
        let other = same[self.c.below(same.len())];
        let f = self.c.pick(&[Binary::Add, Binary::Mul, Binary::Sub]);
        // A difference that is 0 everywhere has gradients of rounding only.
        let f = if other == x && f == Binary::Sub { Binary::Add } else { f };
        let y = self.b.binary(f, x, other);
        if f == Binary::Mul { self.b.unary(Unary::Tanh.into(), y) } else { y }
    }

    pub(super) fn normalised(&mut self, x: ValueId) -> ValueId {
        let width = [*self.shape(x).last().expect("a width")];
        let scale = self.parameter(&width);
        if self.c.one_in(2) {
            return self.b.op(RmsNorm { eps: 0.1, dtype: None }, &[x, scale]);
        }
        let bias = self.parameter(&width);
        self.b.op(LayerNorm { eps: 0.1, dtype: None }, &[x, scale, bias])
    }

    pub(super) fn batch_normalised(&mut self, x: ValueId) -> ValueId {
        let mut column = self.shape(x);
        column.remove(0);
        let channels = [column[0]];
        column[1..].fill(1);
        let vectors = [StateRole::Parameter, StateRole::Parameter, StateRole::Statistic, StateRole::Statistic]
            .map(|role| self.variable(&channels, role))
            .map(|vector| self.b.reshape(vector, &column));
        self.b.op(BatchNorm { eps: 0.1, momentum: 0.7 }, &[&[x], &vectors[..]].concat())
    }

    pub(super) fn dropped(&mut self, x: ValueId) -> ValueId {
        self.dropouts += 1;
        let ratio = self.c.pick(&[0.1, 0.5]);
        self.b.op(Dropout { ratio, stream: self.dropouts }, &[x])
    }

    pub(super) fn softmax(&mut self, x: ValueId) -> ValueId {
        let y = self.b.op(Softmax {}, &[x]);
        self.b.scale(y, 3.0)
    }

    /// Self-attention with projections, over the second dimension; heads of queries may share those
    /// of keys.
    pub(super) fn attention(&mut self, x: ValueId) -> ValueId {
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

    /// The mask of each query: constant truths, numbers that are added, or truths of each sample.
    pub(super) fn mask(&mut self, batch: u64, tokens: u64) -> ValueId {
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

    /// A window over all dimensions after the first two, with `kernel` taps along each.
    pub(super) fn window(&mut self, dims: usize, kernel: u64) -> Window {
        let (stride, pads) = (self.c.pick(&[1, 1, 2]), self.c.pick(&[[1, 1], [0, 1], [1, 0]]));
        let pads = if kernel == 1 { [0, 0] } else { pads };
        Window { strides: vec![stride; dims], dilations: vec![1; dims], pads: vec![pads; dims] }
    }

    /// A convolution over the dimensions after the first two, in one group, in two or one for each
    /// channel, or a transposed one.
    pub(super) fn convolved(&mut self, x: ValueId) -> ValueId {
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
    pub(super) fn pooled(&mut self, x: ValueId) -> ValueId {
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
}
