//! From the text of a spec to statements of words, names, lists and dimensions, before any of them
//! means something.

use super::context::{Context, quote};
use pest::Parser;
use pest::iterators::Pair;
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::spec::Source;

/// A piece of the file.
#[derive(Debug, Clone, Copy)]
pub struct Text<'t> {
    pub text: &'t str,
    pub source: Source,
}

/// One statement.
pub struct Statement<'t> {
    /// Its first word.
    pub keyword: Text<'t>,
    /// Its parts after the keyword.
    pub items: Vec<Item<'t>>,
    /// From its first to its last character.
    pub source: Source,
    /// Whether its brackets, quotes and commas are in order.
    pub is_sound: bool,
}

/// A part of a statement or of a list.
pub enum Item<'t> {
    /// `key=value`.
    Option(Text<'t>, Value<'t>),
    /// A value alone.
    Value(Value<'t>),
}

/// A value: its text and what kind of thing it is.
pub struct Value<'t> {
    pub text: Text<'t>,
    pub form: Form<'t>,
}

/// The kinds of values.
pub enum Form<'t> {
    /// `dp`, `1e-3`.
    Word,
    /// `"a.b"` or `"a.b"^T`.
    Name { name: &'t str, transposed: bool },
    /// `normal(std=0.02)`.
    Call { function: Text<'t>, arguments: Vec<Item<'t>> },
    /// `(dp, fsdp)`.
    List(Vec<Item<'t>>),
    /// `[-, 3*tp]`.
    Dims(Vec<Dim<'t>>),
}

/// One dimension of a `shard` line.
pub struct Dim<'t> {
    pub text: Text<'t>,
    pub form: DimForm<'t>,
}

/// The kinds of dimensions.
pub enum DimForm<'t> {
    /// `-`, `?`, `tp`, `(dp,tp)`, `3*tp`, `(64|32|32)*tp`: one block count, or several sizes, or
    /// none.
    Split { blocks: Vec<Text<'t>>, axes: Vec<Text<'t>> },
    /// `[8:dp 32:tp]`.
    Letters(Vec<(Text<'t>, Vec<Text<'t>>)>),
}

/// The bytes of the longest line: a parser holds many times its text.
const LONGEST: usize = 128 << 10;

#[derive(pest_derive::Parser)]
#[grammar = "spec/grammar.pest"]
struct Grammar;

/// The lines of `text`.
pub fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    text[start..].split('\n').enumerate().map(move |(index, line)| {
        let at = start;
        start += line.len() + 1;
        Line { number: index + 1, start: at, text: line.strip_suffix('\r').unwrap_or(line) }
    })
}

/// A line of a spec, with its number and the offset at which it starts.
#[derive(Clone, Copy)]
pub struct Line<'t> {
    number: usize,
    start: usize,
    /// Without its end.
    pub text: &'t str,
}

impl<'t> Line<'t> {
    /// The statement of this line, if it has one; what is not in order is reported, and the
    /// statement marked as not sound.
    pub fn statement(self, context: &mut Context<'_>) -> Option<Statement<'t>> {
        let whole = self.source(0, self.text.len());
        if let Some(offset) = self.text.trim_end_matches('\r').find('\r') {
            let error = Diagnostic::error("a carriage return inside a line");
            context.report(self.source(offset, offset + 1), error.help("end lines with a line feed"));
            return None;
        }
        if self.text.trim_start().starts_with('#') {
            return None;
        }
        if self.text.len() > LONGEST {
            let error = Diagnostic::error(format!("the line has {} bytes", self.text.len()));
            context.report(whole, error.help(format!("a line has at most {LONGEST} bytes")));
            return None;
        }
        match Grammar::parse(Rule::line, self.text) {
            Ok(pairs) => {
                let pair = pairs.flat_map(Pair::into_inner).find(|pair| pair.as_rule() == Rule::statement);
                pair.and_then(|pair| self.read(pair, context))
            }
            Err(_) => {
                context.report(whole, Diagnostic::error("this line cannot be read"));
                None
            }
        }
    }

    fn source(self, from: usize, to: usize) -> Source {
        Source { line: self.number, span: (self.start + from, self.start + to) }
    }

    /// The text of a node without the blanks that the grammar lets it end with.
    fn text(self, pair: &Pair<'t, Rule>) -> Text<'t> {
        let text = pair.as_str().trim_end();
        let from = pair.as_span().start();
        Text { text, source: self.source(from, from + text.len()) }
    }

    fn read(self, pair: Pair<'t, Rule>, context: &mut Context<'_>) -> Option<Statement<'t>> {
        let errors = context.errors();
        let source = self.text(&pair).source;
        let mut parts = pair.into_inner();
        let first = parts.next()?;
        let keyword = self.text(&first);
        if first.as_rule() != Rule::word {
            let error = Diagnostic::error(format!("expected a statement, not {}", quote(keyword.text)));
            context.report(keyword.source, error.help("a statement begins with its name, without `=`: `seed 1234`"));
            return None;
        }
        let items = self.items(parts, context);
        Some(Statement { keyword, items, source, is_sound: context.errors() == errors })
    }

    /// The items among `pairs`; the first stray character is reported, as the others may come from
    /// it.
    fn items(self, pairs: impl Iterator<Item = Pair<'t, Rule>>, context: &mut Context<'_>) -> Vec<Item<'t>> {
        let mut items = vec![];
        let mut strayed = false;
        for pair in pairs {
            match pair.as_rule() {
                Rule::stray => {
                    let text = self.text(&pair);
                    let mut error = Diagnostic::error(format!("unexpected {}", quote(text.text)));
                    match text.text {
                        "=" => error.help = Some("an option is `name=value`".to_string()),
                        "," => error.help = Some("the parts of a statement are separated by blanks".to_string()),
                        _ => {}
                    }
                    if !strayed {
                        context.report(text.source, error);
                    }
                    strayed = true;
                }
                Rule::option | Rule::setting => {
                    let option = self.option(pair, context);
                    strayed |= option.is_none();
                    items.extend(option);
                }
                _ => items.push(Item::Value(self.value(pair, context))),
            }
        }
        items
    }

    fn option(self, pair: Pair<'t, Rule>, context: &mut Context<'_>) -> Option<Item<'t>> {
        let whole = self.text(&pair);
        let mut parts = pair.into_inner();
        let key = parts.next()?;
        let mut text = self.text(&key);
        if key.as_rule() == Rule::string {
            text.text = text.text.trim_matches('"');
        }
        let Some(value) = parts.next() else {
            let error = Diagnostic::error(format!("{} has no value", quote(text.text)));
            context.report(whole.source, error.label("expected a value after `=`"));
            return None;
        };
        Some(Item::Option(text, self.value(value, context)))
    }

    fn value(self, pair: Pair<'t, Rule>, context: &mut Context<'_>) -> Value<'t> {
        let text = self.text(&pair);
        let form = match pair.as_rule() {
            Rule::name => self.name(pair, context),
            Rule::call => {
                let mut function = text;
                let mut arguments = vec![];
                for part in pair.into_inner() {
                    match part.as_rule() {
                        Rule::word => function = self.text(&part),
                        _ => arguments = self.list(part, context),
                    }
                }
                Form::Call { function, arguments }
            }
            Rule::list => Form::List(self.list(pair, context)),
            Rule::dims => Form::Dims(self.dims(pair, context)),
            _ => Form::Word,
        };
        Value { text, form }
    }

    fn name(self, pair: Pair<'t, Rule>, context: &mut Context<'_>) -> Form<'t> {
        let mut name = "";
        let mut transposed = false;
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::transposed => transposed = true,
                _ => {
                    let string = self.text(&part);
                    for part in part.into_inner() {
                        match part.as_rule() {
                            Rule::unclosed => self.unclosed(string, "quote", '"', context),
                            _ => name = part.as_str(),
                        }
                    }
                }
            }
        }
        Form::Name { name, transposed }
    }

    /// The items of a list, with exactly one comma between two.
    fn list(self, pair: Pair<'t, Rule>, context: &mut Context<'_>) -> Vec<Item<'t>> {
        let whole = self.text(&pair);
        let mut parts = vec![];
        let mut after_item = false;
        for part in pair.into_inner() {
            let text = self.text(&part);
            match part.as_rule() {
                Rule::unclosed => self.unclosed(whole, "bracket", ')', context),
                Rule::comma if after_item => after_item = false,
                Rule::comma => context.report(text.source, Diagnostic::error("expected a value before `,`")),
                _ => {
                    if after_item && part.as_rule() != Rule::stray {
                        let error = Diagnostic::error(format!("expected `,` or `)` before {}", quote(text.text)));
                        context.report(text.source, error);
                    }
                    after_item = true;
                    parts.push(part);
                }
            }
        }
        self.items(parts.into_iter(), context)
    }

    fn dims(self, pair: Pair<'t, Rule>, context: &mut Context<'_>) -> Vec<Dim<'t>> {
        let whole = self.text(&pair);
        let mut dims = vec![];
        for part in pair.into_inner() {
            let text = self.text(&part);
            let form = match part.as_rule() {
                Rule::unclosed => {
                    self.unclosed(whole, "bracket", ']', context);
                    continue;
                }
                Rule::bad_dim => {
                    self.bad_dim(whole, text, context);
                    continue;
                }
                Rule::letters => DimForm::Letters(part.into_inner().map(|letter| self.letter(letter)).collect()),
                _ => self.split(part),
            };
            dims.push(Dim { text, form });
        }
        dims
    }

    fn bad_dim(self, whole: Text<'_>, dim: Text<'_>, context: &mut Context<'_>) {
        const FORMS: &str = "a dimension is `-`, `?`, `tp`, `(dp,tp)`, `3*tp`, `(64|32|32)*tp` or `[8:dp 32:tp]`";
        let from = dim.source.span.0;
        let opening = dim.text.find(['(', '[']).filter(|_| !dim.text.ends_with([')', ']']));
        if dim.text.is_empty() {
            // The gap itself has no width: point at what stands there, or at the whole where the
            // line ends.
            let end = whole.source.span.1;
            let span = if from < end { (from, from + 1) } else { whole.source.span };
            let error = Diagnostic::error("a dimension is missing here").help(FORMS);
            context.report(Source { span, ..dim.source }, error);
        } else if let Some(offset) = opening {
            let closing = if dim.text[offset..].starts_with('(') { ')' } else { ']' };
            let rest =
                Text { text: &dim.text[offset..], source: Source { span: (from + offset, dim.source.span.1), ..dim.source } };
            self.unclosed(rest, "bracket", closing, context);
        } else {
            let error = Diagnostic::error(format!("{} is not a dimension", quote(dim.text)));
            context.report(dim.source, error.help(FORMS));
        }
    }

    fn split(self, pair: Pair<'t, Rule>) -> DimForm<'t> {
        let (mut blocks, mut axes) = (vec![], vec![]);
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::blocks => blocks = self.atoms(part),
                _ => axes = self.atoms(part),
            }
        }
        DimForm::Split { blocks, axes }
    }

    fn letter(self, pair: Pair<'t, Rule>) -> (Text<'t>, Vec<Text<'t>>) {
        let mut size = self.text(&pair);
        let mut axes = vec![];
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::atom => size = self.text(&part),
                _ => axes = self.atoms(part),
            }
        }
        (size, axes)
    }

    /// The atoms below a node, however deep.
    fn atoms(self, pair: Pair<'t, Rule>) -> Vec<Text<'t>> {
        pair.into_inner().flatten().filter(|part| part.as_rule() == Rule::atom).map(|part| self.text(&part)).collect()
    }

    /// Reports the opening character of `text`.
    fn unclosed(self, text: Text<'_>, what: &str, closing: char, context: &mut Context<'_>) {
        let start = text.source.span.0;
        let error = Diagnostic::error(format!("this {what} is never closed"));
        context.report(
            Source { span: (start, start + 1), ..text.source },
            error.help(format!("add `{closing}`; a statement ends with its line")),
        );
    }
}
