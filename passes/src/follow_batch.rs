//! The batch of samples followed through a graph, from dimension 0 of its inputs by the letters of
//! every op, into merged dimensions too.

use shardc_ir::graph::{Graph, Node, NodeId};
use shardc_ir::letters::{Letter, Letters, Role};
use shardc_ir::ops::{Op, letters_of};
use std::fmt;

/// The place of the batch in a value: the digit of weight `stride` of dimension `dim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchDigit {
    pub dim: usize,
    pub stride: u64,
}

/// The place of the batch in an op: the digit of weight `stride` of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterDigit {
    pub letter: Letter,
    pub stride: u64,
}

/// Where the batch cannot be followed any further: what an op does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It takes a part of a dimension that holds the batch and more.
    Cut,
    /// Two operands have the batch in different places.
    Combined,
    /// Its result is of all samples together.
    Reduced,
    /// It needs the whole batch at once.
    Picked,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Cut => "cuts the batch into parts",
            End::Combined => "combines each sample with each other",
            End::Reduced => "reduces over the batch",
            End::Picked => "picks from or joins the batch",
        })
    }
}

/// The batch on its way through the graph.
pub struct Follow<'g> {
    graph: &'g Graph,
    /// The samples of the batch.
    from: u64,
    /// The place of the batch in each value that depends on the samples.
    pub places: Vec<Option<BatchDigit>>,
}

impl<'g> Follow<'g> {
    pub fn new(graph: &'g Graph, from: u64) -> Follow<'g> {
        let mut places = vec![None; graph.value_count()];
        for (_, node) in graph.nodes() {
            if matches!(&node.op, Op::Input(input) if input.ty.rank() > 0) {
                places[node.results[0].index()] = Some(BatchDigit { dim: 0, stride: 1 });
            }
        }
        Follow { graph, from, places }
    }

    /// The place of the batch in an op, with the op's letters; `None` if the batch does not reach
    /// it.
    pub fn node(&mut self, id: NodeId, node: &Node) -> Result<Option<(Letters, LetterDigit)>, End> {
        let letters = letters_of(self.graph, id);
        let mut found: Option<LetterDigit> = None;
        for (operand, dims) in node.operands.iter().zip(&letters.operands) {
            let Some(place) = self.places[operand.index()] else { continue };
            let digit = self.digit(&letters, &dims[place.dim], place.stride).ok_or(End::Cut)?;
            if found.is_some_and(|other| other != digit) {
                return Err(End::Combined);
            }
            found = Some(digit);
        }
        let Some(digit) = found else { return Ok(None) };
        match letters.roles[digit.letter] {
            Role::Kept => {}
            Role::Reduced(_) => return Err(End::Reduced),
            Role::Whole => return Err(End::Picked),
        }
        for (result, dims) in node.results.iter().zip(&letters.results) {
            self.places[result.index()] = place_of(&letters, dims, digit);
        }
        Ok(Some((letters, digit)))
    }

    /// The letter of a dimension that holds all of the batch, with the batch's weight in it.
    pub fn digit(&self, letters: &Letters, dim: &[Letter], stride: u64) -> Option<LetterDigit> {
        let mut inner = 1;
        for letter in dim.iter().rev() {
            let size = letters.sizes[*letter];
            if stride < inner * size {
                let batch = (stride / inner).checked_mul(self.from);
                let whole = stride.is_multiple_of(inner) && batch.is_some_and(|batch| size.is_multiple_of(batch));
                return whole.then_some(LetterDigit { letter: *letter, stride: stride / inner });
            }
            inner *= size;
        }
        None
    }
}

/// The place of a letter's digit in a tensor of these dimensions.
pub fn place_of(letters: &Letters, dims: &[Vec<Letter>], digit: LetterDigit) -> Option<BatchDigit> {
    dims.iter().enumerate().find_map(|(dim, held)| {
        let at = held.iter().position(|letter| *letter == digit.letter)?;
        let inner: u64 = held[at + 1..].iter().map(|letter| letters.sizes[*letter]).product();
        Some(BatchDigit { dim, stride: digit.stride * inner })
    })
}
