//! The files that a command reads and writes: no output takes the place of an input or of another
//! output, under whatever name.

use super::failure::Failure;
use crate::checkpoint::read::Checkpoint;
use crate::plan_dir::{self, Origin};
use crate::replace::is_stream;
use shardc_frontend::onnx;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::plan_file::hash_file;
use std::fs;
use std::path::{Path, PathBuf};

/// Links that are followed to a file that is not there yet.
const MAX_LINKS: usize = 40;

/// The files of a command.
#[derive(Default)]
pub struct Files {
    read: Vec<Named>,
    written: Vec<Named>,
    /// What plans that are read were compiled from, wherever it is.
    origins: Vec<Origin>,
}

/// A path, and what it is to the user: `the model`, `--export`.
struct Named {
    role: String,
    path: PathBuf,
}

/// The identity of a file: the same for two names of it.
#[derive(PartialEq)]
enum Identity {
    /// The device, and the number of the file on it.
    #[cfg(unix)]
    Inode(u64, u64),
    Path(PathBuf),
}

impl Files {
    /// Adds a file that is read.
    pub fn reads(mut self, role: &str, path: &Path) -> Files {
        self.read.push(Named { role: role.to_string(), path: path.to_path_buf() });
        self
    }

    /// Adds the files of a plan directory.
    pub fn reads_plan(mut self, path: &Path) -> Files {
        self.origins.extend(plan_dir::origins(path));
        plan_dir::own_files(path).iter().fold(self, |files, file| files.reads("a file of the plan", file))
    }

    /// Adds a checkpoint: its folder, and the files in it.
    pub fn reads_checkpoint(self, checkpoint: &Checkpoint) -> Files {
        let files = checkpoint.files();
        let folder = self.reads("the checkpoint", &checkpoint.path);
        files.iter().fold(folder, |files, file| files.reads("a file of the checkpoint", file))
    }

    /// Adds files of data, and those of its folders.
    pub fn reads_data(mut self, paths: &[PathBuf]) -> Files {
        for path in paths {
            self = self.reads("the data", path);
            let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
            for file in entries {
                self = match file.extension().and_then(|e| e.to_str()) {
                    Some("npy") => self.reads("an array of the data", &file),
                    Some("npz" | "safetensors" | "txt" | "bin") => self.reads("a file of the data", &file),
                    _ => self,
                };
            }
        }
        self
    }

    /// Adds a model, and the files that keep its weights.
    pub fn reads_model(self, path: &Path) -> Files {
        let weights = onnx::external_files(path);
        weights.iter().fold(self.reads("the model", path), |files, weights| files.reads("the weights of the model", weights))
    }

    /// Adds a file that is written, if the option names one.
    pub fn writes(mut self, option: &str, path: Option<&Path>) -> Files {
        self.written.extend(path.map(|path| Named { role: option.to_string(), path: path.to_path_buf() }));
        self
    }

    /// Refuses an output that would overwrite an input, or another output.
    ///
    /// # Errors
    /// The first of them.
    pub fn check(&self) -> Result<(), Failure> {
        let files = || self.written.iter().enumerate().filter(|(_, output)| !is_stream(&output.path));
        for (i, output) in files() {
            if let Some(input) = self.read.iter().find(|input| is_same(&output.path, &input.path)) {
                let message = format!("`{}` would overwrite {}, `{}`", output.role, input.role, input.path.display());
                return Err(refusal(message, &output.path));
            }
            if let Some(origin) = self.origins.iter().find(|origin| is_origin(&output.path, origin)) {
                let message = format!("`{}` would overwrite `{}`, which the plan was compiled from", output.role, origin.file);
                return Err(refusal(message, &output.path));
            }
            let same = |(_, other): &(usize, &Named)| is_same(&output.path, &other.path);
            if let Some((_, other)) = files().take_while(|(j, _)| *j < i).find(same) {
                let message = format!("`{}` would overwrite what `{}` writes", output.role, other.role);
                return Err(refusal(message, &output.path));
            }
        }
        Ok(())
    }
}

fn refusal(message: String, output: &Path) -> Failure {
    Diagnostic::error(message).at(Place::File(output.to_path_buf())).help("choose another name for it").into()
}

fn is_same(a: &Path, b: &Path) -> bool {
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

/// Whether a file has what a plan was compiled from. Only files of its kind are read for that.
fn is_origin(path: &Path, origin: &Origin) -> bool {
    let is_of_kind = path.is_file() && path.extension() == Path::new(&origin.file).extension();
    is_of_kind && hash_file(path).is_ok_and(|hash| hash == origin.sha256)
}

/// `None` where there can be no such file.
fn identity(path: &Path) -> Option<Identity> {
    #[cfg(unix)]
    if let Ok(there) = fs::metadata(path) {
        use std::os::unix::fs::MetadataExt;
        return Some(Identity::Inode(there.dev(), there.ino()));
    }
    place(path).map(Identity::Path)
}

/// The path without links, of a file that may not be there yet.
fn place(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}
