//! How long a call of a communicator takes, and a message.
//!
//! Members of a group stand in a ring, those that are near one another side by side. Each byte
//! passes every member, so a ring is as fast as the slowest way on it: that within the nearest
//! neighbourhood, or that out of a neighbourhood, which as many members share as are in it, each by
//! a connection of its own. All-reduces of few bytes go over a tree. Source of both:
//! the cost model of NCCL (`src/graph/tuning.cc`).

use crate::cluster::{Device, Link};
use shardc_ir::kernel::{CollectiveKind, CommunicationKind};
use shardc_ir::mesh::{AxisId, Mesh};

/// How the members of a group lie: for each link the neighbourhoods that it joins to one, and the
/// members in each of these.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    /// How many domains of the link below are joined in the domain of this one.
    joined: u64,
    /// Members in a domain of the link below.
    below: u64,
}

impl Device {
    /// The members of the group of rank 0 by link.
    fn placed(&self, mesh: &Mesh, axes: &[AxisId]) -> Vec<Placed> {
        let members = members(mesh, axes);
        let mut below = 1;
        let place = |link: &Link| {
            let within = members.iter().filter(|rank| link.ranks.is_none_or(|ranks| **rank < ranks)).count() as u64;
            let joined = within.div_ceil(below);
            let placed = Placed { joined, below };
            below = within;
            placed
        };
        self.links.iter().map(place).collect()
    }

    /// Seconds that a call takes over the group of `axes`, in which each member sends `bytes`.
    pub fn call_seconds(&self, mesh: &Mesh, axes: &[AxisId], kind: CollectiveKind, bytes: u64) -> f64 {
        let members: u64 = axes.iter().map(|axis| mesh.size(*axis)).product();
        if members < 2 {
            return 0.0;
        }
        let placed = self.placed(mesh, axes);
        let used = || self.links.iter().zip(&placed).filter(|(_, placed)| placed.joined > 1);
        if let Some((link, _)) = used().next_back()
            && let Some(cost) = link.calls.get(&CommunicationKind::from(kind))
        {
            return cost.start + bytes as f64 / cost.bandwidth;
        }
        let start = used().map(|(link, _)| link.start).fold(0.0, f64::max);
        let bandwidth = used().map(|(link, placed)| link.bandwidth * placed.below as f64).fold(f64::INFINITY, f64::min);
        let moving = bytes as f64 / bandwidth;
        if kind == CollectiveKind::AllToAll {
            // A member's bytes leave a neighbourhood by its own connection.
            let away = |link: &Link, placed: &Placed| {
                let there = (placed.joined - 1) * placed.below;
                bytes as f64 * there as f64 / (members - 1) as f64 / link.bandwidth
            };
            let hops: f64 = used().map(|(link, _)| link.hop).sum();
            return start + hops + used().map(|(link, placed)| away(link, placed)).fold(0.0, f64::max);
        }
        let rounds = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
        let mut outer = members;
        let mut ring = 0.0;
        for (link, placed) in self.links.iter().zip(&placed) {
            let domains = outer.div_ceil(placed.joined);
            ring += (outer - domains) as f64 * link.hop;
            outer = domains;
        }
        let tree: f64 = used().map(|(link, placed)| (placed.joined as f64).log2().ceil() * link.hop).sum();
        let latency = if kind == CollectiveKind::AllReduce { ring.min(tree) } else { ring };
        start + rounds * latency + moving
    }

    /// Seconds that a message takes from one rank to another.
    pub fn message_seconds(&self, from: u64, to: u64, bytes: u64) -> f64 {
        let near = |link: &&Link| link.ranks.is_none_or(|ranks| from / ranks == to / ranks);
        let Some(link) = self.links.iter().find(near).or(self.links.last()) else { return 0.0 };
        match link.calls.get(&CommunicationKind::Send) {
            Some(cost) => cost.start + bytes as f64 / cost.bandwidth,
            None => link.start + link.hop + bytes as f64 / link.bandwidth,
        }
    }
}

/// The ranks of the group of rank 0.
fn members(mesh: &Mesh, axes: &[AxisId]) -> Vec<u64> {
    let mut all = vec![mesh.coordinates(0)];
    for axis in axes {
        let at = |place: &Vec<u64>, i: u64| {
            let mut place = place.clone();
            place[axis.index()] = i;
            place
        };
        all = all.iter().flat_map(|place| (0..mesh.size(*axis)).map(move |i| at(place, i))).collect();
    }
    all.iter().map(|place| mesh.rank(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;

    /// Nodes of eight, a connection out of the node for each rank.
    fn device(hops: [f64; 2]) -> Device {
        let text = format!(
            "name = \"nodes\"\n[[device]]\noverlap = true\npeak = {{}}\n[[device.kernel]]\nstart = 0\nflops = 1\nbytes = 1\n\
             [[device.link]]\nname = \"near\"\nranks = 8\nhop = {}\nbandwidth = 100.0\n\
             [[device.link]]\nname = \"far\"\nhop = {}\nbandwidth = 10.0\n",
            hops[0], hops[1]
        );
        Cluster::read(&text).expect("a cluster").devices.swap_remove(0)
    }

    fn mesh(dp: u64, tp: u64) -> Mesh {
        Mesh::new([("dp".to_string(), dp), ("tp".to_string(), tp)], 1)
    }

    const DP: AxisId = AxisId(0);
    const TP: AxisId = AxisId(1);

    #[test]
    fn bytes_take_the_slowest_way_of_the_ring() {
        let device = device([0.0, 0.0]);
        let seconds = |mesh: &Mesh, axes: &[AxisId]| device.call_seconds(mesh, axes, CollectiveKind::AllReduce, 400);
        assert_eq!(seconds(&mesh(2, 8), &[TP]), 4.0, "within a node");
        assert_eq!(seconds(&mesh(2, 8), &[DP]), 40.0, "one member in each node");
        assert_eq!(seconds(&mesh(4, 4), &[DP]), 20.0, "two members in each node, which share the way out");
        assert_eq!(seconds(&mesh(2, 8), &[DP, TP]), 5.0, "eight members in each node");
        assert_eq!(seconds(&mesh(16, 1), &[TP]), 0.0, "a group of one sends nothing");
    }

    #[test]
    fn hops_are_those_of_a_ring_or_of_a_tree() {
        let device = device([1.0, 10.0]);
        let seconds = |axes: &[AxisId], kind| device.call_seconds(&mesh(4, 8), axes, kind, 0);
        assert_eq!(seconds(&[TP], CollectiveKind::AllGather), 7.0);
        assert_eq!(seconds(&[DP, TP], CollectiveKind::AllGather), 28.0 + 30.0);
        assert_eq!(seconds(&[TP], CollectiveKind::AllReduce), 2.0 * 3.0, "a tree of eight");
        assert_eq!(seconds(&[DP, TP], CollectiveKind::AllReduce), 2.0 * (3.0 + 20.0), "a tree of four nodes of eight");
    }

    #[test]
    fn members_that_all_send_to_all_leave_by_their_own_connections() {
        let device = device([0.0, 0.0]);
        let seconds = device.call_seconds(&mesh(2, 8), &[DP, TP], CollectiveKind::AllToAll, 1500);
        assert_eq!(seconds, 1500.0 * 8.0 / 15.0 / 10.0);
    }

    #[test]
    fn a_message_takes_the_nearest_link() {
        let device = device([1.0, 10.0]);
        assert_eq!([device.message_seconds(0, 7, 100), device.message_seconds(7, 8, 100)], [2.0, 20.0]);
    }
}
