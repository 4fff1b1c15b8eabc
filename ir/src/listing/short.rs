//! Names without the module that all around them are in.

use super::report::BufferReport;
use std::collections::BTreeMap;

/// A prefix that names are told without: `%.weight` of `%model.h.0.weight`.
#[derive(Debug, Clone, Default)]
pub struct Short(Option<String>);

/// Fewer names or shorter prefixes are not worth it.
const FEW: usize = 3;
const SHORT: usize = 4;

impl Short {
    /// Of that prefix, which ends with a dot.
    pub fn of(prefix: String) -> Short {
        Short(Some(prefix))
    }

    /// Of the prefix that leaves out most of the names of leaves.
    pub fn of_leaves(buffers: &[BufferReport<'_>]) -> Short {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let kept = ["parameter", "frozen", "statistic"];
        for buffer in buffers.iter().filter(|buffer| kept.contains(&buffer.kind)) {
            for (dot, _) in buffer.name.match_indices('.') {
                // Layers are told apart.
                let next = buffer.name[dot + 1..].split('.').next().unwrap_or_default();
                if next.bytes().all(|b| b.is_ascii_digit()) {
                    break;
                }
                *counts.entry(&buffer.name[..=dot]).or_default() += 1;
            }
        }
        let worth = counts.into_iter().filter(|(prefix, count)| *count >= FEW && prefix.len() >= SHORT);
        let best = worth.max_by_key(|(prefix, count)| (prefix.len() * count, std::cmp::Reverse(prefix.len())));
        Short(best.map(|(prefix, _)| prefix.to_string()))
    }

    /// The prefix.
    pub fn prefix(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// A name, from the dot on if it begins so.
    pub fn of_name(&self, name: &str) -> String {
        let rest = self.prefix().and_then(|prefix| name.strip_prefix(prefix));
        rest.map_or_else(|| name.to_string(), |rest| format!(".{rest}"))
    }

    /// A text with names in quotes.
    pub fn quoted(&self, text: &str) -> String {
        match self.prefix() {
            Some(prefix) => text.replace(&format!("\"{prefix}"), "\"."),
            None => text.to_string(),
        }
    }
}
