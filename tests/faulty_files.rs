//! Files that fail while a command writes: the one of before stays, or the new one is whole, and
//! one message names the file and the cause.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "support/faulty.rs"]
mod faulty;
mod support;

use faulty::{Fault, Faulty};
use prost::Message;
use shardc_testkit::onnx::keep_beside;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use support::{Ran, command, example, folder, ran};
use tract_onnx::pb;

const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1\n";

/// What becomes of a call on a file.
const FAULTS: [&str; 7] = ["enospc", "eio", "eintr", "short", "kill", "kill-within", "kill-after"];

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A training of digits whose export, `out/t.onnx`, meets faults.
struct Training {
    here: PathBuf,
    faulty: Faulty,
}

impl Training {
    fn new(name: &str) -> Training {
        let here = folder(name);
        fs::write(here.join("job.shard"), SPEC).unwrap();
        fs::copy(example("digits/model.onnx"), here.join("model.onnx")).unwrap();
        fs::create_dir(here.join("out")).unwrap();
        Training { faulty: Faulty::new(&here.join("out"), &here), here }
    }

    fn run(&self, steps: u32, fault: Option<Fault<'_>>) -> Ran {
        let (data, steps) = (example("digits/train.npz"), steps.to_string());
        let job = ["train", "model.onnx", "--spec", "job.shard", "--data", &data, "--steps", &steps, "--export", "out/t.onnx"];
        let mut command = command(&self.here, &job);
        self.faulty.apply(&mut command, fault);
        ran(command.output().unwrap(), Default::default())
    }

    /// What stands in `out`.
    fn files(&self) -> Files {
        let entries = fs::read_dir(self.out()).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
    }

    /// Puts these files, and no others, into `out`.
    fn put(&self, files: &Files) {
        fs::remove_dir_all(self.out()).unwrap();
        fs::create_dir(self.out()).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(self.out().join(name), bytes).unwrap());
    }

    fn out(&self) -> PathBuf {
        self.here.join("out")
    }

    /// Exports two steps over `old` with each fault at each call. The model that stands then is the
    /// old or the new one, and so are the files that it names; what a killed run leaves besides
    /// goes with the next one.
    fn is_whole_whatever_fails(&self, old: &Files) {
        self.put(old);
        self.run(2, None).expect(0);
        let (calls, new) = (self.faulty.count(), self.files());
        assert!(calls >= 4 * new.len() as u64, "each file is created, written, synced and renamed: {:?}", self.faulty.trace());
        assert_ne!(old["t.onnx"], new["t.onnx"]);
        let only_old = |name: &str| old.contains_key(name) && !new.contains_key(name);
        for how in FAULTS {
            for at in 1..=calls {
                self.put(old);
                let ran = self.run(2, Some(Fault { at, forever: false, how }));
                let (kept, trace) = (self.files(), self.faulty.trace());
                let call = trace.get(at as usize - 1);
                let is = |whole: &Files| whole.iter().all(|(name, bytes)| kept.get(name) == Some(bytes));
                assert!(is(old) || is(&new), "{how} at {call:?} leaves neither");
                match ran.code {
                    0 => assert!(is(&new), "{how} at {at}: it says that it has exported: {}", ran.err),
                    -1 => {
                        assert!(how.starts_with("kill"), "{how} at {at}: {}", ran.err);
                        self.run(2, None).expect(0);
                        // Weights that only the old model named may stay: nobody knows of them.
                        let left: Files = self.files().into_iter().filter(|(name, _)| !only_old(name)).collect();
                        assert!(left == new, "{how} at {call:?} leaves {:?}", left.keys());
                    }
                    code => {
                        let told = ran.err.contains("t.onnx") && ran.err.contains("os error");
                        assert!(code == 3 && told, "{how} at {at} ({call:?}) ends with {code}: {}", ran.err);
                    }
                }
                assert!(["eintr", "short"].iter().all(|own| *own != how) || ran.code == 0, "{how} at {at}: {}", ran.err);
            }
        }
    }
}

#[test]
fn an_export_is_the_old_one_or_the_new_one_whatever_fails() {
    let training = Training::new("faulty-export");
    let old = Files::from([("t.onnx".into(), b"the old one".to_vec())]);
    training.is_whole_whatever_fails(&old);
}

#[test]
fn so_is_an_export_with_its_weights_beside_it() {
    let training = Training::new("faulty-export-beside");
    let path = training.here.join("model.onnx");
    let mut model = pb::ModelProto::decode(&fs::read(&path).unwrap()[..]).unwrap();
    fs::write(training.here.join("weights.data"), keep_beside(&mut model, "weights.data")).unwrap();
    fs::write(path, model.encode_to_vec()).unwrap();
    training.run(1, None).expect(0);
    let old = training.files();
    assert_eq!(old.len(), 2, "a model and its weights: {:?}", old.keys());
    training.is_whole_whatever_fails(&old);
}
