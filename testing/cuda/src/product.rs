//! A call of `cublasLtMatmul` carried out by plain loops, after everything that the manual demands
//! of it was held against what it is told.
//!
//! A description is what NVIDIA's cuBLAS manual has ("Using the cuBLASLt API", of CUDA 13) and the
//! header `cublasLt.h` says, written apart from whoever makes such calls.
//!
//! Products are added up in f64, in the order of `k`, from elements of 32 bits or fewer without a
//! rounding of the products. `alpha`, `beta` and the bias are applied in f64 too, so that a result
//! is rounded once. The library itself adds up in the compute type, in an order of its own.

mod demands;
mod loops;

pub use demands::check;

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// How products are added up.
    pub compute: Compute,
    /// The type of `alpha` and `beta`.
    pub scale: Element,
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of `C`; `C` is not read where it is 0.
    pub beta: f64,
    /// Whether `A`, and `B`, are transposed.
    pub transposed: [bool; 2],
    /// `A` as it lies.
    pub a: Layout,
    /// `B` as it lies.
    pub b: Layout,
    /// `C`.
    pub c: Layout,
    /// `D`.
    pub d: Layout,
    /// What is done beside.
    pub epilogue: Epilogue,
    /// The type of the vector of the epilogue; `None` is that of `D`.
    pub bias: Option<Element>,
    /// From the vector of one matrix of the batch to the next.
    pub bias_stride: i64,
    /// The reduction schemes that are allowed, as bits of `cublasLtReductionScheme_t`.
    pub reductions: u32,
    /// Bytes of room that it may use.
    pub workspace: u64,
    /// The bytes of which `A`, `B`, `C` and `D` are said to begin at a multiple.
    pub alignment: [u64; 4],
}

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// `CUDA_R_64F`
    F64,
    /// `CUDA_R_32F`
    F32,
    /// `CUDA_R_16BF`
    BF16,
    /// `CUDA_R_16F`
    F16,
}

/// A compute type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// `CUBLAS_COMPUTE_32F`
    F32,
    /// `CUBLAS_COMPUTE_32F_FAST_TF32`: operands are rounded to 11 bits of mantissa.
    Tf32,
    /// `CUBLAS_COMPUTE_64F`
    F64,
}

/// A batch of matrices, column by column (`CUBLASLT_ORDER_COL`). Numbers count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// `CUBLASLT_MATRIX_LAYOUT_TYPE`
    pub element: Element,
    /// `CUBLASLT_MATRIX_LAYOUT_ROWS`
    pub rows: u64,
    /// `CUBLASLT_MATRIX_LAYOUT_COLS`
    pub columns: u64,
    /// `CUBLASLT_MATRIX_LAYOUT_LD`
    pub leading: i64,
    /// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`
    pub batch: u64,
    /// `CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET`
    pub stride: i64,
}

/// An epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// `CUBLASLT_EPILOGUE_DEFAULT`
    Default,
    /// `CUBLASLT_EPILOGUE_BIAS`
    Bias,
    /// `CUBLASLT_EPILOGUE_BGRADA`
    BiasGradientA,
    /// `CUBLASLT_EPILOGUE_BGRADB`
    BiasGradientB,
}

/// Memory that a call is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where it begins on the device.
    pub address: u64,
    /// What is there.
    pub bytes: Vec<u8>,
}

/// All memory of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `A`.
    pub a: Place,
    /// `B`.
    pub b: Place,
    /// `C` where it is not `D`.
    pub c: Option<Place>,
    /// `D`.
    pub d: Place,
    /// The vector of the epilogue.
    pub bias: Option<Place>,
    /// Where the room begins, and its bytes.
    pub workspace: (u64, u64),
}

/// Carries a call out: `D`, and the vector of a bias gradient, are written.
///
/// # Errors
/// If the manual refuses it; nothing is written then.
pub fn run(product: &Product, memory: &mut Memory) -> Result<(), String> {
    check(product, memory)?;
    loops::run(product, memory);
    Ok(())
}

/// What the element of `D` at a matrix, row and column will be, not rounded to its type, and the
/// sum of the magnitudes of what is added up.
pub fn element(product: &Product, memory: &Memory, at: [u64; 3]) -> [f64; 2] {
    loops::element(product, memory, at)
}

/// The same of the element of a bias gradient of one matrix.
pub fn gradient(product: &Product, memory: &Memory, at: u64) -> Option<[f64; 2]> {
    loops::gradient(product, memory, at)
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Element::F64 => 8,
            Element::F32 => 4,
            Element::BF16 | Element::F16 => 2,
        }
    }
}

impl Layout {
    /// Bytes from the first to behind the last.
    pub fn bytes(&self) -> u64 {
        self.reach() as u64 * self.element.bytes()
    }

    /// The element at a matrix, row and column.
    pub fn read(&self, bytes: &[u8], [matrix, row, column]: [u64; 3]) -> f64 {
        loops::read(self.element, bytes, loops::offset(self, matrix as usize, row as usize, column as usize))
    }

    /// Elements from the first to behind the last.
    fn reach(&self) -> i128 {
        let last = |count: u64, step: i64| i128::from(count.max(1) - 1) * i128::from(step);
        i128::from(self.rows) + last(self.columns, self.leading) + last(self.batch, self.stride)
    }
}

impl Product {
    /// Rows and columns of `op(A)` and `op(B)`.
    pub fn operands(&self) -> [[u64; 2]; 2] {
        let turned = |layout: &Layout, is: bool| {
            if is { [layout.columns, layout.rows] } else { [layout.rows, layout.columns] }
        };
        [turned(&self.a, self.transposed[0]), turned(&self.b, self.transposed[1])]
    }

    /// The length of the epilogue's vector.
    pub fn vector(&self) -> Option<u64> {
        match self.epilogue {
            Epilogue::Default => None,
            Epilogue::Bias | Epilogue::BiasGradientA => Some(self.d.rows),
            Epilogue::BiasGradientB => Some(self.d.columns),
        }
    }
}
