//! The sharding of a value: which digit of which dimension each mesh axis holds, and over which
//! axes the value is still partial.
//!
//! A dimension is a mixed-radix number, and a mesh axis that splits it owns one digit. The digit of
//! weight `stride` over an axis of size `k` is `(index / stride) % k`. So `[8:dp 32:tp]` on a
//! dimension of 256 is dp at stride 128 and tp at stride 16; `3*tp` on 192 is tp at stride 32; a
//! merged `(b t)` with b over dp is dp at a large stride, as it was on b alone. Letters, merged
//! dimensions and blocks need no further mechanism.
//!
//! What digits cannot do is cut 10 elements in 4. So a rank's part of a value may be cut once more,
//! as one line of elements: `flat(dp)` is a range for each position of dp, all of them equal and
//! the last ones filled up with zeros. Only what is computed element by element can be flat.

use crate::mesh::{AxisId, Mesh};
use crate::position::{Offset, Origin, OriginDigit};
use crate::reduce_kind::ReduceKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A mesh axis owns the digit of weight `stride` of a dimension (or of a letter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Split {
    /// Who owns it.
    pub axis: AxisId,
    /// The weight of the digit in the global index.
    pub stride: u64,
}

/// The splits of one dimension (or letter), strides descending.
pub type Splits = Vec<Split>;

/// How the parts of a value combine over an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partial {
    /// Over which axis.
    pub axis: AxisId,
    /// How.
    pub kind: ReduceKind,
}

/// Where a value is held, if not everywhere: at some positions of an axis, the stages of a
/// pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct At {
    /// The axis.
    pub axis: AxisId,
    /// Positions on it, ascending, not all of them.
    pub positions: Vec<u64>,
}

/// The sharding of a value: splits for each dimension, the axes over which what is left is cut as a
/// line, those over which it is partial, and where it is held.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Sharding {
    /// For each dimension.
    pub dims: Vec<Splits>,
    /// The axes that cut the rank's part as one line of elements, the slowest first.
    pub flat: Vec<AxisId>,
    /// By axis, ascending.
    pub partial: Vec<Partial>,
    /// Where it is held; `None` is everywhere.
    pub at: Option<At>,
}

impl At {
    /// Those positions of `axis`; `None` where they are all.
    pub fn of(axis: AxisId, positions: BTreeSet<u64>, mesh: &Mesh) -> Option<At> {
        let all = positions.len() as u64 == mesh.size(axis);
        (!all).then(|| At { axis, positions: positions.into_iter().collect() })
    }

    /// Whether it is held at `position`.
    pub fn has(&self, position: u64) -> bool {
        self.positions.binary_search(&position).is_ok()
    }

    /// Whether these positions are among those of a value that is held at `other`.
    pub fn covered(this: &Option<At>, other: &Option<At>) -> bool {
        match (this, other) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(this), Some(other)) => this.axis == other.axis && this.positions.iter().all(|position| other.has(*position)),
        }
    }

    /// Prints as `at(pp: 0 2)`.
    pub fn text(&self, mesh: &Mesh) -> String {
        let positions: Vec<String> = self.positions.iter().map(u64::to_string).collect();
        format!("at({}: {})", mesh.name(self.axis), positions.join(" "))
    }
}

impl Sharding {
    /// Whole on every rank.
    pub fn replicated(rank: usize) -> Sharding {
        Sharding { dims: vec![vec![]; rank], flat: vec![], partial: vec![], at: None }
    }

    /// Whether every rank holds the whole value.
    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.at.is_none() && self.flat.is_empty() && self.dims.iter().all(Vec::is_empty)
    }

    /// Whether a rank at `coordinates` holds its part of the value.
    pub fn is_at(&self, coordinates: &[u64]) -> bool {
        self.at.as_ref().is_none_or(|at| at.has(coordinates[at.axis.index()]))
    }

    /// Whether `axis` splits some dimension, or the line.
    pub fn splits(&self, axis: AxisId) -> bool {
        self.dims.iter().flatten().any(|s| s.axis == axis) || self.flat.contains(&axis)
    }

    /// The dimension that `axis` splits, and its digit there.
    pub fn split_over(&self, axis: AxisId) -> Option<(usize, Split)> {
        let splits = self.dims.iter().enumerate().flat_map(|(dim, splits)| splits.iter().map(move |split| (dim, *split)));
        splits.into_iter().find(|(_, split)| split.axis == axis)
    }

    /// How it is partial over `axis`, if it is.
    pub fn partial_over(&self, axis: AxisId) -> Option<ReduceKind> {
        self.partial.iter().find(|p| p.axis == axis).map(|p| p.kind)
    }

    /// Whether `axis` splits it or leaves it partial.
    pub fn depends_on(&self, axis: AxisId) -> bool {
        self.splits(axis) || self.partial_over(axis).is_some()
    }

    /// Marks it partial over `axis`.
    pub fn add_partial(&mut self, axis: AxisId, kind: ReduceKind) {
        self.partial.push(Partial { axis, kind });
        self.partial.sort();
        self.partial.dedup();
    }

    /// The shape that one rank holds (of one micro-batch, where time splits).
    pub fn local(&self, shape: &[u64], mesh: &Mesh) -> Vec<u64> {
        let part = self.part(shape, mesh);
        if self.flat.is_empty() { part } else { vec![part.iter().product::<u64>().div_ceil(self.ranges(mesh))] }
    }

    /// The shape of the part that dimensions leave to a rank; where it is flat, the rank holds a
    /// range of it.
    pub fn part(&self, shape: &[u64], mesh: &Mesh) -> Vec<u64> {
        shape.iter().zip(&self.dims).map(|(size, splits)| size / degree(splits, mesh)).collect()
    }

    /// Into how many ranges the line is cut.
    pub fn ranges(&self, mesh: &Mesh) -> u64 {
        self.flat.iter().map(|axis| mesh.size(*axis)).product()
    }

    /// Which of the ranges a rank at `coordinates` holds.
    pub fn range(&self, coordinates: &[u64], mesh: &Mesh) -> u64 {
        self.flat.iter().fold(0, |range, axis| range * mesh.size(*axis) + coordinates[axis.index()])
    }

    /// Whether the last ranges are filled up.
    pub fn is_padded(&self, shape: &[u64], mesh: &Mesh) -> bool {
        !self.part(shape, mesh).iter().product::<u64>().is_multiple_of(self.ranges(mesh))
    }

    /// Prints as in `{dp, [8:dp 32:tp]} flat(fsdp) partial(sum: tp) at(pp: 1)`; nothing where it is
    /// whole everywhere.
    /// Splits that are not well-formed are listed by weight: `dp@3+tp@2`.
    pub fn text(&self, shape: &[u64], mesh: &Mesh) -> String {
        let mut parts: Vec<String> = vec![];
        if self.dims.iter().any(|d| !d.is_empty()) {
            let dims: Vec<String> = self.dims.iter().zip(shape).map(|(s, n)| splits_text(s, *n, mesh)).collect();
            parts.push(format!("{{{}}}", dims.join(", ")));
        }
        if !self.flat.is_empty() {
            let axes: Vec<&str> = self.flat.iter().map(|axis| mesh.name(*axis)).collect();
            parts.push(format!("flat({})", axes.join(" ")));
        }
        for kind in ReduceKind::ALL {
            let axes: Vec<&str> = self.partial.iter().filter(|p| p.kind == kind).map(|p| mesh.name(p.axis)).collect();
            if !axes.is_empty() {
                parts.push(format!("partial({}: {})", kind.name(), axes.join(" ")));
            }
        }
        parts.extend(self.at.as_ref().map(|at| at.text(mesh)));
        parts.join(" ")
    }
}

/// How many parts the splits make.
pub fn degree(splits: &[Split], mesh: &Mesh) -> u64 {
    splits.iter().map(|s| mesh.size(s.axis)).product()
}

/// The outermost digits of a number below `size` whose positions are `inner` apart, in the order of
/// `axes`.
///
/// # Errors
/// The first axis whose positions do not divide what is left of the number.
pub fn outermost(size: u64, inner: u64, axes: &[AxisId], mesh: &Mesh) -> Result<Splits, AxisId> {
    let mut rest = size;
    let digit = |axis: &AxisId| {
        let fits = rest > 0 && rest.is_multiple_of(mesh.size(*axis));
        rest /= mesh.size(*axis);
        let stride = rest.checked_mul(inner).filter(|_| fits).ok_or(*axis)?;
        Ok(Split { axis: *axis, stride })
    };
    axes.iter().map(digit).collect()
}

/// Whether the splits are digits of a number below `size`: each digit's span divides the next
/// weight above it.
pub fn well_formed(splits: &[Split], size: u64, mesh: &Mesh) -> bool {
    let mut above = size;
    splits.iter().all(|s| {
        let span = s.stride.saturating_mul(mesh.size(s.axis));
        let fits = s.stride > 0 && span > 0 && above.is_multiple_of(span);
        above = s.stride;
        fits
    })
}

/// Adds a split at its place by stride; `None` if the digits would overlap or the axis is there at
/// another stride.
pub fn with_split(splits: &[Split], split: Split, size: u64, mesh: &Mesh) -> Option<Splits> {
    if let Some(there) = splits.iter().find(|s| s.axis == split.axis) {
        return (*there == split).then(|| splits.to_vec());
    }
    let out = inserted(splits, split);
    well_formed(&out, size, mesh).then_some(out)
}

/// The splits with one more, at its place by stride.
pub fn inserted(splits: &[Split], split: Split) -> Splits {
    let mut out = splits.to_vec();
    let at = out.iter().position(|s| s.stride < split.stride).unwrap_or(out.len());
    out.insert(at, split);
    out
}

/// The maximal digits of an index below `size` that no axis owns: (weight in the global index,
/// number of values), outer to inner.
pub fn free_digits(splits: &[Split], size: u64, mesh: &Mesh) -> Vec<(u64, u64)> {
    let mut digits = vec![];
    let mut above = size;
    for s in splits {
        let span = s.stride * mesh.size(s.axis);
        digits.push((span, above / span));
        above = s.stride;
    }
    digits.push((1, above));
    digits.retain(|(_, n)| *n != 1);
    digits
}

/// How a local index of a split dimension maps to the global one.
pub fn origin(splits: &[Split], size: u64, mesh: &Mesh) -> Origin {
    let mut digits = vec![];
    let mut divisor = 1;
    // An empty dimension has no index, and no digits.
    for (stride, n) in free_digits(splits, size, mesh).into_iter().rev().filter(|(_, n)| *n > 0) {
        digits.push(OriginDigit { divisor, size: n, stride });
        divisor *= n;
    }
    digits.reverse();
    Origin { offset: Offset { base: 0, terms: splits.iter().map(|s| (s.axis, s.stride as i64)).collect() }, digits }
}

fn splits_text(splits: &[Split], size: u64, mesh: &Mesh) -> String {
    if splits.is_empty() {
        return "-".to_string();
    }
    if size == 0 || !well_formed(splits, size, mesh) {
        let digits: Vec<String> = splits.iter().map(|s| format!("{}@{}", mesh.name(s.axis), s.stride)).collect();
        return digits.join("+");
    }
    let mut runs: Vec<(u64, Vec<&str>)> = vec![];
    let mut above = size;
    for s in splits {
        let span = s.stride * mesh.size(s.axis);
        match runs.last_mut() {
            Some((_, names)) if span == above => names.push(mesh.name(s.axis)),
            _ => runs.push((above / span, vec![mesh.name(s.axis)])),
        }
        above = s.stride;
    }
    let join = |names: &[&str]| if names.len() == 1 { names[0].to_string() } else { format!("({})", names.join(",")) };
    match &runs[..] {
        [(1, names)] => join(names),
        [(blocks, names)] => format!("{blocks}*{}", join(names)),
        _ => {
            let parts: Vec<String> = letters(splits, size, mesh)
                .into_iter()
                .map(|(n, names)| if names.is_empty() { n.to_string() } else { format!("{n}:{}", join(&names)) })
                .collect();
            format!("[{}]", parts.join(" "))
        }
    }
}

/// The dimension as letters `size:axes`, outer to inner: each run of adjacent digits begins a
/// letter that reaches to the next.
pub fn letters<'m>(splits: &[Split], size: u64, mesh: &'m Mesh) -> Vec<(u64, Vec<&'m str>)> {
    let mut out: Vec<(u64, Vec<&str>)> = vec![];
    let mut above = size;
    for s in splits {
        let span = s.stride * mesh.size(s.axis);
        if span == above && !out.is_empty() {
            let last = out.last_mut().expect("not empty");
            last.1.push(mesh.name(s.axis));
        } else {
            match out.last_mut() {
                Some(last) => last.0 *= above / span,
                None if above != span => out.push((above / span, vec![])),
                None => {}
            }
            out.push((1, vec![mesh.name(s.axis)]));
        }
        let last = out.last_mut().expect("just pushed");
        last.0 *= mesh.size(s.axis);
        above = s.stride;
    }
    match out.last_mut() {
        Some(last) => last.0 *= above,
        None => out.push((above, vec![])),
    }
    out
}
