//! Steps of random graphs that rearrange, reduce, index and compare.

use super::Maker;
use shardc_ir::dtype::DType;
use shardc_ir::graph::ValueId;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::{Cast, Detach};
use shardc_ir::ops::index::{Gather, OneHot, Range, ScatterAdd};
use shardc_ir::ops::layout::{Concat, Pad, Slice};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};

impl Maker<'_> {
    /// Dimensions merged, with the batch or among themselves, and split again around an elementwise
    /// op or a product.
    pub(super) fn merged(&mut self, x: ValueId) -> ValueId {
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

    pub(super) fn transposed(&mut self, x: ValueId) -> ValueId {
        let rank = self.shape(x).len();
        if rank < 3 {
            return self.linear(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(1 + self.c.below(rank - 1), rank - 1);
        self.b.transpose(x, &perm)
    }

    pub(super) fn sliced(&mut self, x: ValueId) -> ValueId {
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

    pub(super) fn concatenated(&mut self, x: ValueId) -> ValueId {
        let axis = self.shape(x).len() - 1;
        if self.shape(x)[axis] > 8 {
            return self.linear(x);
        }
        let y = self.activation(x);
        self.b.op(Concat { axis }, &[x, y])
    }

    /// A reduction that is broadcast back.
    pub(super) fn reduced(&mut self, x: ValueId) -> ValueId {
        let mut shape = self.shape(x);
        if shape.len() < 2 {
            return x;
        }
        let axis = 1 + self.c.below(shape.len() - 1);
        if shape[axis] == 1 {
            return self.activation(x);
        }
        let kind = self.c.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
        // Of equal elements rounding would decide which is the least, or on which side of their
        // mean they are; so none are equal.
        let level = self.parameter(&shape[1..]);
        let x = self.b.add(x, level);
        let y = self.b.reduce(kind, x, &[axis]);
        let y = if kind == ReduceKind::Sum { self.b.scale(y, 1.0 / shape[axis] as f64) } else { y };
        shape[axis] = 1;
        let y = self.b.reshape(y, &shape);
        self.b.sub(x, y)
    }

    pub(super) fn compared(&mut self, x: ValueId) -> ValueId {
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
    pub(super) fn indexed(&mut self, x: ValueId) -> ValueId {
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
    pub(super) fn stepped(&mut self, x: ValueId) -> ValueId {
        // 0, which many values are up to rounding, is no step.
        let scaled = self.b.scale(x, 3.7);
        let scaled = self.b.offset(scaled, 0.23);
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
    pub(super) fn decided(&mut self, x: ValueId) -> ValueId {
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
    pub(super) fn scattered(&mut self, x: ValueId) -> ValueId {
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
    pub(super) fn fused(&mut self, x: ValueId) -> ValueId {
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

    pub(super) fn note_fused(&mut self, parameter: ValueId, dim: usize, sizes: &[u64]) {
        self.fused.push((self.b.graph().value(parameter).name.to_string(), dim, sizes.to_vec()));
    }

    /// Every row against every row of a sample, and a mean of them by the weights.
    pub(super) fn matched(&mut self, x: ValueId) -> ValueId {
        if self.shape(x).len() != 3 {
            return self.residual(x, &[x]);
        }
        let scores = self.b.op(Contract::new("btk,bsk->bts"), &[x, x]);
        let scores = self.b.unary(Unary::Tanh.into(), scores);
        let y = self.b.op(Contract::new("bts,bsk->btk"), &[scores, x]);
        self.b.scale(y, 0.3)
    }

    /// A value through which nothing flows back.
    pub(super) fn detached(&mut self, x: ValueId) -> ValueId {
        let y = self.activation(x);
        let still = self.b.op(Detach {}, &[y]);
        self.b.sub(x, still)
    }

    /// Positions as numbers.
    pub(super) fn counted(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let size = shape[shape.len() - 1];
        let positions = self.b.op(Range { size }, &[]);
        let positions = self.b.cast(positions, self.dtype);
        let waves = self.b.scale(positions, 0.7);
        let waves = self.b.unary(Unary::Sin.into(), waves);
        self.b.add(x, waves)
    }

    /// Elements along a dimension, picked for each sample by an input, or rows of one table, which
    /// may be a factor of the result as well.
    pub(super) fn picked(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        if shape.len() < 3 || self.c.one_in(3) {
            let ids = self.input(Type::new(DType::I64, [shape[0]]));
            let table = self.parameter(&[6, shape[shape.len() - 1]]);
            let untrained = self.c.one_in(2).then_some(1);
            let rows = self.b.op(Gather { untrained, ..Gather::along(0) }, &[table, ids]);
            let mut column = vec![1; shape.len()];
            (column[0], column[shape.len() - 1]) = (shape[0], shape[shape.len() - 1]);
            let rows = self.b.reshape(rows, &column);
            let y = self.b.mul(x, rows);
            return if self.c.one_in(2) { self.tied(y, table) } else { y };
        }
        let count = self.c.pick(&[2, 4]);
        let ids = self.input(Type::new(DType::I64, [shape[0], count]));
        self.b.op(Gather::batched(1, 1), &[x, ids])
    }

    /// A product with a table that is read by index too, as it is or times a trained number.
    fn tied(&mut self, x: ValueId, table: ValueId) -> ValueId {
        let shape = self.shape(x);
        let letters: String = "abcdefgh".chars().take(shape.len() - 1).collect();
        let factor = if self.c.one_in(2) {
            let number = self.parameter(&[]);
            self.b.mul(table, number)
        } else {
            table
        };
        let y = self.b.op(Contract::new(format!("{letters}k,nk->{letters}n")), &[x, factor]);
        self.b.scale(y, 1.0 / (shape[shape.len() - 1] as f64).sqrt())
    }

    pub(super) fn remainder(&mut self, x: ValueId) -> ValueId {
        let s = self.b.unary(Unary::Sigmoid.into(), x);
        let wide = self.b.scale(s, 2.3);
        let one = self.b.number(self.dtype, 1.0);
        let rest = self.b.binary(Binary::Mod, wide, one);
        self.b.add(x, rest)
    }
}
