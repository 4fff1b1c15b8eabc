//! The mutations: one small change each, chosen at random.

use super::support::Random;
use shardc_ir::kernel::{AttentionGrad, AttentionMask, Collective, CollectiveKind, Fill, Kernel, Map, Position, RowProgram};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Program, Repeat, Step, View};
use shardc_ir::position::Origin;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram, Unary};
use shardc_ir::sharding::Split;

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
    class("task repeat", change_repeat),
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

type Place = (usize, usize);

fn places(program: &Program, of: impl Fn(&Step) -> bool) -> Vec<Place> {
    let tasks = program.tasks.iter().enumerate();
    tasks
        .flat_map(|(t, task)| (0..task.steps.len()).map(move |s| (t, s)))
        .filter(|(t, s)| of(&program.tasks[*t].steps[*s]))
        .collect()
}

/// A step of those that `of` holds for.
fn step<'p>(program: &'p mut Program, random: &mut Random, of: impl Fn(&Step) -> bool) -> Option<&'p mut Step> {
    let (t, s) = random.pick(&places(program, of))?;
    Some(&mut program.tasks[t].steps[s])
}

fn same(a: &View, b: &View) -> bool {
    a.buffer == b.buffer
}

/// Whether the order of two steps matters: one writes what the other touches.
fn depend(program: &Program, a: &Step, b: &Step) -> bool {
    let range = |v: &View| {
        let buffer = &program.buffers[v.buffer.index()];
        (buffer.offset + v.offset, buffer.offset + v.offset + v.bytes)
    };
    let meet = |a: &View, b: &View| range(a).0 < range(b).1 && range(b).0 < range(a).1;
    let writes = |a: &Step, b: &Step| a.writes.iter().any(|w| b.reads.iter().chain(&b.writes).any(|v| meet(w, v)));
    writes(a, b) || writes(b, a)
}

fn drop_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |_| true))?;
    let step = program.tasks[t].steps.remove(s);
    Some(format!("`{}` {t}.{s}", step.text))
}

fn duplicate_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |_| true))?;
    let step = program.tasks[t].steps[s].clone();
    let to = s + 1 + random.below(program.tasks[t].steps.len() - s);
    let text = format!("`{}` {t}.{s} again at {to}", step.text);
    program.tasks[t].steps.insert(to, step);
    Some(text)
}

fn swap_steps(program: &mut Program, random: &mut Random) -> Option<String> {
    let steps = |(t, s): Place| (&program.tasks[t].steps[s - 1], &program.tasks[t].steps[s]);
    let matters = |place: &Place| place.1 > 0 && depend(program, steps(*place).0, steps(*place).1);
    let all: Vec<Place> = places(program, |_| true).into_iter().filter(matters).collect();
    let (t, s) = random.pick(&all)?;
    program.tasks[t].steps.swap(s - 1, s);
    Some(format!("`{}` {t}.{s}", program.tasks[t].steps[s].text))
}

/// A step goes elsewhere, past one that it depends on or that depends on it.
fn move_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = places(program, |_| true);
    let from = random.below(all.len());
    let (t, s) = all[from];
    let step = program.tasks[t].steps[s].clone();
    let past: Vec<Place> =
        all.iter().copied().filter(|p| *p != (t, s) && depend(program, &program.tasks[p.0].steps[p.1], &step)).collect();
    let (to_t, to_s) = random.pick(&past)?;
    // Behind a later one, before an earlier one.
    let after = (to_t, to_s) > (t, s);
    program.tasks[t].steps.remove(s);
    let to_s = if to_t == t && after { to_s } else { to_s + usize::from(after) };
    let text = format!("`{}` {t}.{s} to {to_t}.{to_s}", step.text);
    program.tasks[to_t].steps.insert(to_s, step);
    Some(text)
}

/// A random operand.
fn view<'p>(program: &'p mut Program, random: &mut Random) -> Option<(&'p mut View, String)> {
    let step = step(program, random, |_| true)?;
    let i = random.below(step.reads.len() + step.writes.len());
    let text = format!("operand {i} of `{}`", step.text);
    let view = step.reads.iter_mut().chain(&mut step.writes).nth(i)?;
    Some((view, text))
}

fn resize_view(program: &mut Program, random: &mut Random) -> Option<String> {
    let (view, text) = view(program, random)?;
    let bytes = view.bytes;
    view.bytes = match random.below(5) {
        0 => bytes / 2,
        1 => bytes * 2,
        2 => bytes.saturating_sub(8),
        3 => bytes + 8,
        _ => 0,
    };
    (view.bytes != bytes).then(|| format!("{text}: {bytes} to {} bytes", view.bytes))
}

fn move_view(program: &mut Program, random: &mut Random) -> Option<String> {
    let (view, text) = view(program, random)?;
    let by = random.pick(&[8, 16, 64, view.bytes.max(8), 4])?;
    view.offset += by;
    Some(format!("{text}: {by} bytes further"))
}

/// A size becomes another.
fn resize(size: &mut u64, random: &mut Random) -> Option<String> {
    let before = *size;
    *size = match random.below(4) {
        0 => before / 2,
        1 => before * 2,
        2 => before.saturating_sub(1),
        _ => before + 1,
    };
    (*size != before).then(|| format!("{before} to {size}"))
}

fn resize_kernel(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| !matches!(s.kernel, Kernel::Collective(_)))?;
    let mut sizes = step.kernel.form_mut().sizes_mut();
    if sizes.is_empty() {
        return None;
    }
    let i = random.below(sizes.len());
    let change = resize(sizes[i], random)?;
    Some(format!("size {i} of `{}`: {change}", step.text))
}

fn change_stride(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| !s.kernel.clone().form_mut().strides_mut().is_empty())?;
    let mut strides = step.kernel.form_mut().strides_mut();
    let i = random.below(strides.len());
    let other = random.below(strides.len());
    let before = *strides[i];
    *strides[i] = match random.below(4) {
        0 => 0,
        1 => before + 1,
        2 => *strides[other],
        _ => before * 2,
    };
    let after = *strides[i];
    (after != before).then(|| format!("stride {i} of `{}`: {before} to {after}", step.text))
}

fn is_call(step: &Step) -> bool {
    matches!(step.kernel, Kernel::Collective(_))
}

/// A random call, with all that its step holds.
fn call<'p>(program: &'p mut Program, random: &mut Random, of: impl Fn(&Collective) -> bool) -> Option<&'p mut Step> {
    step(program, random, |s| matches!(&s.kernel, Kernel::Collective(c) if of(c)))
}

/// Changes a call; `fit` makes count and views those of the new kind and group.
fn change_call(step: &mut Step, members: u64, fit: bool, change: impl FnOnce(&mut Collective)) {
    let Kernel::Collective(call) = &mut step.kernel else { return };
    change(call);
    if !fit {
        return;
    }
    let element = call.dtype.bytes();
    let (read, write) = (&step.reads[0], &mut step.writes[0]);
    let (whole, part) = (read.bytes, read.bytes / members.max(1) / element * element);
    let (count, written) = match call.kind {
        CollectiveKind::AllReduce => (whole, whole),
        CollectiveKind::AllGather => (whole, whole * members),
        CollectiveKind::ReduceScatter => (part, part),
        CollectiveKind::AllToAll => (part, whole),
    };
    call.count = count / element;
    write.bytes = written;
}

fn members(program: &Program, axes: &[AxisId]) -> u64 {
    axes.iter().map(|a| program.mesh.size(*a)).product()
}

fn change_kind(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = program.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(before) = step.kernel.clone() else { return None };
    use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
    let kind = random.pick(&[AllReduce, AllGather, ReduceScatter, AllToAll])?;
    change_call(step, members(&all, &before.axes), random.below(3) > 0, |call| call.kind = kind);
    (kind != before.kind).then(|| format!("`{}`: {kind:?}", step.text))
}

fn change_op(program: &mut Program, random: &mut Random) -> Option<String> {
    let reduces = |c: &Collective| matches!(c.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
    let step = call(program, random, reduces)?;
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let before = call.op;
    call.op = random.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])?;
    (call.op != before).then(|| format!("`{}`: {:?}", step.text, call.op))
}

fn exchange_axis(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let i = random.below(call.axes.len());
    let axis = AxisId(random.below(mesh.rank_axes().len()) as u8);
    if call.axes.contains(&axis) || mesh.size(axis) != mesh.size(call.axes[i]) {
        return None;
    }
    call.axes[i] = axis;
    Some(format!("`{}`: {:?}", step.text, call.axes))
}

fn reorder_axes(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = call(program, random, |c| c.axes.len() > 1)?;
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    call.axes.reverse();
    Some(format!("`{}`", step.text))
}

fn resize_group(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = program.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(before) = step.kernel.clone() else { return None };
    let mut axes = before.axes.clone();
    let axis = AxisId(random.below(all.mesh.rank_axes().len()) as u8);
    match axes.iter().position(|a| *a == axis) {
        Some(_) if axes.len() == 1 => return None,
        Some(i) => {
            axes.remove(i);
        }
        None => axes.push(axis),
    }
    change_call(step, members(&all, &axes), random.below(3) > 0, |call| call.axes = axes.clone());
    Some(format!("`{}`: {axes:?}", step.text))
}

fn resize_collective(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = program.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(before) = step.kernel.clone() else { return None };
    if random.below(2) == 0 {
        let Kernel::Collective(call) = &mut step.kernel else { return None };
        let change = resize(&mut call.count, random)?;
        return Some(format!("`{}`: {change}", step.text));
    }
    // Less, and all operands with it.
    let less = before.dtype.bytes() * members(&all, &before.axes);
    if step.reads[0].bytes <= less {
        return None;
    }
    step.reads[0].bytes -= less;
    change_call(step, members(&all, &before.axes), true, |_| {});
    Some(format!("`{}`: {less} bytes less", step.text))
}

/// Two calls exchange their groups, or their operands.
fn exchange_collectives(program: &mut Program, random: &mut Random) -> Option<String> {
    let calls = places(program, is_call);
    let (a, b) = (random.pick(&calls)?, random.pick(&calls)?);
    let (first, second) = (program.tasks[a.0].steps[a.1].clone(), program.tasks[b.0].steps[b.1].clone());
    let how = random.below(2);
    let (Kernel::Collective(x), Kernel::Collective(y)) = (&first.kernel, &second.kernel) else { return None };
    let different = if how == 0 { x.axes != y.axes } else { first.reads != second.reads };
    if a == b || !different {
        return None;
    }
    for (place, other, call) in [(a, &second, y), (b, &first, x)] {
        let step = &mut program.tasks[place.0].steps[place.1];
        if how == 0 {
            change_call(step, 1, false, |c| c.axes = call.axes.clone());
        } else {
            (step.reads, step.writes) = (other.reads.clone(), other.writes.clone());
        }
    }
    Some(format!("`{}` and `{}`, {}", first.text, second.text, ["groups", "operands"][how]))
}

/// The scalar program of a step, if it has one.
fn scalar(step: &mut Step) -> Option<&mut Map> {
    match &mut step.kernel {
        Kernel::Map(map) => Some(map),
        Kernel::Reduce(reduce) => Some(&mut reduce.map),
        _ => None,
    }
}

fn changed(value: f64, random: &mut Random) -> f64 {
    match random.below(6) {
        0 => value * 2.0,
        1 => value / 2.0,
        2 => value + 1e-3,
        3 => -value,
        4 => 0.0,
        _ => 1.0,
    }
}

/// All numbers of a kernel.
fn constants(kernel: &mut Kernel) -> Vec<&mut f64> {
    let map = match kernel {
        Kernel::Map(map) => map,
        Kernel::Reduce(reduce) => &mut reduce.map,
        Kernel::Rowwise(r) => match &mut r.program {
            RowProgram::LayerNorm { eps } | RowProgram::RmsNorm { eps } => return vec![eps],
            _ => return vec![],
        },
        Kernel::Attention(a) | Kernel::AttentionGrad(AttentionGrad(a)) => return vec![&mut a.scale],
        Kernel::Fill(Fill { value, .. }) => return vec![value],
        _ => return vec![],
    };
    map.program.code.iter_mut().filter_map(|i| if let Instr::Const(value) = i { Some(value) } else { None }).collect()
}

fn change_constant(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| !constants(&mut s.kernel.clone()).is_empty())?;
    let mut constants = constants(&mut step.kernel);
    let i = random.below(constants.len());
    let before = *constants[i];
    *constants[i] = changed(before, random);
    let after = *constants[i];
    (after != before).then(|| format!("constant {i} of `{}`: {before} to {after}", step.text))
}

fn change_instruction(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| scalar(&mut s.clone()).is_some())?;
    let text = step.text.clone();
    let map = scalar(step)?;
    let registers = map.program.registers();
    let inputs = map.program.inputs as usize;
    let ScalarProgram { code, outputs, .. } = &mut map.program;
    let i = random.below(code.len() + outputs.len());
    if i >= code.len() {
        let output = &mut outputs[i - code.len()];
        let before = std::mem::replace(output, random.below(registers) as u16);
        return (*output != before).then(|| format!("result of `{text}`: {before} to {output}"));
    }
    let before = code[i];
    let other = random.below(inputs + i) as u16;
    code[i] = match (before, random.below(3)) {
        (Instr::Unary(_, a), 0 | 1) => {
            let f = random.pick(&[Unary::Neg, Unary::Abs, Unary::Exp, Unary::Sqrt, Unary::Tanh, Unary::Sigmoid, Unary::Erf])?;
            Instr::Unary(f, a)
        }
        (Instr::Unary(f, _), _) => Instr::Unary(f, other),
        (Instr::Binary(_, a, b), 0) => Instr::Binary(random.pick(&Binary::ALL)?, a, b),
        (Instr::Binary(f, a, b), 1) => Instr::Binary(f, b, a),
        (Instr::Binary(f, a, _), _) => Instr::Binary(f, a, other),
        (Instr::Select(a, b, c), 0) => Instr::Select(a, c, b),
        (Instr::Select(_, b, c), 1) => Instr::Select(other, b, c),
        (Instr::Select(a, b, _), _) => Instr::Select(a, b, other),
        (Instr::Index(d), _) => Instr::Index(d + 1),
        (Instr::Const(v), _) => Instr::Const(v + 1.0),
    };
    let commuted = matches!((before, code[i]), (Instr::Binary(f, a, b), Instr::Binary(g, c, d))
        if f == g && f.commutes() && (a, b) == (d, c));
    (code[i] != before && !commuted).then(|| format!("instruction {i} of `{text}`: {before:?} to {:?}", code[i]))
}

/// What a kernel does besides sizes, strides and numbers.
fn change_reduction(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| {
        matches!(
            s.kernel,
            Kernel::Reduce(_)
                | Kernel::Attention(_)
                | Kernel::AttentionGrad(_)
                | Kernel::Gather(_)
                | Kernel::Rowwise(_)
                | Kernel::Conv(_)
        )
    })?;
    let before = step.kernel.clone();
    match &mut step.kernel {
        Kernel::Reduce(reduce) if random.below(2) == 0 => {
            reduce.kind = random.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])?;
        }
        Kernel::Reduce(reduce) => {
            let d = random.below(reduce.reduced.len());
            reduce.reduced[d] = !reduce.reduced[d];
        }
        Kernel::Attention(a) | Kernel::AttentionGrad(AttentionGrad(a)) => {
            a.mask = if a.mask == AttentionMask::None { AttentionMask::Causal } else { AttentionMask::None };
        }
        Kernel::Gather(g) => g.origin = Origin::whole(g.rows),
        Kernel::Rowwise(r) => match &mut r.program {
            RowProgram::Rotary { transposed, .. } => *transposed = !*transposed,
            RowProgram::SoftmaxGrad => return None,
            _ => std::mem::swap(&mut r.rows, &mut r.width),
        },
        Kernel::Conv(c) => {
            let d = random.below(c.window.len());
            c.window[d].stride += 1;
        }
        _ => return None,
    }
    let text = step.text.clone();
    (step.kernel != before).then(|| format!("`{text}`"))
}

/// Another buffer of the same local shape.
fn alike(program: &Program, random: &mut Random, id: BufferId) -> Option<BufferId> {
    let of = |id: BufferId| program.buffers[id.index()].clone();
    let key = |b: &Buffer| (b.local.clone(), b.dtype, b.slots);
    let ids = (0..program.buffers.len() as u32).map(BufferId);
    let others: Vec<BufferId> = ids.filter(|other| *other != id && key(&of(*other)) == key(&of(id))).collect();
    random.pick(&others)
}

fn read_another(program: &mut Program, random: &mut Random) -> Option<String> {
    replace_operand(program, random, |s| &mut s.reads)
}

fn write_another(program: &mut Program, random: &mut Random) -> Option<String> {
    replace_operand(program, random, |s| &mut s.writes)
}

fn replace_operand(program: &mut Program, random: &mut Random, of: fn(&mut Step) -> &mut Vec<View>) -> Option<String> {
    let (t, s) = random.pick(&places(program, |s| !of(&mut s.clone()).is_empty()))?;
    let i = random.below(of(&mut program.tasks[t].steps[s]).len());
    let id = of(&mut program.tasks[t].steps[s])[i].buffer;
    let other = alike(program, random, id)?;
    let in_place = is_call(&program.tasks[t].steps[s]);
    let step = &mut program.tasks[t].steps[s];
    of(step)[i].buffer = other;
    if in_place && random.below(2) == 0 {
        step.reads.iter_mut().chain(&mut step.writes).filter(|v| v.buffer == id).for_each(|v| v.buffer = other);
    }
    Some(format!("operand {i} of `{}` {t}.{s}: buffer {} for {}", step.text, other.0, id.0))
}

fn exchange_operands(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| s.reads.len() > 1)?;
    let (i, j) = (random.below(step.reads.len()), random.below(step.reads.len()));
    if step.reads[i] == step.reads[j] || step.reads[i].bytes != step.reads[j].bytes {
        return None;
    }
    step.reads.swap(i, j);
    Some(format!("operands {i} and {j} of `{}`", step.text))
}

/// A step carries out what another does, on its own operands.
fn replace_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = places(program, |_| true);
    let (t, s) = random.pick(&all)?;
    let step = program.tasks[t].steps[s].clone();
    let sizes = |step: &Step| -> Vec<Vec<u64>> {
        [&step.reads, &step.writes].iter().map(|views| views.iter().map(|view| view.bytes).collect()).collect()
    };
    let alike: Vec<Place> =
        places(program, |other| sizes(other) == sizes(&step) && other.kernel.name() == step.kernel.name() && *other != step);
    let (other_t, other_s) = random.pick(&alike)?;
    let other = program.tasks[other_t].steps[other_s].clone();
    let text = format!("`{}` {t}.{s} as {other_t}.{other_s}", step.text);
    program.tasks[t].steps[s] = match random.below(3) {
        // What it does, and what it says of itself.
        0 => Step { reads: step.reads, writes: step.writes, ..other },
        1 => Step { provenance: other.provenance, ..step },
        _ => Step { reads: other.reads, ..step },
    };
    Some(text)
}

/// Two buffers of one size lie where the other did: harmless, but for the order of a bucket on one
/// rank.
fn exchange_buffers(program: &mut Program, random: &mut Random) -> Option<String> {
    let lasting = |b: &Buffer| matches!(b.kind, BufferKind::Gradient(_));
    let ids: Vec<usize> = (0..program.buffers.len()).filter(|i| lasting(&program.buffers[*i])).collect();
    let (a, b) = (random.pick(&ids)?, random.below(program.buffers.len()));
    let size = |i: usize| program.buffers[i].slot_bytes * program.buffers[i].slots;
    let (first, second) = (program.buffers[a].offset, program.buffers[b].offset);
    if a == b || size(a) != size(b) || first == second {
        return None;
    }
    (program.buffers[a].offset, program.buffers[b].offset) = (second, first);
    Some(format!("buffers {a} and {b}"))
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

fn change_origin(program: &mut Program, random: &mut Random) -> Option<String> {
    let axes = program.mesh.axes().len();
    let step = step(program, random, |s| !s.kernel.clone().form_mut().positions_mut().is_empty())?;
    let before = step.kernel.clone();
    let mut positions = step.kernel.form_mut().positions_mut();
    let i = random.below(positions.len());
    let Position { offset, digits } = &mut positions[i];
    let term = random.below(offset.terms.len().max(1));
    let how = random.below(6);
    match (how, offset.terms.get_mut(term), digits) {
        (0, _, _) => offset.base += 1,
        (1, Some((axis, _)), _) => *axis = AxisId(random.below(axes) as u8),
        (2, Some((_, factor)), _) => *factor += 1,
        (3, Some(_), _) => {
            offset.terms.remove(term);
        }
        (4, _, _) => offset.terms.push((AxisId(random.below(axes) as u8), 1)),
        (5, _, Some(digits)) if !digits.is_empty() => {
            let digit = random.below(digits.len());
            match random.below(3) {
                0 => digits[digit].stride += 1,
                1 => digits[digit].divisor += 1,
                _ => digits[digit].size = (digits[digit].size - 1).max(1),
            }
        }
        _ => return None,
    }
    (step.kernel != before).then(|| format!("origin {i} of `{}`, way {how}.{term}", step.text))
}

fn change_random(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| matches!(s.kernel, Kernel::Random(_)))?;
    let Kernel::Random(r) = &mut step.kernel else { return None };
    let how = random.below(4);
    match how {
        0 => r.stream += 1 + random.below(3) as u32,
        1 => r.threshold = r.threshold.wrapping_add(1 << 28).wrapping_mul(1 + random.below(9) as u32),
        2 => {
            let d = random.below(r.strides.len());
            r.strides[d] += 1 + random.below(4) as u64;
        }
        _ => step.reads.swap(0, 1),
    }
    Some(format!("`{}`, way {how}", step.text))
}

/// Two buffers that one step touches come to lie at one place.
fn overlap_buffers(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| s.reads.len() + s.writes.len() > 1)?.clone();
    let views: Vec<&View> = step.reads.iter().chain(&step.writes).collect();
    let (a, b) = (random.pick(&views)?, random.pick(&views)?);
    if same(a, b) || program.buffers[a.buffer.index()].offset == program.buffers[b.buffer.index()].offset {
        return None;
    }
    let shift = 64 * random.below(2) as u64;
    let to = program.buffers[b.buffer.index()].offset.checked_sub(shift)?;
    program.buffers[a.buffer.index()].offset = to;
    Some(format!("buffer {} at {to}", a.buffer.0))
}

fn move_buffer(program: &mut Program, random: &mut Random) -> Option<String> {
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let before = buffer.offset;
    let room = (program.arena_bytes - buffer.slot_bytes * buffer.slots) / 64;
    buffer.offset = 64 * random.below(room as usize + 1) as u64;
    (buffer.offset != before).then(|| format!("buffer {i} from {before} to {}", buffer.offset))
}

fn change_slots(program: &mut Program, random: &mut Random) -> Option<String> {
    let microbatches = program.mesh.microbatches();
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let (slots, bytes) = (buffer.slots, buffer.slot_bytes);
    match random.below(3) {
        0 => buffer.slots = if slots == 1 { microbatches } else { 1 },
        1 => buffer.slot_bytes += 64,
        _ => buffer.slot_bytes -= 64,
    }
    ((buffer.slots, buffer.slot_bytes) != (slots, bytes))
        .then(|| format!("buffer {i}: {} slots of {} bytes", buffer.slots, buffer.slot_bytes))
}

fn change_sharding(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let before = buffer.sharding.clone();
    let sharding = &mut buffer.sharding;
    let split: Vec<(usize, usize)> =
        sharding.dims.iter().enumerate().flat_map(|(d, splits)| (0..splits.len()).map(move |s| (d, s))).collect();
    let axis = AxisId(random.below(mesh.axes().len()) as u8);
    match (random.below(5), random.pick(&split)) {
        (0, Some((d, s))) if mesh.size(axis) == mesh.size(sharding.dims[d][s].axis) => sharding.dims[d][s].axis = axis,
        (1, Some((d, s))) => {
            sharding.dims[d].remove(s);
        }
        (2, Some((d, s))) => sharding.dims[d][s].stride = (sharding.dims[d][s].stride / 2).max(1),
        (3, _) if !sharding.partial.is_empty() => {
            sharding.partial.pop();
        }
        (3, _) => sharding.add_partial(axis, ReduceKind::Sum),
        (_, _) if !sharding.dims.is_empty() && !sharding.depends_on(axis) => {
            let d = random.below(sharding.dims.len());
            sharding.dims[d].push(Split { axis, stride: 1 });
        }
        _ => return None,
    }
    if random.below(2) == 0 {
        buffer.local = buffer.sharding.local(&buffer.shape, &mesh);
    }
    (buffer.sharding != before).then(|| format!("buffer {i}: {:?}", buffer.sharding))
}

/// The shape, or why a buffer exists.
fn change_type(program: &mut Program, random: &mut Random) -> Option<String> {
    let kinds: Vec<BufferKind> = program.buffers.iter().map(|b| b.kind.clone()).collect();
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let before = (buffer.shape.clone(), buffer.kind.clone());
    if random.below(2) == 0 && !buffer.shape.is_empty() {
        let d = random.below(buffer.shape.len());
        resize(&mut buffer.shape[d], random)?;
    } else {
        buffer.kind = random.pick(&kinds)?;
    }
    ((buffer.shape.clone(), buffer.kind.clone()) != before).then(|| format!("buffer {i}: {:?} {:?}", buffer.shape, buffer.kind))
}

fn change_repeat(program: &mut Program, random: &mut Random) -> Option<String> {
    if program.mesh.microbatches() == 1 {
        return None;
    }
    let t = random.below(program.tasks.len());
    let task = &mut program.tasks[t];
    task.repeat = if task.repeat == Repeat::Once { Repeat::EachMicrobatch } else { Repeat::Once };
    Some(format!("task {t}"))
}

fn exchange_tasks(program: &mut Program, random: &mut Random) -> Option<String> {
    let (a, b) = (random.below(program.tasks.len()), random.below(program.tasks.len()));
    if random.below(3) == 0 {
        program.tasks.remove(a);
        return Some(format!("task {a} is gone"));
    }
    program.tasks.swap(a, b);
    (a != b).then(|| format!("tasks {a} and {b}"))
}

fn exchange_states(program: &mut Program, random: &mut Random) -> Option<String> {
    let (a, b) = (random.below(program.states.len()), random.below(program.states.len()));
    let (first, second) = (program.states[a].clone(), program.states[b].clone());
    let shape = |id: BufferId| program.buffers[id.index()].shape.clone();
    if a == b || shape(first.buffer) != shape(second.buffer) {
        return None;
    }
    let how = random.below(2);
    if how == 0 {
        (program.states[a].buffer, program.states[b].buffer) = (second.buffer, first.buffer);
    } else {
        (program.states[a].name, program.states[b].name) = (second.name, first.name);
    }
    Some(format!("states {a} and {b}, {}", ["buffers", "names"][how]))
}

fn exchange_outputs(program: &mut Program, random: &mut Random) -> Option<String> {
    let a = random.below(program.outputs.len());
    let id = program.outputs[a].buffer;
    let shape = |id: BufferId| program.buffers[id.index()].shape.clone();
    let ids = (0..program.buffers.len() as u32).map(BufferId);
    let others: Vec<BufferId> = ids.filter(|other| *other != id && shape(*other) == shape(id)).collect();
    let other = random.pick(&others)?;
    if let Some(second) = program.outputs.iter_mut().find(|o| o.buffer == other) {
        second.buffer = id;
    }
    program.outputs[a].buffer = other;
    Some(format!("output {a} is buffer {}", other.0))
}

fn exchange_inputs(program: &mut Program, random: &mut Random) -> Option<String> {
    let (a, b) = (random.below(program.inputs.len()), random.below(program.inputs.len()));
    let (first, second) = (program.inputs[a].buffer, program.inputs[b].buffer);
    if a == b || program.buffers[first.index()].shape != program.buffers[second.index()].shape {
        let other = alike(program, random, first)?;
        program.inputs[a].buffer = other;
        return Some(format!("input {a} is buffer {}", other.0));
    }
    (program.inputs[a].buffer, program.inputs[b].buffer) = (second, first);
    Some(format!("inputs {a} and {b}"))
}

fn exchange_gradients(program: &mut Program, random: &mut Random) -> Option<String> {
    let ids: Vec<usize> =
        (0..program.buffers.len()).filter(|i| matches!(program.buffers[*i].kind, BufferKind::Gradient(_))).collect();
    let (a, b) = (random.pick(&ids)?, random.pick(&ids)?);
    if a == b {
        return None;
    }
    let (first, second) = (program.buffers[a].kind.clone(), program.buffers[b].kind.clone());
    (program.buffers[a].kind, program.buffers[b].kind) = (second, first);
    Some(format!("gradients {a} and {b}"))
}

fn change_bytes(program: &mut Program, random: &mut Random) -> Option<String> {
    if program.constants.is_empty() {
        return None;
    }
    let constant = random.below(program.constants.len());
    let bytes = &mut program.constants[constant].bytes;
    let (at, bit) = (random.below(bytes.len()), random.below(8));
    bytes[at] ^= 1 << bit;
    Some(format!("constant {constant}: bit {bit} of byte {at}"))
}

fn drop_entry(program: &mut Program, random: &mut Random) -> Option<String> {
    let table = random.below(4);
    let len = [program.states.len(), program.inputs.len(), program.outputs.len(), program.constants.len()][table];
    if len == 0 {
        return None;
    }
    let entry = random.below(len);
    match table {
        0 => drop(program.states.remove(entry)),
        1 => drop(program.inputs.remove(entry)),
        2 => drop(program.outputs.remove(entry)),
        _ => drop(program.constants.remove(entry)),
    }
    Some(format!("{} {entry}", ["state", "input", "output", "constant"][table]))
}

/// The learning rate or the seed.
fn change_numbers(program: &mut Program, random: &mut Random) -> Option<String> {
    if random.below(2) == 0 {
        program.seed += 1 + random.below(100) as u64;
        return Some(format!("seed {}", program.seed));
    }
    program.learning_rate.lr *= 1.0 + random.unit();
    Some(format!("rate {}", program.learning_rate.lr))
}

fn exchange_scalars(program: &mut Program, random: &mut Random) -> Option<String> {
    use shardc_ir::plan::HostScalar::{LearningRate, Seed, StepCount};
    let ids: Vec<usize> =
        (0..program.buffers.len()).filter(|i| matches!(program.buffers[*i].kind, BufferKind::Scalar(_))).collect();
    let i = random.pick(&ids)?;
    let kind = BufferKind::Scalar(random.pick(&[LearningRate, Seed, StepCount])?);
    let before = std::mem::replace(&mut program.buffers[i].kind, kind.clone());
    (before != kind).then(|| format!("buffer {i}: {kind:?}"))
}
