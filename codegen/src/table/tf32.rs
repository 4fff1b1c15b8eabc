//! The products of a program whose operands are numbers of TF32 already, as far as its steps show
//! it: each is written by steps that round to TF32, or that copy what such steps have written. The
//! library then rounds nothing (a float of 11 bits of mantissa stays what it is), and what it
//! multiplies is what the plan says. A product with an operand that the plan keeps in f32, as a
//! constant is, stays one of f32.

use shardc_ir::dtype::DType;
use shardc_ir::kernel::{CollectiveKind, Kernel, Map, MemberKernel};
use shardc_ir::plan::{BufferKind, Program, Step};
use shardc_ir::scalar::{Instr, Rounding};

/// For each buffer of a program, whether all that is ever in it are numbers of TF32.
pub struct Rounded(Vec<bool>);

impl Rounded {
    /// The buffers of a program. What the host or another rank writes is not known.
    pub fn of(program: &Program) -> Rounded {
        let mut rounded = Rounded(vec![false; program.buffers.len()]);
        loop {
            let next = rounded.next(program);
            if next == rounded.0 {
                return rounded;
            }
            rounded = Rounded(next);
        }
    }

    /// Whether a step reads nothing but numbers of TF32.
    pub fn reads(&self, step: &Step) -> bool {
        step.reads.iter().all(|view| self.0[view.buffer.index()])
    }

    /// The buffers whose writers copy from these only, or round.
    fn next(&self, program: &Program) -> Vec<bool> {
        let mut writers = vec![0; program.buffers.len()];
        let mut known: Vec<bool> = program.buffers.iter().map(|buffer| buffer.kind == BufferKind::Activation).collect();
        for step in program.tasks.iter().flat_map(|task| &task.steps) {
            for (write, view) in step.writes.iter().enumerate() {
                writers[view.buffer.index()] += 1;
                known[view.buffer.index()] &= self.writes(step, write);
            }
        }
        for message in program.messages.iter().filter(|message| !message.sends) {
            known[message.view.buffer.index()] = false;
        }
        known.iter().zip(writers).map(|(known, writers)| *known && writers > 0).collect()
    }

    /// Whether a step writes numbers of TF32 to that operand.
    fn writes(&self, step: &Step, write: usize) -> bool {
        match &step.kernel {
            Kernel::Map(map) => rounds(map, write),
            Kernel::Bundle(bundle) => {
                let results = bundle.members.iter().flat_map(|member| match &member.kernel {
                    MemberKernel::Map(map) => (0..map.outputs.len()).map(|own| rounds(map, own)).collect(),
                    MemberKernel::Reduce(_) => vec![false],
                });
                { results }.nth(write) == Some(true)
            }
            Kernel::Move(_) => self.reads(step),
            Kernel::Collective(call) => {
                matches!(call.kind, CollectiveKind::AllGather | CollectiveKind::AllToAll) && self.reads(step)
            }
            _ => false,
        }
    }
}

/// Whether the last that a map does to a result is to round it.
fn rounds(map: &Map, result: usize) -> bool {
    let is_f32 = map.compute == DType::F32 && map.outputs.get(result) == Some(&DType::F32);
    let register = map.program.outputs.get(result).and_then(|register| register.checked_sub(map.program.inputs));
    let last = register.and_then(|at| map.program.code.get(usize::from(at)));
    is_f32 && matches!(last, Some(Instr::Round(Rounding::Tf32, _)))
}
