//! A GPU for single launches: operands lie side by side in memory of their own, and what a launch
//! should not touch is looked at, too.

use shardc_codegen::with_prelude;
use shardc_cuda_testing::job::{Access, Job};
use shardc_fakecuda::control;
use shardc_gpu::cuda::{Cuda, Libraries, Needed};
use shardc_gpu::device::{Device, Function, Launch, Stream};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_nvrtc::Nvrtc;
use std::ops::Range;

/// Operands begin at multiples of so many bytes, and between two lie as many at least.
const LINE: usize = 256;

/// What lies between operands.
const BETWEEN: u8 = 0x5a;

/// A GPU, or the software one.
pub struct Card {
    pub libraries: Libraries,
    pub gpu: Cuda,
    pub stream: Stream,
}

impl Card {
    /// The first one, with cuBLASLt or without.
    pub fn open(cublaslt: bool) -> Card {
        let libraries = Libraries::find(Needed { cublaslt, nccl: false }).unwrap_or_else(|missing| panic!("{missing}"));
        let gpu = Cuda::open(&libraries, 0).unwrap();
        gpu.enter().unwrap();
        let stream = gpu.stream().unwrap();
        Card { libraries, gpu, stream }
    }

    /// How many GPUs there are.
    pub fn count() -> u64 {
        let found = Libraries::find(Needed { cublaslt: false, nccl: false });
        found.map_or(0, |libraries| u64::from(libraries.gpus()))
    }

    /// The machine code of texts with their names.
    pub fn assembled(&self, texts: &[(String, String)]) -> Vec<Result<Vec<u8>, String>> {
        let nvrtc = Nvrtc::find().unwrap_or_else(|why| panic!("{why}"));
        let whole: Vec<String> = texts.iter().map(|(_, text)| with_prelude(text)).collect();
        let named: Vec<(&str, &str)> = texts.iter().zip(&whole).map(|((name, _), text)| (name.as_str(), text.as_str())).collect();
        let all = nvrtc.assemble_all(&named, self.gpu.description().arch);
        all.into_iter().map(|assembled| Ok(assembled?.cubin)).collect()
    }

    /// Does a launch of a function: the bytes of its operands behind it.
    pub fn run(&self, function: Function, job: &Job) -> Result<Vec<Vec<u8>>, Reason> {
        let mut places: Vec<Range<usize>> = vec![];
        let mut end = LINE;
        for operand in &job.operands {
            let start = end + operand.past as usize;
            places.push(start..start + operand.bytes.len());
            end = (start + operand.bytes.len() + LINE).next_multiple_of(LINE);
        }
        let mut before = vec![BETWEEN; end];
        for (place, operand) in places.iter().zip(&job.operands) {
            before[place.clone()].copy_from_slice(&operand.bytes);
        }
        let memory = self.gpu.allocate(end as u64)?;
        let pointers = places.iter().map(|place| memory + place.start as u64);
        let numbers = job.numbers.iter().map(|number| *number as u64);
        let (grid, block, shared) = (job.grid, job.block, job.shared);
        let launch = Launch { function, grid, block, shared, parameters: pointers.chain(numbers).collect() };
        let mut after = vec![0; end];
        self.gpu.write(memory, &before, self.stream)?;
        self.gpu.launch(&launch, self.stream)?;
        self.gpu.synchronize(self.stream)?;
        self.gpu.read(memory, &mut after, self.stream)?;
        self.gpu.free(memory)?;
        let is_written = |at: usize| {
            let of = places.iter().zip(&job.operands).find(|(place, _)| place.contains(&at));
            of.is_some_and(|(_, operand)| operand.access != Access::Read)
        };
        let changed = |at: &usize| before[*at] != after[*at];
        if let Some(at) = (0..end).filter(changed).find(|at| !is_written(*at)) {
            return Err(reason!("{} writes byte {at} of {places:?}, which no result has", job.entry));
        }
        match control::reports().as_str() {
            "" => Ok(places.into_iter().map(|place| after[place].to_vec()).collect()),
            reports => Err(reports.into()),
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // A stream of a GPU that has failed ends with the process.
        let _ = self.gpu.destroy_stream(self.stream);
    }
}
