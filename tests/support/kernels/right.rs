//! What is right: the bits of the CPU backend where nothing is added up, else what plain loops in
//! f64 give, as near as sums of that type come.

use super::memory::Memory;
use super::{Case, attention};
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, prepare};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::Signature;
use shardc_ir::kernel::{Kernel, MemberKernel};
use shardc_ir::mesh::Mesh;
use shardc_testkit::reference;

/// Whether the bits of the CPU backend are the only right ones.
pub fn is_exact(kernel: &Kernel) -> bool {
    use Kernel::{Fill, Gather, Map, MaxPool, Move, Random, ScatterAdd};
    if let Kernel::Bundle(bundle) = kernel {
        return bundle.is_side_by_side() && bundle.members.iter().all(|member| matches!(member.kernel, MemberKernel::Map(_)));
    }
    matches!(kernel, Map(_) | Move(_) | Gather(_) | ScatterAdd(_) | Fill(_) | Random(_) | MaxPool(_))
}

/// By how much a sum may miss what f64 gives, in part of the largest result: 20 roundings.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 20.0 * 2f64.powi(-53),
        DType::F32 => 20.0 * 2f64.powi(-24),
        // One rounding, of a sum in f32.
        DType::BF16 => 1.1 * 2f64.powi(-8),
        DType::F16 => 1.1 * 2f64.powi(-11),
        DType::I64 | DType::Bool => 0.0,
    }
}

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    Tensor { dtype, shape: vec![], bytes: bytes.to_vec() }.to_f64()
}

/// Holds results against what is right.
pub fn judge(case: &Case, start: &Memory, found: &[Vec<u8>], coordinates: &[u64]) -> Result<(), String> {
    let Case { kernel, mesh, in_place, .. } = case;
    let signature = kernel.signature(mesh).unwrap();
    let on_cpu = || on_cpu(kernel, mesh, in_place, start, coordinates);
    if is_exact(kernel) {
        return same(kernel, mesh, found, &on_cpu());
    }
    // The terms of a reduction are the CPU backend's to the bit; they may be sums in f64 of f32.
    if let Kernel::Reduce(_) = kernel {
        let want = signature.writes.iter().zip(on_cpu()).map(|(o, bytes)| floats(o.dtype, &bytes)).collect::<Vec<_>>();
        return near(&signature, found, &want, None);
    }
    let reads: Vec<Vec<f64>> = signature.reads.iter().zip(&start.reads).map(|(o, bytes)| floats(o.dtype, bytes)).collect();
    let before = signature.writes.iter().zip(&start.writes).map(|(o, bytes)| floats(o.dtype, bytes)).collect();
    let want = reference::run(kernel, &reads, before, coordinates);
    let rounds_weights = case.generated.text.contains("weights_times_rows<");
    let rounding = rounds_weights.then(|| attention::rounding(kernel, &reads, &want));
    near(&signature, found, &want, rounding.as_deref())
}

/// Holds results to the tolerance of their type, and `more` for each that has it.
fn near(signature: &Signature, found: &[Vec<u8>], want: &[Vec<f64>], more: Option<&[Vec<f64>]>) -> Result<(), String> {
    for (o, ((operand, found), want)) in signature.writes.iter().zip(found).zip(want).enumerate() {
        let found = floats(operand.dtype, found);
        let largest = want.iter().filter(|value| value.is_finite()).fold(0.0f64, |most, value| most.max(value.abs()));
        let allowed = tolerance(operand.dtype) * largest;
        for (i, (found, want)) in found.iter().zip(want).enumerate() {
            let same = found == want || (found.is_nan() && want.is_nan());
            let allowed = allowed + more.map_or(0.0, |more| more[o][i]);
            let is_near = (found - want).abs() <= allowed;
            if !same && !is_near {
                return Err(format!("result {o}[{i}] is {found}, not {want} (allowed {allowed:.2e})"));
            }
        }
    }
    Ok(())
}

/// The results of the CPU backend.
fn on_cpu(kernel: &Kernel, mesh: &Mesh, in_place: &[Option<usize>], start: &Memory, coordinates: &[u64]) -> Vec<Vec<u8>> {
    let signature = kernel.signature(mesh).unwrap();
    let words = |bytes: &Vec<u8>| -> Vec<u64> {
        let part = |part: &[u8]| part.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        bytes.chunks(8).map(part).collect()
    };
    let reads: Vec<Vec<u64>> = start.reads.iter().map(words).collect();
    let mut writes: Vec<Vec<u64>> = start.writes.iter().map(words).collect();
    let prepared = prepare(kernel, in_place).unwrap();
    let slices: Vec<Slice<'_>> = (signature.reads.iter().zip(&reads).zip(&start.reads))
        .map(|((o, words), bytes)| Slice::from_bytes(o.dtype, &bytemuck::cast_slice(words)[..bytes.len()]).unwrap())
        .collect();
    let into: Vec<SliceMut<'_>> = (signature.writes.iter().zip(&mut writes).zip(&start.writes))
        .map(|((o, words), bytes)| SliceMut::from_bytes(o.dtype, &mut bytemuck::cast_slice_mut(words)[..bytes.len()]).unwrap())
        .collect();
    prepared.launch(Arguments { reads: &slices, writes: into, coordinates, threads: Threads(1) }).unwrap();
    writes.iter().zip(&start.writes).map(|(words, bytes)| bytemuck::cast_slice(words)[..bytes.len()].to_vec()).collect()
}

/// Holds results to the bit; of what is not a number only that counts.
pub fn same(kernel: &Kernel, mesh: &Mesh, found: &[Vec<u8>], want: &[Vec<u8>]) -> Result<(), String> {
    let signature = kernel.signature(mesh).unwrap();
    for (o, ((operand, found), want)) in signature.writes.iter().zip(found).zip(want).enumerate() {
        let size = operand.dtype.bytes() as usize;
        for (i, (a, b)) in found.chunks(size).zip(want.chunks(size)).enumerate().filter(|(_, (a, b))| a != b) {
            let [a, b] = [a, b].map(|bytes| floats(operand.dtype, bytes)[0]);
            if !(operand.dtype.is_float() && a.is_nan() && b.is_nan()) {
                return Err(format!("result {o}[{i}] is {a}, not {b}, to the bit"));
            }
        }
    }
    Ok(())
}
