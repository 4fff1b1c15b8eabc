//! Calls of several operands that are put together otherwise, or are made too early or too late.

use super::{Plan, depends, meet};
use crate::jobs::Job;
use crate::mutate::places;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::{Program, Step, View, When};
use shardc_testkit::random::Random;

/// One operand of a call.
#[derive(Clone)]
struct Operand {
    count: u64,
    read: View,
    write: View,
    op: Option<String>,
}

fn call(step: &Step) -> Option<&Collective> {
    match &step.kernel {
        Kernel::Collective(call) => Some(call),
        _ => None,
    }
}

fn call_mut(step: &mut Step) -> Option<&mut Collective> {
    match &mut step.kernel {
        Kernel::Collective(call) => Some(call),
        _ => None,
    }
}

fn is_reduction(step: &Step) -> bool {
    call(step).is_some_and(|call| call.kind == CollectiveKind::AllReduce)
}

/// Whether one call may do what both do.
fn alike(a: &Step, b: &Step) -> bool {
    let key = |call: &Collective| Collective { counts: vec![], ..call.clone() };
    call(a).map(key) == call(b).map(key)
}

fn operand(step: &Step, i: usize) -> Option<Operand> {
    let count = *call(step)?.counts.get(i)?;
    let names = &step.provenance.ops;
    let op = if names.len() == step.reads.len() { names.get(i).cloned() } else { None };
    Some(Operand { count, read: step.reads[i], write: step.writes[i], op })
}

fn take(step: &mut Step, i: usize) -> Option<Operand> {
    let taken = operand(step, i)?;
    call_mut(step)?.counts.remove(i);
    step.reads.remove(i);
    step.writes.remove(i);
    if taken.op.is_some() {
        step.provenance.ops.remove(i);
    }
    Some(taken)
}

fn give(step: &mut Step, operand: Operand) {
    call_mut(step).map(|call| call.counts.push(operand.count)).unwrap_or_default();
    step.reads.push(operand.read);
    step.writes.push(operand.write);
    step.provenance.ops.extend(operand.op);
}

fn remove_empty(program: &mut Program) {
    program.tasks.iter_mut().for_each(|task| task.steps.retain(|step| call(step).is_none_or(|call| !call.counts.is_empty())));
}

/// Two calls that may be one, and the places of both.
fn pair(program: &Program, random: &mut Random) -> Option<((usize, usize), (usize, usize))> {
    let all = places(program, is_reduction);
    let a = random.pick(&all)?;
    let at = |(t, s): (usize, usize)| &program.tasks[t].steps[s];
    let others: Vec<_> = all.into_iter().filter(|b| *b != a && alike(at(a), at(*b))).collect();
    Some((a, random.pick(&others)?))
}

/// An operand goes to another call, or is in both.
pub fn move_operand(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let (a, b) = pair(program, random)?;
    let from = &mut program.tasks[a.0].steps[a.1];
    let (i, text) = (random.below(from.reads.len()), from.text());
    let both = random.below(2) == 0;
    let moved = if both { operand(from, i)? } else { take(from, i)? };
    give(&mut program.tasks[b.0].steps[b.1], moved);
    remove_empty(program);
    Some(format!("operand {i} of `{text}` {a:?} {} {b:?}", if both { "also in" } else { "in" }))
}

/// Two calls are one, where the first was or where the second was.
pub fn join(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let (a, b) = pair(program, random)?;
    let text = program.tasks[a.0].steps[a.1].text();
    let mut moved = vec![];
    while let Some(operand) = take(&mut program.tasks[a.0].steps[a.1], 0) {
        moved.push(operand);
    }
    let to = &mut program.tasks[b.0].steps[b.1];
    moved.into_iter().for_each(|operand| give(to, operand));
    if random.below(4) == 0 {
        to.when = When::Each;
    }
    remove_empty(program);
    Some(format!("`{text}` {a:?} is part of {b:?}"))
}

/// A call is two, one of which is made elsewhere, before what it needs or behind what needs it; or
/// one operand is in both.
pub fn split(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let (t, s) = random.pick(&places(program, |step| is_reduction(step) && step.reads.len() > 1))?;
    let mut second = program.tasks[t].steps[s].clone();
    let first = &mut program.tasks[t].steps[s];
    let (text, cut) = (first.text().clone(), 1 + random.below(first.reads.len() - 1));
    while operand(first, cut).is_some() {
        take(first, cut);
    }
    let again = random.below(3) == 0;
    for _ in usize::from(again)..cut {
        take(&mut second, 0)?;
    }
    let steps = &program.tasks[t].steps;
    let past: Vec<usize> = (0..steps.len()).filter(|i| *i != s && depends(program, &steps[*i], &second)).collect();
    let to = if again { s } else { random.pick(&past)? };
    program.tasks[t].steps.insert(if to < s { to } else { to + 1 }, second);
    Some(format!("`{text}` {t}.{s} is cut at {cut}, the rest at {to}{}", if again { ", one operand twice" } else { "" }))
}

/// An operand is shorter, with its views.
pub fn shorten(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let mesh = plan.program.mesh.clone();
    let (t, s) = random.pick(&places(&plan.program, |step| call(step).is_some()))?;
    let step = &mut plan.program.tasks[t].steps[s];
    let before = step.clone();
    let call = call_mut(step)?;
    let i = random.below(call.counts.len());
    let count = call.counts[i];
    call.counts[i] = if random.below(2) == 0 { count / 2 } else { count - 1 };
    if call.counts[i] == 0 {
        return None;
    }
    super::fit(step, &mesh)?;
    if random.below(2) == 0 {
        step.reads[i].offset += before.reads[i].bytes - step.reads[i].bytes;
        step.writes[i].offset += before.writes[i].bytes - step.writes[i].bytes;
    }
    Some(format!("operand {i} of `{}` {t}.{s} from {count}", before.text()))
}

/// A call is made before its last operand is there, or behind the first that reads one.
pub fn displace(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let (t, s) = random.pick(&places(program, |step| call(step).is_some()))?;
    let steps = &program.tasks[t].steps;
    let step = steps[s].clone();
    let written = |other: &Step| other.writes.iter().any(|w| step.reads.iter().any(|r| meet(program, w, r)));
    let read = |other: &Step| other.reads.iter().any(|r| step.writes.iter().any(|w| meet(program, w, r)));
    let before = (0..s).rev().find(|i| written(&steps[*i]));
    let behind = (s + 1..steps.len()).find(|i| read(&steps[*i]));
    let to = random.pick(&[before, behind].into_iter().flatten().collect::<Vec<_>>())?;
    let moved = program.tasks[t].steps.remove(s);
    program.tasks[t].steps.insert(to, moved);
    Some(format!("`{}` {t}.{s} at {to}", step.text()))
}
