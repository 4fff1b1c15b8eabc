//! What measures the machine and kernels beside it.

use shardc_executor::bench::{Peaks, time};
use shardc_ir::kernel::{Kernel, Work};
use std::time::Duration;

#[test]
fn everyday_kernels_of_every_form_run() {
    for (name, kernel) in Kernel::everyday() {
        let small = kernel.flops() < 1 << 31;
        assert!(!small || time(&kernel, 2).is_ok_and(|time| time > Duration::ZERO), "{name}");
    }
}

#[test]
fn peaks_are_those_of_a_machine() {
    let peaks = Peaks::measure(1).expect("a machine");
    assert!(peaks.flops > 1e8 && peaks.bytes > 1e8, "{peaks:?}");
    assert!(Peaks::products(1).is_ok_and(|flops| flops > 1e8));
    let work = Work { flops: peaks.flops as u64, read: peaks.bytes as u64, written: peaks.bytes as u64 };
    assert!((peaks.least(work).as_secs_f64() - 2.0).abs() < 1e-3);
}
