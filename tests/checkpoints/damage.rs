//! Checkpoints with damaged files, none of which is used.

use crate::{done, folder, state, train, wanted};
use shardc::checkpoint::read::Checkpoint;
use shardc_testkit::random::Random;
use std::fs;
use std::path::Path;

#[test]
fn damaged_checkpoints_are_refused() {
    let here = folder("damaged");
    done(&train(&here, "zero", "c", &["--steps", "2"]));
    let at = here.join("c/step-00000002");
    for (name, sound) in state(&at) {
        for cut in 0..8 {
            let mut bytes = sound.clone();
            let place = cut * 7919 * (sound.len() / 8 + 1) % sound.len();
            match cut % 4 {
                0 => bytes.truncate(place),
                _ => bytes[place] ^= 1 << (cut % 8),
            }
            fs::write(at.join(&name), &bytes).unwrap();
            let output = train(&here, "zero", "c", &["--steps", "3", "--resume"]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{name} at {place}: {said}");
            let is_named = said.contains(&name) || said.contains("manifest");
            assert!(is_named && said.len() < 4096, "{name} at {place}: {said}");
        }
        fs::write(at.join(&name), &sound).unwrap();
    }
    done(&train(&here, "zero", "c", &["--steps", "3", "--resume"]));
}

/// All that a checkpoint holds, read.
fn read(at: &Path) -> Result<(), String> {
    let checkpoint = Checkpoint::open(at).map_err(|error| error.to_string())?;
    let states: Vec<String> = checkpoint.manifest.states.keys().cloned().collect();
    states.iter().try_for_each(|state| checkpoint.tensor(state).map(drop).map_err(|error| error.to_string()))
}

/// Whatever bit is another, wherever a file ends too early, the file is named, and the state
/// variable where it is its bytes that are damaged.
#[test]
fn every_damage_is_found_and_named() {
    let here = folder("named");
    done(&train(&here, "zero", "c", &["--steps", "2"]));
    let at = here.join("c/step-00000002");
    let files = state(&at);
    read(&at).expect("it is sound");
    let times = wanted().map_or(400, |faults| faults * 5);
    let mut random = Random(11);
    for _ in 0..times {
        let (name, sound) = &files[random.below(files.len())];
        let (mut bytes, place) = (sound.clone(), random.below(sound.len()));
        let how = match random.below(4) {
            0 => {
                bytes.truncate(place);
                format!("{name} ends at {place}")
            }
            _ => {
                let bit = random.below(8);
                bytes[place] ^= 1 << bit;
                format!("{name}: bit {bit} of byte {place}")
            }
        };
        fs::write(at.join(name), &bytes).unwrap();
        let said = read(&at).expect_err(&how);
        let is_named = said.contains(name.as_str()) || name.starts_with("manifest") && said.contains("manifest");
        assert!(is_named, "{how}: {said}");
        let is_of_tensor = name.ends_with(".safetensors") && bytes.len() == sound.len() && place >= tensors_begin(sound);
        if is_of_tensor {
            let checkpoint = Checkpoint::open(&at).expect("the rest is sound");
            let mut states = checkpoint.manifest.states.keys();
            assert!(
                states.any(|state| said.contains(&format!("`{state}`")) || said.contains(&format!("`{state}["))),
                "{how}: {said}"
            );
        }
        fs::write(at.join(name), sound).unwrap();
    }
    read(&at).expect("it is sound again");
    println!("{times} damages of a checkpoint: all found and named");
}

/// Where the first tensor of a file of safetensors begins.
fn tensors_begin(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize
}
