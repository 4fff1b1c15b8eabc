//! Kernels over floats of 16 bits that are computed by the kernel over f32: operands are widened
//! before, results rounded behind. Both are exact but for the one rounding.

use crate::cpu::element::{Slice, SliceMut, convert};
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, Cpu, Launch, scratch};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask, Kernel};
use shardc_ir::reason::Reason;

/// The kernel over f32.
#[derive(Debug)]
struct Widened(Box<dyn Launch>);

/// Makes a kernel ready that has 16-bit operands and no way of its own to compute with them; `None`
/// for others.
pub fn prepare(kernel: &Kernel, in_place: &[Option<usize>]) -> Option<Result<Box<dyn Launch>, Reason>> {
    let wide = wide(kernel)?;
    Some(wide.ready(&Cpu, in_place).map(|launch| Box::new(Widened(launch)) as Box<dyn Launch>))
}

/// The same kernel over f32.
fn wide(kernel: &Kernel) -> Option<Kernel> {
    let mut wide = kernel.clone();
    let dtype = match &mut wide {
        Kernel::Rowwise(form) => &mut form.dtype,
        Kernel::Attention(form) => attention(form),
        Kernel::AttentionGrad(form) => attention(&mut form.0),
        Kernel::Conv(form) => &mut form.dtype,
        Kernel::MaxPool(form) => &mut form.dtype,
        Kernel::MaxPoolGrad(form) => &mut form.0.dtype,
        Kernel::ScatterAdd(form) => &mut form.0.dtype,
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
        let mut inputs: Vec<Vec<f32>> = reads.iter().filter(|read| is_half(read)).map(|read| scratch::take(read.len())).collect();
        let halves = reads.iter().filter(|read| is_half(read));
        inputs.iter_mut().zip(halves).for_each(|(wide, half)| widen(*half, wide, threads));
        let mut results: Vec<Option<Vec<f32>>> =
            writes.iter().map(|write| is_half_mut(write).then(|| scratch::take(write.len()))).collect();
        let outcome = {
            let mut widened = inputs.iter();
            let wide = |read: &Slice<'_>| if is_half(read) { widened.next() } else { None };
            let taken: Vec<Option<&Vec<f32>>> = reads.iter().map(wide).collect();
            let reads: Vec<Slice<'_>> =
                reads.iter().zip(&taken).map(|(read, wide)| wide.map_or(*read, |wide| Slice::F32(wide))).collect();
            let (halves, targets): (Vec<_>, Vec<_>) = writes
                .into_iter()
                .zip(&mut results)
                .map(|(write, wide)| match wide {
                    Some(wide) => (Some(write), SliceMut::F32(wide)),
                    None => (None, write),
                })
                .unzip();
            let outcome = self.0.launch(Arguments { reads: &reads, writes: targets, coordinates, threads });
            (outcome, halves)
        };
        let (outcome, halves) = outcome;
        for (half, wide) in halves.into_iter().zip(&results) {
            if let (Some(half), Some(wide)) = (half, wide) {
                narrow(wide, half, threads);
            }
        }
        inputs.into_iter().chain(results.into_iter().flatten()).for_each(scratch::give);
        outcome
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
