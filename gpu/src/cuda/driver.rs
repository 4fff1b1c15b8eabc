//! The calls of the CUDA driver. Handles are pointers of the driver, as numbers; it refuses those
//! that are none.
#![allow(unsafe_code, reason = "the library is one of C")]

use crate::device::{Description, Event, Function, Graph, Launch, Memory, Module, Stream};
use crate::pinned::Pinned;
use cudarc::driver::sys::{self, CUresult};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ffi::{CStr, CString, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};

/// The functions that are called.
pub const FUNCTIONS: [&str; 38] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuFuncSetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuLaunchKernel",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGetErrorString",
];

/// Shared memory that every kernel may take without asking.
const SHARED: u32 = 48 << 10;

/// Calls a function of the driver.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to what the function is documented to read and write, and handles
        // came from the driver.
        told(stringify!($function), unsafe { sys::$function($($argument),*) })
    }};
}

/// What a code says, in words.
fn told(function: &str, code: CUresult) -> Result<(), Reason> {
    let meaning = match code {
        CUresult::CUDA_SUCCESS => return Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "the GPU has no memory left".to_string(),
        CUresult::CUDA_ERROR_NO_DEVICE => "the driver finds no GPU".to_string(),
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => {
            "the GPU's memory has an error that it cannot correct; `nvidia-smi -q -d ECC` shows it, and the GPU may have to be \
             replaced"
                .to_string()
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "the kernels were assembled for another GPU".to_string(),
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => "a kernel or copy touched memory that is not its own".to_string(),
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => "another program has the GPU for itself".to_string(),
        _ => description(code),
    };
    Err(reason!("{meaning} ({code:?} in {function})"))
}

/// The driver's own words.
fn description(code: CUresult) -> String {
    let mut text = ptr::null();
    // SAFETY: the pointer is to one pointer; the text is the driver's and lives as long as it.
    unsafe {
        match sys::cuGetErrorString(code, &raw mut text) {
            CUresult::CUDA_SUCCESS if !text.is_null() => CStr::from_ptr(text).to_string_lossy().into_owned(),
            _ => "the driver fails".to_string(),
        }
    }
}

/// Starts the driver: its version (13000 for 13.0), and how many GPUs it has.
pub fn start() -> Result<(i32, u32), Reason> {
    let (mut version, mut count) = (0, 0);
    call!(cuDriverGetVersion(&raw mut version))?;
    call!(cuInit(0))?;
    call!(cuDeviceGetCount(&raw mut count))?;
    Ok((version, count.max(0) as u32))
}

/// The context of a GPU, which all users of it in this process share.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: usize,
}

impl Context {
    /// That of the GPU of a number.
    pub fn open(ordinal: u32) -> Result<(Context, Description), Reason> {
        let mut device = 0;
        call!(cuDeviceGet(&raw mut device, ordinal as i32))?;
        let mut name = [0; 256];
        call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device))?;
        // SAFETY: the driver ends the name with a zero, and the last byte is one in any case.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| {
            let mut value = 0;
            call!(cuDeviceGetAttribute(&raw mut value, which, device)).map(|()| value as u32)
        };
        let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let mut context = ptr::null_mut();
        call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        let description = Description { ordinal, name, arch: major * 10 + minor };
        Ok((Context { device, context: context as usize }, description))
    }

    /// Makes it the one of this thread.
    pub fn enter(&self) -> Result<(), Reason> {
        call!(cuCtxSetCurrent(self.context as sys::CUcontext))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // What cannot be given back ends with the process.
        let _ = call!(cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

pub fn memory() -> Result<Memory, Reason> {
    let (mut free, mut total) = (0, 0);
    call!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
    Ok(Memory { free: free as u64, total: total as u64 })
}

pub fn allocate(bytes: u64) -> Result<u64, Reason> {
    let mut address = 0;
    call!(cuMemAlloc_v2(&raw mut address, bytes as usize))?;
    Ok(address)
}

pub fn free(address: u64) -> Result<(), Reason> {
    call!(cuMemFree_v2(address))
}

pub fn allocate_pinned(bytes: usize) -> Result<Pinned, Reason> {
    let mut start: *mut c_void = ptr::null_mut();
    call!(cuMemHostAlloc(&raw mut start, bytes, 0))?;
    let start = NonNull::new(start.cast::<u8>()).ok_or("the driver gives no pinned memory")?;
    // SAFETY: the driver has just given so many bytes there.
    unsafe {
        start.as_ptr().write_bytes(0, bytes);
        Ok(Pinned::new(start, bytes))
    }
}

pub fn free_pinned(pinned: Pinned) -> Result<(), Reason> {
    call!(cuMemFreeHost(pinned.address(&(0..0))?.cast()))
}

pub fn load(cubin: &[u8]) -> Result<Module, Reason> {
    let mut module = ptr::null_mut();
    call!(cuModuleLoadData(&raw mut module, cubin.as_ptr().cast()))?;
    Ok(Module(module as usize))
}

pub fn unload(module: Module) -> Result<(), Reason> {
    call!(cuModuleUnload(module.0 as sys::CUmodule))
}

pub fn function(module: Module, entry: &str, shared: u32) -> Result<Function, Reason> {
    let name = CString::new(entry).map_err(|_| reason!("`{entry}` is no name of a kernel"))?;
    let mut function = ptr::null_mut();
    call!(cuModuleGetFunction(&raw mut function, module.0 as sys::CUmodule, name.as_ptr()))?;
    if shared > SHARED {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(cuFuncSetAttribute(function, attribute, shared as i32))?;
    }
    Ok(Function(function as usize))
}

pub fn stream() -> Result<Stream, Reason> {
    let mut stream = ptr::null_mut();
    call!(cuStreamCreate(&raw mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
    Ok(Stream(stream as usize))
}

pub fn destroy_stream(stream: Stream) -> Result<(), Reason> {
    call!(cuStreamDestroy_v2(stream.0 as sys::CUstream))
}

pub fn event() -> Result<Event, Reason> {
    let mut event = ptr::null_mut();
    call!(cuEventCreate(&raw mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))?;
    Ok(Event(event as usize))
}

pub fn destroy_event(event: Event) -> Result<(), Reason> {
    call!(cuEventDestroy_v2(event.0 as sys::CUevent))
}

pub fn record(event: Event, stream: Stream) -> Result<(), Reason> {
    call!(cuEventRecord(event.0 as sys::CUevent, stream.0 as sys::CUstream))
}

pub fn wait(stream: Stream, event: Event) -> Result<(), Reason> {
    call!(cuStreamWaitEvent(stream.0 as sys::CUstream, event.0 as sys::CUevent, 0))
}

pub fn has_come(event: Event) -> Result<bool, Reason> {
    // SAFETY: the event came from the driver.
    match unsafe { sys::cuEventQuery(event.0 as sys::CUevent) } {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => told("cuEventQuery", code).map(|()| true),
    }
}

pub fn synchronize(stream: Stream) -> Result<(), Reason> {
    call!(cuStreamSynchronize(stream.0 as sys::CUstream))
}

/// The call that waits by itself does so until the bytes are staged, and not until they are there,
/// and it is ordered with no stream of ours.
pub fn write(to: u64, bytes: &[u8], stream: Stream) -> Result<(), Reason> {
    call!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.0 as sys::CUstream))?;
    synchronize(stream)
}

pub fn read(from: u64, bytes: &mut [u8], stream: Stream) -> Result<(), Reason> {
    call!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), stream.0 as sys::CUstream))?;
    synchronize(stream)
}

pub fn copy_in(to: u64, from: &Pinned, range: Range<usize>, stream: Stream) -> Result<(), Reason> {
    let source = from.address(&range)?.cast_const().cast();
    call!(cuMemcpyHtoDAsync_v2(to, source, range.len(), stream.0 as sys::CUstream))
}

pub fn copy_out(to: &Pinned, range: Range<usize>, from: u64, stream: Stream) -> Result<(), Reason> {
    let destination = to.address(&range)?.cast();
    call!(cuMemcpyDtoHAsync_v2(destination, from, range.len(), stream.0 as sys::CUstream))
}

pub fn copy(to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Reason> {
    call!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream.0 as sys::CUstream))
}

pub fn clear(to: u64, bytes: u64, stream: Stream) -> Result<(), Reason> {
    call!(cuMemsetD8Async(to, 0, bytes as usize, stream.0 as sys::CUstream))
}

pub fn launch(launch: &Launch, stream: Stream) -> Result<(), Reason> {
    let Launch { function, grid: [x, y, z], block, shared, parameters } = launch;
    let mut pointers: Vec<*mut c_void> = parameters.iter().map(|value| ptr::from_ref(value).cast_mut().cast()).collect();
    let stream = stream.0 as sys::CUstream;
    call!(cuLaunchKernel(
        function.0 as sys::CUfunction,
        *x,
        *y,
        *z,
        *block,
        1,
        1,
        *shared,
        stream,
        pointers.as_mut_ptr(),
        ptr::null_mut()
    ))
}

pub fn begin_capture(stream: Stream) -> Result<(), Reason> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    call!(cuStreamBeginCapture_v2(stream.0 as sys::CUstream, mode))
}

pub fn end_capture(stream: Stream) -> Result<Graph, Reason> {
    let mut graph = ptr::null_mut();
    call!(cuStreamEndCapture(stream.0 as sys::CUstream, &raw mut graph))?;
    let mut ready = ptr::null_mut();
    let made = call!(cuGraphInstantiateWithFlags(&raw mut ready, graph, 0));
    call!(cuGraphDestroy(graph))?;
    made.map(|()| Graph(ready as usize))
}

pub fn launch_graph(graph: Graph, stream: Stream) -> Result<(), Reason> {
    call!(cuGraphLaunch(graph.0 as sys::CUgraphExec, stream.0 as sys::CUstream))
}

pub fn destroy_graph(graph: Graph) -> Result<(), Reason> {
    call!(cuGraphExecDestroy(graph.0 as sys::CUgraphExec))
}
