//! Joins the reductions of gradients in the order in which the backward pass finishes them: one
//! call takes several, as soon as the last of them is there; and small all-reduces, of which each
//! would cost a meeting: of norms, and of what statistics of a batch send back. Source: Li et al.,
//! PyTorch Distributed (2020).

use shardc_ir::diagnostic::counted;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::{BufferId, BufferKind, Program, Provenance, Step, Stream, View, When};
use std::collections::HashMap;

/// A call takes about this many bytes at most.
const BUCKET_BYTES: u64 = 25 << 20;

/// All-reduces of so many bytes cost hardly more than a meeting of ranks.
const SMALL_BYTES: u64 = 64 << 10;

/// Joins the reductions of gradients, task by task; `loops` says which run for each micro-batch. A
/// gradient that sums up micro-batches is reduced with the last of them, in the task that completes
/// it.
pub fn join(program: &mut Program, loops: &[bool]) {
    // What is scattered over some axes may be reduced over others then.
    for kind in [CollectiveKind::ReduceScatter, CollectiveKind::AllReduce] {
        join_calls(program, loops, kind);
    }
    for task in &mut program.tasks {
        let (own, others) = small(std::mem::take(&mut task.steps));
        task.steps = insert(own, others);
    }
}

/// The small all-reduces of one operand, and the other steps.
fn small(steps: Vec<Step>) -> (Vec<Call>, Vec<Step>) {
    let is_small = |step: &Step| match &step.kernel {
        Kernel::Collective(call) => {
            call.kind == CollectiveKind::AllReduce && call.counts.len() == 1 && step.reads[0].bytes <= SMALL_BYTES
        }
        _ => false,
    };
    let (own, others): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(is_small);
    (own.into_iter().map(|step| Call { step, adds: None }).collect(), others)
}

/// A call, and what adds the gradient of a micro-batch to those before, where it is made for each.
struct Call {
    step: Step,
    adds: Option<Step>,
}

fn join_calls(program: &mut Program, loops: &[bool], kind: CollectiveKind) {
    let mut calls: Vec<Vec<Call>> = program.tasks.iter().map(|_| vec![]).collect();
    // The last task so far that writes each buffer, its own calls aside.
    let mut writer: HashMap<BufferId, usize> = HashMap::new();
    for t in 0..program.tasks.len() {
        let steps = std::mem::take(&mut program.tasks[t].steps);
        let (own, others) = taken(program, steps, kind);
        writer.extend(others.iter().flat_map(|step| step.writes.iter().map(|view| (view.buffer, t))));
        program.tasks[t].steps = others;
        for call in own {
            match writer.get(&call.step.reads[0].buffer) {
                Some(earlier) if *earlier < t && loops[*earlier] => {
                    calls[*earlier].push(Call { step: Step { when: When::Last, ..call.step }, ..call });
                }
                _ => calls[t].push(call),
            }
        }
    }
    for (t, calls) in calls.into_iter().enumerate() {
        let others = std::mem::take(&mut program.tasks[t].steps);
        program.tasks[t].steps = insert(calls, others);
    }
}

/// The reductions of gradients of one kind, with what adds them up, and the other steps.
fn taken(program: &Program, steps: Vec<Step>, kind: CollectiveKind) -> (Vec<Call>, Vec<Step>) {
    let mut readers: HashMap<BufferId, Vec<usize>> = HashMap::new();
    for (i, step) in steps.iter().enumerate() {
        step.reads.iter().for_each(|view| readers.entry(view.buffer).or_default().push(i));
    }
    let is_gradient = |view: &View| matches!(program.buffers[view.buffer.index()].kind, BufferKind::Gradient(_));
    // The one step that reads what a call gives, if all it does is to add that to a gradient.
    let adds = |call: &Step| {
        let [only] = readers.get(&call.writes[0].buffer)?[..] else { return None };
        let adds = matches!(steps[only].kernel, Kernel::Map(_)) && steps[only].writes.iter().all(is_gradient);
        (adds && steps[only].reads.iter().any(|view| steps[only].writes.contains(view))).then_some(only)
    };
    let of = |(i, step): (usize, &Step)| {
        let is_call = matches!(&step.kernel, Kernel::Collective(call) if call.kind == kind);
        let completes = is_call && step.writes.iter().all(is_gradient);
        let added = if is_call && !completes { adds(step) } else { None };
        (completes || added.is_some()).then_some((i, added))
    };
    let calls: Vec<(usize, Option<usize>)> = steps.iter().enumerate().filter_map(of).collect();
    let mut left: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let own =
        calls.into_iter().filter_map(|(i, added)| Some(Call { step: left[i].take()?, adds: added.and_then(|i| left[i].take()) }));
    let own = own.collect();
    (own, left.into_iter().flatten().collect())
}

fn insert(calls: Vec<Call>, others: Vec<Step>) -> Vec<Step> {
    let mut groups = groups(calls, &others).into_iter().peekable();
    let mut out = vec![];
    let push = |out: &mut Vec<Step>, group: Vec<Call>| {
        let (calls, adds): (Vec<Step>, Vec<Option<Step>>) = group.into_iter().map(|call| (call.step, call.adds)).unzip();
        let first = calls[0].provenance.reason.clone();
        let is_common = calls.iter().all(|call| call.provenance.reason == first);
        let reason = first.filter(|_| is_common).unwrap_or_else(|| counted(calls.len(), "gradient"));
        out.push(joined(calls, reason));
        out.extend(adds.into_iter().flatten());
    };
    for (i, step) in others.into_iter().enumerate() {
        while let Some((_, group)) = groups.next_if(|(at, _)| *at <= i) {
            push(&mut out, group);
        }
        out.push(step);
    }
    groups.for_each(|(_, group)| push(&mut out, group));
    out
}

/// Calls that become one.
struct Group {
    /// Before which step they can be made at the earliest.
    ready: usize,
    /// Before which step they must be made.
    due: usize,
    bytes: u64,
    calls: Vec<Call>,
}

/// The calls of each group, and before which of `others` it is made: after the last step that
/// writes a member, and before the first that reads the sum of one.
fn groups(calls: Vec<Call>, others: &[Step]) -> Vec<(usize, Vec<Call>)> {
    let mut written: HashMap<BufferId, usize> = HashMap::new();
    let mut read: HashMap<BufferId, Vec<usize>> = HashMap::new();
    for (i, step) in others.iter().enumerate() {
        written.extend(step.writes.iter().map(|view| (view.buffer, i)));
        step.reads.iter().for_each(|view| read.entry(view.buffer).or_default().push(i));
    }
    let window = |call: &Step| {
        let ready = written.get(&call.reads[0].buffer).map_or(0, |i| i + 1);
        let due = read.get(&call.writes[0].buffer).and_then(|all| all.get(all.partition_point(|i| *i < ready)));
        (ready, due.copied().unwrap_or(others.len()))
    };
    let mut calls: Vec<((usize, usize), Call)> = calls.into_iter().map(|c| (window(&c.step), c)).collect();
    calls.sort_by_key(|(window, _)| *window);
    let mut groups: Vec<Group> = vec![];
    for ((ready, due), call) in calls {
        let bytes = call.step.reads[0].bytes;
        let open = groups.iter_mut().rev().find(|group| same_call(&group.calls[0].step, &call.step));
        match open {
            Some(group) if ready <= group.due && group.bytes + bytes <= BUCKET_BYTES => {
                (group.ready, group.due) = (group.ready.max(ready), group.due.min(due));
                group.bytes += bytes;
                group.calls.push(call);
            }
            _ => groups.push(Group { ready, due, bytes, calls: vec![call] }),
        }
    }
    let mut groups: Vec<(usize, Vec<Call>)> = groups.into_iter().map(|group| (group.ready, group.calls)).collect();
    groups.sort_by_key(|(at, _)| *at);
    groups
}

/// Whether one call can make both.
pub fn same_call(a: &Step, b: &Step) -> bool {
    match (&a.kernel, &b.kernel) {
        (Kernel::Collective(x), Kernel::Collective(y)) => {
            (x.kind, x.op, &x.axes, x.dtype, a.when) == (y.kind, y.op, &y.axes, y.dtype, b.when)
        }
        _ => false,
    }
}

/// The calls as one, for that reason.
pub fn joined(mut group: Vec<Step>, reason: String) -> Step {
    if group.len() == 1 {
        return group.remove(0);
    }
    let Kernel::Collective(call) = &group[0].kernel else { unreachable!("only calls are grouped") };
    let views = |of: fn(&Step) -> &[View]| group.iter().flat_map(of).copied().collect::<Vec<_>>();
    let (reads, writes) = (views(|step| &step.reads), views(|step| &step.writes));
    let of = |step: &Step| match &step.kernel {
        Kernel::Collective(call) => call.counts.clone(),
        _ => vec![],
    };
    let counts = group.iter().flat_map(of).collect();
    Step {
        stream: Stream::Comm,
        kernel: Kernel::Collective(Collective { counts, ..call.clone() }),
        op: group[0].op.clone(),
        results: group.iter().flat_map(|s| s.results.clone()).collect(),
        provenance: Provenance {
            ops: group.iter().flat_map(|s| s.provenance.ops.clone()).collect(),
            reason: Some(reason),
            spec_line: group.iter().find_map(|s| s.provenance.spec_line),
            scope: group[0]
                .provenance
                .scope
                .clone()
                .filter(|scope| group.iter().all(|s| s.provenance.scope.as_ref() == Some(scope))),
        },
        when: group[0].when,
        reads,
        writes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardc_ir::dtype::DType;
    use shardc_ir::kernel::Fill;
    use shardc_ir::mesh::AxisId;
    use shardc_ir::reduce_kind::ReduceKind;

    fn step(kernel: Kernel, reads: &[u32], writes: &[u32]) -> Step {
        let views = |ids: &[u32]| ids.iter().map(|id| View { buffer: BufferId(*id), offset: 0, bytes: 4 }).collect();
        let (reads, writes) = (views(reads), views(writes));
        let (op, results, provenance) = (String::new(), vec![], Provenance::default());
        Step { stream: Stream::Main, kernel, reads, writes, op, results, provenance, when: When::Each }
    }

    fn fill(reads: &[u32], writes: &[u32]) -> Step {
        step(Kernel::Fill(Fill { dtype: DType::F32, count: 1, value: 0.0 }), reads, writes)
    }

    /// The place of each call, with its operands, for gradients 1 and 2 between `others`.
    fn places(others: &[Step]) -> Vec<(usize, Vec<u32>)> {
        let (kind, op) = (CollectiveKind::AllReduce, ReduceKind::Sum);
        let call = Kernel::Collective(Collective { kind, op, axes: vec![AxisId(0)], dtype: DType::F32, counts: vec![1] });
        let own = |gradient| Call { step: step(call.clone(), &[gradient], &[gradient]), adds: None };
        let calls = [1, 2].map(own).into_iter().collect();
        let members = |group: Vec<Call>| group.iter().map(|call| call.step.writes[0].buffer.0).collect();
        groups(calls, others).into_iter().map(|(at, group)| (at, members(group))).collect()
    }

    #[test]
    fn a_call_waits_for_its_last_operand_but_not_beyond_a_reader() {
        let (first, second, reader) = (fill(&[], &[1]), fill(&[], &[2]), fill(&[1], &[3]));
        assert_eq!(places(&[first.clone(), second.clone(), reader.clone()]), [(2, vec![1, 2])]);
        assert_eq!(places(&[first, reader, second]), [(1, vec![1]), (3, vec![2])]);
    }

    #[test]
    fn small_all_reduces_of_one_operand_may_be_joined() {
        let call = |kind, counts: &[u64]| {
            let (op, axes, dtype) = (ReduceKind::Sum, vec![AxisId(0)], DType::F32);
            let reads: Vec<u32> = (0..counts.len() as u32).collect();
            let mut step =
                step(Kernel::Collective(Collective { kind, op, axes, dtype, counts: counts.to_vec() }), &reads, &reads);
            step.reads.iter_mut().zip(counts).for_each(|(view, count)| view.bytes = 4 * count);
            step
        };
        let (all_reduce, largest) = (CollectiveKind::AllReduce, SMALL_BYTES / 4);
        let joins = |step: Step| small(vec![step]).0.len() == 1;
        assert!(joins(call(all_reduce, &[1])) && joins(call(all_reduce, &[largest])));
        assert!(!joins(call(all_reduce, &[largest + 1])));
        assert!(!joins(call(all_reduce, &[1, 1])) && !joins(call(CollectiveKind::AllGather, &[1])) && !joins(fill(&[], &[1])));
    }
}
