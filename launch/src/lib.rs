//! How ranks that are processes are started, find one another, agree on what they run, learn of one
//! another's failures, and end together. Nothing here knows what a plan is.

pub mod control;
pub mod environment;
mod handshake;
pub mod key;
pub mod leash;
pub mod local;
pub mod rendezvous;
mod wire;
pub mod wires;
