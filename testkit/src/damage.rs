//! Damage of texts in C++, line by line: what tests should find.

/// What stands in a line, and what comes in its place.
const DAMAGES: [(&str, &str); 12] = [
    ("BARRIER();", ""),
    (" < ", " <= "),
    (" >= ", " > "),
    (" + ", " - "),
    (" % ", " / "),
    (" / ", " % "),
    (" * ", " + "),
    (" == ", " != "),
    ("threadIdx.x / 32", "threadIdx.x / 16"),
    ("threadIdx.x % 32", "threadIdx.x % 16"),
    ("+= ", "= "),
    (" = 0", " = 1"),
];

/// A damaged text.
#[derive(Debug, Clone)]
pub struct Damaged {
    /// All lines.
    pub text: String,
    /// The damaged line, from 0.
    pub line: usize,
    /// The number of the line, and what it is now.
    pub what: String,
}

/// Every damage of every line, but for comments and what only the compiler reads.
pub fn of(text: &str) -> Vec<Damaged> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = vec![];
    for (number, line) in lines.iter().enumerate() {
        let is_code = !line.trim_start().starts_with("//") && !line.contains("KERNEL(") && !line.contains('#');
        for (from, to) in DAMAGES.iter().filter(|(from, _)| is_code && line.contains(from)) {
            let damaged = line.replacen(from, to, 1);
            let mut changed = lines.clone();
            changed[number] = &damaged;
            let what = match damaged.trim() {
                "" => format!("without `{}`", line.trim()),
                damaged => format!("`{damaged}`"),
            };
            found.push(Damaged { text: changed.join("\n") + "\n", line: number, what: format!("{}: {what}", number + 1) });
        }
    }
    found
}

/// How many damages to try where `count` is the ordinary number: `SHARDC_MUTANTS` says how many
/// times as many.
pub fn wanted(count: usize) -> usize {
    let times = std::env::var("SHARDC_MUTANTS").map_or(1, |times| times.parse().expect("SHARDC_MUTANTS is a number"));
    count.saturating_mul(times)
}

/// At most as many as `wanted`, from all over.
pub fn some<T>(all: Vec<T>, wanted: usize) -> Vec<T> {
    let step = all.len().div_ceil(wanted).max(1);
    all.into_iter().step_by(step).collect()
}
