//! Gradient rules against finite differences in f64, for every op of the list: none escapes.

use shardc_ir::dtype::DType;
use shardc_ir::interp::{Feed, evaluate, run};
use shardc_ir::ops::leaf::Constant;
use shardc_ir::ops::samples::{Sample, samples};
use shardc_ir::ops::{Backward, NoGradient, Op};
use shardc_ir::types::{Tensor, Type};
use std::collections::{BTreeMap, BTreeSet};

/// Largest difference, relative to the largest entry of an operand's gradient.
const TOLERANCE: f64 = 1e-8;

/// The error that rounding leaves in a gradient of 0.
const ROUNDING: f64 = 1e-10;

/// Nothing flows back through these although their results move: that is what they are for.
const CUTS: &[&str] = &["detach"];

/// Ops that no gradient is taken of and no gradient is made of, and what tests them.
const TESTED_ELSEWHERE: &[(&str, &str)] = &[
    ("sgd", "tests/jobs/gold.rs: training as PyTorch's"),
    ("adam", "tests/jobs/gold.rs: training as PyTorch's"),
    ("reshard", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("accumulate", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("all_reduce", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("all_gather", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("reduce_scatter", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("all_to_all", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("shard_slice", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("flat_gather", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("flat_scatter", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("flat_slice", "passes/tests/theorem.rs: plans of many ranks against their reference"),
    ("transfer", "passes/tests/theorem.rs: plans of many ranks against their reference"),
];

/// The outcome for an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It has no float operand.
    NoFloats,
    /// It says that nothing flows back.
    Constant,
    /// Its gradient is that of finite differences.
    Differentiated,
    /// It is no op of models.
    NotOfModels,
}

#[test]
fn every_gradient_is_that_of_finite_differences() {
    let mut outcomes: BTreeMap<&str, BTreeSet<Outcome>> = BTreeMap::new();
    let mut used_backward = BTreeSet::new();
    for sample in samples() {
        if sample.operands.iter().any(|a| a.ty.dtype == DType::F32) || results(&sample).iter().any(|t| t.dtype == DType::F32) {
            continue;
        }
        for seed in 1..=3 {
            let (outcome, backward) = check(&sample, seed);
            outcomes.entry(sample.op.name()).or_default().insert(outcome);
            used_backward.extend(backward);
        }
    }
    for name in Op::names() {
        let seen = outcomes.get(name).unwrap_or_else(|| panic!("`{name}` has no sample"));
        let elsewhere = TESTED_ELSEWHERE.iter().any(|(op, _)| *op == name);
        let in_models = !seen.contains(&Outcome::NotOfModels);
        assert!(in_models || elsewhere || used_backward.contains(name), "`{name}` has no gradient and is part of none");
        assert!(in_models || !elsewhere || !used_backward.contains(name), "`{name}` is tested here");
    }
    let count = |o| outcomes.values().filter(|seen| seen.contains(&o)).count();
    println!(
        "{} ops: {} differentiated, {} constant, {} parts of gradients or tested elsewhere",
        outcomes.len(),
        count(Outcome::Differentiated),
        count(Outcome::Constant),
        count(Outcome::NotOfModels)
    );
}

fn results(sample: &Sample) -> Vec<Type> {
    let (builder, _, results) = sample.build();
    results.iter().map(|v| builder.ty(*v).clone()).collect()
}

/// Compares one sample's gradient with finite differences; also gives the names of the ops that the
/// gradient is made of.
fn check(sample: &Sample, seed: u64) -> (Outcome, Vec<&'static str>) {
    let name = sample.op.name();
    let needs: Vec<bool> = sample.operands.iter().map(|a| a.ty.dtype.is_float() && !a.fixed).collect();
    if !needs.contains(&true) {
        return (Outcome::NoFloats, vec![]);
    }
    let operands = sample.values(seed);
    let weights = weights(&results(sample)[0]);
    let (analytic, backward) = match analytic(sample, &operands, &weights, &needs) {
        Ok(found) => found,
        Err(NoGradient::NotOfModels) => return (Outcome::NotOfModels, vec![]),
        Err(NoGradient::Constant) => {
            for i in (0..operands.len()).filter(|i| needs[*i] && !CUTS.contains(&name)) {
                let moved = differences(&sample.op, &operands, i, &weights);
                assert!(moved.iter().all(|d| d.abs() <= ROUNDING), "`{name}` moves with operand {i}: {moved:?}\n{sample:?}");
            }
            return (Outcome::Constant, vec![]);
        }
    };
    for i in (0..operands.len()).filter(|i| needs[*i]) {
        let gradient = analytic.get(&i).unwrap_or_else(|| panic!("`{name}` gives operand {i} no gradient\n{sample:?}"));
        assert_eq!(gradient.ty, operands[i].ty, "the gradient of operand {i} of `{name}`");
        compare(sample, i, &gradient.to_f64(), &differences(&sample.op, &operands, i, &weights));
        // A rule that is asked for one gradient gives the same one.
        let only: Vec<bool> = (0..needs.len()).map(|j| j == i).collect();
        let alone = self::analytic(sample, &operands, &weights, &only).expect("it has a gradient").0;
        assert_eq!(alone[&i], *gradient, "`{name}`, operand {i} alone");
    }
    (Outcome::Differentiated, backward)
}

fn compare(sample: &Sample, operand: usize, gradient: &[f64], differences: &[f64]) {
    let largest = differences.iter().fold(0.0f64, |m, d| m.max(d.abs()));
    for (i, (g, d)) in gradient.iter().zip(differences).enumerate() {
        let error = (g - d).abs();
        assert!(
            error <= TOLERANCE * largest + ROUNDING,
            "`{}`, operand {operand}, element {i}: the rule gives {g}, finite differences {d}\n{sample:?}",
            sample.op.name()
        );
    }
}

/// Weights of the first result's elements in the loss; none is 0 and no two are equal.
fn weights(ty: &Type) -> Tensor {
    let weight = |i: u64| 0.3 + ((i + 1) as f64 * 0.754_877_666).fract();
    let signed: Vec<f64> = (0..ty.elements()).map(|i| if i % 3 == 1 { -weight(i) } else { weight(i) }).collect();
    Tensor::from_f64(Type::new(DType::F64, ty.shape.clone()), &signed)
}

/// Gradients of the loss `sum(weights * first result)` by the op's rule, and the names of the ops
/// that they are made of.
type Analytic = (BTreeMap<usize, Tensor>, Vec<&'static str>);

fn analytic(sample: &Sample, values: &[Tensor], weights: &Tensor, needs: &[bool]) -> Result<Analytic, NoGradient> {
    let (mut builder, operands, results) = sample.build();
    let weights = builder.op(Constant { value: weights.clone() }, &[]);
    let forward = builder.graph().node_count();
    let mut grads = vec![None; results.len()];
    grads[0] = Some(weights);
    let mut cx = Backward { b: &mut builder, operands: &operands, results: &results, grads: &grads, needs, out: vec![] };
    sample.op.rules().gradient(&mut cx)?;
    let out = cx.out;
    let graph = builder.finish();
    let inputs = values.iter().enumerate().map(|(i, v)| (format!("x{i}"), v.clone())).collect();
    let evaluated = run(&graph, &Feed { inputs, ..Feed::default() }).expect("a gradient is evaluated");
    let mut gradients = BTreeMap::new();
    for (i, value) in out {
        let twice = gradients.insert(i, evaluated[value.index()].clone());
        assert!(twice.is_none(), "`{}` gives operand {i} two gradients", sample.op.name());
    }
    Ok((gradients, graph.nodes().skip(forward).map(|(_, node)| node.op.name()).collect()))
}

/// Central differences of the loss in each element of operand `i`, extrapolated to step 0.
/// Richardson: The approximate arithmetical solution by finite differences (1911).
fn differences(op: &Op, operands: &[Tensor], i: usize, weights: &Tensor) -> Vec<f64> {
    /// Halved twice; smaller than the distance that samples keep from jumps.
    const STEP: f64 = 1e-3;
    let weights = weights.to_f64();
    let at = operands[i].to_f64();
    let loss = |element: usize, value: f64| -> f64 {
        let mut moved = at.clone();
        moved[element] = value;
        let mut operands = operands.to_vec();
        operands[i] = Tensor::from_f64(operands[i].ty.clone(), &moved);
        let result = evaluate(op, &operands).expect("a sample is evaluated").swap_remove(0);
        result.to_f64().iter().zip(&weights).map(|(r, w)| r * w).sum()
    };
    (0..at.len())
        .map(|e| {
            let central = |h: f64| (loss(e, at[e] + h) - loss(e, at[e] - h)) / (2.0 * h);
            let [wide, middle, narrow] = [STEP, STEP / 2.0, STEP / 4.0].map(central);
            let [first, second] = [(4.0 * middle - wide) / 3.0, (4.0 * narrow - middle) / 3.0];
            (16.0 * second - first) / 15.0
        })
        .collect()
}
