//! Kernels of the same kind that are small enough to run thread by thread: the largest sizes are
//! halved, and once more made odd.

use shardc_ir::kernel::Kernel;
use shardc_testkit::reference::resize;

/// The kernel as it is where it touches few elements; else a smaller one, and one of odd sizes.
pub fn sizes(kernel: &Kernel, elements: u64) -> Vec<Kernel> {
    if work(kernel) <= elements {
        return vec![kernel.clone()];
    }
    [false, true].into_iter().filter_map(|is_odd| smaller(kernel, elements, is_odd)).collect()
}

/// Elements read, written and multiplied.
fn work(kernel: &Kernel) -> u64 {
    let mesh = shardc_ir::mesh::Mesh::new([("dp".to_string(), 2)], 1);
    let work = kernel.work(&mesh).map_or(0, |work| work.read / 4 + work.written / 4);
    match kernel {
        Kernel::Contract(_) | Kernel::Conv(_) => work.max(kernel.flops() / 32),
        _ => work,
    }
}

fn smaller(kernel: &Kernel, elements: u64, is_odd: bool) -> Option<Kernel> {
    let mut kernel = kernel.clone();
    while work(&kernel) > elements {
        if !halve(&mut kernel) {
            return None;
        }
    }
    Some(if is_odd { odd(&kernel) } else { kernel })
}

/// The kernel with odd sizes, which no block or vector divides.
pub fn odd(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    resize(&mut kernel, |size| if size > 2 && size.is_multiple_of(2) { size - 1 } else { size });
    kernel
}

/// Halves the largest size.
fn halve(kernel: &mut Kernel) -> bool {
    let mut largest = 0;
    resize(kernel, |size| {
        largest = largest.max(size);
        size
    });
    let mut is_done = largest < 4;
    let could = !is_done;
    resize(kernel, |size| {
        if size == largest && !is_done {
            is_done = true;
            return size.div_ceil(2);
        }
        size
    });
    could
}
