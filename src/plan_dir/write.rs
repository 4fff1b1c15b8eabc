//! Plan directories written: all files of a compiled job, in place of an older plan's.

use super::{
    EVAL_PLAN, FILES, FORMAT, MANIFEST, MODEL, Manifest, Origin, Places, SPEC, TRAIN_PLAN, WEIGHTS, format_text, graph_file,
    head, manifest_bytes, model_path, most, own_files, plan_hash,
};
use crate::Compiled;
use crate::beside::both;
use crate::error::Error;
use crate::import::import_of_plan;
use crate::replace::write_folder;
use shardc_executor::data::save_safetensors;
use shardc_executor::tensor::Tensor;
use shardc_frontend::onnx::{self, Imported};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::graph::Graph;
use shardc_ir::listing::{NamedSizes, summary};
use shardc_ir::packed::pack;
use shardc_ir::plan_file::{self, hash, hash_file};
use shardc_ir::programs::ProgramKind;
use shardc_ir::spec::Spec;
use shardc_ir::text::{self, Elsewhere};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Writes what was compiled from `model` and `spec` to the directory `to`, in place of the files of
/// an older plan directory. Without `weights` their elements are left out.
///
/// # Errors
/// If `to` holds something else, or cannot be written; what was there before is then still there.
pub fn write(to: &Path, compiled: &Compiled, model: &Path, spec: &Spec, weights: bool) -> Result<Manifest, Error> {
    check_target(to)?;
    let spec_bytes = fs::read(&spec.file).map_err(|e| Error::io(format!("cannot read `{}`", spec.file.display()), &e))?;
    let spec_hash = hash(&spec_bytes);
    let programs = &compiled.plans.main().programs;
    let program = programs.first();
    let elsewhere = Elsewhere::of(compiled.plans.iter().flat_map(|(_, plan)| &plan.programs.programs));
    let of_model = || (hash_file(model), without_weights(to, compiled, model, spec));
    let ((model_hash, stripped), files) = both(&of_model, || plans_and_graphs(compiled, spec, &elsewhere));
    let model_hash = model_hash.map_err(|e| Error::io(format!("cannot read `{}`", model.display()), &e))?;
    let mut files = files?;
    files.insert(MODEL, model_of_plan(compiled, model, stripped?, &elsewhere)?);
    files.insert(SPEC, spec_bytes);
    if let Some((name, bytes)) = files.iter().find(|(name, bytes)| bytes.len() as u64 > most(name)) {
        let message = format!("`{name}` of this plan would have {} bytes, more than {} are read", bytes.len(), most(name));
        return Err(Diagnostic::error(message).at(Place::File(to.to_path_buf())).into());
    }
    let mut manifest = Manifest {
        format: format_text(),
        name: program.name.clone(),
        world_size: program.mesh.world_size(),
        mesh: NamedSizes(program.mesh.rank_axes().iter().map(|a| (a.name.clone(), a.size)).collect()),
        microbatches: program.mesh.microbatches(),
        plan_hash: String::new(),
        model: Origin { file: file_name(model), sha256: model_hash },
        spec: Origin { file: file_name(&spec.file), sha256: spec_hash },
        certificate: compiled.certificate.clone(),
        files: files.iter().map(|(name, bytes)| (name.to_string(), hash(bytes))).collect(),
        copies: compiled.copies.clone(),
        places: Places::of(programs),
        programs: programs.programs.iter().map(summary).collect(),
    };
    manifest.plan_hash = plan_hash(&manifest.files);
    let failed = |e: io::Error| Error::io(format!("cannot write the plan directory `{}`", to.display()), &e);
    let fill = |folder: &Path| {
        files.iter().try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes)).map_err(failed)?;
        if weights {
            let path = folder.join(WEIGHTS);
            let types = compiled.weights.iter().map(|(name, weight)| (name.as_str(), &weight.ty)).collect();
            save_safetensors(&path, &types, |name| compiled.weights[name].load().map(Tensor::from), failed)?;
            // Written by way of a file for the owner alone.
            fs::metadata(folder.join(MODEL)).and_then(|of| fs::set_permissions(&path, of.permissions())).map_err(failed)?;
            manifest.files.insert(WEIGHTS.to_string(), hash_file(&path).map_err(failed)?);
        }
        let json = serde_json::to_vec_pretty(&manifest);
        let json = json.map_err(|e| Error::Machine(format!("cannot write a manifest: {e}")))?;
        fs::write(folder.join(MANIFEST), json).map_err(failed)
    };
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_missing = |path: &&Path| path.file_name().is_some() && !path.exists();
    let made: Vec<&Path> = parent.into_iter().flat_map(Path::ancestors).filter(is_missing).collect();
    let folders = parent.map_or(Ok(()), fs::create_dir_all).map_err(failed);
    let written = folders.and_then(|()| write_folder(to, &FILES, fill, failed));
    if written.is_err() {
        // Folders that cannot be removed take no room; the first error is the one to tell.
        made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
    written.map(|()| manifest)
}

/// The plans and the graphs, by the names of their files.
fn plans_and_graphs(compiled: &Compiled, spec: &Spec, elsewhere: &Elsewhere) -> Result<BTreeMap<&'static str, Vec<u8>>, Error> {
    let mut files = BTreeMap::new();
    let packed = |kind: ProgramKind, graph: &Graph| {
        pack(text::print_beside(graph, elsewhere).as_bytes())
            .map_err(|e| Error::Machine(format!("cannot pack the {kind} graph: {e}")))
    };
    for (kind, plan) in compiled.plans.iter() {
        let file = if kind == ProgramKind::Train { TRAIN_PLAN } else { EVAL_PLAN };
        files.insert(file, plan_file::encode(&plan.programs)?);
        files.insert(graph_file(kind), packed(kind, &plan.graph)?);
    }
    if let Some(graph) = &compiled.reference {
        let kind = ProgramKind::Reference;
        let same = files.get(graph_file(ProgramKind::Train)).filter(|_| spec.is_reference()).cloned();
        files.insert(graph_file(kind), same.map_or_else(|| packed(kind, graph), Ok)?);
    }
    Ok(files)
}

/// The model without the elements of the initializers that stand beside it, and what is imported
/// from that.
fn without_weights(
    to: &Path,
    compiled: &Compiled,
    model: &Path,
    spec: &Spec,
) -> Result<(Vec<u8>, Result<Imported, Diagnostics>), Diagnostics> {
    let states = compiled.plans.main().programs.states();
    let states = states.into_iter().map(|(_, state)| state).filter(|state| state.role.is_of_model());
    let copies = compiled.copies.iter().map(|copy| copy.name.clone());
    let held = states.map(|state| state.initializer().to_string()).chain(copies).collect();
    let stripped = onnx::strip_weights(model, compiled.model.clone(), &held)?;
    let again = import_of_plan(&model_path(to), stripped.clone(), spec, compiled.reference.is_some());
    Ok((stripped, again))
}

/// The model that was `stripped` of weights; with all of them where it is by its elements that one
/// was recognised, so that the graphs can be derived from it again.
fn model_of_plan(
    compiled: &Compiled,
    model: &Path,
    (stripped, again): (Vec<u8>, Result<Imported, Diagnostics>),
    elsewhere: &Elsewhere,
) -> Result<Vec<u8>, Error> {
    // One text at a time: each has all constants that no program has.
    let text_hash = |graph: &Graph| hash(text::print_beside(graph, elsewhere).as_bytes());
    match again.is_ok_and(|again| text_hash(&again.graph) == text_hash(&compiled.imported) && again.copies == compiled.copies) {
        true => Ok(stripped),
        false => Ok(onnx::strip_weights(model, compiled.model.clone(), &BTreeSet::new())?),
    }
}

/// A plan directory may be written where there is nothing, an empty folder, or an older plan
/// directory, whose other files stay.
///
/// # Errors
/// If `to` is something else, or holds a file of its own under a name of the plan's.
pub fn check_target(to: &Path) -> Result<(), Error> {
    let refuse = |path: &Path, what: &str, help: &str| {
        let error = Diagnostic::error(format!("{what}, and will not be overwritten")).at(Place::File(path.to_path_buf()));
        Err(error.help(help).into())
    };
    let other = "choose another name for the plan directory";
    if to.file_name().is_none() {
        return refuse(to, "this names no folder of its own", other);
    }
    let metadata = match fs::symlink_metadata(to) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(format!("cannot write `{}`", to.display()), &error)),
    };
    if metadata.is_symlink() {
        return refuse(to, "this is a symbolic link", "name the folder that it leads to, or another one");
    }
    if !metadata.is_dir() {
        return refuse(to, "this is there and is no folder", other);
    }
    let mut entries = fs::read_dir(to).map_err(|e| Error::io(format!("cannot read `{}`", to.display()), &e))?;
    if entries.next().is_none() {
        return Ok(());
    }
    let head = manifest_bytes(to).and_then(|bytes| head(to, &bytes)).ok();
    let Some(head) = head.filter(|head| head.format.starts_with(FORMAT.0)) else {
        return refuse(to, "this folder is no plan directory", other);
    };
    let is_of_plan = |path: &Path| path.is_file() && (path.ends_with(MANIFEST) || head.files.contains_key(&file_name(path)));
    match own_files(to).iter().find(|path| fs::symlink_metadata(path).is_ok() && !is_of_plan(path)) {
        Some(path) => refuse(path, "this is no file of the plan directory", "move it away, or choose another name for the plan"),
        None => Ok(()),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
