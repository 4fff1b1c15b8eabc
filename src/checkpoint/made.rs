//! How the folder of a checkpoint is made, whoever has its state: what programs say of it, its
//! files, and its end.

use super::folder::Folder;
use super::manifest::{FORMAT, HASH_NAME, Manifest, NAME, Position, StateRecord};
use super::read::Checkpoint;
use super::write::{Written, write};
use shardc_executor::snapshot::{Copied, Piece};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, StateVariable};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What all checkpoints of the same programs say alike.
#[derive(Debug, Clone)]
pub struct Described {
    /// The state variables; their pieces are not known yet.
    states: BTreeMap<String, StateRecord>,
    /// The mesh as specs write it.
    mesh: String,
}

impl Described {
    /// Of these programs.
    pub fn of(programs: &PlanSet) -> Described {
        let record = |(program, state): (&Program, &StateVariable)| {
            let buffer = program.buffers.get(state.buffer.index())?;
            let (dtype, shape) = (buffer.dtype, buffer.shape.clone());
            let record = StateRecord { dtype, shape, role: state.role, block: state.block.clone(), pieces: vec![] };
            Some((state.name.clone(), record))
        };
        let axes = programs.mesh().rank_axes().iter().map(|axis| format!("{}={}", axis.name, axis.size));
        let mesh = axes.collect::<Vec<_>>().join(" ");
        Described { states: programs.states().into_iter().filter_map(record).collect(), mesh }
    }

    /// Writes the file of a rank to the folder `partial`, as [`write()`] does.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write(&self, partial: &Path, copied: &Copied, room: Option<u64>) -> Result<Option<Written>, Reason> {
        let is_whole = |piece: &Piece| self.states.get(&piece.state).is_some_and(|state| state.shape == piece.region.shape);
        write(partial, copied, is_whole, room)
    }

    /// The manifest of a checkpoint that has the files of all ranks.
    pub fn manifest(&self, position: Position, written: Vec<Written>) -> Manifest {
        let (mut states, mut files) = (self.states.clone(), vec![]);
        for Written { file, pieces } in written {
            files.push(file);
            for (state, piece) in pieces {
                states.entry(state).and_modify(|state| state.pieces.push(piece));
            }
        }
        let shardc = env!("CARGO_PKG_VERSION").to_string();
        Manifest { format: FORMAT, shardc, position, mesh: self.mesh.clone(), files, states }
    }
}

/// Writes the manifest, opens the checkpoint, whose tensors those who wrote them have read again,
/// and gives it its name: what has a name was read once.
///
/// # Errors
/// What the machine says; a file that is not what was written.
pub fn finish(folder: &Folder, manifest: &Manifest) -> Result<PathBuf, Reason> {
    let step = manifest.position.step;
    let partial = Folder::partial(folder.path(), step);
    let (text, hashed) = manifest.texts()?;
    for (name, text) in [(NAME, text), (HASH_NAME, hashed)] {
        let at = partial.join(name);
        let write = || {
            let mut file = File::create(&at)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|e: io::Error| reason!("cannot write `{}`: {e}", at.display()))?;
    }
    Checkpoint::open(&partial).map_err(|d| reason!("{}", d.message))?;
    folder.commit(step).map_err(|e| reason!("cannot give `{}` its name: {e}", partial.display()))
}
