//! Random graphs, drawn from a list of choices so that a failing case shrinks with the list.

mod layers;
mod tensors;

use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Output, Phase, State, StateId, ValueId};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::leaf::Input;
use shardc_ir::plan::StateRole;
use shardc_ir::scalar::Unary;
use shardc_ir::train::StateInit;
use shardc_ir::types::Type;

/// Samples in the global batches of random graphs.
pub const BATCHES: [u64; 2] = [8, 12];

/// A source of decisions: the list, then zeros.
pub struct Choices {
    list: Vec<u32>,
    next: usize,
}

impl Choices {
    /// From a list.
    pub fn new(list: Vec<u32>) -> Choices {
        Choices { list, next: 0 }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let value = self.list.get(self.next).copied().unwrap_or(0) as usize;
        self.next += 1;
        value % n.max(1)
    }

    /// True one time in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of the items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A random model and its loss.
pub struct Model {
    /// The imported graph: output `y`, and `l` if it computes its own loss.
    pub graph: Graph,
    /// The loss of the spec.
    pub loss: &'static str,
    /// Samples in the global batch.
    pub batch: u64,
    /// Parameters that are several side by side: name, dimension, sizes.
    pub fused: Vec<(String, usize, Vec<u64>)>,
}

/// Draws a model of at least eight ops on its longest path.
pub fn draw(choices: &mut Choices, dtype: DType) -> Model {
    let batch = choices.pick(&BATCHES);
    let b = Builder::new("random", Phase::Imported, Mesh::single());
    let mut m = Maker { b, c: choices, dtype, batch, parameters: vec![], inputs: 0, dropouts: 0, fused: vec![] };
    let mut x = if m.c.one_in(3) { m.embedded_tokens() } else { m.features() };
    let mut earlier = vec![x];
    let steps = 8 + m.c.below(8);
    for i in 0..steps {
        m.b.origin.scope = Some(format!("h.{}", i / 3).into());
        x = m.step(x, &earlier);
        earlier.push(x);
    }
    m.b.origin.scope = None;
    m.finish(x)
}

/// Builds a graph as the choices say.
struct Maker<'a> {
    b: Builder,
    c: &'a mut Choices,
    dtype: DType,
    batch: u64,
    parameters: Vec<ValueId>,
    inputs: usize,
    dropouts: u32,
    fused: Vec<(String, usize, Vec<u64>)>,
}

/// Kinds of steps.
const STEPS: usize = 29;

impl Maker<'_> {
    /// One more step after `x`; `earlier` is what was computed before.
    fn step(&mut self, x: ValueId, earlier: &[ValueId]) -> ValueId {
        match self.c.below(STEPS) {
            0 | 1 => self.linear(x),
            2 => self.activation(x),
            3 => self.broadcast_parameter(x),
            4 => self.residual(x, earlier),
            5 => self.normalised(x),
            6 => self.softmax(x),
            7 => self.attention(x),
            8 => self.merged(x),
            9 => self.transposed(x),
            10 => self.sliced(x),
            11 => self.concatenated(x),
            12 => self.reduced(x),
            13 => self.compared(x),
            14 => self.indexed(x),
            15 => self.batch_normalised(x),
            16 => self.convolved(x),
            17 => self.pooled(x),
            18 => self.dropped(x),
            19 => self.bounded(x),
            20 => self.stepped(x),
            21 => self.decided(x),
            22 => self.scattered(x),
            23 => self.fused(x),
            24 => self.matched(x),
            25 => self.detached(x),
            26 => self.counted(x),
            27 => self.picked(x),
            _ => self.remainder(x),
        }
    }

    fn features(&mut self) -> ValueId {
        let shapes: [&[u64]; 9] = [&[8], &[4, 8], &[6, 4], &[2, 4, 4], &[12], &[3, 8], &[4, 6], &[6, 2, 3], &[2, 3, 2, 2]];
        let mut shape = self.c.pick(&shapes).to_vec();
        shape.insert(0, self.batch);
        let x = self.input(Type::new(self.dtype, shape));
        if self.c.one_in(5) { self.centered(x) } else { x }
    }

    /// Another input of the model.
    fn input(&mut self, ty: Type) -> ValueId {
        let name = ["x", "x1", "x2", "x3"].get(self.inputs).map_or_else(|| format!("x{}", self.inputs), |name| name.to_string());
        self.inputs += 1;
        self.b.op(Input { name, ty, label: false }, &[])
    }

    /// An input less its mean over the whole batch: what micro-batches compute in a loop of its
    /// own.
    fn centered(&mut self, x: ValueId) -> ValueId {
        let sum = self.b.sum(x, &[0]);
        let mean = self.b.scale(sum, 1.0 / self.batch as f64);
        self.b.sub(x, mean)
    }

    fn embedded_tokens(&mut self) -> ValueId {
        let (tokens, width) = (self.c.pick(&[4, 6]), self.c.pick(&[8, 6]));
        let ids = self.input(Type::new(DType::I64, [self.batch, tokens]));
        let table = self.parameter(&[12, width]);
        let rows = self.b.op(Gather::along(0), &[table, ids]);
        let positions = self.parameter(&[tokens, width]);
        self.b.add(rows, positions)
    }

    /// A new parameter, or now and then one that is there.
    fn parameter(&mut self, shape: &[u64]) -> ValueId {
        let same: Vec<ValueId> = self.parameters.iter().copied().filter(|v| self.b.ty(*v).shape == shape).collect();
        if !same.is_empty() && self.c.one_in(6) {
            return same[self.c.below(same.len())];
        }
        let new = self.variable(shape, StateRole::Parameter);
        self.parameters.push(new);
        new
    }

    fn variable(&mut self, shape: &[u64], role: StateRole) -> ValueId {
        let states = &mut self.b.graph_mut().states;
        let id = StateId(states.len() as u32);
        states.push(State::new(format!("p{}", id.0), Type::new(self.dtype, shape), role, StateInit::Model));
        self.b.state(id)
    }

    fn shape(&self, x: ValueId) -> Vec<u64> {
        self.b.ty(x).shape.clone()
    }

    fn finish(mut self, x: ValueId) -> Model {
        let loss = self.c.pick(&[
            "mse prediction=y labels=t",
            "cross_entropy logits=y labels=t",
            "cross_entropy logits=y labels=t label_smoothing=0.2",
            "cross_entropy logits=y labels=t ignore_index=1",
            "cross_entropy logits=y labels=t ignore_index=1 class_axis=1 label_smoothing=0.1",
            "bce_with_logits logits=y labels=t",
            "output=l",
        ]);
        let mut y = self.linear(x);
        if loss.starts_with("cross_entropy") {
            y = self.linear(y);
        }
        // Whatever came before, the loss moves with this.
        let shape = self.shape(y);
        let level = self.parameter(&shape[1..]);
        let y = self.b.add(y, level);
        self.b.rename(y, "y");
        self.b.graph_mut().outputs.push(Output { name: "y".into(), value: y });
        if loss == "output=l" {
            let l = self.own_loss(y);
            self.b.graph_mut().outputs.push(Output { name: "l".into(), value: l });
        }
        Model { graph: self.b.finish(), loss, batch: self.batch, fused: self.fused }
    }

    /// The root of the mean square, or one of each sample: only the second is a sum over samples.
    fn own_loss(&mut self, y: ValueId) -> ValueId {
        let ty = self.b.ty(y).clone();
        let axes: Vec<usize> = (self.c.below(2)..ty.rank()).collect();
        let terms: u64 = axes.iter().map(|axis| ty.shape[*axis]).product();
        let t = self.b.op(Input { name: "t".into(), ty, label: false }, &[]);
        let difference = self.b.sub(y, t);
        let square = self.b.mul(difference, difference);
        let sum = self.b.sum(square, &axes);
        let mean = self.b.scale(sum, 1.0 / terms as f64);
        let safe = self.b.offset(mean, 0.1);
        self.b.unary(Unary::Sqrt.into(), safe)
    }
}
