//! Kernels over floats of 16 bits that are computed by the kernel over f32: operands are widened
//! before, results rounded behind. Both are exact but for the one rounding.

use crate::cpu::element::{Slice, SliceMut, convert};
use crate::cpu::scratch::Scratch;
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask, Kernel};
use shardc_ir::reason::Reason;

/// The kernel over f32.
#[derive(Debug)]
struct Widened {
    wide: Box<dyn Launch>,
    /// For each operand that it reads, which it writes in the same memory.
    in_place: Vec<Option<usize>>,
}

/// Makes a kernel ready that has 16-bit operands and no way of its own to compute with them; `None`
/// for others.
pub fn prepare(kernel: &Kernel, in_place: &[Option<usize>]) -> Option<Result<Box<dyn Launch>, Reason>> {
    let wide = wide(kernel)?;
    let widened = |wide| Box::new(Widened { wide, in_place: in_place.to_vec() }) as Box<dyn Launch>;
    Some(wide.ready(&Cpu, in_place).map(widened))
}

/// The same kernel over f32.
fn wide(kernel: &Kernel) -> Option<Kernel> {
    let mut wide = kernel.clone();
    let dtype = match &mut wide {
        // Where rows have 16 bits, what flows has as many.
        Kernel::Rowwise(form) => {
            form.dtype = form.dtype.computed();
            &mut form.flow
        }
        Kernel::Attention(form) => attention(form),
        Kernel::AttentionGrad(form) => attention(&mut form.0),
        Kernel::Conv(form) => &mut form.dtype,
        Kernel::MaxPool(form) => &mut form.dtype,
        Kernel::MaxPoolGrad(form) => &mut form.0.dtype,
        Kernel::ScatterAdd(form) => &mut form.gather.dtype,
        _ => return None,
    };
    let is_half = dtype.is_half();
    *dtype = DType::F32;
    is_half.then_some(wide)
}

fn attention(form: &mut Attention) -> &mut DType {
    if let AttentionMask::Operand { dtype, .. } = &mut form.mask {
        *dtype = dtype.computed();
    }
    &mut form.dtype
}

impl Launch for Widened {
    fn launch(&self, Arguments { reads, writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        let widened = |read: &Slice<'_>| {
            is_half(read).then(|| {
                let mut wide = Scratch::new::<f32>(read.len());
                widen(*read, wide.elements_mut(), threads);
                wide
            })
        };
        let inputs: Vec<Option<Scratch>> = reads.iter().map(widened).collect();
        let read = reads.iter().zip(&inputs).map(|(read, wide)| wide.as_ref().map_or(*read, |wide| Slice::F32(wide.elements())));
        let reads: Vec<Slice<'_>> = read.collect();
        let result = |(at, write): (usize, &SliceMut<'_>)| {
            is_half_mut(write).then(|| {
                let mut wide = Scratch::new::<f32>(write.len());
                if self.in_place.contains(&Some(at)) {
                    widen(write.as_slice(), wide.elements_mut(), threads);
                }
                wide
            })
        };
        let mut results: Vec<Option<Scratch>> = writes.iter().enumerate().map(result).collect();
        let mut halves = vec![];
        let targets = writes.into_iter().zip(&mut results).map(|(write, result)| match result {
            Some(wide) => {
                halves.push(write);
                SliceMut::F32(wide.elements_mut())
            }
            None => write,
        });
        let targets = targets.collect();
        self.wide.launch(Arguments { reads: &reads, writes: targets, coordinates, threads })?;
        for (half, wide) in halves.into_iter().zip(results.iter().flatten()) {
            narrow(wide.elements(), half, threads);
        }
        Ok(())
    }
}

fn is_half(slice: &Slice<'_>) -> bool {
    matches!(slice, Slice::BF16(_) | Slice::F16(_))
}

fn is_half_mut(slice: &SliceMut<'_>) -> bool {
    matches!(slice, SliceMut::BF16(_) | SliceMut::F16(_))
}

/// Elements that one thread converts at a time.
const PART: usize = 1 << 16;

fn widen(from: Slice<'_>, to: &mut [f32], threads: Threads) {
    let work = to.len() / 8;
    match from {
        Slice::BF16(from) => threads.for_each(work, from.chunks(PART).zip(to.chunks_mut(PART)).collect(), |(f, t)| convert(f, t)),
        Slice::F16(from) => threads.for_each(work, from.chunks(PART).zip(to.chunks_mut(PART)).collect(), |(f, t)| convert(f, t)),
        _ => {}
    }
}

fn narrow(from: &[f32], to: SliceMut<'_>, threads: Threads) {
    let work = from.len() / 8;
    match to {
        SliceMut::BF16(to) => {
            threads.for_each(work, from.chunks(PART).zip(to.chunks_mut(PART)).collect(), |(f, t)| convert(f, t))
        }
        SliceMut::F16(to) => threads.for_each(work, from.chunks(PART).zip(to.chunks_mut(PART)).collect(), |(f, t)| convert(f, t)),
        _ => {}
    }
}
