//! The kernels of the models' plans, small enough to be executed thread by thread, with operands
//! and what is right for them.
#![allow(dead_code, reason = "each test crate uses some of what is here")]

pub mod attention;
pub mod convolutions;
pub mod memory;
pub mod products;
pub mod reduced;
pub mod right;
mod tables;

use crate::{job, support};
use shardc::{Options, compile};
use shardc_codegen::program::Kernels;
use shardc_codegen::{Cuda, Generated, generate};
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::Program;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Models, with the mesh that their kernels are of.
pub const MODELS: [(&str, &str); 10] = [
    ("mlp", "dp=2"),
    ("resnet", "dp=2"),
    ("gpt2", "tp=2"),
    ("gpt2-folded", "dp=1"),
    ("llama", "dp=1"),
    ("bert", "dp=2"),
    ("vit", "dp=1"),
    ("inception", "dp=1"),
    ("char-gpt", "dp=1"),
    ("gpt2-124m", "dp=1"),
];

/// What is computed in, by a line of the spec.
pub const TYPES: [(&str, &str); 3] =
    [("f32", ""), ("bf16", "precision compute=bf16 gradients=bf16\n"), ("f16", "precision compute=f16\n")];

/// Elements that a kernel may touch as it is; larger ones are made smaller.
pub const ELEMENTS: u64 = 60_000;

/// Bytes for the weights of any of the models, which take no room on a disk while they are zero.
const WEIGHTS: u64 = 1 << 29;

/// A kernel at the size at which it is run.
#[derive(Clone)]
pub struct Case {
    pub of: String,
    pub kernel: Kernel,
    pub mesh: Mesh,
    pub in_place: Vec<Option<usize>>,
    /// Whether every operand begins at a multiple of 16 bytes.
    pub aligned: bool,
    pub generated: Generated,
}

/// An empty folder of the caller's own: tests run side by side, over the same models.
pub fn own_folder(name: &str) -> PathBuf {
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    support::folder(&format!("{name}-{}", FOLDERS.fetch_add(1, Relaxed)))
}

/// The programs of a model's plans.
pub fn programs(model: &str, mesh: &str, line: &str) -> Vec<Program> {
    let here = own_folder(&format!("kernels-{model}"));
    std::fs::write(here.join("job.shard"), job::spec(model, mesh, 1, line)).unwrap();
    let spec = shardc_frontend::spec::load(&here.join("job.shard")).unwrap_or_else(|e| panic!("{e:?}"));
    let options = Options { train: true, weights: true, verify: false, certify: false };
    let path = support::home().join("tests/models").join(model).join("model.onnx");
    std::fs::copy(&path, here.join("model.onnx")).unwrap();
    // Some models are graphs alone; kernels do not depend on their weights.
    std::fs::File::create(here.join("weights.data")).unwrap().set_len(WEIGHTS).unwrap();
    let compiled = compile(&here.join("model.onnx"), &spec, &options).unwrap_or_else(|e| panic!("{model}: {e:?}"));
    let plans = compiled.plans.iter().map(|(_, plan)| plan.programs.programs.clone());
    plans.flatten().collect()
}

/// The kernels of a model's plans.
pub fn kernels(model: &str, mesh: &str, line: &str) -> (Kernels, Mesh) {
    let mut kernels = Kernels::default();
    let mut found = None;
    for program in programs(model, mesh, line) {
        kernels.add(&program);
        found = Some(program.mesh);
    }
    assert!(kernels.missing.is_empty(), "{model}: {:?}", kernels.missing);
    (kernels, found.unwrap())
}

/// Every kernel once: of the jobs, models in types, that `is_tried` names, and some of our own.
/// Those with operands that are not aligned come last.
pub fn cases(is_tried: impl Fn(&str, &str) -> bool) -> [Vec<Case>; 2] {
    let mut cases = BTreeMap::new();
    for (model, mesh) in MODELS {
        for (dtype, line) in TYPES {
            if !is_tried(model, dtype) {
                continue;
            }
            let (kernels, mesh) = kernels(model, mesh, line);
            for used in kernels.all {
                let sizes = reduced::sizes(&used.kernel, ELEMENTS);
                assert!(!sizes.is_empty(), "{model} in {dtype}: {} cannot be made small", used.step);
                for (kernel, aligned) in sizes.into_iter().flat_map(|kernel| [(kernel.clone(), true), (kernel, false)]) {
                    let case = case(&format!("{model} in {dtype}: {}", used.step), kernel, &used.in_place, &mesh, aligned);
                    cases.entry(case.generated.name.clone()).or_insert(case);
                }
            }
        }
    }
    let own = attention::cases().into_iter().chain(convolutions::cases()).chain(tables::cases());
    cases.extend(own.map(|case| (case.generated.name.clone(), case)));
    let (aligned, others) = cases.into_values().partition(|case: &Case| case.aligned);
    [aligned, others]
}

/// The case of a kernel; `in_place` says which reads may be the same memory as a write.
pub fn case(of: &str, kernel: Kernel, in_place: &[Option<usize>], mesh: &Mesh, aligned: bool) -> Case {
    let backend = Cuda { mesh: mesh.clone(), aligned };
    // A smaller kernel may not step through its operands alike any more.
    let is_alike = |(read, write): (usize, &Option<usize>)| write.filter(|write| kernel.in_place(read, *write));
    let in_place: Vec<Option<usize>> = in_place.iter().enumerate().map(is_alike).collect();
    let generated = generate(&kernel, &backend, &in_place).unwrap_or_else(|e| panic!("{of}: {e}"));
    Case { of: of.to_owned(), kernel, mesh: mesh.clone(), in_place, aligned, generated }
}

impl Case {
    /// The same at odd sizes.
    pub fn odd(&self) -> Case {
        case(&self.of, reduced::odd(&self.kernel), &self.in_place, &self.mesh, self.aligned)
    }
}
