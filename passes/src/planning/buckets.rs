//! Joins the all-reduces of gradients into buckets: contiguous ranges of the arena in the order in which the backward pass
//! finishes them, each reduced by one call as soon as its last member is there.
//! Source: Li et al., PyTorch Distributed (2020).

use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Program, Provenance, Step, Stream, View};
use shardc_ir::sharding::Sharding;

/// A bucket grows to about this many bytes.
const BUCKET_BYTES: u64 = 25 << 20;

/// A buffer that covers others, which follow one another in it.
pub struct Bucket {
    /// The covering buffer.
    pub buffer: BufferId,
    /// The buffers that it covers, in order.
    pub members: Vec<BufferId>,
}

/// Replaces the all-reduces of gradients by those of buckets, task by task.
pub fn join(program: &mut Program) -> Vec<Bucket> {
    let mut buckets = vec![];
    for t in 0..program.tasks.len() {
        let steps = std::mem::take(&mut program.tasks[t].steps);
        let (calls, others): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(|s| is_gradient_reduction(program, s));
        program.tasks[t].steps = insert(program, &mut buckets, calls, others);
    }
    buckets
}

fn is_gradient_reduction(program: &Program, step: &Step) -> bool {
    let Kernel::Collective(Collective { kind: CollectiveKind::AllReduce, .. }) = &step.kernel else { return false };
    step.writes.iter().all(|v| matches!(program.buffers[v.buffer.index()].kind, BufferKind::Gradient(_)))
}

fn insert(program: &mut Program, buckets: &mut Vec<Bucket>, calls: Vec<Step>, others: Vec<Step>) -> Vec<Step> {
    // Each call after the last step that writes its gradient and before the first that reads the sum.
    let window = |call: &Step| {
        let touches = |views: &[View]| views.iter().any(|v| v.buffer == call.writes[0].buffer);
        let ready = others.iter().rposition(|s| touches(&s.writes)).map_or(0, |i| i + 1);
        let due = others[ready..].iter().position(|s| touches(&s.reads)).map_or(others.len(), |i| ready + i);
        (ready, due)
    };
    let mut calls: Vec<((usize, usize), Step)> = calls.into_iter().map(|c| (window(&c), c)).collect();
    calls.sort_by_key(|(window, _)| *window);
    let mut groups: Vec<(usize, usize, Vec<Step>)> = vec![];
    for ((ready, due), call) in calls {
        let bytes = |steps: &[Step]| steps.iter().map(|s| s.writes[0].bytes).sum::<u64>();
        let open = groups.iter_mut().rev().find(|(_, _, group)| same_call(&group[0], &call));
        match open {
            Some((at, end, group)) if ready <= *end && bytes(group) + call.writes[0].bytes <= BUCKET_BYTES => {
                (*at, *end) = ((*at).max(ready), (*end).min(due));
                group.push(call);
            }
            _ => groups.push((ready, due, vec![call])),
        }
    }
    let mut groups: Vec<(usize, Vec<Step>)> = groups.into_iter().map(|(at, _, group)| (at, group)).collect();
    groups.sort_by_key(|(at, _)| *at);
    let mut groups = groups.into_iter().peekable();
    let mut out = vec![];
    for (i, step) in others.into_iter().enumerate() {
        while groups.peek().is_some_and(|(at, _)| *at <= i) {
            let (_, group) = groups.next().expect("just peeked");
            out.push(joined(program, buckets, group));
        }
        out.push(step);
    }
    for (_, group) in groups {
        out.push(joined(program, buckets, group));
    }
    out
}

fn same_call(a: &Step, b: &Step) -> bool {
    match (&a.kernel, &b.kernel) {
        (Kernel::Collective(a), Kernel::Collective(b)) => {
            Collective { count: 0, ..a.clone() } == Collective { count: 0, ..b.clone() }
        }
        _ => false,
    }
}

fn joined(program: &mut Program, buckets: &mut Vec<Bucket>, mut group: Vec<Step>) -> Step {
    if group.len() == 1 {
        return group.remove(0);
    }
    let Kernel::Collective(call) = &group[0].kernel else { unreachable!("only calls are grouped") };
    let members: Vec<BufferId> = group.iter().map(|s| s.writes[0].buffer).collect();
    let bytes: u64 = members.iter().map(|m| program.buffers[m.index()].slot_bytes).sum();
    let count = bytes / call.dtype.bytes();
    let buffer = BufferId(program.buffers.len() as u32);
    let name = format!("bucket{}", buckets.len());
    let axes: Vec<&str> = call.axes.iter().map(|a| program.mesh.name(*a)).collect();
    let op = shardc_ir::sharding::reduce_name(call.op);
    let step = Step {
        stream: Stream::Comm,
        kernel: Kernel::Collective(Collective { count, ..call.clone() }),
        reads: vec![View { buffer, offset: 0, bytes }],
        writes: vec![View { buffer, offset: 0, bytes }],
        text: format!("%{name} = all_reduce {op} {}", axes.join(" ")),
        provenance: Provenance {
            ops: group.iter().flat_map(|s| s.provenance.ops.clone()).collect(),
            reason: Some(format!("{} gradients", group.len())),
            spec_line: group.iter().find_map(|s| s.provenance.spec_line),
        },
    };
    program.buffers.push(Buffer {
        name,
        kind: BufferKind::Communication,
        dtype: call.dtype,
        shape: vec![count],
        sharding: Sharding::replicated(1),
        local: vec![count],
        slots: 1,
        offset: 0,
        slot_bytes: bytes,
    });
    buckets.push(Bucket { buffer, members });
    step
}
