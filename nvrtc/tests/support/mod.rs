//! The library, and texts of kernels.

use shardc_nvrtc::Nvrtc;

/// The library; without it, the test says that it does nothing.
pub fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::find().inspect_err(|why| eprintln!("skipped: no libnvrtc: {why}")).ok()
}

/// A text of one kernel, another one for each number.
pub fn text(number: usize) -> String {
    format!(
        "extern \"C\" __global__ void k{number}(float* a) {{\n    a[threadIdx.x] = a[threadIdx.x] * {number}.0f + 1.0f;\n}}\n"
    )
}
