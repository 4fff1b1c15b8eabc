//! Changes the batch size that an exporter has baked into the model.
//!
//! Before: `%x = input "x" : f32[8, 32, 64]`, `%m = reshape shape=[256, 64] %x`. After, for
//! `batch 4`: `%x : f32[4, 32, 64]`, `%m = reshape shape=[128, 64] %x`. The batch is followed from
//! dimension 0 of the inputs by the letters of every op, into merged dimensions too; shapes that
//! hold it are resized, and so are constants along which nothing varies. Needs and keeps phase
//! `imported`. Refuses: an op that combines, picks or joins samples, a constant that differs
//! between samples, a baked batch of one sample, which has no letter to follow; and, whatever the
//! sizes, to train a parameter that has the batch in its shape.

use crate::follow_batch::{BatchDigit, Follow, LetterDigit, place_of};
use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{ValueMap, mapped, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted};
use shardc_ir::graph::{Graph, Node, NodeId, Phase, State, StateId, ValueId};
use shardc_ir::letters::{Letters, Role};
use shardc_ir::ops::leaf::{Constant, Input};
use shardc_ir::ops::{Op, letters_of};
use shardc_ir::plan::StateRole;
use shardc_ir::types::{Tensor, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// See the module.
pub struct Rebatch;

impl Pass for Rebatch {
    fn name(&self) -> &'static str {
        "rebatch"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Imported
    }

    fn gives(&self) -> Phase {
        Phase::Imported
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(batch) = &cx.spec.batch else { return Ok(()) };
        let place = cx.spec.place_of(batch.source);
        let Some(from) = baked(graph).map_err(|error| error.at(place.clone()))? else { return Ok(()) };
        let to = batch.value.size;
        if cx.mode == Mode::Train && from > 1 {
            let found = parameters_of_samples(graph, from);
            if !found.is_empty() {
                return Err(found.into_iter().map(|state| of_samples(&graph.states[state.index()], from)).collect());
            }
        }
        if from == to {
            return Ok(());
        }
        let mut change = Change { follow: Follow::new(graph, from), graph, from, to, resized: HashMap::new() };
        let mut refused = None;
        let rebuilt = rebuild(graph, |b, id, node, map| {
            if refused.is_some() {
                return None;
            }
            change.node(b, id, node, map).unwrap_or_else(|why| {
                refused = Some(change.refusal(why));
                None
            })
        });
        if let Some(error) = refused {
            return Err(error.at(place).into());
        }
        *graph = rebuilt;
        Ok(())
    }
}

/// The size of dimension 0 of all inputs; none for a model without.
fn baked(graph: &Graph) -> Result<Option<u64>, Diagnostic> {
    let sizes = graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::Input(input) => input.ty.shape.first().map(|size| (input.name.as_str(), *size)),
        _ => None,
    });
    let sizes: Vec<(&str, u64)> = sizes.collect();
    let Some((first, size)) = sizes.first() else { return Ok(None) };
    match sizes.iter().find(|(_, other)| other != size) {
        None => Ok(Some(*size)),
        Some((name, other)) => {
            let message = format!("input `{first}` holds {} and input `{name}` {other}", counted(size, "sample"));
            Err(Diagnostic::error(message).help("dimension 0 of every input is the batch"))
        }
    }
}

/// The parameters that meet the batch with a part of their own for each sample.
fn parameters_of_samples(graph: &Graph, from: u64) -> Vec<StateId> {
    let mut follow = Follow::new(graph, from);
    let mut found = vec![];
    for (id, node) in graph.nodes() {
        let Ok(Some((letters, digit))) = follow.node(id, node) else { continue };
        for (operand, dims) in node.operands.iter().zip(&letters.operands) {
            if let Op::State(read) = &graph.def(*operand).op
                && place_of(&letters, dims, digit).is_some()
                && graph.states[read.state.index()].role == StateRole::Parameter
            {
                found.push(read.state);
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn of_samples(state: &State, batch: u64) -> Diagnostic {
    let (name, ty) = (&state.name, &state.ty);
    Diagnostic::error(format!(
        "`{name}`, {ty}, has a part for each sample of a batch of {batch}: the exporter wrote it once a sample"
    ))
    .help(format!("export with `dynamo=True, optimize=False`, or do not train it: `freeze \"{name}\"`"))
}

/// Why the batch cannot be followed through a node.
struct Why {
    node: NodeId,
    what: String,
}

struct Change<'g> {
    follow: Follow<'g>,
    graph: &'g Graph,
    from: u64,
    to: u64,
    /// Values that do not depend on the samples, with the batch there in its new size.
    resized: HashMap<(ValueId, BatchDigit), ValueId>,
}

impl Change<'_> {
    /// The values that stand for the node's results; `None` if the batch does not reach it.
    fn node(&mut self, b: &mut Builder, id: NodeId, node: &Node, map: &ValueMap) -> Result<Option<Vec<ValueId>>, Why> {
        if let Op::Input(input) = &node.op {
            return self.input(b, id, node, input);
        }
        let reached = self.follow.node(id, node).map_err(|end| Why { node: id, what: end.to_string() })?;
        let Some((letters, digit)) = reached else { return Ok(None) };
        self.rebuilt(b, id, node, map, &letters, digit).map(Some)
    }

    fn input(&mut self, b: &mut Builder, id: NodeId, node: &Node, input: &Input) -> Result<Option<Vec<ValueId>>, Why> {
        if input.ty.rank() == 0 {
            return Ok(None);
        }
        if self.from == 1 {
            let what = "has one sample, which cannot be told from other dimensions of size 1".to_string();
            return Err(Why { node: id, what });
        }
        let place = BatchDigit { dim: 0, stride: 1 };
        let ty = self.resize(&input.ty, place);
        let value = b.push(Op::Input(Input { ty: ty.clone(), ..input.clone() }), &[], vec![ty], "v")[0];
        b.rename(value, &self.graph.value(node.results[0]).name);
        Ok(Some(vec![value]))
    }

    /// The node with the batch in its new size, wherever its operands and its own attributes have
    /// it.
    fn rebuilt(
        &mut self,
        b: &mut Builder,
        id: NodeId,
        node: &Node,
        map: &ValueMap,
        letters: &Letters,
        digit: LetterDigit,
    ) -> Result<Vec<ValueId>, Why> {
        let fail = |what: String| Why { node: id, what };
        let mut operands = vec![];
        for (operand, dims) in node.operands.iter().zip(&letters.operands) {
            operands.push(match place_of(letters, dims, digit) {
                Some(place) if self.follow.places[operand.index()].is_none() => self.want(b, *operand, place, map)?,
                _ => mapped(map, *operand),
            });
        }
        let place = place_of(letters, &letters.results[0], digit);
        let old = self.graph.ty(node.results[0]);
        let ty = place.map_or(old.clone(), |place| self.resize(old, place));
        b.origin = node.origin.clone();
        let results = b.try_node(node.op.clone().with_shape(&ty.shape), &operands, "v").map_err(|why| fail(why.into()))?;
        for (new, old) in results.iter().zip(&node.results) {
            let expected = place_of(letters, &letters.results[self.graph.value(*old).result], digit);
            let expected = expected.map_or(self.graph.ty(*old).clone(), |place| self.resize(self.graph.ty(*old), place));
            if *b.ty(*new) != expected {
                return Err(fail(format!("gives {}, not {expected}", b.ty(*new))));
            }
        }
        for (new, old) in results.iter().zip(&node.results) {
            b.rename(*new, &self.graph.value(*old).name);
        }
        Ok(results)
    }

    /// A value that does not depend on the samples, with the batch at `place` in its new size.
    fn want(&mut self, b: &mut Builder, value: ValueId, place: BatchDigit, map: &ValueMap) -> Result<ValueId, Why> {
        if let Some(made) = self.resized.get(&(value, place)) {
            return Ok(*made);
        }
        let (graph, id) = (self.graph, self.graph.value(value).node);
        let node = graph.node(id);
        let fail = |what: &str| Why { node: id, what: what.to_string() };
        let made = match &node.op {
            Op::Constant(constant) => {
                let value = self.constant(&constant.value, place).ok_or_else(|| fail("differs from sample to sample"))?;
                b.op(Constant { value }, &[])
            }
            Op::State(_) => return Err(fail("has the batch in its shape")),
            _ => {
                let letters = letters_of(graph, id);
                let result = graph.value(value).result;
                let digit = self.follow.digit(&letters, &letters.results[result][place.dim], place.stride);
                let digit = digit.filter(|d| letters.roles[d.letter] == Role::Kept && !node.op.rules().positions());
                let digit = digit.ok_or_else(|| fail("differs from sample to sample"))?;
                let origin = b.origin.clone();
                let results = self.rebuilt(b, id, node, map, &letters, digit)?;
                b.origin = origin;
                results[result]
            }
        };
        self.resized.insert((value, place), made);
        Ok(made)
    }

    /// The constant with as many equal samples as are wanted; none if they are not equal.
    fn constant(&self, tensor: &Tensor, place: BatchDigit) -> Option<Tensor> {
        let shape = &tensor.ty.shape;
        let behind: u64 = shape[place.dim + 1..].iter().product();
        let sample = (place.stride * behind * tensor.ty.dtype.bytes()) as usize;
        let ty = self.resize(&tensor.ty, place);
        if sample == 0 {
            return Some(Tensor { ty, bytes: tensor.bytes.clone() });
        }
        let mut bytes = vec![];
        for samples in tensor.bytes.chunks(sample * self.from as usize) {
            let first = &samples[..sample];
            if samples.chunks(sample).any(|other| other != first) {
                return None;
            }
            (0..self.to).for_each(|_| bytes.extend_from_slice(first));
        }
        Some(Tensor { ty, bytes: Arc::new(bytes) })
    }

    fn resize(&self, ty: &Type, place: BatchDigit) -> Type {
        let mut ty = ty.clone();
        ty.shape[place.dim] = ty.shape[place.dim] / self.from * self.to;
        ty
    }

    fn refusal(&self, why: Why) -> Diagnostic {
        let node = self.graph.node(why.node);
        let scope = node.origin.scope.as_ref().map_or(String::new(), |scope| format!(" in `{scope}`"));
        let name = node.results.first().map_or("", |v| &*self.graph.value(*v).name);
        let message = format!(
            "the model was exported for a batch of {}, which cannot become {}: {} `{name}`{scope} {}",
            self.from,
            self.to,
            node.op.name(),
            why.what
        );
        Diagnostic::error(message).help(format!("say `batch {}`, or export the model with a dynamic batch", self.from))
    }
}
