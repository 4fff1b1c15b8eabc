//! Kernel forms as texts of CUDA kernels.
