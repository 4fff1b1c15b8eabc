//! Integers under every mesh: random graphs over sums, means, quotients, remainders and products of
//! integers compute the same on many ranks and in micro-batches as on one rank, and as the naive
//! evaluator on the graph as imported.
//!
//! `SHARDC_PROGRAMS` is the number of programs, 300 without it.

use shardc_executor::tensor::Tensor as Array;
use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Output, Phase, State, StateId, ValueId};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::leaf::Input;
use shardc_ir::plan::StateRole;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::train::StateInit;
use shardc_ir::types::Type;
use shardc_testkit::step;
use std::collections::BTreeMap;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH: u64 = 12;
/// Why a program may be refused: it wants in one micro-batch what all of them make.
const REFUSED: [&str; 2] = ["is needed for the whole batch at once", "needs all micro-batches at once"];
const SHAPE: [u64; 3] = [BATCH, 4, 6];

/// Numbers without a pattern.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// A graph that adds integers, made of an input of integers, to a product with a parameter.
fn graph(draw: &mut Draw) -> Graph {
    let mut b = Builder::new("integers", Phase::Imported, Mesh::single());
    let input = |b: &mut Builder, name: &str, ty| b.op(Input { name: name.into(), ty, label: false }, &[]);
    let numbers = input(&mut b, "n", Type::new(DType::I64, SHAPE));
    let x = input(&mut b, "x", Type::new(DType::F64, [BATCH, 4]));
    let weight = State::new("w", Type::new(DType::F64, [4, 4]), StateRole::Parameter, StateInit::Model);
    b.graph_mut().states.push(weight);
    let w = b.state(StateId(0));
    let mut all = vec![numbers];
    for _ in 0..3 + draw.below(8) {
        let value = all[all.len() - 1 - draw.below(2.min(all.len() as u64)) as usize];
        let next = step(&mut b, draw, value, &all);
        all.push(next);
    }
    let mut last = all[all.len() - 1];
    // Integers beyond this are not told apart by what follows.
    last = with(&mut b, Binary::Mod, last, 1009);
    let rows = per_sample(&mut b, last);
    let rows = b.cast(rows, DType::F64);
    let y = b.op(Contract::new("bk,kn->bn".to_string()), &[x, w]);
    let y = b.add(y, rows);
    b.rename(y, "y");
    b.graph_mut().outputs.push(Output { name: "y".into(), value: y });
    b.finish()
}

fn with(b: &mut Builder, f: Binary, x: ValueId, number: i64) -> ValueId {
    let number = b.number(DType::I64, number as f64);
    b.binary(f, x, number)
}

fn step(b: &mut Builder, draw: &mut Draw, x: ValueId, all: &[ValueId]) -> ValueId {
    let rank = b.ty(x).rank();
    let axis = draw.below(rank.max(1) as u64) as usize;
    match draw.below(12) {
        0..3 if rank > 0 => b.sum(x, &[axis]),
        3 if rank > 0 => {
            let count = b.ty(x).shape[axis] as i64;
            let sum = b.sum(x, &[axis]);
            with(b, Binary::Div, sum, count)
        }
        4 if rank > 0 => b.reduce(draw.pick(&[ReduceKind::Max, ReduceKind::Min]), x, &[axis]),
        5 | 6 => with(b, Binary::Div, x, draw.pick(&[2, 3, -3, 7])),
        7 => with(b, Binary::Mod, x, draw.pick(&[2, 5, -7])),
        8 => with(b, draw.pick(&[Binary::Mul, Binary::Sub, Binary::Max]), x, draw.pick(&[3, -2, 1 << 40])),
        9 => b.unary(draw.pick(&[Unary::Neg, Unary::Abs, Unary::Sign]).into(), x),
        10 => {
            let size = b.unary(Unary::Abs.into(), x);
            let size = with(b, Binary::Add, size, 1);
            let dividend = draw.pick(all);
            let fits = b.ty(dividend).shape == b.ty(size).shape;
            if fits { b.binary(Binary::Div, dividend, size) } else { size }
        }
        _ => {
            let other = draw.pick(all);
            let fits = b.ty(other).shape == b.ty(x).shape;
            if fits { b.binary(draw.pick(&[Binary::Add, Binary::Mul]), x, other) } else { b.mul(x, x) }
        }
    }
}

/// One number for each sample, or one for all of them.
fn per_sample(b: &mut Builder, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape.clone();
    if shape.first() != Some(&BATCH) {
        let axes: Vec<usize> = (0..shape.len()).collect();
        return b.sum(x, &axes);
    }
    let axes: Vec<usize> = (1..shape.len()).collect();
    let sum = b.sum(x, &axes);
    b.reshape(sum, &[BATCH, 1])
}

fn spec(draw: &mut Draw) -> String {
    let (mesh, data) =
        draw.pick(&[("dp=2", "dp"), ("dp=3", "dp"), ("tp=2", ""), ("dp=2 tp=2", "dp"), ("dp=2 tp=3", "dp"), ("tp=2 up=2", "")]);
    let mut text = format!("mesh {mesh}\nbatch {BATCH} microbatches={}\n", draw.pick(&[1, 1, 2]));
    text.extend(mesh.split(' ').map(|axis| format!("replicate axis={}\n", axis.split('=').next().unwrap_or_default())));
    if !data.is_empty() {
        text += &format!("data axis={data}\n");
    }
    if mesh.contains("tp=") {
        let wide = if mesh.contains("tp=3") { "[?, -, tp]" } else { draw.pick(&["[?, tp, -]", "[?, -, tp]"]) };
        let wide = if mesh.contains("up=") { "[?, tp, up]" } else { wide };
        text += &format!("shard \"n\" {wide}\n");
    }
    text + "loss mse prediction=y labels=t\noptimizer sgd lr=0.1\n"
}

#[test]
fn integers_are_the_same_under_every_mesh() {
    let count: u64 = std::env::var("SHARDC_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let (mut ran, mut refused) = (0, BTreeMap::<&str, u64>::new());
    for seed in 0..count {
        let mut draw = Draw(seed * 7919 + 1);
        (0..4).for_each(|_| _ = draw.below(2));
        let graph = graph(&mut draw);
        let text = spec(&mut draw);
        let at = || format!("program {seed}\n{text}\n{}", shardc_ir::text::print(&graph));
        let spec = step::spec(&text).unwrap_or_else(|d| panic!("{}\n{}", d[0], at()));
        let of = |shape: &[u64], f: &dyn Fn(u64) -> f64| {
            Array::from_f64(shape, &(0..shape.iter().product()).map(f).collect::<Vec<_>>())
        };
        let numbers: Vec<i64> = (0..SHAPE.iter().product::<u64>()).map(|i| (i * 37 + seed * 11) as i64 % 23 - 9).collect();
        let wave = |i: u64| (i as f64 * 0.7).sin();
        let inputs = BTreeMap::from([
            ("n".to_string(), Array::from_i64(&SHAPE, &numbers)),
            ("x".to_string(), of(&[BATCH, 4], &wave)),
            ("t".to_string(), of(&[BATCH, 4], &wave)),
        ]);
        let states = BTreeMap::from([("w".to_string(), of(&[4, 4], &wave))]);
        let many = match step::programs(&graph, &spec) {
            Ok(program) => program,
            Err(errors) => {
                let message = &errors[0].message;
                let why = REFUSED.iter().find(|why| message.contains(**why)).unwrap_or_else(|| panic!("{message}\n{}", at()));
                *refused.entry(*why).or_default() += 1;
                continue;
            }
        };
        let one = step::programs(&graph, &spec.reference()).unwrap_or_else(|d| panic!("{}\n{}", d[0], at()));
        let (got, want) = (step::step(&many, &states, &inputs), step::step(&one, &states, &inputs));
        for (name, value) in &want.outputs {
            assert!((got.outputs[name] - value).abs() <= 1e-10 * value.abs().max(1.0), "{name}: {got:?}, not {want:?}\n{}", at());
        }
        let (compiled, naive) = step::outputs(&graph, &spec, &states, &inputs).unwrap_or_else(|d| panic!("{}\n{}", d[0], at()));
        let differs = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-10 * b.abs().max(1.0);
        assert!(!compiled.iter().zip(&naive).any(differs), "{compiled:?}, not {naive:?}\n{}", at());
        ran += 1;
    }
    eprintln!("{ran} random programs of integers agree with one rank; refused: {refused:?}");
    assert!(ran * 10 >= count * 8, "{ran} of {count} ran: {refused:?}");
}
