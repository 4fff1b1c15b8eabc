//! Trains the digits MLP until validation gets no better, and evaluates what was trained.
//!
//!     cargo run --release --example validate

use shardc::checkpoint::saver::Keep;
use shardc::training::{Options, Saving, Validating};
use shardc::{Error, Job, Machine};
use std::fs;

const FOLDER: &str = "target/best";

/// Trains, exports and evaluates.
///
/// # Errors
/// All that is wrong with the files; a machine that fails.
pub fn main() -> Result<(), Error> {
    // Those of an earlier run.
    let _ = fs::remove_dir_all(FOLDER);
    let test = "examples/digits/test.npz";
    let job = Job::open("examples/digits/model.onnx", "examples/digits/one.shard")?;
    let options = Options {
        shuffle: true,
        epochs: Some(8),
        validating: Some(Validating { every: Some(20), patience: Some(3), ..Validating::with(test) }),
        saving: Some(Saving { keep: Keep { latest: 1, best: true }, ..Saving::to(FOLDER) }),
        ..Options::over("examples/digits/train.npz")
    };
    let trained = job.train(options)?.run(|step| {
        if let Some(validated) = step.validated {
            println!("after step {}: {:?}", step.metrics.step + 1, validated.score);
        }
    })?;
    trained.export("target/validated.onnx")?;

    let trained = Job::open_to_evaluate("target/validated.onnx", "examples/digits/one.shard")?;
    let evaluated = trained.evaluate(&Machine::default(), &[test.into()], None, false)?;
    println!("{} samples: {:?}", evaluated.samples, evaluated.score);
    Ok(())
}
