//! Two graphs are the same program where their communication and shardings are left out: what a plan over many ranks computes is what
//! its reference computes.

use crate::graph::{Graph, ValueId};

/// Walks both graphs from their results and compares op with op, through communication.
///
/// # Errors
/// The first difference, in words.
pub fn same_when_erased(graph: &Graph, reference: &Graph) -> Result<(), String> {
    let mut pairs = vec![];
    if graph.states.len() != reference.states.len() || graph.outputs.len() != reference.outputs.len() {
        return Err("they have other states or outputs".to_string());
    }
    for (a, b) in graph.states.iter().zip(&reference.states) {
        if (&a.name, &a.ty, a.role, &a.init) != (&b.name, &b.ty, b.role, &b.init) {
            return Err(format!("state `{}` is `{}` of another type, role or beginning in the reference", a.name, b.name));
        }
        for (what, a_value, b_value) in [("update", a.update, b.update), ("gradient", a.gradient, b.gradient)] {
            match (a_value, b_value) {
                (Some(x), Some(y)) => pairs.push((x, y)),
                (None, None) => {}
                _ => return Err(format!("one of the two has no {what} of state `{}`", a.name)),
            }
        }
    }
    for (a, b) in graph.outputs.iter().zip(&reference.outputs) {
        if a.name != b.name {
            return Err(format!("output `{}` is `{}` in the reference", a.name, b.name));
        }
        pairs.push((a.value, b.value));
    }
    let mut met: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    while let Some((a, b)) = pairs.pop() {
        let (a, b) = (computed(graph, a), computed(reference, b));
        let (name, other) = (&graph.value(a).name, &reference.value(b).name);
        match met[a.index()] {
            Some(there) if there == b => continue,
            Some(there) => {
                let there = &reference.value(there).name;
                return Err(format!("`%{name}` stands for both `%{there}` and `%{other}` of the reference"));
            }
            None => met[a.index()] = Some(b),
        }
        let (x, y) = (graph.def(a), reference.def(b));
        if x.op != y.op || graph.value(a).result != reference.value(b).result || x.operands.len() != y.operands.len() {
            let (op, its) = (x.op.name(), y.op.name());
            return Err(format!("`%{name}` is {op}, and `%{other}`, in its place in the reference, is another {its}"));
        }
        if graph.ty(a) != reference.ty(b) {
            return Err(format!("`%{name}` is {}, `%{other}` of the reference {}", graph.ty(a), reference.ty(b)));
        }
        pairs.extend(x.operands.iter().copied().zip(y.operands.iter().copied()));
    }
    Ok(())
}

/// The value that communication carries.
fn computed(graph: &Graph, mut value: ValueId) -> ValueId {
    while graph.def(value).op.is_comm() {
        value = graph.def(value).operands[0];
    }
    value
}
