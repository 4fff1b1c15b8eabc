//! ONNX models: from a file to the global graph, and trained weights back into the file.
//!
//! | room | what it knows |
//! |---|---|
//! | `file` | bytes, messages and tensors of a model, and the record of its exporter |
//! | `trained` | which initializers are trained: by the record, or by their use |
//! | `import` | the graph under way: one node after another through its [`import::call`] |
//! | `ops` | what each ONNX op is in the graph's ops |
//! | `oracle` | what tract computes of a model |

mod file;
mod import;
mod ops;
mod options;
mod oracle;
mod outline;
mod trained;

pub use file::export::{Elements, Export, forget_weights, strip_weights};
pub use file::external::external_files;
pub use file::tensor::Weight;
pub use import::{Imported, import, import_bytes};
pub use options::{ImportOptions, Weights};
pub use oracle::tract_outputs;
pub use outline::{Dim, Outline, Port, outline};
pub use trained::{Tie, Untie};
