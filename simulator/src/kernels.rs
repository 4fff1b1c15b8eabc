//! How long a kernel takes on a device.

use crate::cluster::{Device, KernelCost};
use serde::{Deserialize, Serialize};
use shardc_ir::dtype::DType;
use shardc_ir::each_form;
use shardc_ir::kernel::{ContractDim, Conv, ConvResult, Kernel, Work};
use shardc_ir::mesh::Mesh;

/// Makes the enum of the list of all forms: three for a convolution, and none for calls.
macro_rules! told_apart {
    ([$($form:ident = $pattern:pat,)*]) => {
        /// What kernels are told apart by: their forms, and convolutions by what they compute.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs, reason = "those of kernels are documented there")]
        pub enum Form {
            $($form),*
        }

        impl Form {
            /// That of a kernel; `None` of calls.
            pub fn of(kernel: &Kernel) -> Option<Form> {
                match kernel {
                    $($pattern => Some(Form::$form),)*
                    Kernel::Collective(_) => None,
                }
            }
        }
    };
    ([$($done:tt)*] Conv $(, $rest:ident)*) => {
        told_apart! {
            [
                $($done)*
                ConvOutput = Kernel::Conv(Conv { result: ConvResult::Output, .. }),
                ConvInput = Kernel::Conv(Conv { result: ConvResult::Input, .. }),
                ConvWeight = Kernel::Conv(Conv { result: ConvResult::Weight, .. }),
            ]
            $($rest),*
        }
    };
    ([$($done:tt)*] Collective $(, $rest:ident)*) => {
        told_apart! { [$($done)*] $($rest),* }
    };
    ([$($done:tt)*] $form:ident $(, $rest:ident)*) => {
        told_apart! { [$($done)* $form = Kernel::$form(_),] $($rest),* }
    };
    ($($form:ident),*) => {
        told_apart! { [] $($form),* }
    };
}
each_form!(told_apart);

impl Form {
    /// Whether its operations are products that are added up, as those of a peak are.
    pub fn is_product(self) -> bool {
        use Form::*;
        matches!(self, Contract | Attention | AttentionGrad | ConvOutput | ConvInput | ConvWeight)
    }
}

fn row(kernel: &Kernel) -> u64 {
    let all = |dims: &[ContractDim]| dims.iter().map(|dim| dim.size).product::<u64>();
    let last = |shape: &[u64]| shape.iter().rev().copied().find(|size| *size > 1).unwrap_or(1);
    match kernel {
        Kernel::Map(map) => last(&map.shape),
        Kernel::Reduce(reduce) => last(&reduce.map.shape),
        Kernel::Rowwise(rowwise) => rowwise.width,
        Kernel::Contract(contract) => all(&contract.m).min(all(&contract.n)).min(all(&contract.k)),
        Kernel::Attention(attention) => attention.kv_len,
        Kernel::AttentionGrad(grad) => grad.0.kv_len,
        Kernel::Conv(conv) => conv.inputs.min(conv.outputs),
        Kernel::Gather(gather) => gather.inner,
        Kernel::ScatterAdd(scatter) => scatter.gather.inner,
        _ => 1,
    }
}

/// What the time of a kernel follows from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Its form.
    pub form: Form,
    /// The element type of its first operand.
    pub dtype: DType,
    /// What it computes and moves.
    pub work: Work,
    /// Elements of its results.
    pub results: u64,
    /// How long the rows are that it works through: the last dimension of what is computed element
    /// by element, and of a product the smallest of its three.
    pub row: u64,
}

impl Load {
    /// That of a kernel on a rank of `mesh`; `None` of calls.
    pub fn of(kernel: &Kernel, mesh: &Mesh) -> Option<Load> {
        let signature = kernel.signature(mesh).ok()?;
        let first = signature.reads.first().or(signature.writes.first())?;
        let results = signature.writes.iter().fold(0u64, |sum, operand| sum.saturating_add(operand.elements));
        Some(Load { form: Form::of(kernel)?, dtype: first.dtype, work: kernel.work(mesh).ok()?, results, row: row(kernel) })
    }

    fn bytes(&self) -> f64 {
        self.work.read as f64 + self.work.written as f64
    }
}

impl KernelCost {
    fn is_of(&self, load: &Load) -> bool {
        (self.forms.is_empty() || self.forms.contains(&load.form)) && (self.types.is_empty() || self.types.contains(&load.dtype))
    }

    /// Seconds that a kernel takes.
    pub fn seconds(&self, load: &Load) -> f64 {
        self.by_rates(load) * self.measured(load)
    }

    /// Seconds by what it computes and moves.
    fn by_rates(&self, load: &Load) -> f64 {
        let mut computing = load.work.flops as f64 / self.flops;
        if let Some(tiles) = self.tiles.filter(|_| load.form == Form::Contract && load.results > 0) {
            // The last tiles do not fill all units.
            let cut = load.results as f64 / tiles.results as f64;
            let rounds = (cut / tiles.units as f64).ceil() * tiles.units as f64;
            let terms = load.work.flops as f64 / 2.0 / load.results as f64;
            computing *= rounds / cut * (1.0 + tiles.terms / terms.max(1.0));
        }
        self.start + computing.max(load.bytes() / self.bytes)
    }

    /// By how much kernels like this one took longer than the rates say: the mean of those that
    /// were timed, the nearest in size weighing most.
    fn measured(&self, load: &Load) -> f64 {
        let (mut sum, mut weights) = (0.0, 0.0);
        for [flops, bytes, row, seconds] in &self.samples {
            let apart = |a: f64, b: f64| ((a + 1.0) / (b + 1.0)).ln().powi(2);
            let far = apart(load.work.flops as f64, *flops) + apart(load.bytes(), *bytes) + apart(load.row as f64, *row);
            let weight = 1.0 / (far + NEAR).powi(2);
            let rates = self.start + (flops / self.flops).max(bytes / self.bytes);
            sum += weight * (seconds / rates).ln();
            weights += weight;
        }
        if weights > 0.0 { (sum / weights).exp() } else { 1.0 }
    }
}

/// Samples that are this near, as the square of logarithms of sizes, are the same kernel.
const NEAR: f64 = 1e-3;

impl Device {
    /// Seconds that a kernel takes.
    pub fn seconds(&self, load: &Load) -> f64 {
        self.kernels.iter().find(|cost| cost.is_of(load)).map_or(0.0, |cost| cost.seconds(load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Tiles;

    fn cost() -> KernelCost {
        let (forms, types, samples) = (vec![], vec![], vec![]);
        KernelCost { forms, types, start: 1.0, flops: 10.0, bytes: 100.0, tiles: None, samples }
    }

    fn load(flops: u64, bytes: u64) -> Load {
        let work = Work { flops, read: bytes, written: 0 };
        Load { form: Form::Contract, dtype: DType::F32, work, results: 4, row: 8 }
    }

    #[test]
    fn a_kernel_takes_the_longer_of_both() {
        assert_eq!([cost().seconds(&load(50, 100)), cost().seconds(&load(50, 1000))], [6.0, 11.0]);
    }

    #[test]
    fn the_last_tiles_do_not_fill_all_units() {
        // Of two results a tile, so two tiles, which take as long as three do.
        let tiles = KernelCost { tiles: Some(Tiles { results: 2, units: 3, terms: 0.0 }), ..cost() };
        assert_eq!(tiles.seconds(&load(80, 0)), 1.0 + 8.0 * 1.5);
        // Ten terms, whose beginning and end cost as much as ten more.
        let terms = KernelCost { tiles: Some(Tiles { results: 4, units: 1, terms: 10.0 }), ..cost() };
        assert_eq!(terms.seconds(&load(80, 0)), 1.0 + 8.0 * 2.0);
    }

    #[test]
    fn a_kernel_that_was_timed_takes_what_it_took() {
        let timed = KernelCost { samples: vec![[50.0, 100.0, 8.0, 18.0], [5e6, 1e7, 8.0, 1e5]], ..cost() };
        assert!((timed.seconds(&load(50, 100)) / 18.0 - 1.0).abs() < 1e-3);
        assert!(timed.seconds(&load(55, 110)) > 12.0, "one that is much like it is as slow");
    }
}
