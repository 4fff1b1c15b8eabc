//! The spec language: from the text of a `.shard` file to a [`Spec`], or to all of its errors at
//! once.
//!
//! `syntax` finds statements; `statements` has a row for each, and `layout`, `state` and `training`
//! read its words with `reader` and `values`; `check` compares them with each other. A function
//! that reads a part of the text returns `None` after it has reported why, so that the next part is
//! read all the same.

mod check;
mod context;
mod layout;
mod reader;
mod state;
mod statements;
mod syntax;
mod training;
mod values;

pub use statements::{StatementKind, statement_kinds};

use context::Context;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::files;
use shardc_ir::spec::Spec;
use std::io::Read;
use std::path::Path;

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the spec at `path`.
///
/// # Errors
/// Every error of the file in the order of the text; one error at the file if it cannot be read, is
/// not UTF-8 or is larger than 1 MiB.
pub fn load(path: &Path) -> Result<Spec, Diagnostics> {
    let fail = |error: Diagnostic| Diagnostics::from(error.at(Place::File(path.to_path_buf())));
    let mut bytes = vec![];
    files::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(|error| {
        let help = "`shardc init MODEL.onnx` prints a spec to begin with";
        fail(Diagnostic::error(format!("cannot read the spec: {error}")).help(help))
    })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(too_large(path));
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        fail(
            Diagnostic::error(format!("the spec is not UTF-8 text: see line {line}"))
                .help("save the file as UTF-8; a model stands before `--spec`"),
        )
    })?;
    parse(path, text)
}

/// Reads `text`, the contents of the spec at `path`; `path` only names it.
///
/// # Errors
/// The errors in the order of the text; of more than a thousand, those of the first lines.
pub fn parse(path: &Path, text: &str) -> Result<Spec, Diagnostics> {
    if text.len() as u64 > MAX_BYTES {
        return Err(too_large(path));
    }
    let mut context = Context::new(path);
    let spec = statements::read(path, text, &mut context);
    if !context.is_full() {
        check::check(&spec, &mut context);
    }
    let errors = context.into_diagnostics();
    if errors.is_empty() { Ok(spec) } else { Err(errors) }
}

fn too_large(path: &Path) -> Diagnostics {
    Diagnostic::error("the spec is larger than 1 MiB").at(Place::File(path.to_path_buf())).help("is it a spec?").into()
}
