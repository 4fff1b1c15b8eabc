//! Contract: plain loops, random instances, other sizes.

use super::draw::{Draw, tolerance};
use super::sizes::scaled;
use super::{Judged, Try, at, indices};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Contract, ContractDim, Kernel};

impl Judged for Contract {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        let dims: Vec<ContractDim> = [&self.batch, &self.m, &self.n, &self.k].into_iter().flatten().copied().collect();
        let pick = |f: fn(&ContractDim) -> i64| dims.iter().map(f).collect::<Vec<_>>();
        let (a, b, c) = (pick(|d| d.a), pick(|d| d.b), pick(|d| d.c));
        let results: Vec<ContractDim> = [&self.batch, &self.m, &self.n].into_iter().flatten().copied().collect();
        for index in indices(&results.iter().map(|d| d.size).collect::<Vec<_>>()) {
            out[0][at(&index, &results.iter().map(|d| d.c).collect::<Vec<_>>())] = 0.0;
        }
        for index in indices(&dims.iter().map(|d| d.size).collect::<Vec<_>>()) {
            out[0][at(&index, &c)] += reads[0][at(&index, &a)] * reads[1][at(&index, &b)];
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        let mut dims: Vec<&mut ContractDim> =
            [&mut self.batch, &mut self.m, &mut self.n, &mut self.k].into_iter().flatten().collect();
        let old: Vec<u64> = dims.iter().map(|dim| dim.size).collect();
        let new: Vec<u64> = old.iter().copied().map(to).collect();
        let strides: [fn(&mut ContractDim) -> &mut i64; 3] = [|dim| &mut dim.a, |dim| &mut dim.b, |dim| &mut dim.c];
        for stride in strides {
            let all: Vec<_> = dims.iter_mut().zip(&old).zip(&new).map(|((dim, old), new)| (*old, *new, *stride(dim))).collect();
            dims.iter_mut().zip(scaled(&all)).for_each(|(dim, by)| *stride(dim) = by);
        }
        dims.iter_mut().zip(new).for_each(|(dim, size)| dim.size = size);
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(5);
        for case in 0..400 {
            let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
            let mut room = 30_000;
            let sizes: Vec<Vec<u64>> =
                (0..4).map(|_| (0..random.below(3)).map(|_| random.size_in(&mut room)).collect()).collect();
            let mut letters = |groups: [usize; 3]| {
                let shape: Vec<u64> = groups.iter().flat_map(|g| sizes[*g].clone()).collect();
                let strides = if random.below(2) == 0 { row_major(&shape) } else { random.permuted_strides(&shape) };
                let mut rest = strides.into_iter();
                let mut of = vec![vec![]; 4];
                for g in groups {
                    of[g] = rest.by_ref().take(sizes[g].len()).collect();
                }
                of
            };
            let (a, b, c) = (letters([0, 1, 3]), letters([0, 3, 2]), letters([0, 1, 2]));
            let group = |g: usize| -> Vec<ContractDim> {
                let stride = |of: &Vec<Vec<i64>>, i: usize| of[g].get(i).copied().unwrap_or(0);
                (0..sizes[g].len())
                    .map(|i| ContractDim { size: sizes[g][i], a: stride(&a, i), b: stride(&b, i), c: stride(&c, i) })
                    .collect()
            };
            let kernel =
                Kernel::Contract(Contract { dtype, result: dtype, batch: group(0), m: group(1), n: group(2), k: group(3) });
            let reads = random.operands(&kernel);
            let terms: u64 = sizes[3].iter().product();
            each(&kernel, &reads, tolerance(dtype) / 8.0 * (terms as f64).max(8.0));
        }
    }
}
