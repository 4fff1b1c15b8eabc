//! Every call is made by every member of its group with equal arguments. All ranks run one list of
//! steps, so kind, type, count and order are the same everywhere; what is left to check is that
//! groups are groups, and operands fit the call.

use super::violation::{self, Violation, numbered};
use crate::kernel::{Collective, CollectiveKind, Kernel};
use crate::plan::{Program, Step, Stream, View};
use crate::reason;
use crate::reason::Reason;

/// Checks all calls and returns how many one step of training makes.
pub fn check(program: &Program) -> Result<u64, Violation> {
    let mut calls = 0;
    for ((number, _, step), times) in numbered(program).zip(program.times().into_iter().flatten()) {
        let Kernel::Collective(call) = &step.kernel else {
            if step.stream != Stream::Main {
                return Err(violation::at(number, step, "computes in another stream than that of computation"));
            }
            continue;
        };
        check_call(program, step, call).map_err(|why| {
            let group = program.mesh.group(0, &call.axes);
            violation::at(number, step, why).between(group.get(1).map(|other| (group[0], *other)))
        })?;
        calls += times;
    }
    Ok(calls)
}

fn check_call(program: &Program, step: &Step, call: &Collective) -> Result<(), Reason> {
    if step.stream != Stream::Comm {
        return Err("calls a collective in another stream than that of calls".into());
    }
    let members: u64 = call.axes.iter().map(|a| program.mesh.size(*a)).product();
    let operands = call.operands(members)?;
    if (step.reads.len(), step.writes.len()) != (operands.len(), operands.len()) {
        return Err("has other operands than sources and their destinations".into());
    }
    let views = step.reads.iter().zip(&step.writes);
    views.zip(operands).try_for_each(|(views, elements)| check_operand(program, call, members, views, elements))
}

/// One source and its destination, which take so many elements.
fn check_operand(
    program: &Program,
    call: &Collective,
    members: u64,
    (read, write): (&View, &View),
    (source, destination): (u64, u64),
) -> Result<(), Reason> {
    if let Some(other) = [read, write].map(|v| &program.buffers[v.buffer.index()]).iter().find(|b| b.dtype != call.dtype) {
        return Err(reason!("sends {} out of `{}`, which holds {}", call.dtype, other.name, other.dtype));
    }
    let [source, destination] = [source, destination].map(|elements| elements.saturating_mul(call.dtype.bytes()));
    if (read.bytes, write.bytes) != (source, destination) {
        let (from, to) = (read.bytes, write.bytes);
        return Err(reason!("moves {source} to {destination} bytes over {members} ranks, its operands have {from} and {to}"));
    }
    if call.kind == CollectiveKind::AllReduce && read != write {
        return Err("reduces into other bytes than it reads".into());
    }
    if call.kind != CollectiveKind::AllReduce && call.kind != CollectiveKind::ReduceScatter {
        return Ok(());
    }
    let result = &program.buffers[write.buffer.index()];
    match call.axes.iter().find(|axis| result.sharding.depends_on(**axis) && call.kind == CollectiveKind::AllReduce) {
        Some(axis) => {
            Err(reason!("reduces over `{}`, on which its result `{}` still depends", program.mesh.name(*axis), result.name))
        }
        None => Ok(()),
    }
}
