//! The state of an import: the graph so far, the constants folded, and the budget for more.

use crate::onnx::file::model_file::{ModelFile, Owner};
use crate::onnx::file::tensor::Weight;
use crate::onnx::import::budget::Budget;
use crate::onnx::import::kinds::kinds;
use crate::onnx::import::value::Value;
use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::ValueId;
use shardc_ir::interp::{self, work};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Constant;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type, checked_elements};
use std::collections::HashMap;
use std::sync::Arc;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A constant that the import makes is held as numbers, as a tensor of the graph and in the plan.
const BYTES_OF_A_MADE_ELEMENT: u64 = 24;

/// A truth value is a byte in both.
const BYTES_OF_A_MADE_TRUTH: u64 = 3;

/// The context into which the nodes of a model are imported.
pub(in crate::onnx) struct ImportContext<'m> {
    /// The model.
    pub file: &'m ModelFile,
    /// The element type of all floats, if they change.
    pub float: Option<DType>,
    /// The graph so far.
    pub b: Builder,
    /// Dropouts that training draws masks for.
    pub dropouts: u32,
    /// Dropouts that the model has for evaluation only.
    pub idle_dropouts: Vec<String>,
    /// The ONNX element types of values.
    pub kinds: HashMap<&'m str, DataType>,
    /// The folding that is still allowed.
    pub budget: Budget,
    /// The first output of the node that is being imported: what its other values are called after.
    pub base: &'m str,
    /// What the user can do, where the rule of that node refuses it and knows.
    pub help: Option<&'static str>,
    nodes_of_constants: HashMap<(Type, Arc<Vec<u8>>), ValueId>,
    /// By address, to hash large constants once; the tensor keeps the address taken.
    known_constants: HashMap<(Type, usize), (Tensor, ValueId)>,
}

impl<'m> ImportContext<'m> {
    /// Nothing imported yet.
    pub fn new(file: &'m ModelFile, float: Option<DType>, b: Builder) -> Self {
        ImportContext {
            file,
            float,
            b,
            dropouts: 0,
            idle_dropouts: vec![],
            kinds: kinds(file),
            budget: Budget::new(file.bytes.len() as u64),
            base: "",
            help: None,
            nodes_of_constants: HashMap::new(),
            known_constants: HashMap::new(),
        }
    }

    /// The type of a tensor.
    pub fn ty(&self, value: &Value) -> Result<Type, Reason> {
        match value {
            Value::Known(tensor) => Ok(tensor.ty.clone()),
            Value::Graph(id) => Ok(self.b.ty(*id).clone()),
            Value::Sequence(_) => Err("a sequence stands where a tensor is expected".into()),
        }
    }

    /// The results of `op`: computed now if every operand is known and that is not too much work,
    /// else a node's.
    pub fn emit(&mut self, op: Op, operands: &[Value]) -> Result<Vec<Value>, Reason> {
        let types: Vec<Type> = operands.iter().map(|v| self.ty(v)).collect::<Result<_, _>>()?;
        let results = op.rules().result(&types)?;
        let elements: Option<Vec<u64>> = results.iter().map(|ty| checked_elements(&ty.shape)).collect();
        let elements = elements.ok_or_else(|| reason!("its result would be {}, which is too large", list(&results)))?;
        let known: Option<Vec<Tensor>> = operands.iter().map(Value::tensor).collect();
        let bytes: u64 = results.iter().zip(&elements).map(|(ty, n)| n * ty.dtype.bytes()).sum();
        let bytes = bytes.saturating_add(work::room(&op, &types, &results));
        match known {
            Some(known) if self.budget.spend(work::operations(&op, &types, &results), bytes) => {
                Ok(interp::evaluate(&op, &known)?.into_iter().map(Value::Known).collect())
            }
            _ => {
                self.write(operands.len() + results.len())?;
                let ids: Vec<ValueId> = operands.iter().map(|v| self.materialize(v)).collect::<Result<_, _>>()?;
                let name = format!("{}.{}", self.base, op.name());
                Ok(self.b.push(op, &ids, results, &name).into_iter().map(Value::Graph).collect())
            }
        }
    }

    /// Allows the graph so many operands and results more.
    pub fn write(&mut self, values: usize) -> Result<(), Reason> {
        if self.budget.write(values) { Ok(()) } else { Err("the graph is too large for a model of this size".into()) }
    }

    /// Allows a constant of that shape, whose elements a rule makes from a few numbers of the file.
    pub fn allow(&mut self, shape: &[u64]) -> Result<(), Reason> {
        self.allow_bytes(shape, BYTES_OF_A_MADE_ELEMENT)
    }

    /// [`Self::allow`] of truth values, which are made as they are held.
    pub fn allow_truths(&mut self, shape: &[u64]) -> Result<(), Reason> {
        self.allow_bytes(shape, BYTES_OF_A_MADE_TRUTH)
    }

    fn allow_bytes(&mut self, shape: &[u64], bytes: u64) -> Result<(), Reason> {
        match checked_elements(shape) {
            Some(n) if self.budget.spend(n, n.saturating_mul(bytes)) => Ok(()),
            _ => Err(reason!("it makes a constant of {shape:?} elements, which is too much for a model of this size")),
        }
    }

    /// A value of the graph; equal constants share one node.
    pub fn materialize(&mut self, value: &Value) -> Result<ValueId, Reason> {
        match value {
            Value::Graph(id) => Ok(*id),
            Value::Known(tensor) => Ok(self.constant(tensor)),
            Value::Sequence(_) => Err("a sequence stands where a tensor is expected".into()),
        }
    }

    fn constant(&mut self, tensor: &Tensor) -> ValueId {
        let address = (tensor.ty.clone(), Arc::as_ptr(&tensor.bytes) as usize);
        if let Some((_, id)) = self.known_constants.get(&address) {
            return *id;
        }
        let key = (tensor.ty.clone(), tensor.bytes.clone());
        let id = self.nodes_of_constants.get(&key).copied().unwrap_or_else(|| {
            let (op, name) = (Constant { value: tensor.clone() }, format!("{}.constant", self.base));
            self.b.push(op.into(), &[], vec![tensor.ty.clone()], &name)[0]
        });
        self.nodes_of_constants.insert(key, id);
        self.known_constants.insert(address, (tensor.clone(), id));
        id
    }

    /// The tensor attribute at `attribute` of the node at `node`.
    pub fn attribute_tensor(&self, node: usize, attribute: usize) -> Result<Tensor, Reason> {
        let proto: &pb::AttributeProto = &self.file.graph().node[node].attribute[attribute];
        let tensor = proto.t.as_ref().ok_or_else(|| reason!("attribute `{}` has no value", proto.name))?;
        let weight = Weight::of(self.file, Owner::Attribute(node, attribute), tensor, self.float)?;
        weight.load().map_err(|e| e.message.into())
    }
}

fn list(types: &[Type]) -> String {
    types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ")
}
