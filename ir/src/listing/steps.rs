//! The steps of a listing: number, stream, what runs, the local type of what it writes; for
//! messages who, how much, why; and what it waits for.

use super::fold::{Fold, Folder};
use super::lines::{Kind, Line, grouped, single};
use super::names::Names;
use super::page::{Cells, Page, elided};
use super::report::{Operand, ProgramReport, StepReport, TaskReport, is_part};
use super::short::Short;
use super::units::{bytes_text, count_text};
use super::{Expand, Options};
use crate::diagnostic::counted;
use crate::names::matches_scope;
use crate::plan::{Program, When};

/// A group of more ranks is abbreviated.
const MAX_GROUP: usize = 8;
/// Longer names are elided.
const MAX_NAME: usize = 36;
/// So are the first and the last of many results.
const MAX_END: usize = 12;
/// The ops of a kernel that are named where not all are.
const MAX_OPS: usize = 3;
/// The waits that are named where not all are.
const MAX_WAITS: usize = 2;

/// Draws the steps of one program for one rank.
pub struct Steps<'a> {
    /// The program.
    pub program: &'a Program,
    /// All that is shown.
    pub report: &'a ProgramReport<'a>,
    /// The rank.
    pub rank: u64,
    /// The spec's file name.
    pub spec_name: &'a str,
    /// How.
    pub options: &'a Options<'a>,
}

impl Steps<'_> {
    /// All tasks in order.
    pub fn text(&self) -> String {
        let names = Names::of(self.program);
        let mut folder = Folder::new(self.program, &names, &self.report.tasks, &self.report.buffers);
        let common = if self.options.all { Short::default() } else { Short::of_leaves(&self.report.buffers) };
        let digits = self.report.tasks.iter().map(|task| task.steps.len()).sum::<usize>().saturating_sub(1).to_string().len();
        let mut page = Page::new(digits.max(2), self.options);
        if let Some(prefix) = common.prefix() {
            page.heading(2, format!("`%.x` is `%{prefix}x`, and within a layer as the line above it says"));
        }
        let open = |scope: &str| match &self.options.expand {
            Expand::Nothing => false,
            Expand::All => true,
            Expand::Scope(wanted) => matches_scope(wanted, scope) || matches_scope(scope, wanted),
        };
        for task in &self.report.tasks {
            page.heading(2, self.task_text(task));
            let lines = if self.options.all { single(task) } else { grouped(task) };
            let folds = if self.options.all { vec![] } else { folder.folds(task, &lines, &open) };
            let mut next = 0;
            for fold in &folds {
                lines[next..fold.lines.start].iter().for_each(|line| page.line(self.cells(task, line, &common, &page)));
                let (heading, short) = self.fold_text(task, &lines, fold, &page);
                page.heading(4, heading);
                fold.run.iter().for_each(|line| page.inner(self.cells(task, &lines[*line], &short, &page)));
                self.others(task, &lines, fold, &common, &mut page);
                next = fold.lines.end;
            }
            lines[next..].iter().for_each(|line| page.line(self.cells(task, line, &common, &page)));
        }
        page.text()
    }

    /// `F0, for each of 2 micro-batches: 81 steps, 1,234,567 FLOP, 8 messages of 128 KiB`
    fn task_text(&self, task: &TaskReport<'_>) -> String {
        let name = match task.name.len() {
            1 => format!("{}{}", task.name, task.stage),
            _ if is_part(task.name) => format!("{} of stage {}", task.name, task.stage),
            _ => task.name.to_string(),
        };
        let often = match task.times {
            1 => "once".to_string(),
            times => format!("for each of {times} micro-batches"),
        };
        let sent = |when: When| {
            let messages = task.steps.iter().filter(|step| step.when == when).filter_map(|step| step.message.as_ref());
            let (count, bytes) = messages.fold((0, 0u64), |(n, sum), message| (n + 1, sum.saturating_add(message.bytes_sent)));
            messages_text(count, bytes)
        };
        let messages = sent(When::Each).map_or(String::new(), |text| format!(", {text}"));
        let last = sent(When::Last).map_or(String::new(), |text| format!("; with the last {text}"));
        let steps = counted(task.steps.len(), "step");
        format!("{name}, {often}: {steps}, {} FLOP{messages}{last}", count_text(task.flops))
    }

    /// `060-123 4 times the same 16 steps, h.0 to h.3; 8 messages, 128 KiB`
    fn fold_text(&self, task: &TaskReport<'_>, lines: &[Line], fold: &Fold, page: &Page<'_>) -> (String, Short) {
        let (first, last) = (lines[fold.lines.start], lines[fold.lines.end - 1]);
        let range = page.range(task.steps[first.first].number, task.steps[last.first + last.count - 1].number);
        let mut text = format!("{range} {} times the same {}", fold.times, counted(fold.steps, "step"));
        if !fold.others.is_empty() {
            text.push_str(&format!(" but for {}", counted(fold.others.len(), "call")));
        }
        let messages = messages_text(fold.messages.0, fold.messages.1).map_or(String::new(), |text| format!("; {text}"));
        match &fold.scopes[..] {
            [from, .., to] => (format!("{text}, {from} to {to}{messages}; `%.x` is `%{from}.x`"), Short::of(format!("{from}."))),
            _ => (text + &messages, Short::default()),
        }
    }

    /// The calls for gradients that stand between the runs of a fold: those that are alike in one
    /// line.
    fn others(&self, task: &TaskReport<'_>, lines: &[Line], fold: &Fold, common: &Short, page: &mut Page<'_>) {
        let step = |line: &usize| &task.steps[lines[*line].first];
        let alike =
            |a: &usize, b: &usize| (step(a).op, step(a).when, step(a).spec_line) == (step(b).op, step(b).when, step(b).spec_line);
        for calls in fold.others.chunk_by(alike) {
            let (Some(first), Some(last)) = (calls.first(), calls.last()) else { continue };
            let mut cells = self.cells(task, &lines[*first], common, page);
            if calls.len() > 1 {
                let sent = calls.iter().filter_map(|line| step(line).message.as_ref());
                let sent = sent.fold(0u64, |sum, message| sum.saturating_add(message.bytes_sent));
                let writes: usize = calls.iter().map(|line| step(line).writes.len()).sum();
                let line = step(first).spec_line.map_or(String::new(), |line| format!(" ({}:{line})", self.spec_name));
                cells.number = page.range(step(first).number, step(last).number);
                cells.op = format!("{} × {}", calls.len(), cells.op);
                (cells.operands, cells.types) = (String::new(), String::new());
                cells.note = format!("{}  {}{line}", bytes_text(sent), counted(writes, "gradient"));
            }
            page.line(cells);
        }
    }

    fn cells(&self, task: &TaskReport<'_>, line: &Line, short: &Short, page: &Page<'_>) -> Cells {
        let steps = &task.steps[line.first..line.first + line.count];
        let (step, last) = (&steps[0], &steps[steps.len() - 1]);
        let name = |operand: &Operand| self.name(operand, short);
        let names = |operands: &mut dyn Iterator<Item = &Operand>| operands.map(name).collect::<Vec<_>>();
        let all_writes = || steps.iter().flat_map(|step| &step.writes);
        let types = |operands: &mut dyn Iterator<Item = &Operand>| operands.map(|o| self.type_text(o)).collect::<Vec<_>>();
        let same_type = || {
            let mut types = types(&mut all_writes());
            types.dedup();
            if types.len() == 1 { types.concat() } else { bytes_text(all_writes().map(|write| write.bytes).sum()) }
        };
        let ends = || match (step.writes.first(), last.writes.last()) {
            (Some(from), Some(to)) => format!("{} … {}", elided(&name(from), MAX_END), elided(&name(to), MAX_END)),
            _ => String::new(),
        };
        let (result, op, operands, types) = match line.kind {
            Kind::One => {
                let types = match &step.message {
                    Some(_) if step.writes.len() > 1 => self.joined_type(step),
                    _ => self.listed(types(&mut step.writes.iter()), ", "),
                };
                (self.listed(names(&mut step.writes.iter()), ", "), self.op_text(step), self.operands_text(step, short), types)
            }
            Kind::Accumulated => {
                let op = format!("accumulate {}", self.op_text(step));
                (
                    names(&mut last.writes.iter()).join(", "),
                    op,
                    self.operands_text(step, short),
                    types(&mut last.writes.iter()).join(", "),
                )
            }
            Kind::Parts => {
                let own: Vec<&String> = steps.iter().flat_map(|step| &step.writes).map(|write| &write.value).collect();
                let read = steps.iter().flat_map(|step| &step.reads).filter(|read| !own.contains(&&read.value));
                let op = format!("{} of {} parts", word(step.op), steps.len());
                (
                    names(&mut last.writes.iter()).join(", "),
                    op,
                    names(&mut read.into_iter()).join(", "),
                    types(&mut last.writes.iter()).join(", "),
                )
            }
            Kind::Slices => {
                let op = format!("{} × {}", steps.len(), word(step.op));
                (names(&mut all_writes()).join(", "), op, names(&mut step.reads.iter().take(1)).concat(), same_type())
            }
            Kind::Alike => (ends(), format!("{} × {}", steps.len(), self.op_text(step)), String::new(), same_type()),
        };
        Cells {
            number: page.range(step.number, last.number),
            stream: step.stream.name(),
            result,
            op,
            operands,
            types,
            note: self.note(steps, line.kind, short, page),
        }
    }

    /// What is said at the end of a line: the message, or over which axes it is partial; what it
    /// waits for.
    fn note(&self, steps: &[StepReport<'_>], kind: Kind, short: &Short, page: &Page<'_>) -> String {
        let step = &steps[0];
        let mut notes = vec![];
        if let Some(message) = &step.message {
            notes.push(bytes_text(message.bytes_sent));
            notes.extend(self.reason_text(step, short));
        } else if kind == Kind::One {
            notes.extend(step.partial.clone());
        } else if kind == Kind::Alike && !step.op.starts_with("fill") {
            notes.extend(self.reason_text(step, short).filter(|_| steps.iter().all(|s| s.reason == step.reason)));
        }
        if step.when == When::Last && self.program.mesh.microbatches() > 1 {
            notes.push("with the last micro-batch".to_string());
        }
        let within = step.number..=steps[steps.len() - 1].number;
        let mut after: Vec<usize> =
            steps.iter().flat_map(|step| &step.after).copied().filter(|on| !within.contains(on)).collect();
        after.sort_unstable();
        after.dedup();
        let most = if self.options.all { after.len() } else { MAX_WAITS };
        let more = if after.len() > most { ", …" } else { "" };
        let after: Vec<String> = after.into_iter().rev().take(most).map(|on| page.number(on)).collect();
        if !after.is_empty() {
            notes.push(format!("after {}{more}", after.join(", ")));
        }
        notes.join("  ")
    }

    fn reason_text(&self, step: &StepReport<'_>, short: &Short) -> Option<String> {
        let reason = step.reason.map(|reason| short.quoted(reason));
        let line = step.spec_line.map(|line| format!("({}:{line})", self.spec_name));
        let words: Vec<String> = reason.into_iter().chain(line).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    fn op_text(&self, step: &StepReport<'_>) -> String {
        match &step.message {
            Some(message) => {
                let axes = message.axes.iter().filter_map(|axis| self.program.mesh.axis(axis));
                format!("{} {}", step.op, group_text(&self.program.mesh.group(self.rank, &axes.collect::<Vec<_>>())))
            }
            None if self.options.all => step.op.to_string(),
            None => short_op(step.op),
        }
    }

    fn operands_text(&self, step: &StepReport<'_>, short: &Short) -> String {
        let names: Vec<String> = step.reads.iter().map(|read| self.name(read, short)).collect();
        if step.message.is_some() { self.listed(names, ", ") } else { names.join(", ") }
    }

    /// All of them, or the first alone.
    fn listed(&self, names: Vec<String>, between: &str) -> String {
        match &names[..] {
            [first, _, ..] if !self.options.all => format!("{first}, … {}", names.len()),
            _ => names.join(between),
        }
    }

    fn name(&self, operand: &Operand, short: &Short) -> String {
        let name = short.of_name(&operand.value);
        format!("%{}", if self.options.all { name } else { elided(&name, MAX_NAME) })
    }

    /// The local type of the buffer that an operand is in.
    fn type_text(&self, operand: &Operand) -> String {
        let buffer = &self.report.buffers[operand.buffer as usize];
        let sizes: Vec<String> = buffer.local.iter().map(u64::to_string).collect();
        format!("{}[{}]", buffer.dtype, sizes.join(", "))
    }

    /// The type of all that a message of several operands writes, one behind the other.
    fn joined_type(&self, step: &StepReport<'_>) -> String {
        let first = &self.program.buffers[step.writes[0].buffer as usize];
        let bytes: u64 = step.writes.iter().map(|write| write.bytes).sum();
        format!("{}[{}]", first.dtype, bytes / first.dtype.bytes())
    }
}

/// The op without its attributes.
fn word(op: &str) -> &str {
    op.split(' ').next().unwrap_or_default()
}

/// `map(add, mul, tanh, 14 more)` of a kernel of many ops, each without its attributes; of others
/// without the layout of operands, which have keys of one letter, and without what is nested.
fn short_op(op: &str) -> String {
    let Some(inner) = op.strip_prefix("map(").and_then(|rest| rest.strip_suffix(')')) else {
        let plain = op.find("={").map_or(op, |at| op[..at].rsplit_once(' ').map_or(op, |(before, _)| before));
        let shown = plain.split(' ').filter(|word| word.find('=') != Some(1));
        return shown.collect::<Vec<_>>().join(" ");
    };
    let (mut ops, mut depth) = (vec![String::new()], 0usize);
    for c in inner.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => ops.push(String::new()),
            _ => {}
        }
        if !(c == ',' && depth == 0) {
            ops[..].last_mut().into_iter().for_each(|op| op.push(c));
        }
    }
    let names: Vec<&str> = ops.iter().map(|op| op.trim().split([' ', '(']).next().unwrap_or_default()).collect();
    match names.len() {
        few if few <= MAX_OPS + 1 => format!("map({})", names.join(", ")),
        many => format!("map({}, {} more)", names[..MAX_OPS].join(", "), many - MAX_OPS),
    }
}

fn messages_text(count: usize, bytes: u64) -> Option<String> {
    (count > 0).then(|| format!("{}, {}", counted(count, "message"), bytes_text(bytes)))
}

fn group_text(ranks: &[u64]) -> String {
    let list = |ranks: &[u64]| ranks.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    match ranks {
        [first @ .., last] if ranks.len() > MAX_GROUP => format!("{{{},…,{last}}}", list(&first[..MAX_GROUP - 2])),
        _ => format!("{{{}}}", list(ranks)),
    }
}
