//! Takes the parts of one statement by name, and reports those that nobody took.

use super::context::{Context, listed, quote, suggestion};
use super::syntax::{Item, Text, Value};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::spec::{Located, Source};
use std::collections::BTreeSet;

/// The parts of a statement, or of a call such as `normal(std=0.02)`, that are still to be taken.
pub struct Reader<'r, 't, 'f> {
    /// The context that takes the errors.
    pub context: &'r mut Context<'f>,
    title: String,
    example: &'r str,
    source: Source,
    options: Vec<(Text<'t>, &'r Value<'t>)>,
    values: std::vec::IntoIter<&'r Value<'t>>,
    asked: Vec<&'static str>,
    missing: Vec<String>,
    errors_before: usize,
}

impl<'r, 't, 'f> Reader<'r, 't, 'f> {
    /// Reads `items` of the statement or call `title`, of which `example` is a good one. An option
    /// given twice is reported.
    pub fn new(title: &str, example: &'r str, source: Source, items: &'r [Item<'t>], context: &'r mut Context<'f>) -> Self {
        let errors_before = context.errors();
        let mut options: Vec<(Text<'t>, &Value<'t>)> = vec![];
        let mut values = vec![];
        let mut seen = BTreeSet::new();
        for item in items {
            match item {
                Item::Value(value) => values.push(value),
                Item::Option(key, value) => {
                    if !seen.insert(key.text) {
                        let error = Diagnostic::error(format!("{} is given twice", quote(key.text)));
                        context.report(key.source, error.help("keep one of the two"));
                    } else {
                        options.push((*key, value));
                    }
                }
            }
        }
        let title = title.to_string();
        let values = values.into_iter();
        Reader { context, title, example, source, options, values, asked: vec![], missing: vec![], errors_before }
    }

    /// `value` with the place of the whole statement.
    pub fn located<T>(&self, value: T) -> Located<T> {
        Located { value, source: self.source }
    }

    /// The next value that is not an option; `what` names it where it is missing.
    pub fn value<T>(&mut self, what: &str, parse: impl FnOnce(&Value<'t>, &str, &mut Context<'f>) -> Option<T>) -> Option<T> {
        let value = self.next_value();
        // After an error it may be the earlier value that is missing.
        if value.is_none() && self.context.errors() == self.errors_before {
            self.missing.push(what.to_string());
        }
        parse(value?, &quote(&self.title), self.context)
    }

    /// The value that says which options there are; from then on errors name both. If it is missing
    /// or wrong, nothing is said about the options. Options that were asked for before stand in the
    /// place of a kind.
    pub fn kind<T>(&mut self, what: &str, parse: impl FnOnce(&Value<'t>, &str, &mut Context<'f>) -> Option<T>) -> Option<T> {
        let word = self.values.as_slice().first().map(|value| value.text.text);
        let instead: String = self.asked.iter().map(|name| format!(" or `{name}=`")).collect();
        let kind = self.value(&format!("{what}{instead}"), parse);
        match word {
            Some(word) if kind.is_some() => self.title = format!("{} {word}", self.title),
            _ => self.options.clear(),
        }
        self.asked.clear();
        kind
    }

    /// The next value that is not an option, as it is.
    pub fn next_value(&mut self) -> Option<&'r Value<'t>> {
        self.values.next()
    }

    /// The option `name`, or `default` where it is not given; `None` if it is wrong.
    pub fn option<T>(
        &mut self,
        name: &'static str,
        default: T,
        parse: impl FnOnce(&Value<'t>, &str, &mut Context<'f>) -> Option<T>,
    ) -> Option<T> {
        match self.option_value(name) {
            Some(value) => parse(value, &quote(name), self.context),
            None => Some(default),
        }
    }

    /// The option `name`, `Some(None)` where it is not given; `None` if it is wrong.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&Value<'t>, &str, &mut Context<'f>) -> Option<T>,
    ) -> Option<Option<T>> {
        self.option(name, None, |value, subject, context| parse(value, subject, context).map(Some))
    }

    /// The option `name`, as it is.
    pub fn option_value(&mut self, name: &'static str) -> Option<&'r Value<'t>> {
        self.asked.push(name);
        let position = self.options.iter().position(|(key, _)| key.text == name)?;
        Some(self.options.remove(position).1)
    }

    /// The option `name`, which must be there.
    pub fn required<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&Value<'t>, &str, &mut Context<'f>) -> Option<T>,
    ) -> Option<T> {
        let value = self.option_value(name);
        if value.is_none() {
            self.missing.push(format!("`{name}=`"));
        }
        parse(value?, &quote(name), self.context)
    }

    /// Reports the option `name` where it is given, for which this kind of statement has another
    /// one.
    pub fn never(&mut self, name: &str, help: &str) {
        if let Some(position) = self.options.iter().position(|(key, _)| key.text == name) {
            let (key, _) = self.options.remove(position);
            let error = Diagnostic::error(format!("`{}` has no option {}", self.title, quote(key.text)));
            self.context.report(key.source, error.help(help));
        }
    }

    /// Whether a value that is not an option is still to be taken.
    pub fn has_value(&self) -> bool {
        !self.values.as_slice().is_empty()
    }

    /// All options that are left, in their order.
    pub fn take_options(&mut self) -> Vec<(Text<'t>, &'r Value<'t>)> {
        std::mem::take(&mut self.options)
    }

    /// Says that `what` is missing.
    pub fn lacks(&mut self, what: impl Into<String>) {
        self.missing.push(what.into());
    }

    /// Reports what nobody took; where all was taken, what is missing, as it may stand there under
    /// a wrong name.
    pub fn finish(self) {
        let Reader { context, title, example, source, options, values, asked, missing, .. } = self;
        let for_example = format!("write for example `{example}`");
        if options.is_empty() && values.len() == 0 && !missing.is_empty() {
            let error = Diagnostic::error(format!("`{title}` needs {}", missing.join(" and ")));
            context.report(source, error.help(for_example.clone()));
        }
        for (key, _) in options {
            let help = suggestion(key.text, asked.iter().copied(), || match asked[..] {
                [] => for_example.clone(),
                [only] => format!("its only option is `{only}`"),
                _ => format!("its options are {}", listed(asked.iter().copied())),
            });
            context.report(key.source, Diagnostic::error(format!("`{title}` has no option {}", quote(key.text))).help(help));
        }
        for value in values {
            let error = Diagnostic::error(format!("unexpected {}", quote(value.text.text)));
            context.report(value.text.source, error.label(format!("`{title}` does not take this")).help(for_example.clone()));
        }
    }
}
