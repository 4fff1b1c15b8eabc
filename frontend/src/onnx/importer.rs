//! The state of an import: what each name of the model is by now, and the graph so far.

use super::budget::Budget;
use super::call::Call;
use super::control;
use super::integers;
use super::kinds::kinds;
use super::model_file::{Branch, ModelFile, Owner};
use super::table;
use super::tensor::Weight;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::dtype::DType;
use shardc_ir::graph::ValueId;
use shardc_ir::interp::{self, work};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Constant;
use shardc_ir::types::{Tensor, Type, checked_elements};
use std::collections::HashMap;
use std::sync::Arc;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A constant that the import makes is held as numbers, as a tensor of the graph and in the plan.
const BYTES_OF_A_MADE_ELEMENT: u64 = 24;

/// What a name of the model stands for.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// A tensor whose elements are known.
    Known(Tensor),
    /// A value of the graph.
    Graph(ValueId),
    /// A list of tensors, which exists in the model only.
    Sequence(Arc<Vec<Value>>),
}

/// An import under way.
pub(super) struct Importer<'m> {
    /// The model.
    pub file: &'m ModelFile,
    /// The element type of all floats, if they change.
    pub float: Option<DType>,
    /// The graph so far.
    pub b: Builder,
    /// All errors so far.
    pub errors: Diagnostics,
    /// Dropouts that training draws masks for.
    pub dropouts: u32,
    /// Dropouts that the model has for evaluation only.
    pub idle_dropouts: Vec<String>,
    values: HashMap<&'m str, Option<Value>>,
    /// Initializers that are constants, until somebody needs them.
    constants: HashMap<&'m str, Weight>,
    nodes_of_constants: HashMap<(Type, Arc<Vec<u8>>), ValueId>,
    /// By address, to hash large constants once; the tensor keeps the address taken.
    known_constants: HashMap<(Type, usize), (Tensor, ValueId)>,
    /// What may still be folded.
    budget: Budget,
    /// The ONNX element types of values.
    pub kinds: HashMap<&'m str, DataType>,
    /// The first output of the node that is being imported: what its other values are called after.
    base: &'m str,
}

impl<'m> Importer<'m> {
    /// Nothing imported yet.
    pub fn new(file: &'m ModelFile, float: Option<DType>, b: Builder) -> Self {
        Importer {
            file,
            float,
            b,
            errors: vec![],
            dropouts: 0,
            idle_dropouts: vec![],
            values: HashMap::new(),
            constants: HashMap::new(),
            nodes_of_constants: HashMap::new(),
            known_constants: HashMap::new(),
            budget: Budget::new(file.bytes.len() as u64),
            kinds: kinds(file),
            base: "",
        }
    }

    /// Says what `name` is.
    pub fn define(&mut self, name: &'m str, value: Value) {
        self.values.insert(name, Some(value));
    }

    /// Says that `name` is an initializer whose elements are constants.
    pub fn define_constant(&mut self, name: &'m str, weight: Weight) {
        self.constants.insert(name, weight);
    }

    /// What `name` is, for the reader `what`; `None` after an error that was reported.
    pub fn value(&mut self, name: &'m str, what: impl Fn() -> String) -> Option<Value> {
        if let Some(value) = self.values.get(name) {
            return value.clone();
        }
        let value = match self.constants.get(name).map(Weight::load) {
            Some(Ok(tensor)) => {
                self.budget.earn(self.constants[name].external_file().map_or(0, |_| tensor.bytes.len() as u64));
                Some(Value::Known(tensor))
            }
            Some(Err(error)) => {
                self.errors.push(error);
                None
            }
            None => {
                let message = format!("`{name}` is read, but nothing defines it");
                self.errors.push(Diagnostic::error(message).at(self.file.place(what())));
                None
            }
        };
        self.values.insert(name, value.clone());
        value
    }

    /// Imports the node at `position`; its outputs are undefined after an error.
    pub fn node(&mut self, position: usize) {
        let file = self.file;
        let node = &file.graph().node[position];
        if !self.is_taken(file.sources[position].branch) {
            self.values.extend(node.output.iter().map(|name| (name.as_str(), None)));
            return;
        }
        let inputs: Vec<Option<Option<Value>>> = node
            .input
            .iter()
            .map(|name| if name.is_empty() { None } else { Some(self.value(name, || super::node_text(node))) })
            .collect();
        // The outputs of the branch that is not taken are never there.
        let needed = if control::is_if(node) { 1 } else { inputs.len() };
        let failed = inputs.iter().take(needed).any(|i| matches!(i, Some(None)));
        let outputs = if failed {
            None
        } else {
            self.call(position, inputs.into_iter().map(Option::flatten).collect())
                .map_err(|why| self.errors.push(Diagnostic::error(why).at(file.place(super::node_text(node)))))
                .ok()
        };
        let mut outputs = outputs.into_iter().flatten();
        for name in &node.output {
            self.values.insert(name, outputs.next());
        }
    }

    /// Whether every condition around a branch is known and as the branch needs it.
    fn is_taken(&self, mut branch: Option<usize>) -> bool {
        while let Some(inner) = branch {
            let Branch { condition, taken, outer } = &self.file.branches[inner];
            let value = match self.values.get(condition.as_str()) {
                Some(value) => value.as_ref().and_then(Value::tensor),
                None => self.constants.get(condition.as_str()).and_then(|weight| weight.load().ok()),
            };
            if value.is_none_or(|value| value.to_i64().first().map(|v| *v != 0) != Some(*taken)) {
                return false;
            }
            branch = *outer;
        }
        true
    }

    fn call(&mut self, position: usize, inputs: Vec<Option<Value>>) -> Result<Vec<Value>, String> {
        let node = &self.file.graph().node[position];
        let rule = table::rule(node).ok_or("the op is not supported")?;
        let before = self.b.graph().value_count();
        self.base = node.output.iter().map(String::as_str).find(|n| !n.is_empty()).unwrap_or(&node.name);
        let mut call = Call::new(self, position, inputs);
        let values = rule(&mut call)?;
        let values = integers::wrapped(&mut call, values)?;
        let kinds: Vec<_> = (0..node.output.len()).map(|i| call.result_kind(i)).collect();
        if let [name, ..] = call.unread()[..] {
            return Err(format!("attribute `{name}` is not supported"));
        }
        if let Some(i) = call.surplus() {
            return Err(format!("input {i} is not supported"));
        }
        for (name, kind) in node.output.iter().zip(kinds) {
            kind.map(|kind| self.kinds.insert(name, kind));
        }
        let wanted = node.output.iter().rposition(|n| !n.is_empty()).map_or(0, |i| i + 1);
        if wanted > values.len() {
            return Err(format!("output {} is not supported", values.len()));
        }
        for (value, name) in values.iter().zip(&node.output) {
            match value {
                Value::Graph(id) if id.index() >= before && !name.is_empty() => self.b.rename(*id, name),
                _ => {}
            }
        }
        Ok(values)
    }

    /// The type of a tensor.
    pub fn ty(&self, value: &Value) -> Result<Type, String> {
        match value {
            Value::Known(tensor) => Ok(tensor.ty.clone()),
            Value::Graph(id) => Ok(self.b.ty(*id).clone()),
            Value::Sequence(_) => Err("a sequence stands where a tensor is expected".into()),
        }
    }

    /// The results of `op`: computed now if every operand is known and that is not too much work, else a node's.
    pub fn emit(&mut self, op: Op, operands: &[Value]) -> Result<Vec<Value>, String> {
        let types: Vec<Type> = operands.iter().map(|v| self.ty(v)).collect::<Result<_, _>>()?;
        let results = op.rules().result(&types)?;
        let elements: Option<Vec<u64>> = results.iter().map(|ty| checked_elements(&ty.shape)).collect();
        let elements = elements.ok_or_else(|| format!("its result would be {}, which is too large", list(&results)))?;
        let known: Option<Vec<Tensor>> = operands.iter().map(Value::tensor).collect();
        let bytes: u64 = results.iter().zip(&elements).map(|(ty, n)| n * ty.dtype.bytes()).sum();
        match known {
            Some(known) if self.budget.spend(work::operations(&op, &types, &results), bytes) => {
                Ok(interp::evaluate(&op, &known)?.into_iter().map(Value::Known).collect())
            }
            _ => {
                let ids: Vec<ValueId> = operands.iter().map(|v| self.materialize(v)).collect::<Result<_, _>>()?;
                let name = format!("{}.{}", self.base, op.name());
                Ok(self.b.push(op, &ids, results, &name).into_iter().map(Value::Graph).collect())
            }
        }
    }

    /// Allows a constant of that shape, whose elements a rule makes from a few numbers of the file.
    pub fn allow(&mut self, shape: &[u64]) -> Result<(), String> {
        match checked_elements(shape) {
            Some(n) if self.budget.spend(n, n.saturating_mul(BYTES_OF_A_MADE_ELEMENT)) => Ok(()),
            _ => Err(format!("it makes a constant of {shape:?} elements, which is too much for a model of this size")),
        }
    }

    /// A value of the graph; equal constants share one node.
    pub fn materialize(&mut self, value: &Value) -> Result<ValueId, String> {
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
    pub fn attribute_tensor(&self, node: usize, attribute: usize) -> Result<Tensor, String> {
        let proto: &pb::AttributeProto = &self.file.graph().node[node].attribute[attribute];
        let tensor = proto.t.as_ref().ok_or_else(|| format!("attribute `{}` has no value", proto.name))?;
        let weight = Weight::of(self.file, Owner::Attribute(node, attribute), tensor, self.float)?;
        weight.load().map_err(|e| e.message)
    }
}

impl Value {
    /// Its elements, if they are known.
    pub fn tensor(&self) -> Option<Tensor> {
        match self {
            Value::Known(tensor) => Some(tensor.clone()),
            _ => None,
        }
    }
}

fn list(types: &[Type]) -> String {
    types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ")
}
