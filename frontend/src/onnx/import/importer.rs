//! An import under way: what each name of the model is by now.

use crate::onnx::file::model_file::{Branch, ModelFile};
use crate::onnx::file::node::{is_if, node_text};
use crate::onnx::file::tensor::Weight;
use crate::onnx::import::call::Call;
use crate::onnx::import::context::ImportContext;
use crate::onnx::import::value::Value;
use crate::onnx::ops::integers;
use crate::onnx::ops::table;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::HashMap;

/// The bytes of a node's name that the names of what is made of it begin with.
const LONGEST_BASE: usize = 200;

/// An import under way.
pub(in crate::onnx) struct Importer<'m> {
    /// The context that takes the nodes.
    pub context: ImportContext<'m>,
    /// All errors so far.
    pub errors: Diagnostics,
    values: HashMap<&'m str, Option<Value>>,
    /// Initializers that are constants, until somebody needs them.
    constants: HashMap<&'m str, Weight>,
    /// How often each name will still be read by nodes; none is kept whose last reader has come.
    readers: HashMap<&'m str, usize>,
}

impl<'m> Importer<'m> {
    /// Nothing imported yet.
    pub fn new(file: &'m ModelFile, float: Option<DType>, b: Builder) -> Self {
        let context = ImportContext::new(file, float, b);
        Importer { context, errors: vec![], values: HashMap::new(), constants: HashMap::new(), readers: HashMap::new() }
    }

    /// Says which nodes will be imported.
    pub fn expect(&mut self, order: &[usize]) {
        let file = self.context.file;
        let inputs = order.iter().flat_map(|position| &file.graph().node[*position].input);
        // Nodes in a branch ask for its condition, and the outputs come last.
        let conditions = file.branches.iter().map(|branch| &branch.condition);
        let outputs = file.graph().output.iter().map(|output| &output.name);
        for name in inputs.chain(conditions).chain(outputs) {
            *self.readers.entry(name).or_default() += 1;
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

    /// The value called `name`, for the reader `what`; `None` after an error that was reported.
    pub fn value(&mut self, name: &'m str, what: impl Fn() -> String) -> Option<Value> {
        if let Some(value) = self.values.get(name) {
            return value.clone();
        }
        let value = match self.constants.get(name).map(Weight::load) {
            Some(Ok(tensor)) => {
                self.context.budget.earn(self.constants[name].external_file().map_or(0, |_| tensor.bytes.len() as u64));
                Some(Value::Known(tensor))
            }
            Some(Err(error)) => {
                self.errors.push(error);
                None
            }
            None => {
                let message = format!("`{name}` is read, but nothing defines it");
                self.errors.push(Diagnostic::error(message).at(self.context.file.place(what())));
                None
            }
        };
        self.values.insert(name, value.clone());
        value
    }

    /// Imports the node at `position`; its outputs are undefined after an error.
    pub fn node(&mut self, position: usize) {
        self.import(position);
        for name in &self.context.file.graph().node[position].input {
            if let Some(left) = self.readers.get_mut(name.as_str()) {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.values.remove(name.as_str());
                }
            }
        }
    }

    fn import(&mut self, position: usize) {
        let file = self.context.file;
        let node = &file.graph().node[position];
        if !self.is_taken(file.sources[position].branch) {
            self.values.extend(node.output.iter().map(|name| (name.as_str(), None)));
            return;
        }
        let inputs: Vec<Option<Option<Value>>> = node
            .input
            .iter()
            .map(|name| if name.is_empty() { None } else { Some(self.value(name, || node_text(node))) })
            .collect();
        // The outputs of the branch that is not taken are never there.
        let needed = if is_if(node) { 1 } else { inputs.len() };
        let failed = inputs.iter().take(needed).any(|i| matches!(i, Some(None)));
        let outputs = if failed {
            None
        } else {
            let outputs = self.call(position, inputs.into_iter().map(Option::flatten).collect());
            outputs.map_err(|why| self.refuse(position, why)).ok()
        };
        let mut outputs = outputs.into_iter().flatten();
        for name in &node.output {
            self.values.insert(name, outputs.next());
        }
    }

    /// Whether every condition around a branch is known and as the branch needs it.
    fn is_taken(&self, mut branch: Option<usize>) -> bool {
        while let Some(inner) = branch {
            let Branch { condition, taken, outer } = &self.context.file.branches[inner];
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

    /// Says why a node is not imported.
    fn refuse(&mut self, position: usize, why: Reason) {
        let file = self.context.file;
        let error = Diagnostic::error(why).at(file.place(node_text(&file.graph().node[position])));
        self.errors.push(match self.context.help {
            Some(help) => error.help(help),
            None => error,
        });
    }

    fn call(&mut self, position: usize, inputs: Vec<Option<Value>>) -> Result<Vec<Value>, Reason> {
        let node = &self.context.file.graph().node[position];
        self.context.help = None;
        let rule = table::rule(node).ok_or("the op is not supported")?;
        let before = self.context.b.graph().value_count();
        let name = node.output.iter().map(String::as_str).find(|n| !n.is_empty()).unwrap_or(&node.name);
        self.context.base = &name[..name.floor_char_boundary(LONGEST_BASE)];
        let mut call = Call::new(&mut self.context, position, inputs);
        let values = rule(&mut call)?;
        let values = integers::wrapped(&mut call, values)?;
        let kinds: Vec<_> = (0..node.output.len()).map(|i| call.result_kind(i)).collect();
        if let [name, ..] = call.unread()[..] {
            return Err(reason!("attribute `{name}` is not supported"));
        }
        if let Some(i) = call.surplus() {
            return Err(reason!("input {i} is not supported"));
        }
        for (name, kind) in node.output.iter().zip(kinds) {
            kind.map(|kind| self.context.kinds.insert(name, kind));
        }
        let wanted = node.output.iter().rposition(|n| !n.is_empty()).map_or(0, |i| i + 1);
        if wanted > values.len() {
            return Err(reason!("output {} is not supported", values.len()));
        }
        for (value, name) in values.iter().zip(&node.output) {
            match value {
                Value::Graph(id) if id.index() >= before && !name.is_empty() => self.context.b.rename(*id, name),
                _ => {}
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::file::{inline, order};
    use prost::Message;
    use shardc_ir::graph::Phase;
    use shardc_ir::mesh::Mesh;
    use shardc_testkit::onnx::{ints, model, node, output, tensor};
    use std::path::Path;

    #[test]
    fn a_value_is_kept_until_its_last_reader() {
        let mut m = model(20);
        node(&mut m, "Constant", "", "a", vec![tensor("value", ints("", &[2], &[1, 2]))]);
        for (inputs, result) in [("a a", "b"), ("a b", "c"), ("c c", "y")] {
            node(&mut m, "Add", inputs, result, vec![]);
        }
        ["b", "y"].iter().for_each(|name| output(&mut m, name));
        let file = ModelFile::from_bytes(Path::new("test.onnx"), m.encode_to_vec()).unwrap();
        let file = inline::inlined(file).unwrap();
        let order = order::needed(&file).unwrap();
        let mut importer = Importer::new(&file, None, Builder::new("test", Phase::Imported, Mesh::single()));
        importer.expect(&order);
        let mut kept = vec![];
        for position in order {
            importer.node(position);
            let mut names: Vec<&str> = importer.values.keys().copied().collect();
            names.sort_unstable();
            kept.push(names.join(" "));
        }
        assert_eq!(kept, ["a", "a b", "b c", "b y"]);
    }
}
