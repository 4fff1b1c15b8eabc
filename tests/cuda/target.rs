//! What a GPU demands of kernels: resources, and accesses inside operands.

use shardc_codegen::Generated;
use shardc_nvrtc::Assembled;

/// The architectures that kernels are assembled for; PTX is for the first.
pub fn architectures() -> [u32; 3] {
    [80, 90, 100]
}

/// Holds what functions use against what there is.
pub fn resources(generated: &Generated, assembled: &Assembled, arch: u32) -> Result<(), String> {
    for launch in &generated.launches {
        let found = assembled.kernels.iter().find(|kernel| kernel.entry == launch.entry);
        let used = found.ok_or_else(|| format!("sm_{arch}: `{}` was not assembled", launch.entry))?;
        if used.spill_stores + used.spill_loads > 0 {
            let (entry, bytes, registers) = (&launch.entry, used.spill_stores, used.registers);
            return Err(format!("sm_{arch}: `{entry}` spills {bytes} bytes at {registers} registers"));
        }
        if used.registers * launch.block > 65_536 || used.shared + launch.shared > 99 << 10 {
            return Err(format!("sm_{arch}: `{}` uses {} registers, {} bytes", launch.entry, used.registers, launch.shared));
        }
    }
    Ok(())
}

/// Holds the accesses that a kernel says it makes against the bytes of its parameters.
pub fn bounds(generated: &Generated) -> Result<(), String> {
    for launch in &generated.launches {
        for accesses in launch.accesses.iter().filter(|accesses| accesses.start.terms.is_empty()) {
            let parameter = &launch.parameters[accesses.parameter];
            let reach = |(count, stride): &(u64, i64)| i128::from(*count - 1) * i128::from(*stride);
            if accesses.terms.iter().any(|(count, _)| *count == 0) {
                continue;
            }
            let low: i128 = accesses.terms.iter().map(|term| reach(term).min(0)).sum();
            let high: i128 = accesses.terms.iter().map(|term| reach(term).max(0)).sum();
            let (low, high) = (low + i128::from(accesses.start.base), high + i128::from(accesses.start.base));
            let elements = i128::from(parameter.bytes / accesses.bytes);
            if low < 0 || high + i128::from(accesses.width) > elements {
                return Err(format!("`{}` reaches {low}..={high} of `{}`, which has {elements}", launch.entry, parameter.name));
            }
            let all: i128 = accesses.terms.iter().map(|(count, _)| i128::from(*count)).product();
            if accesses.is_write && parameter.whole && all * i128::from(accesses.width) != elements {
                return Err(format!("`{}` does not say that it writes all of `{}`", launch.entry, parameter.name));
            }
        }
    }
    Ok(())
}
