//! Which values the data may hold: class indices and token ids are checked before the first step.

use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::index::Gather;
use shardc_ir::spec::{Loss, Spec};
use std::collections::BTreeMap;

/// The values that an input may hold; as [`shardc_ir::plan::ProgramInput`] has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowed {
    /// `low..high`, if known.
    pub range: Option<(i64, i64)>,
    /// One value outside of it.
    pub except: Option<i64>,
}

/// For each input by name, the range of what indexes a table, chooses a class, or is a share
/// between 0 and 1.
pub fn allowed(graph: &Graph, spec: &Spec) -> BTreeMap<String, Allowed> {
    let loss = spec.loss.as_ref().map(|l| &l.value);
    let labels = loss.and_then(Loss::labels).map(|labels| &labels.value);
    let ignored = if let Some(Loss::CrossEntropy { ignore_index, .. }) = loss { *ignore_index } else { None };
    let mut out = BTreeMap::new();
    for (_, node) in graph.nodes() {
        let Op::Input(input) = &node.op else { continue };
        let is_share = labels == Some(&input.name) && matches!(loss, Some(Loss::BceWithLogits { .. }));
        let mut range = is_share.then_some((0, 2));
        let (mut is_label, mut is_index) = (false, false);
        for view in views(graph, node.results[0]) {
            for user in graph.users(graph.value(view).node) {
                let user = graph.node(user);
                let (from, to) = match &user.op {
                    Op::Gather(g) if user.operands[1] == view => rows(g, graph.ty(user.operands[0]).shape[g.axis] as i64),
                    Op::OneHot(hot) => (0, hot.size as i64),
                    _ => continue,
                };
                is_label |= matches!(user.op, Op::OneHot(_));
                is_index |= matches!(user.op, Op::Gather(_));
                range = Some(range.map_or((from, to), |(low, high): (i64, i64)| (low.max(from), high.min(to))));
            }
        }
        out.insert(input.name.clone(), Allowed { range, except: ignored.filter(|_| is_label && !is_index) });
    }
    out
}

/// The indices that a gather takes from `size` rows: negative ones count from the end. One with a
/// row that is not trained, as modules of embeddings have, takes none of those.
fn rows(gather: &Gather, size: i64) -> (i64, i64) {
    (if gather.untrained.is_some() { 0 } else { -size }, size)
}

/// A value and every view of it: the same elements under other shapes.
fn views(graph: &Graph, value: ValueId) -> Vec<ValueId> {
    let mut out = vec![value];
    let mut next = 0;
    while next < out.len() {
        for user in graph.users(graph.value(out[next]).node) {
            let user = graph.node(user);
            if matches!(user.op, Op::Reshape(_) | Op::ShardSlice(_) | Op::AllGather(_) | Op::AllToAll(_)) {
                out.push(user.results[0]);
            }
        }
        next += 1;
    }
    out
}
