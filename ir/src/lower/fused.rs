//! Fused kernels: what elementwise nodes with one end are together as one kernel.
//!
//! `%s = add %p, %b`, `%a = gelu_tanh %s` are the map kernel `add, gelu_tanh` that reads `%p` and
//! `%b`. Views between them (reshapes) cost nothing: a kernel reads through strides over its own
//! iteration space. The planner chooses which nodes are computed inside others; what that choice
//! means is defined here alone, so that it can be proven of a plan.

use super::graph::LoweredGraph;
use super::strides::{broadcast_strides, index_dim, restride};
use super::{Elementwise, Lowered, onto};
use crate::dtype::DType;
use crate::graph::{NodeId, ValueId};
use crate::kernel::signature::row_major;
use crate::kernel::{Kernel, Map, MapInput, Reduce};
use crate::ops::Op;
use crate::position::Origin;
use crate::scalar::{Instr, ProgramWriter, Reg, ScalarProgram};

/// No kernel carries out more nodes.
pub const MOST_NODES: usize = 512;

/// A fused kernel, the values it reads, and the nodes it carries out.
#[derive(Debug, Clone, PartialEq)]
pub struct Fused {
    /// The kernel.
    pub kernel: Kernel,
    /// The storage read by each input.
    pub reads: Vec<ValueId>,
    /// The nodes inside, in program order; the end is the last.
    pub nodes: Vec<NodeId>,
}

/// The iteration space of an elementwise or reducing kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// The type of its registers.
    pub compute: DType,
    /// The iteration space.
    pub shape: Vec<u64>,
}

impl Space {
    /// Of the kernel that ends in `end`; `None` if that is neither elementwise nor a reduction.
    pub fn of(lowered: &LoweredGraph<'_>, end: NodeId) -> Option<Space> {
        let node = lowered.graph.node(end);
        match lowered.node(end) {
            Lowered::Map(map) => {
                let shape = lowered.extent(node.results[0]).local.clone();
                Some(Space { compute: map.compute.unwrap_or(DType::F32), shape })
            }
            Lowered::Reduce { .. } => {
                let operand = lowered.extent(node.operands[0]);
                Some(Space { compute: operand.ty.dtype.computed(), shape: operand.local.clone() })
            }
            _ => None,
        }
    }

    fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether `id` can be computed inside a kernel over this space: one result of as many
    /// elements, kept exactly in the registers, and operands and indices that can be had over the
    /// space.
    pub fn takes(&self, lowered: &LoweredGraph<'_>, id: NodeId) -> bool {
        let node = lowered.graph.node(id);
        let (Lowered::Map(map), [result]) = (lowered.node(id), &node.results[..]) else { return false };
        let extent = lowered.extent(*result);
        let kept = extent.ty.dtype == DType::Bool || extent.ty.dtype.computed() == self.compute;
        let computes = map.compute.is_none_or(|compute| compute == self.compute);
        let strides = row_major(&self.shape);
        let readable = |v: &ValueId| {
            let own = broadcast_strides(&lowered.extent(*v).local, &extent.local);
            restride(&self.shape, &strides, &extent.local, &own).is_some()
        };
        extent.elements() == self.elements()
            && kept
            && computes
            && node.operands.iter().all(readable)
            && map.origins.iter().all(|(dim, _)| index_dim(&self.shape, &extent.local, *dim).is_some())
    }

    /// Whether `reader` reads all elements of this space from every operand that is stored in
    /// `value`.
    pub fn reads_whole(&self, lowered: &LoweredGraph<'_>, reader: NodeId, value: ValueId) -> bool {
        let operands = &lowered.graph.node(reader).operands;
        let stored = lowered.stored_in(value);
        let mut views = operands.iter().filter(|v| lowered.stored_in(**v) == stored);
        views.all(|v| lowered.extent(*v).elements() == self.elements())
    }

    /// The origins of a node inside, by dimension of the space.
    pub fn origins(&self, lowered: &LoweredGraph<'_>, id: NodeId) -> Option<Vec<(u16, Origin)>> {
        let Lowered::Map(map) = lowered.node(id) else { return Some(vec![]) };
        let local = &lowered.extent(lowered.graph.node(id).results[0]).local;
        let over = |(dim, origin): &(u16, Origin)| Some((index_dim(&self.shape, local, *dim)?, origin.clone()));
        map.origins.iter().map(over).collect()
    }
}

/// The kernel of the elementwise or reducing node `end` with the nodes that `inside` names computed
/// in it, and those inside them; `None` where that is no kernel.
pub fn fuse(lowered: &LoweredGraph<'_>, end: NodeId, inside: &dyn Fn(NodeId) -> bool) -> Option<Fused> {
    if let Some(scatter) = onto::scatter(lowered, end, inside) {
        return Some(scatter);
    }
    let space = Space::of(lowered, end)?;
    let node = lowered.graph.node(end);
    let strides = row_major(&space.shape);
    let outputs = node.results.iter().map(|v| lowered.extent(*v).ty.dtype).collect();
    let mut writer = Writer::new(lowered, inside, &space);
    match lowered.node(end) {
        Lowered::Map(_) => {
            writer.outputs = writer.program(end, &strides)?;
            writer.finish(end, outputs, Kernel::Map)
        }
        Lowered::Reduce { kind, before, reduced, accumulate } => {
            let x = writer.value(node.operands[0], &strides)?;
            writer.outputs = writer.inline(before, &[x], &[]);
            let reduce = |map| Reduce { map, kind: *kind, reduced: reduced.clone(), accumulate: *accumulate };
            writer.finish(end, outputs, |map| Kernel::Reduce(reduce(map)))
        }
        _ => None,
    }
}

/// Registers of a kernel under construction. Inputs are numbered after the fact, when all are
/// known.
struct Writer<'a, 'g> {
    lowered: &'a LoweredGraph<'g>,
    inside: &'a dyn Fn(NodeId) -> bool,
    space: &'a Space,
    inputs: Vec<(ValueId, MapInput)>,
    terms: Vec<Term>,
    known: Vec<(ValueId, Vec<i64>, usize)>,
    outputs: Vec<usize>,
    origins: Vec<(u16, Origin)>,
    nodes: Vec<NodeId>,
}

/// A register: an input or an instruction over other registers.
#[derive(Clone, Copy, PartialEq)]
enum Term {
    Input(usize),
    Code(Instr),
}

impl<'a, 'g> Writer<'a, 'g> {
    fn new(lowered: &'a LoweredGraph<'g>, inside: &'a dyn Fn(NodeId) -> bool, space: &'a Space) -> Writer<'a, 'g> {
        let (inputs, terms, known, outputs, origins, nodes) = (vec![], vec![], vec![], vec![], vec![], vec![]);
        Writer { lowered, inside, space, inputs, terms, known, outputs, origins, nodes }
    }

    /// The registers of a map node's results; `strides` are of its elements over the space.
    fn program(&mut self, id: NodeId, strides: &[i64]) -> Option<Vec<usize>> {
        let lowered = self.lowered;
        let Lowered::Map(Elementwise { program, .. }) = lowered.node(id) else { return None };
        self.nodes.push(id);
        if self.nodes.len() > MOST_NODES {
            return None;
        }
        let node = lowered.graph.node(id);
        let local = &lowered.extent(node.results[0]).local;
        let mut arguments = vec![];
        for v in &node.operands {
            let own = broadcast_strides(&lowered.extent(*v).local, local);
            let over = restride(&self.space.shape, strides, local, &own)?;
            arguments.push(self.value(*v, &over)?);
        }
        let Lowered::Map(Elementwise { origins, .. }) = lowered.node(id) else { return None };
        let mut dims = vec![];
        for ((dim, _), (over, origin)) in origins.iter().zip(self.space.origins(lowered, id)?) {
            dims.push((*dim, over));
            match self.origins.iter().find(|(d, _)| *d == over) {
                Some((_, other)) if *other != origin => return None,
                Some(_) => {}
                None => self.origins.push((over, origin)),
            }
        }
        Some(self.inline(program, &arguments, &dims))
    }

    /// The register of a value whose elements are at `strides` over the space.
    fn value(&mut self, value: ValueId, strides: &[i64]) -> Option<usize> {
        let storage = self.lowered.stored_in(value);
        if let Some((_, _, register)) = self.known.iter().find(|(v, s, _)| *v == storage && s == strides) {
            return Some(*register);
        }
        let node = self.lowered.graph.value(storage).node;
        let splat = match &self.lowered.graph.node(node).op {
            Op::Constant(constant) => constant.value.splat(),
            _ => None,
        };
        let register = if let Some(number) = splat {
            self.push(Term::Code(Instr::Const(number)))
        } else if (self.inside)(node) {
            let whole = self.lowered.extent(value).elements() == self.space.elements();
            if !whole || !self.space.takes(self.lowered, node) {
                return None;
            }
            self.program(node, strides)?[0]
        } else {
            let input = MapInput { dtype: self.lowered.extent(storage).ty.dtype, strides: strides.to_vec() };
            self.inputs.push((storage, input));
            self.push(Term::Input(self.inputs.len() - 1))
        };
        self.known.push((storage, strides.to_vec(), register));
        Some(register)
    }

    fn push(&mut self, term: Term) -> usize {
        let same = |other: &Term| match (other, &term) {
            (Term::Code(Instr::Const(a)), Term::Code(Instr::Const(b))) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        };
        self.terms.iter().position(same).unwrap_or_else(|| {
            self.terms.push(term);
            self.terms.len() - 1
        })
    }

    fn inline(&mut self, program: &ScalarProgram, arguments: &[usize], dims: &[(u16, u16)]) -> Vec<usize> {
        let mut registers = arguments.to_vec();
        for instr in &program.code {
            let dim = |d: u16| dims.iter().find(|(from, _)| *from == d).map_or(d, |(_, to)| *to);
            let register = self.push(Term::Code(instr.map(|r| registers[r as usize] as Reg, dim)));
            registers.push(register);
        }
        program.outputs.iter().map(|r| registers[*r as usize]).collect()
    }

    fn finish(mut self, end: NodeId, outputs: Vec<DType>, kernel: impl FnOnce(Map) -> Kernel) -> Option<Fused> {
        let program = ProgramWriter::program(self.inputs.len(), |w, inputs| {
            let mut registers: Vec<Reg> = vec![];
            for term in &self.terms {
                let register = match term {
                    Term::Input(i) => inputs[*i],
                    Term::Code(instr) => w.push(instr.map(|r| registers[r as usize], |dim| dim)),
                };
                registers.push(register);
            }
            self.outputs.iter().map(|r| registers[*r]).collect()
        });
        self.nodes.push(end);
        self.nodes.sort();
        self.nodes.dedup();
        let (reads, inputs) = self.inputs.into_iter().unzip();
        let Space { compute, shape } = self.space.clone();
        let map = Map { compute, shape, inputs, program, outputs, origins: self.origins };
        Some(Fused { kernel: kernel(map), reads, nodes: self.nodes })
    }
}
