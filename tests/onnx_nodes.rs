//! The node tests of the `onnx` package: each model is imported, compiled and run, and must give
//! the outputs that are written beside it, or be refused with a reason.
//!
//! `SHARDC_ONNX_NODE_TESTS` names the folder `onnx/backend/test/data/node`; without it Python is
//! asked where the package is (`SHARDC_PYTHON` names another Python), and where there is none the
//! test says that it skips. `SHARDC_ONNX_NODE_ONLY` takes a part of the cases by name. Run it with
//! `--nocapture` to read the table.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod node_tests;

use node_tests::case::{Case, Unread};
use node_tests::evaluate::{Refusal, Route, compare, evaluate};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;

/// Fewer cases than this do not pass only if something broke.
const PASSED_AT_LEAST: usize = 1000;

/// How a case ended.
enum Verdict {
    Passed(Route),
    Refused(String),
    Wrong(String),
}

#[test]
fn node_tests_pass_or_are_refused() {
    let Some(folder) = folder() else {
        println!("skipped: no Python with `onnx`, and SHARDC_ONNX_NODE_TESTS is not set");
        return;
    };
    let only = std::env::var("SHARDC_ONNX_NODE_ONLY").unwrap_or_default();
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.contains(&only));
    names.sort();
    let verdicts: Vec<(String, String, Verdict)> = names
        .into_iter()
        .map(|name| {
            let case = Case::read(&folder.join(&name));
            let op = case.as_ref().map_or_else(|_| "?".to_string(), |case| case.op.clone());
            let verdict = catch_unwind(AssertUnwindSafe(|| judge(case))).unwrap_or(Verdict::Wrong("a panic".to_string()));
            (name, op, verdict)
        })
        .collect();
    report(&verdicts);
    let wrong = verdicts.iter().filter(|(_, _, v)| matches!(v, Verdict::Wrong(_))).count();
    let passed = verdicts.iter().filter(|(_, _, v)| matches!(v, Verdict::Passed(_))).count();
    assert_eq!(wrong, 0, "cases are wrong");
    assert!(!only.is_empty() || passed >= PASSED_AT_LEAST, "only {passed} pass");
}

/// The first way of giving the inputs that is taken must be right; so must all of them folded, if
/// that is taken.
fn judge(case: Result<Case, Unread>) -> Verdict {
    let case = match case {
        Ok(case) => case,
        Err(Unread(why)) => return Verdict::Refused(why),
    };
    let mut first: Option<Refusal> = None;
    let mut passed = None;
    for route in Route::ALL {
        if passed.is_some() && route != Route::Folded {
            continue;
        }
        match evaluate(&case, route) {
            Ok(results) => {
                for (data, outputs) in case.data.iter().zip(&results) {
                    if let Err(why) = compare(&case, data, outputs) {
                        return Verdict::Wrong(format!("{}: {why}", route.name()));
                    }
                }
                passed = passed.or(Some(route));
            }
            Err(Refusal::Failed(why)) => return Verdict::Wrong(format!("{}: {why}", route.name())),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    match (passed, first) {
        (Some(route), _) => Verdict::Passed(route),
        (None, Some(Refusal::Refused(why))) => Verdict::Refused(why),
        (None, _) => Verdict::Wrong("nothing was tried".to_string()),
    }
}

/// A line for each op, then why cases are refused, then what is wrong.
fn report(verdicts: &[(String, String, Verdict)]) {
    let mut ops: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut total = [0; 5];
    for (name, op, verdict) in verdicts {
        let column = match verdict {
            Verdict::Passed(Route::Runtime) => 0,
            Verdict::Passed(Route::Folded) => 2,
            Verdict::Passed(_) => 1,
            Verdict::Refused(why) => {
                reasons.entry(why).or_default().push(name);
                3
            }
            Verdict::Wrong(_) => 4,
        };
        ops.entry(op).or_default()[column] += 1;
        total[column] += 1;
    }
    println!("{:32} {:>8} {:>10} {:>7} {:>8} {:>6}", "op", "runtime", "constants", "folded", "refused", "wrong");
    let line = |op: &str, [a, b, c, d, e]: [usize; 5]| println!("{op:32} {a:>8} {b:>10} {c:>7} {d:>8} {e:>6}");
    ops.iter().for_each(|(op, counts)| line(op, *counts));
    line("all", total);
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (why, names) in reasons {
        let more = if names.len() > 3 { ", …" } else { "" };
        println!("refused {:>4}: {why} ({}{more})", names.len(), names[..names.len().min(3)].join(", "));
    }
    for (name, _, verdict) in verdicts {
        if let Verdict::Wrong(why) = verdict {
            println!("wrong: {name}: {why}");
        }
    }
}

fn folder() -> Option<PathBuf> {
    if let Ok(folder) = std::env::var("SHARDC_ONNX_NODE_TESTS") {
        return Some(folder.into());
    }
    let python = std::env::var("SHARDC_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let script = "import onnx, os; print(os.path.join(os.path.dirname(onnx.__file__), 'backend', 'test', 'data', 'node'))";
    let said = Command::new(python).args(["-c", script]).output().ok().filter(|o| o.status.success())?;
    Some(PathBuf::from(String::from_utf8(said.stdout).ok()?.trim())).filter(|folder| folder.is_dir())
}
