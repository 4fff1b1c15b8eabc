//! The statements and options of a spec that the compiler cannot carry out yet.

use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::spec::{Located, Source, Spec};

/// A statement or option, and where a spec uses it. Building one means deleting its row.
type Row = (&'static str, fn(&Spec) -> Vec<Source>);

const PLANNED: &[Row] = &[("precision", |spec| sources(&spec.precision))];

/// Whether a statement of that name can be carried out; what cannot is never the answer to a
/// mistake.
pub fn is_built(statement: &str) -> bool {
    PLANNED.iter().all(|(name, _)| *name != statement)
}

/// An error for each use of a statement or option that is not built yet, in the order of the text;
/// none for a spec that can be compiled.
pub fn unsupported(spec: &Spec) -> Diagnostics {
    let mut uses: Vec<(Source, &str)> =
        PLANNED.iter().flat_map(|(name, find)| find(spec).into_iter().map(move |source| (source, *name))).collect();
    uses.sort();
    let error = |name: &str| Diagnostic::error(format!("`{name}` is not built yet")).help("remove it from the spec");
    uses.into_iter().map(|(source, name)| error(name).at(spec.place_of(source))).collect()
}

fn sources<'s, T: 's>(parts: impl IntoIterator<Item = &'s Located<T>>) -> Vec<Source> {
    parts.into_iter().map(|part| part.source).collect()
}
