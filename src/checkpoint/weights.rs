//! The initializers of the model in a checkpoint: its parameters and statistics, put together where
//! state variables are blocks of them.

use super::manifest::StateRecord;
use super::read::{Checkpoint, damaged};
use super::write::header;
use crate::error::Error;
use shardc_executor::init::put_together;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::plan::Block;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::Type;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The initializers of a checkpoint.
#[derive(Debug)]
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    all: BTreeMap<&'a str, Vec<Part<'a>>>,
}

/// A state variable that is an initializer, or a block of one.
type Part<'a> = (&'a str, &'a StateRecord);

impl<'a> Weights<'a> {
    /// Of a checkpoint.
    ///
    /// # Errors
    /// If blocks do not make up an initializer.
    pub fn of(checkpoint: &'a Checkpoint) -> Result<Weights<'a>, Diagnostic> {
        let mut all: BTreeMap<&str, Vec<Part<'_>>> = BTreeMap::new();
        for (name, record) in checkpoint.manifest.states.iter().filter(|(_, record)| record.role.is_of_model()) {
            let of = record.block.as_ref().map_or(name, |block| &block.of);
            all.entry(of).or_default().push((name, record));
        }
        for (name, parts) in &mut all {
            parts.sort_by_key(|(_, record)| record.block.as_ref().map(|block| block.start));
            check(parts).map_err(|why| damaged(&checkpoint.path, reason!("`{name}`: {why}")))?;
        }
        Ok(Weights { checkpoint, all })
    }

    /// An initializer, whole.
    ///
    /// # Errors
    /// If there is none of that name, or a piece of it is damaged.
    pub fn get(&self, name: &str) -> Result<Tensor, Diagnostic> {
        let parts = self.all.get(name).into_iter().flatten().map(|(name, record)| (*name, record.block.as_ref()));
        let none = || Diagnostic::error(format!("the checkpoint has no `{name}`")).at(Place::File(self.checkpoint.path.clone()));
        put_together(parts, |state| self.checkpoint.tensor(state))?.ok_or_else(none)
    }

    /// Gives `out` a file of safetensors with all of them, in order; one is held at a time.
    ///
    /// # Errors
    /// If the form takes no such name; a piece that is damaged; those of `out`.
    pub fn write(&self, out: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut tensors: Vec<(&str, Type)> = self.all.iter().filter_map(|(name, parts)| Some((*name, ty(parts)?))).collect();
        // Readers want each tensor to begin at a multiple of its elements' bytes.
        tensors.sort_by_key(|(name, ty)| (Reverse(ty.dtype.bytes()), *name));
        if tensors.iter().any(|(name, _)| *name == "__metadata__") {
            let error = Diagnostic::error("no tensor of a `.safetensors` can have the name `__metadata__`");
            return Err(error.at(Place::File(self.checkpoint.path.clone())).help("export a model: `-o OUT.onnx`").into());
        }
        let mut end = 0;
        let entries = tensors.iter().map(|(name, ty)| {
            let start = end;
            end += (ty.elements() * ty.dtype.bytes()) as usize;
            (*name, ty.dtype, &ty.shape[..], start..end)
        });
        out(&header(entries).map_err(|why| Error::Machine(why.into()))?)?;
        tensors.iter().try_for_each(|(name, _)| out(&self.get(name)?.bytes))
    }
}

/// The type of an initializer of these parts.
fn ty(parts: &[Part<'_>]) -> Option<Type> {
    let (_, record) = parts.first()?;
    let shape = record.block.as_ref().map_or(record.shape.clone(), |block| block.whole_shape(&record.shape));
    Some(Type::new(record.dtype, shape))
}

/// Whether parts, in their order, are all of one initializer.
fn check(parts: &[Part<'_>]) -> Result<(), Reason> {
    let blocks: Option<Vec<(&StateRecord, &Block)>> =
        parts.iter().map(|(_, record)| record.block.as_ref().map(|block| (*record, block))).collect();
    let [(_, first), ..] = parts else { return Ok(()) };
    let Some(blocks) = blocks else {
        return if parts.len() == 1 { Ok(()) } else { Err("it is a state variable, and blocks of it are others".into()) };
    };
    let mut end = 0;
    for (record, block) in &blocks {
        let is_next = block.is_inside(&record.shape)
            && block.start == end
            && record.dtype == first.dtype
            && first.block.as_ref().is_some_and(|other| other.axis == block.axis)
            && ty(&[("", record)]) == ty(parts);
        if !is_next {
            return Err(reason!("its blocks are not one behind the other at {} of dimension {}", block.start, block.axis));
        }
        end += record.shape[block.axis];
    }
    let whole = blocks.first().map_or(0, |(_, block)| block.whole);
    if end == whole { Ok(()) } else { Err(reason!("its blocks have {end} of {whole} indices")) }
}
