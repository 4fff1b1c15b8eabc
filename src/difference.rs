//! What the ranks of two plans hold, send and wait for otherwise.
//!
//! Plans of equally many ranks are compared rank by rank, where ranks that differ alike stand
//! together; others by the rank that holds most. Bytes are those of one step.
//!
//! ```no_run
//! use shardc::difference::Difference;
//! use shardc::plan_dir::{Trust, read};
//!
//! let (a, b) = (read("a".as_ref(), Trust::Graphs)?, read("b".as_ref(), Trust::Graphs)?);
//! let difference = Difference::of(a.programs.main(), b.programs.main());
//! for ranks in &difference.ranks {
//!     let (before, after) = (ranks.a.peak_bytes, ranks.b.peak_bytes);
//!     println!("ranks {:?}: {before} bytes, then {after}", ranks.of_a);
//! }
//! # Ok::<_, shardc::Error>(())
//! ```

use serde::Serialize;
use shardc_ir::clock::programs::schedule;
use shardc_ir::kernel::CommunicationKind;
use shardc_ir::listing::{Communication, NamedSizes, ProgramSummary, summary};
use shardc_ir::plan::set::PlanSet;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What two plans do otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The first plan.
    pub a: Side,
    /// The second one.
    pub b: Side,
    /// The ranks that differ.
    pub ranks: Vec<Ranks>,
}

/// One of two plans.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// The axes of its ranks.
    pub mesh: NamedSizes,
    /// How many ranks there are.
    pub world_size: u64,
    /// The micro-batches of a step.
    pub microbatches: u64,
    /// The first rank that holds most.
    pub fullest_rank: u64,
    /// What that holds.
    pub peak_bytes: u64,
    /// What all ranks send together.
    pub bytes_sent: u64,
    /// The share of a step that is more than the work of the busiest place of the pipeline, 0 to 1,
    /// where messages take no time ([`schedule`]). 0 without a pipeline; `None` where places wait
    /// for one another for ever.
    pub idle_share: Option<f64>,
}

/// Ranks that differ alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranks {
    /// Their numbers in the first plan.
    pub of_a: Vec<u64>,
    /// Their numbers in the second plan: the same, where both have equally many ranks.
    pub of_b: Vec<u64>,
    /// What each of them holds and sends in the first plan.
    pub a: Held,
    /// And in the second.
    pub b: Held,
    /// Calls and messages of which there are more or fewer, or of other sizes.
    pub calls: Vec<Calls>,
}

/// Bytes that a rank holds and sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Everything that it ever holds.
    pub peak_bytes: u64,
    /// Weights, frozen ones too, and running statistics.
    pub parameter_bytes: u64,
    /// Gradients.
    pub gradient_bytes: u64,
    /// Moments of the optimizer.
    pub optimizer_bytes: u64,
    /// Other values that live within a step.
    pub activation_bytes: u64,
    /// What it sends in a step.
    pub bytes_sent: u64,
}

/// Calls, or messages, of one kind over the same axes that carry the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Their kind.
    pub kind: CommunicationKind,
    /// The axes of their group: `dp`, or `dp,tp`.
    pub axis: String,
    /// What they carry, as in [`Communication::carries`].
    pub carries: Cow<'static, str>,
    /// How many the first plan has, and the bytes that a rank sends with all of them.
    pub a: Sent,
    /// And the second.
    pub b: Sent,
}

/// A number of calls, and the bytes that a rank sends with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Sent {
    /// How many.
    pub calls: u64,
    /// With all of them.
    pub bytes_sent: u64,
}

impl Difference {
    /// Between the programs of `a` and those of `b`.
    pub fn of(a: &PlanSet, b: &PlanSet) -> Difference {
        let summaries = |set: &PlanSet| set.programs.iter().map(summary).collect::<Vec<_>>();
        let (held_a, held_b) = (summaries(a), summaries(b));
        let (side_a, side_b) = (Side::of(a, &held_a), Side::of(b, &held_b));
        let pairs: Vec<(u64, u64)> = match side_a.world_size == side_b.world_size {
            true => (0..side_a.world_size).map(|rank| (rank, rank)).collect(),
            false => vec![(side_a.fullest_rank, side_b.fullest_rank)],
        };
        let mut alike: BTreeMap<(usize, usize), (Vec<u64>, Vec<u64>)> = BTreeMap::new();
        for (rank_a, rank_b) in pairs {
            let (of_a, of_b) = alike.entry((a.at(a.mesh(), rank_a), b.at(b.mesh(), rank_b))).or_default();
            of_a.push(rank_a);
            of_b.push(rank_b);
        }
        let ranks = alike.into_iter().filter_map(|((at_a, at_b), (of_a, of_b))| {
            let (a, b) = (&held_a[at_a], &held_b[at_b]);
            let (calls, held) = (calls(a, b), (Held::of(a), Held::of(b)));
            (held.0 != held.1 || !calls.is_empty()).then_some(Ranks { of_a, of_b, a: held.0, b: held.1, calls })
        });
        let mut ranks: Vec<Ranks> = ranks.collect();
        ranks.sort_by(|one, other| one.of_a.cmp(&other.of_a));
        Difference { a: side_a, b: side_b, ranks }
    }
}

impl Side {
    fn of(set: &PlanSet, held: &[ProgramSummary]) -> Side {
        let mesh = set.mesh();
        let sent = |rank| Held::of(&held[set.at(mesh, rank)]).bytes_sent;
        let fullest_rank = set.fullest_rank();
        Side {
            mesh: NamedSizes(mesh.rank_axes().iter().map(|axis| (axis.name.clone(), axis.size)).collect()),
            world_size: mesh.world_size(),
            microbatches: mesh.microbatches(),
            fullest_rank,
            peak_bytes: held[set.at(mesh, fullest_rank)].peak_bytes,
            bytes_sent: (0..mesh.world_size()).map(sent).sum(),
            idle_share: schedule(set).ok().map(|schedule| schedule.idle.share),
        }
    }
}

impl Held {
    fn of(summary: &ProgramSummary) -> Held {
        Held {
            peak_bytes: summary.peak_bytes,
            parameter_bytes: summary.parameter_bytes,
            gradient_bytes: summary.gradient_bytes,
            optimizer_bytes: summary.optimizer_bytes,
            activation_bytes: summary.activation_bytes,
            bytes_sent: summary.communication.iter().map(|sent| sent.bytes_sent).sum(),
        }
    }
}

/// The calls that differ, in the order of their kinds.
fn calls(a: &ProgramSummary, b: &ProgramSummary) -> Vec<Calls> {
    let mut all: BTreeMap<(CommunicationKind, &str, &str), [Sent; 2]> = BTreeMap::new();
    for (side, summary) in [a, b].into_iter().enumerate() {
        for Communication { kind, axis, carries, calls, bytes_sent, .. } in &summary.communication {
            let sent = &mut all.entry((*kind, axis, carries)).or_default()[side];
            *sent = Sent { calls: sent.calls + calls, bytes_sent: sent.bytes_sent + bytes_sent };
        }
    }
    let changed = all.into_iter().filter(|(_, [a, b])| a != b);
    let calls = |((kind, axis, carries), [a, b]): ((CommunicationKind, &str, &str), [Sent; 2])| Calls {
        kind,
        axis: axis.to_string(),
        carries: carries.to_string().into(),
        a,
        b,
    };
    changed.map(calls).collect()
}
