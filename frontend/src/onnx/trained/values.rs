//! Questions about the values of initializers, answered from as few elements as possible; none if
//! the values are not there.

use super::Candidate;
use super::uses::{ReadAs, Use};
use crate::onnx::file::numbers::Numbers;
use crate::onnx::options::ImportOptions;
use crate::onnx::options::Weights;
use shardc_ir::types::Type;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The values of the candidates.
pub(super) struct Values<'a, 'm> {
    candidates: &'a [Candidate<'m>],
    absent: Vec<bool>,
}

/// Squares of cosines and sines add to 1 but for this.
const ROUND: f64 = 1e-2;

/// A table with a few of its elements, and the square of the first.
struct Sampled {
    table: usize,
    square: f64,
    sample: Vec<f64>,
}

/// Scores are hidden by adding this or less.
const HIDDEN: f64 = -100.0;

impl<'a, 'm> Values<'a, 'm> {
    /// The values of `candidates`; those that the spec makes count as absent.
    pub fn new(candidates: &'a [Candidate<'m>], options: &ImportOptions<'_>) -> Self {
        let absent = |c: &Candidate<'_>| {
            c.is(options.init)
                || (options.weights == Weights::NotNeeded && c.weight.external_file().is_some() && c.weight.check().is_err())
        };
        Values { candidates, absent: candidates.iter().map(absent).collect() }
    }

    /// The values that the file has, whatever the spec makes of them.
    pub fn stored(candidates: &'a [Candidate<'m>], options: &ImportOptions<'_>) -> Self {
        Values::new(candidates, &ImportOptions { init: &|_| false, bindings: BTreeMap::new(), ..*options })
    }

    /// All elements of candidate `i`.
    fn numbers(&self, i: usize) -> Option<Numbers<'_>> {
        if self.absent[i] { None } else { Numbers::of(&self.candidates[i].weight) }
    }

    /// A few elements of candidate `i`, at fixed places.
    fn sample(&self, i: usize, at: &[u64]) -> Option<Vec<f64>> {
        if self.absent[i] { None } else { self.candidates[i].weight.elements_at(at) }
    }

    /// Whether candidate `i` is a mask: some elements hide, or, where arithmetic makes a mask of
    /// it, all are 0 or 1.
    pub fn mask(&self, i: usize, derived: bool) -> Option<bool> {
        let values = self.numbers(i)?;
        let hides = values.iter().any(|v| v <= HIDDEN);
        Some(hides || (derived && values.iter().all(|v| v == 0.0 || v == 1.0)))
    }

    /// Whether every element of candidate `i` is 0.
    pub fn zero(&self, i: usize) -> Option<bool> {
        Some(self.constant(i)? && self.sample(i, &[0])? == [0.0])
    }

    /// Whether every element of candidate `i` is 0, or every one 1, as of many a parameter before
    /// training.
    pub fn fresh(&self, i: usize) -> Option<bool> {
        let first = self.sample(i, &[0])?;
        Some((first == [0.0] || first == [1.0]) && self.constant(i)?)
    }

    /// Whether every element of candidate `i` is the same.
    pub fn constant(&self, i: usize) -> Option<bool> {
        let elements = self.candidates[i].weight.ty.elements();
        let few = self.sample(i, &places(elements))?;
        if few.iter().any(|v| *v != few[0]) {
            return Some(false);
        }
        let values = self.numbers(i)?;
        let first = values.at(0).to_bits();
        Some(values.len() > 0 && values.iter().all(|v| v.to_bits() == first))
    }

    /// Whether no two rows of candidate `i`, along its last dimension, are equal, and none is zero,
    /// as that of a padding is.
    pub fn rows_differ(&self, i: usize) -> Option<bool> {
        let values = self.numbers(i)?;
        let width = self.candidates[i].weight.ty.shape.last().copied().unwrap_or(1).max(1) as usize;
        let row = |first: usize| (first..first + width).map(|at| values.at(at).to_bits()).collect::<Vec<u64>>();
        let mut rows = HashSet::from([digest(&vec![0; width])]);
        Some((0..values.len()).step_by(width).all(|first| rows.insert(digest(&row(first)))))
    }

    /// For each candidate that is only multiplied or gathered from, another one such that their
    /// squares add to 1 everywhere: the cosines and sines of rotary positions.
    pub fn circles(&self, candidates: &[Candidate<'m>], uses: &[Vec<Use>]) -> Vec<Option<&'m str>> {
        let table = |u: &Use| {
            matches!(u, Use::Table(_) | Use::Dead) || matches!(u, Use::Operand(o) if o.read_as == ReadAs::MultipliedWith)
        };
        let tables: Vec<usize> = (0..candidates.len())
            .filter(|i| candidates[*i].weight.ty.dtype.is_float() && candidates[*i].weight.ty.rank() >= 2)
            .filter(|i| !uses[*i].is_empty() && uses[*i].iter().all(table))
            .collect();
        // Those of one type in the order of one square, so that not all are compared with all.
        let mut types: HashMap<&Type, Vec<Sampled>> = HashMap::new();
        for table in tables {
            let ty = &candidates[table].weight.ty;
            let sample = self.sample(table, &places(ty.elements())).unwrap_or_default();
            if let Some(square) = sample.first().map(|first| first * first) {
                types.entry(ty).or_default().push(Sampled { table, square, sample });
            }
        }
        let mut found = vec![None; candidates.len()];
        for alike in types.values_mut() {
            alike.sort_by(|a, b| a.square.total_cmp(&b.square));
            for a in alike.iter() {
                let first = alike.partition_point(|b| b.square + a.square < 1.0 - ROUND);
                let end = alike.partition_point(|b| b.square + a.square < 1.0 + ROUND);
                let mut partners: Vec<&Sampled> = alike[first..end].iter().filter(|b| b.table != a.table).collect();
                partners.sort_by_key(|b| std::cmp::Reverse(b.table));
                let partner = partners.into_iter().find(|b| self.circle(a, b) == Some(true));
                found[a.table] = partner.map(|b| candidates[b.table].name);
            }
        }
        found
    }

    fn circle(&self, a: &Sampled, b: &Sampled) -> Option<bool> {
        let unit = |(a, b): (&f64, &f64)| (a * a + b * b - 1.0).abs() < ROUND;
        if !a.sample.iter().zip(&b.sample).all(unit) {
            return Some(false);
        }
        let (i, j) = (a.table, b.table);
        let varies = !self.constant(i)? || !self.constant(j)?;
        let (a, b) = (self.numbers(i)?, self.numbers(j)?);
        Some(varies && a.iter().zip(b.iter()).all(|(a, b)| unit((&a, &b))))
    }

    /// Whether candidate `j` is candidate `i`, or its transpose.
    pub fn tied(&self, i: usize, j: usize, turned: bool) -> Option<bool> {
        let (x, y) = (self.numbers(i)?, self.numbers(j)?);
        match self.candidates[i].weight.ty.shape[..] {
            [m, n] if turned => Some(x.len() == y.len() && are_turned(&x, &y, m, n)),
            _ => Some(x.len() == y.len() && x.iter().eq(y.iter())),
        }
    }

    /// Whether candidates `i` and `j` have the same elements, in whatever order.
    pub fn alike(&self, i: usize, j: usize) -> Option<bool> {
        let (a, b) = (&self.candidates[i].weight.ty, &self.candidates[j].weight.ty);
        if a.dtype != b.dtype || a.elements() != b.elements() {
            return Some(false);
        }
        // The sum of a digest of each element does not depend on their order.
        let sum = |i: usize| {
            let numbers = self.numbers(i)?;
            Some(numbers.iter().fold(0u128, |sum, v| sum.wrapping_add(digest(&[(v + 0.0).to_bits()]))))
        };
        Some(sum(i)? == sum(j)?)
    }

    /// Some elements of the matrix that candidate `i` is.
    pub fn fingerprint(&self, i: usize) -> Option<Fingerprint> {
        let [m, n] = self.candidates[i].weight.ty.shape[..] else { return None };
        let straight = places(m * n);
        let turned: Vec<u64> = straight.iter().map(|at| across(*at, n, m)).collect();
        Some(Fingerprint { shape: [m, n], straight: self.sample(i, &straight)?, turned: self.sample(i, &turned)? })
    }

    /// Whether candidates `i` and `j`, with those fingerprints, are equal matrices or each other's
    /// transpose.
    pub fn equal(&self, (i, a): (usize, &Fingerprint), (j, b): (usize, &Fingerprint)) -> Option<Equality> {
        let ([m, n], [p, q]) = (&self.candidates[i].weight.ty.shape[..], &self.candidates[j].weight.ty.shape[..]) else {
            return Some(Equality::No);
        };
        if (m, n) == (p, q) && a.straight == b.straight && self.tied(i, j, false)? {
            return Some(Equality::Same);
        }
        if (m, n) == (q, p) && a.straight == b.turned && self.tied(i, j, true)? {
            return Some(Equality::Transposed);
        }
        Some(Equality::No)
    }
}

/// Whether `y` is the transpose of `x`, which has `m` rows and `n` columns.
fn are_turned(x: &Numbers<'_>, y: &Numbers<'_>, m: u64, n: u64) -> bool {
    x.iter().zip(0..m * n).all(|(x, at)| x == y.at(across(at, m, n) as usize))
}

/// A digest of some bits, by which all others are told apart.
fn digest(bits: &[u64]) -> u128 {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, bits).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// The position of element `at` of a matrix of `m` rows and `n` columns in its transpose.
fn across(at: u64, m: u64, n: u64) -> u64 {
    (at % n) * m + at / n
}

/// Elements of a matrix at fixed places, and those that its transpose has there.
pub(super) struct Fingerprint {
    shape: [u64; 2],
    straight: Vec<f64>,
    turned: Vec<f64>,
}

/// The key that equal matrices have in common.
pub(super) type Key = ([u64; 2], Vec<u64>);

impl Fingerprint {
    /// The key of the matrix, and the one of its transpose.
    pub fn keys(&self) -> [Key; 2] {
        // Zeros of both signs are equal.
        let bits = |sample: &[f64]| sample.iter().map(|v| (v + 0.0).to_bits()).collect();
        let [m, n] = self.shape;
        [([m, n], bits(&self.straight)), ([n, m], bits(&self.turned))]
    }
}

/// How two matrices agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Equality {
    /// Not at all.
    No,
    /// In every element.
    Same,
    /// One is the other's transpose.
    Transposed,
}

/// Up to 64 places among `elements`, spread over all of them.
fn places(elements: u64) -> Vec<u64> {
    let count = elements.min(64);
    (0..count).map(|i| (u128::from(i) * u128::from(elements) / u128::from(count)) as u64).collect()
}
