//! One node while it is imported: its inputs, its attributes, and ops that fold where every operand
//! is known.

use crate::onnx::file::record;
use crate::onnx::import::context::ImportContext;
use crate::onnx::import::kinds;
use crate::onnx::import::value::Value;
use shardc_ir::dtype::DType;
use shardc_ir::graph::ValueId;
use shardc_ir::ops::Op;
use shardc_ir::ops::elementwise::{BinaryOp, Cast, UnaryFn, UnaryOp, Where};
use shardc_ir::ops::index::Range;
use shardc_ir::ops::layout::{Broadcast, Reshape, Transpose};
use shardc_ir::ops::reduce::Reduce;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::Binary;
use shardc_ir::types::{Tensor, Type, checked_elements};
use std::cell::Cell;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

/// A node that is being imported.
pub(in crate::onnx) struct Call<'c, 'm> {
    /// The context that takes the ops.
    pub context: &'c mut ImportContext<'m>,
    /// The node.
    pub node: &'m pb::NodeProto,
    /// Its inputs; `None` where one is left out.
    pub inputs: Vec<Option<Value>>,
    /// Its position in the graph.
    pub position: usize,
    read: Vec<&'static str>,
    /// How many inputs the rule asked for.
    asked: Cell<usize>,
}

/// Inputs.
impl<'c, 'm> Call<'c, 'm> {
    /// A call of `node` with `inputs`.
    pub fn new(context: &'c mut ImportContext<'m>, position: usize, inputs: Vec<Option<Value>>) -> Self {
        let node = &context.file.graph().node[position];
        Call { context, node, inputs, position, read: vec![], asked: Cell::new(0) }
    }

    /// The version of the default op set.
    pub fn opset(&self) -> i64 {
        let file = self.context.file;
        file.sources[self.position].opset.or_else(|| file.opset()).unwrap_or(0)
    }

    /// The exporter's record of it.
    pub fn traced(&self) -> Option<&'m record::Call> {
        self.context.file.traced(self.position)
    }

    /// The ONNX element type of output `i`, as far as it is known.
    pub fn result_kind(&self, i: usize) -> Option<DataType> {
        kinds::result(self.node, i, |input| self.kind(input))
            .or_else(|| self.context.kinds.get(self.node.output.get(i)?.as_str()).copied())
    }

    /// Input `i`, which must be there.
    pub fn input(&self, i: usize) -> Result<Value, Reason> {
        self.optional(i).ok_or_else(|| reason!("input {i} is missing"))
    }

    /// Input `i`, if it is there.
    pub fn optional(&self, i: usize) -> Option<Value> {
        self.asked.set(self.asked.get().max(i + 1));
        self.inputs.get(i).cloned().flatten()
    }

    /// The ONNX element type of input `i`, as far as it is known.
    pub fn kind(&self, i: usize) -> Option<DataType> {
        self.context.kinds.get(self.node.input.get(i)?.as_str()).copied()
    }

    /// Every input, all of which must be there.
    pub fn all_inputs(&self) -> Result<Vec<Value>, Reason> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// Input `i`, whose elements must be known.
    pub fn known(&self, i: usize, what: &str) -> Result<Tensor, Reason> {
        match self.input(i)? {
            Value::Known(tensor) => Ok(tensor),
            _ => Err(reason!("its {what} depends on an input's values; only constant ones are supported")),
        }
    }

    /// Input `i` as known integers.
    pub fn ints(&self, i: usize, what: &str) -> Result<Vec<i64>, Reason> {
        let tensor = self.known(i, what)?;
        if tensor.ty.dtype != DType::I64 || tensor.ty.rank() > 1 {
            return Err(reason!("its {what} is {}, not a list of integers", tensor.ty));
        }
        Ok(tensor.to_i64())
    }

    /// Input `i` as known integers, or the attribute of that name as older op sets have it; `None`
    /// if neither is there.
    pub fn ints_or_attribute(&mut self, i: usize, name: &'static str) -> Result<Option<Vec<i64>>, Reason> {
        let attribute = self.attribute_ints(name)?;
        match self.optional(i) {
            Some(_) => self.ints(i, name).map(Some),
            None => Ok(attribute),
        }
    }
}

/// Attributes.
impl<'m> Call<'_, 'm> {
    fn attribute(&mut self, name: &'static str, kind: AttributeType) -> Result<Option<&'m pb::AttributeProto>, Reason> {
        self.read.push(name);
        let Some(attribute) = self.node.attribute.iter().find(|a| a.name == name) else { return Ok(None) };
        if !attribute.ref_attr_name.is_empty() {
            return Err(reason!("attribute `{name}` refers to one of a function, outside any"));
        }
        if attribute.r#type != kind as i32 {
            return Err(reason!("attribute `{name}` is not of type {}", kind.as_str_name().to_lowercase()));
        }
        Ok(Some(attribute))
    }

    /// An integer attribute.
    pub fn attribute_int(&mut self, name: &'static str, default: i64) -> Result<i64, Reason> {
        Ok(self.attribute(name, AttributeType::Int)?.map_or(default, |a| a.i))
    }

    /// A float attribute.
    pub fn attribute_float(&mut self, name: &'static str, default: f64) -> Result<f64, Reason> {
        // Through the decimal that was meant: 1e-5, not 0.0000099999997.
        let decimal = |v: f32| v.to_string().parse().unwrap_or(f64::from(v));
        match self.attribute(name, AttributeType::Float)?.map(|a| a.f) {
            Some(value) if value.is_nan() => Err(reason!("attribute `{name}` is not a number")),
            value => Ok(value.map_or(default, decimal)),
        }
    }

    /// A float attribute that is a finite number.
    pub fn attribute_finite(&mut self, name: &'static str, default: f64) -> Result<f64, Reason> {
        let value = self.attribute_float(name, default)?;
        if value.is_finite() { Ok(value) } else { Err(reason!("attribute `{name}` is {value}")) }
    }

    /// A list of integers.
    pub fn attribute_ints(&mut self, name: &'static str) -> Result<Option<Vec<i64>>, Reason> {
        Ok(self.attribute(name, AttributeType::Ints)?.map(|a| a.ints.clone()))
    }

    /// A list of floats.
    pub fn attribute_floats(&mut self, name: &'static str) -> Result<Option<Vec<f64>>, Reason> {
        Ok(self.attribute(name, AttributeType::Floats)?.map(|a| a.floats.iter().map(|v| f64::from(*v)).collect()))
    }

    /// A string.
    pub fn attribute_string(&mut self, name: &'static str, default: &str) -> Result<String, Reason> {
        let Some(attribute) = self.attribute(name, AttributeType::String)? else { return Ok(default.to_string()) };
        String::from_utf8(attribute.s.clone()).map_err(|_| reason!("attribute `{name}` is not text"))
    }

    /// A list of strings, empty where there is none.
    pub fn attribute_strings(&mut self, name: &'static str) -> Result<Vec<String>, Reason> {
        let strings = self.attribute(name, AttributeType::Strings)?.map(|a| a.strings.clone()).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_| reason!("attribute `{name}` is not text"));
        strings.into_iter().map(text).collect()
    }

    /// A tensor.
    pub fn attribute_tensor(&mut self, name: &'static str) -> Result<Option<Tensor>, Reason> {
        if self.attribute(name, AttributeType::Tensor)?.is_none() {
            return Ok(None);
        }
        let index = self.node.attribute.iter().position(|a| a.name == name).ok_or("no attribute")?;
        self.context.attribute_tensor(self.position, index).map(Some)
    }

    /// A reason to refuse the node, with what the user can do.
    pub fn refused(&mut self, why: Reason, help: &'static str) -> Reason {
        self.context.help = Some(help);
        why
    }

    /// Marks an attribute as one that does not matter here.
    pub fn ignore(&mut self, name: &'static str) {
        self.read.push(name);
    }

    /// Whether the node has an attribute.
    pub fn has_attribute(&self, name: &str) -> bool {
        self.node.attribute.iter().any(|a| a.name == name)
    }

    /// The first input behind all that somebody asked for.
    pub fn surplus(&self) -> Option<usize> {
        (self.asked.get()..self.inputs.len()).find(|i| self.inputs[*i].is_some())
    }

    /// The attributes that nobody asked for.
    pub fn unread(&self) -> Vec<&'m str> {
        self.node.attribute.iter().map(|a| a.name.as_str()).filter(|name| !self.read.contains(name)).collect()
    }
}

/// Ops.
impl Call<'_, '_> {
    /// The type of a tensor.
    pub fn ty(&self, value: &Value) -> Result<Type, Reason> {
        self.context.ty(value)
    }

    /// The shape of a tensor.
    pub fn shape(&self, value: &Value) -> Result<Vec<u64>, Reason> {
        Ok(self.ty(value)?.shape)
    }

    /// The dimension that `axis` names, counted from the end where it is negative.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, Reason> {
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(from_start).ok().filter(|a| *a < rank).ok_or_else(|| reason!("axis {axis} of {rank} dimensions"))
    }

    /// The dimensions that `axes` name, ascending, each once.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, Reason> {
        let mut found: Vec<usize> = axes.iter().map(|a| self.axis(*a, rank)).collect::<Result<_, _>>()?;
        found.sort();
        if found.windows(2).any(|w| w[0] == w[1]) {
            return Err(reason!("axes {axes:?} name a dimension twice"));
        }
        Ok(found)
    }

    /// The results of `op`, computed now if every operand is known.
    pub fn emit_all(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Vec<Value>, Reason> {
        self.context.emit(op.into(), operands)
    }

    /// The first result of `op`.
    pub fn emit(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Value, Reason> {
        self.emit_all(op, operands)?.into_iter().next().ok_or_else(|| "it has no result".into())
    }

    /// An op with numpy broadcasting; constants are reduced to the dimensions along which they
    /// vary.
    pub fn elementwise(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Value, Reason> {
        let operands = self.context.shrink_constants(operands)?;
        self.emit(op, &operands)
    }

    /// `f(x)`
    pub fn unary(&mut self, f: impl Into<UnaryFn>, x: &Value) -> Result<Value, Reason> {
        self.emit(UnaryOp { f: f.into() }, std::slice::from_ref(x))
    }

    /// `f(a, b)` with broadcasting
    pub fn binary(&mut self, f: Binary, a: &Value, b: &Value) -> Result<Value, Reason> {
        self.elementwise(BinaryOp { f }, &[a.clone(), b.clone()])
    }

    /// `a` where the condition holds, else `b`, with broadcasting
    pub fn select(&mut self, condition: &Value, a: &Value, b: &Value) -> Result<Value, Reason> {
        self.elementwise(Where {}, &[condition.clone(), a.clone(), b.clone()])
    }

    /// A known scalar of the element type of `like`.
    pub fn number(&self, like: &Value, value: f64) -> Result<Value, Reason> {
        Ok(Value::Known(Tensor::scalar(self.ty(like)?.dtype, value)))
    }

    /// Truth in the shape of `like`.
    pub fn truth_like(&mut self, like: &Value) -> Result<Value, Reason> {
        let shape = self.shape(like)?;
        self.broadcast(&Value::Known(Tensor::scalar(DType::Bool, 1.0)), shape)
    }

    /// `f(x, c)`
    pub fn with_number(&mut self, f: Binary, x: &Value, c: f64) -> Result<Value, Reason> {
        let c = self.number(x, c)?;
        self.binary(f, x, &c)
    }

    /// `x * factor`
    pub fn scale(&mut self, x: &Value, factor: f64) -> Result<Value, Reason> {
        if factor == 1.0 { Ok(x.clone()) } else { self.with_number(Binary::Mul, x, factor) }
    }

    /// The same numbers as another element type.
    pub fn cast(&mut self, x: &Value, dtype: DType) -> Result<Value, Reason> {
        if self.ty(x)?.dtype == dtype { Ok(x.clone()) } else { self.emit(Cast { dtype }, std::slice::from_ref(x)) }
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: &Value, shape: Vec<u64>) -> Result<Value, Reason> {
        if self.shape(x)? == shape { Ok(x.clone()) } else { self.emit(Reshape { shape }, std::slice::from_ref(x)) }
    }

    /// Dimensions in another order.
    pub fn transpose(&mut self, x: &Value, perm: Vec<usize>) -> Result<Value, Reason> {
        if perm.iter().copied().eq(0..self.ty(x)?.rank()) {
            return Ok(x.clone());
        }
        self.emit(Transpose { perm }, std::slice::from_ref(x))
    }

    /// Repeated as numpy broadcasts.
    pub fn broadcast(&mut self, x: &Value, shape: Vec<u64>) -> Result<Value, Reason> {
        if self.shape(x)? == shape {
            return Ok(x.clone());
        }
        checked_elements(&shape).ok_or_else(|| reason!("a shape of {shape:?} is too large"))?;
        self.emit(Broadcast { shape }, std::slice::from_ref(x))
    }

    /// The positions along dimension `d` of a shape, to be broadcast to it.
    pub fn positions(&mut self, shape: &[u64], d: usize) -> Result<Value, Reason> {
        let along = self.emit(Range { size: shape[d] }, &[])?;
        let mut column = vec![1; shape.len() - d];
        column[0] = shape[d];
        self.reshape(&along, column)
    }

    /// The values that `x` is joined of along `axis`, known ones with their elements; `x` alone if
    /// it is not.
    pub fn joined(&self, x: &Value, axis: usize) -> Vec<Value> {
        let graph = self.context.b.graph();
        if let Value::Graph(id) = x
            && let node = graph.def(*id)
            && matches!(&node.op, Op::Concat(concat) if concat.axis == axis)
        {
            let piece = |id: &ValueId| match &graph.def(*id).op {
                Op::Constant(constant) => Value::Known(constant.value.clone()),
                _ => Value::Graph(*id),
            };
            return node.operands.iter().map(piece).collect();
        }
        vec![x.clone()]
    }

    /// A reduction over `axes`, which disappear.
    pub fn reduce(&mut self, kind: ReduceKind, x: &Value, axes: &[usize]) -> Result<Value, Reason> {
        if axes.is_empty() { Ok(x.clone()) } else { self.emit(Reduce::new(kind, axes.to_vec()), std::slice::from_ref(x)) }
    }
}
