//! How fast products of 16-bit floats are beside those of f32, at the sizes of GPT-2 124M with
//! 4 x 64 tokens: `cargo bench -p shardc-executor --bench half`.

use half::{bf16, f16};
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::team::Team;
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, Launch, prepare};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Contract, ContractDim, Kernel};
use std::time::Instant;

/// A batch of products `c = a b`: what it is called, its sizes, and whether `a` and `b` are stored
/// transposed.
struct Case {
    name: &'static str,
    batch: usize,
    sizes: [usize; 3],
    transposed: [bool; 2],
}

fn main() {
    let only = std::env::args().nth(1).filter(|a| !a.starts_with('-')).unwrap_or_default();
    println!("GFLOP/s with 1 and 2 threads, and times f32");
    println!("{:28} {:>11} {:>23} {:>23} {:>11}", "", "f32", "bf16 to f32", "bf16 to bf16", "f16 to f32");
    let mut teams = [1, 2].map(|threads| Team::new(threads, |helper| helper.to_string()).expect("threads"));
    for case in cases().into_iter().filter(|c| c.name.contains(&only)) {
        let [m, n, k] = case.sizes;
        let flops = (2 * case.batch * m * n * k) as f64;
        let value = |i: usize| ((i * 7919) % 1000) as f32 / 500.0 - 1.0;
        let [a, b] = [case.batch * m * k, case.batch * k * n].map(|count| (0..count).map(value).collect::<Vec<f32>>());
        let [a16, b16] = [&a, &b].map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
        let [ah, bh] = [&a, &b].map(|x| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>());
        let mut c = vec![0f32; case.batch * m * n];
        let mut c16 = vec![bf16::ZERO; case.batch * m * n];
        let wide = [Slice::F32(&a), Slice::F32(&b)];
        let (of_bf16, of_f16) = ([Slice::BF16(&a16), Slice::BF16(&b16)], [Slice::F16(&ah), Slice::F16(&bh)]);
        let ways = [(DType::F32, DType::F32), (DType::BF16, DType::F32), (DType::BF16, DType::BF16), (DType::F16, DType::F32)];
        let kernels = ways.map(|(dtype, result)| case.kernel(dtype, result));
        let mut best = [[f64::INFINITY; 2]; 4];
        let begin = Instant::now();
        let mut rounds = 0;
        while rounds < 5 || begin.elapsed().as_secs_f64() < 1.0 {
            for (number, team) in teams.iter_mut().enumerate() {
                let mut time = |way: usize, reads: &[Slice<'_>], write: SliceMut<'_>| {
                    let threads = Threads(number + 1);
                    let arguments = Arguments { reads, writes: vec![write], coordinates: &[], threads };
                    let start = Instant::now();
                    team.lead(|| kernels[way].launch(arguments)).expect("good data");
                    best[way][number] = best[way][number].min(start.elapsed().as_secs_f64());
                };
                time(0, &wide, SliceMut::F32(&mut c));
                time(1, &of_bf16, SliceMut::F32(&mut c));
                time(2, &of_bf16, SliceMut::BF16(&mut c16));
                time(3, &of_f16, SliceMut::F32(&mut c));
            }
            rounds += 1;
        }
        let rate = |way: usize| {
            let of = |threads: usize| flops / best[way][threads] / 1e9;
            format!("{:5.0} {:5.0}", of(0), of(1))
        };
        let times = |way: usize| format!("({:4.2} {:4.2})", best[0][0] / best[way][0], best[0][1] / best[way][1]);
        let name = format!("{} {}", case.name, case.size());
        println!("{name:28} {} {} {} {} {} {}", rate(0), rate(1), times(1), rate(2), times(2), rate(3));
    }
}

impl Case {
    fn size(&self) -> String {
        let [m, n, k] = self.sizes;
        format!("{m}x{n}x{k}")
    }

    fn kernel(&self, dtype: DType, result: DType) -> Box<dyn Launch> {
        let [m, n, k] = self.sizes;
        let dim =
            |size: usize, [a, b, c]: [usize; 3]| vec![ContractDim { size: size as u64, a: a as i64, b: b as i64, c: c as i64 }];
        let (am, ak) = if self.transposed[0] { (1, m) } else { (k, 1) };
        let (bk, bn) = if self.transposed[1] { (1, k) } else { (n, 1) };
        let batch = dim(self.batch, [m * k, k * n, m * n]);
        let (m, n, k) = (dim(m, [am, 0, n]), dim(n, [0, bn, 1]), dim(k, [ak, bk, 0]));
        prepare(&Kernel::Contract(Contract { dtype, result, batch, m, n, k }), &[None, None]).expect("a good kernel")
    }
}

/// What a linear layer multiplies in a step of training, and a head whose weight is that of the
/// embedding, stored `n x k`.
fn cases() -> Vec<Case> {
    let one = |name, sizes, transposed| Case { name, batch: 1, sizes, transposed };
    let tokens = 256;
    let mut all = vec![];
    for (k, n) in [(768, 768), (768, 2304), (768, 3072), (3072, 768), (768, 50257)] {
        all.push(one("y nn", [tokens, n, k], [false, false]));
        all.push(one("dx nt", [tokens, k, n], [false, true]));
        all.push(one("dw tn", [k, n, tokens], [true, false]));
    }
    let (k, n) = (768, 50257);
    all.push(one("tied y nt", [tokens, n, k], [false, true]));
    all.push(one("tied dx nn", [tokens, k, n], [false, false]));
    all.push(one("tied dw tn", [n, k, tokens], [true, false]));
    for (name, transposed) in [("48 of nn", [false, false]), ("48 of nt", [false, true]), ("48 of tn", [true, false])] {
        all.push(Case { name, batch: 48, sizes: [64, 64, 64], transposed });
    }
    all.push(one("tt", [512, 512, 512], [true, true]));
    all
}
