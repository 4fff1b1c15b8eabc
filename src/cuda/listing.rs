//! The list of a plan's kernels, for people.

use super::{Entry, LaunchEntry, List};
use shardc_ir::columns::{Column, align};

/// A table of `list` in lines of `width` columns: a line for each launch.
pub fn table(list: &List, width: usize) -> String {
    let mut rows = vec![["kernel", "steps", "grid", "block", "shared", "registers", "first step"].map(String::from)];
    for kernel in &list.kernels {
        rows.extend((0..).zip(&kernel.launches).map(|(number, launch)| row(list, kernel, number, launch)));
    }
    let columns =
        [Column::after(""), Column::NUMBERS, Column::NUMBERS, Column::NUMBERS, Column::NUMBERS, Column::NUMBERS, Column::WORDS];
    let cut = |line: &str| match line.char_indices().nth(width.saturating_sub(1)) {
        Some((at, _)) if line.chars().count() > width => format!("{}…\n", &line[..at]),
        _ => format!("{line}\n"),
    };
    let names: Vec<String> = list.architectures.iter().map(|arch| format!("sm_{arch}")).collect();
    let assembled = if names.is_empty() { "not assembled".to_string() } else { format!("assembled for {}", names.join(", ")) };
    let head = format!("{} kernels, {assembled}; shared memory in bytes of a block\n", list.kernels.len());
    head + &align(&rows, columns).lines().map(cut).collect::<String>()
}

fn row(list: &List, kernel: &Entry, number: usize, launch: &LaunchEntry) -> [String; 7] {
    let resources = || list.architectures.iter().map(|arch| launch.resources.get(arch));
    let registers: Vec<String> =
        resources().map(|used| used.map_or("-".to_string(), |used| used.registers.to_string())).collect();
    let declared = resources().flatten().map(|used| used.shared).max().unwrap_or(0);
    let grid = launch.grid.iter().rposition(|blocks| *blocks != 1).map_or(1, |last| last + 1);
    let grid: Vec<String> = launch.grid[..grid].iter().map(u32::to_string).collect();
    let is_first = number == 0;
    [
        if is_first { kernel.name.clone() } else { "  then".to_string() },
        if is_first { kernel.steps.to_string() } else { String::new() },
        grid.join("x"),
        launch.block.to_string(),
        launch.shared.saturating_add(declared).to_string(),
        if registers.is_empty() { "-".to_string() } else { registers.join(" ") },
        if is_first { kernel.step.clone() } else { String::new() },
    ]
}
