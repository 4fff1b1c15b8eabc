//! The table of ONNX ops: each name and the function that imports it.

use super::call::Call;
use super::importer::Value;
use super::{constants, contract, elementwise, index, layout, norm, pad, reduce, sequence, shape};
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::scalar::{Binary, Unary};
use tract_onnx::pb;

/// Imports a node: its outputs, or why it cannot be imported.
pub(super) type Rule = fn(&mut Call<'_, '_>) -> Result<Vec<Value>, String>;

/// The rule of a node's op, if there is one.
pub(super) fn rule(node: &pb::NodeProto) -> Option<Rule> {
    let domain = match node.domain.as_str() {
        "" | "ai.onnx" => "",
        other => other,
    };
    TABLE.iter().find(|(d, name, _)| *d == domain && *name == node.op_type).map(|(_, _, rule)| *rule)
}

macro_rules! unary {
    ($f:expr) => {
        |c| elementwise::unary(c, $f.into())
    };
}

macro_rules! binary {
    ($f:expr) => {
        |c| elementwise::binary(c, $f)
    };
}

/// Domain, name, rule.
#[rustfmt::skip]
const TABLE: &[(&str, &str, Rule)] = &[
    // elementwise
    ("", "Neg", unary!(Unary::Neg)),
    ("", "Abs", unary!(Unary::Abs)),
    ("", "Sign", unary!(Unary::Sign)),
    ("", "Exp", unary!(Unary::Exp)),
    ("", "Log", unary!(Unary::Log)),
    ("", "Sqrt", unary!(Unary::Sqrt)),
    ("", "Reciprocal", unary!(Unary::Reciprocal)),
    ("", "Sin", unary!(Unary::Sin)),
    ("", "Cos", unary!(Unary::Cos)),
    ("", "Tanh", unary!(Unary::Tanh)),
    ("", "Erf", unary!(Unary::Erf)),
    ("", "Sigmoid", unary!(Unary::Sigmoid)),
    ("", "Floor", unary!(Unary::Floor)),
    ("", "Ceil", unary!(Unary::Ceil)),
    ("", "Round", unary!(Unary::Round)),
    ("", "Not", unary!(Unary::Not)),
    ("", "IsNaN", unary!(Unary::IsNan)),
    ("", "IsInf", elementwise::is_inf),
    ("", "Relu", unary!(UnaryFn::Relu)),
    ("", "Softplus", unary!(UnaryFn::Softplus)),
    ("", "Gelu", elementwise::gelu),
    ("com.microsoft", "Gelu", unary!(UnaryFn::Gelu)),
    ("", "LeakyRelu", elementwise::leaky_relu),
    ("", "Elu", elementwise::elu),
    ("", "HardSigmoid", elementwise::hard_sigmoid),
    ("", "HardSwish", elementwise::hard_swish),
    ("", "Swish", elementwise::swish),
    ("", "Clip", elementwise::clip),
    ("", "Add", binary!(Binary::Add)),
    ("", "Sub", binary!(Binary::Sub)),
    ("", "Mul", binary!(Binary::Mul)),
    ("", "Div", binary!(Binary::Div)),
    ("", "Pow", elementwise::pow),
    ("", "Mod", elementwise::modulo),
    ("", "Max", |c| elementwise::variadic(c, Binary::Max)),
    ("", "Min", |c| elementwise::variadic(c, Binary::Min)),
    ("", "Sum", |c| elementwise::variadic(c, Binary::Add)),
    ("", "Mean", elementwise::mean),
    ("", "Equal", binary!(Binary::Eq)),
    ("", "Less", binary!(Binary::Lt)),
    ("", "LessOrEqual", binary!(Binary::Le)),
    ("", "Greater", |c| elementwise::swapped(c, Binary::Lt)),
    ("", "GreaterOrEqual", |c| elementwise::swapped(c, Binary::Le)),
    ("", "And", binary!(Binary::And)),
    ("", "Or", binary!(Binary::Or)),
    ("", "Xor", binary!(Binary::Xor)),
    ("", "Where", elementwise::select),
    ("", "Cast", elementwise::cast),
    ("", "CastLike", elementwise::cast_like),
    ("", "Identity", elementwise::identity),
    ("", "Dropout", elementwise::dropout),
    // contract
    ("", "MatMul", contract::matmul),
    ("", "Gemm", contract::gemm),
    ("", "Einsum", contract::einsum),
    // layout
    ("", "Reshape", layout::reshape),
    ("", "Flatten", layout::flatten),
    ("", "Squeeze", layout::squeeze),
    ("", "Unsqueeze", layout::unsqueeze),
    ("", "Transpose", layout::transpose),
    ("", "Expand", layout::expand),
    ("", "Tile", layout::tile),
    ("", "Concat", layout::concat),
    ("", "Slice", layout::slice),
    ("", "Split", layout::split),
    ("", "Pad", pad::pad),
    // index
    ("", "Gather", index::gather),
    ("", "GatherND", index::gather_nd),
    ("", "GatherElements", index::gather_elements),
    ("", "ScatterND", index::scatter_nd),
    ("", "OneHot", index::one_hot),
    ("", "Trilu", index::trilu),
    ("", "CumSum", index::cum_sum),
    ("", "NonZero", index::non_zero),
    // reduce
    ("", "ReduceSum", reduce::sum),
    ("", "ReduceMean", reduce::mean),
    ("", "ReduceMax", reduce::max),
    ("", "ReduceMin", reduce::min),
    ("", "ReduceL1", reduce::l1),
    ("", "ReduceL2", reduce::l2),
    ("", "ReduceSumSquare", reduce::sum_square),
    ("", "ReduceLogSum", reduce::log_sum),
    ("", "ReduceLogSumExp", reduce::log_sum_exp),
    // norm
    ("", "Softmax", norm::softmax),
    ("", "LogSoftmax", norm::log_softmax),
    ("", "BatchNormalization", norm::batch_normalization),
    ("", "LayerNormalization", norm::layer_normalization),
    ("", "RMSNormalization", norm::rms_normalization),
    ("", "SimplifiedLayerNormalization", norm::rms_normalization),
    ("com.microsoft", "SimplifiedLayerNormalization", norm::rms_normalization),
    // shapes and constants
    ("", "Constant", constants::constant),
    ("", "ConstantOfShape", constants::constant_of_shape),
    ("", "Range", constants::range),
    ("", "EyeLike", constants::eye_like),
    ("", "Shape", shape::shape),
    ("", "Size", shape::size),
    // sequences
    ("", "SplitToSequence", sequence::split),
    ("", "SequenceConstruct", sequence::construct),
    ("", "SequenceAt", sequence::at),
    ("", "SequenceLength", sequence::length),
    ("", "ConcatFromSequence", sequence::concat),
];
