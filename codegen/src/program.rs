//! The kernels of whole programs: each text once, however many steps have it.

use crate::matmul::Matmul;
use crate::{Cuda, Generated, Launch, generate};
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{ALIGNMENT, Program, Step};
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, HashMap};

/// Bytes at a multiple of which vectors of elements begin.
const VECTOR: u64 = 16;
const _: () = assert!(ALIGNMENT.is_multiple_of(VECTOR));

/// The kernels of some programs.
#[derive(Debug, Default)]
pub struct Kernels {
    /// The kernels, in the order of their first steps.
    pub all: Vec<Used>,
    /// Why steps have none, with how many of them there are and what the first one computes.
    pub missing: BTreeMap<String, (usize, String)>,
    /// Whether products of matrices are kernels of ours in tables, also where cuBLASLt takes them.
    is_plain: bool,
    texts: HashMap<String, usize>,
    /// For each form the text, and its own launches: positions of ranks are no part of a text.
    forms: BTreeMap<(String, bool), (usize, Vec<Launch>)>,
}

/// A text with the kernel that it was made of.
#[derive(Debug)]
pub struct Used {
    /// The form.
    pub kernel: Kernel,
    /// Which reads are the same memory as a write.
    pub in_place: Vec<Option<usize>>,
    /// What it became.
    pub generated: Generated,
    /// What the first step with it computes, for people.
    pub step: String,
    /// How many steps have it.
    pub steps: usize,
}

impl Kernels {
    /// None yet; for tables without cuBLASLt.
    pub fn plain() -> Kernels {
        Kernels { is_plain: true, ..Kernels::default() }
    }

    /// The product of a step, where cuBLASLt computes it.
    pub fn product(&self, step: &Step) -> Option<Matmul> {
        match &step.kernel {
            Kernel::Contract(contract) if !self.is_plain => Matmul::of(contract).ok(),
            _ => None,
        }
    }

    /// Adds the kernels of a program's steps. Calls of communicators need none.
    pub fn add(&mut self, program: &Program) {
        for step in program.tasks.iter().flat_map(|task| &task.steps) {
            if !matches!(step.kernel, Kernel::Collective(_)) {
                self.add_step(program, step);
            }
        }
    }

    /// Adds the kernel of a step and gives it with the step's own launches, or notes why there is
    /// none.
    pub fn add_step(&mut self, program: &Program, step: &Step) -> Option<(&Used, &[Launch])> {
        let key = key(program, step);
        if let Err(reason) = self.know(&key, program, step) {
            let text = || program.text_of(step);
            let (steps, _) = self.missing.entry(reason.to_string()).or_insert_with(|| (0, text()));
            *steps += 1;
            return None;
        }
        let (at, launches) = &self.forms[&key];
        self.all[*at].steps += 1;
        Some((&self.all[*at], launches))
    }

    /// The launches of all steps, once for each form.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.forms.values().flat_map(|(_, launches)| launches)
    }

    /// Makes the kernel of a form that is not known.
    fn know(&mut self, key: &(String, bool), program: &Program, step: &Step) -> Result<(), Reason> {
        if self.forms.contains_key(key) {
            return Ok(());
        }
        let in_place = program.in_place(step);
        let backend = Cuda { mesh: program.mesh.clone(), aligned: key.1 };
        let generated = generate(&step.kernel, &backend, &in_place)?;
        let at = *self.texts.entry(generated.text.clone()).or_insert(self.all.len());
        self.forms.insert(key.clone(), (at, generated.launches.clone()));
        if at == self.all.len() {
            let kernel = step.kernel.clone();
            self.all.push(Used { kernel, in_place, generated, step: program.text_of(step), steps: 0 });
        }
        Ok(())
    }
}

/// What a step's kernel is made of: its form, what is in place, and whether all operands begin at
/// multiples of 16 bytes.
fn key(program: &Program, step: &Step) -> (String, bool) {
    let aligned = step.reads.iter().chain(&step.writes).all(|view| view.offset.is_multiple_of(VECTOR));
    (format!("{:?} {:?}", step.kernel, program.in_place(step)), aligned)
}
