//! A program under the library: each fault is what it says, at the call that was asked for.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of a test, which is empty, with the folder `watched`.
struct Here(PathBuf);

/// What became of a run.
#[derive(Debug)]
struct Ran {
    signal: Option<i32>,
    /// The program's steps, with what came of each.
    steps: Vec<(String, String)>,
    /// The calls that were counted: name and path from the folder on.
    calls: Vec<(String, String)>,
    counted: u64,
}

impl Here {
    fn new(name: &str) -> Here {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("watched")).unwrap();
        Here(path.canonicalize().unwrap())
    }

    fn command(&self, program: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
        for file in ["count", "trace", "elsewhere"] {
            let _ = fs::remove_file(self.0.join(file));
        }
        let watched = self.0.join("watched");
        fs::remove_dir_all(&watched).unwrap();
        fs::create_dir(&watched).unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libshardc_faultyfs.so");
        assert!(library.exists(), "{} was built", library.display());
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&watched).env("LD_PRELOAD", library).env("FAULTY_FOLDER", &watched);
        command.env("FAULTY_COUNT", self.0.join("count")).env("FAULTY_TRACE", self.0.join("trace"));
        command.envs(settings.iter().copied());
        command
    }

    fn writes(&self, settings: &[(&str, &str)]) -> Ran {
        let output = self.command(env!("CARGO_BIN_EXE_faultyfs-writes"), &[], settings).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let pairs = |text: &str, by: &str| -> Vec<(String, String)> {
            text.lines().filter_map(|line| line.split_once(by)).map(|(a, b)| (a.to_string(), b.to_string())).collect()
        };
        let trace = fs::read_to_string(self.0.join("trace")).unwrap();
        let watched = self.0.join("watched");
        let numbered = pairs(&trace, " ");
        for (at, (number, _)) in numbered.iter().enumerate() {
            assert_eq!(*number, (at + 1).to_string());
        }
        let named = numbered.iter().map(|(_, rest)| rest.split_once(' ').unwrap());
        let below = |path: &str| Path::new(path).strip_prefix(&watched).unwrap().to_str().unwrap().to_string();
        let calls = named.map(|(name, path)| (name.trim_end_matches("64").to_string(), below(path))).collect();
        let counted = u64::from_le_bytes(fs::read(self.0.join("count")).unwrap().try_into().unwrap());
        Ran { signal: output.status.signal(), steps: pairs(&told, ": "), calls, counted }
    }

    fn length(&self, file: &str) -> Option<u64> {
        fs::metadata(self.0.join("watched").join(file)).ok().map(|m| m.len())
    }
}

impl Ran {
    /// The number of the first call of that name.
    fn first(&self, name: &str) -> String {
        (1 + self.calls.iter().position(|(own, _)| own == name).unwrap()).to_string()
    }

    fn outcome(&self, step: &str) -> &str {
        &self.steps.iter().find(|(own, _)| own == step).unwrap_or_else(|| panic!("{step}: {self:?}")).1
    }

    /// The steps that failed.
    fn failed(&self) -> Vec<(&str, &str)> {
        self.steps
            .iter()
            .filter(|(_, outcome)| outcome != "done")
            .map(|(step, outcome)| (step.as_str(), outcome.as_str()))
            .collect()
    }
}

#[test]
fn calls_below_the_folder_are_counted_and_no_others() {
    let here = Here::new("counted");
    let ran = here.writes(&[]);
    assert_eq!(ran.failed(), []);
    assert_eq!(ran.counted, ran.calls.len() as u64);
    let calls: Vec<(&str, &str)> = ran.calls.iter().map(|(name, path)| (name.as_str(), path.as_str())).collect();
    let until_copy = [
        ("mkdir", "new"),
        ("open", "new/data"),
        ("write", "new/data"),
        ("write", "new/data"),
        ("ftruncate", "new/data"),
        ("fsync", "new/data"),
        ("rename", "new/kept"),
        ("fsync", "new"),
        ("open", "new/copy"),
    ];
    assert_eq!(calls[..until_copy.len()], until_copy);
    let expects = |call| assert!(calls.contains(&call), "{call:?} of {calls:?}");
    expects(("unlink", "new/copy"));
    expects(("mkdir", "gone"));
    assert!(
        calls.iter().any(|(name, path)| ["copy_file_range", "sendfile", "write"].contains(name) && *path == "new/copy"),
        "{calls:?}"
    );
    let with_reads = here.writes(&[("FAULTY_READS", "1")]);
    assert!(with_reads.calls.contains(&("read".into(), "new/kept".into())), "{with_reads:?}");
    assert!(with_reads.counted > ran.counted);
}

#[test]
fn a_code_is_given_once_or_from_there_on() {
    let here = Here::new("codes");
    let calm = here.writes(&[]);
    for (how, words) in [("enospc", "No space left on device"), ("eio", "Input/output error")] {
        for (call, step) in
            [("mkdir", "folder"), ("write", "write"), ("fsync", "sync"), ("rename", "rename"), ("unlink", "remove")]
        {
            let ran = here.writes(&[("FAULTY_AT", &calm.first(call)), ("FAULTY_HOW", how)]);
            assert!(ran.outcome(step).starts_with(words), "{call}: {ran:?}");
        }
        let write = calm.first("write");
        let ran = here.writes(&[("FAULTY_AT", &write), ("FAULTY_HOW", how)]);
        assert_eq!((ran.failed().len(), here.length("new/kept")), (1, Some(1200)), "{ran:?}");
        let ran = here.writes(&[("FAULTY_AT", &write), ("FAULTY_HOW", how), ("FAULTY_FOREVER", "1")]);
        for step in ["write", "once", "length", "sync", "rename", "folder sync", "remove all"] {
            assert!(ran.outcome(step).starts_with(words), "{step}: {ran:?}");
        }
        assert_eq!((ran.outcome("elsewhere"), here.length("new/data")), ("done", Some(0)));
    }
}

#[test]
fn an_interrupted_call_goes_through_when_it_is_tried_again() {
    let here = Here::new("interrupted");
    let calm = here.writes(&[]);
    for call in ["open", "write", "ftruncate", "fsync"] {
        let ran = here.writes(&[("FAULTY_AT", &calm.first(call)), ("FAULTY_HOW", "eintr")]);
        assert_eq!((ran.failed().len(), ran.counted), (0, calm.counted + 1), "{call}: {ran:?}");
    }
    let ran = here.writes(&[("FAULTY_AT", &calm.first("rename")), ("FAULTY_HOW", "eintr")]);
    assert_eq!((ran.failed().len(), ran.counted), (0, calm.counted), "names are changed at once: {ran:?}");
    let ran = here.writes(&[("FAULTY_AT", "2"), ("FAULTY_HOW", "eintr"), ("FAULTY_FOREVER", "1")]);
    assert!(ran.counted > calm.counted + 2 && here.length("new/kept") == Some(1200), "{ran:?}");
}

#[test]
fn a_short_write_says_how_much_was_written() {
    let here = Here::new("short");
    let calm = here.writes(&[]);
    let write: usize = calm.first("write").parse().unwrap();
    let ran = here.writes(&[("FAULTY_AT", &write.to_string()), ("FAULTY_HOW", "short")]);
    assert_eq!((ran.failed().len(), ran.counted), (0, calm.counted + 1), "the rest is written: {ran:?}");
    let ran = here.writes(&[("FAULTY_AT", &(write + 1).to_string()), ("FAULTY_HOW", "short")]);
    assert_eq!(ran.failed(), [("once", "50 bytes")]);
}

#[test]
fn the_process_dies_before_within_or_behind_a_call() {
    let here = Here::new("killed");
    let calm = here.writes(&[]);
    for (call, how, file, length) in [
        ("write", "kill", "new/data", Some(0)),
        ("write", "kill-within", "new/data", Some(500)),
        ("write", "kill-after", "new/data", Some(1000)),
        ("rename", "kill", "new/kept", None),
        ("rename", "kill-within", "new/kept", Some(1200)),
        ("rename", "kill-after", "new/kept", Some(1200)),
    ] {
        let at = calm.first(call);
        let ran = here.writes(&[("FAULTY_AT", &at), ("FAULTY_HOW", how)]);
        assert_eq!((ran.signal, ran.counted.to_string()), (Some(9), at), "{call} {how}");
        assert_eq!(here.length(file), length, "{call} {how}");
    }
}

#[test]
fn processes_count_together() {
    let here = Here::new("together");
    let program = env!("CARGO_BIN_EXE_faultyfs-writes");
    let alone = here.writes(&[]).counted;
    let both = format!("'{program}' && rm -r new && '{program}'");
    let mut command = here.command("sh", &["-c", &both], &[]);
    assert!(command.output().unwrap().status.success());
    let counted = u64::from_le_bytes(fs::read(here.0.join("count")).unwrap().try_into().unwrap());
    assert!(counted > 2 * alone, "{counted}, with what `rm` does, and {alone}");
}

#[test]
fn settings_that_mean_nothing_end_the_program() {
    let here = Here::new("settings");
    for (settings, words) in [
        (&[("FAULTY_AT", "x")][..], "FAULTY_AT is no number"),
        (&[("FAULTY_AT", "1")], "FAULTY_HOW is no fault"),
        (&[("FAULTY_AT", "1"), ("FAULTY_HOW", "flood")], "FAULTY_HOW is no fault"),
        (&[("FAULTY_COUNT", "/nowhere/count")], "FAULTY_COUNT or FAULTY_TRACE cannot be opened"),
    ] {
        let output = here.command(env!("CARGO_BIN_EXE_faultyfs-writes"), &[], settings).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(112) && told.contains(words), "{settings:?}: {told}");
    }
}
