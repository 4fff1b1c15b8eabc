//! Runs generated kernels without a GPU: their text as C++ on the host, with every access checked,
//! and the PTX that NVRTC makes of it, in an interpreter; and calls of cuBLASLt by plain loops.
//! Nothing ships it.

pub mod host;
pub mod job;
pub mod product;
pub mod ptx;
