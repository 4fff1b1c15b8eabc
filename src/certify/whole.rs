//! What a graph computes on whole tensors in f64: on one rank, with one micro-batch, without
//! communication, and of all its values those only that are asked for.

use super::{MOST_BYTES, MOST_WORK, Stop};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{self, Diagnostic};
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, Output, Phase, State, ValueId};
use shardc_ir::kernel::Kernel;
use shardc_ir::kernel::signature::counted;
use shardc_ir::listing::units::{bytes_text, count_text};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::Cast;
use shardc_ir::ops::leaf::{Constant, Input};
use shardc_ir::ops::norm::{LayerNorm, RmsNorm};
use shardc_ir::ops::reduce::Reduce;
use shardc_ir::plan::Program;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;
use shardc_ir::spec::Spec;
use shardc_ir::types::{Tensor as Value, Type};
use shardc_passes::{Context, Mode, planning};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// A graph, of which each value is traced to what computes it.
pub struct Whole<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// For each value, the one that it is a copy of.
    source: Vec<ValueId>,
}

impl<'g> Whole<'g> {
    /// A value that communication hands on is what it was before.
    pub fn new(graph: &'g Graph) -> Whole<'g> {
        let mut whole = Whole { graph, source: graph.values().map(|(id, _)| id).collect() };
        // Dropout is the identity as imported.
        for (_, node) in graph.nodes().filter(|(_, node)| node.op.is_comm() || matches!(node.op, Op::Dropout(_))) {
            whole.source[node.results[0].index()] = whole.source(node.operands[0]);
        }
        whole
    }

    /// The same without dropout: what is kept with a probability, and divided by it, is itself.
    ///
    /// # Errors
    /// If what is kept is not divided by its probability.
    pub fn without_dropout(graph: &'g Graph) -> Result<Whole<'g>, Reason> {
        let mut whole = Whole::new(graph);
        for (_, node) in graph.nodes() {
            let result = match &node.op {
                op if op.is_comm() => node.operands[0],
                Op::Where(_) => {
                    let Op::KeepMask(mask) = &whole.def(node.operands[0]).op else { continue };
                    let kept = whole.def(node.operands[1]);
                    let factor = kept.operands.get(1).and_then(|factor| match &whole.def(*factor).op {
                        Op::Constant(constant) => constant.value.splat(),
                        _ => None,
                    });
                    let is_scaled = matches!(&kept.op, Op::Binary(op) if op.f == Binary::Mul)
                        && factor.is_some_and(|factor| (factor * (1.0 - mask.ratio) - 1.0).abs() < 1e-6);
                    if !is_scaled {
                        return Err(reason!(
                            "`{}` is not divided by how likely dropout keeps it",
                            graph.value(node.results[0]).name
                        ));
                    }
                    kept.operands[0]
                }
                _ => continue,
            };
            whole.source[node.results[0].index()] = whole.source(result);
        }
        Ok(whole)
    }

    /// What computes a value.
    pub fn source(&self, value: ValueId) -> ValueId {
        self.source[value.index()]
    }

    /// The node that computes a value.
    pub fn def(&self, value: ValueId) -> &'g Node {
        self.graph.def(self.source(value))
    }

    /// The program of `wanted`, where the values `cut` are inputs (see [`cut_name`]).
    ///
    /// # Errors
    /// If an op does not take f64, or the program cannot be planned.
    pub fn program(&self, wanted: &[ValueId], cut: &[ValueId], spec: &Spec) -> Result<Planned, Reason> {
        let graph = self.graph_of(wanted, cut)?;
        let spec = spec.reference();
        let cx = Context { spec: &spec, mode: Mode::Evaluate, verify: false };
        let program = planning::plan(&graph, &cx).map_err(|errors| Reason::from(words(&errors)))?.into_first();
        let mut steps = program.tasks.iter().flat_map(|task| &task.steps);
        let work = steps.try_fold(0, |sum: u64, step| Ok::<_, Reason>(sum.saturating_add(work(&step.kernel, &graph.mesh)?)))?;
        Ok(Planned { program, wanted: wanted.len(), work })
    }

    /// For each value whether `wanted` needs it, when the values `cut` are given.
    pub fn needed(&self, wanted: &[ValueId], cut: &HashMap<ValueId, usize>) -> Vec<bool> {
        let mut needed = vec![false; self.graph.value_count()];
        wanted.iter().for_each(|value| needed[self.source(*value).index()] = true);
        for (_, node) in self.graph.nodes().rev() {
            if node.results.iter().any(|v| needed[v.index()] && self.source(*v) == *v && !cut.contains_key(v)) {
                node.operands.iter().for_each(|v| needed[self.source(*v).index()] = true);
            }
        }
        needed
    }

    fn graph_of(&self, wanted: &[ValueId], cut: &[ValueId]) -> Result<Graph, Reason> {
        let graph = self.graph;
        let cut: HashMap<ValueId, usize> = cut.iter().enumerate().map(|(number, value)| (self.source(*value), number)).collect();
        let needed = self.needed(wanted, &cut);
        let mut b = Builder::new(graph.name.clone(), Phase::Explicit, Mesh::new([], 1));
        let state = |s: &State| State { block: s.block.clone(), ..State::new(&s.name, precise(&s.ty), s.role, s.init.clone()) };
        b.graph_mut().states = graph.states.iter().map(state).collect();
        let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
        for (_, node) in graph.nodes() {
            let is_needed = |v: &&ValueId| needed[v.index()] && self.source(**v) == **v;
            for value in node.results.iter().filter(is_needed) {
                if let Some(number) = cut.get(value) {
                    let ty = precise(graph.ty(*value));
                    map[value.index()] = Some(b.op(Input { name: cut_name(*number), ty, label: false }, &[]));
                }
            }
            if !node.results.iter().filter(is_needed).any(|v| map[v.index()].is_none()) {
                continue;
            }
            let operands: Option<Vec<ValueId>> = node.operands.iter().map(|v| map[self.source(*v).index()]).collect();
            let operands = operands.ok_or("an operand comes behind its reader")?;
            let results = match &node.op {
                Op::State(read) => vec![b.state(read.state)],
                op => b.try_node(in_f64(op), &operands, &graph.value(node.results[0]).name)?,
            };
            for (old, new) in node.results.iter().zip(results) {
                map[old.index()].get_or_insert(new);
            }
        }
        let output = |(number, value): (usize, &ValueId)| {
            let value = map[self.source(*value).index()].ok_or("a value is computed nowhere")?;
            Ok::<_, Reason>(Output { name: number.to_string(), value })
        };
        b.graph_mut().outputs = wanted.iter().enumerate().map(output).collect::<Result<_, _>>()?;
        Ok(b.finish())
    }
}

/// The name of the input that stands for the value `number` of those that are cut.
pub fn cut_name(number: usize) -> String {
    format!("cut {number}")
}

/// The same type in f64, if it is one of floats.
fn precise(ty: &Type) -> Type {
    ty.with_dtype(in_precise(ty.dtype))
}

fn in_precise(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

/// The same op on f64.
fn in_f64(op: &Op) -> Op {
    match op {
        Op::Input(input) => Input { ty: precise(&input.ty), ..input.clone() }.into(),
        Op::Cast(cast) => Cast { dtype: in_precise(cast.dtype) }.into(),
        // Rounding is not held against anything.
        Op::RoundTo(_) => Cast { dtype: DType::F64 }.into(),
        Op::Contract(contract) => Contract::new(&contract.spec).into(),
        Op::LayerNorm(norm) => LayerNorm { dtype: None, ..norm.clone() }.into(),
        Op::RmsNorm(norm) => RmsNorm { dtype: None, ..norm.clone() }.into(),
        Op::Reduce(sum) => Reduce { dtype: None, ..sum.clone() }.into(),
        Op::Constant(constant) if constant.value.ty.dtype.is_float() => {
            Constant { value: Value::from_f64(precise(&constant.value.ty), &constant.value.to_f64()) }.into()
        }
        op => op.clone(),
    }
}

/// What one launch costs, in operations of products.
const LAUNCH: u64 = 20_000;

/// What an addition costs that is in no product, in operations of products.
const ADDITION: u64 = 16;

/// The cost of a kernel on `mesh`, in operations of products; two bytes of its operands cost as
/// much as one.
fn work(kernel: &Kernel, mesh: &Mesh) -> Result<u64, Reason> {
    let work = kernel.work(mesh)?;
    let operations = match kernel {
        Kernel::Contract(_) | Kernel::Conv(_) | Kernel::Attention(_) | Kernel::AttentionGrad(_) => work.flops,
        Kernel::Map(map) => counted(map.shape.iter().copied().chain([u64::from(map.program.cost()), ADDITION])),
        _ => work.flops.saturating_mul(ADDITION),
    };
    Ok([LAUNCH, operations, work.read / 2, work.written / 2].into_iter().fold(0, u64::saturating_add))
}

/// A program that can be run.
#[derive(Clone)]
pub struct Planned {
    program: Program,
    wanted: usize,
    /// The cost of one run, in operations of products.
    work: u64,
}

/// A program under way.
pub struct Run {
    executor: Executor,
    inputs: Vec<String>,
    states: HashSet<String>,
    wanted: usize,
}

impl Planned {
    /// About how many operations a run costs.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Refuses so many runs of the program if they cost too much.
    ///
    /// # Errors
    /// What is too much.
    pub fn affordable(&self, runs: u64) -> Result<(), Reason> {
        let (work, bytes) = (self.work.saturating_mul(runs), self.program.arena_bytes);
        if work > MOST_WORK {
            let (runs, work, most) = (diagnostic::counted(runs, "run"), count_text(work), count_text(MOST_WORK));
            return Err(reason!("{runs} of the model cost {work} operations, more than {most}"));
        }
        if bytes > MOST_BYTES {
            return Err(reason!("running the model takes {}, more than {}", bytes_text(bytes), bytes_text(MOST_BYTES)));
        }
        Ok(())
    }

    /// Starts the program.
    ///
    /// # Errors
    /// If it costs too much, or the machine lacks memory or threads.
    pub fn start(self) -> Result<Run, Stop> {
        self.affordable(1).map_err(Stop::Unseen)?;
        let Planned { program, wanted, .. } = self;
        let inputs = program.inputs.iter().map(|input| input.name.clone()).collect();
        let states = program.states.iter().map(|state| state.name.clone()).collect();
        let executor = Executor::new(program, 1).map_err(|error| Stop::Unseen(error.to_string().into()))?;
        Ok(Run { executor, inputs, states, wanted })
    }
}

/// The first of some errors in words.
pub fn words(errors: &[Diagnostic]) -> String {
    errors.first().map_or_else(String::new, |error| error.message.clone())
}

impl Run {
    /// Sets state variables; those that the program does not read are let be.
    ///
    /// # Errors
    /// If one has another shape.
    pub fn set(&mut self, values: impl IntoIterator<Item = (impl AsRef<str>, impl Borrow<Tensor>)>) -> Result<(), Reason> {
        let read: Vec<_> = values.into_iter().filter(|(state, _)| self.states.contains(state.as_ref())).collect();
        let values = read.iter().map(|(state, value)| (state.as_ref(), value.borrow().clone()));
        self.executor.set_states(values).map_err(|error| error.to_string().into())
    }

    /// Runs once, as `step` from 0, and gives what was wanted, in order.
    ///
    /// # Errors
    /// If data is missing or wrong, or a kernel refuses it.
    pub fn run(&mut self, step: u64, data: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, Reason> {
        let array = |name: &String| {
            let array = data.get(name).ok_or_else(|| reason!("there is no data for `{name}`"))?;
            Ok::<_, Reason>(array.cast(in_precise(array.dtype)))
        };
        let batch = self.inputs.iter().map(array).collect::<Result<Vec<_>, _>>()?;
        self.executor.set_next_step(step);
        let mut result = self.executor.step(Arc::new(batch)).map_err(|error| Reason::from(error.to_string()))?;
        let output =
            |number: usize| result.outputs.remove(&number.to_string()).ok_or_else(|| reason!("there is no result {number}"));
        (0..self.wanted).map(output).collect()
    }
}
