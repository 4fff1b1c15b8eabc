//! The memory of a kernel's operands, while its launches run one after another.

use super::right::is_exact;
use shardc_codegen::{Generated, Launch, Memory as Place};
use shardc_cuda_testing::job::{Access, Job, Operand};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::{self, Signature};
use shardc_ir::kernel::{Attention, AttentionGrad, AttentionMask, Conv, ConvResult, Kernel, ScatterAdd};
use shardc_ir::mesh::Mesh;
use shardc_testkit::random::Random;
use shardc_testkit::reference;

/// Numbers that most steps handle apart.
const SPECIAL: [f64; 9] = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, -3e38, 65_519.0, 1e5];

/// What a launch over wrong data ends with.
pub const FAULT: &str = "the data are called wrong";

/// The bytes of every operand.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub reads: Vec<Vec<u8>>,
    pub writes: Vec<Vec<u8>>,
    workspace: Vec<u8>,
    /// Bytes that the reads and the writes lie behind multiples of 16, where they do.
    past: [Vec<u32>; 2],
}

/// A position on a mesh: the first one, the last one in draw 1.
pub fn coordinates(mesh: &Mesh, draw: u64) -> Vec<u64> {
    mesh.axes().iter().map(|axis| if draw == 1 { axis.size - 1 } else { 0 }).collect()
}

/// How many draws of operands a kernel is run over. Sums of what is no number say nothing of their
/// order, so only kernels without sums of these see the third, and convolutions, some of whose sums
/// read none of what is infinite in the third or the fourth.
pub fn draws(kernel: &Kernel) -> u64 {
    match kernel {
        Kernel::Conv(_) => 4,
        Kernel::MaxPoolGrad(_) => 3,
        _ if is_exact(kernel) => 3,
        _ => 2,
    }
}

/// The operand that names rows of a table, and how many rows there are.
pub fn indexed(kernel: &Kernel) -> Option<(usize, u64)> {
    match kernel {
        Kernel::Gather(gather) => Some((1, gather.total_rows)),
        Kernel::ScatterAdd(ScatterAdd { gather, .. }) => Some((0, gather.total_rows)),
        _ => None,
    }
}

/// Elements of a plane of a convolution's first operand, and how many of them stay finite: those
/// before the line that is the first one behind what an output in the middle sees.
fn finite_part(conv: &Conv) -> [u64; 2] {
    let [first, rest @ ..] = &conv.window[..] else { return [1, 1] };
    if conv.result == ConvResult::Input {
        let plane: u64 = conv.window.iter().map(|dim| dim.output).product();
        return [plane, plane / 2];
    }
    let line: u64 = rest.iter().map(|dim| dim.input).product();
    let behind = (first.output / 2 * first.stride + first.kernel * first.dilation) as i64 - first.pad;
    [first.input * line, behind.clamp(1, first.input as i64) as u64 * line]
}

impl Memory {
    /// Operands for a kernel: numbers of both signs in draw 0; in draw 1 positive ones, some of
    /// them tiny; in draw 2 every third one is an end of its type or no number at all. A truth
    /// value by itself is true in draw 1 only. For a convolution draws 2 and 3 are draw 0 with
    /// infinity in the second half of its first operand, or at the end of each plane of that.
    pub fn drawn(kernel: &Kernel, mesh: &Mesh, in_place: &[Option<usize>], draw: u64) -> Memory {
        let mut random = Random(draw + 1);
        let signature = kernel.signature(mesh).unwrap();
        let rows = |read: usize| indexed(kernel).filter(|(at, _)| *at == read).map(|(_, rows)| rows);
        // A gradient with such numbers would make sums of no number; and where the numbers of
        // values have one sign, little is left of differences of their sums.
        let own = |read: usize| match kernel {
            Kernel::MaxPoolGrad(_) if read > 0 => draw.min(1),
            Kernel::AttentionGrad(_) => 0,
            Kernel::Conv(_) => u64::from(draw == 1),
            _ => draw,
        };
        let mut reads: Vec<Vec<u8>> =
            (0..).zip(&signature.reads).map(|(at, o)| values(o, rows(at), own(at), &mut random)).collect();
        if let Kernel::Conv(conv) = kernel
            && draw >= 2
        {
            let infinity = Tensor::from_f64(&[1], &[f64::INFINITY]).cast(conv.dtype).bytes;
            let all = signature.reads[0].elements;
            let [elements, finite] = if draw == 2 { [all, all / 2] } else { finite_part(conv) }.map(|count| count as usize);
            for part in reads[0].chunks_mut((elements * infinity.len()).max(1)) {
                let behind = part.chunks_mut(infinity.len()).skip(finite);
                behind.for_each(|element| element.copy_from_slice(&infinity));
            }
        }
        let reads = if let Kernel::Attention(a) | Kernel::AttentionGrad(AttentionGrad(a)) = kernel {
            consistent(a, &signature, reads)
        } else {
            reads
        };
        let mut writes: Vec<Vec<u8>> =
            signature.writes.iter().map(|o| vec![0xa5; (o.elements * o.dtype.bytes()) as usize]).collect();
        for (read, write) in in_place.iter().enumerate().filter_map(|(r, w)| Some((r, (*w)?))) {
            writes[write].clone_from(&reads[read]);
        }
        Memory { reads, writes, ..Memory::default() }
    }

    /// Puts every operand where accesses of more than one element are not aligned.
    pub fn move_off(&mut self, kernel: &Kernel, mesh: &Mesh) {
        let signature = kernel.signature(mesh).unwrap();
        let past = |operands: &[signature::Operand]| operands.iter().map(|o| o.dtype.bytes() as u32).collect();
        self.past = [past(&signature.reads), past(&signature.writes)];
    }

    /// Makes an index of the operand `read` one row more than there are.
    pub fn spoil_index(&mut self, read: usize, rows: u64) {
        let at = self.reads[read].len() / 16 * 8;
        self.reads[read][at..at + 8].copy_from_slice(&rows.to_le_bytes());
    }

    /// Runs the launches of a kernel by `run`, which gives the operands' bytes behind a job.
    pub fn launch(
        &mut self,
        generated: &Generated,
        coordinates: &[u64],
        mut run: impl FnMut(&Job) -> Result<Vec<Vec<u8>>, String>,
    ) -> Result<(), String> {
        self.workspace = vec![0xa5; generated.workspace as usize];
        for launch in generated.launches.iter().filter(|launch| !launch.grid.contains(&0)) {
            let job = self.job(launch, coordinates);
            for (parameter, bytes) in launch.parameters.iter().zip(run(&job)?) {
                match parameter.memory {
                    Place::Write(at) => self.writes[at] = bytes,
                    Place::Workspace => self.workspace = bytes,
                    Place::Fault if bytes.iter().any(|byte| *byte != 0) => return Err(FAULT.into()),
                    Place::Read(_) | Place::Fault => {}
                }
            }
        }
        Ok(())
    }

    fn job(&self, launch: &Launch, coordinates: &[u64]) -> Job {
        let operand = |parameter: &shardc_codegen::Parameter| Operand {
            name: parameter.name.clone(),
            access: match (parameter.memory, parameter.is_read, parameter.is_written) {
                (Place::Fault, ..) => Access::Fault,
                (_, true, true) => Access::Update,
                (_, false, _) => Access::Write,
                (_, true, false) => Access::Read,
            },
            whole: parameter.whole,
            past: match parameter.memory {
                Place::Read(at) => self.past[0].get(at).copied().unwrap_or(0),
                Place::Write(at) => self.past[1].get(at).copied().unwrap_or(0),
                Place::Workspace | Place::Fault => 0,
            },
            bytes: match parameter.memory {
                Place::Read(at) => self.reads[at][..parameter.bytes as usize].to_vec(),
                Place::Write(at) => self.writes[at].clone(),
                Place::Workspace => self.workspace.clone(),
                Place::Fault => vec![0; 4],
            },
        };
        Job {
            entry: launch.entry.clone(),
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            operands: launch.parameters.iter().map(operand).collect(),
            numbers: launch.numbers.iter().map(|number| number.at(coordinates)).collect(),
        }
    }
}

/// Small queries, so that rounded scores move no weight far; and for the gradient what attention
/// itself gives.
fn consistent(a: &Attention, signature: &Signature, mut reads: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let numbers =
        |at: usize, bytes: &[u8]| Tensor { dtype: signature.reads[at].dtype, shape: vec![], bytes: bytes.to_vec() }.to_f64();
    let bytes =
        |at: usize, values: &[f64]| Tensor::from_f64(&[values.len() as u64], values).cast(signature.reads[at].dtype).bytes;
    let queries: Vec<f64> = numbers(0, &reads[0]).into_iter().map(|value| value / 16.0).collect();
    reads[0] = bytes(0, &queries);
    let inputs = 3 + usize::from(matches!(a.mask, AttentionMask::Operand { .. }));
    if reads.len() > inputs {
        let values: Vec<Vec<f64>> = (0..inputs).map(|at| numbers(at, &reads[at])).collect();
        let before = [inputs, inputs + 1].map(|at| numbers(at, &reads[at])).to_vec();
        let found = reference::run(&Kernel::Attention(a.clone()), &values, before, &[]);
        for (at, values) in (inputs..).zip(found) {
            reads[at] = bytes(at, &values);
        }
    }
    reads
}

fn values(operand: &signature::Operand, rows: Option<u64>, draw: u64, random: &mut Random) -> Vec<u8> {
    let value = |random: &mut Random| match (operand.dtype, rows) {
        (DType::I64, Some(rows)) => random.below(2 * rows as usize) as f64 - rows as f64,
        (DType::I64, None) => random.below(9) as f64 - 4.0 * f64::from(draw != 1),
        (dtype, _) if dtype.is_float() && draw == 2 && random.below(3) == 0 => SPECIAL[random.below(SPECIAL.len())],
        (DType::Bool, _) if operand.elements == 1 => f64::from(draw == 1),
        (DType::Bool, _) => random.below(2) as f64,
        // Numbers beside which a small constant counts.
        (dtype, _) if dtype.is_float() && draw == 1 && random.below(4) == 0 => (random.below(9) as f64 + 1.0) * 1e-12,
        (_, _) => (random.below(4001) as f64 + 1.0) / 1024.0 - if draw == 1 { 0.0 } else { 2.0 },
    };
    let mut values: Vec<f64> = (0..operand.elements).map(|_| value(random)).collect();
    if let Some(rows) = rows.map(|rows| rows as f64) {
        // Both ends of a table, counted from either.
        let mut ends = [0.0, -rows, rows - 1.0, -1.0];
        ends.rotate_left(draw as usize);
        values.iter_mut().zip(ends).for_each(|(value, end)| *value = end);
    }
    Tensor::from_f64(&[operand.elements], &values).cast(operand.dtype).bytes
}
