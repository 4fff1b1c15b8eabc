//! The elements that launches say they touch: inside their operands on every rank, each result
//! written once, and accesses of several elements at whole multiples of them.

use crate::generated::{Accesses, Launch, Parameter};
use shardc_ir::kernel::signature::distinct;
use shardc_ir::mesh::Mesh;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

/// Checks a launch on every rank of a mesh, at the sizes that it has.
///
/// # Errors
/// The first access that is wrong.
pub fn check(launch: &Launch, mesh: &Mesh) -> Result<(), Reason> {
    for accesses in &launch.accesses {
        let parameter = launch.parameters.get(accesses.parameter).ok_or("an access to no parameter")?;
        own(accesses, parameter, mesh).map_err(|why| reason!("`{}` {why} of `{}`", launch.entry, parameter.name))?;
    }
    Ok(())
}

fn own(accesses: &Accesses, parameter: &Parameter, mesh: &Mesh) -> Result<(), Reason> {
    let Accesses { is_write, bytes, width, start, terms, is_chosen, .. } = accesses;
    if (*is_write && !parameter.is_written) || (!*is_write && !parameter.is_read) {
        return Err("goes the other way than the contract".into());
    }
    if terms.iter().any(|(count, _)| *count == 0) {
        return Ok(());
    }
    let (first, last) = start.range(mesh)?;
    let reach = |(count, stride): &(u64, i64)| i128::from(*count - 1) * i128::from(*stride);
    let low = i128::from(first) + terms.iter().map(|term| reach(term).min(0)).sum::<i128>();
    let high = i128::from(last) + terms.iter().map(|term| reach(term).max(0)).sum::<i128>();
    let elements = i128::from(parameter.bytes / bytes);
    if low < 0 || high + i128::from(*width) > elements {
        return Err(reason!("reaches elements {low} to {} of the {elements}", high + i128::from(*width) - 1));
    }
    let is_multiple = |number: i64| number.rem_euclid(*width as i64) == 0;
    let moves = || terms.iter().filter(|(count, _)| *count > 1).map(|(_, stride)| *stride);
    if *width > 1 && !(is_multiple(start.base) && start.terms.iter().all(|(_, by)| is_multiple(*by)) && moves().all(is_multiple))
    {
        return Err(reason!("takes {width} elements at a time, not at multiples of that,"));
    }
    if !*is_write || *is_chosen {
        return Ok(());
    }
    let (counts, strides): (Vec<u64>, Vec<i64>) = terms.iter().map(|(count, stride)| (*count, stride.abs())).unzip();
    let apart: Vec<(u64, i64)> = [(*width, 1)].into_iter().chain(counts.into_iter().zip(strides)).collect();
    let (counts, strides): (Vec<u64>, Vec<i64>) = apart.into_iter().unzip();
    if !distinct(&counts, &strides) {
        return Err("writes an element twice".into());
    }
    let all: i128 = counts.iter().map(|count| i128::from(*count)).product();
    if parameter.whole && all != elements {
        return Err(reason!("writes {all} of the {elements} elements"));
    }
    Ok(())
}
