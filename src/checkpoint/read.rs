//! Reads a checkpoint: every byte is held against the manifest before it is used.

use super::folder;
use super::manifest::{FileRecord, HASH_NAME, Manifest, NAME, PieceRecord, StateRecord};
use crate::error::Error;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};
use shardc_executor::data::safetensors_dtype;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::files;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::region::Region;
use shardc_ir::types::to_hex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A checkpoint whose manifest and headers are sound; tensors are checked as they are read.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
    /// Where the bytes of each tensor of each file are.
    places: BTreeMap<String, BTreeMap<String, Range<u64>>>,
}

/// No manifest and no header is longer.
const LONGEST: u64 = 1 << 28;

/// Bytes that are read and hashed at once.
const CHUNK: usize = 1 << 18;

impl Checkpoint {
    /// Opens the checkpoint in the folder `path`.
    ///
    /// # Errors
    /// If there is none, or a file is missing, damaged or not of it.
    pub fn open(path: &Path) -> Result<Checkpoint, Diagnostic> {
        let manifest = manifest(path)?;
        let mut places = BTreeMap::new();
        for file in &manifest.files {
            let at = path.join(&file.name);
            places.insert(file.name.clone(), tensors(&at, file, &manifest).map_err(|why| damaged(&at, why))?);
        }
        Ok(Checkpoint { path: path.to_path_buf(), manifest, places })
    }

    /// The checkpoint at `path`, or the latest of the folder there; `None` where there is none.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; a folder that cannot be read.
    pub fn find(path: &Path) -> Result<Option<Checkpoint>, Error> {
        Ok(folder::find(path)?.map(|path| Checkpoint::open(&path)).transpose()?)
    }

    /// As [`Checkpoint::find`], where there has to be one.
    ///
    /// # Errors
    /// As [`Checkpoint::find`]; that there is none.
    pub fn named(path: &Path) -> Result<Checkpoint, Error> {
        Checkpoint::find(path)?.ok_or_else(|| {
            let error = Diagnostic::error("there is no checkpoint").at(Place::File(path.to_path_buf()));
            error.help("name a folder `step-…`, or the one that has them").into()
        })
    }

    /// The files that it has.
    pub fn files(&self) -> Vec<PathBuf> {
        let own = self.manifest.files.iter().map(|file| file.name.as_str());
        own.chain([NAME, HASH_NAME]).map(|name| self.path.join(name)).collect()
    }

    /// A state variable, whole.
    ///
    /// # Errors
    /// If there is none of that name, or a piece of it is damaged.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Diagnostic> {
        let state = self.state(name)?;
        // Files have the bytes, so this is not more than the user has stored.
        let mut whole = Tensor::zeros(state.dtype, &state.shape);
        self.copy(name, &mut [(&Region::whole(&state.shape), &mut whole.bytes)])?;
        Ok(whole)
    }

    /// Copies elements of a state variable into `boxes` of it, each the bytes of a row-major array.
    /// Of the pieces only those are read that a box overlaps, each once.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`].
    pub fn copy(&self, name: &str, boxes: &mut [(&Region, &mut [u8])]) -> Result<(), Diagnostic> {
        let state = self.state(name)?;
        let size = state.dtype.bytes() as usize;
        let mut bytes = vec![];
        for piece in &state.pieces {
            let mut sharing: Vec<&mut (&Region, &mut [u8])> =
                boxes.iter_mut().filter(|(region, _)| region.overlaps(&piece.region)).collect();
            match &mut sharing[..] {
                [] => continue,
                [(region, to)] if **region == piece.region => {
                    self.piece(piece, |from, chunk| to[from..from + chunk.len()].copy_from_slice(chunk))?;
                    continue;
                }
                _ => {}
            }
            bytes.clear();
            self.piece(piece, |_, chunk| bytes.extend_from_slice(chunk))?;
            for (region, target) in sharing {
                piece.region.for_each_shared_run(region, |from, to, count| {
                    let (from, to, count) = (from as usize * size, to as usize * size, count as usize * size);
                    target[to..to + count].copy_from_slice(&bytes[from..from + count]);
                });
            }
        }
        Ok(())
    }

    fn state(&self, name: &str) -> Result<&StateRecord, Diagnostic> {
        let none = || Diagnostic::error(format!("the checkpoint has no `{name}`")).at(Place::File(self.path.clone()));
        self.manifest.states.get(name).ok_or_else(none)
    }

    /// Gives the bytes of a piece chunk by chunk, each with where it begins, and checks them: what
    /// was given of a damaged one is not to be used.
    fn piece(&self, piece: &PieceRecord, mut see: impl FnMut(usize, &[u8])) -> Result<(), Diagnostic> {
        let path = self.path.join(&piece.file);
        let failed = |why: Reason| damaged(&path, reason!("tensor `{}`: {why}", piece.tensor));
        let place = self.places.get(&piece.file).and_then(|tensors| tensors.get(&piece.tensor));
        let place = place.ok_or_else(|| failed("it is not there".into()))?;
        let cannot = |e: io::Error| failed(reason!("it cannot be read: {e}"));
        let mut file = files::open(&path).map_err(cannot)?;
        file.seek(SeekFrom::Start(place.start)).map_err(cannot)?;
        let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK.min((place.end - place.start) as usize)]);
        let mut at = place.start;
        while at < place.end {
            let count = chunk.len().min((place.end - at) as usize);
            file.read_exact(&mut chunk[..count]).map_err(cannot)?;
            hasher.update(&chunk[..count]);
            see((at - place.start) as usize, &chunk[..count]);
            at += count as u64;
        }
        if to_hex(&hasher.finalize()) == piece.sha256 {
            Ok(())
        } else {
            Err(failed("its bytes are not those that were written".into()))
        }
    }
}

/// The manifest of the checkpoint in the folder `path`.
///
/// # Errors
/// If it is missing or damaged.
fn manifest(path: &Path) -> Result<Manifest, Diagnostic> {
    let read = |name: &str| small(&path.join(name));
    let (text, hashed) = (read(NAME)?, read(HASH_NAME)?);
    Manifest::read(&text, &hashed).map_err(|why| damaged(&path.join(NAME), why))
}

/// The error about a file of a checkpoint.
pub(super) fn damaged(path: &Path, why: Reason) -> Diagnostic {
    let error = Diagnostic::error(format!("the checkpoint cannot be used: {why}")).at(Place::File(path.to_path_buf()));
    error.help("name another checkpoint, such as `DIR/step-00000100`, or copy this one again from where it came from")
}

/// The bytes of a small file of a checkpoint.
fn small(path: &Path) -> Result<Vec<u8>, Diagnostic> {
    let read = || {
        let mut file = files::open(path)?;
        let length = file.metadata()?.len();
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has {length} bytes, more than one can have")));
        }
        exactly(&mut file, length)
    };
    read().map_err(|e| {
        let error = Diagnostic::error(format!("the checkpoint cannot be read: {e}")).at(Place::File(path.to_path_buf()));
        match e.kind() {
            io::ErrorKind::NotFound => error.help(format!("a checkpoint is a folder such as `step-00000100` with a `{NAME}`")),
            _ => error,
        }
    })
}

fn exactly(file: &mut File, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Where the tensors of a file are, all of which the manifest knows.
fn tensors(path: &Path, record: &FileRecord, manifest: &Manifest) -> Result<BTreeMap<String, Range<u64>>, Reason> {
    let cannot = |e: io::Error| reason!("it cannot be read: {e}");
    let mut file = files::open(path).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    if length != record.bytes {
        return Err(reason!("it has {length} bytes, not {}", record.bytes));
    }
    let mut begin = [0; 8];
    file.read_exact(&mut begin).map_err(cannot)?;
    let (header, most) = (u64::from_le_bytes(begin), LONGEST.min(length - 8));
    if header > most {
        return Err(reason!("its header is damaged: a length of {header} bytes"));
    }
    let text = exactly(&mut file, header).map_err(cannot)?;
    if to_hex(&Sha256::new().chain_update(begin).chain_update(&text).finalize()) != record.header_sha256 {
        return Err("its header is damaged".into());
    }
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| reason!("its header cannot be read: {e}"))?;
    let (data, mut places) = (8 + header, BTreeMap::new());
    if metadata.data_len() as u64 != length - data {
        return Err("some of its bytes are of no tensor".into());
    }
    for state in manifest.states.values() {
        for piece in state.pieces.iter().filter(|piece| piece.file == record.name) {
            let is_it = |info: &&TensorInfo| {
                info.dtype == safetensors_dtype(state.dtype)
                    && info.shape.iter().map(|n| *n as u64).eq(piece.region.shape.iter().copied())
            };
            let info = metadata.info(&piece.tensor).filter(is_it);
            let info = info.ok_or_else(|| reason!("tensor `{}` is missing, or not what the manifest says", piece.tensor))?;
            let (start, end) = info.data_offsets;
            places.insert(piece.tensor.clone(), data + start as u64..data + end as u64);
        }
    }
    if let Some(name) = metadata.offset_keys().iter().find(|name| !places.contains_key(*name)) {
        return Err(reason!("the manifest does not know its tensor `{name}`"));
    }
    Ok(places)
}
