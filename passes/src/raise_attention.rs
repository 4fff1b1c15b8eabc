//! Puts one `attention` in the place of `contract(softmax(scale * contract(q, k) + mask), v)`.
//!
//! Before: two contractions around a softmax, scaled queries and keys, a baked mask, repeated key
//! heads, the guard against rows of nothing (`where(is_nan(p), 0, p)`). After:
//! `%o, %lse = attention %q, %k, %v`. A mask that is lower-triangular becomes `causal`, and where a
//! module puts tokens before the batch, the result is transposed. Leaves alone: a `where` that may
//! hide a whole row, a mask that is trained or depends on a trained value, ranks other than four.
//! Needs phase `imported`, gives `raised`.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Node, Phase, ValueId};
use shardc_ir::ops::attention::{Attention, HeadLayout, MaskKind};
use shardc_ir::ops::{Op, Rules};
use shardc_ir::pattern::scalar;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};
use std::sync::Arc;

/// A score of this or less hides its key.
const HIDDEN: f64 = -1e30;

/// See the module.
pub struct RaiseAttention;

impl Pass for RaiseAttention {
    fn name(&self) -> &'static str {
        "raise-attention"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Imported
    }

    fn gives(&self) -> Phase {
        Phase::Raised
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let trained = graph.reached_from(|v| matches!(graph.def(v).op, Op::State(_)));
        let named = cx.named();
        let mut masks = Masks::default();
        *graph = rebuild(graph, |b, _, node, map| {
            if named.is_named(graph, node) {
                return None;
            }
            let found = Found::at(graph, node, &trained, &mut masks)?;
            let [q, k, v] = [&found.q, &found.k, &found.v].map(|t| t.arranged(b, mapped(map, t.value)));
            let mut operands = vec![q.0, k.0, v.0];
            let mask = match found.mask {
                Mask::None => MaskKind::None,
                Mask::Causal => MaskKind::Causal,
                Mask::Added(mask) => {
                    operands.push(mapped(map, mask));
                    MaskKind::Operand
                }
                Mask::Chosen(condition, hidden) => {
                    let dtype = b.ty(q.0).dtype;
                    let (zero, hidden) = (b.number(dtype, 0.0), b.number(dtype, hidden));
                    operands.push(b.select(mapped(map, condition), zero, hidden));
                    MaskKind::Operand
                }
            };
            let op = Attention { scale: found.scale, mask, q: q.1, k: k.1, v: v.1, o: found.o };
            let types: Vec<Type> = operands.iter().map(|v| b.ty(*v).clone()).collect();
            let result = &op.result(&types).ok()?[0];
            let shape: Vec<u64> = found.turn.iter().map(|dim| result.shape[*dim]).collect();
            if shape != graph.ty(node.results[0]).shape {
                return None;
            }
            let mut o = b.op(op, &operands);
            if found.turn != [0, 1, 2, 3] {
                o = b.transpose(o, &found.turn);
            }
            b.rename(o, &graph.value(node.results[0]).name);
            Some(vec![o])
        });
        Ok(())
    }
}

/// A tensor with a letter for each dimension: `b` batch, `h` head, `t` query, `s` key, `e` width.
struct Lettered {
    value: ValueId,
    letters: Vec<char>,
    /// The letter of its positions: `t` or `s`.
    position: char,
}

impl Lettered {
    /// The value in one of the two layouts, transposed if it has neither.
    fn arranged(&self, b: &mut Builder, value: ValueId) -> (ValueId, HeadLayout) {
        let head_major = ['b', 'h', self.position, 'e'];
        let token_major = ['b', self.position, 'h', 'e'];
        if self.letters == head_major {
            (value, HeadLayout::HeadMajor)
        } else if self.letters == token_major {
            (value, HeadLayout::TokenMajor)
        } else {
            let perm: Vec<usize> =
                head_major.iter().map(|l| self.letters.iter().position(|m| m == l).expect("checked when found")).collect();
            (b.transpose(value, &perm), HeadLayout::HeadMajor)
        }
    }
}

enum Mask {
    None,
    Causal,
    /// Added to the scores.
    Added(ValueId),
    /// The score is that number where the condition fails.
    Chosen(ValueId, f64),
}

struct Found {
    q: Lettered,
    k: Lettered,
    v: Lettered,
    o: HeadLayout,
    /// The dimension of `o` for each dimension of the replaced value.
    turn: Vec<usize>,
    scale: f64,
    mask: Mask,
}

impl Found {
    fn at(graph: &Graph, node: &Node, trained: &[bool], masks: &mut Masks) -> Option<Found> {
        let Op::Contract(mix) = &node.op else { return None };
        let (p, v, o) = mix.terms()?;
        if p.len() != 4 || v.len() != 4 {
            return None;
        }
        let probabilities = guarded(graph, node.operands[0]);
        let Op::Softmax(_) = graph.def(probabilities).op else { return None };
        let (scores, mask) = masked(graph, graph.def(probabilities).operands[0], trained, masks)?;
        let mut scale = 1.0;
        let product = unscaled(graph, scores, &mut scale);
        let Op::Contract(scored) = &graph.def(product).op else { return None };
        let (q, k, c) = scored.terms()?;
        if q.len() != 4 || k.len() != 4 || c.len() != 4 {
            return None;
        }
        let names = ['b', 'h', 't', 's'];
        let name = |term: &str, of: &str, rest: char| -> Vec<char> {
            term.chars().map(|l| of.find(l).map_or(rest, |i| names[i])).collect()
        };
        let operands = &graph.def(product).operands;
        let wanted = name(o, p, 'e');
        let (layout, order) = match wanted[..] {
            ['b', 'h', 't', 'e'] => (HeadLayout::HeadMajor, ['b', 'h', 't', 'e']),
            _ => (HeadLayout::TokenMajor, ['b', 't', 'h', 'e']),
        };
        let turn: Option<Vec<usize>> = wanted.iter().map(|l| order.iter().position(|m| m == l)).collect();
        let mut found = Found {
            q: Lettered { value: operands[0], letters: name(q, c, 'e'), position: 't' },
            k: Lettered { value: operands[1], letters: name(k, c, 'e'), position: 's' },
            v: Lettered { value: node.operands[1], letters: name(v, p, 'e'), position: 's' },
            o: layout,
            turn: turn.filter(|turn| turn.len() == 4)?,
            scale,
            mask,
        };
        for tensor in [&mut found.q, &mut found.k, &mut found.v] {
            let mut sorted = tensor.letters.clone();
            sorted.sort();
            let mut wanted = vec!['b', 'h', tensor.position, 'e'];
            wanted.sort();
            if sorted != wanted {
                return None;
            }
        }
        peel(graph, &mut found.q, &mut found.scale);
        peel(graph, &mut found.k, &mut found.scale);
        let mut one = 1.0;
        peel(graph, &mut found.v, &mut one);
        (one == 1.0).then_some(found)
    }
}

/// `p` where the value is `where(is_nan(p), 0, p)`.
fn guarded(graph: &Graph, value: ValueId) -> ValueId {
    let node = graph.def(value);
    if let Op::Where(_) = node.op
        && let Op::Unary(f) = &graph.def(node.operands[0]).op
        && f.f == Unary::IsNan.into()
        && graph.def(node.operands[0]).operands[0] == node.operands[2]
        && scalar(graph, node.operands[1]) == Some(0.0)
    {
        return node.operands[2];
    }
    value
}

/// The scores without their mask; none if the mask is trained.
fn masked(graph: &Graph, scores: ValueId, trained: &[bool], masks: &mut Masks) -> Option<(ValueId, Mask)> {
    let node = graph.def(scores);
    match &node.op {
        Op::Binary(add) if add.f == Binary::Add => {
            let [x, y] = node.operands[..] else { return None };
            let (x, mask) = if trained[y.index()] { (y, x) } else { (x, y) };
            if trained[mask.index()] || graph.ty(mask).rank() > 4 {
                return None;
            }
            let covers = graph.ty(x).shape.ends_with(last_two(&graph.ty(mask).shape));
            let causal = covers && constant(graph, mask).is_some_and(|t| masks.of(t).hides_the_future);
            Some((x, if causal { Mask::Causal } else { Mask::Added(mask) }))
        }
        Op::Where(_) => {
            let [condition, x, hidden] = node.operands[..] else { return None };
            let hidden = scalar(graph, hidden).filter(|h| *h <= HIDDEN)?;
            if trained[condition.index()] || graph.ty(condition).rank() > 4 {
                return None;
            }
            let covers = graph.ty(x).shape.ends_with(last_two(&graph.ty(condition).shape));
            let known = constant(graph, condition);
            if covers && known.is_some_and(|t| masks.of(t).shows_the_past) {
                return Some((x, Mask::Causal));
            }
            // In a row of nothing `where` gives every key the same weight and no gradient, a sum
            // gives it a gradient.
            let exact = hidden == f64::NEG_INFINITY || known.is_some_and(|t| masks.of(t).every_row_sees);
            exact.then_some((x, Mask::Chosen(condition, hidden)))
        }
        _ => Some((scores, Mask::None)),
    }
}

fn constant(graph: &Graph, value: ValueId) -> Option<&Tensor> {
    match &graph.def(value).op {
        Op::Constant(c) => Some(&c.value),
        _ => None,
    }
}

fn last_two(shape: &[u64]) -> &[u64] {
    &shape[shape.len().saturating_sub(2)..]
}

/// The facts about constant masks. All layers of a model have the same one, of millions of
/// elements, so each is looked at once.
#[derive(Default)]
struct Masks(Vec<(Tensor, MaskFacts)>);

/// The facts about the elements of a mask.
#[derive(Clone, Copy, Default, PartialEq)]
struct MaskFacts {
    /// Added to scores, it shows key `s` to query `t` where `s <= t`, as many keys as queries, in
    /// every batch and head.
    hides_the_future: bool,
    /// As a condition, it does so.
    shows_the_past: bool,
    /// As a condition, it shows some key to every query.
    every_row_sees: bool,
}

impl Masks {
    fn of(&mut self, mask: &Tensor) -> MaskFacts {
        let is_known = |known: &Tensor| known.ty == mask.ty && Arc::ptr_eq(&known.bytes, &mask.bytes);
        match self.0.iter().find(|(known, _)| is_known(known)) {
            Some((_, facts)) => *facts,
            None => {
                let facts = MaskFacts::of(mask);
                self.0.push((mask.clone(), facts));
                facts
            }
        }
    }
}

impl MaskFacts {
    fn of(mask: &Tensor) -> MaskFacts {
        let square = match mask.ty.shape[..] {
            [.., queries, keys] if queries == keys && queries > 1 => Some(queries as usize),
            _ => None,
        };
        let is_square = square.is_some();
        let mut facts = MaskFacts { hides_the_future: is_square, shows_the_past: is_square, every_row_sees: true };
        for (query, row) in mask.rows_of_f64().enumerate() {
            facts.every_row_sees &= row.contains(&1.0);
            let (past, future) = row.split_at(square.map_or(0, |queries| query % queries + 1));
            facts.hides_the_future &= past.iter().all(|v| *v == 0.0) && future.iter().all(|v| *v <= HIDDEN);
            facts.shows_the_past &= past.iter().all(|v| *v == 1.0) && future.iter().all(|v| *v == 0.0);
            if facts == MaskFacts::default() {
                break;
            }
        }
        facts
    }
}

/// The value before multiplications by scalar constants, which go into `scale`.
fn unscaled(graph: &Graph, mut value: ValueId, scale: &mut f64) -> ValueId {
    loop {
        let node = graph.def(value);
        let Op::Binary(op) = &node.op else { return value };
        let numbers = [scalar(graph, node.operands[0]), scalar(graph, node.operands[1])];
        value = match (op.f, numbers) {
            (Binary::Mul, [_, Some(c)]) => {
                *scale *= c;
                node.operands[0]
            }
            (Binary::Mul, [Some(c), _]) => {
                *scale *= c;
                node.operands[1]
            }
            (Binary::Div, [_, Some(c)]) => {
                *scale /= c;
                node.operands[0]
            }
            _ => return value,
        };
    }
}

/// Looks through scaling, transposes and repeated heads.
fn peel(graph: &Graph, tensor: &mut Lettered, scale: &mut f64) {
    loop {
        tensor.value = unscaled(graph, tensor.value, scale);
        let node = graph.def(tensor.value);
        match &node.op {
            Op::Transpose(t) => {
                let mut before = tensor.letters.clone();
                t.perm.iter().enumerate().for_each(|(i, p)| before[*p] = tensor.letters[i]);
                tensor.letters = before;
                tensor.value = node.operands[0];
            }
            Op::Reshape(_) => match unrepeated(graph, tensor) {
                Some(value) => tensor.value = value,
                None => return,
            },
            _ => return,
        }
    }
}

/// `x[b, g, s, e]` where the tensor is `x` with each head repeated: reshape of broadcast
/// `[b, g, r, s, e]` of reshape.
fn unrepeated(graph: &Graph, tensor: &Lettered) -> Option<ValueId> {
    let head = tensor.letters.iter().position(|l| *l == 'h')?;
    let merged = graph.def(tensor.value);
    let repeated = graph.def(merged.operands[0]);
    let Op::Broadcast(_) = repeated.op else { return None };
    let unsqueezed = graph.def(repeated.operands[0]);
    let Op::Reshape(_) = unsqueezed.op else { return None };
    let (to, wide, x) =
        (&graph.ty(tensor.value).shape, &graph.ty(merged.operands[0]).shape, &graph.ty(unsqueezed.operands[0]).shape);
    if x.len() != 4 || wide.len() != 5 || to.len() != 4 {
        return None;
    }
    let mut expected = x.clone();
    expected.insert(head + 1, wide[head + 1]);
    let same_elsewhere = (0..4).all(|d| d == head || to[d] == x[d]);
    let mut single = x.clone();
    single.insert(head + 1, 1);
    let repeats = graph.ty(repeated.operands[0]).shape == single && *wide == expected;
    let fits = repeats && same_elsewhere && to[head] == x[head] * wide[head + 1];
    fits.then_some(unsqueezed.operands[0])
}
