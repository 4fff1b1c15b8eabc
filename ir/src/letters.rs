//! Letters: how the dimensions of an op's operands and results correspond, einsum-like.
//!
//! Every dimension is an ordered product of letters, outer to inner; a dimension of size 1 that
//! broadcasts is the empty product. Mesh axes split letters, so a split of one operand says how the
//! others must be split, and what is partial afterwards.

use crate::mesh::Mesh;
use crate::reduce_kind::ReduceKind;
use crate::sharding::{Sharding, Split, Splits, with_split};
use crate::types::Type;

/// A letter of one node, by position in [`Letters::sizes`].
pub type Letter = usize;

/// The role of a letter in an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is in a result (or may be split without leaving anything partial).
    Kept,
    /// It is combined away: splitting it leaves the results partial.
    Reduced(ReduceKind),
    /// It must not be split.
    Whole,
}

/// The letters of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letters {
    /// The size of each letter.
    pub sizes: Vec<u64>,
    /// The role of each letter.
    pub roles: Vec<Role>,
    /// For each operand and dimension, its letters.
    pub operands: Vec<Vec<Vec<Letter>>>,
    /// For each result and dimension, its letters.
    pub results: Vec<Vec<Vec<Letter>>>,
    /// Letters that count what people know by a name, in the singular: `head`.
    pub units: Vec<(Letter, &'static str)>,
}

/// For each letter, the mesh axes that split it, with strides relative to the letter.
pub type Assignment = Vec<Splits>;

impl Letters {
    /// No letters yet.
    pub fn new() -> Letters {
        Letters { sizes: vec![], roles: vec![], operands: vec![], results: vec![], units: vec![] }
    }

    /// Adds a letter.
    pub fn letter(&mut self, size: u64, role: Role) -> Letter {
        self.sizes.push(size);
        self.roles.push(role);
        self.sizes.len() - 1
    }

    /// From an einsum such as `bk,kn->bn`: a letter that is in no result is summed. Sizes come from
    /// `operands`.
    pub fn einsum(spec: &str, operands: &[Type]) -> Letters {
        let (inputs, output) = spec.split_once("->").unwrap_or((spec, ""));
        let mut letters = Letters::new();
        let mut names: Vec<char> = vec![];
        for (term, ty) in inputs.split(',').zip(operands) {
            let mut dims = vec![];
            for (c, size) in term.chars().zip(&ty.shape) {
                let letter = names.iter().position(|n| *n == c).unwrap_or_else(|| {
                    names.push(c);
                    let role = if output.contains(c) { Role::Kept } else { Role::Reduced(ReduceKind::Sum) };
                    letters.letter(*size, role)
                });
                dims.push(vec![letter]);
            }
            letters.operands.push(dims);
        }
        let result = output.chars().filter_map(|c| names.iter().position(|n| *n == c)).map(|l| vec![l]).collect();
        letters.results.push(result);
        letters
    }

    /// Numpy broadcasting: all results have the broadcast shape, each of its dimensions is one
    /// letter.
    pub fn broadcast(operands: &[Type], results: &[Type]) -> Letters {
        let mut letters = Letters::new();
        let shape = &results[0].shape;
        let all: Vec<Letter> = shape.iter().map(|n| letters.letter(*n, Role::Kept)).collect();
        letters.operands = operands
            .iter()
            .map(|ty| {
                let skip = shape.len() - ty.rank();
                ty.shape.iter().enumerate().map(|(d, n)| if *n == 1 { vec![] } else { vec![all[skip + d]] }).collect()
            })
            .collect();
        let result: Vec<Vec<Letter>> = shape.iter().zip(&all).map(|(n, l)| if *n == 1 { vec![] } else { vec![*l] }).collect();
        letters.results = vec![result; results.len()];
        letters
    }

    /// All letters of a tensor's dimensions, as one list.
    pub fn flat(dims: &[Vec<Letter>]) -> Vec<Letter> {
        dims.iter().flatten().copied().collect()
    }

    /// The splits of a tensor's dimensions as splits of letters; `None` for a split that crosses
    /// the border of a letter.
    pub fn to_letters(&self, dims: &[Vec<Letter>], sharding: &Sharding) -> Vec<Vec<Option<(Letter, Split)>>> {
        dims.iter()
            .zip(&sharding.dims)
            .map(|(letters, splits)| splits.iter().map(|s| self.locate(letters, *s)).collect())
            .collect()
    }

    fn locate(&self, letters: &[Letter], split: Split) -> Option<(Letter, Split)> {
        let mut inner: u64 = 1;
        for letter in letters.iter().rev() {
            let span = inner * self.sizes[*letter];
            if split.stride < span {
                let fits = split.stride >= inner && split.stride.is_multiple_of(inner);
                return fits.then(|| (*letter, Split { axis: split.axis, stride: split.stride / inner }));
            }
            inner = span;
        }
        None
    }

    /// The splits of a tensor whose letters are split as `assignment` says.
    pub fn project(&self, dims: &[Vec<Letter>], assignment: &Assignment) -> Vec<Splits> {
        dims.iter()
            .map(|letters| {
                let mut splits = vec![];
                let mut inner = 1;
                for letter in letters.iter().rev() {
                    let lifted = assignment[*letter].iter().map(|s| Split { axis: s.axis, stride: s.stride * inner });
                    splits.splice(0..0, lifted);
                    inner *= self.sizes[*letter];
                }
                splits
            })
            .collect()
    }

    /// The first unit that `ranks` do not divide: how many there are, and the name of one.
    pub fn indivisible(&self, ranks: u64) -> Option<(u64, &'static str)> {
        let mut units = self.units.iter().map(|(letter, name)| (self.sizes[*letter], *name));
        units.find(|(size, _)| !size.is_multiple_of(ranks))
    }

    /// Whether the letter may be split like this beside what `assignment` says; the new splits of
    /// the letter if so. An axis splits at most one letter of an op.
    pub fn extend(&self, assignment: &Assignment, letter: Letter, split: Split, mesh: &Mesh) -> Option<Splits> {
        if self.roles[letter] == Role::Whole {
            return None;
        }
        let elsewhere = assignment.iter().enumerate().any(|(l, s)| l != letter && s.iter().any(|s| s.axis == split.axis));
        if elsewhere {
            return None;
        }
        with_split(&assignment[letter], split, self.sizes[letter], mesh)
    }

    /// Prints as `bk,kn->bn`: `(d)` is a whole letter, `[bt]` a merged dimension, `1` an empty
    /// product.
    pub fn text(&self) -> String {
        let name = |l: Letter| {
            let c = if l < 26 { (b'a' + l as u8) as char } else { (b'A' + (l % 26) as u8) as char };
            if self.roles[l] == Role::Whole { format!("({c})") } else { c.to_string() }
        };
        let dim = |letters: &Vec<Letter>| match &letters[..] {
            [] => "1".to_string(),
            [l] => name(*l),
            many => format!("[{}]", many.iter().map(|l| name(*l)).collect::<String>()),
        };
        let tensor = |dims: &Vec<Vec<Letter>>| dims.iter().map(dim).collect::<String>();
        let list = |tensors: &[Vec<Vec<Letter>>]| tensors.iter().map(tensor).collect::<Vec<_>>().join(",");
        format!("{}->{}", list(&self.operands), list(&self.results))
    }
}

impl Default for Letters {
    fn default() -> Self {
        Letters::new()
    }
}
