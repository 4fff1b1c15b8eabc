//! The uses of an initializer by the nodes of a model, looking through the ops that only move or
//! combine constants.

use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::model_file::initializers;
use crate::onnx::file::tensor;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use tract_onnx::pb;

/// One use of an initializer; numbers are positions of nodes.
#[derive(Debug, Clone)]
pub(in crate::onnx) enum Use {
    /// A matrix, kernel or table of weights.
    Weight(usize),
    /// A table that a gather reads.
    Table(usize),
    /// The scale of a normalisation.
    Scale(usize),
    /// The shift of a normalisation.
    Shift(usize),
    /// The bias of a matrix product or convolution.
    Bias(usize),
    /// A running mean or variance of that node.
    Statistic(usize),
    /// An operand of an elementwise op beside activations.
    Operand(Operand),
    /// Concatenated with activations.
    Joined(usize),
    /// Passed through sin or cos.
    Periodic,
    /// Read as integers or sizes, by comparisons or for its shape.
    Dead,
    /// An op beside activations that says nothing.
    Other(usize),
    /// An output of the model.
    Output,
}

/// An operand of an elementwise op.
#[derive(Debug, Clone)]
pub(in crate::onnx) struct Operand {
    /// The node.
    pub node: usize,
    /// The way in which the op reads it.
    pub read_as: ReadAs,
    /// Whether arithmetic with other constants lies before it.
    pub derived: bool,
    /// Whether the result reaches a softmax with only elementwise ops between.
    pub scores: bool,
    /// Whether the other operand is an input of the model as it is.
    pub of_input: bool,
}

/// The way in which an elementwise op reads an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::onnx) enum ReadAs {
    AddedTo,
    MultipliedWith,
    ChosenAmong,
    SubtractedFrom,
    DividedBy,
}

impl ReadAs {
    fn of(op: &str) -> ReadAs {
        match op {
            "Add" | "Attention" => ReadAs::AddedTo,
            "Mul" => ReadAs::MultipliedWith,
            "Where" => ReadAs::ChosenAmong,
            "Sub" => ReadAs::SubtractedFrom,
            _ => ReadAs::DividedBy,
        }
    }

    /// Whether parameters are read so: in adding, multiplying, choosing.
    pub fn is_of_parameters(self) -> bool {
        matches!(self, ReadAs::AddedTo | ReadAs::MultipliedWith | ReadAs::ChosenAmong)
    }
}

impl fmt::Display for ReadAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadAs::AddedTo => "added to",
            ReadAs::MultipliedWith => "multiplied with",
            ReadAs::ChosenAmong => "chosen among",
            ReadAs::SubtractedFrom => "subtracted from",
            ReadAs::DividedBy => "divided by",
        })
    }
}

impl Use {
    /// For a slot that decides by itself: what the initializer is there, and the node.
    pub fn slot(&self) -> Option<(&'static str, usize)> {
        match self {
            Use::Weight(node) => Some(("the weight", *node)),
            Use::Table(node) => Some(("the table", *node)),
            Use::Scale(node) => Some(("the scale", *node)),
            Use::Shift(node) => Some(("the shift", *node)),
            Use::Bias(node) => Some(("the bias", *node)),
            _ => None,
        }
    }

    /// The name in its module of a parameter with this use, `weight` or `bias`, and the node.
    pub fn role(&self) -> Option<(&'static str, usize)> {
        match self {
            Use::Weight(node) | Use::Table(node) | Use::Scale(node) => Some(("weight", *node)),
            Use::Bias(node) | Use::Shift(node) => Some(("bias", *node)),
            Use::Operand(o) => Some((if o.read_as == ReadAs::AddedTo { "bias" } else { "weight" }, o.node)),
            _ => None,
        }
    }

    /// Its node.
    pub fn node(&self) -> Option<usize> {
        match self {
            Use::Operand(o) => Some(o.node),
            Use::Joined(node) | Use::Other(node) | Use::Statistic(node) => Some(*node),
            _ => self.slot().map(|s| s.1),
        }
    }
}

/// A node that reads an initializer itself.
#[derive(Debug, Clone)]
pub(in crate::onnx) struct Reader {
    /// The node.
    pub node: usize,
    /// Which of its inputs.
    pub input: usize,
    /// The uses behind it.
    pub uses: Vec<Use>,
}

/// Whether an exporter made the name up.
pub(in crate::onnx) fn invented(name: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_digit());
    let numbered = |prefix: &str| name.strip_prefix(prefix).is_some_and(digits);
    name.starts_with("onnx::")
        || digits(name)
        || ["val_", "_val_", "const_", "constant_", "initializer_", "_inlfunc_"].iter().any(|p| numbered(p))
}

/// Who reads what, and what depends on an input's values.
pub(in crate::onnx) struct Flow<'m> {
    file: &'m ModelFile,
    readers: HashMap<&'m str, Vec<(usize, usize)>>,
    makers: HashMap<&'m str, usize>,
    varies: HashSet<&'m str>,
    /// The nodes that give some of these.
    varying: HashSet<usize>,
    inputs: HashSet<&'m str>,
    outputs: HashSet<&'m str>,
    /// Nodes whose results reach a softmax with only elementwise ops between.
    to_softmax: HashSet<usize>,
    /// Nodes all of whose results pass sin or cos, with only elementwise ops between.
    to_waves: HashSet<usize>,
    /// The nodes that may still be looked at, for all initializers together.
    left: Cell<usize>,
}

/// The most inputs of an op that reads operands.
const MOST_INPUTS: usize = 8;

/// The nodes that may be looked at, and those besides for each node of the model: exporters put a
/// few between an initializer and its use.
const LOOKS: usize = 1 << 18;
const LOOKS_PER_NODE: usize = 16;

/// Ops that move elements: the use is behind them. The first input is the data, for Concat every
/// one.
const LOOK_THROUGH: [&str; 13] = [
    "Transpose",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Expand",
    "Slice",
    "Split",
    "Cast",
    "CastLike",
    "Identity",
    "Concat",
    "Dropout",
];

/// Ops through which a result reaches a softmax, or a sine, unchanged in kind.
const TO_SOFTMAX: [&str; 16] = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Where",
    "Max",
    "Min",
    "Clip",
    "Cast",
    "CastLike",
    "Identity",
    "Reshape",
    "Transpose",
    "Unsqueeze",
    "Squeeze",
    "Expand",
];

const COMPARISONS: [&str; 14] = [
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "Shape",
    "Size",
    "IsNaN",
    "IsInf",
    "Sign",
    "ArgMax",
    "ArgMin",
    "NonZero",
    "Not",
];

impl<'m> Flow<'m> {
    /// The flow through the nodes in `order`.
    pub fn of(file: &'m ModelFile, order: &[usize]) -> Self {
        let graph = file.graph();
        let weights: HashSet<&str> = initializers(file).map(|(_, t)| t.name.as_str()).collect();
        let inputs: HashSet<&str> = graph.input.iter().map(|i| i.name.as_str()).filter(|n| !weights.contains(n)).collect();
        let outputs = graph.output.iter().map(|o| o.name.as_str()).collect();
        let mut flow = Flow {
            file,
            readers: HashMap::new(),
            makers: HashMap::new(),
            varies: inputs.clone(),
            varying: HashSet::new(),
            inputs,
            outputs,
            to_softmax: HashSet::new(),
            to_waves: HashSet::new(),
            left: Cell::new(LOOKS + LOOKS_PER_NODE * order.len()),
        };
        for position in order {
            let node = &graph.node[*position];
            for (i, name) in node.input.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
                flow.readers.entry(name).or_default().push((*position, i));
            }
            let varies = node.input.iter().any(|n| flow.varies.contains(n.as_str()));
            for name in node.output.iter().filter(|n| !n.is_empty()) {
                flow.makers.insert(name, *position);
                if varies && !matches!(node.op_type.as_str(), "Shape" | "Size") {
                    flow.varies.insert(name);
                    flow.varying.insert(*position);
                }
            }
        }
        flow.look_ahead(order);
        flow
    }

    /// Every node that reads `name`, with the uses behind it. A `vector` has at most one dimension
    /// larger than 1.
    pub fn readers(&self, name: &'m str, vector: bool) -> Vec<Reader> {
        let readers = self.readers.get(name).into_iter().flatten();
        readers.map(|(node, input)| Reader { node: *node, input: *input, uses: self.behind(*node, *input, vector) }).collect()
    }

    /// The uses behind an input of a node; where too many nodes lie there, the last one says
    /// nothing.
    fn behind(&self, node: usize, input: usize, vector: bool) -> Vec<Use> {
        let mut uses = vec![];
        let mut seen = HashSet::new();
        let mut open = vec![(node, input, false)];
        while let Some((position, input, derived)) = open.pop() {
            if !self.looks() {
                uses.push(Use::Other(position));
                return uses;
            }
            let (found, behind) = self.one(position, input, derived, vector);
            uses.extend(found);
            let Some(derived) = behind else { continue };
            let outputs = self.node(position).output.iter().map(String::as_str).filter(|n| !n.is_empty());
            for name in outputs.filter(|n| seen.insert((*n, derived))) {
                uses.extend(self.outputs.contains(name).then_some(Use::Output));
                open.extend(self.readers.get(name).into_iter().flatten().map(|(node, input)| (*node, *input, derived)));
            }
        }
        uses
    }

    /// Whether one more node may be looked at.
    fn looks(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    /// Whether nodes read parts of `name`, as those of a fused projection do.
    pub fn in_parts(&self, name: &str) -> bool {
        let readers = self.readers.get(name).into_iter().flatten();
        readers
            .filter(|(_, input)| *input == 0)
            .any(|(position, _)| matches!(self.node(*position).op_type.as_str(), "Slice" | "Split"))
    }

    /// Whether the model gives `name` to its user.
    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.contains(name)
    }

    fn node(&self, position: usize) -> &'m pb::NodeProto {
        &self.file.graph().node[position]
    }

    /// The use as input `input` of the node at `position`, or whether to look behind it, and then
    /// whether arithmetic lies before.
    fn one(&self, position: usize, input: usize, derived: bool, vector: bool) -> (Option<Use>, Option<bool>) {
        let node = self.node(position);
        let op = node.op_type.as_str();
        let varies = self.varying.contains(&position);
        let found = match (op, input) {
            ("MatMul" | "Gemm" | "FusedMatMul", 0 | 1) | ("Einsum", _) if varies => Use::Weight(position),
            ("Gemm" | "Conv" | "ConvTranspose", 2) if varies => Use::Bias(position),
            ("Conv" | "ConvTranspose", 1) if varies => Use::Weight(position),
            ("BiasGelu" | "FastGelu", 1) | ("SkipSimplifiedLayerNormalization", 3) | ("SkipLayerNormalization", 4) => {
                Use::Bias(position)
            }
            ("PRelu", 1) | ("LSTM" | "GRU" | "RNN", 1..=3) | ("LSTM", 7) => Use::Weight(position),
            ("Gather" | "GatherND", 0) => Use::Table(position),
            ("BatchNormalization", 3 | 4) => Use::Statistic(position),
            ("BatchNormalization" | "InstanceNormalization" | "GroupNormalization" | "LayerNormalization", 1)
            | ("RMSNormalization" | "SimplifiedLayerNormalization", 1)
            | ("SkipLayerNormalization" | "SkipSimplifiedLayerNormalization", 2) => Use::Scale(position),
            ("BatchNormalization" | "InstanceNormalization" | "GroupNormalization" | "LayerNormalization", 2)
            | ("SkipLayerNormalization", 3) => Use::Shift(position),
            ("Resize" | "Upsample", 1..) => Use::Dead,
            ("Sin" | "Cos", _) | ("RotaryEmbedding", 1 | 2) => Use::Periodic,
            // The weight of each class in a loss.
            ("NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss", 2) => Use::Dead,
            ("Cast", _) if !self.casts_to_float(node) => Use::Dead,
            _ if COMPARISONS.contains(&op) => Use::Dead,
            ("Concat", _) if varies => Use::Joined(position),
            (_, 0) | ("Concat", _) if LOOK_THROUGH.contains(&op) => return (None, Some(derived)),
            (_, 1..) if LOOK_THROUGH.contains(&op) => Use::Dead,
            _ if !varies => return (None, Some(true)),
            ("Add", _) if vector && self.is_bias(node, input) => Use::Bias(position),
            ("Add" | "Sub" | "Mul" | "Div" | "Where", _) | ("Attention", 3) => {
                Use::Operand(self.operand(position, input, derived))
            }
            _ => Use::Other(position),
        };
        let found = if matches!(found, Use::Operand(_)) && self.to_waves.contains(&position) { Use::Periodic } else { found };
        (Some(found), None)
    }

    fn casts_to_float(&self, node: &pb::NodeProto) -> bool {
        let to = node.attribute.iter().find(|a| a.name == "to").map_or(0, |a| a.i);
        i32::try_from(to).is_ok_and(|to| tensor::dtype(to, None).is_ok_and(|d| d.is_float()))
    }

    /// Whether the other operand of an addition is the product of a matrix that does not vary, as a
    /// linear layer's is.
    fn is_bias(&self, node: &'m pb::NodeProto, input: usize) -> bool {
        let Some(mut name) = node.input.get(1 - input.min(1)) else { return false };
        while self.looks() {
            let Some(maker) = self.makers.get(name.as_str()).map(|p| self.node(*p)) else { return false };
            match maker.op_type.as_str() {
                "MatMul" | "Gemm" | "Conv" | "ConvTranspose" => {
                    return maker.input.iter().any(|n| !self.varies.contains(n.as_str()));
                }
                "Reshape" | "Transpose" | "Identity" | "Cast" => match maker.input.first() {
                    Some(data) => name = data,
                    None => return false,
                },
                _ => return false,
            }
        }
        false
    }

    fn operand(&self, position: usize, input: usize, derived: bool) -> Operand {
        let node = self.node(position);
        let read_as = ReadAs::of(&node.op_type);
        let of_input =
            node.input.iter().take(MOST_INPUTS).enumerate().any(|(i, n)| i != input && self.inputs.contains(n.as_str()));
        let scores = node.op_type == "Attention" || self.to_softmax.contains(&position);
        Operand { node: position, read_as, derived, scores, of_input }
    }

    /// Finds what lies behind each node, from the last one on: so every node is looked at once.
    fn look_ahead(&mut self, order: &[usize]) {
        for position in order.iter().rev() {
            if self.finds_softmax(*position) {
                self.to_softmax.insert(*position);
            }
            if self.finds_waves(*position) {
                self.to_waves.insert(*position);
            }
        }
    }

    /// Whether everything that the node at `position` gives passes sin or cos, with only
    /// elementwise ops between.
    fn finds_waves(&self, position: usize) -> bool {
        let passes = |(reader, _): &(usize, usize)| match self.node(*reader).op_type.as_str() {
            "Sin" | "Cos" => true,
            op => (op == "Concat" || TO_SOFTMAX.contains(&op)) && self.to_waves.contains(reader),
        };
        self.node(position).output.iter().filter(|name| !name.is_empty()).all(|name| {
            let readers = self.readers.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
            !readers.is_empty() && !self.outputs.contains(name.as_str()) && readers.iter().all(passes)
        })
    }

    /// Whether what the node at `position` gives reaches a softmax with only elementwise ops
    /// between.
    fn finds_softmax(&self, position: usize) -> bool {
        let mut readers = self.node(position).output.iter().flat_map(|n| self.readers.get(n.as_str()).into_iter().flatten());
        readers.any(|(reader, _)| match self.node(*reader).op_type.as_str() {
            "Softmax" | "LogSoftmax" | "Attention" => true,
            op => TO_SOFTMAX.contains(&op) && self.to_softmax.contains(reader),
        })
    }
}
