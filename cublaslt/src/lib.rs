//! Products of matrices as the library cuBLASLt is told of them, and carries them out. Descriptors
//! need neither a GPU nor a driver; the library says whether it knows each attribute, and only on a
//! GPU whether a kernel carries the product out.

mod library;
mod multiply;

pub use library::{Described, Library};
pub use multiply::{Algorithm, Candidate, Multiplier, Operands};
