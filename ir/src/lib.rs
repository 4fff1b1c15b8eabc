//! What a program is: types, mesh, shardings, ops and their rules, the graph, plans, their text
//! forms and verifiers.

pub mod builder;
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
pub mod mesh;
pub mod names;
pub mod ops;
pub mod pattern;
pub mod philox;
pub mod plan;
pub mod plan_file;
pub mod position;
pub mod programs;
pub mod reduce_kind;
pub mod scalar;
pub mod sharding;
pub mod spec;
pub mod text;
pub mod train;
pub mod types;
pub mod verify;
pub mod verify_plan;
