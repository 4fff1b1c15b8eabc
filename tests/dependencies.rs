//! Rules for the dependencies: the Rust that they need, their licences, where they come from, and
//! that those of ours which may be had twice are listed. Read from `cargo metadata`, without a
//! network.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// Licences that a dependency may be under.
const LICENCES: &[&str] =
    &["Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// Packages that ask for programs beside Rust and a C compiler, or that bring a second way to do
/// what the project does in one.
const BANNED: &[&str] = &["bindgen", "cmake", "openssl-sys", "protobuf-src", "serde_yaml", "tokio"];

/// Packages of which dependencies ask for two versions, on any platform.
const TWICE: &[&str] = &["cpufeatures", "equator", "equator-macro", "foldhash", "hashbrown", "itertools", "syn"];

static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc starts");
    let about = String::from_utf8_lossy(&rustc.stdout).into_owned();
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    // Of other platforms the packages may not be here.
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host]);
    let output = metadata.current_dir(root()).output().expect("cargo starts");
    serde_json::from_slice(&output.stdout).expect("JSON")
});

fn packages() -> &'static [Value] {
    METADATA["packages"].as_array().expect("packages")
}

#[test]
fn the_least_rust_is_that_of_the_dependencies() {
    let manifest = read("Cargo.toml");
    let least = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("the workspace names it");
    let least = least.trim_matches('"');
    for member in ["ir", "frontend", "passes", "executor", "."] {
        let manifest = read(&format!("{member}/Cargo.toml"));
        assert!(manifest.contains("rust-version.workspace = true"), "{member} does not say what Rust it needs");
    }
    assert!(read("README.md").contains(&format!("{least} or later")), "the README says {least}");
    let number = |text: &str| -> Vec<u64> { text.split('.').take(2).filter_map(|part| part.parse().ok()).collect() };
    for package in packages() {
        if let Some(needs) = package["rust_version"].as_str() {
            assert!(number(needs) <= number(least), "{} needs Rust {needs}", package["name"]);
        }
    }
}

#[test]
fn every_licence_allows_the_use() {
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(is_allowed(licence), "{} is under `{licence}`", package["name"]);
    }
    assert!(is_allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
    assert!(!is_allowed("MIT AND GPL-3.0"));
    assert!(!is_allowed(""));
}

/// Whether an SPDX expression has an alternative of which all parts are allowed. An older form
/// writes `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    let all = expression.split(" AND ");
    let any = |part: &str| {
        let part = part.trim_start_matches('(').trim_end_matches(')').replace('/', " OR ");
        part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim()))
    };
    all.map(str::trim).all(any)
}

#[test]
fn packages_come_from_one_registry_and_once() {
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    let lock = read("Cargo.lock");
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| package.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix('"'));
        let name = field("name = \"").expect("a name");
        *versions.entry(name).or_default() += 1;
        let source = field("source = \"");
        let is_ours = source.is_none() && name.starts_with("shardc");
        assert!(is_ours || source.is_some_and(|source| source.ends_with("/crates.io-index")), "{name} is from {source:?}");
        assert!(!BANNED.contains(&name), "{name} is banned");
    }
    assert!(versions.len() > 100, "{} packages", versions.len());
    let twice: BTreeSet<&str> = versions.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name).collect();
    assert_eq!(twice, TWICE.iter().copied().collect(), "the list names every package that is there twice, and no other");
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
