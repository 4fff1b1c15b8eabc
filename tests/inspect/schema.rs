//! A judge of JSON by a JSON schema: the keywords that `docs/inspect.schema.json` uses, and no
//! others.

use serde_json::Value;

/// A schema whose keywords are all known.
pub struct Schema(Value);

/// Keywords that say nothing about a value.
const WORDS: [&str; 4] = ["$schema", "$defs", "title", "description"];

impl Schema {
    /// Of that text.
    pub fn read(text: &str) -> Schema {
        Schema(serde_json::from_str(text).expect("the schema is JSON"))
    }

    /// Whether a value is as the schema says; else where it is not.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.at(value, &self.0, "")
    }

    fn at(&self, value: &Value, schema: &Value, place: &str) -> Result<(), String> {
        let rules = schema.as_object().unwrap_or_else(|| panic!("{place}: a schema is an object"));
        for (keyword, rule) in rules {
            let fits = match keyword.as_str() {
                word if WORDS.contains(&word) => true,
                "$ref" => {
                    let name = rule.as_str().and_then(|name| name.strip_prefix("#/$defs/")).expect("a definition");
                    let definition = self.0["$defs"].get(name).unwrap_or_else(|| panic!("`{name}` is not defined"));
                    self.at(value, definition, place)?;
                    true
                }
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|ty| is(value, ty)),
                    ty => is(value, ty),
                },
                "enum" => rule.as_array().expect("a list").contains(value),
                "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().expect("a number")),
                "pattern" => {
                    assert_eq!(rule, "^[0-9a-f]{64}$", "the one pattern that is known");
                    let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                    value.as_str().is_none_or(|text| text.len() == 64 && text.chars().all(digit))
                }
                "anyOf" => {
                    let mut ways = rule.as_array().expect("a list").iter().map(|way| self.at(value, way, place));
                    ways.any(|way| way.is_ok())
                }
                "items" => {
                    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.at(item, rule, &format!("{place}/{i}"))?;
                    }
                    true
                }
                "required" => {
                    let names = rule.as_array().expect("a list").iter().map(|name| name.as_str().expect("a name"));
                    value.as_object().is_none_or(|object| names.into_iter().all(|name| object.contains_key(name)))
                }
                "properties" => {
                    for (name, rule) in rule.as_object().expect("an object") {
                        if let Some(member) = value.get(name) {
                            self.at(member, rule, &format!("{place}/{name}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = |name: &String| schema["properties"].get(name).is_some();
                    for (name, member) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name)) {
                        match rule {
                            Value::Bool(false) => return Err(format!("{place}: `{name}` is no property")),
                            rule => self.at(member, rule, &format!("{place}/{name}"))?,
                        }
                    }
                    true
                }
                other => panic!("the keyword `{other}` is not known"),
            };
            if !fits {
                let shown: String = value.to_string().chars().take(100).collect();
                return Err(format!("{place}: `{keyword}` is {rule}, not so {shown}"));
            }
        }
        Ok(())
    }
}

fn is(value: &Value, ty: &Value) -> bool {
    match ty.as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        other => panic!("the type `{other}` is not known"),
    }
}
