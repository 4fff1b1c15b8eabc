//! The functions of NCCL.
#![allow(non_snake_case, reason = "names are NVIDIA's")]

use super::{functions, put};
use crate::codes::Answer;
use crate::nccl::{self, CUDA, Call, Dtype, INTERNAL, INVALID_ARGUMENT, Kind, Op};
use crate::thread;
use crate::world::lock;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version: 2.99.0.
const VERSION: c_int = 29_900;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

/// The first members of `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// What a configuration says of blocking.
///
/// # Safety
/// The pointer is null, or to a configuration.
unsafe fn blocking(config: *const Config) -> Result<Option<bool>, u32> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: as above.
    let config = unsafe { config.read_unaligned() };
    if config.magic != 0xcafe_beef || config.size < size_of::<Config>() {
        return lock().refuse(INVALID_ARGUMENT, "nccl: a configuration that was not initialised".into());
    }
    // What is not said is `INT_MIN`.
    Ok((config.blocking != c_int::MIN).then_some(config.blocking != 0))
}

fn index(rank: c_int) -> Result<usize, u32> {
    usize::try_from(rank).map_err(|_| INVALID_ARGUMENT)
}

/// Makes this rank's part of a communicator.
fn join(comm: *mut u64, size: c_int, id: UniqueId, rank: c_int, is_blocking: bool) -> Answer {
    let device = thread::device().map_err(|_| CUDA)?;
    let mut world = lock();
    world.allowed("a communicator is made").map_err(|_| CUDA)?;
    let clique = id.0.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect::<String>();
    let new = world.join(&clique, index(size)?, index(rank)?, device, is_blocking)?;
    // SAFETY: the caller gave a place for one.
    unsafe { put(comm, new, INVALID_ARGUMENT)? };
    if nccl::in_group() {
        nccl::group_join(new);
        return Ok(());
    }
    if !is_blocking {
        return Err(nccl::IN_PROGRESS);
    }
    nccl::made(world, &[new]).1
}

#[allow(clippy::too_many_arguments, reason = "as NCCL has them")]
fn call(
    from: *const c_void,
    to: *const c_void,
    count: usize,
    dtype: c_uint,
    op: Option<c_uint>,
    kind: Kind,
    comm: u64,
    stream: u64,
) -> Answer {
    let (dtype, op) = (Dtype::of(dtype)?, op.map(Op::of).transpose()?);
    let mut world = lock();
    let stream = world.resolve(stream).map_err(|_| CUDA)?;
    if count == 0 {
        return Ok(());
    }
    let call = Call { comm, kind, from: from as u64, to: to as u64, count: count as u64, dtype, op, number: 0 };
    world.call(stream, call)
}

functions! { INTERNAL;
    ncclGetVersion(version: *mut c_int) {
        put(version, VERSION, INVALID_ARGUMENT)
    }
    ncclGetUniqueId(id: *mut UniqueId) {
        let mut bytes = [0; 128];
        let name = nccl::unique_id()?;
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        put(id, UniqueId(bytes), INVALID_ARGUMENT)
    }
    ncclCommInitRank(comm: *mut u64, size: c_int, id: UniqueId, rank: c_int) {
        join(comm, size, id, rank, true)
    }
    ncclCommInitRankConfig(comm: *mut u64, size: c_int, id: UniqueId, rank: c_int, config: *const Config) {
        join(comm, size, id, rank, blocking(config)?.unwrap_or(true))
    }
    ncclCommSplit(comm: u64, color: c_int, key: c_int, new: *mut u64, config: *const Config) {
        put(new, 0, INVALID_ARGUMENT)?;
        let is_blocking = blocking(config)?;
        let mut world = lock();
        world.allowed("a communicator is split").map_err(|_| CUDA)?;
        // `NCCL_SPLIT_NOCOLOR` is -1.
        let made = world.split(comm, (color >= 0).then_some(color), key, is_blocking, new as u64)?;
        nccl::has_split(world, comm, made)
    }
    ncclCommGetAsyncError(comm: u64, error: *mut u32) {
        let mut world = crate::world::pass(lock());
        let state = world.state_of(comm)?;
        put(error, state, INVALID_ARGUMENT)
    }
    ncclCommCount(comm: u64, count: *mut c_int) {
        let size = lock().nccl.comms.get(&comm).ok_or(INVALID_ARGUMENT)?.size;
        put(count, size as c_int, INVALID_ARGUMENT)
    }
    ncclCommUserRank(comm: u64, rank: *mut c_int) {
        let own = lock().nccl.comms.get(&comm).ok_or(INVALID_ARGUMENT)?.member.rank;
        put(rank, own as c_int, INVALID_ARGUMENT)
    }
    ncclCommCuDevice(comm: u64, device: *mut c_int) {
        let own = lock().nccl.comms.get(&comm).ok_or(INVALID_ARGUMENT)?.device;
        put(device, own as c_int, INVALID_ARGUMENT)
    }
    ncclCommAbort(comm: u64) {
        lock().abort(comm)
    }
    ncclCommFinalize(comm: u64) {
        let mut world = lock();
        world.finalize(comm)?;
        nccl::flushed(world, comm)
    }
    ncclCommDestroy(comm: u64) {
        nccl::destroyed(lock(), comm)
    }
    ncclGroupStart() {
        nccl::group_start();
        Ok(())
    }
    ncclGroupEnd() {
        nccl::group_end(lock()).1
    }
    ncclAllReduce(from: *const c_void, to: *mut c_void, count: usize, dtype: c_uint, op: c_uint, comm: u64, stream: u64) {
        call(from, to, count, dtype, Some(op), Kind::AllReduce, comm, stream)
    }
    ncclAllGather(from: *const c_void, to: *mut c_void, count: usize, dtype: c_uint, comm: u64, stream: u64) {
        call(from, to, count, dtype, None, Kind::AllGather, comm, stream)
    }
    ncclReduceScatter(from: *const c_void, to: *mut c_void, count: usize, dtype: c_uint, op: c_uint, comm: u64, stream: u64) {
        call(from, to, count, dtype, Some(op), Kind::ReduceScatter, comm, stream)
    }
    ncclBroadcast(from: *const c_void, to: *mut c_void, count: usize, dtype: c_uint, root: c_int, comm: u64, stream: u64) {
        call(from, to, count, dtype, None, Kind::Broadcast(index(root)?), comm, stream)
    }
    ncclSend(from: *const c_void, count: usize, dtype: c_uint, peer: c_int, comm: u64, stream: u64) {
        call(from, std::ptr::null(), count, dtype, None, Kind::Send(index(peer)?), comm, stream)
    }
    ncclRecv(to: *mut c_void, count: usize, dtype: c_uint, peer: c_int, comm: u64, stream: u64) {
        call(std::ptr::null(), to, count, dtype, None, Kind::Recv(index(peer)?), comm, stream)
    }
}

/// What a code means.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// What is known of the last error.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: u64) -> *const c_char {
    c"see the reports of the fake".as_ptr()
}
