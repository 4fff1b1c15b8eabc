//! The calls of the library. Each object is made, told its attributes and destroyed here, and none
//! of the library's pointers leaves this file.
#![allow(unsafe_code, reason = "the library is one of C")]

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys::{self, cudaDataType};
use shardc_codegen::matmul::{Compute, Epilogue, Layout, Matmul, REDUCTION_SCHEMES};
use shardc_ir::dtype::DType;
use std::ffi::c_void;
use std::fmt::Debug;
use std::ptr;

/// The functions that are called.
const FUNCTIONS: [&str; 18] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulAlgoCheck",
    "cublasLtGetVersion",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulDescGetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatrixLayoutGetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulPreferenceGetAttribute",
];

const HOW: &str = "cuBLASLt comes with the CUDA toolkit, or with `pip install nvidia-cublas`; the folder that holds it \
                   (of the package, `nvidia/cu13/lib` in site-packages) must be in `LD_LIBRARY_PATH`";

/// The proof that the library is open and has all [`FUNCTIONS`].
#[derive(Debug, Clone)]
pub struct Library(());

impl Library {
    /// The library, opened under the first of its names that there is.
    ///
    /// # Errors
    /// If it is not there, or lacks functions.
    pub fn open() -> Result<Library, String> {
        // SAFETY: libraries run code of their own when they are opened; that of cuBLASLt is
        // trusted.
        if !unsafe { sys::is_culib_present() } {
            let names = cudarc::get_lib_name_candidates("cublasLt");
            let major = |name: &String| name.rsplit('.').next().is_some_and(|n| ["12", "13"].contains(&n));
            let names: Vec<String> = names.iter().take(1).chain(names.iter().filter(|n| major(n))).cloned().collect();
            return Err(format!("cuBLASLt is not there (looked for {}); {HOW}", names.join(", ")));
        }
        for name in FUNCTIONS {
            // SAFETY: the library was just opened under these names; the symbol is not called.
            let found = unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() };
            if !found {
                return Err(format!("the cuBLASLt that was found lacks `{name}`, so it is too old or not cuBLASLt; {HOW}"));
            }
        }
        Ok(Library(()))
    }

    /// The version: major, minor, patch.
    pub fn version(&self) -> [usize; 3] {
        // SAFETY: the function takes nothing.
        let version = unsafe { sys::cublasLtGetVersion() };
        [version / 10_000, version / 100 % 100, version % 100]
    }

    /// The product as the library knows it. `bias` is the address of the epilogue's vector, by
    /// whose alignment the library chooses kernels (`CUBLASLT_MATMUL_DESC_BIAS_POINTER`).
    ///
    /// # Errors
    /// The object or attribute that the library refuses, or keeps otherwise than it was told.
    pub fn describe(&self, matmul: &Matmul, bias: u64) -> Result<Described, String> {
        let (compute, scale) = (compute(matmul.compute), data(matmul.compute.scale())?);
        let layout = |name: &str, layout: &Layout| {
            let dtype = data(layout.dtype)?;
            // SAFETY: the pointer is to one pointer.
            Object::new(name, |pointer| unsafe {
                sys::cublasLtMatrixLayoutCreate(pointer, dtype, layout.rows, layout.columns, layout.leading)
            })
        };
        let described = Described {
            scale: matmul.compute.scale(),
            // SAFETY: the pointer is to one pointer.
            product: Object::new("the product", |pointer| unsafe { sys::cublasLtMatmulDescCreate(pointer, compute, scale) })?,
            layouts: [layout("`A`", &matmul.a)?, layout("`B`", &matmul.b)?, layout("`C`", &matmul.c)?, layout("`D`", &matmul.d)?],
            // SAFETY: the pointer is to one pointer.
            preference: Object::new("the preference", |pointer| unsafe { sys::cublasLtMatmulPreferenceCreate(pointer) })?,
        };
        described.product.tell(&product(matmul, bias)?)?;
        for (object, layout) in described.layouts.iter().zip([&matmul.a, &matmul.b, &matmul.c, &matmul.d]) {
            object.tell(&batch(layout))?;
        }
        described.preference.tell(&preference(matmul))?;
        Ok(described)
    }
}

/// A product that the library was told of.
#[derive(Debug)]
pub struct Described {
    /// The type of factors.
    scale: DType,
    product: Object<sys::cublasLtMatmulDescOpaque_t>,
    layouts: [Object<sys::cublasLtMatrixLayoutOpaque_t>; 4],
    preference: Object<sys::cublasLtMatmulPreferenceOpaque_t>,
}

impl Described {
    pub(crate) fn product(&self) -> sys::cublasLtMatmulDesc_t {
        self.product.pointer
    }

    /// `A`, `B`, `C` and `D`.
    pub(crate) fn layouts(&self) -> [sys::cublasLtMatrixLayout_t; 4] {
        self.layouts.each_ref().map(|layout| layout.pointer)
    }

    pub(crate) fn preference(&self) -> sys::cublasLtMatmulPreference_t {
        self.preference.pointer
    }

    /// The bytes of a factor in the type of factors, with room behind.
    pub(crate) fn factor(&self, factor: f64) -> [u8; 8] {
        match self.scale {
            DType::F64 => factor.to_ne_bytes(),
            _ => {
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&(factor as f32).to_ne_bytes());
                bytes
            }
        }
    }

    /// Holds what the library kept, of what objects were made with too, against the product.
    ///
    /// # Errors
    /// The first attribute that differs.
    pub fn check(&self, matmul: &Matmul, bias: u64) -> Result<(), String> {
        self.product.check(&product(matmul, bias)?)?;
        for (object, layout) in self.layouts.iter().zip([&matmul.a, &matmul.b, &matmul.c, &matmul.d]) {
            object.check(&batch(layout))?;
            object.check(&shape(layout)?)?;
        }
        self.preference.check(&preference(matmul))
    }
}

/// Attributes and their values.
type Attributes<A> = Vec<(A, Vec<u8>)>;

/// `cublasLtMatmulDescAttributes_t`.
fn product(matmul: &Matmul, bias: u64) -> Result<Attributes<sys::cublasLtMatmulDescAttributes_t>, String> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    // `CUBLAS_OP_N` and `CUBLAS_OP_T`.
    let [a, b] = matmul.transposed.map(i32::from);
    let epilogue = match matmul.epilogue {
        Epilogue::Default => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::BiasGradientA => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADA,
        Epilogue::BiasGradientB => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
    };
    let mut attributes = vec![
        (Attribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, value((compute(matmul.compute) as u32).to_ne_bytes())),
        (Attribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE, value((data(matmul.compute.scale())? as u32).to_ne_bytes())),
        (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, value(a.to_ne_bytes())),
        (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, value(b.to_ne_bytes())),
        (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, value((epilogue as u32).to_ne_bytes())),
    ];
    if let Some((dtype, _)) = matmul.vector() {
        attributes.extend([
            (Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, value((data(dtype)? as u32).to_ne_bytes())),
            (Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, value(bias.to_ne_bytes())),
        ]);
    }
    Ok(attributes)
}

/// Those of `cublasLtMatrixLayoutAttribute_t` that a layout is told of when it is there.
fn batch(layout: &Layout) -> Attributes<sys::cublasLtMatrixLayoutAttribute_t> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    vec![
        // No product has more.
        (Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, value((layout.batch as i32).to_ne_bytes())),
        (Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, value(layout.stride.to_ne_bytes())),
    ]
}

/// Those that it is made with.
fn shape(layout: &Layout) -> Result<Attributes<sys::cublasLtMatrixLayoutAttribute_t>, String> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    Ok(vec![
        (Attribute::CUBLASLT_MATRIX_LAYOUT_TYPE, value((data(layout.dtype)? as u32).to_ne_bytes())),
        (Attribute::CUBLASLT_MATRIX_LAYOUT_ROWS, value(layout.rows.to_ne_bytes())),
        (Attribute::CUBLASLT_MATRIX_LAYOUT_COLS, value(layout.columns.to_ne_bytes())),
        (Attribute::CUBLASLT_MATRIX_LAYOUT_LD, value(layout.leading.to_ne_bytes())),
    ])
}

/// `cublasLtMatmulPreferenceAttributes_t`.
fn preference(matmul: &Matmul) -> Attributes<sys::cublasLtMatmulPreferenceAttributes_t> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let [a, b, c, d] = matmul.alignment.map(|bytes| value((bytes as u32).to_ne_bytes()));
    vec![
        (Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, value(matmul.workspace.to_ne_bytes())),
        (Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, value(REDUCTION_SCHEMES.to_ne_bytes())),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
    ]
}

fn value<const N: usize>(bytes: [u8; N]) -> Vec<u8> {
    bytes.to_vec()
}

/// The functions of a kind of object.
trait Kind: Sized {
    type Attribute: Copy + Debug;

    const DESTROY: unsafe fn(*mut Self) -> sys::cublasStatus_t;
    const SET: unsafe fn(*mut Self, Self::Attribute, *const c_void, usize) -> sys::cublasStatus_t;
    const GET: unsafe fn(*mut Self, Self::Attribute, *mut c_void, usize, *mut usize) -> sys::cublasStatus_t;
}

impl Kind for sys::cublasLtMatmulDescOpaque_t {
    type Attribute = sys::cublasLtMatmulDescAttributes_t;

    const DESTROY: unsafe fn(*mut Self) -> sys::cublasStatus_t = sys::cublasLtMatmulDescDestroy;
    const SET: unsafe fn(*mut Self, Self::Attribute, *const c_void, usize) -> sys::cublasStatus_t =
        sys::cublasLtMatmulDescSetAttribute;
    const GET: unsafe fn(*mut Self, Self::Attribute, *mut c_void, usize, *mut usize) -> sys::cublasStatus_t =
        sys::cublasLtMatmulDescGetAttribute;
}

impl Kind for sys::cublasLtMatrixLayoutOpaque_t {
    type Attribute = sys::cublasLtMatrixLayoutAttribute_t;

    const DESTROY: unsafe fn(*mut Self) -> sys::cublasStatus_t = sys::cublasLtMatrixLayoutDestroy;
    const SET: unsafe fn(*mut Self, Self::Attribute, *const c_void, usize) -> sys::cublasStatus_t =
        sys::cublasLtMatrixLayoutSetAttribute;
    const GET: unsafe fn(*mut Self, Self::Attribute, *mut c_void, usize, *mut usize) -> sys::cublasStatus_t =
        sys::cublasLtMatrixLayoutGetAttribute;
}

impl Kind for sys::cublasLtMatmulPreferenceOpaque_t {
    type Attribute = sys::cublasLtMatmulPreferenceAttributes_t;

    const DESTROY: unsafe fn(*mut Self) -> sys::cublasStatus_t = sys::cublasLtMatmulPreferenceDestroy;
    const SET: unsafe fn(*mut Self, Self::Attribute, *const c_void, usize) -> sys::cublasStatus_t =
        sys::cublasLtMatmulPreferenceSetAttribute;
    const GET: unsafe fn(*mut Self, Self::Attribute, *mut c_void, usize, *mut usize) -> sys::cublasStatus_t =
        sys::cublasLtMatmulPreferenceGetAttribute;
}

/// An object of the library, destroyed with this value.
#[derive(Debug)]
struct Object<T: Kind> {
    name: String,
    pointer: *mut T,
}

impl<T: Kind> Object<T> {
    fn new(name: &str, create: impl FnOnce(*mut *mut T) -> sys::cublasStatus_t) -> Result<Object<T>, String> {
        let mut pointer = ptr::null_mut();
        create(&raw mut pointer).result().map_err(refused(name))?;
        Ok(Object { name: name.to_owned(), pointer })
    }

    fn tell(&self, attributes: &Attributes<T::Attribute>) -> Result<(), String> {
        for (attribute, value) in attributes {
            let what = format!("{attribute:?} of {}", self.name);
            // SAFETY: the object lives, and the pointer is to as many bytes as is said.
            unsafe { (T::SET)(self.pointer, *attribute, value.as_ptr().cast(), value.len()) }.result().map_err(refused(&what))?;
        }
        Ok(())
    }

    fn check(&self, attributes: &Attributes<T::Attribute>) -> Result<(), String> {
        for (attribute, value) in attributes {
            let what = format!("{attribute:?} of {}", self.name);
            let (mut kept, mut written) = (vec![0u8; value.len()], 0);
            // SAFETY: the object lives, and the pointers are to as many bytes as is said and to one
            // number.
            unsafe { (T::GET)(self.pointer, *attribute, kept.as_mut_ptr().cast(), kept.len(), &raw mut written) }
                .result()
                .map_err(refused(&what))?;
            if kept != *value || written != value.len() {
                return Err(format!("cuBLASLt keeps {kept:?} as {what}, which is {value:?}"));
            }
        }
        Ok(())
    }
}

// SAFETY: the object belongs to this value alone, and the library keeps nothing for each thread.
unsafe impl<T: Kind> Send for Object<T> {}

impl<T: Kind> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: the object lives, and nothing uses it afterwards. It fails for null only.
        let _ = unsafe { (T::DESTROY)(self.pointer) };
    }
}

pub(crate) fn refused(what: &str) -> impl Fn(CublasError) -> String {
    move |error| format!("cuBLASLt refuses {what}: {error}")
}

fn compute(compute: Compute) -> sys::cublasComputeType_t {
    match compute {
        Compute::F32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        Compute::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        Compute::F64 => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
    }
}

fn data(dtype: DType) -> Result<cudaDataType, String> {
    Ok(match dtype {
        DType::F64 => cudaDataType::CUDA_R_64F,
        DType::F32 => cudaDataType::CUDA_R_32F,
        DType::BF16 => cudaDataType::CUDA_R_16BF,
        DType::F16 => cudaDataType::CUDA_R_16F,
        DType::I64 | DType::Bool => return Err(format!("cuBLASLt takes no {dtype}")),
    })
}
