//! Products of matrices as the library cuBLASLt is told of them. Descriptors need neither a GPU nor
//! a driver; the library says whether it knows each attribute, and not whether a kernel carries the
//! product out.

mod library;

pub use library::{Described, Library};
