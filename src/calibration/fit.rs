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
    let products = costs.iter().filter(|cost| cost.forms == [Form::Contract] && cost.types == [DType::F32]);
    let peak = products.map(|cost| cost.flops).fold(peaks.flops / ranks as f64, f64::max);
    // What was not seen is taken for a mean of all that was.
    costs.push(KernelCost { samples: vec![], ..cost(vec![], vec![], &kernels) });
    Device {
        ranks: Some(ranks),
        memory: None,
        overlap: false,
        step: median(beside),
        peak: BTreeMap::from([(DType::F32, peak)]),
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

/// A time of a call of no bytes, and a rate: the line through what was seen whose errors, as parts
/// of what it says itself, are the least, so that calls that were disturbed hardly count.
fn call(seen: &[(f64, f64)]) -> CallCost {
    const ROUNDS: usize = 32;
    let mean = seen.iter().map(|(_, seconds)| seconds).sum::<f64>() / seen.len().max(1) as f64;
    let (mut start, mut slope) = (mean, 0.0);
    for _ in 0..ROUNDS {
        let [mut n, mut x, mut xx, mut y, mut xy] = [0.0; 5];
        for (bytes, seconds) in seen {
            let told = (start + slope * bytes).max(LEAST);
            let weight = 1.0 / told / (seconds - told).abs().max(LEAST);
            n += weight;
            x += weight * bytes;
            xx += weight * bytes * bytes;
            y += weight * seconds;
            xy += weight * bytes * seconds;
        }
        let spread = n * xx - x * x;
        slope = if spread > 0.0 { ((n * xy - x * y) / spread).max(0.0) } else { 0.0 };
        start = if n > 0.0 { ((y - slope * x) / n).max(0.0) } else { mean };
    }
    CallCost { start: rounded(start), bandwidth: rounded(rises(1.0 / slope)) }
}

/// No call takes less than this.
const LEAST: f64 = 1e-7;

/// Four digits, which are more than was measured.
pub fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}
