//! Bundle: a block or a warp a row for members that read one another's results, many tensors by one
//! launch for members of one program side by side; else the members one after another.

use crate::generated::{Generated, Launch, Memory, Parameter};
use crate::text::hashed;
use crate::{Cuda, multi_tensor, rows};
use shardc_ir::kernel::{Bundle, Form, Implements, Member, Source};
use shardc_ir::reason::Reason;

impl Implements<Bundle> for Cuda {
    fn ready(&self, bundle: &Bundle, in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        bundle.signature(&self.mesh)?;
        for text in [multi_tensor::text, rows::text] {
            if let Some(generated) = text(self, bundle, in_place)? {
                return Ok(generated);
            }
        }
        self.one_by_one(bundle, in_place)
    }
}

impl Cuda {
    /// The launches of all members, one after another.
    fn one_by_one(&self, bundle: &Bundle, in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let mut all = Generated { name: String::new(), text: String::new(), launches: vec![], workspace: 0 };
        for (member, first) in bundle.members.iter().zip(bundle.results()) {
            let count = member.kernel.map().outputs.len();
            let own = |source: &Source| place(*source, in_place)?.checked_sub(first).filter(|result| *result < count);
            let generated = member.kernel.alone().ready(self, &member.reads.iter().map(own).collect::<Vec<_>>())?;
            if !all.text.contains(&generated.text) {
                all.text.push_str(&generated.text);
            }
            let launch = |launch: Launch| Launch {
                parameters: launch.parameters.iter().map(|parameter| of_bundle(parameter, member, first, in_place)).collect(),
                ..launch
            };
            all.launches.extend(generated.launches.into_iter().map(launch));
            all.workspace = all.workspace.max(generated.workspace);
        }
        all.name = hashed(bundle.name(), &all.text);
        Ok(all)
    }
}

/// The result of the bundle that an operand is the same memory as.
pub fn place(source: Source, in_place: &[Option<usize>]) -> Option<usize> {
    match source {
        Source::Read(read) => in_place.get(read as usize).copied().flatten(),
        Source::Write(write) => Some(write as usize),
    }
}

/// A parameter of a member as one of the bundle.
fn of_bundle(parameter: &Parameter, member: &Member, first: usize, in_place: &[Option<usize>]) -> Parameter {
    let memory = match parameter.memory {
        Memory::Read(at) => match (member.reads[at], place(member.reads[at], in_place)) {
            (_, Some(write)) => Memory::Write(write),
            (Source::Read(read) | Source::Write(read), None) => Memory::Read(read as usize),
        },
        Memory::Write(at) => Memory::Write(first + at),
        other => other,
    };
    Parameter { memory, ..parameter.clone() }
}
