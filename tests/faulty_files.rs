//! Files that fail while a command writes: the one of before stays, or the new one is whole, and
//! one message names the file and the cause.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "support/faulty.rs"]
mod faulty;
mod support;

use faulty::{Fault, Faulty};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Ran, command, example, folder, ran};

const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1\n";

/// A training of one step that is exported to `out/t.onnx`.
fn training(here: &Path) -> Command {
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    command(here, &["train", &model, "--spec", "job.shard", "--data", &data, "--steps", "1", "--export", "out/t.onnx"])
}

fn train(here: &Path, faulty: &Faulty, fault: Option<Fault<'_>>) -> Ran {
    let mut command = training(here);
    faulty.apply(&mut command, fault);
    ran(command.output().unwrap(), Default::default())
}

#[test]
fn an_export_is_the_old_one_or_the_new_one_whatever_fails() {
    let here = folder("faulty-export");
    fs::write(here.join("job.shard"), SPEC).unwrap();
    fs::create_dir(here.join("out")).unwrap();
    let faulty = Faulty::new(&here.join("out"), &here);
    let target = here.join("out/t.onnx");
    train(&here, &faulty, None).expect(0);
    let calls = faulty.count();
    assert!(calls >= 4, "it is created, written, synced and renamed: {:?}", faulty.trace());
    let new = fs::read(&target).unwrap();
    for how in ["enospc", "eio", "eintr", "short", "kill", "kill-within", "kill-after"] {
        for at in 1..=calls {
            fs::write(&target, "the old one").unwrap();
            let ran = train(&here, &faulty, Some(Fault { at, forever: false, how }));
            let kept = fs::read(&target).unwrap();
            let trace = faulty.trace();
            assert!(kept == b"the old one" || kept == new, "{how} at {:?} leaves neither", trace.get(at as usize - 1));
            match ran.code {
                0 => assert!(kept == new, "{how} at {at}: it says that it has exported: {}", ran.err),
                -1 => assert!(how.starts_with("kill"), "{how} at {at}: {}", ran.err),
                code => {
                    let told = ran.err.contains("t.onnx") && ran.err.contains("os error");
                    assert!(code == 3 && told, "{how} at {at} ({:?}) ends with {code}: {}", trace.get(at as usize - 1), ran.err);
                }
            }
            assert!(["eintr", "short"].iter().all(|own| *own != how) || ran.code == 0, "{how} at {at}: {}", ran.err);
        }
    }
}
