//! The calls of cudarc that the tests make, beside those that only the fake has.
#![allow(unsafe_code, reason = "cudarc's bindings are C's")]

use cudarc::driver::sys;
use cudarc::nccl::sys as nccl;
use std::ffi::{CString, c_void};

pub use cudarc::driver::sys::CUstreamCaptureMode as Mode;
pub use cudarc::nccl::sys::{ncclDataType_t as Dtype, ncclRedOp_t as Op};
pub use shardc_fakecuda::control::{reports, reset, set, trace};

/// The code of a call that failed.
pub type Answer<T = ()> = Result<T, u32>;

/// Calls functions of the driver, and gives their codes.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to what the function is documented to read and write.
        match unsafe { sys::$function($($argument),*) } as u32 {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

macro_rules! nc {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to what the function is documented to read and write.
        match unsafe { nccl::$function($($argument),*) } as u32 {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

/// Which of the libraries are found: the driver, NVRTC, NCCL, cuBLASLt.
pub fn present() -> [bool; 4] {
    // SAFETY: the libraries are the fake, which runs nothing when it is opened.
    unsafe {
        [
            sys::is_culib_present(),
            cudarc::nvrtc::sys::is_culib_present(),
            nccl::is_culib_present(),
            cudarc::cublaslt::sys::is_culib_present(),
        ]
    }
}

/// Whether the driver has a function.
pub fn has(name: &str) -> bool {
    // SAFETY: the symbol is not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() }
}

/// Makes a device this thread's.
pub fn enter(device: i32) -> Answer {
    let mut context = std::ptr::null_mut();
    cu!(cuInit(0))?;
    cu!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
    cu!(cuCtxSetCurrent(context))
}

pub fn release(device: i32) -> Answer {
    cu!(cuDevicePrimaryCtxRelease_v2(device))
}

pub fn allocate(bytes: usize) -> Answer<u64> {
    let mut at = 0;
    cu!(cuMemAlloc_v2(&raw mut at, bytes)).map(|()| at)
}

pub fn free(at: u64) -> Answer {
    cu!(cuMemFree_v2(at))
}

/// Memory that is pinned, for floats.
#[derive(Debug, Clone, Copy)]
pub struct Pinned {
    at: usize,
    pub count: usize,
}

impl Pinned {
    pub fn new(count: usize) -> Answer<Pinned> {
        let mut at = std::ptr::null_mut();
        cu!(cuMemHostAlloc(&raw mut at, count * 4, 0)).map(|()| Pinned { at: at as usize, count })
    }

    pub fn fill(&self, value: f32) {
        (0..self.count).for_each(|i| self.put(i, value));
    }

    pub fn put(&self, i: usize, value: f32) {
        assert!(i < self.count);
        // SAFETY: the memory has so many floats, and only copies beside.
        unsafe { (self.at as *mut f32).add(i).write_volatile(value) };
    }

    pub fn get(&self, i: usize) -> f32 {
        assert!(i < self.count);
        // SAFETY: as above.
        unsafe { (self.at as *const f32).add(i).read_volatile() }
    }

    pub fn free(self) -> Answer {
        cu!(cuMemFreeHost(self.at as *mut c_void))
    }
}

pub fn write(to: u64, values: &[f32]) -> Answer {
    cu!(cuMemcpyHtoD_v2(to, values.as_ptr().cast(), values.len() * 4))
}

pub fn read(from: u64, count: usize) -> Answer<Vec<f32>> {
    let mut values = vec![0f32; count];
    cu!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), from, count * 4)).map(|()| values)
}

pub fn write_on(to: u64, values: &[f32], stream: usize) -> Answer {
    cu!(cuMemcpyHtoDAsync_v2(to, values.as_ptr().cast(), values.len() * 4, stream as _))
}

pub fn read_on(from: u64, count: usize, stream: usize) -> Answer<Vec<f32>> {
    let mut values = vec![0f32; count];
    cu!(cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), from, count * 4, stream as _)).map(|()| values)
}

pub fn copy_in(to: u64, from: Pinned, stream: usize) -> Answer {
    cu!(cuMemcpyHtoDAsync_v2(to, from.at as *const c_void, from.count * 4, stream as _))
}

pub fn copy_out(to: Pinned, from: u64, stream: usize) -> Answer {
    cu!(cuMemcpyDtoHAsync_v2(to.at as *mut c_void, from, to.count * 4, stream as _))
}

/// A copy to the device from an address as a host's.
pub fn copy_in_from(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    cu!(cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, stream as _))
}

pub fn copy(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    cu!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream as _))
}

pub fn clear(to: u64, bytes: usize, stream: usize) -> Answer {
    cu!(cuMemsetD8Async(to, 0, bytes, stream as _))
}

pub fn stream() -> Answer<usize> {
    stream_with(1)
}

/// A stream that waits for the legacy default stream, and that one for it.
pub fn blocking_stream() -> Answer<usize> {
    stream_with(0)
}

fn stream_with(flags: u32) -> Answer<usize> {
    let mut stream = std::ptr::null_mut();
    cu!(cuStreamCreate(&raw mut stream, flags)).map(|()| stream as usize)
}

pub fn destroy_stream(stream: usize) -> Answer {
    cu!(cuStreamDestroy_v2(stream as _))
}

pub fn wait_stream(stream: usize) -> Answer {
    cu!(cuStreamSynchronize(stream as _))
}

pub fn ask_stream(stream: usize) -> Answer {
    cu!(cuStreamQuery(stream as _))
}

pub fn wait_all() -> Answer {
    cu!(cuCtxSynchronize())
}

pub fn event() -> Answer<usize> {
    let mut event = std::ptr::null_mut();
    cu!(cuEventCreate(&raw mut event, 2)).map(|()| event as usize)
}

pub fn destroy_event(event: usize) -> Answer {
    cu!(cuEventDestroy_v2(event as _))
}

pub fn record(event: usize, stream: usize) -> Answer {
    cu!(cuEventRecord(event as _, stream as _))
}

pub fn follow(stream: usize, event: usize) -> Answer {
    cu!(cuStreamWaitEvent(stream as _, event as _, 0))
}

pub fn wait_event(event: usize) -> Answer {
    cu!(cuEventSynchronize(event as _))
}

pub fn ask_event(event: usize) -> Answer {
    cu!(cuEventQuery(event as _))
}

pub fn module(image: &[u8]) -> Answer<usize> {
    let mut module = std::ptr::null_mut();
    cu!(cuModuleLoadData(&raw mut module, image.as_ptr().cast())).map(|()| module as usize)
}

pub fn unload(module: usize) -> Answer {
    cu!(cuModuleUnload(module as _))
}

pub fn function(module: usize, name: &str) -> Answer<usize> {
    let (name, mut function) = (CString::new(name).unwrap(), std::ptr::null_mut());
    cu!(cuModuleGetFunction(&raw mut function, module as _, name.as_ptr())).map(|()| function as usize)
}

/// Launches blocks of 128 threads.
pub fn launch(function: usize, blocks: u32, parameters: &[u64], stream: usize) -> Answer {
    launch_of(function, [blocks, 1, 1], 128, 0, parameters, stream)
}

pub fn launch_of(function: usize, grid: [u32; 3], block: u32, shared: u32, parameters: &[u64], stream: usize) -> Answer {
    let mut values = parameters.to_vec();
    let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
    let [x, y, z] = grid;
    let none = std::ptr::null_mut();
    cu!(cuLaunchKernel(function as _, x, y, z, block, 1, 1, shared, stream as _, pointers.as_mut_ptr(), none))
}

pub fn begin(stream: usize, mode: Mode) -> Answer {
    cu!(cuStreamBeginCapture_v2(stream as _, mode))
}

/// The graph of a capture, ready to be launched.
pub fn end(stream: usize) -> Answer<usize> {
    let (mut graph, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
    cu!(cuStreamEndCapture(stream as _, &raw mut graph))?;
    cu!(cuGraphInstantiateWithFlags(&raw mut ready, graph, 0))?;
    cu!(cuGraphDestroy(graph))?;
    Ok(ready as usize)
}

pub fn launch_graph(graph: usize, stream: usize) -> Answer {
    cu!(cuGraphLaunch(graph as _, stream as _))
}

pub fn destroy_graph(graph: usize) -> Answer {
    cu!(cuGraphExecDestroy(graph as _))
}

/// The identity of a new communicator.
pub type Id = nccl::ncclUniqueId;

pub fn id() -> Answer<Id> {
    let mut id = nccl::ncclUniqueId { internal: [0; 128] };
    nc!(ncclGetUniqueId(&raw mut id)).map(|()| id)
}

fn config(is_blocking: bool) -> nccl::ncclConfig_t {
    let none = i32::MIN;
    nccl::ncclConfig_t {
        size: size_of::<nccl::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 22_200,
        blocking: i32::from(is_blocking),
        cgaClusterSize: none,
        minCTAs: none,
        maxCTAs: none,
        netName: std::ptr::null(),
        splitShare: none,
    }
}

pub fn join(id: Id, size: usize, rank: usize) -> Answer<usize> {
    let mut comm = std::ptr::null_mut();
    nc!(ncclCommInitRank(&raw mut comm, size as i32, id, rank as i32)).map(|()| comm as usize)
}

/// The same without waiting: the handle, and the code that it came with.
pub fn join_later(id: Id, size: usize, rank: usize) -> (usize, Answer) {
    let (mut comm, mut config) = (std::ptr::null_mut(), config(false));
    let answer = nc!(ncclCommInitRankConfig(&raw mut comm, size as i32, id, rank as i32, &raw mut config));
    (comm as usize, answer)
}

/// Splits a communicator, and waits for it.
pub fn split(comm: usize, color: i32, key: i32) -> Answer<usize> {
    let mut new = std::ptr::null_mut();
    nc!(ncclCommSplit(comm as _, color, key, &raw mut new, std::ptr::null_mut())).map(|()| new as usize)
}

/// Splits a communicator without waiting, into a place that stays.
pub fn split_later(comm: usize, color: i32, key: i32, new: &mut usize) -> Answer {
    let mut config = config(false);
    nc!(ncclCommSplit(comm as _, color, key, std::ptr::from_mut(new).cast(), &raw mut config))
}

/// The asynchronous state.
pub fn state(comm: usize) -> Answer<u32> {
    let mut state = nccl::ncclResult_t::ncclSuccess;
    nc!(ncclCommGetAsyncError(comm as _, &raw mut state)).map(|()| state as u32)
}

pub fn size_and_rank(comm: usize) -> Answer<[i32; 2]> {
    let (mut size, mut rank) = (0, 0);
    nc!(ncclCommCount(comm as _, &raw mut size))?;
    nc!(ncclCommUserRank(comm as _, &raw mut rank))?;
    Ok([size, rank])
}

pub fn abort(comm: usize) -> Answer {
    nc!(ncclCommAbort(comm as _))
}

pub fn finalize(comm: usize) -> Answer {
    nc!(ncclCommFinalize(comm as _))
}

pub fn leave(comm: usize) -> Answer {
    nc!(ncclCommDestroy(comm as _))
}

pub fn group_begin() -> Answer {
    nc!(ncclGroupStart())
}

pub fn group_end() -> Answer {
    nc!(ncclGroupEnd())
}

pub fn all_reduce(from: u64, to: u64, count: usize, dtype: Dtype, op: Op, comm: usize, stream: usize) -> Answer {
    nc!(ncclAllReduce(from as _, to as _, count, dtype, op, comm as _, stream as _))
}

pub fn all_gather(from: u64, to: u64, count: usize, comm: usize, stream: usize) -> Answer {
    nc!(ncclAllGather(from as _, to as _, count, Dtype::ncclFloat32, comm as _, stream as _))
}

pub fn reduce_scatter(from: u64, to: u64, count: usize, comm: usize, stream: usize) -> Answer {
    nc!(ncclReduceScatter(from as _, to as _, count, Dtype::ncclFloat32, Op::ncclSum, comm as _, stream as _))
}

pub fn broadcast(from: u64, to: u64, count: usize, root: i32, comm: usize, stream: usize) -> Answer {
    nc!(ncclBroadcast(from as _, to as _, count, Dtype::ncclFloat32, root, comm as _, stream as _))
}

pub fn send(from: u64, count: usize, peer: usize, comm: usize, stream: usize) -> Answer {
    nc!(ncclSend(from as _, count, Dtype::ncclFloat32, peer as i32, comm as _, stream as _))
}

pub fn recv(to: u64, count: usize, peer: usize, comm: usize, stream: usize) -> Answer {
    nc!(ncclRecv(to as _, count, Dtype::ncclFloat32, peer as i32, comm as _, stream as _))
}

macro_rules! lt {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to what the function is documented to read and write.
        match unsafe { cudarc::cublaslt::sys::$function($($argument),*) } as u32 {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

use cudarc::cublaslt::sys as blas;

/// A product of f32 that cuBLASLt is told of: `D = A * B + beta * C`, matrices column by column.
#[derive(Debug)]
pub struct Product {
    handle: usize,
    descriptor: usize,
    layouts: [usize; 4],
    preference: usize,
}

/// What a product is told.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    /// The leading dimension of `A`.
    pub leading: i64,
    pub room: u64,
    pub alignment: u32,
}

/// A candidate's data, and the room that it needs.
pub type Candidate = ([u64; 8], usize);

impl Product {
    pub fn new(sizes: Sizes) -> Answer<Product> {
        let mut handle = std::ptr::null_mut();
        lt!(cublasLtCreate(&raw mut handle))?;
        let (compute, f32) = (blas::cublasComputeType_t::CUBLAS_COMPUTE_32F, blas::cudaDataType::CUDA_R_32F);
        let mut descriptor = std::ptr::null_mut();
        lt!(cublasLtMatmulDescCreate(&raw mut descriptor, compute, f32))?;
        let layout = |rows, columns, leading| {
            let mut layout = std::ptr::null_mut();
            lt!(cublasLtMatrixLayoutCreate(&raw mut layout, f32, rows, columns, leading)).map(|()| layout as usize)
        };
        let Sizes { m, n, k, leading, room, alignment } = sizes;
        let d = || layout(m, n, m as i64);
        let layouts = [layout(m, k, leading)?, layout(k, n, k as i64)?, d()?, d()?];
        let mut preference = std::ptr::null_mut();
        lt!(cublasLtMatmulPreferenceCreate(&raw mut preference))?;
        let preference = preference as usize;
        use blas::cublasLtMatmulPreferenceAttributes_t as Preference;
        let set = |attribute, value: &[u8]| {
            lt!(cublasLtMatmulPreferenceSetAttribute(preference as _, attribute, value.as_ptr().cast(), value.len()))
        };
        set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room.to_ne_bytes())?;
        set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &0u32.to_ne_bytes())?;
        for attribute in [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(attribute, &alignment.to_ne_bytes())?;
        }
        assert_eq!(set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &[1, 2]), Err(7));
        Ok(Product { handle: handle as usize, descriptor: descriptor as usize, layouts, preference })
    }

    /// Asks for a number of candidates.
    pub fn candidates(&self, asked: usize) -> Answer<Vec<Candidate>> {
        let [a, b, c, d] = self.layouts;
        // SAFETY: all zero is a value of the struct.
        let mut found = vec![unsafe { std::mem::zeroed::<blas::cublasLtMatmulHeuristicResult_t>() }; asked];
        let mut count = 0;
        lt!(cublasLtMatmulAlgoGetHeuristic(
            self.handle as _,
            self.descriptor as _,
            a as _,
            b as _,
            c as _,
            d as _,
            self.preference as _,
            asked as i32,
            found.as_mut_ptr(),
            &raw mut count
        ))?;
        Ok(found[..count as usize].iter().map(|candidate| (candidate.algo.data, candidate.workspaceSize)).collect())
    }

    /// The room that a candidate needs, as the library says again.
    pub fn check(&self, data: [u64; 8]) -> Answer<usize> {
        let [a, b, c, d] = self.layouts;
        let algo = blas::cublasLtMatmulAlgo_t { data };
        // SAFETY: all zero is a value of the struct.
        let mut found = unsafe { std::mem::zeroed::<blas::cublasLtMatmulHeuristicResult_t>() };
        lt!(cublasLtMatmulAlgoCheck(
            self.handle as _,
            self.descriptor as _,
            a as _,
            b as _,
            c as _,
            d as _,
            &raw const algo,
            &raw mut found
        ))
        .map(|()| found.workspaceSize)
    }

    /// Multiplies; `matrices` are `A`, `B`, `C` and `D`.
    pub fn run(&self, data: Option<[u64; 8]>, matrices: [u64; 4], beta: f32, room: (u64, usize), stream: usize) -> Answer {
        let [a, b, c, d] = matrices;
        let algo = data.map(|data| blas::cublasLtMatmulAlgo_t { data });
        let (alpha, beta) = (1f32, beta);
        let [la, lb, lc, ld] = self.layouts;
        lt!(cublasLtMatmul(
            self.handle as _,
            self.descriptor as _,
            (&raw const alpha).cast(),
            a as _,
            la as _,
            b as _,
            lb as _,
            (&raw const beta).cast(),
            c as _,
            lc as _,
            d as _,
            ld as _,
            algo.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            room.0 as _,
            room.1,
            stream as _
        ))
    }
}
