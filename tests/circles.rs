//! Imports within a crate form no circle of more than four files: whoever reads a file can read
//! what it stands on first. A parent and its own modules count as one, and the root of a crate as
//! none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The most files that may import one another.
const LARGEST: usize = 4;

/// A file by its path of modules: `["cpu", "map", "program"]`.
type Module = Vec<String>;

/// For each file, the files of its crate that it names.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn imports_form_no_large_circle() {
    for folder in ["ir/src", "frontend/src", "passes/src", "executor/src", "src"] {
        let imports = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        assert!(imports.len() > 10, "{folder} has modules");
        assert!(imports.values().map(BTreeSet::len).sum::<usize>() > imports.len(), "{folder} has imports");
        for circle in circles(&imports) {
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            assert!(circle.len() <= LARGEST, "{folder}: {} files import one another: {}", circle.len(), names.join(" "));
        }
    }
}

#[test]
fn a_circle_is_found() {
    let name = |names: &str| -> Module { names.split('/').map(str::to_string).collect() };
    let imports: Imports = [("a", vec!["b/c"]), ("b/c", vec!["d"]), ("d", vec!["a", "e"]), ("e", vec![])]
        .into_iter()
        .map(|(from, to)| (name(from), to.into_iter().map(name).collect()))
        .collect();
    assert_eq!(circles(&imports), [BTreeSet::from([name("a"), name("b/c"), name("d")])]);
    assert_eq!(paths("use crate::{a, b::{self, c as d}};"), ["crate::a", "crate::b::self", "crate::b::c"]);
    assert_eq!(paths("let x = super::a::b(crate::c);"), ["super::a::b", "crate::c"]);
}

fn imports(folder: &Path) -> Imports {
    let mut sources = BTreeMap::new();
    read(folder, &mut vec![], &mut sources);
    let mut all = Imports::new();
    for (module, source) in &sources {
        let named = paths(&without_tests(source)).into_iter().filter_map(|path| file_of(&path, module, &sources));
        let others = named.filter(|other| !other.is_empty() && !module.starts_with(other) && !other.starts_with(module));
        all.insert(module.clone(), others.collect());
    }
    all.remove(&Module::new());
    all
}

fn read(folder: &Path, module: &mut Module, sources: &mut BTreeMap<Module, String>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            module.push(name);
            read(&path, module, sources);
            module.pop();
        } else {
            let own = (!["lib", "main", "mod"].contains(&name.as_str())).then_some(name);
            sources.insert(module.iter().cloned().chain(own).collect(), fs::read_to_string(&path).expect("text"));
        }
    }
}

/// The code of a file without comments and without its own tests.
fn without_tests(source: &str) -> String {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths that code names from the crate's root or from the module around it, lists taken apart.
fn paths(code: &str) -> Vec<String> {
    let mut found = vec![];
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    for start in ["crate", "super"] {
        for (at, _) in code.match_indices(start) {
            let begins = !code[..at].ends_with(|c: char| is_name(c) || c == ':');
            if begins && code[at + start.len()..].starts_with("::") {
                found.push((at, tree(&code[at..], "").0));
            }
        }
    }
    found.sort();
    found.into_iter().flat_map(|(_, paths)| paths).collect()
}

/// The paths of a tree such as `a::{b, c::d as e}`, and the bytes of its text.
fn tree(text: &str, before: &str) -> (Vec<String>, usize) {
    let name = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let path = format!("{before}{}", &text[..name]);
    let Some(rest) = text[name..].strip_prefix("::") else { return (vec![path], name) };
    let Some(list) = rest.strip_prefix('{') else {
        let (paths, length) = tree(rest, &format!("{path}::"));
        return (paths, name + 2 + length);
    };
    let (mut paths, mut at) = (vec![], 0);
    while let Some(c) = list[at..].chars().next() {
        if c == '}' {
            break;
        } else if c.is_alphanumeric() || c == '_' {
            let (more, length) = tree(&list[at..], &format!("{path}::"));
            paths.extend(more);
            at += length;
            // The word after `as` is a name of this file.
            let end = list[at..].find([',', '}']).unwrap_or(list.len() - at);
            at += end;
        } else {
            at += c.len_utf8();
        }
    }
    (paths, name + 3 + at)
}

/// The file whose module is the longest beginning of a path that `module` names.
fn file_of(path: &str, module: &Module, sources: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts = path.split("::").peekable();
    let mut at = if parts.next_if_eq(&"crate").is_some() { Module::new() } else { module.clone() };
    while parts.next_if_eq(&"super").is_some() {
        at.pop();
    }
    for part in parts {
        at.push(part.to_string());
        if !sources.keys().any(|known| known.starts_with(&at)) {
            at.pop();
            break;
        }
    }
    sources.contains_key(&at).then_some(at)
}

/// Sets of files each of which reaches all others of its set.
fn circles(imports: &Imports) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = imports.keys().map(|module| (module, reach(imports, module))).collect();
    let mut found: BTreeSet<BTreeSet<Module>> = BTreeSet::new();
    for (module, others) in &reached {
        let together = others.iter().filter(|other| reached.get(**other).is_some_and(|back| back.contains(module)));
        let circle: BTreeSet<Module> = together.map(|other| (*other).clone()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// Every file that is imported by a file, by those that it imports, and so on.
fn reach<'i>(imports: &'i Imports, from: &Module) -> BTreeSet<&'i Module> {
    let (mut reached, mut next) = (BTreeSet::new(), imports.get(from).into_iter().flatten().collect::<Vec<_>>());
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    reached
}
