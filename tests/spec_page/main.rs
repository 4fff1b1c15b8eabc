//! `docs/spec.md` describes the language as the reader has it: every statement, every option and
//! its default; every example compiles; and `shardc help spec` prints the page. The reader itself
//! tells what there is to describe: its table of statements, and its errors about an option or a
//! word that does not exist.

mod examples;
mod page;
#[path = "../support/mod.rs"]
mod support;

use crate::page::{PAGE, REQUIRED, code, forms, only_code, page, sections};
use crate::support::{command, folder, shardc};
use shardc_frontend::spec::{StatementKind, parse, statement_kinds};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::spec::Spec;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

/// A word that no option, kind or value is or resembles.
pub(crate) const NOTHING: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

/// Axes that examples name.
const AXES: [&str; 4] = ["dp", "tp", "pp", "spare"];

/// `line` as a file, with axes to name; none of them is left with ranks that share nothing, and
/// what is cut over ranks is over some that read different samples.
pub(crate) fn file(line: &str) -> String {
    let axes = || AXES.map(|axis| format!(" {axis}=1")).concat();
    match line.split_whitespace().next() {
        Some("mesh") => format!("{line}\ndata axis=(dp,tp)\n"),
        Some("zero") => format!("{line}\nmesh{}\ndata axis=(dp,tp)\n", axes()),
        _ => format!("{line}\nmesh{}\n", axes()),
    }
}

pub(crate) fn read(text: &str) -> Result<Spec, Diagnostics> {
    parse(Path::new("page.shard"), text)
}

pub(crate) fn errors(line: &str) -> Diagnostics {
    read(&file(line)).err().unwrap_or_default()
}

/// The words that the reader offers where its error begins like this; none where it has no such
/// error.
pub(crate) fn words_offered(line: &str, error: &str) -> Vec<String> {
    let errors = errors(line);
    let help = errors.iter().find(|e| e.message.starts_with(error)).and_then(|e| e.help.as_deref());
    code(help.unwrap_or_default())
}

/// The options that the reader takes in a statement or call that is good but for [`NOTHING`];
/// `None` where it takes any name.
fn options_of_reader(line: &str) -> Option<BTreeSet<String>> {
    let errors = errors(line);
    let error = errors.iter().find(|e| e.message.contains(&format!("has no option `{NOTHING}`")))?;
    let help = error.help.as_deref().expect("help");
    Some(if help.contains("option") { code(help).into_iter().collect() } else { BTreeSet::new() })
}

#[test]
fn every_statement_has_its_section() {
    let (_, sections) = page();
    let described: Vec<&str> = sections.iter().map(|section| section.name).collect();
    let distinct: BTreeSet<&str> = described.iter().copied().collect();
    assert_eq!(distinct.len(), described.len(), "none twice: {described:?}");
    assert_eq!(distinct, statement_kinds().map(|kind| kind.name).collect());
    for section in &sections {
        let StatementKind { name, repeats, example } = statement_kinds().find(|kind| kind.name == section.name).expect("a kind");
        assert!(section.text.trim().starts_with(&format!("`{name}` ")), "`{name}` opens with its name");
        assert!(!section.forms.is_empty() && !section.fences.is_empty() && !section.tables.is_empty(), "`{name}`");
        let (once, often) = (section.text.contains("It may come once"), section.text.contains("any number of times"));
        assert_eq!((once || often, often), (true, repeats), "how often `{name}` may come");
        assert!(section.text.contains("Without it, "), "what holds without `{name}`");
        let example = if name == "place" {
            format!("pipeline axis=pp schedule=interleaved(chunks=2)\n{example}")
        } else {
            example.to_string()
        };
        assert_eq!(errors(&example), [], "the reader's own example");
    }
    for (number, line) in PAGE.lines().enumerate() {
        let longest = if line.starts_with('|') { usize::MAX } else { 100 };
        assert!(line.chars().count() <= longest, "line {} of the page is long", number + 1);
    }
}

#[test]
fn every_option_has_its_row() {
    let mut asked = 0;
    for section in sections() {
        let forms = forms(&section);
        assert_eq!(section.forms.len(), forms.len(), "the forms of `{}`", section.name);
        for form in forms {
            let title = &form.title;
            assert_eq!(errors(&form.line), [], "{}", form.line);
            match options_of_reader(&format!("{} {NOTHING}=1", form.line)) {
                Some(options) => {
                    assert_eq!(form.options(), options, "the options of `{title}`");
                    asked += options.len();
                }
                None => {
                    assert!(form.options().iter().all(|name| name.chars().all(char::is_uppercase)), "`{title}` takes any name")
                }
            }
            let shown: BTreeMap<String, bool> = form
                .shown
                .split_whitespace()
                .skip(title.split_whitespace().filter(|word| !word.ends_with('=')).count())
                .map(|word| {
                    let bare = word.trim_start_matches('[').trim_end_matches(']');
                    (bare.split('=').next().expect("a name").trim_matches('"').to_string(), !word.starts_with('['))
                })
                .collect();
            let rows: BTreeMap<String, bool> =
                form.rows.iter().map(|(name, (_, cell))| (name.clone(), cell == REQUIRED)).collect();
            assert_eq!(shown, rows, "`{}` shows what its table has, in brackets what may be left out", form.shown);
            for option in form.options() {
                // Options that are filled in for capitals have other names. Without an option that
                // it does not have a line stays good.
                let is_any = option.chars().all(char::is_uppercase);
                let without = if is_any { title.clone() } else { form.without(&option) };
                let needed = !errors(&without).is_empty();
                assert_eq!(needed, rows[&option], "whether `{title}` needs `{option}`");
            }
        }
    }
    assert!(asked > 40, "{asked} options");
}

/// The words that an option or value may be, and the units of sizes.
#[test]
fn every_choice_is_named() {
    let mut named = 0;
    for section in sections() {
        for form in forms(&section) {
            for option in form.options() {
                let (row, _) = &form.rows[&option];
                let line = format!("{} {option}={NOTHING}", form.without(&option));
                let offered = errors(&line).into_iter().filter(|e| e.message.starts_with(&format!("`{option}` ")));
                let words = offered.flat_map(|e| code(e.help.as_deref().unwrap_or_default()));
                // Axes of the mesh and quotes around a name are no words of the language.
                let words: BTreeSet<String> =
                    words.filter(|word| !AXES.contains(&word.as_str()) && !word.contains(NOTHING)).collect();
                let known: BTreeSet<String> = code(&row[1]).into_iter().collect();
                assert!(words.iter().all(|word| known.contains(word)), "`{option}` may be {words:?}, and the row has {known:?}");
                named += words.len();
            }
        }
    }
    assert!(named >= 14, "{named} words");
}

fn first_column(section: &str, head: &str) -> BTreeSet<String> {
    let (_, sections) = page();
    let section = sections.iter().find(|s| s.name == section).expect("a section");
    let table = section.tables.iter().find(|table| table.head[0] == head).expect("a table");
    table.rows.iter().map(|row| only_code(&row[0]).expect("code")).collect()
}

#[test]
fn entries_of_dimensions_and_first_values_are_complete() {
    let entries = words_offered("shard \"w\" [3 tp]", "`3 tp` is not a dimension");
    assert_eq!(first_column("shard", "entry"), entries.into_iter().collect());
    for entry in first_column("shard", "entry") {
        assert_eq!(errors(&format!("shard \"w\" [{entry}]")), [], "{entry}");
    }
    let values = first_column("init", "values");
    let heads: BTreeSet<String> = values.iter().map(|v| v.split('(').next().expect("a head").to_string()).collect();
    let offered = words_offered(&format!("init \"*\" {NOTHING}"), "`init` cannot be");
    assert_eq!(heads, offered.into_iter().collect());
    for value in values {
        let head = value.split('(').next().expect("a head");
        let options = options_of_reader(&format!("init \"*\" {head}({NOTHING}=1)")).expect("a call has options of its own");
        let shown: BTreeSet<String> =
            value.split(['(', ',', ')']).filter_map(|o| Some(o.split_once('=')?.0.to_string())).collect();
        assert_eq!(shown, options, "{value}");
    }
}

#[test]
fn help_prints_the_page_and_its_sections() {
    let here = folder("help-spec");
    let whole = shardc(&here, &["help", "spec"]).expect(0).out;
    let is_heading = |text: &str, name: &str| text.contains(&format!("\n{name}\n{}\n", "-".repeat(name.len())));
    for kind in statement_kinds() {
        assert!(is_heading(&whole, kind.name), "`{}` is printed", kind.name);
        let section = shardc(&here, &["help", "spec", kind.name]).expect(0).out;
        assert!(whole.contains(section.trim_end()), "the section of `{}`", kind.name);
        let others: Vec<&str> =
            statement_kinds().map(|other| other.name).filter(|n| is_heading(&format!("\n{section}"), n)).collect();
        assert_eq!(others, [kind.name]);
    }
    let shard = shardc(&here, &["help", "spec", "shard"]).expect(0).out;
    assert!(shard.starts_with("shard\n-----\n") && shard.contains("\n    shard \"PATTERN\" ENTRIES\n"), "{shard}");
    assert!(shard.contains("\n(64|32|32)*tp  blocks of these sizes"), "{shard}");
    for mark in ["```", "|--", "](", "\\|", "**"] {
        assert!(!whole.contains(mark), "`{mark}` is for Markdown");
    }
    for line in whole.lines() {
        assert!(line.chars().count() <= 100 && !line.ends_with(' '), "{line}");
    }
}

#[test]
fn help_of_commands_is_as_before() {
    let here = folder("help-commands");
    for command in ["train", "compile", "verify", "help"] {
        let help = shardc(&here, &["help", command]).expect(0).out;
        assert!(help.contains(&format!("Usage: shardc {command}")), "{help}");
    }
    assert_eq!(shardc(&here, &["help", "train"]).expect(0).out, shardc(&here, &["train", "--help"]).expect(0).out);
    let all = shardc(&here, &["help"]).expect(0).out;
    assert_eq!(all, shardc(&here, &["--help"]).expect(0).out);
    assert!(all.contains("\n  compile ") && all.contains("\n  help "), "{all}");
    for (arguments, says) in [
        (&["help", "spec", "shrad"][..], "`shard`"),
        (&["help", "spec", "Rules"], "the spec is called `Rules`"),
        (&["help", "spec", NOTHING], "`accept`"),
        (&["help", "trian"], "`train`"),
        (&["help", "spce"], "`spec`"),
        (&["help", "train", "shard"], "only `spec`"),
        (&["help", "spec", "shard", "tensor"], "unexpected argument 'tensor'"),
    ] {
        let ran = shardc(&here, arguments).expect(2);
        assert!(ran.err.contains(says) && ran.out.is_empty(), "{arguments:?}: {}", ran.err);
    }
    for arguments in [&["help"][..], &["help", "spec"], &["help", "spec", "shard"], &["help", "train"]] {
        let mut child =
            command(&here, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert!(child.wait().expect("it ends").success() && said.is_empty(), "{arguments:?}: {said}");
    }
}

/// Errors point to the section that helps.
#[test]
fn a_missing_statement_is_told_with_its_section() {
    let told = Spec { file: "job.shard".into(), ..Spec::default() }.require_training().expect_err("nothing is said");
    for error in &told {
        let help = error.help.as_deref().expect("help");
        let pointed = code(help).into_iter().find_map(|word| word.strip_prefix("shardc help spec ").map(str::to_string));
        assert!(page().1.iter().any(|section| Some(section.name) == pointed.as_deref()), "{help}");
    }
    assert_eq!(told.len(), 3);
}
