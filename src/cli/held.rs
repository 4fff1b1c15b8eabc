//! The memory that ranks have taken beside that which their programs say.

use super::failure::Failure;
use shardc_executor::run::Executor;
use shardc_ir::columns::{Column, align};
use shardc_ir::plan::aligned;
use std::collections::BTreeMap;

/// A table of what each rank has allocated and used, beside its program's arena, and whether all
/// are the same, but for what fills up the last buffer. Ranks that hold the same are one row. Empty
/// on GPUs, which do not say what is used.
///
/// # Errors
/// If a rank failed.
pub fn text(executor: &Executor) -> Result<(String, bool), Failure> {
    let set = executor.programs();
    let mut alike: BTreeMap<[u64; 3], Vec<u64>> = BTreeMap::new();
    let seen = (0..).zip(executor.memory()?).filter_map(|(rank, memory)| Some((rank, memory?)));
    for (rank, (allocated, used)) in seen {
        let planned = set.of_rank(set.mesh(), rank).arena_bytes;
        alike.entry([allocated, used, planned]).or_default().push(rank);
    }
    let holds = alike.keys().all(|[allocated, used, planned]| allocated == planned && aligned(*used) == *planned);
    if alike.is_empty() {
        return Ok((String::new(), true));
    }
    let mut rows = vec![["held", "allocated", "used", "as planned"].map(str::to_string)];
    for (bytes, ranks) in alike {
        let who = match &ranks[..] {
            [only] => format!("rank {only}"),
            many => format!("{} ranks", many.len()),
        };
        let [allocated, used, planned] = bytes.map(|bytes| bytes.to_string());
        rows.push([who, allocated, used, planned]);
    }
    let columns = [Column::after("  "), Column::NUMBERS, Column::NUMBERS, Column::NUMBERS];
    Ok((align(&rows, columns), holds))
}
