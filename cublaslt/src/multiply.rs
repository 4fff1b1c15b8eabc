//! Products that the library computes on a GPU, and the algorithms that it has for them.
#![allow(unsafe_code, reason = "the library is one of C")]

use crate::library::{Described, Library, refused};
use cudarc::cublaslt::sys;
use serde::{Deserialize, Serialize};
use std::mem::MaybeUninit;
use std::ptr;

/// How many algorithms the library is asked for.
const ASKED: usize = 16;

/// A way to compute a product: plain data, which the same version of the library knows again
/// (`cublasLtMatmulAlgo_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Algorithm(pub [u64; 8]);

/// An algorithm that the library proposes.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes of room that it takes.
    pub room: u64,
}

/// The addresses of a product's operands on the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operands {
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of `C`.
    pub beta: f64,
    /// `A`.
    pub a: u64,
    /// `B`.
    pub b: u64,
    /// `C`.
    pub c: u64,
    /// `D`.
    pub d: u64,
    /// Where room begins.
    pub room: u64,
    /// Bytes of it.
    pub room_bytes: u64,
}

/// The library on the GPU that was current when it was made.
#[derive(Debug)]
pub struct Multiplier {
    handle: usize,
}

impl Library {
    /// The library on the GPU that is current in this thread.
    ///
    /// # Errors
    /// If it does not start there.
    pub fn multiplier(&self) -> Result<Multiplier, String> {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is to one pointer.
        unsafe { sys::cublasLtCreate(&raw mut handle) }.result().map_err(refused("to start"))?;
        Ok(Multiplier { handle: handle as usize })
    }
}

impl Multiplier {
    fn handle(&self) -> sys::cublasLtHandle_t {
        self.handle as sys::cublasLtHandle_t
    }

    /// The algorithms for a product, that which the library believes the fastest first.
    ///
    /// # Errors
    /// If it has none.
    pub fn candidates(&self, product: &Described) -> Result<Vec<Candidate>, String> {
        let mut found = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; ASKED];
        let mut count = 0;
        let [a, b, c, d] = product.layouts();
        // SAFETY: objects live, and the array has as many places as is said.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle(),
                product.product(),
                a,
                b,
                c,
                d,
                product.preference(),
                ASKED as i32,
                found.as_mut_ptr().cast(),
                &raw mut count,
            )
        }
        .result()
        .map_err(refused("a product"))?;
        let known = found.into_iter().take(usize::try_from(count).unwrap_or(0));
        // SAFETY: the library has written so many results; zeros are one as well.
        let results = known.map(|result| unsafe { result.assume_init() });
        let worked = results.filter(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(worked.map(|result| Candidate { algorithm: Algorithm(result.algo.data), room: result.workspaceSize as u64 }).collect())
    }

    /// The bytes of room that an algorithm takes for a product.
    ///
    /// # Errors
    /// If the library does not know it, or not for this product.
    pub fn room(&self, product: &Described, algorithm: &Algorithm) -> Result<u64, String> {
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.0 };
        let mut result = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let [a, b, c, d] = product.layouts();
        // SAFETY: objects live, and the pointers are to one algorithm and one result.
        unsafe {
            sys::cublasLtMatmulAlgoCheck(self.handle(), product.product(), a, b, c, d, &raw const algorithm, result.as_mut_ptr())
                .result()
                .map_err(refused("an algorithm that was chosen before"))?;
            Ok(result.assume_init().workspaceSize as u64)
        }
    }

    /// Multiplies in a stream of the driver's.
    ///
    /// # Errors
    /// If the library refuses the product, or it cannot be launched.
    pub fn multiply(&self, product: &Described, with: &Algorithm, operands: &Operands, stream: usize) -> Result<(), String> {
        let Operands { alpha, beta, a, b, c, d, room, room_bytes } = *operands;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: with.0 };
        let [la, lb, lc, ld] = product.layouts();
        let factors = [alpha, beta].map(|factor| product.factor(factor));
        // SAFETY: objects live; factors are of the type that the product was made with; addresses
        // are the GPU's, which the library only hands on.
        unsafe {
            sys::cublasLtMatmul(
                self.handle(),
                product.product(),
                factors[0].as_ptr().cast(),
                a as *const _,
                la,
                b as *const _,
                lb,
                factors[1].as_ptr().cast(),
                c as *const _,
                lc,
                d as *mut _,
                ld,
                &raw const algorithm,
                room as *mut _,
                room_bytes as usize,
                stream as sys::cudaStream_t,
            )
        }
        .result()
        .map_err(refused("to multiply"))
    }
}

impl Drop for Multiplier {
    fn drop(&mut self) {
        // SAFETY: the handle lives, and nothing uses it afterwards; what fails ends with the
        // process.
        let _ = unsafe { sys::cublasLtDestroy(self.handle()) };
    }
}
