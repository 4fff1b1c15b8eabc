//! A launch table for people: a line for each row.

use shardc_codegen::matmul::{Epilogue, Matmul};
use shardc_codegen::table::{Part, Range, Row, Table, Work};
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::plan::Program;

/// The rows of the table of `program` in lines of `width` columns. Bytes are `first+count`, in
/// hexadecimal digits and in decimal ones; `r` is read, `w` written, `u` both. A product is rows x
/// columns x terms of `D`, column by column.
pub fn listing(table: &Table, program: &Program, width: usize) -> String {
    let head = format!(
        "{} on {} of memory: {} of the plan, {} for wrong data, {} for partial results\n",
        counted(table.sections.iter().map(|section| section.rows.len() as u64).sum::<u64>(), "row"),
        bytes_text(table.bytes()),
        bytes_text(table.arena),
        bytes_text(table.fault.end - table.fault.start),
        bytes_text(table.workspace.end - table.workspace.start),
    );
    let mut rows = vec![["row", "queue", "work", "grid", "block", "shared", "after", "bytes"].map(String::from)];
    let mut heads = vec![];
    let mut number = 0;
    for (at, section) in table.sections.iter().enumerate() {
        let times = table.order.iter().filter(|run| run.section as usize == at).count();
        heads.push((rows.len(), format!("{}, {}", name(program, &section.part), repeated(times))));
        for row in &section.rows {
            rows.push(cells(program, number, row));
            number += 1;
        }
    }
    let columns = [
        Column::NUMBERS,
        Column::WORDS,
        Column::WORDS,
        Column::NUMBERS,
        Column::NUMBERS,
        Column::NUMBERS,
        Column::WORDS,
        Column::WORDS,
    ];
    let mut text = head;
    for (at, line) in align(&rows, columns).lines().enumerate() {
        heads.iter().filter(|(first, _)| *first == at).for_each(|(_, head)| text.push_str(&format!("{head}\n")));
        text.push_str(&cut(line, width));
    }
    text
}

fn cut(line: &str, width: usize) -> String {
    match line.char_indices().nth(width.saturating_sub(1)) {
        Some((at, _)) if line.chars().count() > width => format!("{}…\n", &line[..at]),
        _ => format!("{line}\n"),
    }
}

fn repeated(times: usize) -> String {
    match times {
        1 => "once".to_string(),
        _ => format!("{times} times"),
    }
}

fn name(program: &Program, part: &Part) -> String {
    match part {
        Part::Begin => "before the step".to_string(),
        Part::Task(task) => program.tasks[*task as usize].name.clone(),
        Part::Messages(messages) => {
            let values: Vec<&str> = messages.iter().map(|m| program.messages[*m as usize].value.as_str()).collect();
            format!("messages {}", values.join(", "))
        }
        Part::End => "behind the step".to_string(),
    }
}

fn cells(program: &Program, number: usize, row: &Row) -> [String; 8] {
    let none = || [String::new(), String::new(), String::new()];
    let all = |way: &str, ranges: &[Range]| ranges.iter().map(|range| bytes(way, range)).collect::<Vec<_>>();
    let (work, [grid, block, shared], touched) = match &row.work {
        Work::Launch { entry, grid, block, shared, pointers, .. } => {
            let pointer = |p: &shardc_codegen::table::Pointer| {
                let way = match (p.is_read, p.is_written) {
                    (true, true) => "u",
                    (_, true) => "w",
                    _ => "r",
                };
                format!("{} {}", p.name, bytes(way, &p.range))
            };
            let blocks = grid.iter().rposition(|blocks| *blocks != 1).map_or(1, |last| last + 1);
            let grid: Vec<String> = grid[..blocks].iter().map(u32::to_string).collect();
            let numbers = [grid.join("x"), block.to_string(), shared.to_string()];
            (entry.clone(), numbers, pointers.iter().map(pointer).collect())
        }
        Work::Product { product, a, b, d, added, vector, room } => {
            let Matmul { a: of_a, d: of_d, transposed, .. } = &**product;
            let terms = if transposed[0] { of_a.rows } else { of_a.columns };
            let batch = if of_d.batch > 1 { format!(" x{}", of_d.batch) } else { String::new() };
            let (beside, way) = match product.epilogue {
                Epilogue::Default if added.is_some() => (" add", ""),
                Epilogue::Default => ("", ""),
                Epilogue::Bias => (" bias", "bias r"),
                Epilogue::BiasGradientA | Epilogue::BiasGradientB => (" bias gradient", "bias w"),
            };
            let work = format!("cublaslt {}x{}x{terms}{batch} {}{beside}", of_d.rows, of_d.columns, of_a.dtype);
            let all = [("a r", Some(a)), ("b r", Some(b)), ("c r", added.as_ref()), (way, vector.as_ref()), ("d w", Some(d))];
            let touched = all.into_iter().chain([("room w", Some(room))]).filter_map(|(way, range)| Some(bytes(way, range?)));
            (work, none(), touched.collect())
        }
        Work::Call { call, reads, writes } => {
            let axes: Vec<&str> = call.axes.iter().map(|axis| program.mesh.name(*axis)).collect();
            let kind = shardc_ir::kernel::CommunicationKind::from(call.kind).name();
            (format!("{kind} {} over {}", call.op.name(), axes.join(",")), none(), [all("r", reads), all("w", writes)].concat())
        }
        Work::Messages { way, ranges } => {
            let (verb, touches) = if way.sends { ("send", "r") } else { ("receive", "w") };
            (format!("{verb} {}", way.name(&program.mesh)), none(), all(touches, ranges))
        }
        Work::CopyInput { input, to } => (format!("copy in {}", program.inputs[*input as usize].name), none(), all("w", &[*to])),
        Work::CopyScalar { scalar, to } => (format!("copy in {}", scalar.name()), none(), all("w", &[*to])),
        Work::Clear { to } => ("clear".to_string(), none(), all("w", &[*to])),
        Work::CopyOutput { output, from } => {
            (format!("copy out {}", program.outputs[*output as usize].name), none(), all("r", &[*from]))
        }
        Work::CopyFault { from } => ("copy out the word for wrong data".to_string(), none(), all("r", &[*from])),
    };
    let after: Vec<String> = row.waits.iter().map(u32::to_string).collect();
    [number.to_string(), row.stream.name().to_string(), work, grid, block, shared, after.join(" "), touched.join(", ")]
}

/// A range for people.
fn bytes(way: &str, range: &Range) -> String {
    let slots = if range.slots > 1 { format!(" of {} slots by {}", range.slots, range.slot_bytes) } else { String::new() };
    format!("{way} {:x}+{}{slots}", range.start, range.bytes)
}
