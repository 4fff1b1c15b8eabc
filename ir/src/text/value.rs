//! Attribute values in text: `1e-5`, `causal`, `"bk,kn->bn"`, `[0, 1]`,
//! `{mask=causal scale=0.125}`.

use super::cursor::{Cursor, Read, is_word, quoted, quoted_if_needed};
use serde_json::{Map, Value};

/// Lists and objects are nested no deeper than this.
const MAX_DEPTH: usize = 16;

/// The values that a line has at most, where an object counts as so many: a few bytes of text each
/// take many times that.
const MAX_VALUES: usize = 1 << 17;
const OBJECT: usize = 16;

/// Attributes as `key=value`, in the order of their keys.
pub(super) fn attributes_text(attributes: &Map<String, Value>) -> Vec<String> {
    let mut keys: Vec<&String> = attributes.keys().collect();
    keys.sort();
    keys.into_iter().map(|k| format!("{}={}", quoted_if_needed(k), value_text(&attributes[k]))).collect()
}

/// One value.
pub(super) fn value_text(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => value.to_string(),
        Value::Number(n) => match n.as_f64() {
            Some(float) if n.is_f64() => format!("{float:?}"),
            _ => n.to_string(),
        },
        Value::String(s) => {
            if is_bare(s) {
                s.clone()
            } else {
                quoted(s)
            }
        }
        Value::Array(items) => format!("[{}]", items.iter().map(value_text).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => format!("{{{}}}", attributes_text(map).join(" ")),
    }
}

/// Whether a string can be told from numbers and keywords without quotes.
fn is_bare(s: &str) -> bool {
    let starts = s.starts_with(|c: char| c.is_alphabetic() || c == '_');
    starts && s.chars().all(is_value_word) && !["true", "false", "null"].contains(&s)
}

/// The characters of a bare string: a word, or the `axis@stride` of a split.
fn is_value_word(c: char) -> bool {
    is_word(c) || c == '@'
}

/// Attributes up to the first thing that is none.
pub(super) fn read_attributes(cursor: &mut Cursor<'_>) -> Read<Map<String, Value>> {
    Nested::default().entries(cursor)
}

/// One value.
pub(super) fn read_value(cursor: &mut Cursor<'_>) -> Read<Value> {
    Nested::default().value(cursor)
}

/// How many values have been read, and how deep the next one is nested.
#[derive(Default)]
struct Nested {
    values: usize,
    depth: usize,
}

impl Nested {
    fn entries(&mut self, cursor: &mut Cursor<'_>) -> Read<Map<String, Value>> {
        let mut map = Map::new();
        while cursor.peek().is_some_and(|c| c == '"' || is_word(c)) {
            let key = cursor.name()?;
            cursor.expect("=")?;
            let value = self.value(cursor)?;
            if map.insert(key.clone(), value).is_some() {
                return cursor.fail(format!("`{key}` is given twice"));
            }
        }
        Ok(map)
    }

    fn value(&mut self, cursor: &mut Cursor<'_>) -> Read<Value> {
        self.values += if cursor.peek() == Some('{') { OBJECT } else { 1 };
        if self.values > MAX_VALUES {
            return cursor.fail("the line has too many values");
        }
        if self.depth > MAX_DEPTH {
            return cursor.fail("values are nested too deep");
        }
        self.depth += 1;
        let value = match cursor.peek() {
            Some('"') => cursor.string().map(Value::from),
            Some('[') => cursor.list("[", "]", |cursor| self.value(cursor)).map(Value::from),
            Some('{') => {
                cursor.expect("{")?;
                let map = self.entries(cursor)?;
                cursor.expect("}")?;
                Ok(map.into())
            }
            Some(c) if c == '-' || c.is_ascii_digit() => read_number(cursor),
            _ => read_word(cursor),
        }?;
        self.depth -= 1;
        Ok(value)
    }
}

fn read_number(cursor: &mut Cursor<'_>) -> Read<Value> {
    let number = cursor.number()?;
    if let Ok(unsigned) = number.parse::<u64>() {
        return Ok(unsigned.into());
    }
    if let Ok(signed) = number.parse::<i64>() {
        return Ok(signed.into());
    }
    match number.parse::<f64>() {
        Ok(float) if float.is_finite() => Ok(float.into()),
        _ => cursor.fail(format!("`{number}` is no number")),
    }
}

fn read_word(cursor: &mut Cursor<'_>) -> Read<Value> {
    Ok(match cursor.word_of(is_value_word)? {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        word => word.into(),
    })
}
