//! The `shardc` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    shardc::cli::main()
}
