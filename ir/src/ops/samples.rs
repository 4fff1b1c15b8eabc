//! Instances of every op, with operands on which it is defined: what the table of ops, finite
//! differences and kernel tests run over.

use super::attention::{Attention, AttentionGrad, HeadLayout, MaskKind};
use super::batch_norm::BatchNorm;
use super::comm::{Accumulate, AllGather, AllReduce, AllToAll, ReduceScatter, Reshard, ShardSlice, Transfer};
use super::contract::Contract;
use super::conv::{Conv, ConvInput, ConvWeight};
use super::elementwise::{BinaryOp, Cast, Detach, RoundTo, UnaryFn, UnaryOp, Where};
use super::flat::{FlatGather, FlatScatter, FlatSlice};
use super::index::{Gather, OneHot, Range, ScatterAdd};
use super::layout::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use super::leaf::{Constant, Host, Input, StateRead};
use super::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, Softmax, SoftmaxGrad};
use super::pool::{MaxPool, MaxPoolGrad};
use super::random::{Dropout, KeepMask};
use super::reduce::{Reduce, SquareSum};
use super::rotary::Rotary;
use super::update::{Adam, Sgd};
use super::window::Window;
use super::{IntoOp, Op};
use crate::builder::Builder;
use crate::dtype::DType;
use crate::graph::{Phase, State, StateId, ValueId};
use crate::mesh::{AxisId, Mesh};
use crate::plan::{HostScalar, StateRole};
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, Rounding, Unary};
use crate::sharding::Split;
use crate::train::StateInit;
use crate::types::{Tensor, Type};

/// An op and what it may be applied to.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Argument>,
}

/// An operand of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    /// Its type; floats are f64 unless the op is about element types.
    pub ty: Type,
    /// The least value.
    pub low: f64,
    /// No value reaches this.
    pub high: f64,
    /// Whether the op's gradient rule leaves it out though the result moves with it.
    pub fixed: bool,
}

impl Sample {
    /// The mesh that the axes of communication ops belong to.
    pub fn mesh() -> Mesh {
        Mesh::new([("tp".to_string(), 2)], 1)
    }

    /// The op as the one node of a graph whose inputs are the operands; gives the operands and
    /// results.
    pub fn build(&self) -> (Builder, Vec<ValueId>, Vec<ValueId>) {
        let mut builder = Builder::new(self.op.name(), Phase::Imported, Sample::mesh());
        let operands: Vec<ValueId> = self
            .operands
            .iter()
            .enumerate()
            .map(|(i, a)| builder.op(Input { name: format!("x{i}"), ty: a.ty.clone(), label: false }, &[]))
            .collect();
        let results = if let Op::State(_) = self.op {
            let state = State::new("w", Type::new(DType::F64, [3]), StateRole::Parameter, StateInit::Ones);
            builder.graph_mut().states.push(state);
            vec![builder.state(StateId(0))]
        } else {
            builder.ops(self.op.clone(), &operands)
        };
        (builder, operands, results)
    }

    /// Values for the operands: different everywhere, and nowhere near a multiple of a half, where
    /// some ops jump.
    pub fn values(&self, seed: u64) -> Vec<Tensor> {
        self.operands.iter().zip(0..).map(|(a, i)| a.values(seed.wrapping_mul(64).wrapping_add(i))).collect()
    }
}

impl Argument {
    fn values(&self, seed: u64) -> Tensor {
        /// Steps of the golden ratio fill an interval evenly, whatever their number.
        const GOLDEN: f64 = 0.618_033_988_749_894_8;
        let share = |i: u64| (seed as f64 * 0.377_964_473 + (i + 1) as f64 * GOLDEN).fract();
        let value = |i: u64| {
            let v = self.low + (self.high - self.low) * share(i);
            match self.ty.dtype {
                DType::I64 => v.floor(),
                DType::Bool => f64::from(u8::from(share(i) < 0.7)),
                _ => {
                    let (nearest, clearance) = ((v * 2.0).round() / 2.0, 0.02 * (self.high - self.low).min(1.0));
                    if (v - nearest).abs() < clearance { nearest + clearance.copysign(v - nearest) } else { v }
                }
            }
        };
        let values: Vec<f64> = (0..self.ty.elements()).map(value).collect();
        Tensor::from_f64(self.ty.clone(), &values)
    }

    /// The gradient rule leaves it out.
    fn fixed(self) -> Argument {
        Argument { fixed: true, ..self }
    }
}

fn sample<const N: usize>(op: impl Into<Op>, operands: [Argument; N]) -> Sample {
    Sample { op: op.into(), operands: operands.into() }
}

fn argument<const N: usize>(dtype: DType, shape: [u64; N], low: f64, high: f64) -> Argument {
    Argument { ty: Type::new(dtype, shape), low, high, fixed: false }
}

fn floats<const N: usize>(shape: [u64; N]) -> Argument {
    within(shape, -2.0, 2.0)
}

fn within<const N: usize>(shape: [u64; N], low: f64, high: f64) -> Argument {
    argument(DType::F64, shape, low, high)
}

fn integers<const N: usize>(shape: [u64; N], low: i64, high: i64) -> Argument {
    argument(DType::I64, shape, low as f64, high as f64)
}

fn truths<const N: usize>(shape: [u64; N]) -> Argument {
    argument(DType::Bool, shape, 0.0, 2.0)
}

/// At least one instance of every op of [`Op::names`], in that order; the first of each name is the
/// plain one.
pub fn samples() -> Vec<Sample> {
    [
        leaf(),
        unary(),
        binary(),
        select_and_cast(),
        contract(),
        reduce(),
        conv(),
        pool(),
        layout(),
        index(),
        norm(),
        random(),
        attention(),
        rotary(),
        update(),
        comm(),
    ]
    .concat()
}

fn leaf() -> Vec<Sample> {
    let input = |dtype, shape: &[u64], label| Input { name: "x".to_string(), ty: Type::new(dtype, shape), label };
    vec![
        sample(input(DType::F64, &[2, 3], false), []),
        sample(input(DType::I64, &[2], true), []),
        sample(StateRead { state: StateId(0) }, []),
        sample(Constant { value: Tensor::from_f64(Type::new(DType::F32, [3]), &[0.1, -2.0, f64::INFINITY]) }, []),
        sample(Constant { value: Tensor::scalar(DType::F64, 0.1) }, []),
        sample(Constant { value: Tensor::from_i64([3, 4], &[-7; 12]) }, []),
        sample(Constant { value: Tensor::from_i64([9], &[0, 1, 2, 3, 4, 5, 6, 7, -8]) }, []),
        sample(Host { scalar: HostScalar::LearningRate }, []),
        sample(Host { scalar: HostScalar::StepCount }, []),
        sample(Host { scalar: HostScalar::Seed }, []),
    ]
}

fn unary() -> Vec<Sample> {
    let mut samples = vec![];
    for f in UnaryFn::ALL {
        let (low, high) = f.domain();
        samples.push(sample(UnaryOp { f }, [within([2, 3], low, high)]));
    }
    samples.push(sample(UnaryOp { f: Unary::Not.into() }, [truths([2, 3])]));
    samples
}

fn binary() -> Vec<Sample> {
    let mut samples = vec![];
    for f in Binary::ALL {
        let op = BinaryOp { f };
        if matches!(f, Binary::And | Binary::Or | Binary::Xor) {
            samples.push(sample(op, [truths([2, 3]), truths([2, 3])]));
            samples.push(sample(op, [truths([2, 1]), truths([3])]));
            continue;
        }
        let [(a, b), (c, d)] = f.facts().domain;
        samples.push(sample(op, [within([2, 3], a, b), within([2, 3], c, d)]));
        samples.push(sample(op, [within([2, 1, 4], a, b), within([3, 1], c, d)]));
        samples.push(sample(op, [within([], a, b), within([2, 2], c, d)]));
        samples.push(sample(op, [integers([2, 3], -4, 9), integers([3], 1, 4)]));
    }
    samples
}

fn select_and_cast() -> Vec<Sample> {
    vec![
        sample(Where {}, [truths([2, 3]), floats([2, 3]), floats([2, 3])]),
        sample(Where {}, [truths([2, 1]), floats([3]), floats([])]),
        sample(Where {}, [truths([3]), integers([2, 1], -3, 3), integers([], 5, 6)]),
        sample(Cast { dtype: DType::F64 }, [floats([2, 3])]),
        sample(Cast { dtype: DType::F32 }, [floats([2, 3])]),
        sample(Cast { dtype: DType::F64 }, [argument(DType::F32, [2, 3], -2.0, 2.0)]),
        sample(Cast { dtype: DType::I64 }, [floats([2, 3])]),
        sample(Cast { dtype: DType::Bool }, [floats([2, 3])]),
        sample(Cast { dtype: DType::Bool }, [integers([2, 3], -1, 2)]),
        sample(Cast { dtype: DType::F64 }, [integers([2, 3], -9, 9)]),
        sample(Cast { dtype: DType::F64 }, [truths([2, 3])]),
        sample(Cast { dtype: DType::F32 }, [argument(DType::BF16, [2, 3], -2.0, 2.0)]),
        sample(Cast { dtype: DType::BF16 }, [argument(DType::F32, [2, 3], -2.0, 2.0)]),
        sample(Cast { dtype: DType::F16 }, [argument(DType::F32, [2, 3], -2.0, 2.0)]),
        sample(RoundTo { format: Rounding::Tf32 }, [floats([2, 3]).fixed()]),
        sample(Detach {}, [floats([2, 3])]),
    ]
}

fn contract() -> Vec<Sample> {
    let contract = |spec: &str, a: &[u64], b: &[u64]| {
        let operand = |shape: &[u64]| Argument { ty: Type::new(DType::F64, shape), low: -2.0, high: 2.0, fixed: false };
        sample(Contract::new(spec), [operand(a), operand(b)])
    };
    vec![
        contract("bk,kn->bn", &[3, 4], &[4, 2]),
        contract("bmk,kn->bmn", &[2, 3, 4], &[4, 2]),
        contract("bhte,bhse->bhts", &[2, 2, 3, 4], &[2, 2, 5, 4]),
        contract("km,nk->nm", &[4, 3], &[2, 4]),
        contract("bmk,bmn->kn", &[2, 3, 4], &[2, 3, 5]),
        contract("m,n->nm", &[3], &[4]),
        contract("mn,m->mn", &[3, 4], &[3]),
        contract("k,k->", &[5], &[5]),
    ]
}

fn reduce() -> Vec<Sample> {
    let mut samples = vec![];
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
        samples.push(sample(Reduce::new(kind, vec![1]), [floats([3, 4])]));
        samples.push(sample(Reduce::new(kind, vec![0, 2]), [floats([2, 3, 4])]));
        samples.push(sample(Reduce::new(kind, vec![0, 1]), [floats([2, 3])]));
        samples.push(sample(Reduce::new(kind, vec![0]), [integers([4, 3], -9, 9)]));
    }
    samples.push(sample(SquareSum {}, [floats([2, 3])]));
    samples
}

fn window(strides: &[u64], dilations: &[u64], pads: &[[i64; 2]]) -> Window {
    Window { strides: strides.to_vec(), dilations: dilations.to_vec(), pads: pads.to_vec() }
}

fn conv() -> Vec<Sample> {
    let plain = Window::plain(2);
    let padded = window(&[1, 1], &[1, 1], &[[1, 1], [1, 1]]);
    let strided = window(&[2, 3], &[1, 1], &[[1, 0], [2, 1]]);
    let dilated = window(&[1, 2], &[2, 1], &[[2, 2], [0, 1]]);
    let cropped = window(&[1, 2], &[1, 1], &[[-1, 0], [1, -1]]);
    // Window, groups, x, w.
    let cases: Vec<(Window, u64, &[u64], &[u64])> = vec![
        (plain.clone(), 1, &[2, 3, 4, 4], &[2, 3, 3, 2]),
        (padded.clone(), 1, &[2, 2, 3, 4], &[3, 2, 3, 3]),
        (strided, 1, &[1, 2, 5, 6], &[2, 2, 3, 2]),
        (dilated, 1, &[1, 2, 4, 5], &[2, 2, 3, 2]),
        (cropped, 1, &[1, 2, 4, 5], &[2, 2, 2, 2]),
        (padded.clone(), 2, &[2, 4, 3, 3], &[6, 2, 3, 3]),
        (padded, 3, &[2, 3, 3, 3], &[3, 1, 3, 3]),
        (plain, 1, &[2, 3, 2, 2], &[4, 3, 1, 1]),
        (window(&[2], &[1], &[[1, 1]]), 1, &[2, 2, 7], &[3, 2, 4]),
        (window(&[1, 2, 1], &[1, 1, 2], &[[0, 1], [1, 0], [1, 1]]), 1, &[1, 2, 2, 3, 4], &[2, 2, 2, 2, 2]),
    ];
    let of = |shape: &[u64]| Argument { ty: Type::new(DType::F64, shape), low: -2.0, high: 2.0, fixed: false };
    let mut samples: [Vec<Sample>; 3] = [vec![], vec![], vec![]];
    for (window, groups, x, w) in cases {
        let conv = Conv { window, groups };
        let types = [Type::new(DType::F64, x), Type::new(DType::F64, w)];
        let y = conv.clone().into_op().rules().result(&types).expect("a sample of conv")[0].shape.clone();
        let (sizes, kernel) = (x[2..].to_vec(), w[2..].to_vec());
        samples[0].push(sample(conv.clone(), [of(x), of(w)]));
        samples[1].push(sample(ConvInput { of: conv.clone(), sizes }, [of(&y), of(w)]));
        samples[2].push(sample(ConvWeight { of: conv, kernel }, [of(x), of(&y)]));
    }
    samples.concat()
}

fn pool() -> Vec<Sample> {
    let pool = |kernel: &[u64], window: Window| MaxPool { kernel: kernel.to_vec(), window };
    let two = pool(&[2, 2], window(&[2, 2], &[1, 1], &[[0, 0], [0, 0]]));
    let three = pool(&[3, 3], window(&[2, 2], &[1, 1], &[[1, 1], [1, 1]]));
    let dilated = pool(&[2, 3], window(&[1, 2], &[2, 1], &[[0, 1], [1, 0]]));
    let line = pool(&[3], window(&[1], &[1], &[[1, 1]]));
    vec![
        sample(two.clone(), [floats([2, 2, 4, 4])]),
        sample(three.clone(), [floats([1, 2, 5, 4])]),
        sample(dilated, [floats([1, 2, 4, 5])]),
        sample(line, [floats([2, 1, 6])]),
        sample(MaxPoolGrad { of: two }, [floats([2, 2, 4, 4]), floats([2, 2, 2, 2])]),
        sample(MaxPoolGrad { of: three }, [floats([1, 2, 5, 4]), floats([1, 2, 3, 2])]),
    ]
}

fn layout() -> Vec<Sample> {
    let slice = |axis, start, step, size| Slice { axis, start, step, size };
    let pad = |axis, start, step, size| Pad { axis, start, step, size };
    vec![
        sample(Reshape { shape: vec![2, 2, 3] }, [floats([2, 6])]),
        sample(Reshape { shape: vec![6, 4] }, [floats([2, 3, 4])]),
        sample(Reshape { shape: vec![6, 4] }, [floats([4, 6])]),
        sample(Reshape { shape: vec![1, 3, 1] }, [floats([3])]),
        sample(Reshape { shape: vec![] }, [integers([1, 1], 0, 5)]),
        sample(Transpose { perm: vec![1, 0] }, [floats([2, 3])]),
        sample(Transpose { perm: vec![2, 0, 1] }, [floats([2, 3, 4])]),
        sample(Broadcast { shape: vec![2, 3] }, [floats([3])]),
        sample(Broadcast { shape: vec![2, 3, 4] }, [floats([3, 1])]),
        sample(Broadcast { shape: vec![2, 2] }, [truths([])]),
        sample(slice(1, 2, 1, 2), [floats([2, 4])]),
        sample(slice(0, 1, 2, 3), [floats([6, 2])]),
        sample(slice(1, 4, -2, 2), [floats([2, 5, 2])]),
        sample(pad(1, 2, 1, 4), [floats([2, 2])]),
        sample(pad(0, 1, 2, 7), [floats([3, 2])]),
        sample(pad(1, 4, -2, 5), [floats([2, 2, 2])]),
        sample(Concat { axis: 1 }, [floats([2, 3]), floats([2, 3])]),
        sample(Concat { axis: 0 }, [floats([1, 3]), floats([2, 3]), floats([3, 3])]),
        sample(Concat { axis: 0 }, [integers([2], 0, 3)]),
    ]
}

fn index() -> Vec<Sample> {
    vec![
        sample(Gather::along(0), [floats([5, 3]), integers([2, 4], -5, 5)]),
        sample(Gather::along(1), [floats([2, 5, 3]), integers([4], 0, 5)]),
        sample(Gather::along(1), [integers([2, 3], -9, 9), integers([], 0, 3)]),
        sample(Gather::batched(2, 1), [floats([2, 3, 5, 2]), integers([2, 4], -5, 5)]),
        sample(Gather::batched(1, 1), [floats([4, 5]), integers([4], 0, 5)]),
        sample(ScatterAdd { axis: 0, batch: 0, size: 5 }, [integers([2, 4], -5, 5), floats([2, 4, 3])]),
        sample(ScatterAdd { axis: 1, batch: 0, size: 5 }, [integers([4], 0, 5), floats([2, 4, 3])]),
        sample(ScatterAdd { axis: 2, batch: 1, size: 5 }, [integers([2, 4], -5, 5), floats([2, 3, 4, 2])]),
        sample(OneHot { size: 4 }, [integers([2, 1], 0, 4)]),
        sample(Range { size: 5 }, []),
    ]
}

fn norm() -> Vec<Sample> {
    let (width, statistics) = (floats([4]), within([2, 3], 0.3, 1.9));
    let (rows, channel) = (|| floats([2, 3, 4]), || floats([2, 1]));
    let batch_norm = BatchNorm { eps: 1e-5, momentum: 0.9 };
    vec![
        sample(Softmax {}, [rows()]),
        sample(Softmax {}, [floats([5])]),
        sample(SoftmaxGrad {}, [within([2, 3, 4], 0.05, 0.95), rows()]),
        sample(LayerNorm { eps: 1e-5, dtype: None }, [rows(), width.clone(), width.clone()]),
        sample(LayerNorm { eps: 0.5, dtype: None }, [floats([4]), width.clone(), width.clone()]),
        sample(LayerNormGrad {}, [rows(), width.clone(), statistics.clone(), statistics.clone(), rows()]),
        sample(RmsNorm { eps: 1e-6, dtype: None }, [rows(), width.clone()]),
        sample(RmsNorm { eps: 0.5, dtype: None }, [floats([4]), width.clone()]),
        sample(RmsNormGrad {}, [rows(), width, statistics, rows()]),
        sample(batch_norm, [floats([3, 2, 4]), channel(), channel(), channel(), within([2, 1], 0.3, 1.9)]),
        sample(
            BatchNorm { eps: 0.5, momentum: 0.9 },
            [floats([3, 4]), floats([4]), floats([4]), floats([4]), within([4], 0.3, 1.9)],
        ),
    ]
}

fn random() -> Vec<Sample> {
    let counters = || [integers([], -9, 9), within([], 1.0, 9.0)];
    vec![
        sample(Dropout { ratio: 0.1, stream: 0 }, [floats([2, 3])]),
        sample(KeepMask { shape: vec![2, 3], ratio: 0.4, stream: 7 }, counters()),
    ]
}

fn rotary() -> Vec<Sample> {
    use HeadLayout::{HeadMajor, TokenMajor};
    let table = || floats([3, 4]);
    vec![
        sample(Rotary { layout: HeadMajor, transposed: false }, [floats([2, 2, 3, 4]), table(), table()]),
        sample(Rotary { layout: HeadMajor, transposed: true }, [floats([2, 2, 3, 4]), table(), table()]),
        sample(Rotary { layout: TokenMajor, transposed: false }, [floats([2, 3, 2, 4]), table(), table()]),
        sample(Rotary { layout: TokenMajor, transposed: true }, [floats([1, 3, 2, 4]), floats([1, 3, 4]), floats([1, 3, 4])]),
    ]
}

fn attention() -> Vec<Sample> {
    use HeadLayout::{HeadMajor, TokenMajor};
    let op = |mask, [q, k, v, o]: [HeadLayout; 4]| Attention { scale: 0.5, mask, q, k, v, o };
    let (heads, tokens) = ([HeadMajor; 4], [TokenMajor; 4]);
    let qkv = || (floats([2, 2, 3, 4]), floats([2, 2, 5, 4]), floats([2, 2, 5, 3]));
    let (q, k, v) = qkv();
    let forward = vec![
        sample(op(MaskKind::None, heads), [q.clone(), k.clone(), v.clone()]),
        sample(op(MaskKind::Causal, heads), [q.clone(), k.clone(), v.clone()]),
        sample(op(MaskKind::Operand, heads), [q.clone(), k.clone(), v.clone(), truths([1, 1, 3, 5])]),
        sample(op(MaskKind::Operand, heads), [q.clone(), k.clone(), v.clone(), floats([2, 1, 3, 5]).fixed()]),
        sample(op(MaskKind::Operand, heads), [q, k, v, floats([3, 1]).fixed()]),
        sample(op(MaskKind::Causal, tokens), [floats([1, 3, 4, 2]), floats([1, 3, 2, 2]), floats([1, 3, 2, 2])]),
        sample(
            op(MaskKind::None, [HeadMajor, TokenMajor, HeadMajor, TokenMajor]),
            [floats([2, 4, 3, 2]), floats([2, 5, 2, 2]), floats([2, 2, 5, 3])],
        ),
    ];
    let backward = forward.iter().map(gradient_of_attention).collect();
    [forward, backward].concat()
}

/// The gradient op over the operands of `forward`, its results, and a gradient of the first.
fn gradient_of_attention(forward: &Sample) -> Sample {
    let Op::Attention(of) = &forward.op else { unreachable!("a sample of attention") };
    let types: Vec<Type> = forward.operands.iter().map(|a| a.ty.clone()).collect();
    let results = forward.op.rules().result(&types).expect("a sample of attention");
    let like = |ty: &Type, low, high| Argument { ty: ty.clone(), low, high, fixed: false };
    let mut operands = forward.operands.clone();
    operands.extend([like(&results[0], -2.0, 2.0), like(&results[1], 3.0, 4.0), like(&results[0], -2.0, 2.0)]);
    Sample { op: AttentionGrad { of: of.clone() }.into_op(), operands }
}

fn update() -> Vec<Sample> {
    let sgd = |momentum, nesterov, weight_decay| Sgd { momentum, nesterov, weight_decay, skips: false };
    let adam = |weight_decay, decoupled| Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, decoupled, skips: false };
    let (w, scalar) = (floats([2, 3]), within([], 0.1, 0.9));
    let moments = |op| {
        let (w, c, m, v) = (floats([2, 3]), within([], 0.1, 0.9), floats([2, 3]), within([2, 3], 0.1, 2.0));
        sample(op, [w.clone(), w, c.clone(), c.clone(), c, m, v])
    };
    vec![
        sample(sgd(0.0, false, 0.0), [w.clone(), w.clone(), scalar.clone()]),
        sample(sgd(0.0, false, 0.1), [w.clone(), w.clone(), scalar.clone()]),
        sample(sgd(0.9, false, 0.1), [w.clone(), w.clone(), scalar.clone(), w.clone()]),
        sample(sgd(0.9, true, 0.0), [w.clone(), w.clone(), scalar, w]),
        moments(adam(0.0, false)),
        moments(adam(0.1, false)),
        moments(adam(0.1, true)),
    ]
}

fn comm() -> Vec<Sample> {
    let split = Split { axis: AxisId(0), stride: 2 };
    let x = || floats([4, 3]);
    vec![
        sample(Reshard::default(), [x()]),
        sample(Accumulate { kind: ReduceKind::Sum }, [x()]),
        sample(AllReduce { kind: ReduceKind::Max, axes: vec![AxisId(0)] }, [x()]),
        sample(AllGather { dim: 0, split }, [x()]),
        sample(ReduceScatter { kind: ReduceKind::Sum, dim: 0, split }, [x()]),
        sample(AllToAll { dim: 0, split, to_dim: 0, to_split: Split { stride: 1, ..split } }, [x()]),
        sample(ShardSlice { dim: 0, split }, [x()]),
        sample(FlatGather { axes: vec![AxisId(0)], kept: false }, [x()]),
        sample(FlatScatter { kind: ReduceKind::Sum, axes: vec![AxisId(0)] }, [x()]),
        sample(FlatSlice { axes: vec![AxisId(0)] }, [x()]),
        sample(Transfer { axis: AxisId(0), from: 0, to: vec![1] }, [x()]),
    ]
}
