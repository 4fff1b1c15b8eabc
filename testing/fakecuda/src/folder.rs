//! A folder that stands for an installation of CUDA: links under the names of its libraries.

use std::path::{Path, PathBuf};

/// The names.
pub const LIBRARIES: [&str; 4] = ["libcuda.so", "libnvrtc.so", "libnccl.so", "libcublasLt.so"];

/// An installation that is to be made.
#[derive(Debug, Clone, Default)]
pub struct Installation {
    absent: Vec<String>,
    lacking: Vec<String>,
}

impl Installation {
    /// All libraries.
    pub fn whole() -> Installation {
        Installation::default()
    }

    /// The same without a library.
    pub fn without(mut self, library: &str) -> Installation {
        self.absent.push(library.into());
        self
    }

    /// The same without a function. Libraries are copied then.
    pub fn lacking(mut self, function: &str) -> Installation {
        self.lacking.push(function.into());
        self
    }

    /// Makes it in `folder`, of the library of this crate at `library`.
    ///
    /// # Errors
    /// If the library is not there, lacks a function already, or the folder cannot be written.
    pub fn make(&self, library: &Path, folder: &Path) -> Result<PathBuf, String> {
        let wrong = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        std::fs::create_dir_all(folder).map_err(|e| wrong(folder, e))?;
        let mut target = std::fs::canonicalize(library).map_err(|e| wrong(library, e))?;
        if !self.lacking.is_empty() {
            let mut bytes = std::fs::read(&target).map_err(|e| wrong(&target, e))?;
            for function in &self.lacking {
                hide(&mut bytes, function)?;
            }
            target = folder.join("damaged.so");
            std::fs::write(&target, bytes).map_err(|e| wrong(&target, e))?;
        }
        for name in LIBRARIES {
            let link = folder.join(name);
            match std::fs::remove_file(&link) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(wrong(&link, e)),
                _ => {}
            }
            if !self.absent.iter().any(|absent| absent == name) {
                link_to(&target, &link).map_err(|e| wrong(&link, e))?;
            }
        }
        Ok(folder.to_path_buf())
    }
}

/// Gives a function another name of the same length wherever its name stands alone.
fn hide(bytes: &mut [u8], function: &str) -> Result<(), String> {
    let name: Vec<u8> = [0].into_iter().chain(function.bytes()).chain([0]).collect();
    let places: Vec<usize> = (0..bytes.len().saturating_sub(name.len())).filter(|at| bytes[*at..].starts_with(&name)).collect();
    if places.is_empty() {
        return Err(format!("the library has no function `{function}`"));
    }
    for at in places {
        bytes[at + 1] = b'_';
    }
    Ok(())
}

#[cfg(unix)]
fn link_to(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn link_to(target: &Path, link: &Path) -> std::io::Result<()> {
    std::fs::hard_link(target, link)
}
