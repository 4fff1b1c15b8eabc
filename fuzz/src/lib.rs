//! The code that the fuzz targets share: the attack of the workspace's tests, driven by libFuzzer.

#[path = "../../tests/attack/mod.rs"]
pub mod attack;

pub use libfuzzer_sys;

/// The folder of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A fuzz target: its inputs are seeds, mutants that know the format, and libFuzzer's own.
#[macro_export]
macro_rules! fuzz {
    ($target:expr) => {
        use std::sync::LazyLock;
        use $crate::attack::{Attack, Random};

        static ATTACK: LazyLock<Attack> = LazyLock::new(|| Attack::on($target));

        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            ATTACK.run(bytes);
        });

        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            let mut random = Random(seed.into());
            match random.below(10) {
                0..3 => return $crate::libfuzzer_sys::fuzzer_mutate(data, size, max_size),
                3 => $crate::put(ATTACK.seed(&mut random), data, max_size),
                _ if size <= 1 => $crate::put(ATTACK.seed(&mut random), data, max_size),
                _ => $crate::put(&ATTACK.mutant(&data[..size], &mut random), data, max_size),
            }
        });
    };
}

/// Writes `bytes` to where libFuzzer wants them, as many as it wants; says how many.
pub fn put(bytes: &[u8], data: &mut [u8], most: usize) -> usize {
    let length = bytes.len().min(most);
    data[..length].copy_from_slice(&bytes[..length]);
    length
}
