//! Compiles the digits MLP for four ranks, and says before any of them runs what each holds and
//! sends in a step.
//!
//!     cargo run --release --example plan

use shardc::proof::sent;
use shardc::{Error, Options, compile};
use shardc_ir::programs::ProgramKind;
use std::path::Path;

/// Prints the plan.
///
/// # Errors
/// All that is wrong with the model or the spec.
pub fn main() -> Result<(), Error> {
    let spec = shardc_frontend::spec::load(Path::new("examples/digits/dp2-tp2.shard"))?;
    let options = Options { certify: true, ..Options::default() };
    let compiled = compile(Path::new("examples/digits/model.onnx"), &spec, &options)?;
    for (kind, plan) in compiled.plans.iter() {
        println!("{kind}: {} bytes on the fullest rank", plan.programs.fullest().arena_bytes);
    }
    for communications in sent(&compiled.proven, Some(ProgramKind::Train)) {
        println!("a rank takes part in {} kinds of messages in a step of training", communications.len());
    }
    Ok(())
}
