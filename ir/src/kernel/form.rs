//! The rules of every kernel form: name, signature, aliasing and the like, whoever asks.

use super::signature::Signature;
use crate::mesh::Mesh;
use crate::position::{Offset, Origin, OriginDigit};
use crate::reason::Reason;

/// The rules of a kernel form. No rule has a default.
pub trait Form {
    /// The name in listings.
    fn name(&self) -> &'static str;

    /// The demands on its operands on `mesh`.
    ///
    /// # Errors
    /// If it is not well formed: sizes that overflow, strides that reach before an operand, results
    /// that share elements, axes that the mesh does not have.
    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason>;

    /// Whether read operand `read` may be the same memory as written operand `write`: each element
    /// is read before it is written, and not later.
    fn in_place(&self, read: usize, write: usize) -> bool;

    /// Operations on numbers: an addition, a product, a comparison and any other scalar function is
    /// 1, so a product that is added is 2; constants, indices, copies and messages are 0. What does
    /// not fit is the largest number.
    fn flops(&self) -> u64;

    /// Instances of everyday sizes, those of small GPTs, of GPT-2 and of ResNet-18, each with what
    /// it is: `shardc bench` times them. Calls of several ranks have none.
    fn everyday() -> Vec<(String, Self)>
    where
        Self: Sized;

    /// Every number that it computes with, for tests that change one.
    fn numbers_mut(&mut self) -> Vec<&mut f64>;

    /// Every size, for tests that change one.
    fn sizes_mut(&mut self) -> Vec<&mut u64>;

    /// Every stride and pad, for tests that change one.
    fn strides_mut(&mut self) -> Vec<&mut i64>;

    /// Every offset, for tests that change one.
    fn positions_mut(&mut self) -> Vec<Position<'_>>;
}

/// An offset of a kernel, with the digits around it where it is part of an [`Origin`].
#[derive(Debug)]
pub struct Position<'a> {
    /// The offset.
    pub offset: &'a mut Offset,
    /// The digits of the origin.
    pub digits: Option<&'a mut Vec<OriginDigit>>,
}

impl<'a> Position<'a> {
    pub(super) fn of(origin: &'a mut Origin) -> Position<'a> {
        Position { offset: &mut origin.offset, digits: Some(&mut origin.digits) }
    }
}
