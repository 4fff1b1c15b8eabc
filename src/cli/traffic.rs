//! The bytes that ranks have sent beside those that their programs say.

use super::failure::Failure;
use shardc_executor::run::Executor;
use shardc_ir::columns::{Column, align};
use shardc_ir::kernel::CommunicationKind;
use shardc_ir::listing::communication_by_kind;
use std::collections::BTreeMap;

/// Bytes of the largest element.
const LARGEST: u64 = 8;

/// A table of what each program's ranks have sent in a step, by kind and axes, as planned and as
/// counted, and whether both agree: exactly of messages, and of collectives but for the elements
/// that a group does not divide. Empty if nothing is sent.
///
/// # Errors
/// If a rank failed.
pub fn text(executor: &Executor, steps: u64) -> Result<(String, bool), Failure> {
    let set = executor.programs();
    let mesh = set.mesh();
    let traffic = executor.traffic()?;
    let mut rows: Vec<[String; 6]> = vec![];
    let mut holds = true;
    for (at, program) in set.programs.iter().enumerate() {
        let ranks: Vec<usize> = (0..traffic.len()).filter(|rank| set.at(mesh, *rank as u64) == at).collect();
        for planned in communication_by_kind(program) {
            let counted: BTreeMap<usize, (u64, u64)> = ranks
                .iter()
                .map(|rank| {
                    let named =
                        |axes: &[shardc_ir::mesh::AxisId]| axes.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(",");
                    let own =
                        traffic[*rank].iter().find(|((kind, axes), _)| *kind == planned.kind && named(axes) == planned.axis);
                    (*rank, own.map_or((0, 0), |(_, sent)| (sent.calls / steps, sent.bytes_sent / steps)))
                })
                .collect();
            let members: u64 = planned.axis.split(',').filter_map(|name| Some(mesh.size(mesh.axis(name)?))).product();
            let slack = if planned.kind == CommunicationKind::Send { 0 } else { planned.calls * members * LARGEST };
            let agrees = |(calls, bytes): &(u64, u64)| *calls == planned.calls && bytes.abs_diff(planned.bytes_sent) <= slack;
            holds &= counted.values().all(agrees);
            let shown = counted.iter().find(|(_, sent)| !agrees(sent)).or(counted.iter().next());
            let Some((rank, (calls, bytes))) = shown else { continue };
            rows.push([
                format!("rank {rank}"),
                planned.kind.name().to_string(),
                planned.axis.clone(),
                format!("{calls} of {}", planned.calls),
                bytes.to_string(),
                planned.bytes_sent.to_string(),
            ]);
        }
    }
    if rows.is_empty() {
        return Ok((String::new(), holds));
    }
    rows.insert(0, ["sent", "by", "over", "calls a step", "bytes", "as planned"].map(str::to_string));
    let columns = [Column::after("  "), Column::WORDS, Column::WORDS, Column::NUMBERS, Column::NUMBERS, Column::NUMBERS];
    Ok((align(&rows, columns), holds))
}
