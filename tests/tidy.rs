//! Rules for the sources as text: arrows between crates, who may name ops, where `unsafe` is,
//! headers and lengths of files, widths of comments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate's folder and the crates of ours that it may depend on; the facade may use all.
const ARROWS: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("frontend", &["shardc-ir"]),
    ("passes", &["shardc-ir"]),
    ("codegen", &["shardc-ir"]),
    ("nvrtc", &[]),
    ("launch", &[]),
    ("simulator", &["shardc-ir"]),
    ("cublaslt", &["shardc-ir", "shardc-codegen"]),
    ("executor", &["shardc-ir", "shardc-codegen", "shardc-launch"]),
    ("gpu", &["shardc-ir", "shardc-codegen", "shardc-nvrtc", "shardc-cublaslt", "shardc-launch", "shardc-executor"]),
    ("testing/cuda", &[]),
    ("testing/fakecuda", &["shardc-cuda-testing"]),
    ("testing/faultyfs", &[]),
    ("testkit", &["shardc-ir", "shardc-frontend", "shardc-passes", "shardc-executor"]),
];

/// The files in which `unsafe` may stand.
const UNSAFE: &[&str] = &[
    "cublaslt/src/library.rs",
    "cublaslt/src/multiply.rs",
    "executor/src/cpu/lines.rs",
    "executor/src/cpu/lines/avx2.rs",
    "executor/src/cpu/lines/avx512.rs",
    "executor/src/cpu/packed/rows.rs",
    "executor/src/cpu/packed/x86.rs",
    "executor/src/cpu/prefetch.rs",
    "executor/src/cpu/team.rs",
    "executor/src/common/memory.rs",
    "executor/src/cpu/tiles.rs",
    "executor/src/shown.rs",
    "gpu/src/cuda/driver.rs",
    "gpu/src/cuda/library.rs",
    "gpu/src/cuda/nccl.rs",
    "gpu/src/pinned.rs",
    "gpu/src/watch.rs",
    "nvrtc/src/library.rs",
    "testing/fakecuda/src/control.rs",
    "src/heap.rs",
    "testing/fakecuda/src/c.rs",
    "testing/fakecuda/src/c/control.rs",
    "testing/fakecuda/src/c/cublaslt.rs",
    "testing/fakecuda/src/c/host.rs",
    "testing/fakecuda/src/c/nccl.rs",
    "testing/fakecuda/src/c/nvrtc.rs",
    "testing/fakecuda/src/c/work.rs",
    "testing/fakecuda/tests/fake/cuda.rs",
    "testing/faultyfs/src/c.rs",
    "testing/faultyfs/src/hooks.rs",
];

/// Passes that recognise or build ops of models. All others ask the ops' rules, and name leaves and
/// communication only.
const KNOW_OPS: &[&str] = &[
    "passes/src/add_optimizer.rs",
    "passes/src/attach_loss.rs",
    "passes/src/batch_statistics.rs",
    "passes/src/blocks.rs",
    "passes/src/differentiate.rs",
    "passes/src/differentiate/stacked.rs",
    "passes/src/dropout.rs",
    "passes/src/fold_layout.rs",
    "passes/src/planning/emit.rs",
    "passes/src/planning/inputs.rs",
    "passes/src/precision.rs",
    "passes/src/raise_attention.rs",
    "passes/src/round_products.rs",
    "passes/src/separate_blocks.rs",
    "passes/src/unmerge.rs",
    "passes/src/without_samples.rs",
];

/// The names that every pass may use: [`shardc_ir::ops::Op`]'s variants and families that are not
/// computation.
const NO_COMPUTATION: &[&str] = &[
    "Input",
    "State",
    "Constant",
    "Host",
    "Reshard",
    "Accumulate",
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "AllToAll",
    "ShardSlice",
    "FlatGather",
    "FlatScatter",
    "FlatSlice",
    "flat",
    "Transfer",
    "leaf",
    "comm",
];

/// Lines of a file, but for tests and tables.
const MAX_LINES: usize = 500;

/// Files that are tables.
const TABLES: &[&str] = &[];

#[test]
fn crates_depend_as_designed() {
    let manifest = read(Path::new("Cargo.toml"));
    let members = manifest.lines().find_map(|l| l.strip_prefix("members = ")).expect("the workspace lists its members");
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    for member in members {
        let (_, allowed) =
            ARROWS.iter().find(|(name, _)| *name == member).unwrap_or_else(|| panic!("where does `{member}` belong?"));
        for dependency in dependencies(&read(&Path::new(member).join("Cargo.toml"))) {
            assert!(allowed.contains(&dependency.as_str()), "`{member}` must not depend on `{dependency}`");
        }
    }
}

/// Crates of ours that a manifest depends on outside of tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = vec![];
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let name: String = line.chars().take_while(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect();
        if ["[dependencies]", "[build-dependencies]"].contains(&section) && name.starts_with("shardc") {
            found.push(name);
        }
    }
    found
}

/// Crates without tests in their sources, or examples in their comments, are not built for them.
#[test]
fn what_is_not_built_for_tests_has_none() {
    let sources = sources();
    for (member, _) in ARROWS {
        let manifest = read(&Path::new(member).join("Cargo.toml"));
        for (line, marks) in [("test = false", vec!["#[test]"]), ("doctest = false", vec!["/// ```", "//! ```"])] {
            let mut of_lib = manifest.lines().skip_while(|l| *l != "[lib]").skip(1).take_while(|l| !l.starts_with('['));
            if of_lib.any(|l| l == line) {
                let holds = |source: &String| source.lines().any(|l| marks.iter().any(|mark| l.trim_start().starts_with(mark)));
                let own = sources.iter().filter(|(path, _)| path.starts_with(&format!("{member}/src/")));
                let found: Vec<&String> = own.filter(|(_, source)| holds(source)).map(|(path, _)| path).collect();
                assert!(found.is_empty(), "`{member}` has `{line}`, and {found:?}");
            }
        }
    }
}

#[test]
fn backends_never_hear_of_ops() {
    let is_backend = |path: &str| path.starts_with("executor/src") || path.starts_with("codegen/src");
    for (path, source) in sources().iter().filter(|(path, _)| is_backend(path)) {
        for (number, line) in code_lines(source) {
            let named = line.contains("shardc_ir::ops") || line.contains("crate::ops") || line.contains("letters_of");
            assert!(!named, "{path}:{number}: backends implement kernel forms: {line}");
        }
    }
}

#[test]
fn passes_ask_rules() {
    let sources = sources();
    let mut know = BTreeSet::new();
    for (path, source) in sources.iter().filter(|(path, _)| path.starts_with("passes/src")) {
        for (number, line) in code_lines(source) {
            for name in ops_named(line) {
                know.insert(path.as_str());
                assert!(KNOW_OPS.contains(&path.as_str()), "{path}:{number}: `{name}` is for the op's rules to know: {line}");
            }
        }
    }
    assert_eq!(know, present(KNOW_OPS, &sources), "the list names no file too many");
}

/// Variants `Op::X` and families `ops::x` of computation in a line of code.
fn ops_named(line: &str) -> Vec<&str> {
    let after = |prefix: &'static str| {
        line.match_indices(prefix).filter_map(move |(at, _)| {
            let boundary = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let name = &line[at + prefix.len()..];
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            (boundary && end > 0).then(|| (&name[..end], &name[end..]))
        })
    };
    let variants = after("Op::").filter(|(name, _)| name.starts_with(|c: char| c.is_ascii_uppercase())).map(|(name, _)| name);
    let families = after("ops::").filter(|(_, rest)| rest.starts_with("::")).map(|(name, _)| name);
    variants.chain(families).filter(|name| !NO_COMPUTATION.contains(name)).collect()
}

#[test]
fn unsafe_is_where_it_is_listed() {
    let sources = sources();
    let mut found = BTreeSet::new();
    for (path, source) in &sources {
        let words = |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == UNSAFE_WORD);
        if code_lines(source).any(|(_, line)| words(line)) {
            found.insert(path.as_str());
        }
    }
    assert_eq!(found, present(UNSAFE, &sources), "the list names every such file and no other");
}

/// The keyword, written so that this file does not hold it.
const UNSAFE_WORD: &str = concat!("un", "safe");

#[test]
fn every_file_says_what_it_is_for() {
    for (path, source) in &sources() {
        let first = source.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! ") && first.len() > 10, "{path} does not open with its purpose");
    }
}

#[test]
fn files_are_short() {
    for (path, source) in &sources() {
        let lines = source.lines().count();
        let free = path.split('/').any(|part| part == "tests") || TABLES.contains(&path.as_str());
        assert!(free || lines <= MAX_LINES, "{path} has {lines} lines, more than {MAX_LINES}");
    }
}

/// The most columns of a comment.
const COLUMNS: usize = 100;

#[test]
fn comments_are_narrow() {
    for (path, source) in &sources() {
        for (number, line) in source.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            let columns = line.chars().count();
            assert!(!is_comment || columns <= COLUMNS, "{path}:{}: a comment of {columns} columns", number + 1);
        }
    }
}

/// The files of a list that are there.
fn present<'l>(list: &[&'l str], sources: &BTreeMap<String, String>) -> BTreeSet<&'l str> {
    list.iter().copied().filter(|path| sources.contains_key(*path)).collect()
}

/// Lines without comments, numbered from 1.
fn code_lines(source: &str) -> impl Iterator<Item = (usize, &str)> {
    source.lines().enumerate().map(|(i, line)| (i + 1, line.split("//").next().unwrap_or_default()))
}

/// Every Rust file of the repository, by its path from the root.
fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder of the repository").map(|e| e.expect("an entry")) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if entry.path().is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.insert(path.to_string_lossy().replace('\\', "/"), read(&path));
            }
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
