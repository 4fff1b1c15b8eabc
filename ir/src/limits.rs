//! The largest meshes, programs and kernels. Whoever reads a spec, a graph or a plan refuses what
//! is larger, and everything behind may compute with these numbers without overflow.

/// Axes of ranks. An [`crate::mesh::AxisId`] could count more.
pub const MAX_AXES: usize = 32;

/// Ranks of a mesh: the product of its axes.
pub const MAX_RANKS: u64 = 1 << 16;

/// Micro-batches of a step. Compiling takes time for each.
pub const MAX_MICROBATCHES: u64 = 1 << 13;

/// Dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// Elements of a tensor.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// Bytes of an arena.
pub const MAX_ARENA: u64 = 1 << 50;

/// Members of a bundle, so that each may look at all others.
pub const MAX_MEMBERS: usize = 256;

/// Dimensions that a kernel iterates over.
pub const MAX_KERNEL_RANK: usize = 16;

/// Digits of a local index.
pub const MAX_DIGITS: usize = 32;

/// Positions along a spatial dimension, and elements of a plane, stay below.
pub const MAX_PLANE: u64 = 1 << 31;
