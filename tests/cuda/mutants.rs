//! Damaged texts: the run on the host finds each, or it gives right results all the same.

use super::{Case, cases, is_full, on_host};
use shardc_codegen::{Generated, MATH, PARTS};
use shardc_cuda_testing::host::Host;
use std::collections::BTreeMap;
use std::path::Path;

/// Damages, as what stands in a line and what comes in its place.
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

/// Kernels of each form that are damaged.
const OF_EACH: usize = 4;

/// A damaged text, with what was done to it.
struct Mutant<'a> {
    case: &'a Case,
    text: String,
    what: String,
}

/// Every damage of every line of a text, but for comments and what only the compiler reads.
fn mutants(case: &Case) -> Vec<Mutant<'_>> {
    let lines: Vec<&str> = case.generated.text.lines().collect();
    let mut found = vec![];
    for (number, line) in lines.iter().enumerate() {
        let is_code = !line.trim_start().starts_with("//") && !line.contains("KERNEL(") && !line.contains("#pragma");
        for (from, to) in DAMAGES.iter().filter(|(from, _)| is_code && line.contains(from)) {
            let damaged = line.replacen(from, to, 1);
            let mut changed = lines.clone();
            changed[number] = &damaged;
            let text = changed.join("\n") + "\n";
            found.push(Mutant { case, text, what: format!("{}: `{}`", number + 1, damaged.trim()) });
        }
    }
    found
}

#[test]
fn damaged_texts_are_found() {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    // Bounds matter at odd sizes: they divide into no blocks.
    let cases: Vec<Case> = cases().iter().map(Case::odd).collect();
    let mut forms: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        let form = case.kernel.name();
        forms.entry(form).or_default().push(case);
    }
    let spread = |of: &Vec<&'_ Case>| -> Vec<usize> { (0..OF_EACH).map(|i| i * of.len() / OF_EACH).collect() };
    let mut all: Vec<Mutant<'_>> = vec![];
    for of in forms.values() {
        let mut picked = spread(of);
        picked.dedup();
        all.extend(picked.into_iter().flat_map(|at| mutants(of[at])));
    }
    let wanted = if is_full() { 250 } else { 60 };
    let step = (all.len() / wanted).max(1);
    let all: Vec<Mutant<'_>> = all.into_iter().step_by(step).collect();
    let (mut not_built, mut found, mut survivors) = (0, 0, vec![]);
    for (at, mutant) in all.iter().enumerate() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-mutants-{}", at % 2));
        let generated = Generated { text: mutant.text.clone(), ..mutant.case.generated.clone() };
        let case = Case { generated, ..mutant.case.clone() };
        let texts = [(case.generated.name.clone(), case.generated.text.clone())];
        match Host::build(&folder, &format!("{MATH}{PARTS}"), &texts) {
            Err(_) => not_built += 1,
            Ok(host) => match on_host(&case, &host.limit(5)) {
                Err(_) => found += 1,
                Ok(_) => survivors.push(format!("{} {}", mutant.case.generated.name, mutant.what)),
            },
        }
    }
    let tried = all.len() - not_built;
    eprintln!("{tried} damaged texts, {found} found, {} give right results\n{}", survivors.len(), survivors.join("\n"));
    assert!(tried > wanted / 2, "{tried} of {} mutants were built", all.len());
    // What survives compares with a bound that its sizes never reach, or divides by 1.
    assert!(found * 100 >= tried * 80, "{found} of {tried} damaged texts were found\n{}", survivors.join("\n"));
}
