//! Trains the digits MLP over four ranks step by step, and exports it.
//!
//!     cargo run --release --example train

use shardc::training::Options;
use shardc::{Error, Job};

/// Trains and exports.
///
/// # Errors
/// All that is wrong with the files; a machine that fails.
pub fn main() -> Result<(), Error> {
    let job = Job::open("examples/digits/model.onnx", "examples/digits/dp2-tp2.shard")?;
    println!("{} ranks", job.training()?.mesh().world_size());
    let options = Options { shuffle: true, steps: Some(100), ..Options::over("examples/digits/train.npz") };
    let mut training = job.train(options)?;
    while let Some(step) = training.step()? {
        if step.metrics.step.is_multiple_of(20) {
            println!("step {:>3}: loss {:.4}", step.metrics.step, step.metrics.loss.unwrap_or(f64::NAN));
        }
    }
    training.finish()?.export("target/digits.onnx")?;
    Ok(())
}
