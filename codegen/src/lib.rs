//! Kernel forms as texts of CUDA kernels: the second backend. Each form is a file that gives the
//! text, its launches, and which elements they touch; nothing here knows an op.
//!
//! A text is plain C++ over a prelude of our own, with no header of CUDA's: sizes and strides are
//! numbers in it, so equal forms have equal texts, however many layers they are of. Maps take the
//! steps of the CPU backend, so that their results are equal to the bit where texts are compiled
//! without fused multiplications that they do not ask for. No block waits for another, and no
//! result depends on the order of threads.

mod attention;
mod body;
pub mod bounds;
mod bundle;
mod contract;
mod conv;
mod fill;
mod function;
mod gather;
pub mod generated;
mod map;
pub mod matmul;
mod max_pool;
mod multi_tensor;
pub mod program;
mod random;
mod reduce;
mod rows;
mod rowwise;
mod scatter_add;
mod space;
mod strided_copy;
pub mod table;
mod text;
mod unsupported;
mod window;

pub use generated::{Generated, Launch, Memory, Parameter};
use shardc_ir::kernel::{Backend, Kernel};
use shardc_ir::mesh::Mesh;
use shardc_ir::reason::Reason;

/// The names that texts use, for NVRTC. [`MATH`] and [`PARTS`] stand behind it.
pub const DEVICE: &str = include_str!("prelude/device.cuh");

/// Scalar functions, with the steps of the CPU backend.
pub const MATH: &str = include_str!("prelude/math.h");

/// Vectors of elements, reductions over threads.
pub const PARTS: &str = include_str!("prelude/parts.h");

/// The backend: kernels for the ranks of a mesh.
#[derive(Debug, Clone)]
pub struct Cuda {
    /// The mesh, on which positions have their bounds.
    pub mesh: Mesh,
    /// Whether every operand begins at a multiple of 16 bytes.
    pub aligned: bool,
}

impl Backend for Cuda {
    type Ready = Generated;
}

/// The text and launches of a kernel whose operands fit its [`Kernel::signature`]. `in_place` says
/// for each read which write is the same memory.
///
/// # Errors
/// If the kernel is not well formed, or has no text.
pub fn generate(kernel: &Kernel, backend: &Cuda, in_place: &[Option<usize>]) -> Result<Generated, Reason> {
    kernel.ready(backend, in_place)
}

/// A text as NVRTC takes it, behind the prelude. Lines of messages are those of the text.
pub fn with_prelude(text: &str) -> String {
    format!("{DEVICE}{MATH}{PARTS}#line 1 \"kernel.cu\"\n{text}")
}
