//! One pass at a time on text: `tests/cases/<pass>/*.shir` holds a graph, `----`, and what the pass
//! makes of it.
//!
//! A spec may come first, followed by its own `----`. A case of evaluation begins with the line
//! `# mode: eval`; all others are of training. Errors of the pass are expected as `error: …` lines.
//! `BLESS=1` rewrites graphs in the printer's form and expectations as they are now.

use shardc_frontend::spec;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::Graph;
use shardc_ir::spec::Spec;
use shardc_ir::text::{parse, print};
use shardc_ir::verify;
use shardc_passes::{Context, Mode, PIPELINE};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The line between the parts of a case.
const CUT: &str = "----\n";

/// The first line of a case of evaluation.
const EVALUATION: &str = "# mode: eval\n";

#[test]
fn passes_do_what_their_cases_say() {
    let failures: Vec<String> = cases().iter().filter_map(|case| run(case).err()).collect();
    assert!(failures.is_empty(), "{}\nBLESS=1 makes this what is expected", failures.join("\n"));
}

#[test]
fn every_pass_has_a_case_and_every_folder_a_pass() {
    let passes: BTreeSet<&str> = PIPELINE.iter().map(|p| p.name()).collect();
    let cases = cases();
    let folders: BTreeSet<&str> = cases.iter().map(|c| c.pass.as_str()).collect();
    assert_eq!(folders, passes);
}

#[test]
fn every_printed_graph_parses_back_to_itself() {
    if std::env::var_os("BLESS").is_some() {
        println!("skipped: the cases are being written");
        return;
    }
    for case in cases() {
        for text in [&case.graph, &case.expected] {
            if text.starts_with("error: ") {
                continue;
            }
            let graph = parse(text).unwrap_or_else(|e| panic!("{}: {e}", case.path.display()));
            assert_eq!(print(&graph), *text, "{} is not as the printer writes it", case.path.display());
        }
    }
}

/// A fixture.
struct Case {
    path: PathBuf,
    /// The folder: the name of the pass.
    pass: String,
    mode: Mode,
    /// Empty where the pass asks for none.
    spec: String,
    graph: String,
    expected: String,
}

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases");
    let list = |folder: &Path| -> Vec<PathBuf> {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
        entries.sort();
        entries
    };
    list(&root).iter().flat_map(|folder| list(folder)).map(read).collect()
}

fn read(path: PathBuf) -> Case {
    let text = fs::read_to_string(&path).expect("a case is a text");
    let (mode, text) = match text.strip_prefix(EVALUATION) {
        Some(rest) => (Mode::Evaluate, rest),
        None => (Mode::Train, text.as_str()),
    };
    let mut parts: Vec<String> = text.split(CUT).map(str::to_string).collect();
    assert!((2..=3).contains(&parts.len()), "{} has {} parts", path.display(), parts.len());
    let pass = path.parent().and_then(Path::file_name).expect("a folder for each pass").to_string_lossy().into_owned();
    let expected = parts.pop().unwrap_or_default();
    let graph = parts.pop().unwrap_or_default();
    let spec = parts.pop().unwrap_or_default();
    Case { path, pass, mode, spec, graph, expected }
}

/// Runs one case; says what is not as expected.
fn run(case: &Case) -> Result<(), String> {
    let at = case.path.display();
    let spec = spec::parse(&case.path, &case.spec).map_err(|e| format!("{at}: the spec\n{}", in_text(&e)))?;
    let mut graph = parse(&case.graph).map_err(|e| format!("{at}: {e}"))?;
    let sound = |graph: &Graph| verify::verify(graph).map_err(|broken| format!("{at}: {}", verify::report(graph, &broken)));
    sound(&graph)?;
    let canonical = print(&graph);
    if !case.spec.is_empty() {
        graph.mesh = spec.mesh();
    }
    let actual = match run_pass(case, graph, &spec) {
        Err(errors) => in_text(&errors),
        Ok(graph) => {
            sound(&graph)?;
            print(&graph)
        }
    };
    if std::env::var_os("BLESS").is_some() {
        let spec = if case.spec.is_empty() { String::new() } else { format!("{}{CUT}", case.spec) };
        let mode = if case.mode == Mode::Evaluate { EVALUATION } else { "" };
        fs::write(&case.path, format!("{mode}{spec}{canonical}{CUT}{actual}")).expect("the case is written");
        return Ok(());
    }
    if actual == case.expected { Ok(()) } else { Err(format!("{at}:\n{}", difference(&case.expected, &actual))) }
}

fn run_pass(case: &Case, mut graph: Graph, spec: &Spec) -> Result<Graph, Diagnostics> {
    let pass = PIPELINE.iter().find(|pass| pass.name() == case.pass);
    let pass = pass.unwrap_or_else(|| panic!("there is no pass `{}`", case.pass));
    shardc_passes::run_pass(*pass, &mut graph, &Context { spec, mode: case.mode, verify: true })?;
    Ok(graph)
}

fn in_text(errors: &Diagnostics) -> String {
    errors.iter().map(|e| format!("error: {e}\n")).collect()
}

/// The lines that differ: `-` expected, `+` actual.
fn difference(expected: &str, actual: &str) -> String {
    let missing = |from: &str, other: &str, mark: &str| -> String {
        let there: BTreeSet<&str> = other.lines().collect();
        from.lines().filter(|l| !there.contains(l)).map(|l| format!("{mark} {l}\n")).collect()
    };
    missing(expected, actual, "-") + &missing(actual, expected, "+")
}
