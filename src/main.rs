//! The `shardc` program.

mod heap;

use heap::Heap;
use std::process::ExitCode;

#[global_allocator]
static HEAP: Heap = Heap;

fn main() -> ExitCode {
    heap::end_without_stacks();
    shardc::cli::main()
}
