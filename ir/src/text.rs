//! The text form of a graph: [`print()`] writes it, [`parse()`] reads it back, and printing what
//! was parsed gives the same text.
//!
//! ```text
//! graph @mlp  phase explicit
//!   mesh dp=2 tp=2 time=1
//!   state "w1" : f32[4, 16]{-, tp}  parameter init=model
//!   %x  = input "x"                     : f32[8, 4]{dp, -}
//!   %w1 = state "w1"                    : f32[4, 16]{-, tp}
//!   %h  = contract "bk,kn->bn" %x, %w1  : f32[8, 16]{dp, tp} @mlp.fc1
//!   %a  = gelu_tanh %h                  : f32[8, 16]{dp, tp} @mlp.act     // ab->ab
//!   %q  = all_reduce axes=[tp] kind=sum %p : f32[8, 4]{dp, -} reason="for add" line=7
//!   output "y" %q
//!   update "w1" <- %v9
//!   gradient "w1" = %g3
//! ```
//!
//! A line is one node: results, op, attributes, operands, types with shardings (and the lines of
//! the spec that asked for them: `asked(tp: 7)`), and where it comes from (`@scope`, `backward` or
//! `update`, `reason=`, `line=`). A node of several results has its types in parentheses. The mesh
//! is left out where there is one rank and one micro-batch. Text after `//` is made by the printer
//! (the letters of the op) and skipped by the parser.

mod axes;
mod constant;
mod cursor;
mod elsewhere;
mod parse;
mod print;
mod sharding;
mod value;

pub use elsewhere::Elsewhere;
pub use parse::{FILLED, parse, parse_beside};
pub use print::{node_text, op_text, operation, operation_with_numbers, print, print_beside};

use std::fmt;

/// Why a text is no graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// The line, from 1.
    pub line: usize,
    /// The error, in words.
    pub message: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for TextError {}

/// An attribute that an op shows first, without its key.
fn positional(op: &str) -> Option<&'static str> {
    match op {
        "contract" => Some("spec"),
        "host" => Some("scalar"),
        "cast" => Some("dtype"),
        _ => None,
    }
}
