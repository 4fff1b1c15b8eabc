//! The kernels of whole programs: each text once, however many steps have it.

use crate::{Cuda, Generated, generate};
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{ALIGNMENT, Program, Step};
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
    texts: HashMap<String, usize>,
    forms: HashMap<(String, bool), usize>,
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
    /// Adds the kernels of a program's steps. Calls of communicators need none.
    pub fn add(&mut self, program: &Program) {
        for step in program.tasks.iter().flat_map(|task| &task.steps) {
            if matches!(step.kernel, Kernel::Collective(_)) {
                continue;
            }
            self.add_step(program, step);
        }
    }

    fn add_step(&mut self, program: &Program, step: &Step) {
        let aligned = step.reads.iter().chain(&step.writes).all(|view| view.offset.is_multiple_of(VECTOR));
        let in_place = program.in_place(step);
        let key = (format!("{:?} {in_place:?}", step.kernel), aligned);
        if let Some(known) = self.forms.get(&key) {
            self.all[*known].steps += 1;
            return;
        }
        let backend = Cuda { mesh: program.mesh.clone(), aligned };
        match generate(&step.kernel, &backend, &in_place) {
            Ok(generated) => {
                let at = *self.texts.entry(generated.text.clone()).or_insert(self.all.len());
                self.forms.insert(key, at);
                if at == self.all.len() {
                    let kernel = step.kernel.clone();
                    self.all.push(Used { kernel, in_place, generated, step: program.text_of(step), steps: 0 });
                }
                self.all[at].steps += 1;
            }
            Err(reason) => {
                let text = || program.text_of(step);
                let (steps, _) = self.missing.entry(reason.to_string()).or_insert_with(|| (0, text()));
                *steps += 1;
            }
        }
    }
}
