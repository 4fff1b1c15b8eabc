//! Mistakes in graphs: a value in the place of another, another op, another number, a node left
//! out; gradients, updates or beginnings exchanged.

use serde_json::{Map, Number, Value as Json};
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, Part, State, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Constant;
use shardc_ir::plan::StateRole;
use shardc_ir::train::StateInit;
use shardc_ir::types::{Tensor, Type};
use shardc_testkit::random::Random;

/// A change at the node with a result of that name, which may be in several graphs.
#[derive(Debug, Clone)]
pub struct Change {
    /// The name of the node's first result.
    pub at: String,
    /// The change.
    pub kind: Kind,
}

/// The kinds of change at a node.
#[derive(Debug, Clone)]
pub enum Kind {
    /// It reads another value, by name.
    Operand(usize, String),
    /// It is another op.
    Op(Box<Op>),
    /// Its readers read its operand.
    Omit,
}

/// The kinds, to draw one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    Operand,
    Op,
    Attribute,
    Constant,
    Omit,
}

/// A change of that kind at a node of that part of `graph`, if one can be drawn.
pub fn draw(graph: &Graph, part: Part, draw: Draw, random: &mut Random) -> Option<Change> {
    let nodes: Vec<NodeId> = graph.nodes().filter(|(_, node)| node.origin.part == part).map(|(id, _)| id).collect();
    let id = random.pick(&nodes)?;
    let node = graph.node(id);
    let types = graph.operand_types(node);
    let kind = match draw {
        Draw::Operand => {
            let i = random.below(node.operands.len());
            let operand = *node.operands.get(i)?;
            let fits = |(v, value): &(ValueId, &shardc_ir::graph::Value)| {
                value.node < id && *v != operand && value.ty == *graph.ty(operand)
            };
            let others: Vec<String> = graph.values().filter(fits).map(|(_, value)| value.name.to_string()).collect();
            Kind::Operand(i, random.pick(&others)?)
        }
        Draw::Op => {
            let name = random.pick(&Op::names())?;
            let op = Op::from_text(name, node.op.attributes()).ok()?;
            Kind::Op(Box::new(fitting(graph, node, &types, op)?))
        }
        Draw::Attribute => {
            let attributes = changed(node.op.attributes(), random)?;
            let op = Op::from_text(node.op.name(), attributes).ok()?;
            Kind::Op(Box::new(fitting(graph, node, &types, op)?))
        }
        Draw::Constant => {
            let Op::Constant(constant) = &node.op else { return None };
            let mut elements = constant.value.to_f64();
            let i = random.below(elements.len());
            let element = elements.get_mut(i)?;
            *element = other_number(*element, random);
            Kind::Op(Box::new(Constant { value: Tensor::from_f64(constant.value.ty.clone(), &elements) }.into()))
        }
        Draw::Omit => {
            let [result] = node.results[..] else { return None };
            node.operands.iter().find(|v| graph.ty(**v) == graph.ty(result))?;
            Kind::Omit
        }
    };
    Some(Change { at: graph.value(node.results[0]).name.to_string(), kind })
}

/// `op`, if it is another than the node's and takes its operands to its results.
fn fitting(graph: &Graph, node: &Node, types: &[Type], op: Op) -> Option<Op> {
    let is_leaf = matches!(op, Op::State(_) | Op::Input(_) | Op::Constant(_)) || op.is_comm();
    let results = if is_leaf { None } else { op.rules().result(types).ok() };
    (op != node.op && results? == graph.result_types(node)).then_some(op)
}

/// Attributes of which one number or truth value is another.
fn changed(mut attributes: Map<String, Json>, random: &mut Random) -> Option<Map<String, Json>> {
    let keys: Vec<String> = attributes.keys().cloned().collect();
    let value = attributes.get_mut(&random.pick(&keys)?)?;
    let value = match value {
        Json::Array(items) if !items.is_empty() => {
            if items.len() > 1 && random.below(2) == 0 {
                items.swap(0, 1);
                return Some(attributes);
            }
            let i = random.below(items.len());
            &mut items[i]
        }
        value => value,
    };
    *value = match &*value {
        Json::Bool(truth) => Json::Bool(!truth),
        Json::Number(n) if n.is_f64() => Json::Number(Number::from_f64(other_number(n.as_f64()?, random))?),
        Json::Number(n) => Json::from(n.as_i64()? + [1, -1][random.below(2)]),
        _ => return None,
    };
    Some(attributes)
}

fn other_number(number: f64, random: &mut Random) -> f64 {
    match random.below(5) {
        0 if number != 0.0 => -number,
        1 => number * 0.5 + 0.25,
        2 => number * 1.1 + 0.01,
        3 => number * 0.9,
        _ => number + 1.0,
    }
}

/// `graph` with a change; none if it has no such node, or the change does not fit it.
pub fn apply(graph: &Graph, change: &Change) -> Option<Graph> {
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    let mut found = false;
    for (id, node) in graph.nodes() {
        if *graph.value(node.results[0]).name != *change.at {
            b.copy(graph, node, &mut map);
            continue;
        }
        found = true;
        match &change.kind {
            Kind::Operand(i, other) => {
                let other = graph.named(other)?;
                let mut node = node.clone();
                *node.operands.get_mut(*i)? = other;
                if graph.value(other).node >= id {
                    return None;
                }
                b.copy(graph, &node, &mut map);
            }
            Kind::Op(op) => {
                let node = Node { op: (**op).clone(), ..node.clone() };
                if !matches!(node.op, Op::Constant(_))
                    && node.op.rules().result(&graph.operand_types(&node)).ok()? != graph.result_types(&node)
                {
                    return None;
                }
                b.copy(graph, &node, &mut map);
            }
            Kind::Omit => {
                let operand = node.operands.iter().find(|v| graph.ty(**v) == graph.ty(node.results[0]))?;
                map[node.results[0].index()] = map[operand.index()];
            }
        }
    }
    b.copy_roots(graph, &map);
    found.then(|| b.finish())
}

/// Two gradients exchanged, in the tables and wherever updates read them.
pub fn exchange_gradients(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let (a, b) = pair(graph, random, |state| state.gradient.is_some())?;
    let (one, other) = (graph.states[a].gradient?, graph.states[b].gradient?);
    let exchanged = |v: ValueId| {
        if v == one {
            other
        } else if v == other {
            one
        } else {
            v
        }
    };
    let mut builder = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (_, node) in graph.nodes() {
        let mut node = node.clone();
        if node.origin.part == Part::Update {
            node.operands.iter_mut().for_each(|v| *v = exchanged(*v));
        }
        builder.copy(graph, &node, &mut map);
    }
    builder.copy_roots(graph, &map);
    let mut graph = builder.finish();
    let of = graph.states[a].gradient;
    graph.states[a].gradient = graph.states[b].gradient;
    graph.states[b].gradient = of;
    let what = format!("the gradients of `{}` and `{}`", graph.states[a].name, graph.states[b].name);
    Some((graph, what))
}

/// A change in the table of state variables: updates exchanged, another beginning, a parameter that
/// stands still.
pub fn change_states(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let mut graph = graph.clone();
    let what = match random.below(3) {
        0 => {
            let (a, b) = pair(&graph, random, |state| state.update.is_some())?;
            let of = graph.states[a].update;
            graph.states[a].update = graph.states[b].update;
            graph.states[b].update = of;
            format!("the updates of `{}` and `{}`", graph.states[a].name, graph.states[b].name)
        }
        1 => {
            let i = random.below(graph.states.len());
            let state = &mut graph.states[i];
            let others = [StateInit::Zeros, StateInit::Ones, StateInit::Model, StateInit::Normal { std: 0.02 }];
            let is_other =
                |init: &StateInit| *init != state.init && (state.role != StateRole::Moment || *init != StateInit::Model);
            let others: Vec<StateInit> = others.into_iter().filter(is_other).collect();
            state.init = random.pick(&others)?;
            format!("`{}` begins as {:?}", state.name, state.init)
        }
        _ => {
            let trained: Vec<usize> = (0..graph.states.len()).filter(|i| graph.states[*i].gradient.is_some()).collect();
            let i = random.pick(&trained)?;
            let state = &mut graph.states[i];
            (state.update, state.gradient, state.role) = (None, None, StateRole::Frozen);
            format!("`{}` stands still", state.name)
        }
    };
    Some((graph, what))
}

/// Two state variables of one type.
fn pair(graph: &Graph, random: &mut Random, of: impl Fn(&State) -> bool) -> Option<(usize, usize)> {
    let all: Vec<usize> = (0..graph.states.len()).filter(|i| of(&graph.states[*i])).collect();
    let one = random.pick(&all)?;
    let same =
        |i: &usize| *i != one && graph.states[*i].ty == graph.states[one].ty && graph.states[*i].role == graph.states[one].role;
    let other = random.pick(&all.into_iter().filter(same).collect::<Vec<_>>())?;
    Some((one, other))
}
