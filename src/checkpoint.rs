//! Checkpoints: all that training needs to go on, in folders that any plan of the same model reads.
//!
//! A checkpoint is a folder `step-00000100` with a file of safetensors for each rank,
//! `manifest.json` and `manifest.sha256`. State variables are whole arrays, cut into boxes: the
//! manifest says which box is in which tensor of which file, and the hash of each. Nothing in it
//! knows a mesh.
//!
//! What has the name of a checkpoint is whole: files are written in a folder of another name and
//! brought down to the disk; whoever wrote one reads it again; then it gets its name; and only then
//! the oldest one goes.
//!
//! | to | see |
//! |---|---|
//! | keep checkpoints while a job trains | [`crate::training::Saving`] |
//! | go on from one | [`crate::training::Options::resume`] |
//! | read one | [`read::Checkpoint`] |
//! | write one for the ranks of another plan | [`reshard::reshard`] |
//! | take the model's weights out of one | [`weights`] |
//!
//! ```no_run
//! use shardc::checkpoint::read::Checkpoint;
//!
//! let latest = Checkpoint::named("checkpoints".as_ref())?;
//! println!("after {} steps", latest.manifest.position.step);
//! for (name, state) in &latest.manifest.states {
//!     println!("{name}: {:?}, {} bytes", state.shape, latest.tensor(name)?.bytes.len());
//! }
//! # Ok::<_, shardc::Error>(())
//! ```

pub mod folder;
pub mod made;
pub mod manifest;
pub mod read;
pub mod reshard;
pub mod restore;
pub mod saver;
pub mod weights;
pub mod write;
