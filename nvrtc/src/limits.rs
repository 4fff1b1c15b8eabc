//! What the GPUs of an architecture have for a block. Source: CUDA C++ Programming Guide, Technical
//! Specifications per Compute Capability.

use crate::Resources;

/// Registers of a multiprocessor, of which one block may have all.
const REGISTERS: u32 = 65_536;

/// Registers are given to warps in whole units of so many for each thread.
const UNIT: u64 = 8;

/// Bytes of shared memory that a block may have.
fn shared(arch: u32) -> u32 {
    match arch {
        80 | 87 => 163 << 10,
        90 | 100 | 101 | 103 | 110 => 227 << 10,
        // 86, 89, 120, 121: the least of all, and so for what is not known.
        _ => 99 << 10,
    }
}

impl Resources {
    /// Checks that a block of so many threads, with so many bytes of shared memory beside those
    /// that the text declares, runs on every GPU of `arch`, and that nothing is spilled.
    ///
    /// # Errors
    /// The first thing that there is too little of.
    pub fn fit(&self, block: u32, dynamic: u32, arch: u32) -> Result<(), String> {
        let Resources { registers, spill_stores, spill_loads, .. } = *self;
        if spill_stores > 0 || spill_loads > 0 {
            return Err(format!("spills {spill_stores} bytes at {registers} registers on sm_{arch}"));
        }
        let taken = u64::from(registers).next_multiple_of(UNIT) * u64::from(block).next_multiple_of(32);
        if taken > u64::from(REGISTERS) {
            return Err(format!("needs {taken} registers for a block, sm_{arch} has {REGISTERS}"));
        }
        let (bytes, most) = (u64::from(self.shared) + u64::from(dynamic), shared(arch));
        if bytes > u64::from(most) {
            return Err(format!("needs {bytes} bytes of shared memory for a block, sm_{arch} has {most}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told() {
        let used = Resources { registers: 255, ..Resources::default() };
        assert_eq!(used.fit(256, 99 << 10, 120), Ok(()));
        assert!(used.fit(257, 0, 90).unwrap_err().contains("registers"));
        assert!(used.fit(32, (99 << 10) + 1, 120).unwrap_err().contains("shared memory"));
        assert_eq!(used.fit(32, 227 << 10, 90), Ok(()));
        assert!(Resources { spill_loads: 4, ..used }.fit(32, 0, 90).unwrap_err().contains("spills"));
        assert!(Resources { shared: u32::MAX, registers: u32::MAX - 8, ..Resources::default() }.fit(1024, 1, 90).is_err());
    }
}
