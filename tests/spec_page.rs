//! `docs/spec.md` describes the language as the reader has it: every statement, every option and
//! its default; every example compiles; and `shardc help spec` prints the page. What there is to
//! describe is asked of the reader: of its table of statements, and of what it says of an option or
//! a word that nothing is called.

#[path = "../frontend/tests/onnx_support/mod.rs"]
mod onnx_support;
mod support;

use prost::Message;
use serde_json::Value;
use shardc::{Compiled, Options, compile};
use shardc_frontend::spec::{StatementKind, parse, statement_kinds};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::spec::Spec;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use support::{command, example, folder, shardc};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Size;

static PAGE: LazyLock<String> = LazyLock::new(|| {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/spec.md")).expect("the page can be read")
});

/// What no option, kind or value is called, nor resembles.
const NOTHING: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

/// Axes that examples name.
const AXES: [&str; 4] = ["dp", "tp", "pp", "spare"];

/// The cell of an option that a kind does not have.
const ABSENT: &str = "–";

/// The cell of an option that must be there.
const REQUIRED: &str = "required";

/// The section of one statement.
struct Section {
    name: &'static str,
    /// The group that it stands in.
    group: &'static str,
    text: String,
    /// Its forms, one a line.
    forms: Vec<&'static str>,
    fences: Vec<Fence>,
    tables: Vec<Table>,
}

/// Lines of specs.
#[derive(Clone)]
struct Fence {
    /// The model that they are for.
    model: &'static str,
    lines: Vec<&'static str>,
}

type Row = Vec<String>;

struct Table {
    head: Row,
    rows: Vec<Row>,
}

/// The sections of the page, and the fences before them.
fn page() -> (Vec<Fence>, Vec<Section>) {
    let (mut jobs, mut sections): (Vec<Fence>, Vec<Section>) = (vec![], vec![]);
    let (mut group, mut in_table) = ("", false);
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let inner: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            match (info.split_once(' '), sections.last_mut()) {
                (Some(("shard", model)), Some(section)) => section.fences.push(Fence { model, lines: inner }),
                (Some(("shard", model)), None) => jobs.push(Fence { model, lines: inner }),
                (None, Some(section)) if info == "text" => section.forms.extend(inner),
                _ => panic!("what is a fence of `{info}`?"),
            }
        } else if let Some(name) = line.strip_prefix("### ") {
            let (text, forms, fences, tables) = (String::new(), vec![], vec![], vec![]);
            sections.push(Section { name, group, text, forms, fences, tables });
        } else if let Some(name) = line.strip_prefix("## ") {
            group = name;
        } else if let Some(section) = sections.last_mut() {
            match line.strip_prefix('|') {
                Some(row) if !in_table => section.tables.push(Table { head: cells(row), rows: vec![] }),
                Some(row) if !row.starts_with("--") => section.tables.last_mut().expect("a table").rows.push(cells(row)),
                Some(_) => {}
                None => section.text += &format!("{line} "),
            }
        }
        in_table = line.starts_with('|');
    }
    (jobs, sections)
}

fn cells(row: &str) -> Row {
    let row = row.replace("\\|", "\u{0}");
    row.trim().trim_end_matches('|').split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// What stands between backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// The code that a cell is, if it is nothing else.
fn only_code(cell: &str) -> Option<String> {
    let found = code(cell);
    (found.len() == 1 && cell == format!("`{}`", found[0])).then(|| found[0].clone())
}

/// A statement with one kind of options, such as `loss mse`.
struct Form {
    /// How its lines begin.
    title: String,
    /// A line of the page's examples.
    line: String,
    /// The line that shows its options.
    shown: &'static str,
    /// Each option of its table without `=`, or value without quotes: the row, and the cell of its
    /// default.
    rows: BTreeMap<String, (Row, String)>,
}

impl Form {
    /// The names of options that the table has.
    fn options(&self) -> BTreeSet<String> {
        let is_option = |(row, _): &&(Row, String)| code(&row[0])[0].contains('=');
        self.rows.iter().filter(|(_, row)| is_option(row)).map(|(name, _)| name.clone()).collect()
    }

    /// The line of the example without an option.
    fn without(&self, option: &str) -> String {
        let is_other = |word: &&str| !word.starts_with(&format!("{option}="));
        self.line.split_whitespace().filter(is_other).collect::<Vec<_>>().join(" ")
    }
}

/// The forms of a section, of which there are as many as the reader has kinds.
fn forms(section: &Section) -> Vec<Form> {
    let name = section.name;
    let kinds = words_offered(&format!("{name} {NOTHING}"), &format!("`{name}` cannot be"));
    let instead = match kinds.is_empty() {
        true => vec![],
        false => {
            let errors = errors(name);
            let needs = errors.iter().find(|e| e.message.starts_with(&format!("`{name}` needs")));
            code(&needs.expect("a kind is needed").message).into_iter().filter(|word| word.ends_with('=')).collect()
        }
    };
    let mut titles: Vec<(String, String)> = kinds.iter().map(|kind| (format!("{name} {kind}"), format!("`{kind}`"))).collect();
    titles.extend(instead.iter().map(|option| (format!("{name} {option}"), "default".to_string())));
    if titles.is_empty() {
        titles.push((name.to_string(), "default".to_string()));
    }
    let tables: Vec<&Table> = section.tables.iter().filter(|table| table.head[0] == "option").collect();
    let columns: Vec<&String> = tables.iter().flat_map(|table| &table.head[2..]).collect();
    assert_eq!(columns, titles.iter().map(|(_, column)| column).collect::<Vec<_>>(), "the kinds of `{name}`");
    titles.into_iter().map(|(title, column)| form(section, &tables, title, &column)).collect()
}

fn form(section: &Section, tables: &[&Table], title: String, column: &str) -> Form {
    let begins = |line: &str| {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        line == title || line.starts_with(&format!("{title} ")) || (title.ends_with('=') && line.starts_with(&title))
    };
    let table = tables.iter().find(|table| table.head.iter().any(|cell| cell == column)).expect("a table");
    let at = table.head.iter().position(|cell| cell == column).expect("a column");
    let mut rows = BTreeMap::new();
    for row in table.rows.iter().filter(|row| row[at] != ABSENT) {
        let first = only_code(&row[0]).unwrap_or_else(|| panic!("an option and its value: {row:?}"));
        let name = first.split('=').next().expect("a name").trim_matches('"').to_string();
        assert!(rows.insert(name, (row.clone(), row[at].clone())).is_none(), "twice in the table of `{title}`: {row:?}");
    }
    let line = section.fences.iter().flat_map(|fence| &fence.lines).find(|line| begins(line));
    let line = line.unwrap_or_else(|| panic!("no example of `{title}`")).split(" #").next().expect("a line").to_string();
    let shown = section.forms.iter().find(|line| begins(line)).unwrap_or_else(|| panic!("no form of `{title}`"));
    Form { title, line, shown, rows }
}

/// The sections of statements that are built.
fn built() -> Vec<Section> {
    let is_built = |section: &Section| statement_kinds().any(|kind| kind.name == section.name && kind.is_built);
    page().1.into_iter().filter(is_built).collect()
}

/// `line` as a file, with axes to name; none of them is left with ranks that share nothing.
fn file(line: &str) -> String {
    match line.starts_with("mesh") {
        true => format!("{line}\ndata axis=(dp,tp)\n"),
        false => format!("{line}\nmesh{}\n", AXES.map(|axis| format!(" {axis}=1")).concat()),
    }
}

fn read(text: &str) -> Result<Spec, Diagnostics> {
    parse(Path::new("page.shard"), text)
}

fn errors(line: &str) -> Diagnostics {
    read(&file(line)).err().unwrap_or_default()
}

/// The words that the reader offers where its error begins like this; none where it has no such
/// error.
fn words_offered(line: &str, error: &str) -> Vec<String> {
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
        let StatementKind { name, repeats, example, is_built } =
            statement_kinds().find(|kind| kind.name == section.name).expect("a kind");
        assert_eq!(section.group == "Not built yet", !is_built, "`{name}` stands under `{}`", section.group);
        assert!(section.text.trim().starts_with(&format!("`{name}` ")), "`{name}` opens with its name");
        if is_built {
            assert!(!section.forms.is_empty() && !section.fences.is_empty() && !section.tables.is_empty(), "`{name}`");
            let (once, often) = (section.text.contains("It may come once"), section.text.contains("any number of times"));
            assert_eq!((once || often, often), (true, repeats), "how often `{name}` may come");
            assert!(section.text.contains("Without it, "), "what holds without `{name}`");
        } else {
            let nothing = section.forms.is_empty() && section.fences.is_empty() && section.tables.is_empty();
            let sentences = section.text.trim().matches(". ").count() + 1;
            assert!(nothing && sentences == 1, "`{name}` is not built, and no form of it is shown");
        }
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
    for section in built() {
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
                // What is filled in for capitals has other names. Without an option that it does
                // not have a line stays good.
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
    for section in built() {
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

/// A spec without the places of its parts.
fn said(text: &str) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("source");
                map.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let spec = read(&file(text)).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
    let mut value = serde_json::to_value(spec).expect("JSON");
    strip(&mut value);
    value
}

#[test]
fn every_default_is_true() {
    let mut checked = 0;
    for section in built() {
        for form in forms(&section) {
            for (option, (_, cell)) in &form.rows {
                let Some(default) = only_code(cell) else { continue };
                let line = form.without(option);
                assert_eq!(
                    said(&line),
                    said(&format!("{line} {option}={default}")),
                    "`{option}` of `{}` is `{default}`",
                    form.title
                );
                checked += 1;
            }
        }
    }
    assert!(checked >= 25, "{checked} defaults");
}

/// Where the page says that without a statement a job is that of a line, it is.
#[test]
fn what_holds_without_a_statement_is_true() {
    let mut checked = 0;
    for section in built() {
        let (_, after) = section.text.split_once("Without it, ").expect("what holds without it");
        let sentence = after.split(". ").next().expect("a sentence");
        let Some(line) = code(sentence).into_iter().find(|word| word.starts_with(&format!("{} ", section.name))) else {
            continue;
        };
        let model = Model::named("digits");
        let (without, with) = (model.compile(&[]), model.compile(&[&line]));
        let programs = |compiled: Compiled| compiled.plans.map(|plan| plan.program);
        assert_eq!(programs(without), programs(with), "`{line}`");
        checked += 1;
    }
    assert_eq!(checked, 2, "schedule and seed");
}

/// A model that examples are for, and the lines that a job of it has where an example does not say
/// otherwise.
struct Model {
    file: PathBuf,
    lines: &'static [&'static str],
}

impl Model {
    fn named(name: &str) -> Model {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
        let (file, lines): (PathBuf, &[&str]) = match name {
            "digits" => {
                (example("digits/model.onnx").into(), &["batch 64", "loss cross_entropy labels=y", "optimizer sgd lr=0.1"])
            }
            "tiny-gpt" => (
                example("tiny-gpt/model.onnx").into(),
                &["batch 8", "loss cross_entropy labels=targets", "optimizer adamw lr=1e-3"],
            ),
            "grouped" => (tests.join("grouped/model.onnx"), &["batch 8", "loss cross_entropy labels=y", "optimizer sgd lr=0.1"]),
            "batchnorm" => {
                (tests.join("batchnorm/model.onnx"), &["batch 32", "loss cross_entropy labels=y", "optimizer sgd lr=0.1"])
            }
            "own-loss" => (tests.join("losses/own-rms.onnx"), &["batch 8", "optimizer sgd lr=0.1"]),
            "exported" => (
                exported(),
                &[
                    "batch 4",
                    "bind seq=8",
                    "loss cross_entropy labels=y",
                    "optimizer sgd lr=0.1",
                    "tie \"wte.weight\" \"onnx::MatMul_364\"^T",
                    "untie \"*\"",
                ],
            ),
            other => panic!("which model is `{other}`?"),
        };
        Model { file, lines }
    }

    /// The job with these lines, in the place of its own lines of the same statements.
    fn compile(&self, lines: &[&str]) -> Compiled {
        let given: BTreeSet<&str> = lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
        let own = self.lines.iter().filter(|line| !given.contains(line.split(' ').next().unwrap_or_default()));
        let text: String = own.chain(lines).map(|line| format!("{line}\n")).collect();
        let told =
            |errors: Diagnostics| -> Spec { panic!("{text}\n{}", errors.iter().map(|e| format!("{e}\n")).collect::<String>()) };
        let spec = read(&text).unwrap_or_else(told);
        compile(&self.file, &spec, &Options::default()).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"))
    }
}

/// What exporters make of a small language model: symbolic sizes, a head that is the transpose of
/// the embedding, two norms with one scale, and logits scaled by a number.
fn exported() -> PathBuf {
    const WORDS: usize = 12;
    const WIDTH: usize = 4;
    let mut model = onnx_support::model(17);
    onnx_support::input(&mut model, "tokens", DataType::Int64, &[-1, -2]);
    name_dimensions(&mut model, ["batch", "seq"]).expect("an input with a shape");
    let table: Vec<f32> = (0..WORDS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let turned: Vec<f32> = (0..WORDS * WIDTH).map(|i| table[i % WORDS * WIDTH + i / WORDS]).collect();
    let (words, width) = (WORDS as i64, WIDTH as i64);
    for tensor in [
        onnx_support::floats("wte.weight", &[words, width], &table),
        onnx_support::floats("norm.weight", &[width], &[1.0; WIDTH]),
        onnx_support::floats("onnx::MatMul_364", &[width, words], &turned),
        onnx_support::floats("logit_scale", &[], &[2.0]),
    ] {
        onnx_support::initializer(&mut model, tensor);
    }
    for (op, inputs, output) in [
        ("Gather", "wte.weight tokens", "embedded"),
        ("LayerNormalization", "embedded norm.weight", "first"),
        ("Relu", "first", "active"),
        ("LayerNormalization", "active norm.weight", "second"),
        ("MatMul", "second onnx::MatMul_364", "product"),
        ("Mul", "product logit_scale", "logits"),
    ] {
        onnx_support::node(&mut model, op, inputs, output, vec![]);
    }
    onnx_support::output(&mut model, "logits");
    let file = folder(&format!("spec-page-{:?}", std::thread::current().id())).join("model.onnx");
    fs::write(&file, model.encode_to_vec()).expect("the model is written");
    file
}

/// Makes the dimensions of the first input symbols.
fn name_dimensions(model: &mut pb::ModelProto, names: [&str; 2]) -> Option<()> {
    let pb::type_proto::Value::TensorType(tensor) = model.graph.as_mut()?.input[0].r#type.as_mut()?.value.as_mut()?;
    for (dim, name) in tensor.shape.as_mut()?.dim.iter_mut().zip(names) {
        dim.value = Some(Size::DimParam(name.to_string()));
    }
    Some(())
}

/// The jobs of a fence: lines of a statement that may come once are alternatives where there are
/// several.
fn jobs(fence: &Fence) -> Vec<Vec<&'static str>> {
    let lines: Vec<&str> = fence.lines.iter().copied().filter(|line| !line.trim().is_empty()).collect();
    let word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_string();
    let once = |line: &str| statement_kinds().any(|kind| kind.name == word(line) && !kind.repeats);
    let same = |line: &str| lines.iter().filter(|other| word(other) == word(line)).count();
    let number = lines.iter().filter(|line| once(line)).map(|line| same(line)).max().unwrap_or(1);
    let job = |n: usize| {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let taken = |line: &&&str| {
            let count = seen.entry(word(line)).or_default();
            *count += 1;
            !once(line) || same(line) == 1 || *count == n + 1
        };
        lines.iter().filter(taken).copied().collect()
    };
    (0..number).map(job).collect()
}

#[test]
fn every_example_compiles() {
    let (whole, sections) = page();
    assert!(whole.len() >= 2, "a job for one rank, and one for several");
    for fence in &whole {
        let job = read(&fence.lines.join("\n")).expect("a spec");
        assert_eq!(job.require_training(), Ok(()), "the first jobs are whole");
    }
    let mut compiled = 0;
    for fence in whole.iter().chain(sections.iter().flat_map(|section| &section.fences)) {
        let model = Model::named(fence.model);
        for job in jobs(fence) {
            model.compile(&job);
            compiled += 1;
        }
        assert!(fence.lines.iter().all(|line| line.chars().count() <= 96), "a terminal shows it indented by 4");
    }
    assert!(compiled > 30, "{compiled} jobs");
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
