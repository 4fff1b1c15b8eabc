//! Integers of every width and floats at the ends of their range are what ONNX says, on inputs of
//! the model and folded.

use shardc_frontend::onnx::ImportOptions;
use shardc_ir::dtype::DType;
use shardc_ir::interp::{self, Feed};
use shardc_ir::types::{Tensor, Type};
use shardc_testkit::onnx::*;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A chain of nodes, each of the results before it: op, inputs, result, attributes.
type Nodes<'a> = &'a [(&'a str, &'a str, &'a str, Vec<pb::AttributeProto>)];

/// Result `y` of nodes on integers `x` of that type, given as an input and as a constant. No value
/// between is declared.
fn integers(kind: DataType, x: &[i64], more: Vec<pb::TensorProto>, nodes: Nodes<'_>) -> Result<[Tensor; 2], String> {
    let run = |fold: bool| {
        let mut model = model(20);
        let mut feed = Feed::default();
        if fold {
            initializer(&mut model, narrow("x", kind, x));
        } else {
            input(&mut model, "x", kind, &[x.len() as i64]);
            feed.inputs.insert("x".into(), Tensor::from_i64([x.len() as u64], x));
        }
        more.iter().for_each(|tensor| initializer(&mut model, tensor.clone()));
        nodes.iter().for_each(|(op, inputs, result, attributes)| node(&mut model, op, inputs, result, attributes.clone()));
        output(&mut model, "y");
        let options = ImportOptions { freeze: &|name| name != "x", ..ImportOptions::default() };
        let imported = import_model(&model, &options).map_err(|errors| errors[0].message.clone())?;
        feed.states.extend(imported.weights.iter().map(|(name, weight)| (name.clone(), weight.load().unwrap())));
        interp::outputs(&imported.graph, &feed).map(|mut outputs| outputs.remove("y").unwrap())
    };
    Ok([run(false)?, run(true)?])
}

/// A list of integers.
fn narrow(name: &str, kind: DataType, values: &[i64]) -> pb::TensorProto {
    whole(name, kind, &[values.len() as i64], values)
}

fn both(found: Result<[Tensor; 2], String>, expected: &[i64]) {
    for tensor in found.unwrap() {
        assert_eq!(tensor.to_i64(), expected);
    }
}

#[test]
fn integers_wrap_in_their_own_width() {
    use DataType::{Int8, Int16, Int32, Uint8, Uint16, Uint32};
    let none = Vec::new;
    // The width is known behind ops that declare nothing.
    let behind = [("Identity", "x", "i", none()), ("Reshape", "i shape", "r", none()), ("Sub", "r five", "y", none())];
    for (kind, expected) in [(Uint8, 254), (Uint16, 65534), (Uint32, 4294967294), (Int8, -2), (Int32, -2)] {
        let more = vec![ints("shape", &[1], &[1]), narrow("five", kind, &[5])];
        both(integers(kind, &[3], more, &behind), &[expected]);
    }
    let unary = |op, kind, x: &[i64], expected: &[i64]| both(integers(kind, x, vec![], &[(op, "x", "y", none())]), expected);
    unary("Abs", Int8, &[-128, -127, 5], &[-128, 127, 5]);
    unary("Neg", Int8, &[-128, 7], &[-128, -7]);
    unary("Neg", Int16, &[-32768], &[-32768]);
    unary("BitwiseNot", Uint8, &[3], &[252]);
    let axis = || vec![ints("axis", &[1], &[0])];
    let over = |op, kind, x: &[i64], expected: &[i64]| {
        both(integers(kind, x, axis(), &[(op, "x axis", "y", none())]), expected);
    };
    over("ReduceSum", Int32, &[i64::from(i32::MAX), 2], &[i64::from(i32::MIN) + 1]);
    over("ReduceSum", Uint8, &[200, 100], &[44]);
    over("ReduceProd", Int8, &[100, 3], &[44]);
    over("CumSum", Uint8, &[200, 100, 1], &[200, 44, 45]);
    over("ReduceMean", Int32, &[-7, 0], &[-3]);
    // A cast makes another width, a comparison and a position none.
    let cast = [("Cast", "x", "c", vec![int("to", Int32 as i64)]), ("Mul", "c c", "y", none())];
    both(integers(Uint8, &[200], vec![], &cast), &[40000]);
    let position = [("ArgMax", "x", "p", vec![int("axis", 0)]), ("Sub", "p three", "y", none())];
    both(integers(Uint8, &[9, 1], vec![ints("three", &[1], &[3])], &position), &[-3]);
    let refused = integers(DataType::Uint64, &[3], vec![], &[("Neg", "x", "y", none())]).unwrap_err();
    assert_eq!(refused, "arithmetic of uint64 is not supported");
}

/// A cast to that type.
fn to(kind: DataType) -> Vec<pb::AttributeProto> {
    vec![int("to", kind as i64)]
}

#[test]
fn casts_to_fewer_bits_keep_the_lowest() {
    use DataType::{Float, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32};
    let x = [-1, 300, -70000, (1 << 40) + 7];
    for (kind, expected) in [
        (Uint8, [255, 44, 144, 7]),
        (Uint16, [65535, 300, 61072, 7]),
        (Uint32, [4294967295, 300, 4294897296, 7]),
        (Int8, [-1, 44, -112, 7]),
        (Int16, [-1, 300, -4464, 7]),
        (Int32, [-1, 300, -70000, 7]),
    ] {
        both(integers(Int64, &x, vec![], &[("Cast", "x", "y", to(kind))]), &expected);
        both(integers(Int64, &x, vec![narrow("l", kind, &[0])], &[("CastLike", "x l", "y", vec![])]), &expected);
    }
    // What a float out of range becomes is left open, but it is a number of the type.
    for kind in [Uint8, Uint16, Uint32, Int8, Int16] {
        let chain = [("Cast", "x", "f", to(Float)), ("Cast", "f", "y", to(kind))];
        for y in integers(Int64, &[-1, 3, 300, -300, 1 << 40], vec![], &chain).unwrap() {
            let y = y.to_i64();
            let bits = whole("", kind, &[5], &y).raw_data;
            let held = raw("c", kind, &[5], bits);
            both(integers(Int64, &[0], vec![held], &[("Cast", "c", "w", to(Int64)), ("Add", "w x", "y", vec![])]), &y);
            assert_eq!(y[1], 3);
        }
    }
}

#[test]
fn integers_of_2_to_the_63_or_more_are_refused() {
    use DataType::{Float, Int64, Uint8, Uint32, Uint64};
    let back = [("Cast", "c", "u", to(Uint64)), ("Cast", "u", "w", to(Int64)), ("Add", "w x", "y", vec![])];
    let known = |c: pb::TensorProto| {
        let chain = [&[("Constant", "", "c", vec![tensor("value", c)])], &back[..]].concat();
        integers(Int64, &[0], vec![], &chain)
    };
    let large = 2f32.powi(62);
    both(known(narrow("c", Int64, &[5, i64::MAX])), &[5, i64::MAX]);
    both(known(floats("c", &[3], &[-0.5, 7.9, large])), &[0, 7, 1 << 62]);
    both(known(narrow("c", Uint32, &[u32::MAX.into()])), &[u32::MAX.into()]);
    let refused = |found: Result<[Tensor; 2], String>, words: &str| {
        let why = found.unwrap_err();
        assert!(why.contains(words), "{why}");
    };
    refused(known(narrow("c", Int64, &[5, -1])), "it casts -1 to uint64, of which only numbers below 2^63 are held");
    refused(known(floats("c", &[2], &[1.0, -1.5])), "it casts -1.5 to uint64");
    refused(known(floats("c", &[1], &[2.0 * large])), "it casts 9223372036854776000 to uint64");
    refused(known(narrow("c", Uint64, &[5, -1])), "an element is 18446744073709551615; of type uint64 only");
    // Of inputs only those without a sign are known to be none of these.
    let input = |kind| integers(kind, &[3], vec![], &[("Cast", "x", "y", to(Uint64))]);
    both(input(Uint8), &[3]);
    both(input(Uint32), &[3]);
    refused(input(Int64), "it casts int64 to uint64");
    let through_floats = [("Cast", "x", "f", to(Float)), ("Cast", "f", "y", to(Uint64))];
    refused(integers(Uint8, &[3], vec![], &through_floats), "it casts float to uint64");
}

#[test]
fn only_unsigned_integers_are_shifted() {
    use DataType::{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    let shift = |kind, x: &[i64], by: i64, direction: &str| {
        let nodes = [("BitShift", "x by", "y", vec![string("direction", direction)])];
        integers(kind, x, vec![narrow("by", kind, &[by])], &nodes)
    };
    for kind in [Uint8, Uint16, Uint32] {
        both(shift(kind, &[200, 1], 3, "RIGHT"), &[25, 0]);
        for far in [32, 63, 64, 100] {
            both(shift(kind, &[200, 1], far, "LEFT"), &[0, 0]);
            both(shift(kind, &[200, 1], far, "RIGHT"), &[0, 0]);
        }
    }
    both(shift(Uint8, &[200, 1], 1, "LEFT"), &[144, 2]);
    both(shift(Uint32, &[u32::MAX.into()], 31, "LEFT"), &[1 << 31]);
    both(shift(Uint64, &[i64::MAX, 5], 62, "RIGHT"), &[1, 0]);
    both(shift(Uint64, &[i64::MAX], 64, "RIGHT"), &[0]);
    assert_eq!(shift(Uint64, &[1], 1, "LEFT").unwrap_err(), "arithmetic of uint64 is not supported");
    for (kind, name) in [(Int8, "int8"), (Int16, "int16"), (Int32, "int32"), (Int64, "int64")] {
        for direction in ["LEFT", "RIGHT"] {
            let why = shift(kind, &[8], 1, direction).unwrap_err();
            assert_eq!(why, format!("it shifts {name}; ONNX shifts unsigned integers only"));
        }
    }
    // With place and help; of a constant that the node itself holds, too.
    let mut m = model(20);
    input(&mut m, "x", Uint8, &[1]);
    node(&mut m, "Constant", "", "by", vec![int_list("value_ints", vec![1])]);
    node(&mut m, "BitShift", "x by", "y", vec![string("direction", "LEFT")]);
    output(&mut m, "y");
    let error = import_model(&m, &ImportOptions::default()).unwrap_err().remove(0);
    assert_eq!(error.message, "it shifts int64; ONNX shifts unsigned integers only");
    assert!(error.place.is_some_and(|place| format!("{place:?}").contains("(BitShift)")));
    assert!(error.help.is_some_and(|help| help.contains("unsigned type")));
}

#[test]
fn powers_quotients_and_large_integers_are_exact() {
    let none = Vec::new;
    let power =
        |x: &[i64], exponent: pb::TensorProto| integers(DataType::Int64, x, vec![exponent], &[("Pow", "x e", "y", none())]);
    both(power(&[4, 9, 10], floats("e", &[1], &[0.5])), &[2, 3, 3]);
    both(power(&[2, -3], floats("e", &[1], &[3.0])), &[8, -27]);
    both(power(&[2, -3], ints("e", &[1], &[3])), &[8, -27]);
    // The next float is another number.
    let large = (1 << 53) + 1;
    let add = integers(DataType::Int64, &[large], vec![ints("c", &[1], &[large])], &[("Add", "x c", "y", none())]);
    both(add, &[2 * large]);
    let hot = [("OneHot", "x depth values", "y", vec![])];
    let more = vec![ints("depth", &[], &[2]), ints("values", &[2], &[large, large + 2])];
    both(integers(DataType::Int64, &[1], more, &hot), &[large, large + 2]);
    let range = [("Range", "start limit step", "r", none()), ("Add", "r x", "y", none())];
    let bounds = |from, to, by| vec![ints("start", &[], &[from]), ints("limit", &[], &[to]), ints("step", &[], &[by])];
    both(integers(DataType::Int64, &[0], bounds(large, large + 3, 2), &range), &[large, large + 2]);
    both(integers(DataType::Int64, &[0], bounds(3, -4, -3), &range), &[3, 0, -3]);
    let pad = [("Pad", "x pads value", "y", none())];
    let more = |value| vec![ints("pads", &[2], &[0, 1]), ints("value", &[], &[value])];
    both(integers(DataType::Int64, &[5], more(large), &pad), &[5, large]);
    both(integers(DataType::Int64, &[5], more(0), &pad), &[5, 0]);
    // The remainder has the sign of the dividend, also beside the least integer, which has no size.
    let divisors = vec![ints("d", &[7], &[i64::MIN, i64::MIN, 5, -5, 3, 4, -5])];
    let rest = [("Mod", "x d", "y", vec![int("fmod", 1)])];
    both(integers(DataType::Int64, &[-6, 6, -7, 7, i64::MIN, 0, -5], divisors, &rest), &[-6, 6, -2, 2, -2, 0, 0]);
    for op in ["Div", "Mod"] {
        let by_zero = integers(DataType::Int64, &[7], vec![ints("z", &[1], &[0])], &[(op, "x z", "y", none())]);
        assert!(by_zero.unwrap_err().contains("divided by 0"));
    }
}

#[test]
fn roots_and_logarithms_of_integers_are_truncated() {
    let of = |kind, x: &[i64], op| integers(kind, x, vec![], &[(op, "x", "y", vec![int("keepdims", 0)])]);
    for kind in [DataType::Int32, DataType::Int64] {
        both(of(kind, &[3, 4], "ReduceL2"), &[5]);
        both(of(kind, &[1, 2], "ReduceL2"), &[2]);
        both(of(kind, &[20, 1], "ReduceLogSum"), &[3]);
        both(of(kind, &[7, 7], "ReduceLogSumExp"), &[7]);
    }
    // An op that is defined for floats alone is refused, whether its operand is known or not.
    let root = integers(DataType::Int64, &[4], vec![], &[("Sqrt", "x", "y", vec![])]);
    assert!(root.as_ref().is_err_and(|why| why.contains("takes floats, not i64[1]")), "{root:?}");
}

/// Result `y` of one op on floats.
fn real(op: &str, x: &[f32], attributes: Vec<pb::AttributeProto>) -> Vec<f64> {
    let mut model = model(20);
    input(&mut model, "x", DataType::Float, &[x.len() as i64]);
    node(&mut model, op, "x", "y", attributes);
    output(&mut model, "y");
    let imported = import_model(&model, &ImportOptions::default()).unwrap();
    let numbers: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let x = Tensor::from_f64(Type::new(DType::F32, [x.len() as u64]), &numbers);
    let feed = Feed { inputs: [("x".to_string(), x)].into(), ..Feed::default() };
    interp::outputs(&imported.graph, &feed).unwrap()["y"].to_f64()
}

type Function = fn(f64) -> f64;

#[test]
fn hyperbolic_functions_keep_their_digits_everywhere() {
    let sizes =
        [1e-30, 1e-9, 3e-8, 1.2e-7, 1e-6, 1e-4, 0.01, 0.3, 0.9, 0.999, 1.0, 1.5, 2.0, 3.0, 30.0, 88.0, 1e4, 1e10, 1e20, 3e38];
    let functions: [(&str, Function, f64, f64); 5] = [
        ("Sinh", f64::sinh, -89.0, 89.0),
        ("Cosh", f64::cosh, -89.0, 89.0),
        ("Asinh", f64::asinh, -3.4e38, 3.4e38),
        ("Acosh", f64::acosh, 1.0, 3.4e38),
        ("Atanh", f64::atanh, -1.0, 1.0),
    ];
    for (op, f, low, high) in functions {
        let near_one = [1.0 + 1e-6, 1.0 + 1e-3];
        let all = sizes.iter().chain(&near_one).flat_map(|s| [*s, -*s]).map(|v: f64| v as f32);
        let x: Vec<f32> = all.filter(|v| (low..=high).contains(&f64::from(*v))).collect();
        assert!(x.len() >= 10, "{op}");
        for (x, y) in x.iter().zip(real(op, &x, vec![])) {
            let want = f64::from(f(f64::from(*x)) as f32);
            assert!(y == want || (y - want).abs() <= 1e-6 * want.abs(), "{op}({x:e}) is {want:e}, not {y:e}");
        }
    }
}

#[test]
fn the_logarithm_of_no_exponentials_is_minus_infinity() {
    let infinity = f32::INFINITY;
    let sum = |x: &[f32]| real("ReduceLogSumExp", x, vec![int("keepdims", 0)])[0];
    assert_eq!(sum(&[-infinity, -infinity]), f64::NEG_INFINITY);
    assert_eq!(sum(&[1.0, infinity]), f64::INFINITY);
    assert_eq!(sum(&[-infinity, 3.0]), 3.0);
    assert!(sum(&[f32::NAN, 3.0]).is_nan());
    assert!((sum(&[1000.0, 1000.0]) - 1000.0 - 2f64.ln()).abs() < 1e-4);
}
