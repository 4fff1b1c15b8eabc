//! The table of all ops that `shardc ops` prints: letters, linearity, gradient, kernel form.

use super::samples::{Sample, samples};
use super::{Backward, NoGradient, Op};
use crate::columns::{Column, align};
use crate::lower::{Extent, LowerContext, Lowered};
use crate::sharding::Sharding;
use serde::Serialize;

/// The table's row for one op.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The name in text.
    pub name: &'static str,
    /// Letters of a plain instance: `ab,bc->ac`.
    pub letters: String,
    /// In which operands a partial sum passes.
    pub linear: String,
    /// Whether it has a gradient: `yes`, `constant` (nothing flows back), `leaf` or `no` (it is no
    /// op of models).
    pub gradient: &'static str,
    /// The kernel forms that compute it.
    pub form: String,
    /// Whether it knows positions, and so reads its origin where its letters are split.
    pub positions: bool,
}

/// One row for each name of [`Op::names`], in its order.
pub fn table() -> Vec<Row> {
    let samples = samples();
    let plain = |name: &&str| samples.iter().find(|s| s.op.name() == *name);
    Op::names().iter().filter_map(plain).map(row).collect()
}

/// The rows in aligned columns under a header.
pub fn table_text(rows: &[Row]) -> String {
    let header = ["op", "linear", "gradient", "form", "positions", "letters"].map(str::to_string);
    let cells = rows.iter().map(|r| {
        let positions = if r.positions { "yes" } else { "" };
        [r.name, &r.linear, r.gradient, &r.form, positions, &r.letters].map(str::to_string)
    });
    let lines: Vec<[String; 6]> = std::iter::once(header).chain(cells).collect();
    let first = Column::after("");
    align(&lines, std::array::from_fn(|column| if column == 0 { first } else { Column::WORDS }))
}

fn row(sample: &Sample) -> Row {
    let (builder, operands, results) = sample.build();
    let graph = builder.graph();
    let node = graph.value(results[0]).node;
    let rules = sample.op.rules();
    Row {
        name: sample.op.name(),
        letters: super::letters_of(graph, node).text(),
        linear: if operands.is_empty() { String::new() } else { super::linear_of(graph, graph.node(node)).text() },
        gradient: gradient(sample),
        form: form(sample),
        positions: rules.positions(),
    }
}

fn gradient(sample: &Sample) -> &'static str {
    let (mut builder, operands, results) = sample.build();
    let grad = builder.op(super::elementwise::Detach {}, &[results[0]]);
    let mut grads = vec![None; results.len()];
    grads[0] = Some(grad);
    let needs: Vec<bool> = operands.iter().map(|v| builder.ty(*v).dtype.is_float()).collect();
    let mut backward =
        Backward { b: &mut builder, operands: &operands, results: &results, grads: &grads, needs: &needs, out: vec![] };
    match sample.op.rules().gradient(&mut backward) {
        Ok(()) if operands.is_empty() => "leaf",
        Ok(()) => "yes",
        Err(NoGradient::Constant) => "constant",
        Err(NoGradient::NotOfModels) => "no",
    }
}

fn form(sample: &Sample) -> String {
    let (builder, operands, results) = sample.build();
    let graph = builder.graph();
    let extent = |v: &_| Extent::new(graph.ty(*v), &Sharding::replicated(graph.ty(*v).rank()), &graph.mesh);
    let operands: Vec<Extent> = operands.iter().map(extent).collect();
    let results: Vec<Extent> = results.iter().map(extent).collect();
    match sample.op.rules().lower(&LowerContext { mesh: &graph.mesh, operands: &operands, results: &results }) {
        Lowered::Map(_) => "map".to_string(),
        Lowered::Reduce { .. } => "reduce".to_string(),
        Lowered::Alias(_) => "same memory".to_string(),
        Lowered::Leaf => "leaf".to_string(),
        Lowered::Launches { launches, .. } => {
            let mut forms: Vec<&str> = launches.iter().map(|l| l.kernel.name()).collect();
            forms.dedup();
            forms.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_a_sample_and_a_row() {
        let names: Vec<&str> = samples().iter().map(|s| s.op.name()).collect();
        for name in Op::names() {
            assert!(names.contains(&name), "`{name}` has no sample");
        }
        let rows: Vec<&str> = table().iter().map(|r| r.name).collect();
        assert_eq!(rows, Op::names());
    }

    #[test]
    fn the_text_has_a_line_for_each_op() {
        let text = table_text(&table());
        assert_eq!(text.lines().count(), Op::names().len() + 1);
        let contract = text.lines().find(|l| l.starts_with("contract ")).expect("contract is in the table");
        assert_eq!(contract.split_whitespace().collect::<Vec<_>>(), ["contract", "each", "yes", "contract", "ab,bc->ac"]);
    }
}
