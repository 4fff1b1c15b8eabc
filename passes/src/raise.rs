//! Puts one op in the place of each decomposed form that exporters write: activations and
//! normalisations.
//!
//! Before: eight ops of a tanh-GELU. After: `%a = gelu_tanh %x`. The forms stand in the op files;
//! what they miss still runs. Needs phase `imported`, gives `imported`.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, rebuild};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase};
use shardc_ir::ops::{Raise as Form, raises};
use shardc_ir::pattern::Pattern;
use shardc_ir::types::Type;

/// See the module.
pub struct Raise;

impl Pass for Raise {
    fn name(&self) -> &'static str {
        "raise"
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
        let forms: Vec<(Pattern, &Form)> = raises().into_iter().map(|f| (Pattern::new(f.pattern), f)).collect();
        let named = cx.named();
        *graph = rebuild(graph, |b, _, node, map| {
            let [result] = node.results[..] else { return None };
            if named.is_named(graph, node) {
                return None;
            }
            let (op, operands) = forms.iter().find_map(|(pattern, form)| {
                let captures = pattern.matches(graph, result)?;
                let (op, names) = (form.build)(graph, &captures)?;
                Some((op, names.into_iter().map(|n| mapped(map, captures.values[n])).collect::<Vec<_>>()))
            })?;
            let types: Vec<Type> = operands.iter().map(|v| b.ty(*v).clone()).collect();
            if op.rules().result(&types).ok()?[0] != *graph.ty(result) {
                return None;
            }
            let raised = b.ops(op, &operands)[0];
            b.rename(raised, &graph.value(result).name);
            Some(vec![raised])
        });
        Ok(())
    }
}
