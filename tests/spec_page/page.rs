//! `docs/spec.md` in parts: its sections, their tables and examples.

use crate::{NOTHING, errors, words_offered};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

pub(crate) static PAGE: LazyLock<String> = LazyLock::new(|| {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/spec.md")).expect("the page can be read")
});

/// The cell of an option that a kind does not have.
const ABSENT: &str = "–";

/// The cell of an option that must be there.
pub(crate) const REQUIRED: &str = "required";

/// The section of one statement.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// Its forms, one a line.
    pub(crate) forms: Vec<&'static str>,
    pub(crate) fences: Vec<Fence>,
    pub(crate) tables: Vec<Table>,
}

/// Lines of specs.
#[derive(Clone)]
pub(crate) struct Fence {
    /// The model that they are for.
    pub(crate) model: &'static str,
    pub(crate) lines: Vec<&'static str>,
}

pub(crate) type Row = Vec<String>;

pub(crate) struct Table {
    pub(crate) head: Row,
    pub(crate) rows: Vec<Row>,
}

/// The sections of the page, and the fences before them.
pub(crate) fn page() -> (Vec<Fence>, Vec<Section>) {
    let (mut jobs, mut sections): (Vec<Fence>, Vec<Section>) = (vec![], vec![]);
    let mut in_table = false;
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
            sections.push(Section { name, text, forms, fences, tables });
        } else if let Some(section) = sections.last_mut().filter(|_| !line.starts_with("## ")) {
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

/// The texts between backticks.
pub(crate) fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// The code that a cell is, if it is nothing else.
pub(crate) fn only_code(cell: &str) -> Option<String> {
    let found = code(cell);
    (found.len() == 1 && cell == format!("`{}`", found[0])).then(|| found[0].clone())
}

/// A statement with one kind of options, such as `loss mse`.
pub(crate) struct Form {
    /// How its lines begin.
    pub(crate) title: String,
    /// A line of the page's examples.
    pub(crate) line: String,
    /// The line that shows its options.
    pub(crate) shown: &'static str,
    /// Each option of its table without `=`, or value without quotes: the row, and the cell of its
    /// default.
    pub(crate) rows: BTreeMap<String, (Row, String)>,
}

impl Form {
    /// The names of options that the table has.
    pub(crate) fn options(&self) -> BTreeSet<String> {
        let is_option = |(row, _): &&(Row, String)| code(&row[0])[0].contains('=');
        self.rows.iter().filter(|(_, row)| is_option(row)).map(|(name, _)| name.clone()).collect()
    }

    /// The line of the example without an option.
    pub(crate) fn without(&self, option: &str) -> String {
        let is_other = |word: &&str| !word.starts_with(&format!("{option}="));
        self.line.split_whitespace().filter(is_other).collect::<Vec<_>>().join(" ")
    }
}

/// The forms of a section, of which there are as many as the reader has kinds.
pub(crate) fn forms(section: &Section) -> Vec<Form> {
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

pub(crate) fn form(section: &Section, tables: &[&Table], title: String, column: &str) -> Form {
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

/// The sections of statements.
pub(crate) fn sections() -> Vec<Section> {
    page().1
}
