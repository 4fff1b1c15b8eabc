//! Patterns over names and module paths, as the spec writes them: `"*.c_attn.weight"`, `"*.h.*"`.

use std::collections::HashMap;

/// Whether the whole of `name` matches `pattern`: `*` stands for any characters, dots too, and a
/// leading `*.` also for nothing.
///
/// Takes time linear in the two lengths, whatever the pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    glob(pattern, name) || pattern.strip_prefix("*.").is_some_and(|rest| glob(rest, name))
}

/// Whether `pattern` takes what lies at `path`: it matches the path itself or a scope above it.
pub fn matches_scope(pattern: &str, path: &str) -> bool {
    outermost_scope(pattern, path).is_some()
}

/// The outermost of the nested scopes `a`, `a.b`, `a.b.c`, … of `path` that `pattern` matches;
/// everything with the same answer is one unit.
pub fn outermost_scope<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let whole = outermost(pattern, path);
    let rest = pattern.strip_prefix("*.").and_then(|rest| outermost(rest, path));
    [whole, rest].into_iter().flatten().min().map(|end| &path[..end])
}

/// The end of the outermost scope of `path` that a pattern matches.
fn outermost(pattern: &str, path: &str) -> Option<usize> {
    let mut ends = path.match_indices('.').map(|(dot, _)| dot).chain([path.len()]);
    let Some((literals, last)) = pattern.rsplit_once('*') else {
        return path.starts_with(pattern).then(|| ends.find(|end| *end == pattern.len())).flatten();
    };
    let from = after(literals, path)?;
    ends.find(|end| from + last.len() <= *end && path[..*end].ends_with(last))
}

fn glob(pattern: &str, name: &str) -> bool {
    let Some((literals, last)) = pattern.rsplit_once('*') else { return pattern == name };
    after(literals, name).is_some_and(|from| from + last.len() <= name.len() && name.ends_with(last))
}

/// The end of `literals` in `name`: the first one is anchored, each other goes to its leftmost
/// place, which never rules out a match.
fn after(literals: &str, name: &str) -> Option<usize> {
    let (first, others) = literals.split_once('*').map_or((literals, None), |(first, others)| (first, Some(others)));
    let from = name.strip_prefix(first).map(|_| first.len())?;
    let mut others = others.into_iter().flat_map(|others| others.split('*'));
    others.try_fold(from, |from, literal| name[from..].find(literal).map(|at| from + at + literal.len()))
}

/// A pattern, as far as it can be looked up.
enum Kind<'p> {
    /// A whole name.
    Whole(&'p str),
    /// `*.REST`: REST itself, and every name that ends with a dot and REST.
    Rest(&'p str),
    /// Any other.
    Other,
}

impl<'p> Kind<'p> {
    fn of(pattern: &'p str) -> Kind<'p> {
        match pattern.strip_prefix("*.") {
            None if !pattern.contains('*') => Kind::Whole(pattern),
            Some(rest) if !rest.contains('*') => Kind::Rest(rest),
            _ => Kind::Other,
        }
    }
}

/// Whether a pattern of names is looked up, and not tried on one name after another.
pub fn is_looked_up(pattern: &str) -> bool {
    !matches!(Kind::of(pattern), Kind::Other)
}

/// The rests with which `*.REST` matches a name: the name, and the part after each of its dots.
fn rests(name: &str) -> impl Iterator<Item = &str> {
    [name].into_iter().chain(name.match_indices('.').map(|(dot, _)| &name[dot + 1..]))
}

/// Many patterns, to be asked for names. Whole names and `*.REST` are looked up, so thousands of
/// them cost no more than one.
pub struct Patterns<'p> {
    whole: HashMap<&'p str, Vec<usize>>,
    rest: HashMap<&'p str, Vec<usize>>,
    others: Vec<(usize, &'p str)>,
}

impl<'p> Patterns<'p> {
    /// The patterns, known by their positions.
    pub fn new(patterns: impl IntoIterator<Item = &'p str>) -> Patterns<'p> {
        let mut all = Patterns { whole: HashMap::new(), rest: HashMap::new(), others: vec![] };
        for (at, pattern) in patterns.into_iter().enumerate() {
            match Kind::of(pattern) {
                Kind::Whole(name) => all.whole.entry(name).or_default().push(at),
                Kind::Rest(rest) => all.rest.entry(rest).or_default().push(at),
                Kind::Other => all.others.push((at, pattern)),
            }
        }
        all
    }

    /// Whether any of them matches `name`.
    pub fn any(&self, name: &str) -> bool {
        self.matching(name).next().is_some()
    }

    /// The position of the last one that matches `name`.
    pub fn last(&self, name: &str) -> Option<usize> {
        self.matching(name).max()
    }

    fn matching(&self, name: &str) -> impl Iterator<Item = usize> {
        let whole = self.whole.get(name).into_iter().chain(rests(name).filter_map(|rest| self.rest.get(rest)));
        let others = self.others.iter().filter(move |(_, pattern)| matches(pattern, name)).map(|(at, _)| *at);
        whole.flatten().copied().chain(others)
    }
}

/// Many names, to be asked for patterns. Whole names and `*.REST` are looked up, so thousands of
/// names cost no more than one.
pub struct Names<'n> {
    names: Vec<&'n str>,
    whole: HashMap<&'n str, Vec<usize>>,
    rest: HashMap<&'n str, Vec<usize>>,
}

impl<'n> Names<'n> {
    /// The names, known by their positions.
    pub fn new(names: impl IntoIterator<Item = &'n str>) -> Names<'n> {
        let mut all = Names { names: names.into_iter().collect(), whole: HashMap::new(), rest: HashMap::new() };
        for (at, name) in all.names.iter().enumerate() {
            all.whole.entry(name).or_default().push(at);
            rests(name).for_each(|rest| all.rest.entry(rest).or_default().push(at));
        }
        all
    }

    /// The positions of those that match `pattern`, ascending.
    pub fn matching(&self, pattern: &str) -> Vec<usize> {
        let known = match Kind::of(pattern) {
            Kind::Whole(name) => self.whole.get(name),
            Kind::Rest(rest) => self.rest.get(rest),
            Kind::Other => return (0..self.names.len()).filter(|at| matches(pattern, self.names[*at])).collect(),
        };
        known.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn whole_names_match() {
        for (pattern, name, expected) in [
            ("w1", "w1", true),
            ("w1", "w10", false),
            ("w1", "xw1", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a.b.c", true),
            ("**", "a", true),
            ("*.w", "w", true),
            ("*.w", "a.w", true),
            ("*.w", "a.b.w", true),
            ("*.w", "aw", false),
            ("*.w", "w.x", false),
            ("*.*", "a.b", true),
            ("*.*", "a", true),
            ("a.*", "a.", true),
            ("a.*", "a", false),
            ("*.h.*.weight", "transformer.h.10.mlp.c_fc.weight", true),
            ("*.h.*.weight", "h.0.weight", true),
            ("*.h.*.weight", "h.weight", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "xabab", true),
            ("*ab*ba*", "aba", false),
            ("*ab*ba*", "abba", true),
            ("x*b*c", "xbcbc", true),
            ("*é", "café", true),
            ("*.*.w", "a.w", true),
            ("[-?]", "[-?]", true),
            ("a?", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "`{pattern}` on `{name}`");
        }
    }

    #[test]
    fn a_scope_takes_all_below_it() {
        for (pattern, path, expected) in [
            ("*.h.1", "transformer.h.1", Some("transformer.h.1")),
            ("*.h.1", "transformer.h.1.attn.c_attn", Some("transformer.h.1")),
            ("*.h.1", "h.1.attn", Some("h.1")),
            ("*.h.1", "transformer.h.10.attn", None),
            ("*.h.*", "transformer.h.1.attn.c_attn", Some("transformer.h.1")),
            ("*.h.*", "transformer.h", None),
            ("*", "a.b", Some("a")),
            ("", "a.b", None),
            ("a.b", "a", None),
        ] {
            assert_eq!(outermost_scope(pattern, path), expected, "`{pattern}` on `{path}`");
            assert_eq!(matches_scope(pattern, path), expected.is_some());
        }
    }

    #[test]
    fn agrees_with_the_definition() {
        fn definition(pattern: &[u8], name: &[u8]) -> bool {
            match pattern.split_first() {
                None => name.is_empty(),
                Some((b'*', rest)) => (0..=name.len()).any(|skip| definition(rest, &name[skip..])),
                Some((c, rest)) => name.first() == Some(c) && definition(rest, &name[1..]),
            }
        }
        let words = |alphabet: &[u8], length: usize| -> Vec<String> {
            let mut all = vec![String::new()];
            let mut from = 0;
            for _ in 0..length {
                let to = all.len();
                for i in from..to {
                    all.extend(alphabet.iter().map(|c| format!("{}{}", all[i], *c as char)).collect::<Vec<_>>());
                }
                from = to;
            }
            all
        };
        let names = words(b"ab.", 4);
        let patterns = words(b"a*b.", 4);
        let (all, by_name) = (Patterns::new(patterns.iter().map(String::as_str)), Names::new(names.iter().map(String::as_str)));
        for name in &names {
            let expected: Vec<usize> = (0..patterns.len()).filter(|at| matches(&patterns[*at], name)).collect();
            let mut found: Vec<usize> = all.matching(name).collect();
            found.sort();
            assert_eq!(found, expected, "`{name}`");
            assert_eq!((all.any(name), all.last(name)), (!expected.is_empty(), expected.last().copied()), "`{name}`");
        }
        for pattern in patterns {
            let expected: Vec<usize> = (0..names.len()).filter(|at| matches(&pattern, &names[*at])).collect();
            assert_eq!(by_name.matching(&pattern), expected, "`{pattern}`");
            for name in &names {
                let leading = pattern.strip_prefix("*.").is_some_and(|rest| definition(rest.as_bytes(), name.as_bytes()));
                let expected = leading || definition(pattern.as_bytes(), name.as_bytes());
                assert_eq!(matches(&pattern, name), expected, "`{pattern}` on `{name}`");
                let mut scopes = name.match_indices('.').map(|(dot, _)| &name[..dot]).chain([name.as_str()]);
                let expected = scopes.find(|scope| matches(&pattern, scope));
                assert_eq!(outermost_scope(&pattern, name), expected, "`{pattern}` on `{name}`");
            }
        }
    }

    #[test]
    fn hostile_patterns_are_fast() {
        let pattern = format!("{}b", "*a".repeat(20_000));
        let name = "a".repeat(1_000_000);
        let start = Instant::now();
        assert!(!matches(&pattern, &name));
        assert!(matches(&pattern, &format!("{name}b")));
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
