//! Seven kinds of bytes that others have made, each in thousands of mutants: none panics, none
//! takes more than a second or more memory than a few times its size, and what is read is written
//! and read back. `SHARDC_FUZZ` is the number of mutants of each kind, 2000 without it;
//! `SHARDC_FUZZ_TARGETS=npz,spec` leaves the other kinds out. `fuzz/` has the same attacks for a
//! fuzzer that watches what code they reach.

mod attack;

use attack::seeds::clear_away;
use attack::{Attack, Random, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// The folder of the repository.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// How many mutants each begin with the one before.
const CHAIN: u64 = 4;

#[test]
fn mutants_are_taken_or_refused() {
    let count: u64 = std::env::var("SHARDC_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let targets = std::env::var("SHARDC_FUZZ_TARGETS").ok();
    let is_chosen = |target: &Target| {
        let name = format!("{target:?}").to_lowercase();
        targets.as_ref().is_none_or(|names| names.split(',').any(|chosen| chosen == name))
    };
    let mut bad = vec![];
    for target in Target::ALL.into_iter().filter(is_chosen) {
        let attack = Attack::on(target);
        let mut random = Random(target as u64);
        let (mut bytes, mut longest) = (vec![], Duration::ZERO);
        for case in 0..count {
            if case % CHAIN == 0 {
                bytes = attack.seed(&mut random).to_vec();
            }
            bytes = attack.mutant(&bytes, &mut random);
            match catch_unwind(AssertUnwindSafe(|| attack.run(&bytes))) {
                Ok(took) => longest = longest.max(took),
                Err(_) => {
                    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzzed-{target:?}-{case}"));
                    std::fs::write(&path, &bytes).expect("a file can be written");
                    bad.push(path.display().to_string());
                }
            }
        }
        println!("{target:?}: {count} mutants, the longest takes {longest:?}");
    }
    clear_away();
    assert!(bad.is_empty(), "{} mutants do harm:\n{}", bad.len(), bad.join("\n"));
}
