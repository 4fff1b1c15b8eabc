//! A checkpoint from another one, as ranks of other programs would write the same state. No rank
//! runs, and the file of one rank is held at a time.

use super::folder::Folder;
use super::made::{Described, finish};
use super::read::Checkpoint;
use super::restore::compare;
use super::write::Written;
use crate::error::Error;
use shardc_executor::init::initial_state;
use shardc_executor::snapshot::{Copied, Piece, owned};
use shardc_executor::tensor::Tensor;
use shardc_ir::memory;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, StateVariable};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Makes a checkpoint of the state and the position of `checkpoint` in `folder`, with the files
/// that a run of `programs` that had loaded it would write. State variables that the checkpoint
/// lacks begin as they do in a run with its seed.
///
/// # Errors
/// As [`compare`]; a piece that is damaged; what the machine says of the new files, in which case
/// there is no new checkpoint.
pub fn reshard(checkpoint: &Checkpoint, mut programs: PlanSet, folder: &Folder) -> Result<PathBuf, Error> {
    compare(checkpoint, &programs)?;
    let position = &checkpoint.manifest.position;
    programs.programs.iter_mut().for_each(|program| program.seed = position.seed);
    let made = make(checkpoint, &programs, folder);
    if made.is_err() {
        folder.give_up(position.step);
    }
    made
}

fn make(checkpoint: &Checkpoint, programs: &PlanSet, folder: &Folder) -> Result<PathBuf, Error> {
    let position = &checkpoint.manifest.position;
    let cannot = |why: String| Error::Machine(format!("no checkpoint of step {}: {why}", position.step));
    let described = Described::of(programs);
    let states = programs.states().into_iter().map(|(program, state)| (state.name.as_str(), (program, state))).collect();
    let partial = folder.begin(position.step).map_err(|e| {
        Error::io(format!("no checkpoint of step {}: cannot make a folder in `{}`", position.step, folder.path().display()), &e)
    })?;
    let (mut files, mut bytes) = (vec![], vec![]);
    for (rank, pieces) in (0..).zip(owned(programs).map_err(|why| Error::Machine(why.into()))?) {
        let size = pieces.last().map_or(0, |last| last.bytes.end);
        bytes.clear();
        let lacks = |_| cannot(format!("there is no memory for what rank {rank} holds: {size} bytes"));
        memory::reserve(&mut bytes, size).map_err(lacks)?;
        bytes.resize(size, 0);
        for own in pieces.chunk_by(|a, b| a.state == b.state) {
            fill(checkpoint, &states, own, &mut bytes)?;
        }
        let copied = Copied { rank, pieces: Arc::new(pieces), bytes };
        let written: Option<Written> = described.write(&partial, &copied, None).map_err(|why| cannot(why.into()))?;
        files.extend(written);
        bytes = copied.bytes;
    }
    finish(folder, &described.manifest(position.clone(), files)).map_err(|why| cannot(why.into()))
}

/// The state variables of programs by name.
type States<'a> = BTreeMap<&'a str, (&'a Program, &'a StateVariable)>;

/// Fills in the `pieces` of one state variable among the `bytes` of a rank.
fn fill(checkpoint: &Checkpoint, states: &States<'_>, pieces: &[Piece], bytes: &mut [u8]) -> Result<(), Error> {
    let Some(Piece { state: name, dtype, .. }) = pieces.first() else { return Ok(()) };
    let Some(record) = checkpoint.manifest.states.get(name) else {
        let (program, state) = states.get(name.as_str()).ok_or_else(|| Error::Machine(format!("`{name}` is no state")))?;
        let whole = initial_state(program, state, |_| None)?.cast(*dtype);
        pieces.iter().for_each(|piece| piece.copy_of_whole(&whole.bytes, &whole.shape, &mut bytes[piece.bytes.clone()]));
        return Ok(());
    };
    let mut parts: Vec<Tensor> = pieces.iter().map(|piece| Tensor::zeros(record.dtype, &piece.region.shape)).collect();
    let boxes = pieces.iter().zip(&mut parts).map(|(piece, part)| (&piece.region, &mut part.bytes[..]));
    checkpoint.copy(name, &mut boxes.collect::<Vec<_>>())?;
    for (piece, part) in pieces.iter().zip(parts) {
        let part = if record.dtype == *dtype { part } else { part.cast(*dtype) };
        bytes[piece.bytes.clone()].copy_from_slice(&part.bytes);
    }
    Ok(())
}
