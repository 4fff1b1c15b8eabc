//! The functions of cuBLASLt.
#![allow(non_snake_case, reason = "names are NVIDIA's")]

use super::{functions, host, put};
use crate::codes::Answer;
use crate::matmul::{Algo, Call, INVALID_VALUE, Kind, NOT_SUPPORTED, Told, VERSION};
use crate::settings;
use crate::world::lock;
use shardc_cuda_testing::product::{Element, Product};
use std::ffi::{c_int, c_uint, c_void};

/// `CUBLAS_STATUS_INTERNAL_ERROR`
const INTERNAL: u32 = 14;

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
pub struct Candidate {
    algo: [u64; 8],
    workspace: usize,
    state: c_uint,
    waves: f32,
    reserved: [c_int; 4],
}

impl Candidate {
    fn of(algo: &Algo) -> Candidate {
        Candidate { algo: algo.data(), workspace: algo.workspace as usize, state: 0, waves: 1.0, reserved: [0; 4] }
    }
}

fn new(object: *mut u64, told: Told) -> Answer {
    let handle = lock().new_object(told);
    // SAFETY: the caller gave a place for one.
    unsafe { put(object, handle, INVALID_VALUE) }
}

fn destroy(handle: u64, kind: Kind) -> Answer {
    let mut world = lock();
    world.object(handle, kind)?;
    world.objects.remove(&handle);
    Ok(())
}

fn set(handle: u64, kind: Kind, attribute: c_uint, value: *const c_void, bytes: usize) -> Answer {
    if value.is_null() || bytes > 64 {
        return Err(INVALID_VALUE);
    }
    lock().object(handle, kind)?.set(attribute, host::read(value as u64, bytes as u64))
}

fn get(handle: u64, kind: Kind, attribute: c_uint, value: *mut c_void, bytes: usize, written: *mut usize) -> Answer {
    let kept = lock().object(handle, kind)?.get(attribute)?.to_vec();
    if !written.is_null() {
        // SAFETY: the caller gave a place for one.
        unsafe { put(written, kept.len(), INVALID_VALUE)? };
    }
    if bytes == 0 {
        return Ok(());
    }
    if value.is_null() || bytes < kept.len() {
        return Err(INVALID_VALUE);
    }
    host::write(value as u64, &kept);
    Ok(())
}

/// The product that was told, and the address of its vector.
fn product(descriptor: u64, layouts: [u64; 4]) -> Result<(Product, u64), u32> {
    let mut world = lock();
    match world.product(descriptor, layouts) {
        Ok(found) => Ok(found),
        Err((code, why)) => world.refuse(code, format!("cuBLASLt: {why}")),
    }
}

/// A factor of the host.
fn scale(at: *const c_void, element: Element) -> Result<f64, u32> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = host::read(at as u64, element.bytes());
    Ok(match <[u8; 8]>::try_from(bytes.as_slice()) {
        Ok(bytes) => f64::from_le_bytes(bytes),
        Err(_) => <[u8; 4]>::try_from(bytes.as_slice()).map_or(0.0, |bytes| f64::from(f32::from_le_bytes(bytes))),
    })
}

functions! { INTERNAL;
    cublasLtCreate(handle: *mut u64) {
        crate::thread::device().map_err(|_| 1u32)?;
        new(handle, Told::new(Kind::Handle, &[]))
    }
    cublasLtDestroy(handle: u64) {
        destroy(handle, Kind::Handle)
    }
    cublasLtMatmulDescCreate(object: *mut u64, compute: c_uint, scale: c_uint) {
        new(object, Told::new(Kind::Product, &[(0, u64::from(compute)), (1, u64::from(scale))]))
    }
    cublasLtMatmulDescDestroy(handle: u64) {
        destroy(handle, Kind::Product)
    }
    cublasLtMatmulDescSetAttribute(handle: u64, attribute: c_uint, value: *const c_void, bytes: usize) {
        set(handle, Kind::Product, attribute, value, bytes)
    }
    cublasLtMatmulDescGetAttribute(handle: u64, attribute: c_uint, value: *mut c_void, bytes: usize, written: *mut usize) {
        get(handle, Kind::Product, attribute, value, bytes, written)
    }
    cublasLtMatrixLayoutCreate(object: *mut u64, dtype: c_uint, rows: u64, columns: u64, leading: i64) {
        let attributes = [(0, u64::from(dtype)), (2, rows), (3, columns), (4, leading as u64)];
        new(object, Told::new(Kind::Layout, &attributes))
    }
    cublasLtMatrixLayoutDestroy(handle: u64) {
        destroy(handle, Kind::Layout)
    }
    cublasLtMatrixLayoutSetAttribute(handle: u64, attribute: c_uint, value: *const c_void, bytes: usize) {
        set(handle, Kind::Layout, attribute, value, bytes)
    }
    cublasLtMatrixLayoutGetAttribute(handle: u64, attribute: c_uint, value: *mut c_void, bytes: usize, written: *mut usize) {
        get(handle, Kind::Layout, attribute, value, bytes, written)
    }
    cublasLtMatmulPreferenceCreate(object: *mut u64) {
        new(object, Told::new(Kind::Preference, &[]))
    }
    cublasLtMatmulPreferenceDestroy(handle: u64) {
        destroy(handle, Kind::Preference)
    }
    cublasLtMatmulPreferenceSetAttribute(handle: u64, attribute: c_uint, value: *const c_void, bytes: usize) {
        set(handle, Kind::Preference, attribute, value, bytes)
    }
    cublasLtMatmulPreferenceGetAttribute(handle: u64, attribute: c_uint, value: *mut c_void, bytes: usize, written: *mut usize) {
        get(handle, Kind::Preference, attribute, value, bytes, written)
    }
    cublasLtMatmulAlgoGetHeuristic(
        handle: u64,
        descriptor: u64,
        a: u64, b: u64, c: u64, d: u64,
        preference: u64,
        asked: c_int,
        results: *mut Candidate,
        found: *mut c_int,
    ) {
        put(found, 0, INVALID_VALUE)?;
        lock().object(handle, Kind::Handle)?;
        let (product, _) = product(descriptor, [a, b, c, d])?;
        let (room, reductions, alignment) = lock().preference(preference).map_err(|(code, _)| code)?;
        let candidates = Algo::all(&product, room, reductions, alignment);
        let count = candidates.len().min(asked.max(0) as usize);
        for (i, algo) in candidates.iter().take(count).enumerate() {
            put(results.add(i), Candidate::of(algo), INVALID_VALUE)?;
        }
        put(found, count as c_int, INVALID_VALUE)?;
        if count == 0 { Err(NOT_SUPPORTED) } else { Ok(()) }
    }
    cublasLtMatmulAlgoCheck(
        handle: u64,
        descriptor: u64,
        a: u64, b: u64, c: u64, d: u64,
        algo: *const [u64; 8],
        result: *mut Candidate,
    ) {
        lock().object(handle, Kind::Handle)?;
        if algo.is_null() {
            return Err(INVALID_VALUE);
        }
        let (product, _) = product(descriptor, [a, b, c, d])?;
        // A refusal is an answer here, and no report.
        let algo = Algo::of(algo.read_unaligned(), &product).map_err(|(code, _)| code)?;
        put(result, Candidate::of(&algo), INVALID_VALUE)
    }
    cublasLtMatmul(
        handle: u64,
        descriptor: u64,
        alpha: *const c_void,
        a: u64, a_layout: u64,
        b: u64, b_layout: u64,
        beta: *const c_void,
        c: u64, c_layout: u64,
        d: u64, d_layout: u64,
        algo: *const [u64; 8],
        workspace: u64, room: usize,
        stream: u64,
    ) {
        lock().object(handle, Kind::Handle)?;
        let (mut product, bias) = product(descriptor, [a_layout, b_layout, c_layout, d_layout])?;
        (product.alpha, product.beta) = (scale(alpha, product.scale)?, scale(beta, product.scale)?);
        let mut candidate = None;
        if algo.is_null() {
            // What is found then may use every reduction scheme.
            product.reductions = u32::MAX;
        } else {
            let algo = match Algo::of(algo.read_unaligned(), &product) {
                Ok(algo) => algo,
                Err((code, why)) => return lock().refuse(code, format!("cuBLASLt: {why}")),
            };
            if algo.is_first && settings::text("FIRST_ALGO").as_deref() == Some("fails") {
                return Err(NOT_SUPPORTED);
            }
            (product.workspace, product.reductions, product.alignment) = (algo.workspace, algo.reductions, algo.alignment);
            candidate = Some(algo.number);
        }
        let mut world = lock();
        let stream = world.resolve(stream).map_err(|_| INVALID_VALUE)?;
        let call = Call { product, matrices: [a, b, c, d], bias, workspace: (workspace, room as u64), candidate };
        world.multiply(stream, call)
    }
}

/// The version.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}
