//! What a program is: types, mesh, shardings, ops and their rules, the graph, plans, their text forms and verifiers.

pub mod diagnostic;
pub mod dtype;
pub mod kernel;
pub mod mesh;
pub mod names;
pub mod plan;
pub mod scalar;
pub mod sharding;
pub mod spec;
pub mod train;
