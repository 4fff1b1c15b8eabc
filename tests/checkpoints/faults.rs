//! Calls on files that fail while a checkpoint is saved.

use crate::faulty::{Fault, Faulty};
use crate::{command, done, folder, state, train, wanted};
use shardc_testkit::parallel;
use std::fs;

/// Whatever call on a file fails, or is the last of a killed process, a sound checkpoint is there,
/// and training goes on from it to the bits of a run without a fault.
#[test]
fn a_fault_while_saving_loses_nothing() {
    let here = folder("faults");
    let steps = ["--steps", "12", "--every", "4", "--keep", "1"];
    done(&train(&here, "dp", "whole", &steps));
    let whole = state(&here.join("whole/step-00000012"));
    done(&train(&here, "dp", "begun", &["--steps", "4"]));
    let others = ["kill-after", "kill-within", "enospc", "eio", "eintr", "short"];
    let counting = Faulty::new(&here.join("counted"), &here);
    let copy = |to: &str| {
        fs::create_dir_all(here.join(to).join("step-00000004")).unwrap();
        for (name, bytes) in state(&here.join("begun/step-00000004")) {
            fs::write(here.join(to).join("step-00000004").join(name), bytes).unwrap();
        }
    };
    let resumed = [&steps[..], &["--resume"]].concat();
    copy("counted");
    let mut run = command(&here, "dp", "counted", &resumed);
    counting.apply(&mut run, None);
    done(&run.output().unwrap());
    let calls = counting.count();
    assert!(calls > 20, "{calls} calls");
    let each = |at: u64| match wanted() {
        Some(_) => others.iter().copied().chain(["kill"]).collect(),
        None => vec!["kill", others[at as usize % others.len()]],
    };
    let faults: Vec<(u64, &str)> = (1..=calls).flat_map(|at| each(at).into_iter().map(move |how| (at, how))).collect();
    parallel::map(faults.len(), |number| {
        let (at, how) = faults[number];
        let (name, notes) = (format!("faulty{number}"), here.join(format!("notes{number}")));
        copy(&name);
        fs::create_dir(&notes).unwrap();
        let mut run = command(&here, "dp", &name, &resumed);
        Faulty::new(&here.join(&name), &notes).apply(&mut run, Some(Fault { at, forever: false, how }));
        let output = run.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            None => assert!(how.starts_with("kill"), "{how} at call {at}: {said}"),
            Some(0) => assert!(!how.starts_with("kill"), "{how} at call {at}: {said}"),
            Some(code) => {
                let cause = if how == "eio" { "Input/output error" } else { "No space left" };
                let is_told = said.contains(cause) && said.contains(&format!("`{name}"));
                assert!([1, 3].contains(&code) && is_told, "{how} at call {at}: {code}: {said}");
            }
        }
        let again = train(&here, "dp", &name, &resumed);
        done(&again);
        let told = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(told.contains("going on after step "), "{how} at call {at} has lost all: {told}");
        assert!(state(&here.join(&name).join("step-00000012")) == whole, "{how} at call {at}: {said}");
        fs::remove_dir_all(here.join(&name)).unwrap();
    });
    println!("{} faults of calls on files while saving: nothing is lost", faults.len());
}
