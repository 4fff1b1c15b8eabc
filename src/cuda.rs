//! The kernels of a plan for CUDA: their texts, and what NVRTC makes of them.
//!
//! ```text
//! PLAN/cuda/kernels.json       each kernel: the step that it is for, launches, resources
//! PLAN/cuda/KIND.launches.json what a device is told in a step, for each program of a kind
//! PLAN/cuda/NAME.cu            a text for each kernel, however many steps have it
//! PLAN/cuda/cubin/HASH.cubin   what NVRTC made of it, kept for the next compilation
//! ```
//!
//! All of it follows from the plan; a plan directory is whole without it.

mod launches;
mod listing;
pub mod run;
pub mod tables;

pub use launches::listing as launches;
pub use listing::table;

use crate::error::Error;
use crate::replace::write_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shardc_codegen::program::{Kernels, Used};
use shardc_codegen::{Launch, with_prelude};
use shardc_ir::diagnostic::{Diagnostic, Place, counted};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::ProgramKind;
use shardc_nvrtc::{Assembled, Cubins, Nvrtc, Resources};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder in a plan directory.
pub const FOLDER: &str = "cuda";

/// The architecture where none is asked for: Hopper.
pub const ARCHITECTURE: u32 = 90;

const LIST: &str = "kernels.json";

/// No list of kernels has more bytes.
const MOST_BYTES: u64 = 64 << 20;
const CUBINS: &str = "cubin";

/// What `kernels.json` says.
#[derive(Debug, Serialize, Deserialize)]
pub struct List {
    /// The hash of the plan that they are of.
    pub plan: String,
    /// The architectures that cubins are of; none where NVRTC was not found.
    pub architectures: Vec<u32>,
    /// The kernels, in the order of their first steps.
    pub kernels: Vec<Entry>,
}

/// A kernel.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The name of its text.
    pub name: String,
    /// The first step that has it.
    pub step: String,
    /// How many steps have it.
    pub steps: usize,
    /// Bytes of room for partial results.
    pub workspace: u64,
    /// Its launches, one after another.
    pub launches: Vec<LaunchEntry>,
    /// For each architecture the key of its cubin.
    pub cubins: BTreeMap<u32, String>,
}

/// A launch.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchEntry {
    /// The function.
    pub entry: String,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// The names of the pointers that it takes, with their bytes.
    pub parameters: Vec<(String, u64)>,
    /// For each architecture what the function uses.
    pub resources: BTreeMap<u32, Resources>,
}

/// What was written.
#[derive(Debug)]
pub struct Written {
    /// The list.
    pub list: List,
    /// Why steps have no kernel, with how many they are and what the first one computes.
    pub missing: BTreeMap<String, (usize, String)>,
    /// Why nothing was assembled, where NVRTC was not found.
    pub not_assembled: Option<String>,
}

impl Written {
    /// What is missing, all at once.
    pub fn warnings(&self) -> Vec<Diagnostic> {
        let mut warnings = vec![];
        if !self.missing.is_empty() {
            let line = |(why, (steps, first)): (&String, &(usize, String))| {
                format!("{why}: {}, first `{first}`", counted(*steps as u64, "step"))
            };
            let lines: Vec<String> = self.missing.iter().map(line).collect();
            let steps: u64 = self.missing.values().map(|(steps, _)| *steps as u64).sum();
            let message = format!("{} of the plan cannot run on a GPU yet\n{}", counted(steps, "step"), lines.join("\n"));
            warnings.push(
                Diagnostic::warning(message)
                    .help("the CPU runs them all; their kernels are listed as missing, the others were written"),
            );
        }
        if let Some(why) = &self.not_assembled {
            warnings.push(Diagnostic::warning(format!("the kernels were written, but not assembled: {why}")));
        }
        warnings
    }

    /// `kernels     41 texts for 310 steps, assembled for sm_90: at most 64 registers, no spills`
    pub fn summary(&self) -> String {
        let steps: usize = self.list.kernels.iter().map(|kernel| kernel.steps).sum();
        let texts = counted(self.list.kernels.len() as u64, "kernel");
        let mut line = format!("cuda  {texts} for {}", counted(steps as u64, "step"));
        if !self.list.architectures.is_empty() {
            let names: Vec<String> = self.list.architectures.iter().map(|arch| format!("sm_{arch}")).collect();
            let used =
                || self.list.kernels.iter().flat_map(|kernel| &kernel.launches).flat_map(|launch| launch.resources.values());
            let registers = used().map(|used| used.registers).max().unwrap_or(0);
            let spilled: u32 = used().map(|used| used.spill_stores + used.spill_loads).sum();
            let spills = if spilled == 0 { "no spills".to_string() } else { format!("{spilled} bytes of spills") };
            line.push_str(&format!(", assembled for {}: at most {registers} registers, {spills}", names.join(", ")));
        }
        line.push('\n');
        line
    }
}

/// Writes the kernels of `programs` to the plan directory `plan`, whose hash is `hash`, and
/// assembles them for `architectures` where NVRTC is found.
///
/// # Errors
/// If a file cannot be written, or NVRTC refuses a text or an architecture.
pub fn write<'a>(
    plan: &Path,
    hash: &str,
    programs: impl Iterator<Item = (ProgramKind, &'a PlanSet)>,
    architectures: &[u32],
) -> Result<Written, Error> {
    let mut kernels = Kernels::default();
    let tables: Vec<_> = programs.map(|(kind, set)| (kind, tables::derive(set, &mut kernels))).collect();
    let folder = plan.join(FOLDER);
    let failed = |e: io::Error| Error::io(format!("cannot write `{}`", folder.display()), &e);
    fs::create_dir_all(&folder).map_err(failed)?;
    remove_old(&folder, &kernels).map_err(failed)?;
    for used in &kernels.all {
        write_file(&folder.join(file_name(&used.generated.name)), |put| put(headed(used).as_bytes()), failed)?;
    }
    let mut entries: Vec<Entry> = kernels.all.iter().map(entry).collect();
    let nvrtc = Nvrtc::find();
    if let Ok(nvrtc) = &nvrtc {
        for arch in architectures {
            let assembled = assemble(nvrtc, &folder, &kernels, *arch)?;
            for (entry, (key, assembled)) in entries.iter_mut().zip(assembled) {
                entry.cubins.insert(*arch, key);
                for launch in &mut entry.launches {
                    let found = assembled.kernels.iter().find(|kernel| kernel.entry == launch.entry);
                    launch.resources.extend(found.map(|resources| (*arch, resources.clone())));
                }
            }
        }
    }
    let architectures = if nvrtc.is_ok() { architectures.to_vec() } else { vec![] };
    for (kind, tables) in tables {
        tables::write(plan, hash, kind, kernels.missing.is_empty().then_some(tables))?;
    }
    let list = List { plan: hash.to_string(), architectures, kernels: entries };
    let json = serde_json::to_vec_pretty(&list).map_err(|e| Error::Machine(format!("cannot write a list of kernels: {e}")))?;
    write_file(&folder.join(LIST), |put| put(&json), failed)?;
    Ok(Written { list, missing: kernels.missing, not_assembled: nvrtc.err() })
}

/// The list of kernels in the plan directory `plan`.
pub fn list_path(plan: &Path) -> PathBuf {
    plan.join(FOLDER).join(LIST)
}

/// Reads the list of the plan directory `plan`, whose hash is `hash`.
///
/// # Errors
/// If there is none, it cannot be read, or it is of another plan.
pub fn read(plan: &Path, hash: &str) -> Result<List, Error> {
    let path = list_path(plan);
    let list: List = read_json(&path, "list of CUDA kernels", MOST_BYTES)?;
    if list.plan != hash {
        return Err(wrong(&path, "the list of CUDA kernels is of another plan than the one beside it"));
    }
    Ok(list)
}

/// Reads a file of the folder that has at most so many bytes.
fn read_json<T: DeserializeOwned>(path: &Path, what: &str, most: u64) -> Result<T, Error> {
    if fs::metadata(path).is_ok_and(|file| file.len() > most) {
        return Err(wrong(path, &format!("this is larger than any {what}")));
    }
    let bytes = shardc_ir::files::read(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => wrong(path, &format!("the plan has no {what}")),
        _ => wrong(path, &format!("the {what} cannot be read: {e}")),
    })?;
    serde_json::from_slice(&bytes).map_err(|e| wrong(path, &format!("this is no {what}: {e}")))
}

fn wrong(path: &Path, why: &str) -> Error {
    let help = "`shardc compile … --target cuda` writes it";
    Diagnostic::error(why).at(Place::File(path.to_path_buf())).help(help).into()
}

fn file_name(name: &str) -> String {
    format!("{name}.cu")
}

/// The text with a line on what it is for.
fn headed(used: &Used) -> String {
    let more = if used.steps > 1 { format!(", and {}", counted(used.steps as u64 - 1, "other step")) } else { String::new() };
    format!("// {}{more}\n{}", used.step, used.generated.text)
}

fn entry(used: &Used) -> Entry {
    let launch = |launch: &Launch| LaunchEntry {
        entry: launch.entry.clone(),
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        parameters: launch.parameters.iter().map(|p| (p.name.clone(), p.bytes)).collect(),
        resources: BTreeMap::new(),
    };
    Entry {
        name: used.generated.name.clone(),
        step: used.step.clone(),
        steps: used.steps,
        workspace: used.generated.workspace,
        launches: used.generated.launches.iter().map(launch).collect(),
        cubins: BTreeMap::new(),
    }
}

/// The cubin of each kernel, with its key.
fn assemble(nvrtc: &Nvrtc, folder: &Path, kernels: &Kernels, arch: u32) -> Result<Vec<(String, Assembled)>, Error> {
    let cubins = Cubins::open(&folder.join(CUBINS)).map_err(Error::Machine)?;
    let texts: Vec<String> = kernels.all.iter().map(|used| with_prelude(&used.generated.text)).collect();
    let named: Vec<(&str, &str)> =
        kernels.all.iter().zip(&texts).map(|(used, text)| (used.generated.name.as_str(), text.as_str())).collect();
    let made = cubins.assemble_all(nvrtc, &named, arch).into_iter().zip(&texts);
    made.map(|(assembled, text)| Ok((Cubins::key(nvrtc, text, arch), assembled.map_err(Error::Machine)?))).collect()
}

/// Removes the texts of an older list that are none of these.
fn remove_old(folder: &Path, kernels: &Kernels) -> io::Result<()> {
    let Ok(bytes) = shardc_ir::files::read(&folder.join(LIST)) else { return Ok(()) };
    let Ok(list) = serde_json::from_slice::<List>(&bytes) else { return Ok(()) };
    let is_own = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let stays = |name: &str| kernels.all.iter().any(|used| used.generated.name == name);
    for old in list.kernels.iter().map(|entry| entry.name.as_str()).filter(|name| is_own(name) && !stays(name)) {
        match fs::remove_file(folder.join(file_name(old))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
