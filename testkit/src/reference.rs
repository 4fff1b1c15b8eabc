//! Every kernel form as plain loops in f64: slow, easy to read, and written apart from the kernels,
//! which it judges.

use shardc_ir::kernel::*;
use shardc_ir::philox;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, Unary};

/// Every index of a space, in row-major order.
pub fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    let mut all = vec![vec![]];
    for size in shape {
        all = all.iter().flat_map(|i| (0..*size).map(move |j| i.iter().copied().chain([j]).collect())).collect();
    }
    all
}

fn at(index: &[u64], strides: &[i64]) -> usize {
    index.iter().zip(strides).map(|(i, s)| *i as i64 * s).sum::<i64>() as usize
}

fn product(sizes: &[u64]) -> usize {
    sizes.iter().product::<u64>() as usize
}

/// Runs a kernel over f64 operands. `out` is what its results hold before: what it does not write
/// stays.
///
/// # Panics
/// If it reaches outside its operands.
pub fn run(kernel: &Kernel, reads: &[Vec<f64>], mut out: Vec<Vec<f64>>, coordinates: &[u64]) -> Vec<Vec<f64>> {
    match kernel {
        Kernel::Map(map) => {
            for (position, index) in indices(&map.shape).iter().enumerate() {
                for (o, value) in element(map, reads, index, coordinates).into_iter().enumerate() {
                    out[o][position] = value;
                }
            }
        }
        Kernel::Reduce(reduce) => reduce_all(reduce, reads, &mut out[0], coordinates),
        Kernel::Rowwise(rowwise) => rows(rowwise, reads, &mut out),
        Kernel::Contract(contract) => contract_all(contract, reads, &mut out[0]),
        Kernel::Attention(a) => attention(a, reads, &mut out),
        Kernel::AttentionGrad(AttentionGrad(a)) => attention_grad(a, reads, &mut out),
        Kernel::Conv(conv) => convolution(conv, reads, &mut out[0]),
        Kernel::MaxPool(pool) => max_pool(pool, &reads[0], &mut out[0]),
        Kernel::MaxPoolGrad(MaxPoolGrad(pool)) => max_pool_grad(pool, reads, &mut out[0]),
        Kernel::Move(m) => {
            let (src, dst) = (m.src_offset.at(coordinates), m.dst_offset.at(coordinates));
            for index in indices(&m.shape) {
                let from = index.iter().zip(&m.src_strides).fold(src, |sum, (i, s)| sum + *i as i64 * s);
                out[0][(dst as usize) + at(&index, &m.dst_strides)] = reads[0][from as usize];
            }
        }
        Kernel::Gather(g) => {
            out[0][..product(&[g.batch, g.outer, g.count, g.inner])].fill(0.0);
            for index in indices(&[g.batch, g.outer, g.count, g.inner]) {
                if let Some((row, listed)) = indexed(g, &index, &reads[1], coordinates) {
                    out[0][listed] = reads[0][row];
                }
            }
        }
        Kernel::ScatterAdd(ScatterAdd(g)) => {
            out[0][..product(&[g.batch, g.outer, g.rows, g.inner])].fill(0.0);
            for index in indices(&[g.batch, g.outer, g.count, g.inner]) {
                if let Some((row, listed)) = indexed(g, &index, &reads[0], coordinates) {
                    out[0][row] += reads[1][listed];
                }
            }
        }
        Kernel::Fill(Fill { count, value, .. }) => out[0][..*count as usize].fill(*value),
        Kernel::Random(r) => {
            for (position, index) in indices(&r.shape).iter().enumerate() {
                let global =
                    index.iter().zip(&r.origins).zip(&r.strides).map(|((i, o), s)| o.global(*i, coordinates) as u64 * s).sum();
                let word = philox::word(global, reads[0][0] as i64 as u64, r.stream, reads[1][0] as u64);
                out[0][position] = f64::from(u8::from(word >= r.threshold));
            }
        }
        Kernel::Bundle(bundle) => {
            for (member, first) in bundle.members.iter().zip(bundle.results()) {
                let read = |source: &Source| match *source {
                    Source::Read(at) => reads[at as usize].clone(),
                    Source::Write(at) => out[at as usize].clone(),
                };
                let own: Vec<Vec<f64>> = member.reads.iter().map(read).collect();
                let results = first..first + member.kernel.map().outputs.len();
                let made = run(&member.kernel.alone(), &own, out[results.clone()].to_vec(), coordinates);
                out.splice(results, made);
            }
        }
        Kernel::Collective(_) => panic!("a collective has no reference here"),
    }
    out
}

fn element(map: &Map, reads: &[Vec<f64>], index: &[u64], coordinates: &[u64]) -> Vec<f64> {
    let mut registers: Vec<f64> = map.inputs.iter().zip(reads).map(|(input, data)| data[at(index, &input.strides)]).collect();
    for instr in &map.program.code {
        let r = |i: u16| registers[i as usize];
        let value = match *instr {
            Instr::Const(value) => value,
            Instr::Index(d) => {
                let origin = map.origins.iter().find(|(of, _)| *of == d).map(|(_, origin)| origin);
                origin.map_or(index[d as usize] as i64, |origin| origin.global(index[d as usize], coordinates)) as f64
            }
            Instr::Unary(f, a) => unary(f, r(a)),
            Instr::Binary(f, a, b) => binary(f, r(a), r(b)),
            Instr::Round(to, a) => to.round_f64(r(a)),
            Instr::Select(a, b, c) => {
                if r(a) != 0.0 {
                    r(b)
                } else {
                    r(c)
                }
            }
        };
        registers.push(value);
    }
    map.program.outputs.iter().map(|r| registers[*r as usize]).collect()
}

fn unary(f: Unary, x: f64) -> f64 {
    match f {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Atan => x.atan(),
        Unary::Tanh => x.tanh(),
        Unary::Erf => libm::erf(x),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Not => f64::from(x == 0.0),
        Unary::IsNan => f64::from(x.is_nan()),
    }
}

fn binary(f: Binary, a: f64, b: f64) -> f64 {
    let (p, q) = (a != 0.0, b != 0.0);
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
        Binary::Max => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.max(b)
            }
        }
        Binary::Min => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.min(b)
            }
        }
        Binary::Mod => a - b * (a / b).floor(),
        Binary::Eq => f64::from(a == b),
        Binary::Lt => f64::from(a < b),
        Binary::Le => f64::from(a <= b),
        Binary::And => f64::from(p && q),
        Binary::Or => f64::from(p || q),
        Binary::Xor => f64::from(p != q),
    }
}

fn reduce_all(reduce: &Reduce, reads: &[Vec<f64>], out: &mut [f64], coordinates: &[u64]) {
    let kept = reduce.map.shape.iter().zip(&reduce.reduced).filter(|(_, reduced)| !**reduced);
    let results = kept.map(|(n, _)| n).product::<u64>() as usize;
    out[..results].fill(match reduce.kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min => f64::INFINITY,
    });
    for index in indices(&reduce.map.shape) {
        let kept = index.iter().zip(&reduce.map.shape).zip(&reduce.reduced).filter(|(_, reduced)| !**reduced);
        let position = kept.fold(0, |position, ((i, n), _)| position * n + i) as usize;
        let value = element(&reduce.map, reads, &index, coordinates)[0];
        out[position] = match reduce.kind {
            ReduceKind::Sum => out[position] + value,
            ReduceKind::Max => binary(Binary::Max, out[position], value),
            ReduceKind::Min => binary(Binary::Min, out[position], value),
        };
    }
}

fn rows(rowwise: &Rowwise, reads: &[Vec<f64>], out: &mut [Vec<f64>]) {
    let width = rowwise.width as usize;
    let n = width as f64;
    let (first, rest) = out.split_at_mut(1);
    for row in 0..rowwise.rows as usize {
        let range = row * width..(row + 1) * width;
        let x = &reads[0][range.clone()];
        let y = &mut first[0][range.clone()];
        match rowwise.program {
            RowProgram::Softmax => {
                let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
                (0..width).for_each(|i| y[i] = (x[i] - max).exp() / sum);
            }
            RowProgram::SoftmaxGrad => {
                let dy = &reads[1][range];
                let inner: f64 = (0..width).map(|i| x[i] * dy[i]).sum();
                (0..width).for_each(|i| y[i] = x[i] * (dy[i] - inner));
            }
            RowProgram::LayerNorm { eps } => {
                let mean = x.iter().sum::<f64>() / n;
                let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
                (0..width).for_each(|i| y[i] = (x[i] - mean) * rstd * reads[1][i] + reads[2][i]);
                (rest[0][row], rest[1][row]) = (mean, rstd);
            }
            RowProgram::LayerNormGrad => {
                let (mean, rstd, dy) = (reads[2][row], reads[3][row], &reads[4][range]);
                let h: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
                let g: Vec<f64> = dy.iter().zip(&reads[1]).map(|(dy, scale)| dy * scale).collect();
                let mean_g = g.iter().sum::<f64>() / n;
                let mean_gh = g.iter().zip(&h).map(|(g, h)| g * h).sum::<f64>() / n;
                (0..width).for_each(|i| y[i] = rstd * (g[i] - mean_g - h[i] * mean_gh));
            }
            RowProgram::RmsNorm { eps } => {
                let rstd = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + eps).sqrt();
                (0..width).for_each(|i| y[i] = x[i] * rstd * reads[1][i]);
                rest[0][row] = rstd;
            }
            RowProgram::RmsNormGrad => {
                let (rstd, dy) = (reads[2][row], &reads[3][range]);
                let h: Vec<f64> = x.iter().map(|x| x * rstd).collect();
                let g: Vec<f64> = dy.iter().zip(&reads[1]).map(|(dy, scale)| dy * scale).collect();
                let mean_gh = g.iter().zip(&h).map(|(g, h)| g * h).sum::<f64>() / n;
                (0..width).for_each(|i| y[i] = rstd * (g[i] - h[i] * mean_gh));
            }
            RowProgram::Rotary { repeat, period, transposed } => {
                let table = row / repeat as usize % period as usize * width;
                let (cos, sin, half) = (&reads[1][table..], &reads[2][table..], width / 2);
                // The map as a matrix: row `i` is what `y[i]` takes of each `x[j]`.
                let entry = |i: usize, j: usize| match (i == j, i < half) {
                    (true, _) => cos[i],
                    (_, true) if j == i + half => -sin[i],
                    (_, false) if j + half == i => sin[i],
                    _ => 0.0,
                };
                for (i, y) in y.iter_mut().enumerate() {
                    *y = (0..width).map(|j| x[j] * if transposed { entry(j, i) } else { entry(i, j) }).sum();
                }
            }
        }
    }
}

fn contract_all(contract: &Contract, reads: &[Vec<f64>], out: &mut [f64]) {
    let dims: Vec<ContractDim> =
        [&contract.batch, &contract.m, &contract.n, &contract.k].into_iter().flatten().copied().collect();
    let pick = |f: fn(&ContractDim) -> i64| dims.iter().map(f).collect::<Vec<_>>();
    let (a, b, c) = (pick(|d| d.a), pick(|d| d.b), pick(|d| d.c));
    let results: Vec<ContractDim> = [&contract.batch, &contract.m, &contract.n].into_iter().flatten().copied().collect();
    for index in indices(&results.iter().map(|d| d.size).collect::<Vec<_>>()) {
        out[at(&index, &results.iter().map(|d| d.c).collect::<Vec<_>>())] = 0.0;
    }
    for index in indices(&dims.iter().map(|d| d.size).collect::<Vec<_>>()) {
        out[at(&index, &c)] += reads[0][at(&index, &a)] * reads[1][at(&index, &b)];
    }
}

/// Probabilities of one query, and the logarithm of the sum of exponentials.
fn probabilities(a: &Attention, reads: &[Vec<f64>], b: u64, h: u64, t: u64) -> (Vec<f64>, f64) {
    let kv = h / (a.heads / a.kv_heads);
    let scores: Vec<f64> = (0..a.kv_len)
        .map(|s| {
            let score = (0..a.width)
                .map(|e| reads[0][at(&[b, h, t, e], &with_unit(a.q))] * reads[1][at(&[b, kv, s, e], &with_unit(a.k))]);
            let score = a.scale * score.sum::<f64>();
            match &a.mask {
                AttentionMask::None => score,
                AttentionMask::Causal => {
                    if s as i64 <= t as i64 + a.kv_len as i64 - a.q_len as i64 {
                        score
                    } else {
                        f64::NEG_INFINITY
                    }
                }
                AttentionMask::Operand { dtype, strides } => {
                    let mask = reads[3][at(&[b, h, t, s], strides)];
                    if dtype.is_float() {
                        score + mask
                    } else if mask != 0.0 {
                        score
                    } else {
                        f64::NEG_INFINITY
                    }
                }
            }
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return (vec![0.0; scores.len()], max);
    }
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    (scores.iter().map(|s| (s - max).exp() / sum).collect(), max + sum.ln())
}

fn with_unit(s: [i64; 3]) -> [i64; 4] {
    [s[0], s[1], s[2], 1]
}

fn attention(a: &Attention, reads: &[Vec<f64>], out: &mut [Vec<f64>]) {
    for index in indices(&[a.batch, a.heads, a.q_len]) {
        let (b, h, t) = (index[0], index[1], index[2]);
        let (p, lse) = probabilities(a, reads, b, h, t);
        out[1][((b * a.heads + h) * a.q_len + t) as usize] = lse;
        for e in 0..a.v_width {
            let kv = h / (a.heads / a.kv_heads);
            let value = (0..a.kv_len).map(|s| p[s as usize] * reads[2][at(&[b, kv, s, e], &with_unit(a.v))]).sum();
            out[0][at(&[b, h, t, e], &with_unit(a.o))] = value;
        }
    }
}

fn attention_grad(a: &Attention, reads: &[Vec<f64>], out: &mut [Vec<f64>]) {
    let results =
        [(a.heads, a.q_len, a.width, a.q), (a.kv_heads, a.kv_len, a.width, a.k), (a.kv_heads, a.kv_len, a.v_width, a.v)];
    for (result, (heads, positions, width, strides)) in out.iter_mut().zip(results) {
        for index in indices(&[a.batch, heads, positions, width]) {
            result[at(&index, &with_unit(strides))] = 0.0;
        }
    }
    attention_terms(a, reads, |result, to, weight, by| out[result][to] += weight * by);
}

/// Every term of the gradient of attention: which result, its element, and the weight and the
/// element of an operand that it is the product of.
pub fn attention_terms(a: &Attention, reads: &[Vec<f64>], mut add: impl FnMut(usize, usize, f64, f64)) {
    let d_o = reads.last().expect("the incoming gradient");
    for index in indices(&[a.batch, a.heads, a.q_len]) {
        let (b, h, t) = (index[0], index[1], index[2]);
        let kv = h / (a.heads / a.kv_heads);
        let (p, _) = probabilities(a, reads, b, h, t);
        let of_o = |e: u64| d_o[at(&[b, h, t, e], &with_unit(a.o))];
        let v = |s: u64, e: u64| reads[2][at(&[b, kv, s, e], &with_unit(a.v))];
        let dp: Vec<f64> = (0..a.kv_len).map(|s| (0..a.v_width).map(|e| of_o(e) * v(s, e)).sum()).collect();
        let inner: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
        for s in 0..a.kv_len {
            let (p, ds) = (p[s as usize], p[s as usize] * (dp[s as usize] - inner) * a.scale);
            for e in 0..a.width {
                let (q, k) = (at(&[b, h, t, e], &with_unit(a.q)), at(&[b, kv, s, e], &with_unit(a.k)));
                add(0, q, ds, reads[1][k]);
                add(1, k, ds, reads[0][q]);
            }
            for e in 0..a.v_width {
                add(2, at(&[b, kv, s, e], &with_unit(a.v)), p, of_o(e));
            }
        }
    }
}

/// For a position over (batch, outer, count, inner): the element of the table that its index names
/// and the element of the list of rows; none where another rank holds the row, which is found by
/// looking.
fn indexed(g: &Gather, position: &[u64], indices: &[f64], coordinates: &[u64]) -> Option<(usize, usize)> {
    let [b, o, i, k] = position[..] else { panic!("four dimensions") };
    let index = indices[(b * g.count + i) as usize];
    let global = if index < 0.0 { index as i64 + g.total_rows as i64 } else { index as i64 };
    let row = (0..g.rows).find(|row| g.origin.global(*row, coordinates) == global)?;
    let element = |rows: u64, row: u64| (((b * g.outer + o) * rows + row) * g.inner + k) as usize;
    Some((element(g.rows, row), element(g.count, i)))
}

fn convolution(conv: &Conv, reads: &[Vec<f64>], out: &mut [f64]) {
    let sizes = |f: fn(&WindowDim) -> u64| conv.window.iter().map(f).collect::<Vec<u64>>();
    let (input, output, kernel) = (sizes(|d| d.input), sizes(|d| d.output), sizes(|d| d.kernel));
    let results = match conv.result {
        ConvResult::Output => product(&[conv.batch, conv.groups, conv.outputs]) * product(&output),
        ConvResult::Input => product(&[conv.batch, conv.groups, conv.inputs]) * product(&input),
        ConvResult::Weight => product(&[conv.groups, conv.outputs, conv.inputs]) * product(&kernel),
    };
    out[..results].fill(0.0);
    let flat = |index: &[u64], shape: &[u64]| index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i) as usize;
    for index in indices(&[conv.batch, conv.groups, conv.outputs, conv.inputs]) {
        let [n, g, o, c] = index[..] else { unreachable!() };
        for position in indices(&output) {
            for tap in indices(&kernel) {
                let source: Option<Vec<u64>> =
                    conv.window.iter().zip(position.iter().zip(&tap)).map(|(d, (p, k))| d.source(*p, *k)).collect();
                let Some(source) = source else { continue };
                let plane = |number: u64, shape: &[u64]| (number * shape.iter().product::<u64>()) as usize;
                let x = plane((n * conv.groups + g) * conv.inputs + c, &input) + flat(&source, &input);
                let w = plane((g * conv.outputs + o) * conv.inputs + c, &kernel) + flat(&tap, &kernel);
                let y = plane((n * conv.groups + g) * conv.outputs + o, &output) + flat(&position, &output);
                match conv.result {
                    ConvResult::Output => out[y] += reads[0][x] * reads[1][w],
                    ConvResult::Input => out[x] += reads[0][y] * reads[1][w],
                    ConvResult::Weight => out[w] += reads[0][x] * reads[1][y],
                }
            }
        }
    }
}

/// For each output of a pool the elements that it sees, in order.
fn seen(pool: &MaxPool) -> Vec<Vec<usize>> {
    let sizes = |f: fn(&WindowDim) -> u64| pool.window.iter().map(f).collect::<Vec<u64>>();
    let (input, taps) = (sizes(|d| d.input), indices(&sizes(|d| d.kernel)));
    let source = |position: &[u64], tap: &[u64]| -> Option<usize> {
        let dims = pool.window.iter().zip(position.iter().zip(tap));
        dims.zip(&input).try_fold(0, |at, ((d, (p, k)), n)| Some(at * *n as usize + d.source(*p, *k)? as usize))
    };
    indices(&sizes(|d| d.output)).iter().map(|position| taps.iter().filter_map(|tap| source(position, tap)).collect()).collect()
}

/// The first largest of some elements; not-a-number is larger than any other.
fn largest(x: &[f64]) -> impl Fn(&[usize]) -> Option<usize> {
    move |seen| {
        seen.iter().copied().reduce(|best, i| if x[i] > x[best] || (x[i].is_nan() && !x[best].is_nan()) { i } else { best })
    }
}

/// Elements of a plane of a pool's input and of its output.
fn planes(pool: &MaxPool) -> (usize, usize) {
    (pool.window.iter().map(|d| d.input as usize).product(), pool.window.iter().map(|d| d.output as usize).product())
}

fn max_pool(pool: &MaxPool, x: &[f64], y: &mut [f64]) {
    let (seen, (input, output)) = (seen(pool), planes(pool));
    for plane in 0..pool.planes as usize {
        let (x, y) = (&x[plane * input..][..input], &mut y[plane * output..][..output]);
        y.iter_mut().zip(&seen).for_each(|(y, seen)| *y = largest(x)(seen).map_or(f64::NEG_INFINITY, |i| x[i]));
    }
}

fn max_pool_grad(pool: &MaxPool, reads: &[Vec<f64>], dx: &mut [f64]) {
    let (seen, (input, output)) = (seen(pool), planes(pool));
    for plane in 0..pool.planes as usize {
        let (x, dx) = (&reads[0][plane * input..][..input], &mut dx[plane * input..][..input]);
        dx.fill(0.0);
        for (dy, seen) in reads[1][plane * output..][..output].iter().zip(&seen) {
            largest(x)(seen).iter().for_each(|i| dx[*i] += dy);
        }
    }
}
