//! Attention over heads of all widths is assembled, and fits in registers.

use super::kernels::attention::attention;
use super::{Case, Extent, case, extent, target};
use shardc_codegen::with_prelude;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{AttentionGrad, AttentionMask, Kernel};
use shardc_ir::mesh::Mesh;
use shardc_nvrtc::Nvrtc;

/// Heads of models, and every other size of the tiles that follow from them.
const WIDTHS: [u64; 16] = [8, 16, 24, 32, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256];

#[test]
fn heads_of_all_widths_fit_in_registers() {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) if extent() > Extent::Few => nvrtc,
        Ok(_) => return eprintln!("skipped: heads of all widths, which `tests/cuda.sh` assembles"),
        Err(why) => return eprintln!("skipped: kernels are not assembled: {why}"),
    };
    let mesh = Mesh::new([], 1);
    let mut spilled = vec![];
    for (at, width) in WIDTHS.into_iter().enumerate() {
        let a = attention(DType::BF16, AttentionMask::Causal, [4, 2], [1024, 1024], [width, width]);
        for kernel in [Kernel::Attention(a.clone()), Kernel::AttentionGrad(AttentionGrad(a))] {
            let Case { generated, .. } = case("attention", kernel, &[None; 7], &mesh, true);
            let text = with_prelude(&generated.text);
            let named = [(generated.name.as_str(), text.as_str())];
            for arch in target::some(at) {
                let assembled = nvrtc.assemble_all(&named, arch).remove(0).unwrap_or_else(|why| panic!("{width}: {why}"));
                spilled.extend(target::resources(&generated, &assembled, arch).err().map(|why| format!("{width}: {why}")));
            }
        }
    }
    assert!(spilled.is_empty(), "{spilled:#?}");
}
