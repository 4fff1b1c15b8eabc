//! The entries of a kernel's text.

/// A function that a launch names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: String,
    /// The most threads of a block.
    pub threads: u32,
    /// Parameters that are pointers; they come first.
    pub pointers: usize,
    /// Parameters of type `i64`.
    pub numbers: usize,
}

/// All entries of a text: `KERNEL(256) name(const float* x, i64 n)`.
pub(super) fn of(text: &str) -> Result<Vec<Entry>, String> {
    let text = without_comments(text);
    let mut entries = Vec::new();
    for piece in text.split("KERNEL(").skip(1) {
        let head = piece.split('{').next().unwrap_or(piece);
        entries.push(entry(head).ok_or_else(|| format!("`KERNEL({}` is no entry", head.trim()))??);
    }
    match entries.is_empty() {
        true => Err("the text has no entry".into()),
        false => Ok(entries),
    }
}

/// What comes between `KERNEL(` and the body, or nothing where it has another form.
fn entry(head: &str) -> Option<Result<Entry, String>> {
    let (threads, rest) = head.split_once(')')?;
    let (name, parameters) = rest.split_once('(')?;
    let (name, parameters) = (name.trim(), parameters.trim().strip_suffix(')')?);
    let threads = threads.trim().parse().ok().filter(|t| (1..=1024).contains(t))?;
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let mut entry = Entry { name: name.into(), threads, pointers: 0, numbers: 0 };
    for parameter in parameters.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        if parameter.contains('*') && entry.numbers == 0 {
            entry.pointers += 1;
        } else if parameter.split_whitespace().any(|w| w == "i64") && !parameter.contains(['*', '&']) {
            entry.numbers += 1;
        } else {
            return Some(Err(format!("`{parameter}` of {name} is neither a pointer nor, after them, an `i64`")));
        }
    }
    Some(Ok(entry))
}

/// The text with a space for each comment.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        kept.push_str(&rest[..at]);
        kept.push(' ');
        let end = if rest[at..].starts_with("/*") { "*/" } else { "\n" };
        rest = rest[at..].find(end).map_or("", |n| &rest[at + n + end.len()..]);
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found() {
        let text = "// KERNEL(1) not(this)\nKERNEL(256) a(const float* __restrict__ x, /* y */\n  \
                    u32* y, i64 n, const i64 m) {\n}\n\
                    INLINE u32 f(u32 x) { return x; }\nKERNEL(32)\nb(f16* z) {}";
        let entry = |name: &str, threads, pointers, numbers| Entry { name: name.into(), threads, pointers, numbers };
        assert_eq!(of(text), Ok(vec![entry("a", 256, 2, 2), entry("b", 32, 1, 0)]));
    }

    #[test]
    fn other_parameters_are_refused() {
        for text in ["", "KERNEL(32) a(u32 n) {}", "KERNEL(32) a(i64 n, u32* x) {}", "KERNEL(N) a() {}", "KERNEL(32) (i64 n) {}"]
        {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
