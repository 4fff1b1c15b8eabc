//! The closed list of ops, and the rules that each has. One file a family; in it, each op's rules
//! side by side.
//!
//! CONTRIBUTING.md lists what belongs to an op.

pub mod attention;
pub mod batch_norm;
pub mod captures;
pub mod cast_policy;
pub mod comm;
pub mod contract;
pub mod conv;
pub mod elementwise;
pub mod flat;
pub mod functions;
pub mod index;
pub mod layout;
pub mod leaf;
pub mod norm;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod rotary;
pub mod samples;
mod shorthand;
pub mod table;
pub mod update;
pub mod window;

use crate::builder::Builder;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::letters::Letters;
use crate::lower::{LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::types::Type;
use captures::Captures;
use serde::{Deserialize, Serialize};

/// Everything that the compiler knows of an op. None has a default: whoever adds an op answers
/// every question.
pub trait Rules {
    /// The types of the results, or why the op does not take these operands.
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason>;

    /// How the dimensions of operands and results correspond.
    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters;

    /// In which operands the op is linear, for operands of these types.
    fn linear(&self, operands: &[Type]) -> Linear;

    /// The gradients of the operands, built from ordinary ops.
    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient>;

    /// Whether it knows the positions of elements, and so reads its origin when its letters are
    /// split.
    fn positions(&self) -> bool;

    /// The kernel forms that compute it on a rank's part.
    fn lower(&self, cx: &LowerContext<'_>) -> Lowered;
}

/// In which sets of its operands an op is jointly linear: a partial sum of all operands of one such
/// set (and of no other operand) gives a partial sum of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linear {
    /// None: operands must be whole.
    No,
    /// All operands together (add, concat), or the only one.
    Together,
    /// Any one operand alone (mul, contract).
    Each,
    /// That operand alone.
    Only(usize),
    /// The operands from the second on, together (where: both branches).
    Branches,
}

impl Linear {
    /// The sets of operand positions, for an op with `count` operands.
    pub fn sets(self, count: usize) -> Vec<Vec<usize>> {
        match self {
            Linear::No => vec![],
            Linear::Together => vec![(0..count).collect()],
            Linear::Each => (0..count).map(|i| vec![i]).collect(),
            Linear::Only(i) => vec![vec![i]],
            Linear::Branches => vec![(1..count).collect()],
        }
    }

    /// In words, for the table of ops.
    pub fn text(self) -> String {
        match self {
            Linear::No => "no".into(),
            Linear::Together => "all".into(),
            Linear::Each => "each".into(),
            Linear::Only(i) => format!("operand {i}"),
            Linear::Branches => "branches".into(),
        }
    }
}

/// Why an op has no gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoGradient {
    /// Its results do not move with small changes of its operands (comparisons, integers): nothing
    /// flows back.
    Constant,
    /// It is part of the backward pass, an update or communication; nobody differentiates it.
    NotOfModels,
}

/// The input of a gradient rule: the node, the gradients of its results, and where to put those of
/// its operands.
pub struct Backward<'a> {
    /// The builder that appends ops.
    pub b: &'a mut Builder,
    /// The node's operands.
    pub operands: &'a [ValueId],
    /// The node's results.
    pub results: &'a [ValueId],
    /// The gradient of each result; `None` where nothing flows back.
    pub grads: &'a [Option<ValueId>],
    /// Which operands need a gradient.
    pub needs: &'a [bool],
    /// The gradients of the operands that the rule found; at most one each.
    pub out: Vec<(usize, ValueId)>,
}

impl Backward<'_> {
    /// The gradient of the first result.
    pub fn grad(&self) -> ValueId {
        self.grads[0].expect("rules run only where the first result has a gradient")
    }

    /// Gives operand `i` its gradient, which is summed to the operand's shape where that was
    /// broadcast.
    pub fn give(&mut self, i: usize, gradient: ValueId) {
        let shape = self.b.ty(self.operands[i]).shape.clone();
        let gradient = self.b.sum_to(gradient, &shape);
        self.out.push((i, gradient));
    }
}

/// The name of an op in text, and its attributes there.
pub trait OpText: Sized {
    /// Every name that the op goes by.
    fn names() -> Vec<&'static str>;
    /// The name of this instance.
    fn name(&self) -> &'static str;
    /// The op of that name without its attributes, as the JSON object to add attributes to.
    fn seed(name: &str) -> serde_json::Map<String, serde_json::Value>;
}

/// An op whose name is fixed.
macro_rules! named {
    ($ty:ty, $name:literal) => {
        impl crate::ops::OpText for $ty {
            fn names() -> Vec<&'static str> {
                vec![$name]
            }
            fn name(&self) -> &'static str {
                $name
            }
            fn seed(_: &str) -> serde_json::Map<String, serde_json::Value> {
                serde_json::Map::new()
            }
        }
        impl From<$ty> for crate::ops::Op {
            fn from(op: $ty) -> Self {
                crate::ops::IntoOp::into_op(op)
            }
        }
    };
}
pub(crate) use named;

/// An op with a field `f` whose value is the name in text.
macro_rules! named_by_function {
    ($ty:ty, $function:ty) => {
        impl crate::ops::OpText for $ty {
            fn names() -> Vec<&'static str> {
                <$function>::ALL.iter().map(|f| f.name()).collect()
            }
            fn name(&self) -> &'static str {
                self.f.name()
            }
            fn seed(name: &str) -> serde_json::Map<String, serde_json::Value> {
                serde_json::Map::from_iter([("f".to_string(), serde_json::Value::from(name))])
            }
        }
        impl From<$ty> for crate::ops::Op {
            fn from(op: $ty) -> Self {
                crate::ops::IntoOp::into_op(op)
            }
        }
    };
}
pub(crate) use named_by_function;

/// How each op becomes a variant of [`Op`].
pub trait IntoOp {
    /// The variant.
    fn into_op(self) -> Op;
}

macro_rules! ops {
    ($($variant:ident($ty:ty),)*) => {
        /// An op with its attributes.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($ty), "`].")] $variant($ty),)*
        }

        $(impl IntoOp for $ty {
            fn into_op(self) -> Op {
                Op::$variant(self)
            }
        })*

        impl Op {
            /// The op's rules.
            pub fn rules(&self) -> &dyn Rules {
                match self {
                    $(Op::$variant(op) => op,)*
                }
            }

            /// The op's name in text.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$variant(op) => OpText::name(op),)*
                }
            }

            /// Every name in the list, in its order.
            pub fn names() -> Vec<&'static str> {
                let mut names = vec![];
                $(names.extend(<$ty as OpText>::names());)*
                names
            }

            /// The attributes as a JSON object, without the name.
            pub fn attributes(&self) -> serde_json::Map<String, serde_json::Value> {
                let value = match self {
                    $(Op::$variant(op) => serde_json::to_value(op),)*
                };
                match value {
                    Ok(serde_json::Value::Object(mut map)) => {
                        for key in OpText_seed_keys(self) {
                            map.remove(&key);
                        }
                        map
                    }
                    _ => serde_json::Map::new(),
                }
            }

            /// The op called `name` with those attributes.
            pub fn from_text(name: &str, attributes: serde_json::Map<String, serde_json::Value>) -> Result<Op, Reason> {
                $(if <$ty as OpText>::names().contains(&name) {
                    let mut map = <$ty as OpText>::seed(name);
                    map.extend(attributes);
                    return serde_json::from_value::<$ty>(map.into()).map(Op::$variant).map_err(|e| reason!("`{name}`: {e}"));
                })*
                Err(reason!("there is no op `{name}`"))
            }
        }

        #[allow(non_snake_case, reason = "one arm for each op, made beside the list")]
        fn OpText_seed_keys(op: &Op) -> Vec<String> {
            match op {
                $(Op::$variant(op) => <$ty as OpText>::seed(OpText::name(op)).keys().cloned().collect(),)*
            }
        }
    };
}

ops! {
    // leaf
    Input(leaf::Input),
    State(leaf::StateRead),
    Constant(leaf::Constant),
    Host(leaf::Host),
    // elementwise
    Unary(elementwise::UnaryOp),
    Binary(elementwise::BinaryOp),
    Where(elementwise::Where),
    Cast(elementwise::Cast),
    RoundTo(elementwise::RoundTo),
    Detach(elementwise::Detach),
    // contract, reduce
    Contract(contract::Contract),
    Reduce(reduce::Reduce),
    SquareSum(reduce::SquareSum),
    // conv, pool
    Conv(conv::Conv),
    ConvInput(conv::ConvInput),
    ConvWeight(conv::ConvWeight),
    MaxPool(pool::MaxPool),
    MaxPoolGrad(pool::MaxPoolGrad),
    // layout
    Reshape(layout::Reshape),
    Transpose(layout::Transpose),
    Broadcast(layout::Broadcast),
    Slice(layout::Slice),
    Pad(layout::Pad),
    Concat(layout::Concat),
    // index
    Gather(index::Gather),
    ScatterAdd(index::ScatterAdd),
    OneHot(index::OneHot),
    Range(index::Range),
    // norm
    Softmax(norm::Softmax),
    SoftmaxGrad(norm::SoftmaxGrad),
    LayerNorm(norm::LayerNorm),
    LayerNormGrad(norm::LayerNormGrad),
    RmsNorm(norm::RmsNorm),
    RmsNormGrad(norm::RmsNormGrad),
    BatchNorm(batch_norm::BatchNorm),
    // random
    Dropout(random::Dropout),
    KeepMask(random::KeepMask),
    // attention
    Attention(attention::Attention),
    AttentionGrad(attention::AttentionGrad),
    Rotary(rotary::Rotary),
    // update
    Sgd(update::Sgd),
    Adam(update::Adam),
    // comm
    Reshard(comm::Reshard),
    Accumulate(comm::Accumulate),
    AllReduce(comm::AllReduce),
    AllGather(comm::AllGather),
    ReduceScatter(comm::ReduceScatter),
    AllToAll(comm::AllToAll),
    ShardSlice(comm::ShardSlice),
    FlatGather(flat::FlatGather),
    FlatScatter(flat::FlatScatter),
    FlatSlice(flat::FlatSlice),
    Transfer(comm::Transfer),
}

impl Op {
    /// Whether it only gives its operand's elements another shape or order.
    pub fn is_rearrangement(&self) -> bool {
        matches!(self, Op::Reshape(_) | Op::Transpose(_))
    }

    /// Whether it adds its two operands.
    pub fn is_sum(&self) -> bool {
        matches!(self, Op::Binary(op) if op.f == crate::scalar::Binary::Add)
    }

    /// Whether its result is drawn anew in every step, of no operand.
    pub fn is_drawn(&self) -> bool {
        matches!(self, Op::KeepMask(_))
    }

    /// Whether every element of its result is one of its operands'.
    pub fn moves(&self) -> bool {
        self.is_rearrangement() || matches!(self, Op::Broadcast(_) | Op::Slice(_) | Op::Concat(_) | Op::Detach(_))
    }

    /// Whether a reduction over ranks by `kind` gives the same before it and behind it. Sums pass
    /// through more ops than this: [`linear_of`] knows them.
    pub fn keeps(&self, kind: ReduceKind) -> bool {
        self.moves() || matches!(self, Op::Reduce(op) if op.f.0 == kind)
    }

    /// The operands that scale the others, by position: both of a product, the scale of a norm, and
    /// the variance of batch normalisation.
    pub fn factors(&self) -> &'static [usize] {
        match self {
            Op::Binary(op) if op.f == crate::scalar::Binary::Mul => &[0, 1],
            Op::LayerNorm(_) | Op::RmsNorm(_) => &[1],
            Op::BatchNorm(_) => &[1, 4],
            _ => &[],
        }
    }

    /// The op with the shape of its result changed, where that is an attribute and does not follow
    /// from the operands.
    pub fn with_shape(mut self, shape: &[u64]) -> Op {
        match &mut self {
            Op::Reshape(op) => op.shape = shape.to_vec(),
            Op::Broadcast(op) => op.shape = shape.to_vec(),
            _ => {}
        }
        self
    }

    /// Whether it changes where elements are and not what they are.
    pub fn is_comm(&self) -> bool {
        let moves_nothing = matches!(self, Op::Reshard(_) | Op::Accumulate(_) | Op::ShardSlice(_) | Op::FlatSlice(_));
        moves_nothing || matches!(self, Op::Transfer(_)) || self.is_collective()
    }

    /// Whether all members of a group call for it.
    pub fn is_collective(&self) -> bool {
        matches!(self, Op::AllReduce(_) | Op::AllGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_))
            || matches!(self, Op::FlatGather(_) | Op::FlatScatter(_))
    }
}

/// The letters of a node of a graph.
pub fn letters_of(graph: &Graph, id: NodeId) -> Letters {
    let node = graph.node(id);
    node.op.rules().letters(&graph.operand_types(node), &graph.result_types(node))
}

/// In which operands a node of a graph is linear.
pub fn linear_of(graph: &Graph, node: &Node) -> Linear {
    node.op.rules().linear(&graph.operand_types(node))
}

/// A decomposed form in which exporters write an op, and the op to put in its place.
pub struct Raise {
    /// See [`crate::pattern`].
    pub pattern: &'static str,
    /// The op and the names of its operands in the pattern, if the captures fit.
    pub build: BuildRaised,
}

/// Makes an op, and the names of its operands, from what a pattern captured.
pub type BuildRaised = fn(&Graph, &Captures) -> Option<(Op, Vec<&'static str>)>;

/// Every decomposed form that is recognised, larger ones first.
pub fn raises() -> Vec<&'static Raise> {
    norm::RAISES.iter().chain(rotary::RAISES).chain(elementwise::RAISES).collect()
}
