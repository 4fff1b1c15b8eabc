//! What each call and message of a program carries.

use super::kinds::{GATHERED, GRADIENTS, PARAMETERS, UNREDUCED};
use crate::plan::{Message, Step, View};

/// How reasons begin, and what is carried for them.
const REASONS: [(&str, &str); 8] = [
    ("part of a gradient", GRADIENTS),
    ("for the norm", "norm"),
    ("for the loss", "loss"),
    ("for the mean loss", "loss"),
    ("for the sum of the loss", "loss"),
    ("for the number of labels", "loss"),
    ("for the statistics", "statistics"),
    ("for the update", "update"),
];

/// What a call carries; `kinds` are those of the program's buffers.
pub fn carried(step: &Step, kinds: &[&'static str]) -> &'static str {
    let views = step.reads.iter().chain(&step.writes);
    of_kinds(views, kinds).unwrap_or_else(|| of_reason(step.provenance.reason.as_deref()))
}

/// What a message carries.
pub fn carried_by(message: &Message, kinds: &[&'static str]) -> &'static str {
    of_kinds([&message.view].into_iter(), kinds).unwrap_or_else(|| of_reason(message.provenance.reason.as_deref()))
}

fn of_kinds<'v>(views: impl Iterator<Item = &'v View>, kinds: &[&'static str]) -> Option<&'static str> {
    let mut kinds = views.map(|view| kinds[view.buffer.index()]);
    kinds.find_map(|kind| match kind {
        GATHERED | PARAMETERS => Some(PARAMETERS),
        GRADIENTS | UNREDUCED => Some(GRADIENTS),
        _ => None,
    })
}

fn of_reason(reason: Option<&str>) -> &'static str {
    let known = REASONS.iter().find(|(start, _)| reason.is_some_and(|reason| reason.starts_with(start)));
    known.map_or("activations", |(_, carried)| carried)
}
