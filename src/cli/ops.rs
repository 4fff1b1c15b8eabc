//! `shardc ops`: the table of all ops.

use super::failure::Failure;
use super::output::print;
use shardc_ir::ops::table::{table, table_text};

/// Prints every op's letters, linearity, gradient and kernel form.
pub fn run() -> Result<(), Failure> {
    print(&table_text(&table()))
}
