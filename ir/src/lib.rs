//! The language of programs: types, mesh, shardings, ops and their rules, the graph, plans, their
//! text forms and verifiers.
//!
//! | what | where |
//! |---|---|
//! | the graph of a job, and how one is built | [`graph::Graph`], [`builder::Builder`] |
//! | everything that is known of an op | [`ops::Rules`], one family of ops a file |
//! | how dimensions correspond; who holds what | [`letters`], [`sharding`], [`mesh`] |
//! | what a job asks for, as the spec says it | [`spec::Spec`] |
//! | buffers, tasks, steps and their kernels | [`plan::Program`], [`kernel::Kernel`] |
//! | which rank runs which program | [`plan::set::PlanSet`] |
//! | which step waits for which of another queue | [`waits`] |
//! | from an op on a rank's part to kernels | [`mod@lower`] |
//! | texts of graphs, files of plans, listings | [`text`], [`plan_file`], [`packed`], [`listing`] |
//! | what must hold of a graph, and of a plan beside it | [`mod@verify`], [`verify_plan`] |
//! | what a graph computes, by a naive evaluator | [`interp`] |
//!
//! A graph in text, read and evaluated:
//!
//! ```
//! use shardc_ir::interp::{self, Feed};
//! use shardc_ir::types::{Tensor, Type};
//! use shardc_ir::{dtype::DType, text};
//!
//! let graph = text::parse(
//!     "graph @double  phase imported
//!   %x = input \"x\"   : f64[3]
//!   %y = add %x, %x    : f64[3]
//!   output \"y\" %y
//! ",
//! )?;
//! let mut feed = Feed::default();
//! feed.inputs.insert("x".into(), Tensor::from_f64(Type::new(DType::F64, [3]), &[1.0, 2.0, 3.0]));
//! assert_eq!(interp::outputs(&graph, &feed)?["y"].to_f64(), [2.0, 4.0, 6.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod builder;
pub mod clock;
pub mod columns;
pub mod diagnostic;
pub mod dtype;
pub mod files;
pub mod graph;
pub mod interp;
pub mod kernel;
pub mod letters;
pub mod limits;
pub mod listing;
pub mod lower;
pub mod memory;
pub mod mesh;
pub mod names;
pub mod ops;
pub mod packed;
pub mod pattern;
pub mod philox;
pub mod plan;
pub mod plan_file;
pub mod position;
pub mod programs;
pub mod reason;
pub mod reduce_kind;
pub mod region;
pub mod scalar;
pub mod sharding;
pub mod spec;
pub mod text;
pub mod train;
pub mod types;
pub mod verify;
pub mod verify_plan;
pub mod waits;
