//! Random graphs, drawn from a list of choices so that a failing case shrinks with the list.

use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Output, Phase, State, StateId, ValueId};
use shardc_ir::kernel::ReduceKind;
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::attention::{Attention, HeadLayout, MaskKind};
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::conv::{Conv, ConvInput};
use shardc_ir::ops::elementwise::{Cast, UnaryFn};
use shardc_ir::ops::index::{Gather, OneHot};
use shardc_ir::ops::layout::{Concat, Pad, Slice};
use shardc_ir::ops::leaf::Input;
use shardc_ir::ops::norm::{LayerNorm, RmsNorm, Softmax};
use shardc_ir::ops::pool::MaxPool;
use shardc_ir::ops::random::Dropout;
use shardc_ir::ops::rotary::Rotary;
use shardc_ir::ops::window::Window;
use shardc_ir::plan::StateRole;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::sharding::Sharding;
use shardc_ir::train::StateInit;
use shardc_ir::types::{Tensor, Type};

/// Samples in the global batch of every random graph.
pub const BATCH: u64 = 8;

/// A source of decisions: the list, then zeros.
pub struct Choices {
    list: Vec<u32>,
    next: usize,
}

impl Choices {
    /// From a list.
    pub fn new(list: Vec<u32>) -> Choices {
        Choices { list, next: 0 }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let value = self.list.get(self.next).copied().unwrap_or(0) as usize;
        self.next += 1;
        value % n.max(1)
    }

    /// True one time in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of the items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A random model and its loss.
pub struct Model {
    /// The imported graph: output `y`, and `l` if it computes its own loss.
    pub graph: Graph,
    /// The loss of the spec.
    pub loss: &'static str,
}

/// Draws a model of at least eight ops on its longest path.
pub fn draw(choices: &mut Choices, dtype: DType) -> Model {
    let mut m =
        Maker { b: Builder::new("random", Phase::Imported, Mesh::single()), c: choices, dtype, parameters: 0, dropouts: 0 };
    let mut x = if m.c.one_in(3) { m.embedded_tokens() } else { m.features() };
    let mut earlier = vec![x];
    let steps = 8 + m.c.below(8);
    for _ in 0..steps {
        x = m.step(x, &earlier);
        earlier.push(x);
    }
    m.finish(x)
}

struct Maker<'a> {
    b: Builder,
    c: &'a mut Choices,
    dtype: DType,
    parameters: usize,
    dropouts: u32,
}

impl Maker<'_> {
    fn features(&mut self) -> ValueId {
        let shapes: [&[u64]; 4] = [&[BATCH, 8], &[BATCH, 4, 8], &[BATCH, 6, 4], &[BATCH, 2, 4, 4]];
        let shape = self.c.pick(&shapes);
        let ty = Type::new(self.dtype, shape);
        let x = self.b.op(Input { name: "x".into(), ty, label: false }, &[]);
        if self.c.one_in(5) { self.centered(x) } else { x }
    }

    /// An input less its mean over the whole batch: what micro-batches compute in a loop of its own.
    fn centered(&mut self, x: ValueId) -> ValueId {
        let sum = self.b.sum(x, &[0]);
        let mean = self.b.scale(sum, 1.0 / BATCH as f64);
        self.b.sub(x, mean)
    }

    fn embedded_tokens(&mut self) -> ValueId {
        let ty = Type::new(DType::I64, [BATCH, 4]);
        let tokens = self.b.op(Input { name: "tokens".into(), ty, label: false }, &[]);
        let table = self.parameter(&[12, 8]);
        let rows = self.b.op(Gather::along(0), &[table, tokens]);
        let positions = self.parameter(&[4, 8]);
        self.b.add(rows, positions)
    }

    fn parameter(&mut self, shape: &[u64]) -> ValueId {
        self.variable(shape, StateRole::Parameter)
    }

    fn variable(&mut self, shape: &[u64], role: StateRole) -> ValueId {
        let name = format!("p{}", self.parameters);
        self.parameters += 1;
        let states = &mut self.b.graph_mut().states;
        states.push(State {
            name,
            ty: Type::new(self.dtype, shape),
            sharding: Sharding::replicated(shape.len()),
            role,
            init: StateInit::Model,
            block: None,
            update: None,
            gradient: None,
        });
        let id = StateId(states.len() as u32 - 1);
        self.b.state(id)
    }

    fn shape(&self, x: ValueId) -> Vec<u64> {
        self.b.ty(x).shape.clone()
    }

    fn step(&mut self, x: ValueId, earlier: &[ValueId]) -> ValueId {
        match self.c.below(20) {
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
            _ => self.bounded(x),
        }
    }

    /// A product with a parameter along the last dimension, or with a dimension of letters kept.
    fn linear(&mut self, x: ValueId) -> ValueId {
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
        let smooth = [
            UnaryFn::GeluTanh,
            UnaryFn::Gelu,
            UnaryFn::Silu,
            UnaryFn::Relu,
            UnaryFn::Softplus,
            Unary::Tanh.into(),
            Unary::Atan.into(),
            Unary::Sigmoid.into(),
            Unary::Sin.into(),
            Unary::Cos.into(),
            Unary::Erf.into(),
            Unary::Neg.into(),
            Unary::Abs.into(),
        ];
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

    /// Self-attention with projections, over the second dimension.
    fn attention(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let [batch, tokens, width] = shape[..] else { return self.linear(x) };
        let (kv, group) = self.c.pick(&[(2u64, 1u64), (2, 2), (4, 1)]);
        let heads = kv * group;
        let layout = self.c.pick(&[HeadLayout::HeadMajor, HeadLayout::TokenMajor]);
        let mut project = |count: u64| {
            let w = self.parameter(&[width, count * 2]);
            let y = self.b.op(Contract::new("btk,kn->btn"), &[x, w]);
            let y = self.b.reshape(y, &[batch, tokens, count, 2]);
            if layout == HeadLayout::HeadMajor { self.b.transpose(y, &[0, 2, 1, 3]) } else { y }
        };
        let (mut q, mut k, v) = (project(heads), project(kv), project(kv));
        if self.c.one_in(2) {
            let angles: Vec<f64> = (0..tokens * 2).map(|i| (i as f64 * 0.9).sin()).collect();
            let table = self.b.constant(Tensor::from_f64(Type::new(self.dtype, [tokens, 2]), &angles));
            let op = Rotary { layout, transposed: false };
            q = self.b.op(op, &[q, table, table]);
            k = self.b.op(op, &[k, table, table]);
        }
        let mask = self.c.pick(&[MaskKind::Causal, MaskKind::None]);
        let op = Attention { scale: 0.7, mask, q: layout, k: layout, v: layout, o: HeadLayout::TokenMajor };
        let o = self.b.op(op, &[q, k, v]);
        self.b.reshape(o, &[batch, tokens, heads * 2])
    }

    /// Dimensions merged, with the batch or among themselves, and split again around an elementwise op or a product.
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

    /// A convolution over the dimensions after the first two, in one group, in two or one for each channel, or a transposed one.
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

    /// Ops that know positions: a one-hot of constant indices times a parameter, a table read by a constant, or each row of x
    /// read by indices of its own.
    fn indexed(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let last = shape[shape.len() - 1];
        if self.c.one_in(3) {
            let axis = shape.len() - 1;
            let indices: Vec<i64> = (0..last as i64).map(|i| (i * 5 + 1) % last as i64).collect();
            let indices = self.b.constant(Tensor::from_i64([last], &indices));
            let indices = self.b.broadcast(indices, &shape);
            return self.b.op(Gather { axis, batch: axis }, &[x, indices]);
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

    fn finish(mut self, x: ValueId) -> Model {
        let loss = self.c.pick(&[
            "mse prediction=y labels=t",
            "cross_entropy logits=y labels=t",
            "cross_entropy logits=y labels=t ignore_index=1",
            "cross_entropy logits=y labels=t ignore_index=1 class_axis=1 label_smoothing=0.1",
            "bce_with_logits logits=y labels=t",
            "output=l",
        ]);
        let mut y = self.linear(x);
        if loss.starts_with("cross_entropy") {
            y = self.linear(y);
        }
        self.b.rename(y, "y");
        self.b.graph_mut().outputs.push(Output { name: "y".into(), value: y });
        if loss == "output=l" {
            let l = self.own_loss(y);
            self.b.graph_mut().outputs.push(Output { name: "l".into(), value: l });
        }
        Model { graph: self.b.finish(), loss }
    }

    /// The root of the mean square, or one of each sample: only the second is a sum over samples.
    fn own_loss(&mut self, y: ValueId) -> ValueId {
        let ty = self.b.ty(y).clone();
        let axes: Vec<usize> = (self.c.below(2)..ty.rank()).collect();
        let terms: u64 = axes.iter().map(|axis| ty.shape[*axis]).product();
        let t = self.b.op(Input { name: "t".into(), ty, label: false }, &[]);
        let difference = self.b.sub(y, t);
        let square = self.b.mul(difference, difference);
        let sum = self.b.sum(square, &axes);
        let mean = self.b.scale(sum, 1.0 / terms as f64);
        let safe = self.b.offset(mean, 0.1);
        self.b.unary(Unary::Sqrt.into(), safe)
    }
}
