//! How long a step of a plan takes on a cluster: each launch by what it computes and moves, each
//! call by the links between its members, and all of them by the clock.
//!
//! A [`cluster::Cluster`] is a file of numbers. [`run::step`] runs a step on it, [`totals::Totals`]
//! says where its time goes.
//!
//! ```
//! use shardc_simulator::cluster::Cluster;
//!
//! let cluster = Cluster::read(
//!     r#"
//!     name = "two of something"
//!     [[device]]
//!     overlap = true
//!     peak = { f32 = 1e12 }
//!     [[device.kernel]]
//!     start = 1e-6
//!     flops = 5e11
//!     bytes = 1e11
//!     [[device.link]]
//!     name = "a cable"
//!     ranks = 2
//!     hop = 1e-6
//!     bandwidth = 1e10
//!     "#,
//! );
//! assert!(cluster.unwrap().device(3).is_err());
//! ```

pub mod calls;
pub mod cluster;
pub mod kernels;
pub mod model;
pub mod run;
pub mod totals;
