//! The naive evaluator against numbers from elsewhere, and ops that own a formula against their
//! composition from ordinary ops.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Phase, ValueId};
use shardc_ir::interp::{Feed, evaluate, run};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::attention::{Attention, AttentionGrad, HeadLayout, MaskKind};
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::{BinaryOp, Cast, UnaryFn, UnaryOp};
use shardc_ir::ops::index::{Gather, ScatterAdd};
use shardc_ir::ops::layout::{Pad, Slice};
use shardc_ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, Softmax, SoftmaxGrad};
use shardc_ir::ops::reduce::Reduce;
use shardc_ir::ops::update::Adam;
use shardc_ir::ops::{Backward, Op};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};

fn f64s(shape: &[u64], values: &[f64]) -> Tensor {
    Tensor::from_f64(Type::new(DType::F64, shape), values)
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_i64([values.len() as u64], values)
}

/// Numbers without a pattern, between -1 and 1.
fn noise(shape: &[u64], seed: u64) -> Tensor {
    let count = shape.iter().product::<u64>();
    let number = |i: u64| ((i + 1) as f64 * 12.9898 + seed as f64 * 78.233).sin() * 43758.5453 % 1.0;
    f64s(shape, &(0..count).map(number).collect::<Vec<_>>())
}

fn one(op: impl Into<Op>, operands: &[Tensor]) -> Tensor {
    evaluate(&op.into(), operands).unwrap().remove(0)
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.ty, b.ty);
    for (x, y) in a.to_f64().iter().zip(b.to_f64()) {
        assert!((x - y).abs() < 1e-12, "{:?} is not {:?}", a.to_f64(), b.to_f64());
    }
}

fn unary(f: UnaryFn, values: &[f64]) -> Vec<f64> {
    one(UnaryOp { f }, &[f64s(&[values.len() as u64], values)]).to_f64()
}

#[test]
fn scalar_functions_have_the_values_of_the_tables() {
    // Abramowitz, Stegun: Handbook of Mathematical Functions, table 7.1.
    let erf = unary(UnaryFn::Scalar(Unary::Erf), &[0.0, 0.5, 1.0, 2.0, -1.0, 7.0, f64::NEG_INFINITY]);
    let table =
        [0.0, 0.520_499_877_813_046_5, 0.842_700_792_949_714_9, 0.995_322_265_018_952_7, -0.842_700_792_949_714_9, 1.0, -1.0];
    assert!(erf.iter().zip(table).all(|(a, b)| (a - b).abs() < 1e-15), "{erf:?}");
    assert_eq!(unary(UnaryFn::Scalar(Unary::Round), &[0.5, 1.5, -0.5, 2.4]), [0.0, 2.0, -0.0, 2.0]);
    assert_eq!(unary(UnaryFn::Softplus, &[800.0, -800.0]), [800.0, 0.0]);
    assert_eq!(unary(UnaryFn::Scalar(Unary::Sign), &[-3.0, 0.0, 2.0]), [-1.0, 0.0, 1.0]);
}

#[test]
fn integers_are_not_rounded_through_floats() {
    let both = |f: Binary, a: &[i64], b: &[i64]| one(BinaryOp { f }, &[ints(a), ints(b)]).to_i64();
    let large = (1 << 53) + 1;
    assert_eq!(both(Binary::Add, &[large, i64::MAX], &[1, 1]), [large + 1, i64::MIN]);
    assert_eq!(both(Binary::Mod, &[7, -7, 7, -7], &[3, 3, -3, -3]), [1, 2, -2, -1]);
    assert_eq!(both(Binary::Div, &[7, -7, i64::MIN], &[2, 2, -1]), [3, -3, i64::MIN]);
    assert_eq!(both(Binary::Pow, &[2, -1, 5, 0], &[10, -3, -1, 0]), [1024, -1, 0, 1]);
    assert_eq!(one(Reduce::new(ReduceKind::Sum, vec![0]), &[ints(&[large, 2])]).to_i64(), [large + 2]);
    assert!(evaluate(&BinaryOp { f: Binary::Div }.into(), &[ints(&[1]), ints(&[0])]).is_err());
}

#[test]
fn results_are_rounded_to_their_element_type() {
    let thirds = Tensor::from_f64(Type::new(DType::F32, [1]), &[1.0 / 3.0]);
    let sum = one(BinaryOp { f: Binary::Add }, &[thirds.clone(), thirds.clone()]);
    assert_eq!(sum.to_f64(), [f64::from(1f32 / 3.0 + 1f32 / 3.0)]);
    assert_eq!(one(Cast { dtype: DType::I64 }, &[f64s(&[3], &[-1.9, 1.9, f64::NAN])]).to_i64(), [-1, 1, 0]);
    assert_eq!(one(Cast { dtype: DType::Bool }, &[f64s(&[2], &[0.0, -0.1])]).to_f64(), [0.0, 1.0]);
}

#[test]
fn slices_and_pads_are_inverse() {
    let x = f64s(&[2, 5], &(0..10).map(f64::from).collect::<Vec<_>>());
    let slice = one(Slice { axis: 1, start: 4, step: -2, size: 3 }, &[x]);
    assert_eq!(slice.to_f64(), [4.0, 2.0, 0.0, 9.0, 7.0, 5.0]);
    let pad = one(Pad { axis: 1, start: 4, step: -2, size: 5 }, &[slice]);
    assert_eq!(pad.to_f64(), [0.0, 0.0, 2.0, 0.0, 4.0, 5.0, 0.0, 7.0, 0.0, 9.0]);
}

#[test]
fn a_scatter_is_the_transpose_of_a_gather() {
    let (table, indices) = (noise(&[2, 4, 3], 1), Tensor::from_i64([2, 2], &[3, -4, 0, 3]));
    let rows = one(Gather::along(1), &[table.clone(), indices.clone()]);
    assert_eq!(rows.ty.shape, [2, 2, 2, 3]);
    let g = noise(&rows.ty.shape, 2);
    let back = one(ScatterAdd { axis: 1, batch: 0, size: 4 }, &[indices, g.clone()]);
    let dot = |a: &Tensor, b: &Tensor| a.to_f64().iter().zip(b.to_f64()).map(|(x, y)| x * y).sum::<f64>();
    assert!((dot(&rows, &g) - dot(&table, &back)).abs() < 1e-12);
    let outside = evaluate(&Gather::along(1).into(), &[table, Tensor::from_i64([1], &[4])]);
    assert!(outside.unwrap_err().to_string().contains("index 4 of 4 rows"));
}

#[test]
fn row_gradients_are_those_of_the_composed_formulas() {
    let (x, scale, bias, g) = (noise(&[3, 3], 1), noise(&[3], 2), noise(&[3], 3), noise(&[3, 3], 4));
    let y = one(Softmax {}, std::slice::from_ref(&x));
    close(&one(SoftmaxGrad {}, &[y, g.clone()]), &composed(|b, v| softmax(b, v[0]), std::slice::from_ref(&x), &g));

    let normal = evaluate(&LayerNorm { eps: 0.1, dtype: None }.into(), &[x.clone(), scale.clone(), bias.clone()]).unwrap();
    let dx = one(LayerNormGrad {}, &[x.clone(), scale.clone(), normal[1].clone(), normal[2].clone(), g.clone()]);
    close(&dx, &composed(layer_norm, &[x.clone(), scale.clone(), bias], &g));

    let normal = evaluate(&RmsNorm { eps: 0.1, dtype: None }.into(), &[x.clone(), scale.clone()]).unwrap();
    let dx = one(RmsNormGrad {}, &[x.clone(), scale.clone(), normal[1].clone(), g.clone()]);
    close(&dx, &composed(|b, v| rms_norm(b, v[0], v[1]), &[x, scale], &g));
}

fn softmax(b: &mut Builder, x: ValueId) -> ValueId {
    let exp = b.unary(Unary::Exp.into(), x);
    let last = b.ty(x).rank() - 1;
    let sum = column(b, exp, last);
    b.div(exp, sum)
}

/// The sum over the last dimension, which stays with size 1.
fn column(b: &mut Builder, x: ValueId, last: usize) -> ValueId {
    let mut shape = b.ty(x).shape.clone();
    shape[last] = 1;
    let sum = b.sum(x, &[last]);
    b.reshape(sum, &shape)
}

fn rms_norm(b: &mut Builder, x: ValueId, scale: ValueId) -> ValueId {
    let square = b.mul(x, x);
    let sum = column(b, square, 1);
    let mean = b.scale(sum, 1.0 / 3.0);
    let shifted = b.offset(mean, 0.1);
    let root = b.unary(Unary::Sqrt.into(), shifted);
    let normal = b.div(x, root);
    b.mul(normal, scale)
}

fn layer_norm(b: &mut Builder, v: &[ValueId]) -> ValueId {
    let sum = column(b, v[0], 1);
    let mean = b.scale(sum, 1.0 / 3.0);
    let centered = b.sub(v[0], mean);
    let scaled = rms_norm(b, centered, v[1]);
    b.add(scaled, v[2])
}

/// The gradient of the first operand through a composition of ordinary ops, by their own rules.
fn composed(f: impl Fn(&mut Builder, &[ValueId]) -> ValueId, operands: &[Tensor], g: &Tensor) -> Tensor {
    let mut b = Builder::new("composed", Phase::Imported, Mesh::single());
    let values: Vec<ValueId> = operands.iter().map(|t| b.constant(t.clone())).collect();
    let result = f(&mut b, &values);
    let nodes: Vec<_> = b.graph().nodes().map(|(_, n)| n.clone()).collect();
    let mut grads: Vec<Option<ValueId>> = vec![None; b.graph().value_count()];
    grads[result.index()] = Some(b.constant(g.clone()));
    for node in nodes.iter().rev() {
        let own: Vec<Option<ValueId>> = node.results.iter().map(|v| grads[v.index()]).collect();
        if own[0].is_none() {
            continue;
        }
        let needs = vec![true; node.operands.len()];
        let mut cx =
            Backward { b: &mut b, operands: &node.operands, results: &node.results, grads: &own, needs: &needs, out: vec![] };
        node.op.rules().gradient(&mut cx).unwrap();
        for (i, part) in cx.out {
            let operand = node.operands[i].index();
            let total = grads[operand].map_or(part, |sum| b.add(sum, part));
            if let Some(slot) = grads.get_mut(operand) {
                *slot = Some(total);
            }
        }
    }
    let graph = b.finish();
    run(&graph, &Feed::default()).unwrap()[grads[values[0].index()].unwrap().index()].clone()
}

#[test]
fn attention_is_two_contractions_and_a_softmax() {
    let (q, k, v) = (noise(&[2, 4, 3, 5], 1), noise(&[2, 2, 3, 5], 2), noise(&[2, 2, 3, 6], 3));
    let causal = f64s(&[3, 3], &(0..9).map(|i| if i % 3 > i / 3 { -1e30 } else { 0.0 }).collect::<Vec<_>>());
    let layout = HeadLayout::HeadMajor;
    let op = |mask| Attention { scale: 0.3, mask, q: layout, k: layout, v: layout, o: layout };
    let whole = evaluate(&op(MaskKind::Causal).into(), &[q.clone(), k.clone(), v.clone()]).unwrap();
    let masked = evaluate(&op(MaskKind::Operand).into(), &[q.clone(), k.clone(), v.clone(), causal.clone()]).unwrap();
    close(&whole[0], &masked[0]);
    close(&whole[1], &masked[1]);

    let attend = |b: &mut Builder, x: &[ValueId]| {
        let q = b.reshape(x[0], &[2, 2, 2, 3, 5]);
        let dots = b.op(Contract::new("bghte,bgse->bghts"), &[q, x[1]]);
        let scaled = b.scale(dots, 0.3);
        let mask = b.constant(causal.clone());
        let scores = b.add(scaled, mask);
        let p = softmax(b, scores);
        let o = b.op(Contract::new("bghts,bgse->bghte"), &[p, x[2]]);
        b.reshape(o, &[2, 4, 3, 6])
    };
    let mut b = Builder::new("attention", Phase::Imported, Mesh::single());
    let x: Vec<ValueId> = [&q, &k, &v].into_iter().map(|t| b.constant(t.clone())).collect();
    let o = attend(&mut b, &x);
    close(&run(&b.finish(), &Feed::default()).unwrap()[o.index()], &whole[0]);

    let g = noise(&[2, 4, 3, 6], 4);
    let operands = [q.clone(), k.clone(), v.clone(), whole[0].clone(), whole[1].clone(), g.clone()];
    let grads = evaluate(&AttentionGrad { of: op(MaskKind::Causal) }.into(), &operands).unwrap();
    close(&grads[0], &composed(attend, &[q.clone(), k.clone(), v.clone()], &g));
    close(&grads[1], &composed(|b, x| attend(b, &[x[1], x[0], x[2]]), &[k.clone(), q.clone(), v.clone()], &g));
    close(&grads[2], &composed(|b, x| attend(b, &[x[1], x[2], x[0]]), &[v, q, k], &g));
}

/// A query that sees nothing gets zeros, one whose scores are not numbers no numbers.
#[test]
fn attention_hides_no_query_that_is_not_a_number() {
    let layout = HeadLayout::HeadMajor;
    let op = Attention { scale: 1.0, mask: MaskKind::Operand, q: layout, k: layout, v: layout, o: layout };
    let (q, k) = (f64s(&[1, 1, 3, 1], &[f64::NAN, 1.0, f64::NAN]), f64s(&[1, 1, 2, 1], &[1.0, 2.0]));
    let (seen, hidden) = (0.0, f64::NEG_INFINITY);
    let mask = f64s(&[3, 2], &[seen, seen, hidden, hidden, hidden, seen]);
    let results = evaluate(&op.into(), &[q, k.clone(), k, mask]).unwrap();
    let (o, lse) = (results[0].to_f64(), results[1].to_f64());
    assert!(o[0].is_nan() && o[1] == 0.0 && o[2].is_nan(), "{o:?}");
    assert!(lse[0].is_nan() && lse[1] == f64::NEG_INFINITY && lse[2].is_nan(), "{lse:?}");
}

#[test]
fn adam_takes_the_step_of_its_paper() {
    let adam = Adam { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, decoupled: true, skips: false };
    let scalar = |v: f64| f64s(&[], &[v]);
    let (w, g, zero) = (f64s(&[1], &[2.0]), f64s(&[1], &[0.5]), f64s(&[1], &[0.0]));
    let results = evaluate(&adam.into(), &[w, g, scalar(0.01), scalar(0.1), scalar(0.01), zero.clone(), zero]).unwrap();
    // At the first step the corrected moments are g and g^2, so the step is lr g / |g| beside the
    // decay.
    assert!((results[0].to_f64()[0] - (2.0 * (1.0 - 0.01 * 0.1) - 0.01)).abs() < 1e-9);
    assert!((results[1].to_f64()[0] - 0.05).abs() < 1e-15 && (results[2].to_f64()[0] - 0.0025).abs() < 1e-15);
}
