//! What GPUs demand of kernels.

use shardc_codegen::Generated;
use shardc_nvrtc::Assembled;

/// The architectures that kernels are assembled for; PTX is for the first.
pub fn architectures() -> [u32; 3] {
    [80, 90, 100]
}

/// The architectures for the case `at` of several: all, or by turns one.
pub fn some(at: usize) -> Vec<u32> {
    let all = architectures();
    super::of_extent(vec![], vec![all[at % all.len()]], all.to_vec())
}

/// Bytes of shared memory that a block has on every architecture from sm_80 on.
const LEAST_SHARED: u32 = 99 << 10;

/// Holds what functions use against what there is.
pub fn resources(generated: &Generated, assembled: &Assembled, arch: u32) -> Result<(), String> {
    for launch in &generated.launches {
        let found = assembled.kernels.iter().find(|kernel| kernel.entry == launch.entry);
        let used = found.ok_or_else(|| format!("sm_{arch}: `{}` was not assembled", launch.entry))?;
        used.fit(launch.block, launch.shared, arch).map_err(|why| format!("`{}` {why}", launch.entry))?;
        if launch.shared > LEAST_SHARED {
            return Err(format!("`{}` takes {} bytes of shared memory", launch.entry, launch.shared));
        }
    }
    Ok(())
}
