//! How fast this machine is, and kernels beside that.

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::team::Team;
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, prepare};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::{Operand, Signature};
use shardc_ir::kernel::{Contract, Kernel, Work};
use shardc_ir::memory;
use shardc_ir::mesh::Mesh;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::time::{Duration, Instant};

/// The bytes of each of the arrays that are copied: more than caches hold.
const COPIED: usize = 64 << 20;

/// What the machine does at most, as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Operations a second of the fastest product of f32.
    pub flops: f64,
    /// Bytes a second, read and written together, of a copy from memory to memory.
    pub bytes: f64,
}

impl Peaks {
    /// Measures a machine, by so many threads.
    ///
    /// # Errors
    /// If it has no threads or no memory for it.
    pub fn measure(threads: usize) -> Result<Peaks, Reason> {
        let mut team = team(threads)?;
        let shapes = [[1024, 1024, 1024], [768, 512, 128], [256, 3072, 768]];
        let mut flops = 0f64;
        for shape in shapes {
            let kernel = Kernel::Contract(Contract::of_matrices(shape, false, false));
            flops = flops.max(kernel.flops() as f64 / time_in(&mut team, &kernel, threads)?.as_secs_f64());
        }
        Ok(Peaks { flops, bytes: copy_rate(&mut team, threads)? })
    }

    /// Measures operations a second of products of f32 alone, by so many threads, within about a
    /// tenth of a second.
    ///
    /// # Errors
    /// If it has no threads or no memory for it.
    pub fn products(threads: usize) -> Result<f64, Reason> {
        let kernel = Kernel::Contract(Contract::of_matrices([768; 3], false, false));
        Ok(kernel.flops() as f64 / time_in(&mut team(threads)?, &kernel, threads)?.as_secs_f64())
    }

    /// The higher of two measurements each: what disturbs one only lowers it.
    pub fn max(self, other: Peaks) -> Peaks {
        Peaks { flops: self.flops.max(other.flops), bytes: self.bytes.max(other.bytes) }
    }

    /// How long work takes at the peaks: the longer of computing it and of moving its bytes.
    pub fn least(&self, work: Work) -> Duration {
        let bytes = work.read.saturating_add(work.written) as f64;
        Duration::from_secs_f64((work.flops as f64 / self.flops).max(bytes / self.bytes))
    }
}

/// The shortest time of several launches of a kernel over numbers between -1 and 1, indices 0, by
/// so many threads.
///
/// # Errors
/// If it is no kernel of one rank, or the machine has no memory for it.
pub fn time(kernel: &Kernel, threads: usize) -> Result<Duration, Reason> {
    time_in(&mut team(threads)?, kernel, threads)
}

fn team(threads: usize) -> Result<Team, Reason> {
    Team::new(threads, |helper| format!("bench.{helper}"))
}

fn time_in(team: &mut Team, kernel: &Kernel, threads: usize) -> Result<Duration, Reason> {
    const ROUNDS: usize = 5;
    const LONG: Duration = Duration::from_millis(100);
    let signature = kernel.signature(&Mesh::single())?;
    let in_place = in_place(kernel, &signature);
    let ready = prepare(kernel, &in_place)?;
    let apart = |(read, place): (&Operand, &Option<usize>)| if place.is_some() { Ok(vec![]) } else { operand(read) };
    let reads = signature.reads.iter().zip(&in_place).map(apart).collect::<Result<Vec<_>, _>>()?;
    let mut writes = signature.writes.iter().map(operand).collect::<Result<Vec<_>, _>>()?;
    let slice = |(operand, words): (&Operand, _)| Slice::from_bytes(operand.dtype, bytemuck::cast_slice::<u64, u8>(words));
    let reads = signature.reads.iter().zip(reads.iter().map(Vec::as_slice)).map(slice);
    let reads = reads.collect::<Option<Vec<_>>>().ok_or("an operand of no type")?;
    let (mut best, mut rounds, begin) = (Duration::MAX, 0, Instant::now());
    while rounds < ROUNDS || begin.elapsed() < LONG {
        let slice =
            |(operand, words): (&Operand, _)| SliceMut::from_bytes(operand.dtype, bytemuck::cast_slice_mut::<u64, u8>(words));
        let writes = signature.writes.iter().zip(writes.iter_mut().map(Vec::as_mut_slice)).map(slice);
        let writes = writes.collect::<Option<Vec<_>>>().ok_or("an operand of no type")?;
        let arguments = Arguments { reads: &reads, writes, coordinates: &[0], threads: Threads(threads) };
        let start = Instant::now();
        team.lead(|| ready.launch(arguments))?;
        best = best.min(start.elapsed());
        rounds += 1;
    }
    Ok(best)
}

/// For each operand, the result that is the same memory. Plans update parameters and their moments
/// in place: of maps of several results, the first operands, in the order of the results.
fn in_place(kernel: &Kernel, signature: &Signature) -> Vec<Option<usize>> {
    let mut places = vec![None; signature.reads.len()];
    let is_update = matches!(kernel, Kernel::Map(_)) && signature.writes.len() > 1;
    for write in (0..signature.writes.len()).filter(|_| is_update) {
        let free = (0..places.len()).find(|read| places[*read].is_none() && kernel.in_place(*read, write));
        free.into_iter().for_each(|read| places[read] = Some(write));
    }
    places
}

/// The memory of an operand.
fn operand(operand: &Operand) -> Result<Vec<u64>, Reason> {
    let bytes = operand.elements.saturating_mul(operand.dtype.bytes());
    let mut words = zeros(bytes.div_ceil(8))?;
    if operand.dtype == DType::F32 {
        let values: &mut [f32] = bytemuck::cast_slice_mut(&mut words);
        values.iter_mut().enumerate().for_each(|(i, value)| *value = (i * 7919 % 1000) as f32 / 500.0 - 1.0);
        // A single number may be a rate, or divide.
        values.iter_mut().filter(|_| operand.elements == 1).for_each(|value| *value = 0.5);
    }
    Ok(words)
}

fn zeros(words: u64) -> Result<Vec<u64>, Reason> {
    let mut zeros = vec![];
    let count = usize::try_from(words).map_err(|_| "no memory")?;
    memory::reserve(&mut zeros, count).map_err(|_| reason!("no memory for {count} numbers of 64 bits"))?;
    zeros.resize(count, 0);
    Ok(zeros)
}

/// Bytes a second, read and written together, of copies by all threads.
fn copy_rate(team: &mut Team, threads: usize) -> Result<f64, Reason> {
    const ROUNDS: usize = 6;
    let (from, mut to) = (zeros(COPIED as u64 / 8)?, zeros(COPIED as u64 / 8)?);
    let part = from.len().div_ceil(threads);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let items = from.chunks(part).zip(to.chunks_mut(part)).collect();
        let start = Instant::now();
        team.lead(|| Threads(threads).for_each(COPIED, items, |(from, to)| to.copy_from_slice(from)));
        best = best.min(start.elapsed());
    }
    Ok(2.0 * COPIED as f64 / best.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
