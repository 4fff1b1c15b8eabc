//! A cluster as a file of TOML: what a device computes, and what its links carry.
//!
//! All numbers are in seconds, bytes, floating point operations and their quotients. What a file
//! says is held by [`Cluster::read`]; `clusters/` has files for known machines with the source of
//! each number, and `shardc calibrate` writes one for the machine that it runs on.

use crate::kernels::Form;
use serde::{Deserialize, Serialize};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::CommunicationKind;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;

/// A cluster of equal devices, a rank on each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name, for people.
    pub name: String,
    /// Its device; where ranks share a machine one for each number of them.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
}

/// A device, and what connects it with the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// For how many ranks on the machine the numbers hold; for any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    /// Bytes of memory, where a plan must fit them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Whether calls of communicators run beside kernels, and messages wait for their receivers; on
    /// the CPU a rank does one thing after the other, and what it sends is buffered.
    pub overlap: bool,
    /// Seconds of a step in which no rank does anything.
    #[serde(default)]
    pub step: f64,
    /// Operations a second that its maker promises for products, by element type: what shares of
    /// the peak are shares of.
    pub peak: BTreeMap<DType, f64>,
    /// What kernels take; the first that a kernel is of counts.
    #[serde(rename = "kernel")]
    pub kernels: Vec<KernelCost>,
    /// What connects ranks, from near to far.
    #[serde(default, rename = "link")]
    pub links: Vec<Link>,
}

/// How long kernels take: `start`, and the longer of what they compute and what they move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelCost {
    /// The forms that it holds for; all where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forms: Vec<Form>,
    /// The element types of the first operand that it holds for; all where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<DType>,
    /// Seconds before anything is computed.
    pub start: f64,
    /// Operations a second.
    pub flops: f64,
    /// Bytes a second, read and written together.
    pub bytes: f64,
    /// Results are computed in tiles, so many at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<Tiles>,
    /// Kernels that were timed; others take as much longer or shorter than the numbers say as those
    /// that are most like them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
}

/// A kernel that was timed: operations, bytes read and written, the length of its rows (see
/// [`crate::kernels::Load::row`]), and the seconds that it took.
pub type Sample = [f64; 4];

/// How a device cuts a product: its rate is reached only where tiles fill all of its units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// Results of a tile.
    pub results: u64,
    /// Tiles that are computed at a time.
    pub units: u64,
    /// Terms of a sum that its beginning and end cost as much as.
    pub terms: f64,
}

/// A kind of connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its name, for people.
    pub name: String,
    /// So many neighbours reach one another over it, counted from rank 0; all ranks where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    /// Seconds that a call takes before anything is sent.
    #[serde(default)]
    pub start: f64,
    /// Seconds from one rank to the next.
    pub hop: f64,
    /// Bytes a second that a rank sends.
    pub bandwidth: f64,
    /// Calls whose bytes take longer or shorter than the bandwidth says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<CommunicationKind, CallCost>,
}

/// How long a kind of call takes over a link, by the bytes that a rank sends in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallCost {
    /// Seconds that a call of no bytes takes.
    pub start: f64,
    /// Bytes a second that a rank sends.
    pub bandwidth: f64,
}

impl Cluster {
    /// Reads a cluster from the text of its file.
    ///
    /// # Errors
    /// If it is no such file, or a number is none that a machine could have; in words, with the
    /// place where there is one.
    pub fn read(text: &str) -> Result<Cluster, Reason> {
        let cluster: Cluster = toml::from_str(text).map_err(|error| reason!("{error}"))?;
        cluster.check()?;
        Ok(cluster)
    }

    /// The text of its file.
    ///
    /// # Errors
    /// If a name cannot be written.
    pub fn text(&self) -> Result<String, Reason> {
        toml::to_string(self).map_err(|error| reason!("{error}"))
    }

    fn check(&self) -> Result<(), Reason> {
        if self.devices.is_empty() {
            return Err("it has no [[device]]".into());
        }
        self.devices.iter().try_for_each(Device::check)
    }

    /// The device of each of so many ranks.
    ///
    /// # Errors
    /// If there is none.
    pub fn device(&self, ranks: u64) -> Result<&Device, Reason> {
        let exact = self.devices.iter().find(|device| device.ranks == Some(ranks));
        let device = exact.or(self.devices.iter().find(|device| device.ranks.is_none())).ok_or_else(|| {
            let known: Vec<String> = self.devices.iter().filter_map(|device| device.ranks).map(|n| n.to_string()).collect();
            reason!("it knows this machine with {} ranks, and not with {ranks}", known.join(", "))
        })?;
        match device.most_ranks() {
            Some(most) if ranks > most => Err(reason!("its links connect {most} ranks, and not {ranks}")),
            _ => Ok(device),
        }
    }
}

impl Device {
    fn check(&self) -> Result<(), Reason> {
        time("`step`", self.step)?;
        for (dtype, peak) in &self.peak {
            positive(&format!("the peak of {dtype}"), *peak)?;
        }
        for (number, kernel) in self.kernels.iter().enumerate() {
            let of = |field: &str| format!("`{field}` of the {}. [[device.kernel]]", number + 1);
            time(&of("start"), kernel.start)?;
            positive(&of("flops"), kernel.flops)?;
            positive(&of("bytes"), kernel.bytes)?;
            if let Some(tiles) = kernel.tiles {
                positive(&of("tiles.results"), tiles.results as f64)?;
                positive(&of("tiles.units"), tiles.units as f64)?;
                time(&of("tiles.terms"), tiles.terms)?;
            }
            for [flops, bytes, row, seconds] in &kernel.samples {
                [flops, bytes, row].into_iter().try_for_each(|number| time(&of("samples"), *number))?;
                positive(&of("samples"), *seconds)?;
            }
        }
        match self.kernels.last() {
            Some(last) if last.forms.is_empty() && last.types.is_empty() => {}
            _ => return Err("the last [[device.kernel]] must hold for all forms and types".into()),
        }
        let mut within = 1;
        for (number, link) in self.links.iter().enumerate() {
            let of = |field: &str| format!("`{field}` of link `{}`", link.name);
            time(&of("start"), link.start)?;
            time(&of("hop"), link.hop)?;
            positive(&of("bandwidth"), link.bandwidth)?;
            for (kind, cost) in &link.calls {
                time(&of(&format!("calls.{}.start", kind.name())), cost.start)?;
                positive(&of(&format!("calls.{}.bandwidth", kind.name())), cost.bandwidth)?;
            }
            let is_last = number + 1 == self.links.len();
            match link.ranks {
                None if is_last => {}
                None => return Err(reason!("{} is missing: only the last link reaches all ranks", of("ranks"))),
                Some(ranks) if ranks > within && ranks.is_multiple_of(within) => within = ranks,
                Some(ranks) => {
                    return Err(reason!("{} is {ranks}, and must be a multiple of {within} above it", of("ranks")));
                }
            }
        }
        Ok(())
    }

    /// How many ranks its links connect; `None` for any number.
    fn most_ranks(&self) -> Option<u64> {
        self.ranks.or(match self.links.last() {
            None => Some(1),
            Some(link) => link.ranks,
        })
    }
}

fn positive(what: &str, number: f64) -> Result<(), Reason> {
    match number.is_finite() && number > 0.0 {
        true => Ok(()),
        false => Err(reason!("{what} is {number}, and must be more than 0")),
    }
}

fn time(what: &str, number: f64) -> Result<(), Reason> {
    match number.is_finite() && number >= 0.0 {
        true => Ok(()),
        false => Err(reason!("{what} is {number}, and must be 0 or more")),
    }
}
