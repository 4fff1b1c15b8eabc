//! Writes a graph as text, in columns.

use super::axes::name_axes;
use super::constant::{constant_text, first_text};
use super::cursor::{quoted, quoted_if_needed};
use super::elsewhere::Elsewhere;
use super::positional;
use super::value::{attributes_text, value_text};
use crate::columns::{Column, align, align_behind};
use crate::graph::{Graph, Node, NodeId, NodeOrigin, Part, State, ValueId};
use crate::mesh::Mesh;
use crate::ops::Op;
use crate::plan::Block;
use crate::sharding::Sharding;
use crate::train::StateInit;
use crate::types::Type;
use std::fmt;
use std::iter::once;

/// The text of a graph.
pub fn print(graph: &Graph) -> String {
    print_beside(graph, &Elsewhere::default())
}

/// [`print()`] of a graph beside programs: constants that are `elsewhere` are named by a hash.
pub fn print_beside(graph: &Graph, elsewhere: &Elsewhere) -> String {
    let mut out = format!("graph @{}  phase {}\n", quoted_if_needed(&graph.name), graph.phase);
    if *graph.mesh.axes() != *Mesh::single().axes() {
        let axes = graph.mesh.axes().iter().map(|a| format!(" {}={}", a.name, a.size));
        out.push_str(&format!("  mesh{}\n", axes.collect::<String>()));
    }
    let states: Vec<_> = graph.states.iter().map(|s| state_cells(graph, s)).collect();
    align_behind(&mut out, &states, STATE_COLUMNS);
    let nodes: Vec<_> = graph.nodes().map(|(_, n)| node_cells(graph, n, elsewhere)).collect();
    align_behind(&mut out, &nodes, NODE_COLUMNS);
    for output in &graph.outputs {
        out.push_str(&format!("  output {} %{}\n", quoted(&output.name), graph.value(output.value).name));
    }
    for (state, value) in graph.states.iter().filter_map(|s| Some((s, s.update?))) {
        out.push_str(&format!("  update {} <- %{}\n", quoted(&state.name), graph.value(value).name));
    }
    for (state, value) in graph.states.iter().filter_map(|s| Some((s, s.gradient?))) {
        out.push_str(&format!("  gradient {} = %{}\n", quoted(&state.name), graph.value(value).name));
    }
    out
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

/// The line of one node, without indentation.
pub fn node_text(graph: &Graph, id: NodeId) -> String {
    align(&[node_cells(graph, graph.node(id), &Elsewhere::default())], NODE_COLUMNS.map(|column| column.limit(0)))
        .trim()
        .to_string()
}

/// A node's op with attributes and operands, for listings: `contract "bk,kn->bn" %x, %w1`.
pub fn op_text(graph: &Graph, node: &Node) -> String {
    op_text_beside(graph, node, &Elsewhere::default())
}

fn op_text_beside(graph: &Graph, node: &Node, elsewhere: &Elsewhere) -> String {
    let mut words = op_words(graph, &node.op, elsewhere);
    if !node.operands.is_empty() {
        words.push(names(graph, &node.operands));
    }
    words.join(" ")
}

/// A node's op with its attributes, for listings: `contract "bk,kn->bn"`, `slice axis=2 start=0`.
pub fn operation(graph: &Graph, node: &Node) -> String {
    op_words(graph, &node.op, &Elsewhere::default()).join(" ")
}

/// As [`operation`], of a node whose constants are numbers in its kernel: `mul(_, 0.5)`.
pub fn operation_with_numbers(graph: &Graph, node: &Node) -> String {
    let mut words = op_words(graph, &node.op, &Elsewhere::default());
    let numbers: Vec<Option<String>> = node.operands.iter().map(|v| number_text(graph, *v)).collect();
    if numbers.iter().any(Option::is_some) {
        let given = numbers.into_iter().map(|number| number.unwrap_or_else(|| "_".to_string()));
        words[0] = format!("{}({})", words[0], given.collect::<Vec<_>>().join(", "));
    }
    words.join(" ")
}

/// A constant whose elements are all one number.
fn number_text(graph: &Graph, value: ValueId) -> Option<String> {
    match &graph.def(value).op {
        Op::Constant(constant) => constant.value.splat().map(|_| first_text(&constant.value)),
        _ => None,
    }
}

const MAX_NAME: usize = 20;
const MAX_OP: usize = 60;
const MAX_TYPE: usize = 44;

/// Name; type; role and first value.
const STATE_COLUMNS: [Column; 3] = [Column::after("  ").limit(MAX_NAME), Column::after(" ").limit(MAX_TYPE), Column::after("  ")];

/// Results; op; types with origin; letters.
const NODE_COLUMNS: [Column; 4] = [
    Column::after("  ").limit(MAX_NAME),
    Column::after(" = ").limit(MAX_OP),
    Column::after(" : ").limit(MAX_TYPE),
    Column::after("  // "),
];

fn state_cells(graph: &Graph, state: &State) -> [String; 3] {
    let role = state.role.name();
    let init = match state.init {
        StateInit::Model => "model".to_string(),
        StateInit::Zeros => "zeros".to_string(),
        StateInit::Ones => "ones".to_string(),
        StateInit::Value(value) => format!("value({value:?})"),
        StateInit::Normal { std } => format!("normal({std:?})"),
    };
    let ty = format!(": {}", type_text(graph, &state.ty, &state.sharding));
    let block = state.block.as_ref().map_or_else(String::new, block_text);
    [format!("state {}", quoted(&state.name)), ty, format!("{role} init={init}{block}")]
}

/// ` block of "w" axis=1 start=64 whole=128`
fn block_text(block: &Block) -> String {
    let Block { of, alias, axis, start, whole } = block;
    let alias = alias.as_ref().map_or_else(String::new, |alias| format!(" alias {}", quoted(alias)));
    format!(" block of {}{alias} axis={axis} start={start} whole={whole}", quoted(of))
}

fn node_cells(graph: &Graph, node: &Node, elsewhere: &Elsewhere) -> [String; 4] {
    let typed = |v: &ValueId| type_text(graph, graph.ty(*v), graph.sharding(*v)) + &asked_text(graph, *v);
    let types: Vec<String> = node.results.iter().map(typed).collect();
    let mut types = if types.len() == 1 { types.concat() } else { format!("({})", types.join(", ")) };
    types.push_str(&origin_text(&node.origin));
    [names(graph, &node.results), op_text_beside(graph, node, elsewhere), types, letters_text(graph, node)]
}

fn names(graph: &Graph, values: &[ValueId]) -> String {
    values.iter().map(|v| format!("%{}", graph.value(*v).name)).collect::<Vec<_>>().join(", ")
}

fn type_text(graph: &Graph, ty: &Type, sharding: &Sharding) -> String {
    let text = sharding.text(&ty.shape, &graph.mesh);
    let gap = if text.is_empty() || text.starts_with('{') { "" } else { " " };
    format!("{ty}{gap}{text}")
}

fn asked_text(graph: &Graph, value: ValueId) -> String {
    let asked = &graph.value(value).asked;
    let lines: Vec<String> = asked.iter().map(|(axis, line)| format!("{}: {line}", graph.mesh.name(*axis))).collect();
    if lines.is_empty() { String::new() } else { format!(" asked({})", lines.join(", ")) }
}

fn op_words(graph: &Graph, op: &Op, elsewhere: &Elsewhere) -> Vec<String> {
    match op {
        Op::Input(input) => vec![if input.label { "label" } else { "input" }.to_string(), quoted(&input.name)],
        Op::State(read) => {
            let name = graph.states.get(read.state.index()).map_or("?", |s| &s.name);
            vec!["state".to_string(), quoted(name)]
        }
        Op::Constant(constant) => vec!["constant".to_string(), constant_text(&constant.value, elsewhere)],
        _ => {
            let mut attributes = op.attributes();
            name_axes(op.name(), &mut attributes, &graph.mesh);
            let first = positional(op.name()).and_then(|key| attributes.remove(key));
            once(op.name().to_string()).chain(first.map(|v| value_text(&v))).chain(attributes_text(&attributes)).collect()
        }
    }
}

fn origin_text(origin: &NodeOrigin) -> String {
    let mut out = String::new();
    if let Some(scope) = &origin.scope {
        out.push_str(&format!(" @{}", quoted_if_needed(scope)));
    }
    if origin.part != Part::Forward {
        out.push(' ');
        out.push_str(origin.part.name());
    }
    if let Some(stage) = origin.stage {
        out.push_str(&format!(" stage={stage}"));
    }
    if let Some(reason) = &origin.reason {
        out.push_str(&format!(" reason={}", quoted(reason)));
    }
    if let Some(line) = origin.spec_line {
        out.push_str(&format!(" line={line}"));
    }
    out
}

/// The letters of an op that takes its operands and has any; contractions show theirs themselves.
fn letters_text(graph: &Graph, node: &Node) -> String {
    let (operands, results) = (graph.operand_types(node), graph.result_types(node));
    let rules = node.op.rules();
    let fits = rules.result(&operands).is_ok_and(|r| r == results);
    if !fits || operands.is_empty() || matches!(node.op, Op::Contract(_)) {
        return String::new();
    }
    let letters = rules.letters(&operands, &results);
    if letters.sizes.is_empty() { String::new() } else { letters.text() }
}
