//! One op as a graph whose operands are laid out as drawn: what is partial is the sum, or the
//! largest or smallest, of parts that ranks and micro-batches have.

use crate::instances::{instance, is_exact, takes_any_float};
use crate::layouts::{Layout, layout};
use crate::numbers::Numbers;
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Output, Part, Phase, State, StateId, ValueId};
use shardc_ir::interp::{Feed, evaluate};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::ops::attention::AttentionGrad;
use shardc_ir::ops::leaf::{Constant, Host, Input};
use shardc_ir::ops::reduce::Reduce;
use shardc_ir::ops::samples::{Argument, Sample};
use shardc_ir::plan::{HostScalar, StateRole};
use shardc_ir::sharding::{Sharding, outermost};
use shardc_ir::text::print;
use shardc_ir::train::StateInit;
use shardc_ir::types::{Tensor, Type};
use shardc_testkit::random::Random;

/// A drawn op with its operands.
pub struct Trial {
    /// As propagation leaves it; that of a reshard is explicit.
    pub graph: Graph,
    /// The spec that has the mesh, the micro-batches and the learning rate.
    pub spec: String,
    /// The elements of inputs and states.
    pub feed: Feed,
    /// The op.
    pub op: Op,
    /// Whether an operand is partial.
    pub partial: bool,
}

impl Trial {
    /// A random instance of the op called `name` under a random layout.
    pub fn draw(name: &str, random: &mut Random) -> Trial {
        let Sample { op, operands } = instance(name, random);
        let types: Vec<Type> = operands.iter().map(|a| a.ty.clone()).collect();
        let results = op.rules().result(&types).expect("the instance fits");
        let states = states(&op);
        let layout = layout(&op, &types, &results, &states, random);
        let phase = if matches!(op, Op::Reshard(_)) { Phase::Explicit } else { Phase::Annotated };
        let feed = Feed { learning_rate: 0.5, step_count: 1, seed: 7, ..Feed::default() };
        let b = Builder::new(name, phase, layout.mesh.clone());
        let mut leaves = Leaves { b, feed, random, layout: &layout };
        let whole = leaves.numbers(&op, &operands);
        let values: Vec<ValueId> =
            (0..).zip(&types).zip(&whole).map(|((i, ty), whole)| leaves.operand(i, ty, whole, states.contains(&i))).collect();
        let Leaves { mut b, feed, .. } = leaves;
        b.origin.part = if states.is_empty() { Part::Forward } else { Part::Update };
        let results = b.push(op.clone(), &values, results, "y");
        let graph = b.graph_mut();
        for (i, value) in results.iter().enumerate() {
            graph.set_sharding(*value, layout.results[i].clone());
            match states.get(i).map(|operand| graph.def(values[*operand]).op.clone()) {
                Some(Op::State(read)) => graph.states[read.state.index()].update = Some(*value),
                _ => graph.outputs.push(Output { name: graph.value(*value).name.to_string(), value: *value }),
            }
        }
        if let Some(state) = states.first().map(|_| 0) {
            graph.states[state].gradient = Some(values[1]);
        }
        let axes: String = layout.mesh.rank_axes().iter().map(|a| format!(" {}={}", a.name, a.size)).collect();
        let microbatches = layout.mesh.microbatches();
        let spec = format!("mesh{axes}\nbatch {microbatches} microbatches={microbatches}\noptimizer sgd lr=0.5\nseed 7\n");
        let partial = layout.operands.iter().any(|s| !s.partial.is_empty());
        Trial { graph: b.finish(), spec, feed, op, partial }
    }

    /// The spec and the graph.
    pub fn text(&self) -> String {
        format!("{}{}", self.spec, print(&self.graph))
    }

    /// Whether the op must compute every element to the bit.
    pub fn is_exact(&self) -> bool {
        is_exact(&self.op)
    }
}

/// The operands that are states, in the order of the results that they become.
fn states(op: &Op) -> Vec<usize> {
    match op {
        Op::Sgd(op) if op.momentum == 0.0 => vec![0],
        Op::Sgd(_) => vec![0, 3],
        Op::Adam(_) => vec![0, 5, 6],
        _ => vec![],
    }
}

struct Leaves<'r, 'l> {
    b: Builder,
    feed: Feed,
    random: &'r mut Random,
    layout: &'l Layout,
}

impl Leaves<'_, '_> {
    /// The elements of all operands; a scalar is half of the time one that the host has.
    fn numbers(&mut self, op: &Op, operands: &[Argument]) -> Vec<(Numbers, Option<HostScalar>)> {
        let any_float = takes_any_float(op) && self.random.below(4) == 0;
        let mut all = vec![];
        for argument in operands {
            let (scalar, number) = self.scalar();
            let fits = argument.ty == Type::scalar(scalar.dtype()) && (argument.low..argument.high).contains(&number);
            all.push(if fits && self.random.below(2) == 0 {
                (Numbers::of_tensor(&Tensor::scalar(scalar.dtype(), number)), Some(scalar))
            } else {
                (Numbers::of(argument, any_float, self.random), None)
            });
        }
        // Its output and the logarithms of its sums are those of the forward op.
        if let Op::AttentionGrad(AttentionGrad { of }) = op {
            let forward: Vec<Tensor> = operands.iter().zip(&all).map(|(a, (numbers, _))| numbers.tensor(&a.ty)).collect();
            let count = operands.len() - 3;
            let results = evaluate(&of.clone().into(), &forward[..count]).expect("the instance fits");
            (count..).zip(results).for_each(|(i, result)| all[i] = (Numbers::of_tensor(&result), None));
        }
        all
    }

    /// A number that the host writes.
    fn scalar(&mut self) -> (HostScalar, f64) {
        [
            (HostScalar::LearningRate, self.feed.learning_rate),
            (HostScalar::StepCount, self.feed.step_count as f64),
            (HostScalar::Seed, self.feed.seed as f64),
        ][self.random.below(3)]
    }

    /// Operand `i` of the op under its sharding.
    fn operand(&mut self, i: usize, ty: &Type, (whole, scalar): &(Numbers, Option<HostScalar>), is_state: bool) -> ValueId {
        let sharding = self.layout.operands[i].clone();
        let Some(kind) = sharding.partial.first().map(|p| p.kind) else {
            return match scalar.filter(|_| !is_state) {
                Some(scalar) => self.b.op(Host { scalar }, &[]),
                None => self.leaf(i, whole.tensor(ty), sharding, is_state),
            };
        };
        let axes: Vec<AxisId> = sharding.partial.iter().map(|p| p.axis).collect();
        let mesh = &self.layout.mesh;
        let count = axes.iter().map(|axis| mesh.size(*axis)).product::<u64>() * [1, 2][self.random.below(2)];
        let splits = outermost(count, 1, &axes, mesh).expect("each part is some rank's");
        let parts = whole.parts(count as usize, kind, self.random);
        let ty = Type::new(ty.dtype, [&[count], &ty.shape[..]].concat());
        let dims = [&[splits], &sharding.dims[..]].concat();
        let parts = self.leaf(i, parts.tensor(&ty), Sharding { dims, ..Sharding::default() }, false);
        let value = self.b.op(Reduce::new(kind, vec![0]), &[parts]);
        let is_explicit = self.b.graph().phase == Phase::Explicit;
        let partial = if is_explicit { sharding.partial } else { vec![] };
        self.b.graph_mut().set_sharding(value, Sharding { dims: sharding.dims, partial, ..Sharding::default() });
        value
    }

    /// An input, a state or a constant.
    fn leaf(&mut self, i: usize, tensor: Tensor, sharding: Sharding, is_state: bool) -> ValueId {
        let name = format!("x{i}");
        let may_be_state = !sharding.splits(self.layout.mesh.microbatch_axis());
        let value = match self.random.below(8) {
            0 | 1 if may_be_state => self.state(name, tensor, &sharding),
            _ if is_state => self.state(name, tensor, &sharding),
            2 => self.b.op(Constant { value: tensor }, &[]),
            _ => {
                self.feed.inputs.insert(name.clone(), tensor.clone());
                self.b.op(Input { name, ty: tensor.ty, label: false }, &[])
            }
        };
        self.b.graph_mut().set_sharding(value, sharding);
        value
    }

    fn state(&mut self, name: String, tensor: Tensor, sharding: &Sharding) -> ValueId {
        let mut state = State::new(&name, tensor.ty.clone(), StateRole::Parameter, StateInit::Model);
        state.sharding = sharding.clone();
        self.b.graph_mut().states.push(state);
        self.feed.states.insert(name, tensor);
        let id = StateId(self.b.graph().states.len() as u32 - 1);
        self.b.state(id)
    }
}
