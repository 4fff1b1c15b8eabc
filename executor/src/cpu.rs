//! The CPU backend: the definition of every kernel form, over typed slices of an arena. A form is a
//! file or a folder here, which [`Implements`] it.
//!
//! A kernel is checked and made ready once ([`prepare`]), then launched any number of times.
//! Results depend on shapes only, never on the number of threads.

mod attention;
mod bundle;
mod contract;
mod conv;
mod copy;
pub mod element;
mod factor;
mod fill;
mod formulas;
mod functions;
mod gather;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lines;
mod map;
mod math;
mod narrow;
mod number;
#[cfg(target_arch = "x86_64")]
mod packed;
mod pool;
mod prefetch;
mod random;
mod reduce;
mod rowwise;
mod scratch;
mod simd;
mod small;
mod softmax;
mod space;
pub mod team;
pub mod threads;
mod tiles;
mod triangle;
mod turned;
mod widened;
mod window;

use element::{Slice, SliceMut};
pub(crate) use reduce::{combine, combine_halves};
use shardc_ir::kernel::{Backend, Collective, Implements, Kernel};
use shardc_ir::reason::Reason;
use std::fmt::Debug;
use threads::Threads;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Cpu;

impl Backend for Cpu {
    type Ready = Box<dyn Launch>;
}

/// The arguments of one run of a kernel.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The operands read. One that is in place is not looked at; any slice will do.
    pub reads: &'a [Slice<'a>],
    /// The operands written.
    pub writes: Vec<SliceMut<'a>>,
    /// The position on each axis of the mesh.
    pub coordinates: &'a [u64],
    /// The threads that it may use.
    pub threads: Threads,
}

/// A kernel made ready for one arrangement of its operands in memory.
pub trait Launch: Debug + Send + Sync {
    /// Runs the kernel.
    ///
    /// # Errors
    /// On bad data: an index outside its table, an integer divided by 0.
    ///
    /// # Panics
    /// If an operand is shorter than [`Kernel::signature`] says.
    fn launch(&self, arguments: Arguments<'_>) -> Result<(), Reason>;
}

/// Makes a kernel ready whose operands fit its [`Kernel::signature`]. `in_place` says for each read
/// which write is the same memory.
///
/// # Errors
/// If the kernel is not well formed, or a collective, which a communicator runs.
pub fn prepare(kernel: &Kernel, in_place: &[Option<usize>]) -> Result<Box<dyn Launch>, Reason> {
    widened::prepare(kernel, in_place).unwrap_or_else(|| kernel.ready(&Cpu, in_place))
}

impl Implements<Collective> for Cpu {
    fn ready(&self, _collective: &Collective, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Err("a collective is no kernel of one rank".into())
    }
}
