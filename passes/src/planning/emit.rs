//! Emits the steps of every task: one kernel for each node that is not inside another's.

use super::buffers::Buffers;
use super::bundle::{self, Unit};
use super::fuse::Fusion;
use super::messages::End;
use super::tasks::TaskNodes;
use shardc_ir::graph::{Node, NodeId, ValueId};
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Fill, Kernel, Move};
use shardc_ir::lower::bundled::Bundled;
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::lower::{Launch, Lowered, Slot};
use shardc_ir::ops::Op;
use shardc_ir::plan::{
    Buffer, BufferId, Message, ProgramConstant, ProgramInput, ProgramOutput, Provenance, StateVariable, Step, Stream, Task, View,
    When,
};
use shardc_ir::position::Offset;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::text::{operation, operation_with_numbers};

/// A program without offsets.
pub struct Emitted {
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// State variables.
    pub states: Vec<StateVariable>,
    /// Inputs and labels.
    pub inputs: Vec<ProgramInput>,
    /// Constants.
    pub constants: Vec<ProgramConstant>,
    /// Results for the host.
    pub outputs: Vec<ProgramOutput>,
    /// Bodies in order: those that were asked for, and perhaps more for what is only copied.
    pub tasks: Vec<Task>,
    /// Whether each of them runs for each micro-batch.
    pub loops: Vec<bool>,
    /// Messages, in the order of their ends.
    pub messages: Vec<Message>,
}

/// The task that keeps what the last messages bring.
const STORE: &str = "store";

/// All steps, messages and buffers. Where there are several micro-batches, the first task runs
/// before all others. `runs` says in which rows each node runs, from the first to the last.
pub fn emit(
    lowered: &LoweredGraph<'_>,
    fusion: &Fusion,
    tasks: &[&TaskNodes],
    ends: &[End],
    runs: &[Option<(usize, usize)>],
) -> Emitted {
    let mut emitter = Emitter { lowered, fusion, buffers: Buffers::new(lowered, fusion, runs), prepare: vec![] };
    let mut out: Vec<Task> = tasks
        .iter()
        .map(|task| Task {
            name: task.name(),
            stage: task.stage,
            steps: bundle::units(lowered, fusion, &task.nodes).into_iter().flat_map(|unit| emitter.unit(unit)).collect(),
        })
        .collect();
    let mut loops: Vec<bool> = tasks.iter().map(|task| is_loop(lowered, task)).collect();
    emitter.copy_roots(&mut out, &mut loops);
    let prepare = std::mem::take(&mut emitter.prepare);
    out.first_mut().into_iter().for_each(|first| first.steps.extend_from_slice(&prepare));
    let messages = ends.iter().map(|end| emitter.message(end)).collect();
    let Buffers { all, inputs, constants, states, outputs, .. } = emitter.buffers;
    Emitted { buffers: all, states, inputs, constants, outputs, tasks: out, loops, messages }
}

/// Whether a task runs several times.
pub fn is_loop(lowered: &LoweredGraph<'_>, task: &TaskNodes) -> bool {
    lowered.graph.mesh.microbatches() > 1 && task.class.is_loop()
}

struct Emitter<'a, 'g> {
    lowered: &'a LoweredGraph<'g>,
    fusion: &'a Fusion,
    buffers: Buffers<'a, 'g>,
    /// Steps before the first loop: accumulators begin empty.
    prepare: Vec<Step>,
}

impl Emitter<'_, '_> {
    fn unit(&mut self, unit: Unit) -> Vec<Step> {
        match unit {
            Unit::Node(id) => self.node(id),
            Unit::Bundle(bundled) => vec![self.bundled(bundled)],
        }
    }

    fn node(&mut self, id: NodeId) -> Vec<Step> {
        match self.lowered.node(id) {
            Lowered::Alias(_) | Lowered::Leaf => vec![],
            _ if self.fusion.is_inlined(id) => vec![],
            Lowered::Map(_) | Lowered::Reduce { .. } => vec![self.fused(id)],
            Lowered::Launches { launches, scratch } => self.launches(id, launches.clone(), scratch.clone()),
        }
    }

    fn fused(&mut self, id: NodeId) -> Step {
        let fused = self.fusion.kernel(self.lowered, id);
        let node = self.lowered.graph.node(id);
        let op = match (&fused.kernel, &fused.nodes[..]) {
            (Kernel::ScatterAdd(_), [scatter, _]) => format!("add({})", self.operations(&[*scatter])),
            (_, nodes) => self.operations(nodes),
        };
        let ops = fused.nodes.iter().flat_map(|n| self.names(&self.lowered.graph.node(*n).results)).collect();
        Step {
            stream: Stream::Main,
            kernel: fused.kernel,
            reads: fused.reads.iter().map(|v| self.view(*v)).collect(),
            writes: node.results.iter().map(|v| self.view(*v)).collect(),
            op,
            results: self.names(&node.results),
            provenance: node.origin.provenance(ops),
            when: When::Each,
        }
    }

    /// The text of what one kernel carries out.
    fn operations(&self, nodes: &[NodeId]) -> String {
        let operation = |n: &NodeId| operation_with_numbers(self.lowered.graph, self.lowered.graph.node(*n));
        match nodes {
            [only] => operation(only),
            all => format!("map({})", all.iter().map(operation).collect::<Vec<_>>().join(", ")),
        }
    }

    fn bundled(&mut self, Bundled { bundle, reads, writes, nodes }: Bundled) -> Step {
        let mut operations: Vec<String> = nodes.iter().map(|nodes| self.operations(nodes)).collect();
        let count = operations.len();
        operations.dedup();
        let op = match &operations[..] {
            [only] => format!("{count} × {only}"),
            all => format!("rows({})", all.join("; ")),
        };
        let ends: Vec<&Node> = nodes.iter().filter_map(|nodes| nodes.last()).map(|end| self.lowered.graph.node(*end)).collect();
        let ops = nodes.iter().flatten().flat_map(|n| self.names(&self.lowered.graph.node(*n).results)).collect();
        let is_common = |of: fn(&Node) -> Option<&str>| ends.iter().all(|end| of(end) == of(ends[0]));
        let mut provenance = ends[0].origin.provenance(ops);
        provenance.scope = provenance.scope.filter(|_| is_common(|end| end.origin.scope.as_deref()));
        provenance.reason = provenance.reason.filter(|_| is_common(|end| end.origin.reason.as_deref()));
        Step {
            stream: Stream::Main,
            kernel: Kernel::Bundle(bundle),
            reads: reads.iter().map(|v| self.view(*v)).collect(),
            writes: writes.iter().map(|v| self.view(*v)).collect(),
            op,
            results: self.names(&writes),
            provenance,
            when: When::Each,
        }
    }

    fn launches(&mut self, id: NodeId, launches: Vec<Launch>, scratch: Vec<(shardc_ir::dtype::DType, u64)>) -> Vec<Step> {
        let node = self.lowered.graph.node(id);
        let name = self.lowered.graph.value(node.results[0]).name.clone();
        let scratch: Vec<BufferId> = scratch.into_iter().map(|(dtype, n)| self.buffers.scratch(&name, dtype, n)).collect();
        let mut steps = vec![];
        let in_place = matches!(node.op, Op::AllReduce(_));
        if in_place && self.buffers.of(node.operands[0]) != self.buffers.of(node.results[0]) {
            let to = self.buffers.of(node.results[0]);
            steps.push(self.copy(node.operands[0], to));
        }
        if let Op::Accumulate(op) = &node.op {
            self.begin(node.results[0], op.kind);
        }
        let op = match &node.op {
            Op::Contract(c) => format!("contract {}", c.spec),
            Op::AllReduce(op) => format!("all_reduce {} {}", op.kind.name(), self.axes(&op.axes)),
            Op::AllGather(op) => format!("all_gather {}", self.axes(&[op.split.axis])),
            Op::ReduceScatter(op) => {
                format!("reduce_scatter {} {}", op.kind.name(), self.axes(&[op.split.axis]))
            }
            Op::FlatGather(op) => format!("all_gather {}", self.axes(&op.axes)),
            Op::FlatScatter(op) => format!("reduce_scatter {} {}", op.kind.name(), self.axes(&op.axes)),
            Op::FlatSlice(op) => format!("flat_slice {}", self.axes(&op.axes)),
            Op::AllToAll(op) => format!("all_to_all {}", self.axes(&[op.split.axis])),
            Op::ShardSlice(op) => format!("shard_slice {}", self.axes(&[op.split.axis])),
            _ => operation(self.lowered.graph, node),
        };
        let count = launches.len();
        for (i, launch) in launches.into_iter().enumerate() {
            let mut views = |slots: &[Slot]| -> Vec<View> {
                slots
                    .iter()
                    .map(|slot| match slot {
                        Slot::Operand(_) if in_place => self.view(node.results[0]),
                        Slot::Operand(i) => self.view(node.operands[*i]),
                        Slot::Result(i) => self.view(node.results[*i]),
                        Slot::Scratch(i) => self.whole(scratch[*i]),
                    })
                    .collect()
            };
            let (reads, writes) = (views(&launch.reads), views(&launch.writes));
            let result = |slot: &Slot| match slot {
                Slot::Operand(i) => self.name(node.operands[*i]),
                Slot::Result(i) => self.name(node.results[*i]),
                Slot::Scratch(i) => self.buffers.all[scratch[*i].index()].name.clone(),
            };
            let results = launch.writes.iter().map(result).collect();
            let is_call = matches!(launch.kernel, Kernel::Collective(_));
            let op = match &launch.kernel {
                // What a call needs in another order is put there by the rank itself.
                Kernel::Move(_) if node.op.is_collective() => "copy".to_string(),
                _ if count > 1 && !is_call => format!("{op} part {} of {count}", i + 1),
                _ => op.clone(),
            };
            let stream = if is_call { Stream::Comm } else { Stream::Main };
            let provenance = node.origin.provenance(self.names(&node.results));
            steps.push(Step { stream, kernel: launch.kernel, reads, writes, op, results, provenance, when: When::Each });
        }
        steps
    }

    fn axes(&self, axes: &[shardc_ir::mesh::AxisId]) -> String {
        axes.iter().map(|a| self.lowered.graph.mesh.name(*a)).collect::<Vec<_>>().join(" ")
    }

    /// Fills an accumulator with what combines to nothing.
    fn begin(&mut self, value: ValueId, kind: ReduceKind) {
        let extent = self.lowered.extent(value);
        let kernel = Kernel::Fill(Fill { dtype: extent.ty.dtype, count: extent.elements(), value: kind.neutral() });
        let op = format!("fill {}", kind.neutral());
        let write = self.view(value);
        let provenance = Provenance { ops: self.names(&[value]), scope: self.scope(value), ..Provenance::default() };
        self.prepare.push(Step {
            stream: Stream::Main,
            kernel,
            reads: vec![],
            writes: vec![write],
            op,
            results: vec![self.name(value)],
            provenance,
            when: When::Each,
        });
    }

    /// Copies roots that could not be computed in place: at the end, or in the loop where they are
    /// split over time; what a message brings behind all else.
    fn copy_roots(&mut self, tasks: &mut Vec<Task>, loops: &mut Vec<bool>) {
        let time = self.lowered.graph.mesh.microbatch_axis();
        for (value, buffer) in std::mem::take(&mut self.buffers.copies) {
            let step = self.copy(value, buffer);
            let in_loop = self.lowered.graph.mesh.microbatches() > 1 && self.lowered.graph.sharding(value).splits(time);
            let storage = self.lowered.stored_in(value);
            let is_received = matches!(self.lowered.graph.def(storage).op, Op::Transfer(_));
            let fits = |task: &Task, own: bool| own == in_loop && (!is_received || task.name == STORE);
            match tasks.iter().zip(&*loops).rposition(|(task, own)| fits(task, *own)) {
                Some(task) => tasks[task].steps.push(step),
                None => {
                    let name = if is_received { STORE } else { "F" };
                    tasks.push(Task { name: name.into(), stage: 0, steps: vec![step] });
                    loops.push(in_loop);
                }
            }
        }
    }

    fn message(&mut self, end: &End) -> Message {
        let node = self.lowered.graph.node(end.node);
        Message {
            sends: end.sends,
            axis: end.axis,
            peer: end.peer,
            view: self.view(end.value),
            value: self.name(node.operands[0]),
            provenance: node.origin.provenance(self.names(&node.results)),
        }
    }

    fn copy(&mut self, value: ValueId, to: BufferId) -> Step {
        let extent = self.lowered.extent(value);
        let kernel = Kernel::Move(Move {
            dtype: extent.ty.dtype,
            shape: extent.local.clone(),
            src_offset: Offset::default(),
            src_strides: row_major(&extent.local),
            dst_offset: Offset::default(),
            dst_strides: row_major(&extent.local),
        });
        let (op, results) = ("copy".to_string(), vec![format!("{}.copy", self.name(value))]);
        let provenance = Provenance { ops: self.names(&[value]), scope: self.scope(value), ..Provenance::default() };
        let (read, write) = (self.view(value), self.whole(to));
        Step { stream: Stream::Main, kernel, reads: vec![read], writes: vec![write], op, results, provenance, when: When::Each }
    }

    fn scope(&self, value: ValueId) -> Option<String> {
        self.lowered.graph.def(value).origin.scope.as_deref().map(str::to_string)
    }

    fn view(&mut self, value: ValueId) -> View {
        let extent = self.lowered.extent(value);
        View { buffer: self.buffers.of(value), offset: 0, bytes: extent.elements() * extent.ty.dtype.bytes() }
    }

    fn whole(&self, buffer: BufferId) -> View {
        let b = &self.buffers.all[buffer.index()];
        View { buffer, offset: 0, bytes: b.local.iter().product::<u64>() * b.dtype.bytes() }
    }

    fn names(&self, values: &[ValueId]) -> Vec<String> {
        values.iter().map(|v| self.name(*v)).collect()
    }

    fn name(&self, value: ValueId) -> String {
        self.lowered.graph.value(value).name.to_string()
    }
}
