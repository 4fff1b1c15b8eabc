//! Damaged texts: the run on the host finds each, or it does the same as the sound one.

use super::support::objects;
use super::{Case, Extent, Ran, cases, extent, of_extent, on_host};
use shardc_codegen::{Generated, MATH, PARTS};
use shardc_cuda_testing::host::Host;
use shardc_ir::kernel::{AttentionGrad, Kernel};
use shardc_testkit::damage::{self, Damaged};
use std::collections::BTreeMap;

/// Kernels of each form that are damaged.
const OF_EACH: usize = 4;

/// Damages that give right results by other accesses: the form, what the line has, and why.
const HARMLESS: [(&str, &str, &str); 16] = [
    ("reduce", ", end = first - ", "the first block sums all, in another order, and the others nothing"),
    ("contract", "at <= 1024; at += 256", "thread 0 writes one element too many, in the other tile, and writes it again next"),
    ("gather", "(u64)blockIdx.x * 256 - threadIdx.x", "threads take the elements of the row in another order"),
    ("map", "blockIdx.x * 256 - threadIdx.x", "threads take the elements in another order: one is more than whole blocks have"),
    ("attention", "at = threadIdx.x; at <= ", "thread 0 writes one element too many, in what is written again before it is read"),
    ("attention", "u32 from = 0; from <= ", "columns behind the last one are zeros"),
    ("conv", "u32 i = 0; i <= ", "a line more than the tile has is written behind it, where nothing is multiplied"),
    ("conv", "u32 i = threadIdx.x; i <= 64; ", "a thread writes one place behind a table, where tiles come afterwards"),
    ("conv", "from = first; from <= end; from += ", "a step more than there are is of zeros, in both tiles"),
    ("attention", " <= seen) {", "what is copied for a step that does not come is read by nobody"),
    (
        "attention",
        "(changes, outs - warp * ",
        "of few queries the first warp has all, and what others multiply is written nowhere",
    ),
    (
        "attention",
        "u32 i = 1; i < 2; i++",
        "scores are shifted by the largest of every other key, which changes no quotient of weights; where weights are left out it is found",
    ),
    ("attention", "first <= seen; first += 64", "a step more is of keys that are hidden from all queries of the tile"),
    (
        "attention_grad",
        "u32 earliest = (u32)(max((i64)0, (i64)top) % 64 * 64);",
        "tiles begin at multiples of 64: it begins with queries from which all keys of the tile are hidden",
    ),
    ("scatter_add", "step <= many[other]; step += 32", "in a step more there is no note, as each lane asks"),
    ("bundle", "r = 32) {", "the row has fewer elements than the warp has lanes: there is no second step"),
];

/// What became of a damaged text.
enum Fate {
    NotBuilt,
    Found,
    /// Every thread makes the accesses that it makes in the sound text, and results have its bits:
    /// what is damaged is reached in no thread of the launch, or has the same value in each.
    Same,
    /// The results are right, by other accesses.
    Survived,
}

/// Runs damaged texts of a kernel after `prelude`.
fn fate(case: &Case, prelude: &str, text: &str, sound: &[Ran]) -> Fate {
    let case = Case { generated: Generated { text: text.to_owned(), ..case.generated.clone() }, ..case.clone() };
    let texts = [(case.generated.name.clone(), text.to_owned())];
    let Ok(host) = Host::build(&objects(), prelude, &texts) else { return Fate::NotBuilt };
    let Ok(damaged) = on_host(&case, &host.limit(5)) else { return Fate::Found };
    let is_same = |(sound, damaged): (&Ran, &Ran)| sound.traces == damaged.traces && sound.done.writes == damaged.done.writes;
    if sound.iter().zip(&damaged).all(is_same) { Fate::Same } else { Fate::Survived }
}

/// How the sound texts of kernels run.
fn sound(cases: &[&Case]) -> Vec<Vec<Ran>> {
    let texts: Vec<_> = cases.iter().map(|case| (case.generated.name.clone(), case.generated.text.clone())).collect();
    let host = Host::build(&objects(), &format!("{MATH}{PARTS}"), &texts).unwrap_or_else(|e| panic!("{e}"));
    cases.iter().map(|case| on_host(case, &host).unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// Kernels at odd sizes, at which bounds matter: they divide into no blocks. So many of each form.
fn picked(all: &[Case], of_each: usize) -> Vec<&Case> {
    let mut forms: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in all {
        forms.entry(case.kernel.name()).or_default().push(case);
    }
    forms.into_values().flat_map(|of| damage::some(of, of_each)).collect()
}

/// The case at odd sizes. Of forms that go step by step only those that were made for them, which
/// have odd sizes and enough for each step of their loops.
fn at_odd_sizes(case: &Case) -> Option<Case> {
    let own = match case.kernel.name() {
        "scatter_add" => "sums into a table",
        "conv" => "convolution",
        name if TILES.contains(&name) => "attention",
        _ => return Some(case.odd()),
    };
    case.of.starts_with(own).then(|| case.clone())
}

/// Whether nobody misses the barrier behind the last step, because there is one step.
fn is_one_step(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Attention(a) | Kernel::AttentionGrad(AttentionGrad(a)) if a.q_len.min(a.kv_len) <= 64)
}

/// The forms that multiply tiles.
const TILES: [&str; 3] = ["attention", "attention_grad", "conv"];

#[test]
fn damaged_texts_are_found() {
    damaged_are_found(|_| true, OF_EACH, damage::wanted(of_extent(40, 25, 300)));
}

#[test]
fn damaged_tiles_are_found() {
    if extent() == Extent::Few {
        eprintln!("skipped: damage of attention and convolutions alone, which `tests/cuda.sh` finds");
        return;
    }
    damaged_are_found(|case| TILES.contains(&case.kernel.name()), 8, damage::wanted(of_extent(0, 25, 150)));
}

/// Damages so many kernels of each form, so many times in all.
fn damaged_are_found(is_of: impl Fn(&Case) -> bool, of_each: usize, wanted: usize) {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let odd = cases().iter().filter(|case| is_of(case)).filter_map(at_odd_sizes);
    let odd: BTreeMap<String, Case> = odd.map(|case| (case.generated.name.clone(), case)).collect();
    let odd: Vec<Case> = odd.into_values().collect();
    let cases = picked(&odd, of_each);
    let sound = sound(&cases);
    let damages = |at: usize| damage::of(&cases[at].generated.text).into_iter().map(move |damaged| (at, damaged));
    let all: Vec<(usize, Damaged)> = damage::some((0..cases.len()).flat_map(damages).collect(), wanted);
    let is_harmless = |what: &String| HARMLESS.iter().any(|(form, line, _)| what.starts_with(form) && what.contains(line));
    let (mut tried, mut found, mut same, mut survivors) = (0, 0, vec![], vec![]);
    for (at, damaged) in &all {
        let what = format!("{} {}", cases[*at].generated.name, damaged.what);
        let fate = fate(cases[*at], &format!("{MATH}{PARTS}"), &damaged.text, &sound[*at]);
        tried += usize::from(!matches!(fate, Fate::NotBuilt));
        match fate {
            Fate::NotBuilt => {}
            Fate::Found => found += 1,
            Fate::Same => same.push(what),
            Fate::Survived if is_harmless(&what) => same.push(what),
            Fate::Survived if is_one_step(&cases[*at].kernel) && what.contains("without `BARRIER();`") => same.push(what),
            Fate::Survived => survivors.push(what),
        }
    }
    eprintln!("{tried} damaged texts, {found} found, {} are harmless\n{}", same.len(), same.join("\n"));
    assert!(survivors.is_empty(), "not found:\n{}", survivors.join("\n"));
    assert!(tried * 2 > all.len(), "{tried} of {} damaged texts were built", all.len());
    assert!(found * 100 >= tried * 85, "{found} of {tried} damaged texts were found");
}

#[test]
fn damaged_pieces_are_found() {
    if !Host::available() || extent() == Extent::Few {
        eprintln!("skipped: damage of the kernels' pieces, which `tests/cuda.sh` finds where g++ is there");
        return;
    }
    let using =
        |case: &&Case| ["over_", "read<", "write(", "write_shared("].iter().any(|name| case.generated.text.contains(name));
    let cases: Vec<&Case> = picked(cases(), 30).into_iter().filter(using).collect();
    let sound = sound(&cases);
    let all = damage::some(damage::of(PARTS), damage::wanted(of_extent(0, 12, 100)));
    let (mut same, mut survivors) = (vec![], vec![]);
    for damaged in &all {
        let prelude = format!("{MATH}{}", damaged.text);
        let users = users(damaged.line);
        let mut order: Vec<usize> = (0..cases.len()).collect();
        order.sort_by_key(|at| !users.iter().any(|name| cases[*at].generated.text.contains(name)));
        let mut fates = order.into_iter().map(|at| fate(cases[at], &prelude, &cases[at].generated.text, &sound[at]));
        let mut is_same = true;
        let is_found = fates.any(|fate| {
            is_same &= matches!(fate, Fate::Same);
            matches!(fate, Fate::Found | Fate::NotBuilt)
        });
        if !is_found {
            if is_same { same.push(&damaged.what) } else { survivors.push(&damaged.what) }
        }
    }
    let found = all.len() - survivors.len() - same.len();
    eprintln!("{} damaged pieces of kernels, {found} found, harmless {same:?}", all.len());
    assert!(found * 100 >= all.len() * 95, "{found} of {} damaged pieces were found", all.len());
    assert!(survivors.is_empty(), "not found:\n{survivors:#?}");
}

/// The piece that a line of the pieces is in, and all that use it: whose kernels are tried first.
fn users(line: usize) -> Vec<&'static str> {
    // Each begins in the first column, and its name stands before its arguments or members.
    let mut pieces: Vec<(&str, String)> = vec![];
    let mut of_line = "";
    for (number, text) in PARTS.lines().enumerate() {
        let head = text.split(['(', '{']).next().unwrap_or("");
        let named = ["INLINE ", "struct "].iter().find_map(|word| head.rsplit_once(word)).filter(|_| !text.starts_with(' '));
        if let Some((_, head)) = named {
            let name = head.split_whitespace().next_back().and_then(|word| word.split('<').next()).unwrap_or("");
            pieces.push((name, String::new()));
        }
        let Some((name, body)) = pieces.last_mut() else { continue };
        body.push_str(text);
        if number == line {
            of_line = name;
        }
    }
    let mut users = vec![of_line];
    while let Some((name, _)) =
        pieces.iter().find(|(name, body)| !users.contains(name) && users.iter().any(|user| body.contains(user)))
    {
        users.push(name);
    }
    users
}
