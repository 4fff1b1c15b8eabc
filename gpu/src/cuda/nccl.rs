//! The calls of NCCL. Communicators do not block: a call that takes its time says so, and the host
//! asks for the state.
#![allow(unsafe_code, reason = "the library is one of C")]

use crate::device::{Call, Comm, CommId, CommState, GoOn, Message, Stream};
use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::CollectiveKind;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::thread;
use std::time::Duration;

/// The functions that are called.
pub const FUNCTIONS: [&str; 15] = [
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommSplit",
    "ncclCommGetAsyncError",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclAllReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclSend",
    "ncclRecv",
    "ncclGetLastError",
];

/// What stands for the library's own choice (`NCCL_CONFIG_UNDEF_INT`).
const UNDEFINED: c_int = c_int::MIN;

/// The first word of a configuration (`NCCL_CONFIG_INITIALIZER`).
const MAGIC: u32 = 0xcafe_beef;

/// The version whose fields a configuration has, 2.22.
const CONFIGURED: u32 = 22_200;

/// What says that a rank is in no part (`NCCL_SPLIT_NOCOLOR`).
const NO_COLOR: c_int = -1;

/// Between two questions whether a communicator is ready.
const PAUSE: Duration = Duration::from_millis(1);

/// Calls a function of NCCL.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: pointers are to what the function is documented to read and write, and handles
        // came from NCCL and the driver.
        told(stringify!($function), unsafe { sys::$function($($argument),*) })
    }};
}

/// What a code says. A call that is not done yet is no failure: the state tells its end.
fn told(function: &str, code: ncclResult_t) -> Result<(), Reason> {
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        code => Err(reason!("NCCL fails: {} ({function})", words(code))),
    }
}

/// What a code means, with what the library has said last.
fn words(code: ncclResult_t) -> String {
    let meaning = match code {
        ncclResult_t::ncclUnhandledCudaError => "a call of the driver failed",
        ncclResult_t::ncclSystemError => "a call of the system failed, so perhaps the network",
        ncclResult_t::ncclInternalError => "an error of its own",
        ncclResult_t::ncclInvalidArgument => "a wrong argument",
        ncclResult_t::ncclInvalidUsage => "a wrong use",
        ncclResult_t::ncclRemoteError => "another rank ended, or the network failed",
        _ => "no known error",
    };
    // SAFETY: without a communicator it gives a text of its own, or null.
    let last = unsafe {
        let text = sys::ncclGetLastError(ptr::null_mut());
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().trim().to_string() }
    };
    let said = if last.is_empty() { String::new() } else { format!(": {last}") };
    format!("{meaning} ({code:?}{said})")
}

/// The version, 22803 for 2.28.3.
pub fn version() -> Result<i32, Reason> {
    let mut version = 0;
    call!(ncclGetVersion(&raw mut version))?;
    Ok(version)
}

pub fn id() -> Result<CommId, Reason> {
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    call!(ncclGetUniqueId(&raw mut id))?;
    Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]))
}

fn config() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: MAGIC,
        version: CONFIGURED,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
    }
}

pub fn join(id: &CommId, ranks: u32, rank: u32, go_on: GoOn<'_>) -> Result<Comm, Reason> {
    let id = sys::ncclUniqueId { internal: id.map(|byte| byte as _) };
    let (slot, mut config) = (new_slot(), config());
    call!(ncclCommInitRankConfig(slot, ranks as c_int, id, rank as c_int, &raw mut config))?;
    // SAFETY: the slot lives, and this call has written it before it came back.
    let comm = Comm(unsafe { slot.read_volatile() } as usize);
    settle(comm, go_on)?;
    Ok(taken(slot))
}

pub fn split(comm: Comm, color: Option<u32>, key: u32, go_on: GoOn<'_>) -> Result<Option<Comm>, Reason> {
    let (slot, mut config) = (new_slot(), config());
    let own = color.map_or(NO_COLOR, |color| color as c_int);
    call!(ncclCommSplit(comm.0 as sys::ncclComm_t, own, key as c_int, slot, &raw mut config))?;
    settle(comm, go_on)?;
    let part = taken(slot);
    if color.is_none() {
        return Ok(None);
    }
    settle(part, go_on)?;
    Ok(Some(part))
}

/// Where NCCL writes a communicator, which it may do after its call has come back: so it is given
/// back only once the communicator is ready.
fn new_slot() -> *mut sys::ncclComm_t {
    Box::into_raw(Box::new(ptr::null_mut()))
}

/// What was written to a slot.
fn taken(slot: *mut sys::ncclComm_t) -> Comm {
    // SAFETY: the slot is of `new_slot`, and NCCL, which has made the communicator ready, has done
    // with it.
    Comm(*unsafe { Box::from_raw(slot) } as usize)
}

/// Waits until a communicator is ready.
fn settle(comm: Comm, go_on: GoOn<'_>) -> Result<(), Reason> {
    loop {
        match state(comm)? {
            CommState::Ready => return Ok(()),
            CommState::Failed(why) => return Err(reason!("NCCL fails: {why}")),
            CommState::InProgress => go_on()?,
        }
        thread::sleep(PAUSE);
    }
}

pub fn state(comm: Comm) -> Result<CommState, Reason> {
    let mut code = ncclResult_t::ncclSuccess;
    call!(ncclCommGetAsyncError(comm.0 as sys::ncclComm_t, &raw mut code))?;
    Ok(match code {
        ncclResult_t::ncclSuccess => CommState::Ready,
        ncclResult_t::ncclInProgress => CommState::InProgress,
        code => CommState::Failed(words(code)),
    })
}

pub fn begin_group() -> Result<(), Reason> {
    call!(ncclGroupStart())
}

pub fn end_group() -> Result<(), Reason> {
    call!(ncclGroupEnd())
}

pub fn call(call: &Call, comm: Comm, stream: Stream) -> Result<(), Reason> {
    let (from, to, count) = (call.from as *const _, call.to as *mut _, call.count as usize);
    let (dtype, op) = (data(call.dtype), operation(call.op, call.dtype));
    let (comm, stream) = (comm.0 as sys::ncclComm_t, stream.0 as sys::cudaStream_t);
    match call.kind {
        CollectiveKind::AllReduce => call!(ncclAllReduce(from, to, count, dtype, op, comm, stream)),
        CollectiveKind::AllGather => call!(ncclAllGather(from, to, count, dtype, comm, stream)),
        CollectiveKind::ReduceScatter => call!(ncclReduceScatter(from, to, count, dtype, op, comm, stream)),
        CollectiveKind::AllToAll => Err("NCCL has no all-to-all".into()),
    }
}

pub fn exchange(message: &Message, comm: Comm, stream: Stream) -> Result<(), Reason> {
    let Message { sends, peer, at, bytes } = *message;
    let (comm, stream, bytes) = (comm.0 as sys::ncclComm_t, stream.0 as sys::cudaStream_t, bytes as usize);
    if sends {
        call!(ncclSend(at as *const _, bytes, ncclDataType_t::ncclUint8, peer as c_int, comm, stream))
    } else {
        call!(ncclRecv(at as *mut _, bytes, ncclDataType_t::ncclUint8, peer as c_int, comm, stream))
    }
}

pub fn leave(comm: Comm) -> Result<(), Reason> {
    call!(ncclCommDestroy(comm.0 as sys::ncclComm_t))
}

pub fn abort(comm: Comm) -> Result<(), Reason> {
    call!(ncclCommAbort(comm.0 as sys::ncclComm_t))
}

fn data(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::Bool => ncclDataType_t::ncclUint8,
    }
}

/// For truth values a sum is an or.
fn operation(op: ReduceKind, dtype: DType) -> ncclRedOp_t {
    match op {
        ReduceKind::Sum if dtype == DType::Bool => ncclRedOp_t::ncclMax,
        ReduceKind::Sum => ncclRedOp_t::ncclSum,
        ReduceKind::Max => ncclRedOp_t::ncclMax,
        ReduceKind::Min => ncclRedOp_t::ncclMin,
    }
}
