//! Products of matrices in the words of cuBLASLt's manual.

use shardc_codegen::matmul::{Compute, Epilogue, Layout, Matmul, REDUCTION_SCHEMES};
use shardc_cuda_testing::product::{self, Element, Product};
use shardc_ir::dtype::DType;

/// The description of a product in the words of the manual.
pub fn told(matmul: &Matmul) -> Product {
    let element = |dtype: DType| match dtype {
        DType::F64 => Element::F64,
        DType::F32 => Element::F32,
        DType::BF16 => Element::BF16,
        DType::F16 => Element::F16,
        DType::I64 | DType::Bool => panic!("{dtype} is no float"),
    };
    let layout = |layout: &Layout| product::Layout {
        element: element(layout.dtype),
        rows: layout.rows,
        columns: layout.columns,
        leading: layout.leading,
        batch: layout.batch,
        stride: layout.stride,
    };
    Product {
        compute: match matmul.compute {
            Compute::F32 => product::Compute::F32,
            Compute::Tf32 => product::Compute::Tf32,
            Compute::F64 => product::Compute::F64,
        },
        scale: element(matmul.compute.scale()),
        alpha: matmul.alpha,
        beta: matmul.beta,
        transposed: matmul.transposed,
        a: layout(&matmul.a),
        b: layout(&matmul.b),
        c: layout(&matmul.c),
        d: layout(&matmul.d),
        epilogue: match matmul.epilogue {
            Epilogue::Default => product::Epilogue::Default,
            Epilogue::Bias => product::Epilogue::Bias,
            Epilogue::BiasGradientA => product::Epilogue::BiasGradientA,
            Epilogue::BiasGradientB => product::Epilogue::BiasGradientB,
        },
        bias: matmul.vector().map(|(dtype, _)| element(dtype)),
        bias_stride: 0,
        reductions: REDUCTION_SCHEMES,
        workspace: matmul.workspace,
        alignment: matmul.alignment,
    }
}
