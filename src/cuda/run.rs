//! Programs on the GPUs of this machine: their kernels assembled, or taken from the plan directory,
//! and what was chosen for products of matrices kept there.

use super::{CUBINS, FOLDER, List, list_path, read_json};
use crate::error::Error;
use crate::replace::write_file;
use shardc_codegen::program::Kernels;
use shardc_codegen::with_prelude;
use shardc_executor::load::LoadedSet;
use shardc_executor::run::Executor;
use shardc_executor::world::World;
use shardc_gpu::choices::Choices;
use shardc_gpu::start::{self, LocalGpu, Options, OwnGpu};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_launch::control::Control;
use shardc_nvrtc::{Cubins, Nvrtc};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was chosen for products, in the folder of a plan directory.
const PRODUCTS: &str = "products.json";

/// No file of choices has more bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Which ranks of programs are in this process.
pub enum Ranks {
    /// All, each on the GPU of its number.
    All,
    /// One, with its number among those of this machine.
    One(Arc<Control>, u64),
}

/// How steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// Whether they are captured as graphs.
    pub graphs: bool,
    /// Whether the algorithms of products are timed, and chosen anew.
    pub tune: bool,
}

impl Default for How {
    fn default() -> How {
        How { graphs: true, tune: false }
    }
}

/// Starts programs. `plan` is their plan directory, where they have one.
///
/// # Errors
/// All that is missing on this machine; what the libraries say.
pub fn start(programs: &PlanSet, ranks: Ranks, world: World, plan: Option<&Path>, how: How) -> Result<Executor, Error> {
    let How { graphs, tune } = how;
    let is_first = !matches!(&ranks, Ranks::One(control, _) if control.rank() > 0);
    let loaded = LoadedSet::new(programs.clone()).map_err(|why| Error::Machine(why.into()))?;
    let mut choices = plan.filter(|_| !tune).map(kept_choices).unwrap_or_default();
    let before = choices.clone();
    let assemble = |kernels: &Kernels, arch| assemble(plan, kernels, arch);
    let options = Options { graphs, tune, assemble: &assemble, choices: &mut choices };
    let executor = match ranks {
        Ranks::All => start::start(loaded, world, &OwnGpu, options)?,
        Ranks::One(control, local) => start::start_among(control, loaded, world, &LocalGpu(local), options)?,
    };
    if let Some(plan) = plan.filter(|plan| is_first && choices != before && plan.join(FOLDER).is_dir()) {
        keep_choices(plan, &choices)?;
    }
    Ok(executor)
}

fn choices_path(plan: &Path) -> PathBuf {
    plan.join(FOLDER).join(PRODUCTS)
}

/// What the plan directory has; nothing where that cannot be read, as it is chosen anew then.
fn kept_choices(plan: &Path) -> Choices {
    read_json(&choices_path(plan), "list of algorithms", MOST_BYTES).unwrap_or_default()
}

fn keep_choices(plan: &Path, choices: &Choices) -> Result<(), Error> {
    let path = choices_path(plan);
    let json = serde_json::to_vec(choices).map_err(|e| Error::Machine(format!("cannot write a list of algorithms: {e}")))?;
    write_file(&path, |put| put(&json), |e| Error::io(format!("cannot write `{}`", path.display()), &e))
}

/// The machine code of kernels, in their order: what NVRTC makes of their texts, or without NVRTC
/// what the plan directory has.
fn assemble(plan: Option<&Path>, kernels: &Kernels, arch: u32) -> Result<Vec<Vec<u8>>, Reason> {
    let folder = plan.map(|plan| plan.join(FOLDER)).filter(|folder| folder.is_dir());
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) => nvrtc,
        Err(why) => return kept(plan, kernels, arch).map_err(|kept| reason!("{why}\n{kept}")),
    };
    let texts: Vec<String> = kernels.all.iter().map(|used| with_prelude(&used.generated.text)).collect();
    let named: Vec<(&str, &str)> =
        kernels.all.iter().zip(&texts).map(|(used, text)| (used.generated.name.as_str(), text.as_str())).collect();
    let cubins = folder.and_then(|folder| Cubins::open(&folder.join(CUBINS)).ok());
    let made = match cubins {
        Some(cubins) => cubins.assemble_all(&nvrtc, &named, arch),
        None => nvrtc.assemble_all(&named, arch),
    };
    made.into_iter().map(|assembled| Ok(assembled?.cubin)).collect()
}

/// The machine code that was assembled when the plan was compiled.
fn kept(plan: Option<&Path>, kernels: &Kernels, arch: u32) -> Result<Vec<Vec<u8>>, Reason> {
    let help =
        reason!("without NVRTC a plan must have its kernels: `shardc compile … --target cuda --arch sm_{arch}` where NVRTC is");
    let plan = plan.ok_or_else(|| help.clone())?;
    let list: List = read_json(&list_path(plan), "list of CUDA kernels", super::MOST_BYTES).map_err(|_| help.clone())?;
    let cubins = Cubins::open(&plan.join(FOLDER).join(CUBINS))?;
    let of = |used: &shardc_codegen::program::Used| {
        let entry = list.kernels.iter().find(|entry| entry.name == used.generated.name)?;
        let text = fs::read_to_string(plan.join(FOLDER).join(super::file_name(&entry.name))).ok()?;
        // The first line is of the steps of all programs of the plan.
        let same = text.split_once('\n').is_some_and(|(_, text)| text == used.generated.text);
        Some(cubins.read(entry.cubins.get(&arch).filter(|_| same)?)?.cubin)
    };
    kernels.all.iter().map(|used| of(used).ok_or_else(|| help.clone())).collect()
}
