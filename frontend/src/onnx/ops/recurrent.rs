//! Recurrent layers, written out step by step.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::layout::{join, parts};
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::layout::Slice;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::Tensor;

type Outputs = Result<Vec<Value>, Reason>;

/// `h' = f(x W + h R + b)`
pub(in crate::onnx) fn rnn(c: &mut Call<'_, '_>) -> Outputs {
    layer(c, Kind::Plain)
}

/// Gated recurrent units. Cho et al.: Learning Phrase Representations using RNN Encoder-Decoder
/// (2014)
pub(in crate::onnx) fn gru(c: &mut Call<'_, '_>) -> Outputs {
    let linear_before_reset = c.attribute_int("linear_before_reset", 0)? != 0;
    layer(c, Kind::Gated { linear_before_reset })
}

/// Long short-term memory. Hochreiter, Schmidhuber: Long Short-Term Memory (1997)
pub(in crate::onnx) fn lstm(c: &mut Call<'_, '_>) -> Outputs {
    if c.attribute_int("input_forget", 0)? != 0 {
        return Err("coupled input and forget gates are not supported".into());
    }
    layer(c, Kind::LongShort)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Gated { linear_before_reset: bool },
    LongShort,
}

impl Kind {
    /// Vectors of the hidden size that each step computes from input and state.
    fn gates(self) -> u64 {
        match self {
            Kind::Plain => 1,
            Kind::Gated { .. } => 3,
            Kind::LongShort => 4,
        }
    }

    fn activations(self) -> &'static [UnaryFn] {
        const SIGMOID: UnaryFn = UnaryFn::Scalar(Unary::Sigmoid);
        const TANH: UnaryFn = UnaryFn::Scalar(Unary::Tanh);
        match self {
            Kind::Plain => &[TANH],
            Kind::Gated { .. } => &[SIGMOID, TANH],
            Kind::LongShort => &[SIGMOID, TANH, TANH],
        }
    }
}

/// One direction of a layer.
struct Cell {
    kind: Kind,
    activations: Vec<UnaryFn>,
    /// `[gates * hidden, hidden]`
    recurrence: Value,
    /// Its rows for the gates and for the candidate, where these see different states.
    rows: Option<Vec<Value>>,
    /// The bias of the recurrence where it must stay apart from that of the input:
    /// `[gates * hidden]`.
    recurrent_bias: Option<Value>,
    /// Weights of the state in each gate but the third: `[hidden]`.
    peepholes: Option<Vec<Value>>,
}

/// The state that one step hands to the next: `[batch, hidden]`.
#[derive(Clone)]
struct State {
    hidden: Value,
    cell: Option<Value>,
}

/// The part of `value` for direction `d`, which must have `shape`.
fn part_of_shape(
    c: &mut Call<'_, '_>,
    value: &Value,
    (axis, d): (usize, usize),
    shape: &[u64],
    what: &str,
) -> Result<Value, Reason> {
    let part = of_direction(c, value, axis, d)?;
    let own = c.shape(&part)?;
    if own == shape { Ok(part) } else { Err(reason!("its {what} has shape {own:?} for a direction, not {shape:?}")) }
}

/// All directions over all steps; results: every hidden state, the last ones, the last cells
fn layer(c: &mut Call<'_, '_>, kind: Kind) -> Outputs {
    if c.has_attribute("clip") {
        return Err("attribute `clip` is not supported".into());
    }
    let batch_first = c.attribute_int("layout", 0)? != 0;
    let (x, w, r) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let x = if batch_first { c.transpose(&x, vec![1, 0, 2])? } else { x };
    let shape = c.shape(&x)?;
    let ([steps, batch, _], [directions, _, hidden]) = (&shape[..], &c.shape(&r)?[..]) else {
        return Err(reason!("its input has shape {shape:?}, its weights {:?}", c.shape(&r)?));
    };
    let (steps, batch, directions, hidden) = (*steps, *batch, *directions, *hidden);
    c.ignore("hidden_size");
    if steps == 0 {
        return Err("a sequence without steps".into());
    }
    if !c.context.budget.unroll(steps.saturating_mul(directions)) {
        let why = "each is written out, and with those of other layers they are too many for a model of this size";
        return Err(reason!("a sequence of {steps} steps: {why}"));
    }
    let direction = c.attribute_string("direction", "forward")?;
    let reversed: &[bool] = match direction.as_str() {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(reason!("its direction is `{other}`")),
    };
    if directions != reversed.len() as u64 {
        return Err(reason!("its weights are for {directions} directions, not {}", reversed.len()));
    }
    let all_activations = activations(c, kind, reversed.len())?;
    let per_direction = kind.activations().len();
    let (mut outputs, mut last_hidden, mut last_cells) = (vec![], vec![], vec![]);
    for (d, reverse) in reversed.iter().enumerate() {
        let size = kind.gates() * hidden;
        let (w, r) = (of_direction(c, &w, 0, d)?, of_direction(c, &r, 0, d)?);
        let biases = match c.optional(3) {
            Some(b) => {
                let b = part_of_shape(c, &b, (0, d), &[2 * size], "bias")?;
                Some(parts(c, &b, 0, &[size, size])?)
            }
            None => None,
        };
        let apart = kind == Kind::Gated { linear_before_reset: true };
        let mut projected = c.emit(Contract::new("tbi,gi->tbg"), &[x.clone(), w])?;
        if let Some(biases) = &biases {
            let bias = if apart { biases[0].clone() } else { c.binary(Binary::Add, &biases[0], &biases[1])? };
            projected = c.binary(Binary::Add, &projected, &bias)?;
        }
        let peepholes = match c.optional(7).filter(|_| kind == Kind::LongShort) {
            Some(p) => {
                let p = part_of_shape(c, &p, (0, d), &[3 * hidden], "weight of the cells")?;
                Some(parts(c, &p, 0, &[hidden; 3])?)
            }
            None => None,
        };
        let rows = match kind {
            Kind::Gated { linear_before_reset: false } => Some(parts(c, &r, 0, &[2 * hidden, hidden])?),
            _ => None,
        };
        let cell = Cell {
            kind,
            rows,
            activations: all_activations[d * per_direction..][..per_direction].to_vec(),
            recurrence: r,
            recurrent_bias: biases.filter(|_| apart).map(|b| b[1].clone()),
            peepholes,
        };
        let axis = usize::from(batch_first);
        let first = |c: &mut Call<'_, '_>, input: usize| match c.optional(input) {
            Some(state) => part_of_shape(c, &state, (axis, d), &[batch, hidden], "first state"),
            None => {
                let zero = c.number(&x, 0.0)?;
                c.broadcast(&zero, vec![batch, hidden])
            }
        };
        let state = State { hidden: first(c, 5)?, cell: if kind == Kind::LongShort { Some(first(c, 6)?) } else { None } };
        let (states, last) = cell.run(c, &projected, state, *reverse)?;
        let column: Vec<Value> = states.iter().map(|h| c.reshape(h, vec![1, 1, batch, hidden])).collect::<Result<_, _>>()?;
        outputs.push(join(c, &column, 0)?);
        last_hidden.push(c.reshape(&last.hidden, vec![1, batch, hidden])?);
        if let Some(cell) = &last.cell {
            last_cells.push(c.reshape(cell, vec![1, batch, hidden])?);
        }
    }
    let mut results = vec![join(c, &outputs, 1)?, join(c, &last_hidden, 0)?];
    if kind == Kind::LongShort {
        results.push(join(c, &last_cells, 0)?);
    }
    if batch_first {
        results[0] = c.transpose(&results[0], vec![2, 0, 1, 3])?;
        for last in &mut results[1..] {
            *last = c.transpose(last, vec![1, 0, 2])?;
        }
    }
    Ok(results)
}

/// The part of a tensor for one direction.
fn of_direction(c: &mut Call<'_, '_>, x: &Value, axis: usize, direction: usize) -> Result<Value, Reason> {
    let mut shape = c.shape(x)?;
    let count = *shape.get(axis).ok_or_else(|| reason!("{shape:?} has no dimension of directions"))?;
    let own = if count == 1 {
        x.clone()
    } else {
        c.emit(Slice { axis, start: direction as u64, step: 1, size: 1 }, std::slice::from_ref(x))?
    };
    shape.remove(axis);
    c.reshape(&own, shape)
}

/// The activations of all directions, one after another.
fn activations(c: &mut Call<'_, '_>, kind: Kind, directions: usize) -> Result<Vec<UnaryFn>, Reason> {
    let names = c.attribute_strings("activations")?;
    if names.is_empty() {
        return Ok(kind.activations().repeat(directions));
    }
    if names.len() != kind.activations().len() * directions {
        return Err(reason!("{} activations for {directions} directions", names.len()));
    }
    let function = |name: &String| match name.as_str() {
        "Sigmoid" => Ok(Unary::Sigmoid.into()),
        "Tanh" => Ok(Unary::Tanh.into()),
        "Relu" => Ok(UnaryFn::Relu),
        other => Err(reason!("activation `{other}` is not supported")),
    };
    names.iter().map(function).collect()
}

impl Cell {
    /// The hidden state of every step, in the order of time, and the state after the last.
    fn run(&self, c: &mut Call<'_, '_>, projected: &Value, first: State, reverse: bool) -> Result<(Vec<Value>, State), Reason> {
        let mut inputs = steps(c, projected)?;
        let lengths = c.optional(4);
        let order: Vec<usize> = if reverse { (0..inputs.len()).rev().collect() } else { (0..inputs.len()).collect() };
        let mut state = first;
        for t in order {
            let mut next = self.step(c, &inputs[t], &state)?;
            inputs[t] = next.hidden.clone();
            if let Some(lengths) = &lengths {
                // A sequence that has ended (or, backwards, not begun) keeps its state and gives
                // zeros.
                let batch = c.shape(&next.hidden)?[0];
                let lengths = c.reshape(lengths, vec![batch, 1])?;
                let now = Value::Known(Tensor::from_i64([], &[t as i64]));
                let live = c.binary(Binary::Lt, &now, &lengths)?;
                let zero = c.number(&next.hidden, 0.0)?;
                inputs[t] = c.select(&live, &next.hidden, &zero)?;
                next.hidden = c.select(&live, &next.hidden, &state.hidden)?;
                next.cell = match (&next.cell, &state.cell) {
                    (Some(new), Some(old)) => Some(c.select(&live, new, old)?),
                    _ => None,
                };
            }
            state = next;
        }
        Ok((inputs, state))
    }

    fn step(&self, c: &mut Call<'_, '_>, input: &Value, state: &State) -> Result<State, Reason> {
        match (self.kind, &state.cell) {
            (Kind::Plain, _) => {
                let sum = self.plus_recurrence(c, input, &state.hidden)?;
                Ok(State { hidden: c.unary(self.activations[0], &sum)?, cell: None })
            }
            (Kind::Gated { .. }, _) => self.gated(c, input, &state.hidden),
            (Kind::LongShort, Some(cell)) => self.long_short(c, input, state, cell),
            (Kind::LongShort, None) => Err("its cells have no state".into()),
        }
    }

    /// `[batch, gates * hidden]` from the state.
    fn recurrent(&self, c: &mut Call<'_, '_>, hidden: &Value, rows: &Value) -> Result<Value, Reason> {
        c.emit(Contract::new("bh,gh->bg"), &[hidden.clone(), rows.clone()])
    }

    fn plus_recurrence(&self, c: &mut Call<'_, '_>, input: &Value, hidden: &Value) -> Result<Value, Reason> {
        let recurrent = self.recurrent(c, hidden, &self.recurrence)?;
        c.binary(Binary::Add, input, &recurrent)
    }

    fn gated(&self, c: &mut Call<'_, '_>, input: &Value, hidden: &Value) -> Result<State, Reason> {
        let size = c.shape(hidden)?[1];
        let own = parts(c, input, 1, &[2 * size, size])?;
        let (update, candidate) = match &self.rows {
            Some(rows) => {
                let recurrent = self.recurrent(c, hidden, &rows[0])?;
                let (update, reset) = self.open_gates(c, &own[0], &recurrent)?;
                let kept = c.binary(Binary::Mul, &reset, hidden)?;
                (update, self.recurrent(c, &kept, &rows[1])?)
            }
            None => {
                let mut recurrent = self.recurrent(c, hidden, &self.recurrence)?;
                if let Some(bias) = &self.recurrent_bias {
                    recurrent = c.binary(Binary::Add, &recurrent, bias)?;
                }
                let recurrent = parts(c, &recurrent, 1, &[2 * size, size])?;
                let (update, reset) = self.open_gates(c, &own[0], &recurrent[0])?;
                (update, c.binary(Binary::Mul, &reset, &recurrent[1])?)
            }
        };
        let sum = c.binary(Binary::Add, &own[1], &candidate)?;
        let new = c.unary(self.activations[1], &sum)?;
        // (1 - z) new + z old = new + z (old - new)
        let difference = c.binary(Binary::Sub, hidden, &new)?;
        let moved = c.binary(Binary::Mul, &update, &difference)?;
        Ok(State { hidden: c.binary(Binary::Add, &new, &moved)?, cell: None })
    }

    /// The gates of update and reset, by what input and state say.
    fn open_gates(&self, c: &mut Call<'_, '_>, input: &Value, recurrent: &Value) -> Result<(Value, Value), Reason> {
        let size = c.shape(recurrent)?[1] / 2;
        let sum = c.binary(Binary::Add, input, recurrent)?;
        let gates = c.unary(self.activations[0], &sum)?;
        let gates = parts(c, &gates, 1, &[size, size])?;
        Ok((gates[0].clone(), gates[1].clone()))
    }

    fn long_short(&self, c: &mut Call<'_, '_>, input: &Value, state: &State, cell: &Value) -> Result<State, Reason> {
        let size = c.shape(cell)?[1];
        let sum = self.plus_recurrence(c, input, &state.hidden)?;
        // Input, output, forget, and what is new.
        let gates = parts(c, &sum, 1, &[size; 4])?;
        let peep = |c: &mut Call<'_, '_>, gate: usize, cell: &Value| match &self.peepholes {
            Some(weights) => {
                let seen = c.binary(Binary::Mul, cell, &weights[gate])?;
                let sum = c.binary(Binary::Add, &gates[gate], &seen)?;
                c.unary(self.activations[0], &sum)
            }
            None => c.unary(self.activations[0], &gates[gate]),
        };
        let (enter, forget) = (peep(c, 0, cell)?, peep(c, 2, cell)?);
        let new = c.unary(self.activations[1], &gates[3])?;
        let (kept, added) = (c.binary(Binary::Mul, &forget, cell)?, c.binary(Binary::Mul, &enter, &new)?);
        let cell = c.binary(Binary::Add, &kept, &added)?;
        let leave = peep(c, 1, &cell)?;
        let shown = c.unary(self.activations[2], &cell)?;
        Ok(State { hidden: c.binary(Binary::Mul, &leave, &shown)?, cell: Some(cell) })
    }
}

/// The steps of `[steps, batch, width]`.
fn steps(c: &mut Call<'_, '_>, x: &Value) -> Result<Vec<Value>, Reason> {
    let shape = c.shape(x)?;
    let own = parts(c, x, 0, &vec![1; shape[0] as usize])?;
    own.iter().map(|step| c.reshape(step, shape[1..].to_vec())).collect()
}
