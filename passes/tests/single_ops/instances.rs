//! Random instances of every op that computes: shapes, element types and attributes that it takes,
//! and between which numbers its operands are.

use shardc_ir::dtype::DType;
use shardc_ir::ops::attention::{Attention, AttentionGrad, HeadLayout, MaskKind};
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::conv::{Conv, ConvInput, ConvWeight};
use shardc_ir::ops::elementwise::{BinaryOp, Cast, Detach, RoundTo, UnaryFn, UnaryOp, Where};
use shardc_ir::ops::index::{Gather, OneHot, Range, ScatterAdd};
use shardc_ir::ops::layout::{Broadcast, Concat, Pad, Reshape, Slice, Transpose};
use shardc_ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, Softmax, SoftmaxGrad};
use shardc_ir::ops::pool::{MaxPool, MaxPoolGrad};
use shardc_ir::ops::random::{Dropout, KeepMask};
use shardc_ir::ops::reduce::{Reduce, SquareSum};
use shardc_ir::ops::rotary::Rotary;
use shardc_ir::ops::samples::{Argument, Sample};
use shardc_ir::ops::update::{Adam, Sgd};
use shardc_ir::ops::window::Window;
use shardc_ir::ops::{Op, comm};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Rounding, Unary};
use shardc_ir::types::Type;
use shardc_testkit::random::Random;

/// Sizes of dimensions: most can be split in several ways.
const SIZES: [u64; 10] = [1, 2, 2, 3, 4, 4, 6, 8, 8, 12];
/// The most elements of an operand or result.
const MOST: u64 = 400;
/// Integers that no float holds.
const HUGE: f64 = (1u64 << 62) as f64;

/// A random instance of the op called `name`; its operands' bounds are multiples of an eighth.
///
/// # Panics
/// If no op that computes has that name.
pub fn instance(name: &str, random: &mut Random) -> Sample {
    loop {
        let sample = Draw(random).candidate(name);
        let types: Vec<Type> = sample.operands.iter().map(|a| a.ty.clone()).collect();
        if sample.operands.iter().any(|a| a.low >= a.high && a.ty.elements() > 0) {
            // There is no index into no rows.
            continue;
        }
        let small = |types: &[Type]| types.iter().all(|ty| ty.elements() <= MOST);
        if sample.op.rules().result(&types).is_ok_and(|results| small(&types) && small(&results)) {
            return sample;
        }
    }
}

/// Whether it is the name of a function of one number or two.
pub fn is_function(name: &str) -> bool {
    UnaryFn::ALL.iter().any(|f| f.name() == name) || Binary::ALL.iter().any(|f| f.name() == name)
}

fn argument(dtype: DType, shape: &[u64], low: f64, high: f64) -> Argument {
    Argument { ty: Type::new(dtype, shape), low, high, fixed: false }
}

fn like(ty: &Type) -> Argument {
    argument(ty.dtype, &ty.shape, -2.0, 2.0)
}

fn sample(op: impl Into<Op>, operands: impl Into<Vec<Argument>>) -> Sample {
    Sample { op: op.into(), operands: operands.into() }
}

struct Draw<'r>(&'r mut Random);

impl Draw<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn of<T: Clone>(&mut self, items: &[T]) -> T {
        self.0.pick(items).expect("there are items")
    }

    /// Seldom of an empty dimension.
    fn size(&mut self) -> u64 {
        if self.below(50) == 0 { 0 } else { self.of(&SIZES) }
    }

    fn shape(&mut self, least: usize, most: usize) -> Vec<u64> {
        let rank = least + self.below(most - least + 1);
        (0..rank).map(|_| self.size()).collect()
    }

    fn float(&mut self) -> DType {
        self.of(&[DType::F64, DType::F64, DType::F32])
    }

    fn number(&mut self) -> DType {
        self.of(&[DType::F64, DType::F32, DType::I64])
    }

    fn any(&mut self) -> DType {
        self.of(&[DType::F64, DType::F32, DType::I64, DType::Bool])
    }

    /// Numbers that every op takes; integers up to where they wrap.
    fn plain(&mut self, dtype: DType, shape: &[u64]) -> Argument {
        let high = if dtype == DType::I64 { self.of(&[9.0, HUGE]) } else { 2.0 };
        argument(dtype, shape, -high, high)
    }

    /// A shape that broadcasts to `shape`.
    fn narrowed(&mut self, shape: &[u64]) -> Vec<u64> {
        let skip = if self.below(3) == 0 { self.below(shape.len() + 1) } else { 0 };
        shape[skip..].iter().map(|n| if self.below(4) == 0 { 1 } else { *n }).collect()
    }

    /// The items in another order.
    fn shuffled<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        (1..items.len()).for_each(|i| items.swap(i, self.below(i + 1)));
        items
    }

    fn candidate(&mut self, name: &str) -> Sample {
        if let Some(f) = UnaryFn::ALL.into_iter().find(|f| f.name() == name) {
            return self.unary(f);
        }
        if let Some(f) = Binary::ALL.into_iter().find(|f| f.name() == name) {
            return self.binary(f);
        }
        match name {
            "where" => {
                let (shape, dtype) = (self.shape(0, 4), self.any());
                let [c, a, b] = [(); 3].map(|()| self.narrowed(&shape));
                let operands = [self.plain(DType::Bool, &c), self.plain(dtype, &a), self.plain(dtype, &b)];
                sample(Where {}, operands)
            }
            "cast" => {
                // Half of them widen, which sums may pass.
                let (half, one, other) = (self.of(&[DType::BF16, DType::F16]), self.any(), self.any());
                let (from, to) = self.of(&[(half, DType::F32), (half, DType::F32), (one, half), (one, other)]);
                let shape = self.shape(0, 4);
                sample(Cast { dtype: to }, [argument(from, &shape, -9.0, 9.0)])
            }
            "round_to" => {
                let shape = self.shape(0, 4);
                sample(RoundTo { format: Rounding::Tf32 }, [argument(DType::F32, &shape, -9.0, 9.0)])
            }
            "detach" => sample(Detach {}, [self.moved()]),
            "reshard" => sample(comm::Reshard::default(), [self.moved()]),
            "contract" => self.contract(),
            "sum" => self.reduce(ReduceKind::Sum),
            "reduce_max" => self.reduce(ReduceKind::Max),
            "reduce_min" => self.reduce(ReduceKind::Min),
            "square_sum" => {
                let (shape, dtype) = (self.shape(0, 4), self.float());
                sample(SquareSum {}, [self.plain(dtype, &shape)])
            }
            "conv" | "conv_input" | "conv_weight" => self.conv(name),
            "max_pool" | "max_pool_grad" => self.pool(name),
            "reshape" | "transpose" | "broadcast" | "slice" | "pad" | "concat" => self.layout(name),
            "gather" | "scatter_add" | "one_hot" | "range" => self.index(name),
            "dropout" => {
                let (shape, dtype) = (self.shape(0, 4), self.float());
                sample(Dropout { ratio: 0.5, stream: 0 }, [self.plain(dtype, &shape)])
            }
            "keep_mask" => {
                let op = KeepMask { shape: self.shape(0, 4), ratio: self.of(&[0.0, 0.4, 0.9]), stream: self.below(3) as u32 };
                sample(op, [argument(DType::I64, &[], -9.0, 9.0), argument(DType::F64, &[], 1.0, 9.0)])
            }
            "attention" | "attention_grad" => self.attention(name),
            "rotary" => self.rotary(),
            "sgd" | "adam" => self.update(name),
            _ => self.norm(name),
        }
    }

    fn unary(&mut self, f: UnaryFn) -> Sample {
        let others = f.integer(1).map(|_| [DType::I64, DType::Bool]);
        let dtypes: Vec<DType> = [DType::F64, DType::F32].into_iter().chain(others.into_iter().flatten()).collect();
        let (dtype, shape, (low, high)) = (self.of(&dtypes), self.shape(0, 4), f.domain());
        let operand = if dtype.is_float() { argument(dtype, &shape, low, high) } else { self.plain(dtype, &shape) };
        sample(UnaryOp { f }, [operand])
    }

    fn binary(&mut self, f: Binary) -> Sample {
        let is_quotient = matches!(f, Binary::Div | Binary::Mod);
        let (shape, dtype) = (self.shape(0, 4), if is_quotient { self.number() } else { self.any() });
        let [a, b] = [(); 2].map(|()| self.narrowed(&shape));
        let [x, y] = [self.plain(dtype, &a), self.plain(dtype, &b)];
        let [(_, _), (low, high)] = f.facts().domain;
        let operands = match (f, dtype) {
            (Binary::Div | Binary::Mod, DType::I64) => [x, argument(dtype, &b, 1.0, 5.0)],
            (Binary::Div | Binary::Mod, _) => [x, argument(dtype, &b, 0.5, 2.0)],
            (Binary::Pow, DType::I64) => [x, argument(dtype, &b, -2.0, 5.0)],
            (Binary::Pow, _) => [argument(dtype, &a, 0.5, 2.0), argument(dtype, &b, low, high)],
            _ => [x, y],
        };
        sample(BinaryOp { f }, operands)
    }

    fn contract(&mut self) -> Sample {
        let [mut a, mut b, mut c] = [const { vec![] }; 3];
        for letter in "abcdef".chars().take(1 + self.below(6)) {
            let (part, size) = (self.below(4), self.size());
            let letter = (letter, size);
            [&mut a, &mut b, &mut c].into_iter().enumerate().filter(|(i, _)| *i != part).for_each(|(_, term)| term.push(letter));
        }
        let [a, b, c] = [a, b, c].map(|term| self.shuffled(&term).into_iter().unzip::<char, u64, String, Vec<u64>>());
        let dtype = self.float();
        sample(Contract::new(format!("{},{}->{}", a.0, b.0, c.0)), [self.plain(dtype, &a.1), self.plain(dtype, &b.1)])
    }

    fn reduce(&mut self, kind: ReduceKind) -> Sample {
        let (shape, dtype) = (self.shape(0, 4), self.number());
        let axes = (0..shape.len()).filter(|_| self.coin()).collect();
        sample(Reduce::new(kind, axes), [self.plain(dtype, &shape)])
    }

    fn window(&mut self, dims: usize) -> Window {
        let two = |draw: &mut Self| (0..dims).map(|_| draw.of(&[1, 1, 2])).collect();
        let (strides, dilations) = (two(self), two(self));
        Window { strides, dilations, pads: (0..dims).map(|_| [self.of(&[0, 0, 1, -1]), self.of(&[0, 0, 1, 2])]).collect() }
    }

    fn conv(&mut self, name: &str) -> Sample {
        let dims = 1 + self.below(2);
        let (groups, inputs, outputs) = (self.of(&[1, 1, 2, 4]), self.of(&[1, 2, 3, 4]), self.of(&[1, 2, 4]));
        let of = Conv { window: self.window(dims), groups };
        let (sizes, kernel): (Vec<u64>, Vec<u64>) = (0..dims).map(|_| (self.of(&[2, 3, 4, 5]), self.of(&[1, 2, 3]))).unzip();
        let dtype = self.float();
        let (n, x_channels) = (self.of(&[1, 2, 4, 6]), groups * inputs);
        let x = Type::new(dtype, [&[n, x_channels], &sizes[..]].concat());
        let w = Type::new(dtype, [&[groups * outputs, inputs], &kernel[..]].concat());
        let forward = sample(of.clone(), [like(&x), like(&w)]);
        match forward.op.rules().result(&[x.clone(), w.clone()]) {
            Ok(y) if name == "conv_input" => sample(ConvInput { of, sizes }, [like(&y[0]), like(&w)]),
            Ok(y) if name == "conv_weight" => sample(ConvWeight { of, kernel }, [like(&x), like(&y[0])]),
            Err(_) if name != "conv" => self.conv(name),
            _ => forward,
        }
    }

    fn pool(&mut self, name: &str) -> Sample {
        let dims = 1 + self.below(2);
        let of = MaxPool { kernel: (0..dims).map(|_| self.of(&[1, 2, 3])).collect(), window: self.window(dims) };
        let mut shape = self.shape(2, 2);
        shape.extend((0..dims).map(|_| self.of(&[2, 3, 4, 5])));
        let x = Type::new(self.float(), shape);
        let forward = sample(of.clone(), [like(&x)]);
        match forward.op.rules().result(std::slice::from_ref(&x)) {
            Ok(y) if name == "max_pool_grad" => sample(MaxPoolGrad { of }, [like(&x), like(&y[0])]),
            Err(_) if name == "max_pool_grad" => self.pool(name),
            _ => forward,
        }
    }

    /// An operand that is only moved, of any type.
    fn moved(&mut self) -> Argument {
        let (shape, dtype) = (self.shape(0, 4), self.any());
        self.plain(dtype, &shape)
    }

    fn layout(&mut self, name: &str) -> Sample {
        let (shape, dtype) = (self.shape(usize::from(!["reshape", "transpose", "broadcast"].contains(&name)), 4), self.any());
        let axis = self.below(shape.len());
        let x = self.plain(dtype, &shape);
        match name {
            "reshape" => sample(Reshape { shape: self.regrouped(&shape) }, [x]),
            "transpose" => sample(Transpose { perm: self.shuffled(&(0..shape.len()).collect::<Vec<_>>()) }, [x]),
            "broadcast" => {
                let narrow = self.narrowed(&shape);
                sample(Broadcast { shape }, [self.plain(dtype, &narrow)])
            }
            "concat" => {
                let mut others = vec![x.clone()];
                for _ in 0..self.below(3) {
                    let mut shape = shape.clone();
                    shape[axis] = if self.coin() { shape[axis] } else { self.size() };
                    others.push(self.plain(dtype, &shape));
                }
                sample(Concat { axis }, others)
            }
            _ => {
                let (whole, part) = if name == "slice" { (shape[axis], self.size()) } else { (self.size(), shape[axis]) };
                let blocks = (whole / part.max(1)).max(1);
                let (start, step) = match self.coin() {
                    true => (self.below(whole as usize) as u64, self.of(&[1, 1, 2, -1, -2])),
                    false => (part * self.below(blocks as usize) as u64, 1),
                };
                match name {
                    "slice" => sample(Slice { axis, start, step, size: part }, [x]),
                    _ => sample(Pad { axis, start, step, size: whole }, [x]),
                }
            }
        }
    }

    /// Another shape of as many elements: neighbours merged, dimensions cut, or any factors.
    fn regrouped(&mut self, shape: &[u64]) -> Vec<u64> {
        let mut out: Vec<u64> = vec![];
        let keep = self.coin();
        for n in shape {
            match out.last_mut() {
                Some(last) if self.coin() => *last *= n,
                _ => out.push(*n),
            }
        }
        let mut rest = if keep { vec![] } else { vec![out.iter().product()] };
        rest.extend(if keep { out } else { vec![] });
        let mut cut = vec![];
        for n in rest {
            let factor = self.of(&[1, 2, 3, 4, 6]);
            match n % factor {
                0 if self.coin() => cut.extend([factor, n / factor]),
                0 if self.coin() => cut.extend([n / factor, factor]),
                _ => cut.push(n),
            }
        }
        cut
    }

    fn index(&mut self, name: &str) -> Sample {
        let (batch, outer, rows, inner) = (self.shape(0, 1), self.shape(0, 1), self.size(), self.shape(0, 1));
        let (own, axis) = (self.shape(0, 2), batch.len() + outer.len());
        let indices = argument(DType::I64, &[&batch[..], &own].concat(), -(rows as f64), rows as f64);
        match name {
            "gather" => {
                let dtype = self.any();
                let table = self.plain(dtype, &[&batch[..], &outer, &[rows], &inner].concat());
                sample(Gather::batched(axis, batch.len()), [table, indices])
            }
            "scatter_add" => {
                let dtype = self.float();
                let source = self.plain(dtype, &[&batch[..], &outer, &own, &inner].concat());
                sample(ScatterAdd { axis, batch: batch.len(), size: rows }, [indices, source])
            }
            "range" => sample(Range { size: rows }, []),
            _ => {
                let shape = [self.shape(0, 3), vec![1]].concat();
                sample(OneHot { size: rows }, [argument(DType::I64, &shape, -2.0, rows as f64 + 2.0)])
            }
        }
    }

    fn norm(&mut self, name: &str) -> Sample {
        let (shape, dtype) = (self.shape(1, 4), self.float());
        let (rows, width) = shape.split_at(shape.len() - 1);
        let eps = self.of(&[0.125, 0.5]);
        let (x, scale) = (argument(dtype, &shape, -2.0, 2.0), argument(dtype, width, -2.0, 2.0));
        let (statistics, probabilities) = (argument(dtype, rows, 0.25, 2.0), argument(dtype, &shape, 0.125, 1.0));
        match name {
            "softmax" => sample(Softmax {}, [x]),
            "softmax_grad" => sample(SoftmaxGrad {}, [probabilities, x]),
            "layer_norm" => sample(LayerNorm { eps, dtype: None }, [x, scale.clone(), scale]),
            "layer_norm_grad" => sample(LayerNormGrad {}, [x.clone(), scale, statistics.clone(), statistics, x]),
            "rms_norm" => sample(RmsNorm { eps, dtype: None }, [x, scale]),
            "rms_norm_grad" => sample(RmsNormGrad {}, [x.clone(), scale, statistics, x]),
            "batch_norm" => {
                let [a, b, c, d] = [(); 4].map(|()| self.narrowed(&shape));
                let [a, b, c] = [a, b, c].map(|shape| argument(dtype, &shape, -2.0, 2.0));
                sample(BatchNorm { eps, momentum: 0.9 }, [x, a, b, c, argument(dtype, &d, 0.25, 2.0)])
            }
            _ => panic!("`{name}` has no random instances"),
        }
    }

    fn attention(&mut self, name: &str) -> Sample {
        let mut layout = || if self.coin() { HeadLayout::HeadMajor } else { HeadLayout::TokenMajor };
        let [q, k, v, o] = [layout(), layout(), layout(), layout()];
        let mask = self.of(&[MaskKind::None, MaskKind::Causal, MaskKind::Operand]);
        let of = Attention { scale: 0.5, mask, q, k, v, o };
        let (batch, kv_heads, dtype) = (self.of(&[1, 2, 4, 6]), self.of(&[1, 2, 3, 4]), self.float());
        let (heads, queries, keys) = (kv_heads * self.of(&[1, 1, 2]), self.of(&[1, 2, 3]), self.of(&[2, 3, 4]));
        let (width, v_width) = (self.of(&[1, 2, 4]), self.of(&[1, 2, 3]));
        let arranged = |layout, heads, positions, width| match layout {
            HeadLayout::HeadMajor => argument(dtype, &[batch, heads, positions, width], -2.0, 2.0),
            HeadLayout::TokenMajor => argument(dtype, &[batch, positions, heads, width], -2.0, 2.0),
        };
        let mut operands =
            vec![arranged(q, heads, queries, width), arranged(k, kv_heads, keys, width), arranged(v, kv_heads, keys, v_width)];
        if mask == MaskKind::Operand {
            let shape = self.narrowed(&[batch, heads, queries, keys]);
            let dtype = self.of(&[DType::Bool, dtype]);
            operands.push(argument(dtype, &shape, -2.0, 2.0));
        }
        if name == "attention" {
            return sample(of, operands);
        }
        let output = arranged(o, heads, queries, v_width);
        operands.extend([output.clone(), argument(dtype, &[batch, heads, queries], 3.0, 4.0), output]);
        sample(AttentionGrad { of }, operands)
    }

    fn rotary(&mut self) -> Sample {
        let (layout, positions) = self.of(&[(HeadLayout::HeadMajor, 2), (HeadLayout::TokenMajor, 1)]);
        let mut shape = self.shape(3, 3);
        shape.push(self.of(&[2, 4]));
        let dtype = self.float();
        let ones = vec![1; self.below(2)];
        let table = argument(dtype, &[&ones[..], &[shape[positions], shape[3]]].concat(), -2.0, 2.0);
        sample(Rotary { layout, transposed: self.coin() }, [argument(dtype, &shape, -2.0, 2.0), table.clone(), table])
    }

    fn update(&mut self, name: &str) -> Sample {
        let (shape, dtype, weight_decay) = (self.shape(0, 3), self.float(), self.of(&[0.0, 0.1]));
        let (w, share) = (argument(dtype, &shape, -2.0, 2.0), argument(dtype, &[], 0.125, 1.0));
        if name == "sgd" {
            let momentum = self.of(&[0.0, 0.5]);
            let op = Sgd { momentum, nesterov: momentum != 0.0 && self.coin(), weight_decay, skips: false };
            let moments = if momentum == 0.0 { vec![] } else { vec![w.clone()] };
            return sample(op, [vec![w.clone(), w, share], moments].concat());
        }
        let op = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, decoupled: self.coin(), skips: false };
        let v = argument(dtype, &shape, 0.125, 2.0);
        sample(op, [w.clone(), w.clone(), share.clone(), share.clone(), share, w, v])
    }
}

/// Whether ranks and the evaluator agree on it for floats that are not finite too: no product of
/// parts, no distance, no sum in another order.
pub fn takes_any_float(op: &Op) -> bool {
    match op {
        Op::Unary(_) | Op::Where(_) | Op::Cast(_) | Op::Reduce(_) | Op::MaxPool(_) | Op::Dropout(_) | Op::Reshard(_) => true,
        Op::Binary(op) => !matches!(op.f, Binary::Mul | Binary::Div),
        Op::Pad(_) | Op::Gather(_) | Op::ScatterAdd(_) => true,
        op => op.moves(),
    }
}

/// Whether the op computes multiples of an eighth without rounding, or rounds once, so that every
/// order of its sums gives the same number.
pub fn is_exact(op: &Op) -> bool {
    match op {
        Op::Unary(op) => {
            use Unary::{Abs, Ceil, Floor, IsNan, Neg, Not, Reciprocal, Round, Sign, Sqrt};
            let scalar = [Neg, Abs, Sign, Floor, Ceil, Round, Not, IsNan, Sqrt, Reciprocal].map(UnaryFn::from);
            op.f == UnaryFn::Relu || scalar.contains(&op.f)
        }
        Op::Binary(op) => !matches!(op.f, Binary::Div | Binary::Pow),
        Op::Softmax(_) | Op::LayerNorm(_) | Op::LayerNormGrad(_) | Op::RmsNorm(_) | Op::RmsNormGrad(_) => false,
        Op::BatchNorm(_) | Op::Attention(_) | Op::AttentionGrad(_) | Op::Sgd(_) | Op::Adam(_) => false,
        _ => true,
    }
}
