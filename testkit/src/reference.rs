//! What tests know of every kernel form, written apart from the kernels: plain loops in f64, slow
//! and easy to read, which judge them; random instances; and the same at other sizes. A form is a
//! file.

pub mod attention;
mod bundle;
mod collective;
mod contract;
mod conv;
pub mod draw;
mod fill;
mod gather;
pub mod map;
mod max_pool;
pub mod random;
mod reduce;
mod rowwise;
mod scalar;
mod sizes;
mod strided_copy;

use shardc_ir::each_form;
use shardc_ir::kernel::*;

/// What is done with an instance: its kernel, its operands, and by how much a result may miss that
/// of the plain loops, in part of it and of 1.
pub type Try<'a> = dyn FnMut(&Kernel, &[Vec<f64>], f64) + 'a;

/// A form as tests know it.
trait Judged: Form {
    /// Runs it over f64 operands. `out` is what its results hold before: what it does not write
    /// stays.
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]);

    /// Gives each size that may change another one; strides follow.
    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64);

    /// Tries random instances of small shapes and strides, the same in every run, on a rank of
    /// [`draw::mesh`].
    fn instances(each: &mut Try<'_>)
    where
        Self: Sized;
}

macro_rules! judge {
    ($($form:ident),*) => {
        fn judged(kernel: &Kernel) -> &dyn Judged {
            match kernel {
                $(Kernel::$form(form) => form),*
            }
        }

        fn judged_mut(kernel: &mut Kernel) -> &mut dyn Judged {
            match kernel {
                $(Kernel::$form(form) => form),*
            }
        }

        /// What tries random instances of each form.
        pub const INSTANCES: [fn(&mut Try<'_>); [$(stringify!($form)),*].len()] = [$($form::instances),*];
    };
}
each_form!(judge);

/// Runs a kernel over f64 operands. `out` is what its results hold before: what it does not write
/// stays.
///
/// # Panics
/// If it reaches outside its operands, or is a collective.
pub fn run(kernel: &Kernel, reads: &[Vec<f64>], mut out: Vec<Vec<f64>>, coordinates: &[u64]) -> Vec<Vec<f64>> {
    judged(kernel).run(reads, &mut out, coordinates);
    out
}

/// Gives each size of a kernel that may change another one; strides follow.
pub fn resize(kernel: &mut Kernel, mut to: impl FnMut(u64) -> u64) {
    judged_mut(kernel).resize(&mut to);
}

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
