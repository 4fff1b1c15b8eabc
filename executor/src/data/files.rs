//! Named arrays of a file or folder, by the ending of its name: first what they are, then the
//! elements of those that are wanted.

use super::array::{Array, Element, Header};
use super::npy;
use super::npz::Npz;
use super::safetensor;
use shardc_ir::diagnostic::{Diagnostic, near_names};
use shardc_ir::files;
use shardc_ir::reason::Reason;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The help that lists the kinds of data files.
const KINDS: &str =
    "data is a `.npz`, a folder of `.npy`, a `.safetensors`, a `.txt` or a `.bin`, or a folder of files of one of these kinds";
/// Names that a message lists.
const LISTED: usize = 8;

/// A place that holds arrays.
#[derive(Debug)]
pub enum Files {
    /// In an archive.
    Npz(Npz),
    /// In a folder, each in a `.npy` of its name.
    Folder(PathBuf),
    /// In a `.safetensors`.
    Safetensors(safetensor::Arrays<Vec<u8>>),
}

impl Files {
    /// Opens `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is nothing that holds arrays.
    pub fn open(path: &Path) -> Result<Files, Diagnostic> {
        let cannot = |e: std::io::Error| Diagnostic::error(format!("cannot read the data: {e}"));
        if path.is_dir() {
            return Ok(Files::Folder(path.to_path_buf()));
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => Npz::open(files::open(path).map_err(cannot)?).map(Files::Npz),
            Some("safetensors") => {
                let bytes = safetensor::read(files::open(path).map_err(cannot)?)?;
                safetensor::Arrays::open(bytes).map(Files::Safetensors)
            }
            Some("npy") => {
                let error = Diagnostic::error("this is a single array, which says nothing about its name");
                Err(error.help("give the folder that it is in; each `NAME.npy` of it is the array `NAME`"))
            }
            _ => Err(Diagnostic::error("the ending of the name says nothing about what the data is").help(KINDS)),
        }
    }

    /// The names of all arrays, in order.
    ///
    /// # Errors
    /// If the folder cannot be read, or there are none.
    pub fn names(&self) -> Result<Vec<String>, Diagnostic> {
        let mut names = match self {
            Files::Npz(archive) => archive.names(),
            Files::Folder(path) => stems(path)?,
            Files::Safetensors(arrays) => arrays.names(),
        };
        names.sort();
        if names.is_empty() {
            let what = if let Files::Folder(_) = self { "the folder has no file of data" } else { "the file holds no arrays" };
            return Err(Diagnostic::error(what).help(KINDS));
        }
        Ok(names)
    }

    /// The type and shape of the array `name`.
    ///
    /// # Errors
    /// The fault of the array, in words that follow the array's name.
    pub fn header(&mut self, name: &str) -> Result<Header, Reason> {
        match self {
            Files::Npz(archive) => archive.header(name),
            Files::Folder(path) => npy_file(path, name).map(|(beginning, _)| beginning.header),
            Files::Safetensors(arrays) => arrays.header(name),
        }
    }

    /// Passes the elements of the array `name` in pieces, in any order, and says what it is.
    ///
    /// # Errors
    /// The fault of the array, in words that follow the array's name.
    pub fn scan(&mut self, name: &str, see: &mut impl FnMut(Element, &[u8])) -> Result<Header, Reason> {
        match self {
            Files::Npz(archive) => archive.scan(name, see),
            Files::Folder(path) => {
                let (beginning, mut file) = npy_file(path, name)?;
                beginning.scan(&mut file, see)
            }
            Files::Safetensors(arrays) => arrays.scan(name, see),
        }
    }

    /// Reads the array `name`.
    ///
    /// # Errors
    /// The fault of the array, in words that follow the array's name.
    pub fn read(&mut self, name: &str) -> Result<Array, Reason> {
        match self {
            Files::Npz(archive) => archive.read(name),
            Files::Folder(path) => {
                let (beginning, mut file) = npy_file(path, name)?;
                beginning.read(&mut file)
            }
            Files::Safetensors(arrays) => arrays.read(name),
        }
    }
}

fn stems(folder: &Path) -> Result<Vec<String>, Diagnostic> {
    let cannot = |e: std::io::Error| Diagnostic::error(format!("cannot read the data: {e}"));
    let mut names = vec![];
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let file = entry.map_err(cannot)?.path();
        if file.extension().is_some_and(|e| e == "npy") {
            names.extend(file.file_stem().and_then(|stem| stem.to_str()).map(str::to_string));
        }
    }
    Ok(names)
}

fn npy_file(folder: &Path, name: &str) -> Result<(npy::Beginning, BufReader<File>), Reason> {
    let file = files::open(&folder.join(format!("{name}.npy"))).map_err(|e| e.to_string())?;
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    let mut file = BufReader::new(file);
    Ok((npy::read_beginning(&mut file, length)?, file))
}

/// The error about a path where nothing is, with what there is beside it.
pub fn nothing_there(path: &Path) -> Diagnostic {
    let error = Diagnostic::error("there is no such file or folder");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = fs::read_dir(folder) else {
        return error.help(format!("there is no folder `{}` either", folder.display()));
    };
    let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    let wanted = path.file_name().unwrap_or_default().to_string_lossy();
    let near = near_names(&wanted, names.iter().map(String::as_str));
    if near.is_empty() { error.help(KINDS) } else { error.help(format!("did you mean {}?", listed(&near))) }
}

/// "`a`, `b`", and how many more.
pub fn listed<N: AsRef<str>>(names: &[N]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{}`", name.as_ref())).collect();
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}
