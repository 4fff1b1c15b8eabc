//! Patterns over the graph, written as terms: `mul(x, sigmoid(x))`.
//!
//! A lower-case word without arguments is a value (the same one wherever it stands), `$name` a
//! scalar constant that is captured, a number a scalar constant of about that value, `name(…)` an
//! op by its name in text, `v@name(…)` the same with its value captured. Operands of commuting ops
//! match in either order. `mean(p)` is the mean over the last dimension, which stays with size 1;
//! views that keep the shape are looked through.

use crate::graph::{Graph, ValueId};
use crate::ops::Op;
use crate::ops::captures::Captures;
use crate::reduce_kind::ReduceKind;

/// A term of a pattern.
#[derive(Debug, Clone, PartialEq)]
enum Term {
    Value(String),
    Capture(String),
    Number(f64),
    Op(String, Vec<Term>),
    Named(String, Box<Term>),
}

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern(Term);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Panics
    /// If the text is none: patterns are part of the compiler.
    pub fn new(text: &str) -> Pattern {
        let mut rest = text;
        let term = parse(&mut rest);
        assert!(rest.trim().is_empty(), "`{text}` is no pattern");
        Pattern(term)
    }

    /// The captures of the pattern, if it matches the term that ends in `value`.
    pub fn matches(&self, graph: &Graph, value: ValueId) -> Option<Captures> {
        let mut captures = Captures::default();
        fits(&self.0, graph, value, &mut captures).then_some(captures)
    }
}

fn parse(rest: &mut &str) -> Term {
    *rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_alphanumeric() || "_.$-@".contains(c))).unwrap_or(rest.len());
    let (word, tail) = rest.split_at(end);
    *rest = tail.trim_start();
    if let Some(arguments) = rest.strip_prefix('(') {
        *rest = arguments;
        let mut terms = vec![parse(rest)];
        while let Some(tail) = rest.trim_start().strip_prefix(',') {
            *rest = tail;
            terms.push(parse(rest));
        }
        *rest = rest.trim_start().strip_prefix(')').expect("patterns close their brackets");
        return match word.split_once('@') {
            Some((name, op)) => Term::Named(name.to_string(), Box::new(Term::Op(op.to_string(), terms))),
            None => Term::Op(word.to_string(), terms),
        };
    }
    if let Some(name) = word.strip_prefix('$') {
        return Term::Capture(name.to_string());
    }
    word.parse().map_or_else(|_| Term::Value(word.to_string()), Term::Number)
}

fn fits(term: &Term, graph: &Graph, value: ValueId, captures: &mut Captures) -> bool {
    match term {
        Term::Value(name) => *captures.values.entry(name.clone()).or_insert(value) == value,
        Term::Named(name, term) => {
            fits(term, graph, value, captures) && *captures.values.entry(name.clone()).or_insert(value) == value
        }
        Term::Capture(name) => match scalar(graph, value) {
            Some(number) => {
                captures.numbers.insert(name.clone(), number);
                true
            }
            None => false,
        },
        Term::Number(wanted) => scalar(graph, value).is_some_and(|n| (n - wanted).abs() <= 1e-5 * wanted.abs().max(1e-3)),
        Term::Op(name, terms) if name == "mean" => mean_of(graph, value).is_some_and(|x| fits(&terms[0], graph, x, captures)),
        Term::Op(name, terms) => {
            let node = graph.def(value);
            if let Op::Reshape(_) = node.op
                && name != "reshape"
                && graph.ty(node.operands[0]) == graph.ty(value)
            {
                return fits(term, graph, node.operands[0], captures);
            }
            if node.op.name() != name || node.operands.len() != terms.len() {
                return false;
            }
            let before = captures.clone();
            let in_order = |order: &[usize], captures: &mut Captures| {
                order.iter().zip(terms).all(|(i, t)| fits(t, graph, node.operands[*i], captures))
            };
            let straight: Vec<usize> = (0..terms.len()).collect();
            if in_order(&straight, captures) {
                return true;
            }
            *captures = before;
            matches!(&node.op, Op::Binary(b) if b.f.commutes()) && in_order(&[1, 0], captures)
        }
    }
}

/// The one number that a constant holds in all its elements.
pub fn scalar(graph: &Graph, value: ValueId) -> Option<f64> {
    match &graph.def(value).op {
        Op::Constant(c) => c.value.splat(),
        Op::Broadcast(_) | Op::Reshape(_) => scalar(graph, graph.def(value).operands[0]),
        _ => None,
    }
}

/// `x` where `value` is its mean over the last dimension, kept with size 1.
fn mean_of(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let mut factor = 1.0;
    let mut at = value;
    loop {
        let node = graph.def(at);
        match &node.op {
            Op::Reshape(_) => at = node.operands[0],
            Op::Binary(b) if b.f == crate::scalar::Binary::Mul => {
                let (x, c) = match (scalar(graph, node.operands[0]), scalar(graph, node.operands[1])) {
                    (_, Some(c)) => (node.operands[0], c),
                    (Some(c), _) => (node.operands[1], c),
                    _ => return None,
                };
                factor *= c;
                at = x;
            }
            Op::Binary(b) if b.f == crate::scalar::Binary::Div => {
                factor /= scalar(graph, node.operands[1])?;
                at = node.operands[0];
            }
            Op::Reduce(reduce) => {
                let ty = graph.ty(node.operands[0]);
                let last = ty.rank().checked_sub(1)?;
                let mut kept = ty.shape.clone();
                kept[last] = 1;
                let is_mean = reduce.f.0 == ReduceKind::Sum
                    && reduce.axes == [last]
                    && (factor * ty.shape[last] as f64 - 1.0).abs() < 1e-5
                    && graph.ty(value).shape == kept;
                return is_mean.then_some(node.operands[0]);
            }
            _ => return None,
        }
    }
}
