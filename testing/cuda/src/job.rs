//! A launch of one kernel with the bytes that it works on.

/// One launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The name of the function.
    pub entry: String,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, along x.
    pub block: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// The function's first parameters, pointers to these.
    pub operands: Vec<Operand>,
    /// The function's other parameters, of type `i64`.
    pub numbers: Vec<i64>,
}

/// Memory that a kernel may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// The parameter's name.
    pub name: String,
    /// What the kernel may do with it.
    pub access: Access,
    /// Whether the kernel writes every byte.
    pub whole: bool,
    /// Where it lies: so many bytes behind a multiple of 16, fewer than 16.
    pub past: u32,
    /// What is there before the launch.
    pub bytes: Vec<u8>,
}

/// The accesses that a kernel may make to an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may read.
    Read,
    /// It may write.
    Write,
    /// It may do both: the operand is updated in place, or is room for partial results.
    Update,
    /// It may call `fail` with it, from any thread.
    Fault,
}
