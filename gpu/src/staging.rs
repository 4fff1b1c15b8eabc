//! What pinned memory holds: what the host writes before a step, and what it reads behind it.

use shardc_codegen::table::Range;
use shardc_executor::fault::Fault;
use shardc_executor::memory::Place;
use shardc_executor::tensor::Tensor;
use shardc_ir::plan::set::Name;
use shardc_ir::plan::{BufferId, HostScalar};
use shardc_ir::reason::Reason;
use std::ops::Range as Bytes;

/// Pieces of pinned memory begin at multiples of so many bytes.
const LINE: usize = 64;

/// Ranges of pinned memory.
#[derive(Debug, Default)]
pub struct Staging {
    /// Those of inputs, by position.
    pub inputs: Vec<(u32, Bytes<usize>)>,
    /// Those of numbers.
    pub scalars: Vec<(HostScalar, u64, Bytes<usize>)>,
    /// Those of results, by position.
    pub outputs: Vec<(u32, Bytes<usize>)>,
    /// That of the word for wrong data.
    pub fault: Bytes<usize>,
    /// Bytes of all.
    pub bytes: usize,
}

impl Staging {
    /// Room for the bytes of a range.
    pub fn take(&mut self, range: &Range) -> Bytes<usize> {
        let start = self.bytes;
        let end = start + range.bytes as usize;
        self.bytes = end.next_multiple_of(LINE);
        start..end
    }

    /// Puts what the host writes where the GPU fetches it.
    ///
    /// # Errors
    /// If an input is not of the program's type.
    pub fn write(&self, place: &Place, bytes: &mut [u8], number: u64, batch: &[Tensor]) -> Result<(), Fault> {
        let program = place.program();
        let start = |id: BufferId| program.buffers[id.index()].offset;
        for (input, range) in &self.inputs {
            let (input, at) = (&program.inputs[*input as usize], place.loaded.inputs[*input as usize]);
            let tensor = batch.get(at).ok_or("an input without an array").map_err(Fault::of_data)?;
            place.check_type(input.buffer, tensor).map_err(Fault::of_data)?;
            let staged = &mut bytes[range.clone()];
            for part in place.parts(input.buffer, &tensor.bytes)? {
                let from = start(input.buffer);
                part.write(&mut staged[(part.range.start - from) as usize..(part.range.end - from) as usize]);
            }
        }
        for (id, value) in place.scalars(number) {
            let range = self.scalars.iter().find(|(_, to, _)| *to == start(id)).map(|(.., range)| range.clone());
            let staged = &mut bytes[range.ok_or("a number without a row")?];
            for part in place.parts(id, &value.bytes)? {
                part.write(&mut staged[..(part.range.end - part.range.start) as usize]);
            }
        }
        Ok(())
    }

    /// The results of a step that the GPU has copied out.
    ///
    /// # Errors
    /// If the data were found to be wrong.
    pub fn results(&self, place: &Place, bytes: &[u8], names: &[Name]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        if bytes[self.fault.clone()].iter().any(|byte| *byte != 0) {
            return Err(Fault::of_data("an index in the data is outside of what it indexes"));
        }
        let program = place.program();
        let part = |name: &Name| -> Result<Option<Vec<u8>>, Reason> {
            let Some(id) = place.loaded.names.get(name).copied() else { return Ok(None) };
            if !place.is_first_replica(id)? {
                return Ok(None);
            }
            let staged = self.outputs.iter().find(|(at, _)| program.outputs[*at as usize].buffer == id);
            let (_, range) = staged.ok_or("a result without a row")?;
            let start = range.start as u64;
            let offset = program.buffers[id.index()].offset;
            let slots = place.ranges(id)?.into_iter().map(|slot| {
                let from = (start + slot.start - offset) as usize;
                &bytes[from..from + (slot.end - slot.start) as usize]
            });
            Ok(Some(slots.collect::<Vec<_>>().concat()))
        };
        Ok(names.iter().map(part).collect::<Result<_, _>>()?)
    }
}
