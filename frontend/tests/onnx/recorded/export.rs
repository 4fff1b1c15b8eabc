//! A small export with the exporter's record of what is trained.

use shardc_frontend::onnx::{ImportOptions, Imported, import_bytes};
use shardc_ir::diagnostic::Diagnostics;
use shardc_testkit::onnx::*;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

pub(crate) const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";

pub(crate) const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";

pub(crate) const FOLDED: &str = "pkg.onnxscript.optimizer.folded_from";

pub(crate) const CALL: &str = "pkg.torch.onnx.fx_node";

/// The transpose of a matrix of `rows` rows.
pub(crate) fn turned(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    (0..values.len()).map(|at| values[(at % rows) * columns + at / rows]).collect()
}

/// A model as the exporter writes it, with its record.
#[derive(Clone)]
pub(crate) struct Export {
    pub(crate) model: pb::ModelProto,
    pub(crate) listed: Vec<(&'static str, String)>,
    pub(crate) notes: Notes,
}

/// An export of the input `x[4, 6]`, nodes `(op, inputs, outputs, call)` and the output `y`. A call
/// is `function(%x, %p_w) -> result`.
pub(crate) fn exported(nodes: &[(&str, &str, &str, &str)], tensors: Vec<pb::TensorProto>) -> Export {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 6]);
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    let mut notes = Notes::default();
    for (at, (op, inputs, outputs, call)) in nodes.iter().enumerate() {
        node(&mut m, op, inputs, outputs, vec![]);
        if let Some((call, result)) = call.split_once(" -> ") {
            let (function, arguments) = call.split_once('(').unwrap();
            let text = format!(
                "%{result} : [num_users=1] = call_function[target=torch.ops.{function}](args = ({arguments}, kwargs = {{}})"
            );
            notes.nodes.push((at, CALL.into(), text));
        }
    }
    output(&mut m, "y");
    Export { model: m, listed: vec![], notes }
}

impl Export {
    /// Lists tensors of the module as `kind`; each that the file has says so of its value.
    pub(crate) fn lists(mut self, kind: &'static str, names: &str) -> Export {
        for name in names.split_whitespace() {
            self.listed.push((kind, name.to_string()));
            if self.model.graph.as_ref().unwrap().initializer.iter().any(|t| t.name == name) {
                self.notes.values.push((name.into(), KIND.into(), kind.into()));
            }
        }
        self
    }

    pub(crate) fn parameters(self, names: &str) -> Export {
        self.lists("PARAMETER", names)
    }

    /// Says that the optimizer computed `name` from all that is in `from`.
    pub(crate) fn folded(mut self, name: &str, from: &str) -> Export {
        let list: Vec<String> = from.split_whitespace().map(|name| format!("'{name}'")).collect();
        self.notes.values.push((name.into(), FOLDED.into(), format!("[{}]", list.join(", "))));
        self
    }

    /// Forgets what the value `name` says of itself.
    pub(crate) fn without_kind(mut self, name: &str) -> Export {
        self.notes.values.retain(|(of, key, _)| of != name || key != KIND);
        self
    }

    pub(crate) fn signature(&self) -> String {
        let line = |(kind, name): &(&str, String)| {
            let first = kind.chars().next().unwrap_or('x').to_ascii_lowercase();
            format!("{first}_{}: {kind} target='{name}'\n", name.replace('.', "_"))
        };
        let lines: String = self.listed.iter().map(line).collect();
        format!("\n# inputs\n{lines}x: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n")
    }

    pub(crate) fn notes(&self) -> Notes {
        Notes { graph: vec![(SIGNATURE.into(), self.signature())], ..self.notes.clone() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        noted(&self.model, &self.notes())
    }

    pub(crate) fn import_with(&self, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
        import_bytes(Path::new("test.onnx"), self.bytes(), options)
    }

    pub(crate) fn import(&self) -> Imported {
        self.import_with(&ImportOptions::default()).unwrap_or_else(|errors| panic!("{errors:#?}"))
    }

    pub(crate) fn trained(&self) -> Vec<String> {
        trained(&self.import())
    }

    /// The parameters that a refusal names; none if there is no refusal.
    pub(crate) fn lost(&self) -> Vec<String> {
        match self.import_with(&ImportOptions::default()) {
            Ok(_) => vec![],
            Err(errors) => {
                assert_eq!(errors.len(), 1, "{errors:#?}");
                let text = format!("{errors:?}");
                assert!(text.contains("the export has lost"), "{text}");
                let label = text.split("folded into others:").nth(1).unwrap().split("help").next().unwrap();
                label.split('`').skip(1).step_by(2).map(String::from).collect()
            }
        }
    }
}

pub(crate) fn trained(imported: &Imported) -> Vec<String> {
    imported.decisions.iter().filter(|d| d.trained).map(|d| d.name.clone()).collect()
}

pub(crate) fn alias<'i>(imported: &'i Imported, name: &str) -> Option<&'i str> {
    imported.decisions.iter().find(|d| d.name == name).unwrap().alias.as_deref()
}
