//! The table of ONNX ops: each name and the function that imports it.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::{
    activation, arg_extreme, attention, com_microsoft, constants, contract, control, conv, cumulative, einsum, elementwise,
    fourier, grid_sample, index, integers, layout, loss, norm, pad, pool, quantize, random, recurrent, reduce, resize, scatter,
    sequence, shape, space, trigonometry,
};
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use std::collections::HashMap;
use std::sync::LazyLock;
use tract_onnx::pb;

/// Imports a node: its outputs, or why it cannot be imported.
pub(in crate::onnx) type Rule = fn(&mut Call<'_, '_>) -> Result<Vec<Value>, Reason>;

/// The rule of a node's op, if there is one.
pub(in crate::onnx) fn rule(node: &pb::NodeProto) -> Option<Rule> {
    let domain = match node.domain.as_str() {
        "" | "ai.onnx" => "",
        other => other,
    };
    static BY_NAME: LazyLock<HashMap<(&str, &str), Rule>> =
        LazyLock::new(|| TABLE.iter().map(|(domain, name, rule)| ((*domain, *name), *rule)).collect());
    BY_NAME.get(&(domain, node.op_type.as_str())).copied()
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
    ("", "Tan", trigonometry::tan),
    ("", "Asin", trigonometry::asin),
    ("", "Acos", trigonometry::acos),
    ("", "Atan", unary!(Unary::Atan)),
    ("", "Sinh", trigonometry::sinh),
    ("", "Cosh", trigonometry::cosh),
    ("", "Tanh", unary!(Unary::Tanh)),
    ("", "Asinh", trigonometry::asinh),
    ("", "Acosh", trigonometry::acosh),
    ("", "Atanh", trigonometry::atanh),
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
    ("", "Gelu", activation::gelu),
    ("", "LeakyRelu", activation::leaky_relu),
    ("", "PRelu", activation::prelu),
    ("", "Elu", activation::elu),
    ("", "Celu", activation::celu),
    ("", "Selu", activation::selu),
    ("", "Mish", activation::mish),
    ("", "Softsign", activation::softsign),
    ("", "ThresholdedRelu", activation::thresholded_relu),
    ("", "Shrink", activation::shrink),
    ("", "HardSigmoid", activation::hard_sigmoid),
    ("", "HardSwish", activation::hard_swish),
    ("", "Swish", activation::swish),
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
    ("", "DequantizeLinear", quantize::dequantize_linear),
    ("", "BitShift", integers::bit_shift),
    ("", "BitwiseNot", integers::bitwise_not),
    ("", "BitwiseAnd", integers::bitwise_and),
    ("", "BitwiseOr", integers::bitwise_or),
    ("", "BitwiseXor", integers::bitwise_xor),
    ("", "Where", elementwise::select),
    ("", "Cast", elementwise::cast),
    ("", "CastLike", elementwise::cast_like),
    ("", "Identity", elementwise::identity),
    ("", "Dropout", random::dropout),
    // contract
    ("", "MatMul", contract::matmul),
    ("", "Gemm", contract::gemm),
    ("", "Einsum", einsum::einsum),
    ("", "DFT", fourier::dft),
    // conv, pool, images
    ("", "Conv", conv::conv),
    ("", "ConvTranspose", conv::conv_transpose),
    ("", "MaxPool", pool::max_pool),
    ("", "AveragePool", pool::average_pool),
    ("", "LpPool", pool::lp_pool),
    ("", "GlobalAveragePool", pool::global_average_pool),
    ("", "GlobalMaxPool", pool::global_max_pool),
    ("", "GlobalLpPool", pool::global_lp_pool),
    ("", "Resize", resize::resize),
    ("", "Upsample", resize::upsample),
    ("", "SpaceToDepth", space::space_to_depth),
    ("", "DepthToSpace", space::depth_to_space),
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
    ("", "CenterCropPad", pad::center_crop_pad),
    // index
    ("", "Gather", index::gather),
    ("", "GatherND", index::gather_nd),
    ("", "GatherElements", index::gather_elements),
    ("", "ScatterND", scatter::scatter_nd),
    ("", "ScatterElements", scatter::scatter_elements),
    ("", "Scatter", scatter::scatter_elements),
    ("", "ReverseSequence", index::reverse_sequence),
    ("", "Compress", index::compress),
    ("", "OneHot", index::one_hot),
    ("", "Trilu", index::trilu),
    ("", "CumSum", cumulative::cum_sum),
    ("", "NonZero", index::non_zero),
    ("", "GridSample", grid_sample::grid_sample),
    ("", "ArgMax", arg_extreme::arg_max),
    ("", "ArgMin", arg_extreme::arg_min),
    ("", "Hardmax", arg_extreme::hardmax),
    ("", "TopK", arg_extreme::top_k),
    // reduce
    ("", "ReduceSum", reduce::sum),
    ("", "ReduceMean", reduce::mean),
    ("", "ReduceProd", reduce::product),
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
    ("", "InstanceNormalization", norm::instance_normalization),
    ("", "GroupNormalization", norm::group_normalization),
    ("", "LpNormalization", norm::lp_normalization),
    ("", "MeanVarianceNormalization", norm::mean_variance_normalization),
    ("", "LRN", norm::local_response_normalization),
    ("", "SimplifiedLayerNormalization", norm::rms_normalization),
    // attention
    ("", "Attention", attention::attention),
    ("", "RotaryEmbedding", attention::rotary_embedding),
    // loss
    ("", "NegativeLogLikelihoodLoss", loss::negative_log_likelihood),
    ("", "SoftmaxCrossEntropyLoss", loss::softmax_cross_entropy),
    // recurrent
    ("", "RNN", recurrent::rnn),
    ("", "GRU", recurrent::gru),
    ("", "LSTM", recurrent::lstm),
    // ONNX Runtime's
    ("com.microsoft", "Gelu", unary!(UnaryFn::Gelu)),
    ("com.microsoft", "QuickGelu", com_microsoft::quick_gelu),
    ("com.microsoft", "FastGelu", com_microsoft::fast_gelu),
    ("com.microsoft", "BiasGelu", com_microsoft::bias_gelu),
    ("com.microsoft", "FusedMatMul", com_microsoft::fused_matmul),
    ("com.microsoft", "SkipLayerNormalization", com_microsoft::skip_layer_normalization),
    ("com.microsoft", "SkipSimplifiedLayerNormalization", com_microsoft::skip_rms_normalization),
    ("com.microsoft", "SimplifiedLayerNormalization", norm::rms_normalization),
    // shapes and constants
    ("", "Constant", constants::constant),
    ("", "ConstantOfShape", constants::constant_of_shape),
    ("", "Range", constants::range),
    ("", "EyeLike", constants::eye_like),
    ("", "If", control::choose),
    ("", "Shape", shape::shape),
    ("", "Size", shape::size),
    // sequences
    ("", "SplitToSequence", sequence::split),
    ("", "SequenceConstruct", sequence::construct),
    ("", "SequenceEmpty", sequence::empty),
    ("", "SequenceInsert", sequence::insert),
    ("", "SequenceErase", sequence::erase),
    ("", "SequenceAt", sequence::at),
    ("", "SequenceLength", sequence::length),
    ("", "ConcatFromSequence", sequence::concat),
];
