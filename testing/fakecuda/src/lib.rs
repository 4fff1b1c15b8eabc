//! CUDA's driver, NVRTC, NCCL and cuBLASLt in software, for tests: one library under all their
//! names, so that they share one world. Nothing ships it.
//!
//! A program that loads it through links ([`folder`]) runs as on a machine with GPUs, on none. Work
//! runs as late as allowed, in an order drawn from `FAKE_CUDA_SEED`; vector clocks say what is
//! ordered and what is a race. What is wrong is reported on standard error, and becomes the error
//! that a real device would give. The host's own accesses to pinned memory cannot be seen: copies
//! take its bytes when they happen, so too early a change shows in results.
//!
//! Settings, as variables of the environment or through `fake_set`, each behind `FAKE_CUDA_`:
//!
//! * `SEED`: the order in which work runs.
//! * `DEVICES`, `MEMORY`, `ARCH`, `DRIVER_VERSION`: how many devices (2), bytes of each (1 GiB),
//!   the architecture (90) and the driver's version (13000).
//! * `FAULT=what:n:code,...`: the n-th `what` fails with the code of its library. `what` is the
//!   name of a function, or `alloc`, `host_alloc`, `module`, `graph`, `matmul`, `nccl_init`, whose
//!   calls fail; `launch`, `copy`, `memset`, which fail when they happen; or `nccl`, whose
//!   communicator has that asynchronous error.
//! * `FIRST_ALGO=fails`: cuBLASLt's first candidate is not supported when it is launched.
//! * `NCCL=tcp` or `tcp:HOST`: ranks may be other processes. The identity of a communicator holds
//!   where they meet, a port of that address (127.0.0.1) of the process that asked for it.
//! * `PATIENCE`: milliseconds without any progress until a host that waits is told that nothing
//!   moves (10000); one that asks again and again has eight times as long.
//! * `FOLDER`: where kernels are built for the host.
//! * `TRACE`: a file for the [`trace`].
//!
//! `fake_reset(seed)` begins a new world, `fake_finish()` does all that can be done and says
//! whether something is left (1), `fake_set(name, value)` sets a setting; `fake_reports(to, room)`
//! and `fake_trace(to, room)` give texts and their length. What launches gave is kept over worlds,
//! by all bytes that they depend on.
//!
//! What a thread waits for by a call of the driver is taken to be known to all threads, since an
//! executor may hand a device on; what it only asked for is known to itself. An operand of a kernel
//! counts as touched from its first byte to its last.

mod c;
mod capture;
mod clock;
mod codes;
pub mod control;
pub mod folder;
mod kernel;
mod matmul;
mod memory;
mod nccl;
mod nvrtc;
mod pages;
pub mod parts;
mod random;
mod run;
mod settings;
mod stream;
mod thread;
pub mod trace;
mod work;
mod world;
