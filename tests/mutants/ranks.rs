//! An interpreter of all ranks in lockstep: the meaning of plans in plain loops, written apart from
//! executor and verifier.
//!
//! Each rank has a memory of bytes, poisoned before the step: not a number, an index far outside, a
//! byte that is no truth value. Ranks run their steps until a collective or a row of messages; a
//! collective happens when every member of the group waits at the same call ([`calls`]). Messages
//! are in [`post`].

mod calls;
mod post;

use calls::exchange;
use post::Post;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::Operand;
use shardc_ir::kernel::{Bundle, Collective, Gather, Kernel, Map, MemberKernel, ScatterAdd, Source};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{Buffer, BufferKind, HostScalar, Program, Row, Step, View, When};
use shardc_ir::types::{Tensor, Type};
use shardc_testkit::reference;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The least significant bytes of what poisons every type.
const POISON: [u8; 2] = [0xf7, 0x7f];
/// The most that a mutant may take.
const LARGEST: u64 = 1 << 22;
/// The number of the step that is run, from 0.
pub const STEP: u64 = 4;

/// Whole arrays by name, before or after a step.
pub type Arrays = BTreeMap<String, Vec<f64>>;

/// The arrays that every run begins with.
pub struct Start {
    /// State variables.
    pub states: Arrays,
    /// Inputs and labels.
    pub inputs: Arrays,
}

/// One rank after its step.
pub struct Rank<'p> {
    /// The program that it runs.
    pub program: &'p Program,
    coordinates: Vec<u64>,
    memory: Vec<u8>,
    turns: Vec<Turn>,
    next: usize,
}

/// A launch: its task, its step in the task, the micro-batch.
pub type Launch = (usize, usize, u64);

/// What a rank does next.
#[derive(Clone, Copy)]
pub enum Turn {
    /// A step runs.
    Launch(Launch),
    /// The messages of a row begin.
    Exchange(usize),
}

/// Runs one step of all ranks, rank `r` running `programs[r]`; what goes wrong, in words.
pub fn run<'p>(programs: &[&'p Program], start: &Start) -> Result<Vec<Rank<'p>>, String> {
    run_in_order(programs, start, turns)
}

/// As [`run`], each rank in the order that `order` gives for its program.
pub fn run_in_order<'p>(
    programs: &[&'p Program],
    start: &Start,
    order: impl Fn(&Program) -> Vec<Turn>,
) -> Result<Vec<Rank<'p>>, String> {
    let ranks = programs.iter().zip(0..).map(|(program, number)| Rank::new(program, number, start, order(program)));
    let mut ranks: Vec<Rank<'_>> = ranks.collect::<Result<_, _>>()?;
    let mut post = Post::new(ranks.len());
    loop {
        for rank in &mut ranks {
            rank.compute()?;
        }
        let waiting: Vec<Option<(Vec<usize>, Collective)>> = ranks.iter().map(Rank::waits).collect::<Result<_, _>>()?;
        if ranks.iter().all(|rank| rank.next == rank.turns.len()) {
            return Ok(ranks);
        }
        let mut met = post.carry(&mut ranks)?;
        for (number, call) in waiting.iter().enumerate() {
            let Some((group, call)) = call else { continue };
            let there = |member: &&usize| waiting[**member].as_ref().is_some_and(|(other, _)| other == group);
            if group[0] != number || group.iter().filter(there).count() < group.len() {
                continue;
            }
            let same = |member: &usize| waiting[*member].as_ref().is_some_and(|(_, other)| other == call);
            if !group.iter().all(same) {
                return Err("members of a group call different collectives".into());
            }
            exchange(&mut ranks, group, call)?;
            met = true;
        }
        if !met {
            return Err("no rank can go on".into());
        }
    }
}

impl<'p> Rank<'p> {
    fn new(program: &'p Program, number: u64, start: &Start, turns: Vec<Turn>) -> Result<Rank<'p>, String> {
        if program.arena_bytes > LARGEST {
            return Err("too much memory".into());
        }
        let memory = (0..program.arena_bytes as usize).map(|i| POISON[i % 2]).collect();
        let coordinates = program.mesh.coordinates(number);
        let mut rank = Rank { program, coordinates, memory, turns, next: 0 };
        for state in &program.states {
            rank.put(state.buffer.index(), start.states.get(&state.name).ok_or("an unknown state")?)?;
        }
        for input in &program.inputs {
            rank.put(input.buffer.index(), start.inputs.get(&input.name).ok_or("an unknown input")?)?;
        }
        for constant in &program.constants {
            let dtype = program.buffers.get(constant.buffer.index()).ok_or("no such buffer")?.dtype;
            rank.put(constant.buffer.index(), &decode(&constant.bytes, dtype)?)?;
        }
        for (id, buffer) in program.buffers.iter().enumerate() {
            let BufferKind::Scalar(scalar) = buffer.kind else { continue };
            let value = match scalar {
                HostScalar::LearningRate => program.learning_rate.at(STEP),
                HostScalar::StepCount => (STEP + 1) as f64,
                HostScalar::Seed => program.seed as f64,
            };
            rank.put(id, &[value])?;
        }
        Ok(rank)
    }

    /// Writes this rank's part of a whole array, in every slot, and zeros where it is filled up.
    fn put(&mut self, id: usize, whole: &[f64]) -> Result<(), String> {
        let buffer = self.program.buffers.get(id).ok_or("no such buffer")?;
        for slot in 0..buffer.slots {
            let held = self.held(buffer, slot, whole.len())?;
            let values: Vec<f64> = held.iter().map(|at| at.map_or(0.0, |i| whole[i])).collect();
            let start = buffer.offset + slot * buffer.slot_bytes;
            if values.len() as u64 * buffer.dtype.bytes() > buffer.slot_bytes {
                return Err("a slot is too small".into());
            }
            let bytes = self.memory.get_mut(start as usize..start as usize + values.len() * buffer.dtype.bytes() as usize);
            encode(&values, buffer.dtype, bytes.ok_or("a buffer outside the arena")?);
        }
        Ok(())
    }

    /// The elements of the rank's part of a buffer that should hold `whole`: pairs of found and
    /// expected, slot after slot. What is filled up should be zero.
    pub fn compare(&self, buffer: &Buffer, whole: &[f64]) -> Result<Vec<(f64, f64)>, String> {
        let found = self.found(buffer, whole.len())?;
        Ok(found.into_iter().map(|(found, at)| (found, at.map_or(0.0, |i| whole[i]))).collect())
    }

    /// The elements of the rank's part of a buffer, slot after slot, with the position of each in
    /// the whole array of `elements`; none where the part is filled up.
    pub fn found(&self, buffer: &Buffer, elements: usize) -> Result<Vec<(f64, Option<usize>)>, String> {
        if !buffer.sharding.partial.is_empty() {
            return Err("a part of a sum is read as if whole".into());
        }
        let mut pairs = vec![];
        for slot in 0..buffer.slots {
            let held = self.held(buffer, slot, elements)?;
            let start = (buffer.offset + slot * buffer.slot_bytes) as usize;
            let bytes = self.memory.get(start..start + held.len() * buffer.dtype.bytes() as usize);
            let found = decode(bytes.ok_or("a buffer outside the arena")?, buffer.dtype)?;
            pairs.extend(found.into_iter().zip(held));
        }
        Ok(pairs)
    }

    /// Whether every constant is what it was before the step.
    pub fn constants_are_left(&self) -> Result<bool, String> {
        for constant in &self.program.constants {
            let buffer = self.program.buffers.get(constant.buffer.index()).ok_or("no such buffer")?;
            let pairs = self.compare(buffer, &decode(&constant.bytes, buffer.dtype)?)?;
            if pairs.iter().any(|(found, expected)| found != expected) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The positions of a whole array of `elements` that a slot of the buffer holds, in the order
    /// of the rank's part: what its dimensions leave, and of that line the rank's range, filled up
    /// to the size of the others.
    fn held(&self, buffer: &Buffer, slot: u64, elements: usize) -> Result<Vec<Option<usize>>, String> {
        let mesh = &self.program.mesh;
        let mut coordinates = self.coordinates.clone();
        *coordinates.last_mut().ok_or("no time")? = slot;
        let sharding = &buffer.sharding;
        if buffer.shape.iter().product::<u64>() != elements as u64 || sharding.dims.len() != buffer.shape.len() {
            return Err("an array of another shape".into());
        }
        if slot > 0 && buffer.slots != mesh.microbatches() {
            return Err("slots that are no micro-batches".into());
        }
        if buffer.slots == 1 && mesh.microbatches() > 1 && sharding.splits(mesh.microbatch_axis()) {
            return Err("one slot for all micro-batches".into());
        }
        let mut positions = vec![0u64];
        for (size, splits) in buffer.shape.iter().zip(&sharding.dims) {
            if splits.iter().any(|s| s.stride == 0) {
                return Err("a split without a stride".into());
            }
            let here = |i: &u64| splits.iter().all(|s| i / s.stride % mesh.size(s.axis) == coordinates[s.axis.index()]);
            let held: Vec<u64> = (0..*size).filter(here).collect();
            positions = positions.iter().flat_map(|p| held.iter().map(move |i| p * size + i)).collect();
        }
        let mut held: Vec<Option<usize>> = positions.into_iter().map(|p| Some(p as usize)).collect();
        if !sharding.flat.is_empty() {
            held = self.range(&held, &sharding.flat)?;
        }
        if held.len() as u64 != buffer.local.iter().product::<u64>() {
            return Err("a part of another size".into());
        }
        Ok(held)
    }

    /// Of a line the range of this rank, where `axes` cut it, the first one the slowest.
    fn range(&self, line: &[Option<usize>], axes: &[AxisId]) -> Result<Vec<Option<usize>>, String> {
        let ranks = self.program.mesh.rank_axes().len();
        let (mut ranges, mut own) = (1, 0);
        for axis in axes {
            if axis.index() >= ranks {
                return Err("a line that no ranks cut".into());
            }
            let size = self.program.mesh.size(*axis) as usize;
            (ranges, own) = (ranges * size, own * size + self.coordinates[axis.index()] as usize);
        }
        let each = line.len().div_ceil(ranges);
        Ok((own * each..(own + 1) * each).map(|i| line.get(i).copied().flatten()).collect())
    }

    /// Runs up to the next collective or row of messages.
    fn compute(&mut self) -> Result<(), String> {
        while let Some(Turn::Launch((task, step, time))) = self.turns.get(self.next).copied() {
            let step = &self.program.tasks[task].steps[step];
            if let Kernel::Collective(_) = step.kernel {
                break;
            }
            self.kernel(step, time).map_err(|why| format!("`{}` {why}", step.text()))?;
            self.next += 1;
        }
        Ok(())
    }

    /// The group and the call that it waits at.
    fn waits(&self) -> Result<Option<(Vec<usize>, Collective)>, String> {
        let Some(Turn::Launch((task, step, _))) = self.turns.get(self.next) else { return Ok(None) };
        let Kernel::Collective(call) = &self.program.tasks[*task].steps[*step].kernel else { return Err("no call".into()) };
        let mesh = &self.program.mesh;
        let known = |i: usize| call.axes[i].index() < mesh.rank_axes().len() && !call.axes[..i].contains(&call.axes[i]);
        if call.axes.is_empty() || !(0..call.axes.len()).all(known) {
            return Err("a group that is none".into());
        }
        let members = mesh.group(mesh.rank(&self.coordinates), &call.axes);
        // Two calls with equal members may list their axes differently.
        Ok(Some((members.into_iter().map(|r| r as usize).collect(), Collective { axes: vec![], ..call.clone() })))
    }

    fn kernel(&mut self, step: &Step, time: u64) -> Result<(), String> {
        let signature = step.kernel.signature(&self.program.mesh).map_err(|why| why.to_string())?;
        let types = |operands: &[Operand]| operands.iter().map(|operand| operand.dtype).collect::<Vec<_>>();
        let (read_types, write_types) = (types(&signature.reads), types(&signature.writes));
        if (read_types.len(), write_types.len()) != (step.reads.len(), step.writes.len()) {
            return Err("has other operands".into());
        }
        let places = |views: &[View], types: &[DType]| -> Result<Vec<Range<usize>>, String> {
            views.iter().zip(types).map(|(view, dtype)| self.place(view, time, *dtype)).collect()
        };
        let (reads, writes) = (places(&step.reads, &read_types)?, places(&step.writes, &write_types)?);
        no_races(&step.kernel, &reads, &writes, &write_types)?;
        let fetch = |places: &[Range<usize>], types: &[DType]| -> Result<Vec<Vec<f64>>, String> {
            places.iter().zip(types).map(|(place, dtype)| decode(&self.memory[place.clone()], *dtype)).collect()
        };
        let (operands, before) = (fetch(&reads, &read_types)?, fetch(&writes, &write_types)?);
        match &step.kernel {
            Kernel::Gather(g) => indices_in_range(g, &operands[1])?,
            Kernel::ScatterAdd(ScatterAdd { gather, .. }) => indices_in_range(gather, &operands[0])?,
            _ => {}
        }
        self.coordinates.last_mut().map(|t| *t = time).ok_or("no time")?;
        let run = || reference::run(&step.kernel, &operands, before, &self.coordinates);
        let results = catch_unwind(AssertUnwindSafe(run)).map_err(|_| "reaches outside its operands")?;
        for ((place, dtype), values) in writes.into_iter().zip(write_types).zip(results) {
            encode(&values, dtype, &mut self.memory[place]);
        }
        Ok(())
    }

    /// The bytes of a view, whole elements.
    fn place(&self, view: &View, time: u64, dtype: DType) -> Result<Range<usize>, String> {
        let buffer = self.program.buffers.get(view.buffer.index()).ok_or("has an operand that is none")?;
        let slot = time.checked_rem(buffer.slots).ok_or("has an operand without a slot")?;
        let start = (slot.checked_mul(buffer.slot_bytes))
            .and_then(|at| at.checked_add(buffer.offset)?.checked_add(view.offset))
            .ok_or("reaches outside the arena")?;
        let end = start.checked_add(view.bytes / dtype.bytes() * dtype.bytes());
        if !start.is_multiple_of(dtype.bytes()) {
            return Err("is not aligned".into());
        }
        let end = end.filter(|end| *end <= self.memory.len() as u64).ok_or("reaches outside the arena")?;
        Ok(start as usize..end as usize)
    }
}

/// All that a rank does in a step, in the order of the table.
pub fn turns(program: &Program) -> Vec<Turn> {
    let mut turns = vec![];
    for (number, row) in program.order.iter().enumerate() {
        let Row::Run { task, time } = row else {
            turns.push(Turn::Exchange(number));
            continue;
        };
        for (s, step) in program.tasks[*task as usize].steps.iter().enumerate() {
            if step.when == When::Each || *time == program.mesh.microbatches() - 1 {
                turns.push(Turn::Launch((*task as usize, s, *time)));
            }
        }
    }
    turns
}

/// Every launch of a step, in the order of the table.
pub fn launches(program: &Program) -> Vec<Launch> {
    let launch = |turn| if let Turn::Launch(launch) = turn { Some(launch) } else { None };
    turns(program).into_iter().filter_map(launch).collect()
}

/// Whether the member that makes result `w` reads operand `r` as its own map, element by element,
/// and others do so before it, or not at all where members are in no order.
fn is_last_reader(bundle: &Bundle, r: usize, w: usize, dtype: DType) -> bool {
    let makes = |of: usize| bundle.results()[of]..bundle.results()[of] + bundle.members[of].kernel.map().outputs.len();
    let Some(maker) = (0..bundle.members.len()).find(|of| makes(*of).contains(&w)) else { return false };
    let reads = |of: &usize| bundle.members[*of].reads.contains(&Source::Read(r as u32));
    let by_element = |of: usize| {
        let member = &bundle.members[of];
        let own = member.reads.iter().enumerate().filter(|(_, source)| **source == Source::Read(r as u32));
        own.into_iter().all(|(at, _)| member.kernel.map().inputs[at].dtype == dtype && is_elementwise(member.kernel.map(), at))
    };
    let is_alone = (0..bundle.members.len()).filter(reads).all(|of| of == maker);
    let is_map = matches!(bundle.members[maker].kernel, MemberKernel::Map(_));
    let is_in_order = bundle.members.iter().flat_map(|member| &member.reads).any(|source| matches!(source, Source::Write(_)));
    let comes_last = (0..bundle.members.len()).filter(reads).all(|of| of <= maker && by_element(of));
    is_map && reads(&maker) && by_element(maker) && (is_alone || is_in_order && comes_last)
}

/// The results of a kernel may share bytes with its operands only element by element.
fn no_races(kernel: &Kernel, reads: &[Range<usize>], writes: &[Range<usize>], types: &[DType]) -> Result<(), String> {
    let meet = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
    for (w, write) in writes.iter().enumerate() {
        if writes[..w].iter().any(|other| meet(write, other)) {
            return Err("writes some bytes twice".into());
        }
        for (r, read) in reads.iter().enumerate() {
            let in_place = match kernel {
                Kernel::Map(map) => read.start == write.start && map.inputs[r].dtype == types[w] && is_elementwise(map, r),
                Kernel::Bundle(bundle) => read.start == write.start && is_last_reader(bundle, r, w, types[w]),
                _ => false,
            };
            if meet(read, write) && !in_place {
                return Err("writes over what it reads".into());
            }
        }
    }
    Ok(())
}

/// Whether an input is read at the element that is written.
fn is_elementwise(map: &Map, input: usize) -> bool {
    let mut stride = 1;
    map.shape.iter().enumerate().rev().all(|(d, size)| {
        let same = *size == 1 || map.inputs[input].strides.get(d) == Some(&stride);
        stride *= *size as i64;
        same
    })
}

fn indices_in_range(g: &Gather, indices: &[f64]) -> Result<(), String> {
    let total = g.total_rows as f64;
    let used = indices.get(..(g.batch * g.count) as usize).ok_or("reads too far")?;
    if used.iter().all(|i| *i >= -total && *i < total) { Ok(()) } else { Err("has an index of no row".into()) }
}

fn decode(bytes: &[u8], dtype: DType) -> Result<Vec<f64>, String> {
    let element = dtype.bytes() as usize;
    if !bytes.len().is_multiple_of(element) {
        return Err("half an element".into());
    }
    let truth = |b: u8| if b > 1 { f64::NAN } else { f64::from(b) };
    Ok(match dtype {
        DType::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        DType::BF16 | DType::F16 => {
            Tensor { ty: Type::new(dtype, [bytes.len() as u64 / 2]), bytes: Arc::new(bytes.to_vec()) }.to_f64()
        }
        DType::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        DType::Bool => bytes.iter().map(|b| truth(*b)).collect(),
    })
}

fn encode(values: &[f64], dtype: DType, bytes: &mut [u8]) {
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(dtype.bytes() as usize)) {
        match dtype {
            DType::F64 => bytes.copy_from_slice(&value.to_le_bytes()),
            DType::F32 => bytes.copy_from_slice(&(*value as f32).to_le_bytes()),
            DType::BF16 | DType::F16 => bytes.copy_from_slice(&Tensor::scalar(dtype, *value).bytes),
            DType::I64 => bytes.copy_from_slice(&(*value as i64).to_le_bytes()),
            DType::Bool if value.is_nan() => bytes[0] = POISON[0],
            DType::Bool => bytes[0] = u8::from(*value != 0.0),
        }
    }
}
