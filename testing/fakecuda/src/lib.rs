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
//! | name | what |
//! |---|---|
//! | `SEED` | the order in which work runs |
//! | `DEVICES`, `MEMORY`, `ARCH` | how many devices (2), bytes of each (1 GiB), architecture (90) |
//! | `DRIVER_VERSION` | the driver's version (13000) |
//! | `FAULT` | `what:n:code,...`: the n-th call of `what` fails; `what` is the name of a function, or `alloc`, `host_alloc`, `module`, `graph`, `matmul`, `nccl_init` (the call fails), `launch`, `copy`, `memset` (the operation fails when it happens), `nccl` (the communicator has that asynchronous error) |
//! | `FIRST_ALGO` | `fails`: cuBLASLt's first candidate is not supported when it is launched |
//! | `PATIENCE` | milliseconds without any progress until "nothing moves" (10000) |
//! | `FOLDER` | where kernels are built for the host |
//! | `TRACE` | a file for the [`trace`] |
//!
//! `fake_reset(seed)` begins a new world, `fake_finish()` does all that can be done and says whether
//! something is left (1), `fake_reports(to, room)` and `fake_trace(to, room)` give
//! texts and their length, `fake_set(name, value)` sets a setting. What launches gave is kept over
//! worlds, by all bytes that they depend on.

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
mod random;
mod run;
mod settings;
mod stream;
mod thread;
pub mod trace;
mod work;
mod world;
