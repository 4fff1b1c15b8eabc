//! Calls on files that fail when a test wants them to: a library for `LD_PRELOAD`, on Linux.
//!
//! It stands before the functions of the C library by which files are written, and counts the calls
//! on files below one folder. The settings are variables of the environment; without `FOLDER`, and
//! for all other files, every call goes through. Each name begins with `FAULTY_`:
//!
//! * `FOLDER`: the folder, without symbolic links in its path.
//! * `AT=N`: the N-th call, from 1, has the fault.
//! * `FOREVER=1`: so have all calls behind it.
//! * `HOW`: the fault, one of the names of [`settings::How`].
//! * `READS=1`: what only reads is counted too.
//! * `COUNT=FILE`: the number of calls so far, as 8 bytes, little-endian. All processes that have
//!   it count together, those that are killed too; without it each counts for itself.
//! * `TRACE=FILE`: gets a line for each call with its number, name and path.
//!
//! | how | what happens |
//! |---|---|
//! | `enospc`, `eio` | the call does nothing and fails with that code |
//! | `eintr` | the same where a call may be interrupted; with `FOREVER` every second one passes |
//! | `short` | a call that moves bytes moves the first half of them and says so |
//! | `kill` | the process dies by SIGKILL before the call |
//! | `kill-within` | it dies once half of the bytes are moved |
//! | `kill-after` | it dies behind the call |
//!
//! A killed process loses nothing that it has written: what a loss of power does to writes that
//! were not synced is not shown. The file of a descriptor is asked of `/proc`, so nothing is
//! remembered of descriptors that are closed, doubled or handed on. The functions allocate nothing,
//! take no lock and call one another nowhere.

mod c;
mod hooks;
pub mod path;
pub mod settings;
