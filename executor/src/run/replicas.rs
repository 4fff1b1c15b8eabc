//! Whether ranks that hold the same part of a state variable have the same bits.

use super::{ExecutionError, Executor};
use crate::fault::Fault;
use crate::tensor::Tensor;
use crate::worker::Worker;
use sha2::{Digest, Sha256};
use shardc_ir::dtype::DType;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::plan::Buffer;
use shardc_ir::plan::set::Name;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A rank whose part of a state variable has other bits than its replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Differing {
    /// The state variable.
    pub state: String,
    /// The rank: the first that is not among those that agree with most others. Of two it is the
    /// higher one.
    pub rank: u64,
    /// The first of those that agree.
    pub replica: u64,
    /// How many hold this part, and how many of them agree with `replica`, itself included.
    pub held: (u64, u64),
    /// The elements of the part, and how many of them differ.
    pub elements: (u64, u64),
    /// The position in the part of the first element that differs.
    pub first: u64,
    /// Its value on `rank` and on `replica`.
    pub values: (f64, f64),
}

/// The beginning of the hash of a part.
type Hash = (u64, u64);

/// Where a part lies: for each axis that splits the array the coordinate.
type Part = Vec<(AxisId, u64)>;

impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Differing { state, rank, replica, held: (held, agree), elements: (elements, differ), first, values } = self;
        write!(f, "`{state}` on rank {rank} is not what it is on rank {replica}: {differ} of {elements} elements differ, ")?;
        write!(f, "the first at {first}, {:e} for {:e}; {agree} of the {held} ranks that hold it agree", values.0, values.1)
    }
}

impl Executor {
    /// Compares the bits of all state variables on the ranks that hold the same part, by hashes;
    /// the first that differs. Where ranks are processes, all of them call it at the same time, and
    /// all get the result.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn replicas(&self) -> Result<Option<Differing>, ExecutionError> {
        let names: Vec<String> = self.programs().states().into_iter().map(|(_, state)| state.name.clone()).collect();
        let states: Arc<Vec<Name>> = Arc::new(names.iter().cloned().map(Name::State).collect());
        let asked = states.clone();
        let hashes = self.on_all(None, move |worker| hashes(worker, &asked))?;
        for (i, name) in names.iter().enumerate() {
            let mut replicas: BTreeMap<Part, Vec<(u64, Hash)>> = BTreeMap::new();
            for (rank, hashes) in (0..).zip(&hashes) {
                let Some((hash, part)) = hashes.get(i).copied().flatten().zip(self.part_of(rank, &states[i])) else { continue };
                replicas.entry(part).or_default().push((rank, hash));
            }
            // All ranks find the same, and go on together.
            if let Some(odd) = replicas.values().find_map(|ranks| odd_one(ranks)) {
                return self.differing(name, &states[i], odd).map(Some);
            }
        }
        Ok(None)
    }

    /// The part of an array that a rank holds.
    fn part_of(&self, rank: u64, name: &Name) -> Option<Part> {
        let loaded = self.loaded.of_rank(rank);
        let found = &loaded.program().buffers[loaded.names.get(name)?.index()];
        Some(part(&loaded.program().mesh, found, rank))
    }

    fn differing(&self, state: &str, name: &Name, odd: Odd) -> Result<Differing, ExecutionError> {
        let Odd { rank, replica, held } = odd;
        let asked = name.clone();
        let parts = self.on_all(None, move |worker| {
            let is_asked = [rank, replica].contains(&worker.place().number());
            let id = worker.named(&asked).filter(|_| is_asked);
            Ok(id.map(|id| worker.part(id)).transpose()?)
        })?;
        let of = |rank: u64| parts.get(rank as usize).and_then(Option::as_deref);
        let both = of(rank).zip(of(replica)).zip(self.loaded.named(name));
        let ((odd, other), found) = both.ok_or_else(|| ExecutionError::before(format!("a rank has lost `{state}`")))?;
        let bytes = found.dtype.bytes() as usize;
        let pairs = || odd.chunks(bytes).zip(other.chunks(bytes)).enumerate().filter(|(_, (a, b))| a != b);
        let elements = ((odd.len() / bytes) as u64, pairs().count() as u64);
        let first = pairs().next().map(|(i, (a, b))| (i as u64, (value(found.dtype, a), value(found.dtype, b))));
        let (first, values) = first.ok_or_else(|| ExecutionError::before(format!("`{state}` changes between steps")))?;
        Ok(Differing { state: state.to_string(), rank, replica, held, elements, first, values })
    }
}

/// The hash of this rank's part of each array, where it has one.
fn hashes(worker: &mut dyn Worker, names: &[Name]) -> Result<Vec<Option<Hash>>, Fault> {
    let hash = |name: &Name| {
        let Some(id) = worker.named(name) else { return Ok(None) };
        let mut hash = Sha256::new();
        for range in worker.place().ranges(id)? {
            hash.update(&*worker.bytes(range)?);
        }
        let hash = hash.finalize();
        let number = |at: usize| hash[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Ok(Some((number(0), number(8))))
    };
    names.iter().map(hash).collect()
}

fn part(mesh: &Mesh, found: &Buffer, rank: u64) -> Part {
    let coordinates = mesh.coordinates(rank);
    let axes = (0..mesh.rank_axes().len()).map(|axis| AxisId(axis as u8));
    axes.filter(|axis| found.sharding.splits(*axis)).map(|axis| (axis, coordinates[axis.index()])).collect()
}

/// A rank that differs from most.
struct Odd {
    rank: u64,
    replica: u64,
    held: (u64, u64),
}

/// Of ranks that hold the same, ascending, the first that differs from most others.
fn odd_one(ranks: &[(u64, Hash)]) -> Option<Odd> {
    let count = |hash: &Hash| ranks.iter().filter(|(_, own)| own == hash).count();
    // Of hashes that as many have, that of the lowest rank.
    let (replica, most) = ranks.iter().rev().max_by_key(|(_, hash)| count(hash))?;
    let (rank, _) = ranks.iter().find(|(_, hash)| hash != most)?;
    Some(Odd { rank: *rank, replica: *replica, held: (ranks.len() as u64, count(most) as u64) })
}

fn value(dtype: DType, bytes: &[u8]) -> f64 {
    Tensor { dtype, shape: vec![], bytes: bytes.to_vec() }.first().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minority_differs_and_of_two_the_higher_rank() {
        let odd = |hashes: &[(u64, u64)]| {
            let ranks: Vec<_> = hashes.iter().map(|(rank, hash)| (*rank, (*hash, 0))).collect();
            odd_one(&ranks).map(|odd| (odd.rank, odd.replica, odd.held))
        };
        assert_eq!(odd(&[(3, 7)]), None);
        assert_eq!(odd(&[(0, 7), (2, 7), (4, 7)]), None);
        assert_eq!(odd(&[(0, 7), (2, 8)]), Some((2, 0, (2, 1))));
        assert_eq!(odd(&[(0, 7), (2, 8), (4, 8)]), Some((0, 2, (3, 2))));
        assert_eq!(odd(&[(1, 7), (2, 8), (4, 9), (5, 9)]), Some((1, 4, (4, 2))));
    }
}
