//! The table of statements, and how a file's statements fill a [`Spec`].

use super::context::{Context, listed, quote, suggestion};
use super::reader::Reader;
use super::syntax::{self, Form, Item, Line, Statement, Value};
use super::{layout, state, training};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::spec::Spec;
use std::path::Path;

/// A kind of statement.
struct Kind {
    name: &'static str,
    repeats: Repeats,
    example: &'static str,
    /// Fills its field, or reports what is wrong and gives `None`.
    read: fn(&mut Reader<'_, '_, '_>, &mut Spec) -> Option<()>,
}

/// How often a statement may come.
#[derive(PartialEq)]
enum Repeats {
    Once,
    /// Any number of times; those that take `on=` at most once without it, which `check` sees to.
    Often,
}

/// The statement that names the axes.
const MESH: &str = "mesh";

#[rustfmt::skip]
const STATEMENTS: &[Kind] = &[
    Kind { name: MESH,        repeats: Repeats::Once,  example: "mesh dp=2 tp=2",                       read: layout::mesh },
    Kind { name: "batch",     repeats: Repeats::Once,  example: "batch 8 microbatches=4",               read: training::batch },
    Kind { name: "bind",      repeats: Repeats::Once,  example: "bind seq=32",                          read: training::bind },
    Kind { name: "loss",      repeats: Repeats::Once,  example: "loss cross_entropy labels=y",          read: training::loss },
    Kind { name: "optimizer", repeats: Repeats::Once,  example: "optimizer adamw lr=1e-3",              read: training::optimizer },
    Kind { name: "schedule",  repeats: Repeats::Once,  example: "schedule cosine warmup=100 steps=2000", read: training::schedule },
    Kind { name: "clip",      repeats: Repeats::Once,  example: "clip norm=1.0",                        read: training::clip },
    Kind { name: "data",      repeats: Repeats::Often, example: "data axis=dp",                         read: layout::data },
    Kind { name: "tensor",    repeats: Repeats::Often, example: "tensor axis=tp",                       read: layout::tensor },
    Kind { name: "sequence",  repeats: Repeats::Once,  example: "sequence axis=tp",                     read: layout::sequence },
    Kind { name: "shard",     repeats: Repeats::Often, example: "shard \"*.weight\" [-, tp]",           read: layout::shard },
    Kind { name: "zero",      repeats: Repeats::Often, example: "zero stage=1 axis=dp",                 read: layout::zero },
    Kind { name: "pipeline",  repeats: Repeats::Once,  example: "pipeline axis=pp schedule=1f1b",       read: layout::pipeline },
    Kind { name: "place",     repeats: Repeats::Often, example: "place \"*.branch3\" stage=1",          read: layout::place },
    Kind { name: "precision", repeats: Repeats::Once,  example: "precision compute=bf16 master=f32",    read: state::precision },
    Kind { name: "recompute", repeats: Repeats::Often, example: "recompute \"*.h.*\"",                  read: state::recompute },
    Kind { name: "batchnorm", repeats: Repeats::Once,  example: "batchnorm statistics=microbatch",      read: state::batchnorm },
    Kind { name: "device",    repeats: Repeats::Once,  example: "device memory=80GiB",                  read: state::device },
    Kind { name: "init",      repeats: Repeats::Often, example: "init \"*\" auto",                      read: state::init },
    Kind { name: "freeze",    repeats: Repeats::Often, example: "freeze \"*.wpe.weight\"",              read: state::freeze },
    Kind { name: "train",     repeats: Repeats::Often, example: "train \"logit_scale\"",                read: state::train },
    Kind { name: "tie",       repeats: Repeats::Often, example: "tie \"wte.weight\" \"lm_head.weight\"", read: state::tie },
    Kind { name: "untie",     repeats: Repeats::Often, example: "untie \"*\"",                          read: state::untie },
    Kind { name: "replicate", repeats: Repeats::Often, example: "replicate axis=dp",                    read: layout::replicate },
    Kind { name: "accept",    repeats: Repeats::Once,  example: "accept lost=parameters",               read: state::accept },
    Kind { name: "seed",      repeats: Repeats::Once,  example: "seed 1234",                            read: training::seed },
];

/// A kind of statement, as the spec's page describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementKind {
    /// Its first word.
    pub name: &'static str,
    /// Whether it may come more than once.
    pub repeats: bool,
    /// A good one, over axes dp, tp and pp.
    pub example: &'static str,
}

/// Every kind of statement, in the order of the table.
pub fn statement_kinds() -> impl Iterator<Item = StatementKind> {
    STATEMENTS.iter().map(|kind| StatementKind {
        name: kind.name,
        repeats: kind.repeats == Repeats::Often,
        example: kind.example,
    })
}

/// Reads `text` into a spec; what is wrong is reported and left out.
pub fn read(path: &Path, text: &str, context: &mut Context<'_>) -> Spec {
    let mut spec = Spec { file: path.to_path_buf(), ..Spec::default() };
    let mut first_lines = vec![None; STATEMENTS.len()];
    // Axes are looked up by all other statements, which may stand above the mesh.
    let is_mesh = |line: &Line<'_>| line.text.trim_start().starts_with(MESH);
    for line in syntax::lines(text).filter(is_mesh).chain(syntax::lines(text).filter(|line| !is_mesh(line))) {
        if context.is_full() {
            break;
        }
        if let Some(statement) = line.statement(context) {
            read_statement(&statement, &mut first_lines, context, &mut spec);
        }
    }
    spec
}

/// Reads `statement` into `spec`. `first_lines` has the line that each kind came on first.
fn read_statement(statement: &Statement<'_>, first_lines: &mut [Option<usize>], context: &mut Context<'_>, spec: &mut Spec) {
    let Some(position) = STATEMENTS.iter().position(|kind| kind.name == statement.keyword.text) else {
        return unknown(statement, context);
    };
    let kind = &STATEMENTS[position];
    if let Some(line) = first_lines[position]
        && kind.repeats == Repeats::Once
    {
        let error = Diagnostic::error(format!("`{}` is given twice", kind.name));
        return context.report(statement.source, error.label(format!("the first is on line {line}")).help("keep one of the two"));
    }
    first_lines[position] = Some(statement.source.line);
    // Reading what is not sound only adds errors that follow from the first; but even such a mesh
    // names its axes.
    if statement.is_sound || kind.name == MESH {
        let items = until_next(&statement.items, context);
        let mut reader = Reader::new(kind.name, kind.example, statement.source, items, context);
        (kind.read)(&mut reader, spec);
        if statement.is_sound {
            reader.finish();
        }
    }
}

/// The items of a statement up to the name of another one, before which a line should have ended.
fn until_next<'i, 't>(items: &'i [Item<'t>], context: &mut Context<'_>) -> &'i [Item<'t>] {
    let begins = |item: &Item<'t>| match item {
        Item::Value(Value { form: Form::Word, text }) if STATEMENTS.iter().any(|kind| kind.name == text.text) => Some(*text),
        _ => None,
    };
    let Some((at, next)) = items.iter().enumerate().find_map(|(at, item)| begins(item).map(|next| (at, next))) else {
        return items;
    };
    let error = Diagnostic::error(format!("the line should end before {}", quote(next.text)));
    context.report(next.source, error.label("a statement begins here").help("write one statement a line"));
    &items[..at]
}

fn unknown(statement: &Statement<'_>, context: &mut Context<'_>) {
    let keyword = statement.keyword;
    let names = || STATEMENTS.iter().map(|kind| kind.name);
    let help = suggestion(keyword.text, names(), || format!("the statements are {}", listed(names())));
    context.report(keyword.source, Diagnostic::error(format!("unknown statement {}", quote(keyword.text))).help(help));
}
