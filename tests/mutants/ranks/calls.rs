//! Calls: what the members of a group exchange.

use super::{Rank, Turn, decode, encode};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::plan::View;
use shardc_ir::reduce_kind::ReduceKind;
use std::ops::Range;

/// A call by all of its group, operand by operand.
pub fn exchange(ranks: &mut [Rank<'_>], group: &[usize], call: &Collective) -> Result<(), String> {
    for (operand, count) in call.counts.iter().enumerate() {
        exchange_operand(ranks, group, call, operand, *count as usize)?;
    }
    group.iter().for_each(|member| ranks[*member].next += 1);
    Ok(())
}

fn exchange_operand(
    ranks: &mut [Rank<'_>],
    group: &[usize],
    call: &Collective,
    operand: usize,
    count: usize,
) -> Result<(), String> {
    let mut sources = vec![];
    let mut destinations = vec![];
    for member in group {
        let rank = &mut ranks[*member];
        let Turn::Launch((task, step, time)) = rank.turns[rank.next] else { return Err("no call".into()) };
        let step = &rank.program.tasks[task].steps[step];
        let all = call.counts.len();
        if (step.reads.len(), step.writes.len()) != (all, all) {
            return Err("a call with other operands".into());
        }
        let places = |views: &[View]| views.iter().map(|view| rank.place(view, time, call.dtype)).collect::<Result<Vec<_>, _>>();
        let (reads, writes) = (places(&step.reads)?, places(&step.writes)?);
        let apart = |a: &Range<usize>, b: &Range<usize>| a.end <= b.start || b.end <= a.start;
        let write = &writes[operand];
        let in_place = |i: usize| call.kind == CollectiveKind::AllReduce && i == operand && reads[i] == *write;
        if !(0..all).all(|i| (in_place(i) || apart(&reads[i], write)) && (i == operand || apart(&writes[i], write))) {
            return Err("a call writes over what it reads or writes".into());
        }
        sources.push(decode(&rank.memory[reads[operand].clone()], call.dtype)?);
        destinations.push(write.clone());
    }
    for (place, member) in group.iter().enumerate() {
        let part = |source: &Vec<f64>| match call.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather => source.get(..count).map(<[f64]>::to_vec),
            CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => {
                source.get(place * count..(place + 1) * count).map(<[f64]>::to_vec)
            }
        };
        let parts: Vec<Vec<f64>> = sources.iter().map(part).collect::<Option<_>>().ok_or("a call reads too far")?;
        let result = match call.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll => parts.concat(),
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => {
                let combine = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| combined(call, *a, *b)).collect();
                parts.into_iter().reduce(combine).unwrap_or_default()
            }
        };
        let to = destinations[place].clone();
        let bytes = result.len() * call.dtype.bytes() as usize;
        if bytes > to.len() {
            return Err("a call writes too far".into());
        }
        encode(&result, call.dtype, &mut ranks[*member].memory[to.start..to.start + bytes]);
    }
    Ok(())
}

fn combined(call: &Collective, a: f64, b: f64) -> f64 {
    match (call.op, call.dtype) {
        (ReduceKind::Sum, DType::Bool) => f64::from(a != 0.0 || b != 0.0),
        (ReduceKind::Sum, _) => a + b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        (ReduceKind::Max, _) => a.max(b),
        (ReduceKind::Min, _) => a.min(b),
    }
}
