//! The PTX run: results to the bit, what it counts, and what it refuses. `ptx/NAME.ptx` is what
//! NVRTC 13.5 makes of the prelude and `ptx/NAME.cu`, with
//! `-arch=compute_80 -fmad=false -default-device -std=c++17`.

#[path = "ptx/numbers.rs"]
mod numbers;
#[path = "ptx/refused.rs"]
mod refused;
#[path = "ptx/warps.rs"]
mod warps;

use shardc_cuda_testing::job::{Access, Job, Operand};
use shardc_cuda_testing::ptx::{Module, Ran};

fn operand(name: &str, access: Access, bytes: Vec<u8>) -> Operand {
    Operand { name: name.into(), access, whole: false, past: 0, bytes }
}

fn job(entry: &str, blocks: u32, block: u32, shared: u32, operands: Vec<Operand>, numbers: &[i64]) -> Job {
    Job { entry: entry.into(), grid: [blocks, 1, 1], block, shared, operands, numbers: numbers.to_vec() }
}

macro_rules! bytes {
    ($x:expr) => {
        $x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
    };
}

macro_rules! values {
    ($t:ty, $x:expr) => {
        $x.chunks_exact(size_of::<$t>()).map(|b| <$t>::from_le_bytes(b.try_into().unwrap())).collect::<Vec<$t>>()
    };
}

use {bytes, values};

fn run(text: &str, job: &Job) -> Ran {
    Module::parse(text).and_then(|m| m.run(job)).expect("the launch goes well")
}

/// Numbers of 64 bits of every size.
fn drawn(count: usize) -> Vec<u64> {
    let mut x = 88172645463325252u64;
    (0..count)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        })
        .collect()
}
