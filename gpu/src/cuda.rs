//! A GPU of NVIDIA's, through the libraries that are found while the program runs.

mod driver;
mod library;
mod nccl;

pub use library::{Found, Libraries, Missing, Needed};

use crate::device::{
    Call, Comm, CommId, CommState, Description, Device, Event, Function, GoOn, Graph, Launch, Memory, Message, Module, Stream,
};
use crate::pinned::Pinned;
use driver::Context;
use shardc_cublaslt::{Algorithm, Candidate, Described, Multiplier, Operands};
use shardc_ir::reason::Reason;
use std::ops::Range;

/// A GPU.
#[derive(Debug)]
pub struct Cuda {
    context: Context,
    description: Description,
    /// There where products were asked for.
    multiplier: Option<Multiplier>,
}

impl Cuda {
    /// The GPU of that number.
    ///
    /// # Errors
    /// If there is none, or it does not start.
    pub fn open(libraries: &Libraries, ordinal: u32) -> Result<Cuda, Reason> {
        let (context, description) = Context::open(ordinal)?;
        context.enter()?;
        let multiplier = match libraries.cublaslt() {
            Some(library) => Some(library.multiplier().map_err(Reason::from)?),
            None => None,
        };
        Ok(Cuda { context, description, multiplier })
    }

    fn multiplier(&self) -> Result<&Multiplier, Reason> {
        self.multiplier.as_ref().ok_or_else(|| "cuBLASLt was not opened".into())
    }
}

impl Device for Cuda {
    fn description(&self) -> &Description {
        &self.description
    }

    fn enter(&self) -> Result<(), Reason> {
        self.context.enter()
    }

    fn memory(&self) -> Result<Memory, Reason> {
        driver::memory()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, Reason> {
        driver::allocate(bytes)
    }

    fn free(&self, address: u64) -> Result<(), Reason> {
        driver::free(address)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, Reason> {
        driver::allocate_pinned(bytes)
    }

    fn free_pinned(&self, pinned: Pinned) -> Result<(), Reason> {
        driver::free_pinned(pinned)
    }

    fn load(&self, cubin: &[u8]) -> Result<Module, Reason> {
        driver::load(cubin)
    }

    fn function(&self, module: Module, entry: &str, shared: u32) -> Result<Function, Reason> {
        driver::function(module, entry, shared)
    }

    fn unload(&self, module: Module) -> Result<(), Reason> {
        driver::unload(module)
    }

    fn stream(&self) -> Result<Stream, Reason> {
        driver::stream()
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), Reason> {
        driver::destroy_stream(stream)
    }

    fn event(&self) -> Result<Event, Reason> {
        driver::event()
    }

    fn destroy_event(&self, event: Event) -> Result<(), Reason> {
        driver::destroy_event(event)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), Reason> {
        driver::record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), Reason> {
        driver::wait(stream, event)
    }

    fn has_come(&self, event: Event) -> Result<bool, Reason> {
        driver::has_come(event)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), Reason> {
        driver::synchronize(stream)
    }

    fn write(&self, to: u64, bytes: &[u8], stream: Stream) -> Result<(), Reason> {
        driver::write(to, bytes, stream)
    }

    fn read(&self, from: u64, bytes: &mut [u8], stream: Stream) -> Result<(), Reason> {
        driver::read(from, bytes, stream)
    }

    fn copy_in(&self, to: u64, from: &Pinned, range: Range<usize>, stream: Stream) -> Result<(), Reason> {
        driver::copy_in(to, from, range, stream)
    }

    fn copy_out(&self, to: &Pinned, range: Range<usize>, from: u64, stream: Stream) -> Result<(), Reason> {
        driver::copy_out(to, range, from, stream)
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Reason> {
        driver::copy(to, from, bytes, stream)
    }

    fn clear(&self, to: u64, bytes: u64, stream: Stream) -> Result<(), Reason> {
        driver::clear(to, bytes, stream)
    }

    fn launch(&self, launch: &Launch, stream: Stream) -> Result<(), Reason> {
        driver::launch(launch, stream)
    }

    fn candidates(&self, product: &Described) -> Result<Vec<Candidate>, Reason> {
        Ok(self.multiplier()?.candidates(product)?)
    }

    fn room(&self, product: &Described, algorithm: &Algorithm) -> Result<u64, Reason> {
        Ok(self.multiplier()?.room(product, algorithm)?)
    }

    fn multiply(&self, product: &Described, with: &Algorithm, operands: &Operands, stream: Stream) -> Result<(), Reason> {
        Ok(self.multiplier()?.multiply(product, with, operands, stream.0)?)
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), Reason> {
        driver::begin_capture(stream)
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, Reason> {
        driver::end_capture(stream)
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), Reason> {
        driver::launch_graph(graph, stream)
    }

    fn destroy_graph(&self, graph: Graph) -> Result<(), Reason> {
        driver::destroy_graph(graph)
    }

    fn comm_id(&self) -> Result<CommId, Reason> {
        nccl::id()
    }

    fn join(&self, id: &CommId, ranks: u32, rank: u32, go_on: GoOn<'_>) -> Result<Comm, Reason> {
        nccl::join(id, ranks, rank, go_on)
    }

    fn split(&self, comm: Comm, color: Option<u32>, key: u32, go_on: GoOn<'_>) -> Result<Option<Comm>, Reason> {
        nccl::split(comm, color, key, go_on)
    }

    fn state(&self, comm: Comm) -> Result<CommState, Reason> {
        nccl::state(comm)
    }

    fn begin_group(&self) -> Result<(), Reason> {
        nccl::begin_group()
    }

    fn end_group(&self) -> Result<(), Reason> {
        nccl::end_group()
    }

    fn call(&self, call: &Call, comm: Comm, stream: Stream) -> Result<(), Reason> {
        nccl::call(call, comm, stream)
    }

    fn exchange(&self, message: &Message, comm: Comm, stream: Stream) -> Result<(), Reason> {
        nccl::exchange(message, comm, stream)
    }

    fn leave(&self, comm: Comm) -> Result<(), Reason> {
        nccl::leave(comm)
    }

    fn abort(&self, comm: Comm) -> Result<(), Reason> {
        nccl::abort(comm)
    }
}
