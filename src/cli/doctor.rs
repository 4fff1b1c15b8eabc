//! `shardc doctor`: what this machine has for plans on GPUs, and links to libraries that the loader
//! does not find by themselves.

use super::failure::Failure;
use super::output::print;
use clap::Args;
use shardc_gpu::cuda::{Found, Libraries};
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::{Diagnostic, Place};
use std::io;
use std::path::{Path, PathBuf};

/// The folder beside the program in which libraries are looked for.
const FOLDER: &str = "gpu-libs";

/// The libraries that may lie somewhere else than where the system looks, as the program asks for
/// them.
const LINKED: [&str; 3] = ["libnvrtc.so", "libcublasLt.so", "libnccl.so"];

/// What the names of the other half of NVRTC begin with.
const BUILTINS: &str = "libnvrtc-builtins.so";

/// The arguments.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Link the libraries that lie in this folder, or in one below it, such as a `site-packages`,
    /// into `gpu-libs` beside the program, where it looks for them
    #[arg(long, value_name = "FOLDER")]
    link: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    /// Prints what is found of each library.
    ///
    /// # Errors
    /// If links are wanted and cannot be made.
    pub fn run(self) -> Result<(), Failure> {
        if let Some(folder) = &self.link {
            for (link, to) in link(folder)? {
                print(&format!("linked `{}` to `{}`\n", link.display(), to.display()))?;
            }
            // A library that was looked for stays what it was found to be in this process.
            return print("run `shardc doctor` again to see what is found\n");
        }
        let found = Libraries::all();
        if self.json { print(&json(&found)?) } else { print(&text(&found)) }
    }
}

fn text(found: &[Found]) -> String {
    let row = |found: &Found| {
        let (state, what) = match &found.version {
            Ok(version) => ("found", version.clone()),
            Err(why) => ("missing", why.clone()),
        };
        [found.library.to_string(), found.purpose.to_string(), state.to_string(), what]
    };
    let rows: Vec<[String; 4]> = found.iter().map(row).collect();
    let table = align(&rows, [Column::WORDS, Column::after("  "), Column::after("  "), Column::after("  ")]);
    let end = match found.iter().filter(|found| found.version.is_err()).count() {
        0 => "plans run on the GPUs of this machine: `shardc train PLAN --device cuda`\n",
        _ => "`--device cuda` needs the driver, and of the others those that the plan uses\n",
    };
    format!("{table}{end}")
}

fn json(found: &[Found]) -> Result<String, Failure> {
    let each = found.iter().map(|found| {
        let (version, missing) = (found.version.as_ref().ok(), found.version.as_ref().err());
        serde_json::json!({ "library": found.library, "purpose": found.purpose, "version": version, "missing": missing })
    });
    let all = serde_json::Value::Array(each.collect());
    serde_json::to_string(&all).map(|json| json + "\n").map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))
}

/// Makes a link for each library of which a file lies below `folder`: the link and the file.
fn link(folder: &Path) -> Result<Vec<(PathBuf, PathBuf)>, Failure> {
    let failed = |what: String| move |e: io::Error| Failure::io(what, &e);
    let program = std::env::current_exe().map_err(failed("cannot tell where the program is".into()))?;
    let links = program.parent().unwrap_or(Path::new(".")).join(FOLDER);
    let mut files = vec![];
    below(folder, 0, &mut files).map_err(failed(format!("cannot read `{}`", folder.display())))?;
    files.sort();
    let mut made = vec![];
    // NVRTC looks for its other half beside itself, under the name with its version.
    let halves = files.iter().filter_map(|file| Some((file, file.file_name()?.to_str()?)));
    let halves = halves.filter(|(_, name)| name.starts_with(BUILTINS)).map(|(file, name)| (file.clone(), name.to_string()));
    let main = LINKED.iter().filter_map(|name| Some((files.iter().find(|file| is_it(file, name))?.clone(), name.to_string())));
    for (file, name) in main.chain(halves) {
        let to = file.canonicalize().map_err(failed(format!("cannot read `{}`", file.display())))?;
        std::fs::create_dir_all(&links).map_err(failed(format!("cannot make `{}`", links.display())))?;
        let link = links.join(&name);
        replace_link(&to, &link).map_err(failed(format!("cannot link `{}`", link.display())))?;
        made.push((link, to));
    }
    if made.is_empty() {
        let error = Diagnostic::error(format!("there is none of {}", LINKED.join(", ")));
        return Err(error.at(Place::File(folder.to_path_buf())).help("name the folder that pip installed them into").into());
    }
    Ok(made)
}

/// Whether a file is the library of that name, with a version or without.
fn is_it(file: &Path, name: &str) -> bool {
    let own = file.file_name().and_then(|own| own.to_str()).unwrap_or_default();
    own == name || own.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
}

/// The files below a folder; no deeper than packages of Python have them.
fn below(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    const DEPTH: usize = 5;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if depth < DEPTH {
                // A folder that cannot be read has nothing for us.
                let _ = below(&path, depth + 1, files);
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(unix)]
fn replace_link(to: &Path, link: &Path) -> io::Result<()> {
    if link.is_symlink() {
        std::fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(to, link)
}

#[cfg(not(unix))]
fn replace_link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::Error::other("links to libraries are made on Unix only"))
}
