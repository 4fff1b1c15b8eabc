//! What a checkpoint says of itself: the position in training, and where each piece of each state
//! variable is, with its hash. Whoever reads it believes nothing.

use crate::early_stopping::EarlyStopping;
use serde::{Deserialize, Serialize};
use shardc_ir::dtype::DType;
use shardc_ir::plan::{Block, StateRole};
use shardc_ir::plan_file::hash;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::region::Region;
use std::collections::{BTreeMap, BTreeSet};

/// The version of the format that is written, and the only one that is read.
pub const FORMAT: u32 = 1;

/// The manifest of a checkpoint: `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of `shardc` that wrote it.
    pub shardc: String,
    /// Where training is.
    pub position: Position,
    /// The mesh whose ranks wrote it, such as `dp=2 tp=4`.
    pub mesh: String,
    /// One for each rank that had something to write.
    pub files: Vec<FileRecord>,
    /// The state variables.
    pub states: BTreeMap<String, StateRecord>,
}

/// Where training is: what makes the next step what it is, beside the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Steps done.
    pub step: u64,
    /// The seed of the order of samples and of random ops.
    pub seed: u64,
    /// Where the data is.
    pub data: DataPosition,
    /// The loss of the validation at this step, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The validations so far, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validations: Option<EarlyStopping>,
}

/// Where training is in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPosition {
    /// Passes done.
    pub epoch: u64,
    /// Samples of the pass that are done.
    pub sample: u64,
    /// Samples of the data.
    pub samples: u64,
    /// Whether they come in random order.
    pub shuffle: bool,
}

/// A state variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateRecord {
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Vec<u64>,
    /// Its role.
    pub role: StateRole,
    /// Which part of an initializer it is, if it is not all of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Block>,
    /// Boxes that have each element once.
    pub pieces: Vec<PieceRecord>,
}

/// A piece of a state variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceRecord {
    /// The file that has it.
    pub file: String,
    /// The name of its tensor there.
    pub tensor: String,
    /// Which elements it has.
    pub region: Region,
    /// Of its bytes, in hexadecimal digits.
    pub sha256: String,
}

/// A file of pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The hash of all that stands before the first tensor, in hexadecimal digits.
    pub header_sha256: String,
}

/// The name of the manifest.
pub const NAME: &str = "manifest.json";
/// The name of the file that has the manifest's hash, in the form of `sha256sum`.
pub const HASH_NAME: &str = "manifest.sha256";

impl Manifest {
    /// The texts of the two files.
    ///
    /// # Errors
    /// If a number has no text.
    pub fn texts(&self) -> Result<(String, String), Reason> {
        let text = serde_json::to_string_pretty(self).map_err(|e| reason!("the manifest has no text: {e}"))? + "\n";
        let hashed = format!("{}  {NAME}\n", hash(text.as_bytes()));
        Ok((text, hashed))
    }

    /// Reads the two files.
    ///
    /// # Errors
    /// The file that is damaged, or what a manifest of this kind cannot say.
    pub fn read(text: &[u8], hashed: &[u8]) -> Result<Manifest, Reason> {
        if hashed != format!("{}  {NAME}\n", hash(text)).as_bytes() {
            return Err(reason!("`{NAME}` is damaged, or `{HASH_NAME}` is: the one has not the hash that the other says"));
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let cannot = |e: serde_json::Error| reason!("`{NAME}` cannot be read: {e}");
        let Version { format } = serde_json::from_slice(text).map_err(cannot)?;
        if format != FORMAT {
            return Err(reason!("it has format {format}, and this version of shardc reads format {FORMAT}"));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(cannot)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Whether its pieces make whole arrays, in files that are in its own folder.
    fn check(&self) -> Result<(), Reason> {
        let mut files = BTreeSet::new();
        for file in &self.files {
            let is_plain =
                file.name.ends_with(".safetensors") && !file.name.contains(['/', '\\', ':']) && !file.name.starts_with('.');
            if !is_plain || !files.insert(file.name.as_str()) {
                return Err(reason!("`{}` is no name of a file of a checkpoint, or is there twice", file.name));
            }
        }
        let mut tensors = BTreeSet::new();
        for (name, state) in &self.states {
            state.check().map_err(|why| reason!("`{name}`: {why}"))?;
            for piece in &state.pieces {
                if !files.contains(piece.file.as_str()) {
                    return Err(reason!("`{name}` is in `{}`, which is no file of the checkpoint", piece.file));
                }
                if !tensors.insert((&piece.file, &piece.tensor)) {
                    return Err(reason!("`{}` of `{}` is two pieces", piece.tensor, piece.file));
                }
            }
        }
        Ok(())
    }
}

impl StateRecord {
    /// Its elements.
    ///
    /// # Errors
    /// If they are more than there can be.
    pub fn elements(&self) -> Result<u64, Reason> {
        let elements = Region::whole(&self.shape).elements();
        let bytes = elements.and_then(|n| n.checked_mul(self.dtype.bytes()));
        elements.filter(|_| bytes.is_some_and(|bytes| bytes <= i64::MAX as u64)).ok_or_else(|| "it is too large".into())
    }

    /// Whether its pieces have each element once.
    fn check(&self) -> Result<(), Reason> {
        let wanted = self.elements()?;
        let mut found = 0u64;
        for piece in &self.pieces {
            if !piece.region.is_inside(&self.shape) {
                return Err(reason!("{} lies outside its shape {:?}", piece.region, self.shape));
            }
            found = found.saturating_add(piece.region.elements().unwrap_or(u64::MAX));
        }
        // Pieces in order of their first index: only those that begin before another one ends can
        // overlap it.
        let mut sorted: Vec<&Region> = self.pieces.iter().map(|piece| &piece.region).collect();
        sorted.sort();
        let first = |region: &Region| region.start.first().copied().unwrap_or(0);
        let end = |region: &Region| first(region) + region.shape.first().copied().unwrap_or(1);
        let overlap = (0..sorted.len()).find_map(|at| {
            let later = sorted[at + 1..].iter().take_while(|later| first(later) < end(sorted[at]));
            later.into_iter().find(|later| sorted[at].overlaps(later)).map(|later| (sorted[at], *later))
        });
        match overlap {
            Some((a, b)) => Err(reason!("{a} and {b} have the same elements")),
            None if found != wanted => Err(reason!("its pieces have {found} of {wanted} elements")),
            None => Ok(()),
        }
    }
}
