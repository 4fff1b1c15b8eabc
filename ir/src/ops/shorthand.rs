//! Common ops in one call each, for gradients and passes: `b.add(x, y)`.

use super::elementwise::{self, UnaryFn};
use super::{Op, layout, leaf, reduce};
use crate::builder::Builder;
use crate::dtype::DType;
use crate::graph::{StateId, ValueId};
use crate::reduce_kind::ReduceKind;
use crate::scalar::Binary;
use crate::types::Tensor;

impl Builder {
    /// A state variable's value at the start of the step.
    pub fn state(&mut self, id: StateId) -> ValueId {
        let state = &self.graph().states[id.index()];
        let (ty, name, sharding) = (state.ty.clone(), state.name.clone(), state.sharding.clone());
        let value = self.push(leaf::StateRead { state: id }.into(), &[], vec![ty], &name)[0];
        self.graph_mut().set_sharding(value, sharding);
        value
    }

    /// A constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.op(leaf::Constant { value: tensor }, &[])
    }

    /// A scalar constant; one node for each value.
    pub fn number(&mut self, dtype: DType, value: f64) -> ValueId {
        if let Some(v) = self.scalars.get(&(dtype, value.to_bits())) {
            return *v;
        }
        let id = self.constant(Tensor::scalar(dtype, value));
        self.scalars.insert((dtype, value.to_bits()), id);
        id
    }

    /// A scalar constant of the element type of `like`.
    pub fn number_like(&mut self, like: ValueId, value: f64) -> ValueId {
        self.number(self.ty(like).dtype, value)
    }

    /// `f(x)`
    pub fn unary(&mut self, f: UnaryFn, x: ValueId) -> ValueId {
        self.op(elementwise::UnaryOp { f }, &[x])
    }

    /// `f(a, b)` with broadcasting.
    pub fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.op(elementwise::BinaryOp { f }, &[a, b])
    }

    /// `a + b`
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Sub, a, b)
    }

    /// `a * b`
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b`
    pub fn div(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(Binary::Div, a, b)
    }

    /// `x * factor`
    pub fn scale(&mut self, x: ValueId, factor: f64) -> ValueId {
        let c = self.number_like(x, factor);
        self.mul(x, c)
    }

    /// `x + c`
    pub fn offset(&mut self, x: ValueId, c: f64) -> ValueId {
        let c = self.number_like(x, c);
        self.add(x, c)
    }

    /// `a` where `condition`, else `b`
    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> ValueId {
        self.op(elementwise::Where {}, &[condition, a, b])
    }

    /// Elements of another type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> ValueId {
        if self.ty(x).dtype == dtype {
            return x;
        }
        let node = self.graph().def(x);
        // Numbers of 16 bits come back from f32 as they were.
        let widened = (matches!(node.op, Op::Cast(_)) && !self.ty(x).dtype.is_half()).then(|| node.operands[0]);
        match widened.filter(|from| self.ty(x).dtype.is_float() && dtype.is_half() && self.ty(*from).dtype == dtype) {
            Some(from) => from,
            None => self.op(elementwise::Cast { dtype }, &[x]),
        }
    }

    /// A reduction over `axes`, which disappear.
    pub fn reduce(&mut self, kind: ReduceKind, x: ValueId, axes: &[usize]) -> ValueId {
        if axes.is_empty() { x } else { self.op(reduce::Reduce::new(kind, axes.to_vec()), &[x]) }
    }

    /// The sum over `axes`, which disappear.
    pub fn sum(&mut self, x: ValueId, axes: &[usize]) -> ValueId {
        self.reduce(ReduceKind::Sum, x, axes)
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        if self.ty(x).shape == shape { x } else { self.op(layout::Reshape { shape: shape.to_vec() }, &[x]) }
    }

    /// Dimensions in another order.
    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> ValueId {
        if perm.iter().enumerate().all(|(i, p)| i == *p) { x } else { self.op(layout::Transpose { perm: perm.to_vec() }, &[x]) }
    }

    /// Repeated along new or size-1 dimensions.
    pub fn broadcast(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        if self.ty(x).shape == shape { x } else { self.op(layout::Broadcast { shape: shape.to_vec() }, &[x]) }
    }

    /// Summed over the dimensions along which a value of `shape` would be broadcast to `x`.
    pub fn sum_to(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        let from = self.ty(x).shape.clone();
        let skip = from.len() - shape.len();
        let axes: Vec<usize> = (0..from.len()).filter(|d| *d < skip || (shape[*d - skip] == 1 && from[*d] != 1)).collect();
        let summed = self.sum(x, &axes);
        self.reshape(summed, shape)
    }
}
