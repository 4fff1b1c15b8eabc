//! The decisions which initializers are trained and which are not, and why, for people.

use shardc_frontend::initializers::Decision;
use shardc_ir::columns::{Column, align};

/// Initializers that are named where not all are asked for.
const SHOWN: usize = 8;

/// A row for each initializer: `trained (52)` before the first, then name, shape and reason.
/// Without `all`, long lists are cut.
pub fn rows(decisions: &[Decision], all: bool) -> Vec<[String; 2]> {
    let mut rows = vec![];
    for (heading, trained) in [("trained", true), ("not trained", false)] {
        let chosen: Vec<&Decision> = decisions.iter().filter(|d| d.trained == trained).collect();
        let shown = if all { chosen.len() } else { chosen.len().min(SHOWN) };
        for (i, decision) in chosen[..shown].iter().enumerate() {
            let heading = if i == 0 { format!("{heading} ({})", chosen.len()) } else { String::new() };
            let alias = decision.alias.iter().map(|alias| format!(" (`{alias}`)")).collect::<String>();
            rows.push([heading, format!("\"{}\"{alias} {:?}: {}", decision.name, decision.shape, decision.why)]);
        }
        if shown < chosen.len() {
            rows.push([String::new(), format!("… and {} more: `shardc compile --verbose` names them", chosen.len() - shown)]);
        }
    }
    rows
}

/// The first of what is trained and of what is not, in a table.
pub fn table(decisions: &[Decision]) -> String {
    align(&rows(decisions, false), [Column::WORDS, Column::WORDS])
}

/// A line for each group of initializers that differ in numbers only: how many, the pattern, the
/// shape and the reason of the first.
pub fn grouped(decisions: &[Decision]) -> String {
    let mut groups: Vec<(String, &Decision, usize)> = vec![];
    for decision in decisions {
        let pattern = pattern(decision.alias.as_ref().unwrap_or(&decision.name));
        let same = |(other, first, _): &&mut (String, &Decision, usize)| {
            *other == pattern && first.shape == decision.shape && first.trained == decision.trained
        };
        match groups.iter_mut().find(same) {
            Some((_, _, count)) => *count += 1,
            None => groups.push((pattern, decision, 1)),
        }
    }
    let mut text = String::new();
    for (heading, trained) in [("trained:", true), ("not trained:", false)] {
        let row = |(pattern, first, count): &(String, &Decision, usize)| {
            let name = if *count == 1 { first.alias.as_ref().unwrap_or(&first.name) } else { pattern };
            let times = if *count == 1 { String::new() } else { format!("{count} x") };
            [times, format!("\"{name}\""), format!("{:?}", first.shape), first.why.clone()]
        };
        let rows: Vec<[String; 4]> = groups.iter().filter(|(_, d, _)| d.trained == trained).map(row).collect();
        if !rows.is_empty() {
            text += &format!("{heading}\n");
            text += &align(&rows, [Column { gap: "  ", ..Column::NUMBERS }, Column::after(" "), Column::WORDS, Column::WORDS]);
        }
    }
    text
}

/// `h.*.ln_1.weight` of `h.3.ln_1.weight`: each part of a name that is a number may be any.
fn pattern(name: &str) -> String {
    let part = |part: &str| if part.parse::<u64>().is_ok() { "*".to_string() } else { part.to_string() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(name: &str, trained: bool) -> Decision {
        Decision { name: name.into(), alias: None, trained, why: "why".into(), shape: vec![4, 2] }
    }

    #[test]
    fn names_that_differ_in_numbers_are_one_line() {
        let decisions = [decision("h.0.w", true), decision("h.1.w", true), decision("h.w", true), decision("mask", false)];
        let expected =
            "trained:\n  2 x \"h.*.w\"  [4, 2]  why\n      \"h.w\"    [4, 2]  why\nnot trained:\n   \"mask\"  [4, 2]  why\n";
        assert_eq!(grouped(&decisions), expected);
    }

    #[test]
    fn long_lists_are_cut() {
        let decisions: Vec<Decision> = (0..10).map(|i| decision(&format!("w{i}"), true)).collect();
        assert_eq!(rows(&decisions, true).len(), 10);
        let cut = rows(&decisions, false);
        assert_eq!((cut.len(), cut[8][1].as_str()), (9, "… and 2 more: `shardc compile --verbose` names them"));
    }
}
