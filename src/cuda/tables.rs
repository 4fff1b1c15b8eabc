//! The launch tables of a plan: written beside its kernels, read again, and proven.

use super::{Entry, FOLDER, List, entry, file_name, headed, list_path, read, read_json, wrong};
use crate::error::Error;
use crate::plan_dir::PlanDir;
use crate::replace::write_file;
use serde::{Deserialize, Serialize};
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{self, Checked, Table};
use shardc_ir::plan::Program;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::ProgramKind;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// No file of tables has more bytes.
const MOST_BYTES: u64 = 256 << 20;

/// What `KIND.launches.json` says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// The hash of the plan that they are of.
    pub plan: String,
    /// The table of each program.
    pub programs: PlanSet<Table>,
}

/// What was proven of the tables of a kind of program.
#[derive(Debug)]
pub struct Proven {
    /// The kind.
    pub kind: ProgramKind,
    /// Of each program.
    pub checked: Vec<Checked>,
}

/// The file of the tables of `kind` in the plan directory `plan`.
pub fn path(plan: &Path, kind: ProgramKind) -> PathBuf {
    plan.join(FOLDER).join(format!("{kind}.launches.json"))
}

/// The tables of programs, whose kernels `kernels` gets.
pub fn derive(set: &PlanSet, kernels: &mut Kernels) -> PlanSet<Table> {
    let programs = set.programs.iter().map(|program| table::derive(program, kernels)).collect();
    PlanSet { axes: set.axes.clone(), programs, of: set.of.clone() }
}

/// Writes the tables of `kind`, or removes those that are there.
///
/// # Errors
/// If they cannot be written.
pub fn write(plan: &Path, hash: &str, kind: ProgramKind, programs: Option<PlanSet<Table>>) -> Result<(), Error> {
    let path = path(plan, kind);
    let failed = |e: io::Error| Error::io(format!("cannot write `{}`", path.display()), &e);
    let Some(programs) = programs else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
    };
    let tables = Tables { plan: hash.to_string(), programs };
    let json = serde_json::to_vec(&tables).map_err(|e| Error::Machine(format!("cannot write launch tables: {e}")))?;
    write_file(&path, |put| put(&json), failed)
}

/// Reads the tables of `kind`.
///
/// # Errors
/// If there are none, they cannot be read, or they are of another plan.
pub fn open(plan: &Path, hash: &str, kind: ProgramKind) -> Result<Tables, Error> {
    let path = path(plan, kind);
    let tables: Tables = read_json(&path, "launch table", MOST_BYTES)?;
    if tables.plan == hash { Ok(tables) } else { Err(wrong(&path, "this is of another plan than the one beside it")) }
}

impl Tables {
    /// The table of a program of `set`, by position, whose parts it has, and the program.
    ///
    /// # Errors
    /// If the tables are of other programs.
    pub fn of_program<'a>(
        &'a self,
        plan: &Path,
        kind: ProgramKind,
        set: &'a PlanSet,
        at: usize,
    ) -> Result<(&'a Table, &'a Program), Error> {
        let found = self.programs.programs.get(at).zip(set.programs.get(at));
        let fits = |(table, program): &(&Table, &Program)| table::check_shape(table, program).is_ok();
        found.filter(fits).ok_or_else(|| wrong(&path(plan, kind), "its tables are not of the plan's programs"))
    }
}

/// Proves the tables of a plan directory, and that its kernels are those of its programs.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(plan: &PlanDir) -> Result<Vec<Proven>, Error> {
    let list = read(&plan.path, &plan.manifest.plan_hash)?;
    let mut kernels = Kernels::default();
    let mut proven = vec![];
    for (kind, set) in plan.programs.iter() {
        let path = path(&plan.path, kind);
        let Tables { programs, .. } = open(&plan.path, &plan.manifest.plan_hash, kind)?;
        if (&programs.axes, &programs.of, programs.programs.len()) != (&set.axes, &set.of, set.programs.len()) {
            return Err(wrong(&path, "its tables are not of the plan's programs"));
        }
        let check = |(table, program): (&Table, &Program)| {
            table::check(table, program, &mut kernels)
                .map_err(|why| wrong(&path, &format!("this launch table does not carry out the {kind} plan: {why}")))
        };
        let checked = programs.programs.iter().zip(&set.programs).map(check).collect::<Result<_, _>>()?;
        proven.push(Proven { kind, checked });
    }
    check_kernels(&plan.path, &list, &kernels)?;
    Ok(proven)
}

/// The kernels of the list are those of the plan's programs, and no GPU that they were assembled
/// for lacks what they use.
fn check_kernels(plan: &Path, list: &List, kernels: &Kernels) -> Result<(), Error> {
    let path = list_path(plan);
    if list.kernels.len() != kernels.all.len() {
        return Err(wrong(&path, "this does not list the kernels of the plan"));
    }
    for (listed, used) in list.kernels.iter().zip(&kernels.all) {
        let made = entry(used);
        let launches = |entry: &Entry| -> Vec<_> {
            entry.launches.iter().map(|l| (l.entry.clone(), l.grid, l.block, l.shared, l.parameters.clone())).collect()
        };
        if (&listed.name, listed.workspace, launches(listed)) != (&made.name, made.workspace, launches(&made)) {
            return Err(wrong(&path, &format!("`{}` is not the kernel of `{}`", listed.name, used.step)));
        }
        let text = plan.join(FOLDER).join(file_name(&made.name));
        let made = headed(used);
        let has_its_size = fs::metadata(&text).is_ok_and(|file| file.len() == made.len() as u64);
        if !has_its_size || !shardc_ir::files::read(&text).is_ok_and(|bytes| bytes == made.as_bytes()) {
            return Err(wrong(&text, &format!("this is not the kernel of `{}`", used.step)));
        }
        for (launch, arch, resources) in
            listed.launches.iter().flat_map(|l| l.resources.iter().map(move |(arch, resources)| (l, *arch, resources)))
        {
            resources.fit(launch.block, launch.shared, arch).map_err(|why| wrong(&path, &format!("`{}` {why}", launch.entry)))?;
        }
    }
    Ok(())
}
