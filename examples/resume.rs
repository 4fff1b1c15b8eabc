//! Trains the digits MLP on one rank, stops, goes on over four ranks from the checkpoint, and
//! exports what came of it.
//!
//!     cargo run --release --example resume

use shardc::checkpoint::read::Checkpoint;
use shardc::training::{Options, Saving};
use shardc::{Error, Job};
use std::fs;

const FOLDER: &str = "target/resume";
const MODEL: &str = "examples/digits/model.onnx";

/// Trains twice and exports.
pub fn main() -> Result<(), Error> {
    // Those of an earlier run.
    let _ = fs::remove_dir_all(FOLDER);
    let one = Job::open(MODEL, "examples/digits/one.shard")?;
    let first = Options { steps: Some(100), saving: Some(Saving::to(FOLDER)), ..data() };
    let trained = one.train(first)?.run(|_| {})?;
    println!("one rank stops after {} steps", trained.summary.steps);

    let four = Job::open(MODEL, "examples/digits/dp2-tp2.shard")?;
    let resume = Checkpoint::find(FOLDER.as_ref())?;
    let second = Options { steps: Some(200), resume, saving: Some(Saving::to(FOLDER)), ..data() };
    let trained = four.train(second)?.run(|step| {
        if step.metrics.step.is_multiple_of(25) {
            println!("step {}: loss {:.4}", step.metrics.step, step.metrics.loss.unwrap_or(f64::NAN));
        }
    })?;
    trained.export("target/resumed.onnx")?;
    println!("four ranks went on for {} steps", trained.summary.steps);
    Ok(())
}

fn data() -> Options {
    Options { shuffle: true, ..Options::over("examples/digits/train.npz") }
}
