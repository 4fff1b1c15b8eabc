//! The calls that a rank makes of its GPU and of NVIDIA's libraries: all of them, and nothing else.
//!
//! Handles are numbers that mean something to the device alone. Calls that take a stream return
//! before the work is done; the others say so.

use crate::pinned::Pinned;
use shardc_cublaslt::{Algorithm, Candidate, Described, Operands};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::CollectiveKind;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use std::fmt::Debug;
use std::ops::Range;

/// Declares handles.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)] pub struct $name(pub usize);)*
    };
}

handles! {
    /// A queue of work.
    Stream;
    /// A point in a stream, recorded anew each time.
    Event;
    /// Machine code that was loaded.
    Module;
    /// A kernel of a module.
    Function;
    /// A captured part of a step, ready to be launched.
    Graph;
    /// A communicator.
    Comm;
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its number on this machine.
    pub ordinal: u32,
    /// Its name, `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Its architecture, 90 for `sm_90`.
    pub arch: u32,
}

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Those that nobody has taken.
    pub free: u64,
    /// All.
    pub total: u64,
}

/// A launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub function: Function,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, along x.
    pub block: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// The parameters, of 64 bits each.
    pub parameters: Vec<u64>,
}

/// One operand of a call of a communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The kind; no `AllToAll`, which is messages.
    pub kind: CollectiveKind,
    /// How elements combine.
    pub op: ReduceKind,
    /// The element type.
    pub dtype: DType,
    /// Elements, as the kind counts them.
    pub count: u64,
    /// The address of the source.
    pub from: u64,
    /// The address of the destination.
    pub to: u64,
}

/// One end of a message, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Whether this end sends.
    pub sends: bool,
    /// The other member of the communicator.
    pub peer: u32,
    /// The address.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The id by which the ranks of a communicator find one another.
pub type CommId = [u8; 128];

/// Asked again and again while a call waits: an error ends the wait.
pub type GoOn<'a> = &'a dyn Fn() -> Result<(), Reason>;

/// Where a communicator stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommState {
    /// Nothing is under way that the host waits for.
    Ready,
    /// It is not yet ready.
    InProgress,
    /// It failed, in words.
    Failed(String),
}

/// A GPU with its libraries.
pub trait Device: Send + Debug {
    /// What it is.
    fn description(&self) -> &Description;
    /// Makes it the one that calls of this thread mean.
    fn enter(&self) -> Result<(), Reason>;
    /// The bytes of its memory.
    fn memory(&self) -> Result<Memory, Reason>;

    /// Takes memory: its address.
    fn allocate(&self, bytes: u64) -> Result<u64, Reason>;
    /// Gives memory back that no work uses.
    fn free(&self, address: u64) -> Result<(), Reason>;
    /// Takes memory of the host that the GPU reads and writes by itself.
    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, Reason>;
    /// Gives it back.
    fn free_pinned(&self, pinned: Pinned) -> Result<(), Reason>;

    /// Loads the machine code of a text.
    fn load(&self, cubin: &[u8]) -> Result<Module, Reason>;
    /// A kernel that may take so many bytes of shared memory a block.
    fn function(&self, module: Module, entry: &str, shared: u32) -> Result<Function, Reason>;
    /// Unloads machine code.
    fn unload(&self, module: Module) -> Result<(), Reason>;

    /// A new stream.
    fn stream(&self) -> Result<Stream, Reason>;
    /// Ends a stream.
    fn destroy_stream(&self, stream: Stream) -> Result<(), Reason>;
    /// A new event.
    fn event(&self) -> Result<Event, Reason>;
    /// Ends an event.
    fn destroy_event(&self, event: Event) -> Result<(), Reason>;
    /// The event is where the stream is now.
    fn record(&self, event: Event, stream: Stream) -> Result<(), Reason>;
    /// The stream goes on when the event has come.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), Reason>;
    /// Whether the event has come.
    fn has_come(&self, event: Event) -> Result<bool, Reason>;
    /// Waits until a stream has done all that it was given.
    fn synchronize(&self, stream: Stream) -> Result<(), Reason>;

    /// Copies bytes to the device behind what a stream does, and waits.
    fn write(&self, to: u64, bytes: &[u8], stream: Stream) -> Result<(), Reason>;
    /// Copies bytes from the device behind what a stream does, and waits.
    fn read(&self, from: u64, bytes: &mut [u8], stream: Stream) -> Result<(), Reason>;
    /// Copies a range of pinned memory to the device.
    fn copy_in(&self, to: u64, from: &Pinned, range: Range<usize>, stream: Stream) -> Result<(), Reason>;
    /// Copies from the device to a range of pinned memory.
    fn copy_out(&self, to: &Pinned, range: Range<usize>, from: u64, stream: Stream) -> Result<(), Reason>;
    /// Copies within the device.
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Reason>;
    /// Writes zeros.
    fn clear(&self, to: u64, bytes: u64, stream: Stream) -> Result<(), Reason>;
    /// Launches a kernel.
    fn launch(&self, launch: &Launch, stream: Stream) -> Result<(), Reason>;

    /// The algorithms of cuBLASLt for a product, the best first.
    fn candidates(&self, product: &Described) -> Result<Vec<Candidate>, Reason>;
    /// The bytes of room that an algorithm takes, if the library knows it for this product.
    fn room(&self, product: &Described, algorithm: &Algorithm) -> Result<u64, Reason>;
    /// Multiplies.
    fn multiply(&self, product: &Described, with: &Algorithm, operands: &Operands, stream: Stream) -> Result<(), Reason>;

    /// What follows in the stream, and in those that wait for it, is captured and not done.
    fn begin_capture(&self, stream: Stream) -> Result<(), Reason>;
    /// What was captured.
    fn end_capture(&self, stream: Stream) -> Result<Graph, Reason>;
    /// Does what was captured.
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), Reason>;
    /// Drops what was captured.
    fn destroy_graph(&self, graph: Graph) -> Result<(), Reason>;

    /// A new id, which one rank makes for all.
    fn comm_id(&self) -> Result<CommId, Reason>;
    /// Joins a communicator of `ranks` as `rank`. While others have yet to come, `go_on` is asked.
    fn join(&self, id: &CommId, ranks: u32, rank: u32, go_on: GoOn<'_>) -> Result<Comm, Reason>;
    /// Makes a communicator of those members of `comm` that give the same `color`, in the order of
    /// `key`; all members call it, those without a color get none.
    fn split(&self, comm: Comm, color: Option<u32>, key: u32, go_on: GoOn<'_>) -> Result<Option<Comm>, Reason>;
    /// Where a communicator stands.
    fn state(&self, comm: Comm) -> Result<CommState, Reason>;
    /// Calls and messages that follow are one.
    fn begin_group(&self) -> Result<(), Reason>;
    /// The end of what is one.
    fn end_group(&self) -> Result<(), Reason>;
    /// Calls a communicator.
    fn call(&self, call: &Call, comm: Comm, stream: Stream) -> Result<(), Reason>;
    /// Sends or receives.
    fn exchange(&self, message: &Message, comm: Comm, stream: Stream) -> Result<(), Reason>;
    /// Ends a communicator whose calls are done.
    fn leave(&self, comm: Comm) -> Result<(), Reason>;
    /// Ends a communicator, whatever it does.
    fn abort(&self, comm: Comm) -> Result<(), Reason>;
}
