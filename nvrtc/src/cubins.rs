//! Cubins kept in a folder, so that a text is assembled once.
//!
//! ```text
//! HASH.cubin    the machine code
//! HASH.json     what its kernels use, and a hash of both
//! ```
//!
//! `HASH` is that of all that a cubin follows from: text, architecture, options and NVRTC's
//! version. Files appear under their names whole, the JSON last. Nothing of the folder is believed:
//! what does not agree with its hash is assembled again.

use crate::{Assembled, ELF, Nvrtc, Resources, threads};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first words of each JSON file, and of what is hashed.
const FORMAT: &str = "shardc cubin 1";

/// No file of a cubin has more bytes.
const LARGE: u64 = 64 << 20;

/// A folder of cubins.
#[derive(Debug, Clone)]
pub struct Cubins {
    folder: PathBuf,
}

/// What stands beside a cubin.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    format: String,
    /// Of the cubin and the kernels.
    sha256: String,
    kernels: Vec<Resources>,
}

impl Cubins {
    /// The folder at `folder`, which is made where it is absent.
    ///
    /// # Errors
    /// If there is something else, or it cannot be made.
    pub fn open(folder: &Path) -> Result<Cubins, String> {
        fs::create_dir_all(folder).map_err(|e| format!("cannot make `{}`: {e}", folder.display()))?;
        Ok(Cubins { folder: folder.to_path_buf() })
    }

    /// The name, without an ending, of what `nvrtc` makes of `text` for the architecture `arch`.
    pub fn key(nvrtc: &Nvrtc, text: &str, arch: u32) -> String {
        let (major, minor) = nvrtc.version();
        let mut hasher = Sha256::new();
        for part in [FORMAT, &format!("nvrtc {major}.{minor}"), &nvrtc.options(arch).join(" "), text] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hex(hasher)
    }

    /// The file of the cubin of this key, which may not be there.
    pub fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }

    /// What is kept under `key`, unless it is absent or damaged.
    pub fn read(&self, key: &str) -> Option<Assembled> {
        let about: About = serde_json::from_slice(&bytes_of(&self.about(key))?).ok()?;
        let cubin = bytes_of(&self.path(key))?;
        let assembled = Assembled { cubin, kernels: about.kernels };
        let is_whole = assembled.cubin.starts_with(ELF) && about.format == FORMAT && about.sha256 == content(&assembled);
        is_whole.then_some(assembled)
    }

    /// The kernels of each (name, text), in their order: those that are kept are read, the others
    /// assembled as by [`Nvrtc::assemble_all`], and kept. Equal texts are assembled once.
    ///
    /// # Errors
    /// Of each text, those of [`Nvrtc::assemble`], and those of writing its files.
    pub fn assemble_all(&self, nvrtc: &Nvrtc, texts: &[(&str, &str)], arch: u32) -> Vec<Result<Assembled, String>> {
        let keys: Vec<String> = texts.iter().map(|(_, text)| Cubins::key(nvrtc, text, arch)).collect();
        let mut seen = BTreeSet::new();
        let parts: Vec<(&str, &str, &str)> =
            keys.iter().zip(texts).map(|(key, (name, text))| (key.as_str(), *name, *text)).collect();
        let parts: Vec<_> = parts.into_iter().filter(|(key, ..)| seen.insert(*key)).collect();
        let made = threads::map(&parts, |&(key, name, text)| match self.read(key) {
            Some(kept) => Ok(kept),
            None => nvrtc.assemble(name, text, arch).and_then(|assembled| self.keep(key, assembled)),
        });
        let made: BTreeMap<&str, Result<Assembled, String>> = parts.iter().map(|(key, ..)| *key).zip(made).collect();
        keys.iter().map(|key| made[key.as_str()].clone()).collect()
    }

    fn about(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }

    fn keep(&self, key: &str, assembled: Assembled) -> Result<Assembled, String> {
        let about = About { format: FORMAT.to_string(), sha256: content(&assembled), kernels: assembled.kernels.clone() };
        let mut json = serde_json::to_vec_pretty(&about).map_err(|e| format!("cannot write what a cubin holds: {e}"))?;
        json.push(b'\n');
        for (path, bytes) in [(self.path(key), &assembled.cubin), (self.about(key), &json)] {
            write(&path, bytes).map_err(|e| format!("cannot write `{}`: {e}", path.display()))?;
        }
        Ok(assembled)
    }
}

/// The hash of a cubin and of what its kernels use.
fn content(assembled: &Assembled) -> String {
    let mut hasher = Sha256::new();
    hasher.update((assembled.cubin.len() as u64).to_le_bytes());
    hasher.update(&assembled.cubin);
    for Resources { entry, registers, shared, stack, spill_stores, spill_loads } in &assembled.kernels {
        hasher.update((entry.len() as u64).to_le_bytes());
        hasher.update(entry);
        for number in [registers, shared, stack, spill_stores, spill_loads] {
            hasher.update(number.to_le_bytes());
        }
    }
    hex(hasher)
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of the regular file at `path`, where it can be read.
fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    let about = fs::metadata(path).ok()?;
    if !about.is_file() || about.len() > LARGE {
        return None;
    }
    let mut bytes = vec![];
    File::open(path).ok()?.take(LARGE).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Writes a file that appears under its name when it is whole.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let temporary = loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{number}.tmp", process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => break (temporary, file),
            // Of a process of the same number that was killed.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    };
    let (temporary, mut file) = temporary;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    drop(file);
    written.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // What cannot be renamed can mostly be removed; the first error counts.
        let _ = fs::remove_file(&temporary);
    })
}
