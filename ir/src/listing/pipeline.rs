//! The pipeline in a listing: when each position runs what, and the messages of one of them.

use super::Options;
use super::page::{cut, wrapped};
use super::units::bytes_text;
use crate::clock::programs::schedule;
use crate::clock::timeline::draw;
use crate::columns::{Column, align};
use crate::plan::set::PlanSet;
use crate::plan::{Message, Program, Row};

/// The timeline of all positions; empty where all ranks run one program.
pub fn timeline_text(set: &PlanSet, width: usize) -> String {
    if set.axes.is_empty() {
        return String::new();
    }
    let Ok(schedule) = schedule(set) else {
        return "\n  pipeline\n    its positions wait for one another for ever\n".to_string();
    };
    let lines = draw(&schedule.lanes, width.saturating_sub(4));
    let lines: String = lines.lines().map(|line| format!("    {}\n", line.trim_end())).collect();
    let (share, costs) = (100.0 * schedule.idle.share, schedule.costs);
    let idle = format!("    idle {share:.1} % of a step, {costs} and messages nothing\n");
    format!("\n  pipeline\n{lines}{idle}")
}

/// The messages of a program, each once however often it is sent.
pub fn messages_text(program: &Program, spec_name: &str, options: &Options<'_>) -> String {
    if program.messages.is_empty() {
        return String::new();
    }
    let mut times = vec![0u64; program.messages.len()];
    for row in &program.order {
        if let Row::Exchange(messages) = row {
            messages.iter().for_each(|(message, _)| times[*message as usize] += 1);
        }
    }
    let row = |(message, times): (&Message, &u64)| {
        let buffer = &program.buffers[message.view.buffer.index()];
        let sizes: Vec<String> = buffer.local.iter().map(u64::to_string).collect();
        let way = if message.sends { "send to" } else { "receive from" };
        let line = message.provenance.spec_line.map_or(String::new(), |line| format!(" ({spec_name}:{line})"));
        [
            format!("{way} {}={}", program.mesh.name(message.axis), message.peer),
            format!("%{}", message.value),
            format!("{}[{}]", buffer.dtype, sizes.join(", ")),
            bytes_text(message.view.bytes),
            if *times == 1 { "once".to_string() } else { format!("{times} times") },
            format!("{}{line}", message.provenance.reason.as_deref().unwrap_or_default()),
        ]
    };
    let rows: Vec<_> = program.messages.iter().zip(&times).map(row).collect();
    let columns = [Column::after("    "), Column::WORDS, Column::after("  : "), Column::NUMBERS, Column::WORDS, Column::WORDS];
    let fitted = |line: &str| if options.all { wrapped(line, options.width) } else { cut(line, options.width) };
    let lines: String = align(&rows, columns).lines().map(|line| fitted(line) + "\n").collect();
    format!("\n  messages\n{lines}")
}
