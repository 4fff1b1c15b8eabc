//! The facade: compiles a model and a spec to plans, and the command line around it.

pub mod report;
