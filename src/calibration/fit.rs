//! The numbers of a device from what was observed.
//!
//! Of each form the rates are the highest that any kernel of it reached, and each kernel that was
//! timed is kept as a sample, which says how far below them kernels of its size stay.

use super::observed::{Observed, median};
use shardc_executor::bench::Peaks;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::CommunicationKind;
use shardc_simulator::cluster::{CallCost, Device, KernelCost, Link, Sample};
use shardc_simulator::kernels::{Form, Load};
use std::collections::BTreeMap;

/// The device of each of so many ranks, on a machine with those peaks.
pub fn fit(ranks: u64, peaks: Peaks, observed: Observed) -> Device {
    let Observed { kernels, calls, beside } = observed;
    let mut groups: BTreeMap<(Form, DType), Vec<(Load, f64)>> = BTreeMap::new();
    for (load, seconds) in kernels.iter().filter(|(_, seconds)| *seconds > 0.0) {
        groups.entry((load.form, load.dtype)).or_default().push((*load, *seconds));
    }
    let mut costs: Vec<KernelCost> = groups.iter().map(|((form, dtype), seen)| cost(vec![*form], vec![*dtype], seen)).collect();
    // What was not seen is taken for a mean of all that was.
    costs.push(KernelCost { samples: vec![], ..cost(vec![], vec![], &kernels) });
    Device {
        ranks: Some(ranks),
        memory: None,
        overlap: false,
        step: median(beside),
        peak: BTreeMap::from([(DType::F32, peaks.flops / ranks as f64)]),
        kernels: costs,
        links: if ranks > 1 { vec![link(ranks, &calls, peaks)] } else { vec![] },
    }
}

/// The cost of kernels that were seen to take so long.
fn cost(forms: Vec<Form>, types: Vec<DType>, seen: &[(Load, f64)]) -> KernelCost {
    let bytes = |load: &Load| load.work.read as f64 + load.work.written as f64;
    let start = seen.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
    let highest = |amount: &dyn Fn(&Load) -> f64| {
        let rates = seen.iter().map(|(load, seconds)| amount(load) / seconds);
        rises(rates.fold(0.0, f64::max))
    };
    let (flops, rate) = (highest(&|load| load.work.flops as f64), highest(&bytes));
    let mut samples: BTreeMap<[u64; 3], Vec<f64>> = BTreeMap::new();
    for (load, seconds) in seen {
        let key = [load.work.flops, load.work.read.saturating_add(load.work.written), load.row];
        samples.entry(key).or_default().push(*seconds);
    }
    let sample = |([flops, bytes, row], seconds): ([u64; 3], Vec<f64>)| -> Sample {
        [flops as f64, bytes as f64, row as f64, rounded(median(seconds))]
    };
    KernelCost {
        forms,
        types,
        start: if start.is_finite() { rounded(start) } else { 0.0 },
        flops: rounded(flops),
        bytes: rounded(rate),
        tiles: None,
        samples: samples.into_iter().map(sample).collect(),
    }
}

/// A rate, which is more than nothing.
fn rises(rate: f64) -> f64 {
    if rate > 0.0 && rate.is_finite() { rate } else { 1e15 }
}

/// Memory that ranks have in common, as a link.
fn link(ranks: u64, calls: &[(CommunicationKind, f64, f64)], peaks: Peaks) -> Link {
    let mut kinds: BTreeMap<CommunicationKind, Vec<(f64, f64)>> = BTreeMap::new();
    for (kind, bytes, seconds) in calls {
        kinds.entry(*kind).or_default().push((*bytes, *seconds));
    }
    let costs: BTreeMap<CommunicationKind, CallCost> = kinds.into_iter().map(|(kind, seen)| (kind, call(&seen))).collect();
    let hop = costs.values().map(|cost| cost.start).fold(0.0, f64::max);
    Link { name: "memory".to_string(), ranks: Some(ranks), start: 0.0, hop, bandwidth: peaks.bytes / 4.0, calls: costs }
}

/// A time of a call of no bytes, and a rate, whose errors, as parts of what was seen, have the
/// least squares.
fn call(seen: &[(f64, f64)]) -> CallCost {
    let (mut a, mut b, mut c, mut d, mut e) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (bytes, seconds) in seen.iter().filter(|(_, seconds)| *seconds > 0.0) {
        let (x, y) = (1.0 / seconds, bytes / seconds);
        a += x * x;
        b += x * y;
        c += y * y;
        d += x;
        e += y;
    }
    let det = a * c - b * b;
    let least = seen.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
    let (start, slope) = if det > 0.0 { ((d * c - e * b) / det, (a * e - b * d) / det) } else { (0.0, 0.0) };
    let start = if start > 0.0 { start } else { least.min(1.0) };
    CallCost { start: rounded(start), bandwidth: rounded(rises(1.0 / slope)) }
}

/// Four digits, which are more than was measured.
fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}
