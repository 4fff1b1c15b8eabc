//! Which elementwise values are computed inside their readers' kernels, and the programs of those kernels.
//!
//! Before: `%s = add %p, %b`, `%a = gelu_tanh %s`. After: one map kernel `add, gelu_tanh` that reads `%p` and `%b`.
//! A value is inlined if all its readers are elementwise or reducing kernels over as many elements, it is no root, and either
//! they all end in one kernel or it is cheap to compute again. Views between them (reshapes) cost nothing: a kernel reads through
//! strides over its own iteration space.

use super::lowering::LoweredGraph;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{NodeId, ValueId};
use shardc_ir::kernel::{Map, MapInput, Origin};
use shardc_ir::lower::{Elementwise, Lowered, ProgramWriter, row_major};
use shardc_ir::ops::Op;
use shardc_ir::plan::Repeat;
use shardc_ir::scalar::{Instr, Reg, ScalarProgram, Unary};

/// Programs that cost more than this are not computed twice.
const CHEAP: u32 = 8;

/// A kernel's program grows to about this many instructions.
const LONGEST: usize = 256;

/// For each node, whether it is computed inside its readers.
pub struct Fusion {
    inlined: Vec<bool>,
    /// The kernels that each node ends in: itself, or those it is inlined into.
    kernels: Vec<Vec<NodeId>>,
}

impl Fusion {
    /// Decides for all nodes; `task_of` gives each node's tasks.
    pub fn new(lowered: &LoweredGraph<'_>, task_of: &[Vec<(usize, Repeat)>]) -> Fusion {
        let count = lowered.graph.node_count();
        let mut fusion = Fusion { inlined: vec![false; count], kernels: vec![vec![]; count] };
        let mut length = vec![0; count];
        for (id, node) in lowered.graph.nodes().rev() {
            fusion.kernels[id.index()] = vec![id];
            let Lowered::Map(map) = lowered.node(id) else { continue };
            length[id.index()] = map.program.code.len();
            let [result] = node.results[..] else { continue };
            let storage = lowered.stored_in(result);
            let readers = &lowered.readers[storage.index()];
            if readers.is_empty() || lowered.is_root[storage.index()] {
                continue;
            }
            let fits = readers.iter().all(|r| fusion.fits(lowered, id, result, map, *r));
            let mut ends: Vec<NodeId> = readers.iter().flat_map(|r| fusion.kernels[r.index()].iter().copied()).collect();
            ends.sort();
            ends.dedup();
            let loops = |n: NodeId| task_of[n.index()].iter().any(|(_, r)| *r == Repeat::EachMicrobatch);
            let same_pace = ends.iter().all(|e| loops(*e) == loops(id));
            let short = ends.iter().all(|e| length[e.index()] + map.program.code.len() <= LONGEST);
            if fits && short && (ends.len() == 1 && same_pace || cost(&map.program) <= CHEAP) {
                fusion.inlined[id.index()] = true;
                ends.iter().for_each(|e| length[e.index()] += map.program.code.len());
                fusion.kernels[id.index()] = ends;
            }
        }
        fusion
    }

    /// Whether a node is computed inside its readers.
    pub fn is_inlined(&self, id: NodeId) -> bool {
        self.inlined[id.index()]
    }

    /// The kernels that a node is computed in.
    pub fn kernels(&self, id: NodeId) -> &[NodeId] {
        &self.kernels[id.index()]
    }

    /// Whether `value` can be computed inside `reader`: same number of elements, compatible registers, and operands that can be
    /// read over the iteration spaces of the kernels it ends in.
    fn fits(&self, lowered: &LoweredGraph<'_>, id: NodeId, value: ValueId, map: &Elementwise, reader: NodeId) -> bool {
        let ty = &lowered.extent(value).ty;
        self.kernels[reader.index()].iter().all(|end| {
            let Some((compute, space)) = iteration(lowered, *end) else { return false };
            let elements: u64 = space.iter().product();
            let dtype_fits = ty.dtype == DType::Bool || Some(ty.dtype) == compute;
            let compute_fits = map.compute.is_none() || compute.is_none() || map.compute == compute;
            let extent = lowered.extent(value);
            let operand_sizes_fit = reads_whole(lowered, reader, value, elements);
            let strides = row_major(&space);
            let operands = &lowered.graph.node(id).operands;
            let readable = operands.iter().all(|v| {
                let own = broadcast_strides(&lowered.extent(*v).local, &extent.local);
                restride(&space, &strides, &extent.local, &own).is_some()
            });
            let indexable = map.origins.iter().all(|(dim, _)| index_dim(&space, &extent.local, *dim).is_some());
            extent.elements() == elements && dtype_fits && compute_fits && operand_sizes_fit && readable && indexable
        })
    }
}

/// Whether every operand of `reader` that is stored in `value` has all of its kernel's elements.
fn reads_whole(lowered: &LoweredGraph<'_>, reader: NodeId, value: ValueId, elements: u64) -> bool {
    let operands = &lowered.graph.node(reader).operands;
    let stored = lowered.stored_in(value);
    operands.iter().filter(|v| lowered.stored_in(**v) == stored).all(|v| lowered.extent(*v).elements() == elements)
}

/// The register type and iteration space of an elementwise or reducing kernel.
fn iteration(lowered: &LoweredGraph<'_>, id: NodeId) -> Option<(Option<DType>, Vec<u64>)> {
    let node = lowered.graph.node(id);
    match lowered.node(id) {
        Lowered::Map(map) => Some((map.compute, lowered.extent(node.results[0]).local.clone())),
        Lowered::Reduce { .. } => {
            let operand = lowered.extent(node.operands[0]);
            Some((Some(operand.ty.dtype), operand.local.clone()))
        }
        _ => None,
    }
}

fn cost(program: &ScalarProgram) -> u32 {
    program
        .code
        .iter()
        .map(|instr| match instr {
            Instr::Const(_) | Instr::Index(_) => 0,
            Instr::Unary(Unary::Exp | Unary::Log | Unary::Sin | Unary::Cos | Unary::Tanh | Unary::Erf | Unary::Sigmoid, _) => 6,
            Instr::Binary(shardc_ir::scalar::Binary::Pow, ..) => 12,
            _ => 1,
        })
        .sum()
}

/// A fused kernel: its map (without outputs), the values it reads, and the nodes it carries out.
pub struct Fused {
    /// The kernel.
    pub map: Map,
    /// The storage read by each input.
    pub reads: Vec<ValueId>,
    /// The nodes inside, in program order.
    pub nodes: Vec<NodeId>,
}

/// The kernel of a map node with everything that is inlined into it.
pub fn map_kernel(lowered: &LoweredGraph<'_>, fusion: &Fusion, id: NodeId) -> Fused {
    let Lowered::Map(map) = lowered.node(id) else { unreachable!("only map nodes have map kernels") };
    let node = lowered.graph.node(id);
    let result = lowered.extent(node.results[0]);
    let compute = map.compute.unwrap_or(DType::F32);
    let mut writer = Writer::new(lowered, fusion, result.local.clone(), compute);
    writer.node(id, &row_major(&result.local));
    let outputs: Vec<DType> = node.results.iter().map(|v| lowered.extent(*v).ty.dtype).collect();
    writer.finish(id, outputs)
}

/// The map before a reduction, with everything that is inlined into it.
pub fn reduce_kernel(lowered: &LoweredGraph<'_>, fusion: &Fusion, id: NodeId) -> Fused {
    let Lowered::Reduce { before, .. } = lowered.node(id) else { unreachable!("only reductions have reduce kernels") };
    let node = lowered.graph.node(id);
    let operand = lowered.extent(node.operands[0]);
    let mut writer = Writer::new(lowered, fusion, operand.local.clone(), operand.ty.dtype);
    let strides = row_major(&operand.local);
    let x = writer.value(node.operands[0], &strides);
    let outputs = writer.inline(before, &[x], &[]);
    writer.outputs = outputs;
    let dtype = lowered.extent(node.results[0]).ty.dtype;
    writer.finish(id, vec![dtype])
}

/// Registers of a kernel under construction. Inputs are numbered after the fact, when all are known.
struct Writer<'a, 'g> {
    lowered: &'a LoweredGraph<'g>,
    fusion: &'a Fusion,
    space: Vec<u64>,
    compute: DType,
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
    fn new(lowered: &'a LoweredGraph<'g>, fusion: &'a Fusion, space: Vec<u64>, compute: DType) -> Writer<'a, 'g> {
        Writer {
            lowered,
            fusion,
            space,
            compute,
            inputs: vec![],
            terms: vec![],
            known: vec![],
            outputs: vec![],
            origins: vec![],
            nodes: vec![],
        }
    }

    /// The program of a map node, its outputs kept as the kernel's; `strides` are of the node's elements over the space.
    fn node(&mut self, id: NodeId, strides: &[i64]) {
        self.outputs = self.program(id, strides);
    }

    fn program(&mut self, id: NodeId, strides: &[i64]) -> Vec<usize> {
        let lowered = self.lowered;
        let Lowered::Map(map) = lowered.node(id) else { unreachable!("only map nodes are inlined") };
        let node = lowered.graph.node(id);
        let local = lowered.extent(node.results[0]).local.clone();
        let arguments: Vec<usize> = node
            .operands
            .iter()
            .map(|v| {
                let own = broadcast_strides(&lowered.extent(*v).local, &local);
                let over = restride(&self.space, strides, &local, &own).expect("checked when it was inlined");
                self.value(*v, &over)
            })
            .collect();
        let mut dims = vec![];
        for (dim, origin) in &map.origins {
            let over = index_dim(&self.space, &local, *dim).expect("checked when it was inlined");
            dims.push((*dim, over));
            if !self.origins.iter().any(|(d, _)| *d == over) {
                self.origins.push((over, origin.clone()));
            }
        }
        self.nodes.push(id);
        self.inline(&map.program, &arguments, &dims)
    }

    /// The register of a value whose elements are at `strides` over the space.
    fn value(&mut self, value: ValueId, strides: &[i64]) -> usize {
        let storage = self.lowered.stored_in(value);
        if let Some((_, _, register)) = self.known.iter().find(|(v, s, _)| *v == storage && s == strides) {
            return *register;
        }
        let node = self.lowered.graph.value(storage).node;
        let register = match &self.lowered.graph.node(node).op {
            Op::Constant(c) if c.value.splat().is_some() => {
                let number = c.value.splat().expect("just asked");
                self.push(Term::Code(Instr::Const(number)))
            }
            _ if self.fusion.is_inlined(node) => self.program(node, strides)[0],
            _ => {
                let input = MapInput { dtype: self.lowered.extent(storage).ty.dtype, strides: strides.to_vec() };
                self.inputs.push((storage, input));
                self.push(Term::Input(self.inputs.len() - 1))
            }
        };
        self.known.push((storage, strides.to_vec(), register));
        register
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
            let at = |r: &Reg| registers[*r as usize] as Reg;
            let moved = match instr {
                Instr::Const(c) => Instr::Const(*c),
                Instr::Index(d) => Instr::Index(dims.iter().find(|(from, _)| from == d).map_or(*d, |(_, to)| *to)),
                Instr::Unary(f, a) => Instr::Unary(*f, at(a)),
                Instr::Binary(f, a, b) => Instr::Binary(*f, at(a), at(b)),
                Instr::Select(c, a, b) => Instr::Select(at(c), at(a), at(b)),
            };
            let register = self.push(Term::Code(moved));
            registers.push(register);
        }
        program.outputs.iter().map(|r| registers[*r as usize]).collect()
    }

    fn finish(mut self, root: NodeId, outputs: Vec<DType>) -> Fused {
        let program = ProgramWriter::program(self.inputs.len(), |w, inputs| {
            let mut registers: Vec<Reg> = vec![];
            for term in &self.terms {
                let at = |r: &Reg| registers[*r as usize];
                let register = match term {
                    Term::Input(i) => inputs[*i],
                    Term::Code(instr) => {
                        let moved = match instr {
                            Instr::Const(_) | Instr::Index(_) => *instr,
                            Instr::Unary(f, a) => Instr::Unary(*f, at(a)),
                            Instr::Binary(f, a, b) => Instr::Binary(*f, at(a), at(b)),
                            Instr::Select(c, a, b) => Instr::Select(at(c), at(a), at(b)),
                        };
                        w.push(moved)
                    }
                };
                registers.push(register);
            }
            self.outputs.iter().map(|r| registers[*r]).collect()
        });
        self.nodes.push(root);
        self.nodes.sort();
        self.nodes.dedup();
        let (reads, inputs) = self.inputs.into_iter().unzip();
        let map = Map { compute: self.compute, shape: self.space, inputs, program, outputs, origins: self.origins };
        Fused { map, reads, nodes: self.nodes }
    }
}

/// The strides of a contiguous tensor of shape `from` broadcast to `to`.
fn broadcast_strides(from: &[u64], to: &[u64]) -> Vec<i64> {
    let own = row_major(from);
    let skip = to.len() - from.len();
    (0..to.len()).map(|d| if d < skip || from[d - skip] == 1 { 0 } else { own[d - skip] }).collect()
}

/// A contiguous tensor of shape `local` lies over an iteration space with `strides` (in its elements); another has strides `own`
/// over the dimensions of `local`. The other's strides over the space, if there are such.
fn restride(space: &[u64], strides: &[i64], local: &[u64], own: &[i64]) -> Option<Vec<i64>> {
    let weights = row_major(local);
    space.iter().zip(strides).map(|(n, stride)| walk(*n as i64, *stride, local, &weights, own)).collect()
}

/// The stride in the other tensor of a walk of `n` steps of `stride` elements.
fn walk(n: i64, stride: i64, local: &[u64], weights: &[i64], own: &[i64]) -> Option<i64> {
    if n == 1 || stride == 0 {
        return Some(0);
    }
    // The innermost dimension that the walk moves along, then outward while it overflows.
    let mut covered = 1;
    let mut step = None;
    for d in (0..local.len()).rev() {
        let size = local[d] as i64;
        if size == 1 {
            continue;
        }
        let reach = stride * covered;
        if reach >= weights[d] * size {
            continue;
        }
        if reach % weights[d] != 0 {
            return None;
        }
        let steps = reach / weights[d];
        let here = own[d] * steps;
        match step {
            None => step = Some(here),
            Some(first) if here != first * covered => return None,
            Some(_) => {}
        }
        if size % steps != 0 {
            return None;
        }
        covered *= size / steps;
        if covered >= n {
            return (covered % n == 0).then_some(step.unwrap_or(0));
        }
    }
    None
}

/// The dimension of the space that is dimension `dim` of `local`, where both are contiguous over the same elements.
fn index_dim(space: &[u64], local: &[u64], dim: u16) -> Option<u16> {
    let (weights, size) = (row_major(local), local[dim as usize]);
    let over = row_major(space);
    (0..space.len()).find(|d| space[*d] == size && over[*d] == weights[dim as usize]).map(|d| d as u16)
}
