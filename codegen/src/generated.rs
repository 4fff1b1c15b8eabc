//! What a kernel form becomes: a text, and the launches that carry it out.

use shardc_ir::position::Offset;

/// The kernels of one form.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The name of the text: its form, and a number that tells it from other texts.
    pub name: String,
    /// The functions, as CUDA C++ behind the prelude ([`crate::with_prelude`]). Equal forms have
    /// equal texts.
    pub text: String,
    /// The launches, one after another.
    pub launches: Vec<Launch>,
    /// Bytes of room for partial results that launches hand on; 0 for none.
    pub workspace: u64,
}

/// One launch of a function of the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The function.
    pub entry: String,
    /// Blocks along x, y and z; no launch happens where one is 0.
    pub grid: [u32; 3],
    /// Threads of a block, along x.
    pub block: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// The first parameters, pointers to memory.
    pub parameters: Vec<Parameter>,
    /// The other parameters, of 64 bits: numbers of the rank's position.
    pub numbers: Vec<Offset>,
    /// The elements that it touches, for each operand and way.
    pub accesses: Vec<Accesses>,
}

/// A pointer that a function takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// The memory that it points to.
    pub memory: Memory,
    /// Bytes from there.
    pub bytes: u64,
    /// Whether the function reads there.
    pub is_read: bool,
    /// Whether the function writes there.
    pub is_written: bool,
    /// Whether it writes every byte.
    pub whole: bool,
}

/// Memory that a function is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// An operand that the form reads.
    Read(usize),
    /// An operand that the form writes.
    Write(usize),
    /// The room for partial results.
    Workspace,
    /// A word that is not 0 once the data were found to be wrong.
    Fault,
}

/// Elements that a launch touches: `start + sum of index * stride`, each index below its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accesses {
    /// The parameter.
    pub parameter: usize,
    /// Whether they are written.
    pub is_write: bool,
    /// Bytes of an element.
    pub bytes: u64,
    /// Neighbouring elements of one access.
    pub width: u64,
    /// The first element.
    pub start: Offset,
    /// Counts and strides. Writes at different indices are of different elements.
    pub terms: Vec<(u64, i64)>,
    /// Whether data say which of the elements are touched.
    pub is_chosen: bool,
}

impl Accesses {
    /// Reads of one element each; whose they are is said where a function takes the parameter.
    pub fn over(terms: &[(u64, i64)]) -> Accesses {
        let terms = terms.to_vec();
        Accesses { parameter: 0, is_write: false, bytes: 1, width: 1, start: Offset::default(), terms, is_chosen: false }
    }

    /// The same, of which data say the ones that are touched.
    pub fn chosen(terms: &[(u64, i64)]) -> Accesses {
        Accesses { is_chosen: true, ..Accesses::over(terms) }
    }
}
