//! The mutations: one small change each, chosen at random.

mod calls;
mod kernels;
mod steps;
mod tables;

use self::calls::{
    change_kind, change_op, change_operands, exchange_axis, exchange_collectives, reorder_axes, resize_collective, resize_group,
};
pub use self::kernels::constants;
use self::kernels::{
    change_constant, change_instruction, change_origin, change_random, change_reduction, change_stride, resize_kernel,
};
use self::steps::{
    drop_step, duplicate_step, exchange_operands, move_step, move_view, read_another, replace_step, resize_view, swap_steps,
    write_another,
};
use self::tables::{
    change_bytes, change_numbers, change_row, change_sharding, change_slots, change_type, change_when, drop_entry, drop_row,
    duplicate_row, exchange_buffers, exchange_gradients, exchange_inputs, exchange_outputs, exchange_scalars, exchange_states,
    exchange_tasks, move_buffer, move_row, overlap_buffers,
};
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{Program, Step, View};
use shardc_testkit::random::Random;

/// Changes a program in one place; what it did, or nothing where it finds no place.
pub type Mutation = fn(&mut Program, &mut Random) -> Option<String>;

/// A class of mutants.
pub struct Class {
    /// Its name in the report.
    pub name: &'static str,
    /// How its mutants are made.
    pub mutate: Mutation,
    /// Which ranks run its mutants.
    pub runs: Runs,
}

/// Which ranks run a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// All of them, or one alone.
    Both,
    /// All of them: the host has one table.
    AllRanks,
    /// One alone: what all ranks run alike is not for the graph to say.
    OneRank,
}

/// Every class.
pub const CLASSES: &[Class] = &[
    class("step dropped", drop_step),
    class("step duplicated", duplicate_step),
    class("neighbours swapped", swap_steps),
    class("step moved", move_step),
    class("view resized", resize_view),
    class("view moved", move_view),
    class("kernel resized", resize_kernel),
    class("stride changed", change_stride),
    class("collective kind", change_kind),
    class("collective op", change_op),
    class("collective axis", exchange_axis),
    class("collective order of axes", reorder_axes),
    class("collective group", resize_group),
    class("collective count", resize_collective),
    class("collective operands", change_operands),
    class("collectives exchanged", exchange_collectives),
    class("constant changed", change_constant),
    class("instruction changed", change_instruction),
    class("reduction changed", change_reduction),
    class("wrong buffer read", read_another),
    class("wrong buffer written", write_another),
    class("operands exchanged", exchange_operands),
    class("step replaced", replace_step),
    class("buffers exchanged", exchange_buffers),
    class("two changes", change_twice),
    class("origin changed", change_origin),
    class("randomness changed", change_random),
    of_all("buffers overlapped", overlap_buffers),
    of_all("buffer moved", move_buffer),
    of_all("slots changed", change_slots),
    of_all("sharding changed", change_sharding),
    of_all("type changed", change_type),
    class("row dropped", drop_row),
    class("row duplicated", duplicate_row),
    class("row moved", move_row),
    class("row changed", change_row),
    class("step of the last", change_when),
    class("tasks exchanged", exchange_tasks),
    of_all("states exchanged", exchange_states),
    of_all("outputs exchanged", exchange_outputs),
    of_all("inputs exchanged", exchange_inputs),
    of_all("gradients exchanged", exchange_gradients),
    of_all("bit of a constant", change_bytes),
    of_all("table entry dropped", drop_entry),
    Class { name: "numbers of the run", mutate: change_numbers, runs: Runs::OneRank },
    of_all("scalars exchanged", exchange_scalars),
];

const fn class(name: &'static str, mutate: Mutation) -> Class {
    Class { name, mutate, runs: Runs::Both }
}

const fn of_all(name: &'static str, mutate: Mutation) -> Class {
    Class { name, mutate, runs: Runs::AllRanks }
}

pub(super) type StepIndex = (usize, usize);

pub fn places(program: &Program, of: impl Fn(&Step) -> bool) -> Vec<StepIndex> {
    let tasks = program.tasks.iter().enumerate();
    tasks
        .flat_map(|(t, task)| (0..task.steps.len()).map(move |s| (t, s)))
        .filter(|(t, s)| of(&program.tasks[*t].steps[*s]))
        .collect()
}

/// A step of those that `of` holds for.
pub fn step<'p>(program: &'p mut Program, random: &mut Random, of: impl Fn(&Step) -> bool) -> Option<&'p mut Step> {
    let (t, s) = random.pick(&places(program, of))?;
    Some(&mut program.tasks[t].steps[s])
}

pub(super) fn same(a: &View, b: &View) -> bool {
    a.buffer == b.buffer
}

/// A size becomes another.
pub(super) fn resize(size: &mut u64, random: &mut Random) -> Option<String> {
    let before = *size;
    *size = match random.below(4) {
        0 => before / 2,
        1 => before * 2,
        2 => before.saturating_sub(1),
        _ => before + 1,
    };
    (*size != before).then(|| format!("{before} to {size}"))
}

pub fn is_call(step: &Step) -> bool {
    matches!(step.kernel, Kernel::Collective(_))
}

/// Two changes of any classes that may hide one another.
fn change_twice(program: &mut Program, random: &mut Random) -> Option<String> {
    const EACH: &[Mutation] = &[
        drop_step,
        duplicate_step,
        swap_steps,
        move_step,
        exchange_axis,
        change_op,
        change_constant,
        change_instruction,
        read_another,
        write_another,
        exchange_operands,
        change_origin,
        move_buffer,
        replace_step,
        exchange_collectives,
    ];
    let first = random.pick(EACH)?(program, random)?;
    let second = random.pick(EACH)?(program, random)?;
    Some(format!("{first}; {second}"))
}
