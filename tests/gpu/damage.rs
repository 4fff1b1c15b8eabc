//! A device that makes one mistake.

use shardc_cublaslt::{Algorithm, Candidate, Described, Operands};
use shardc_gpu::cuda::{Cuda, Libraries};
use shardc_gpu::device::{
    Call, Comm, CommId, CommState, Description, Device, Event, Function, GoOn, Graph, Launch, Memory, Message, Module, Stream,
};
use shardc_gpu::pinned::Pinned;
use shardc_gpu::start::Open;
use shardc_ir::reason::Reason;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// A stream does not wait.
    LostWait,
    /// An event is not recorded anew.
    LostRecord,
    /// An event is recorded in the other stream's place, one call late.
    LateRecord,
    /// The host does not wait for the end of a part.
    EarlyHost,
    /// The end of a part is not recorded anew, and the host waits for an earlier one.
    LostEnd,
    /// Memory is given back while it is used.
    EarlyFree,
    /// Two calls are made in the other order.
    SwappedLaunches,
    /// A launch goes to the other stream.
    OtherStream,
    /// A launch has fewer blocks.
    ShortGrid,
    /// A pointer is off by 256 bytes.
    OtherPlace,
    /// A launch is left out.
    LostLaunch,
    /// A group is not opened.
    MissingGroup,
    /// Less room is given than the algorithm takes.
    ShortRoom,
    /// Another product's operands are given.
    OtherOperand,
    /// Inputs and numbers of the step before are kept.
    StaleInput,
    /// A copy is too short.
    ShortCopy,
    /// Results are not copied.
    LostCopyOut,
    /// A call has fewer elements.
    ShortCall,
    /// A call goes to the communicator of all.
    OtherComm,
    /// A message goes to another peer.
    OtherPeer,
    /// A call is left out.
    LostCall,
    /// Constants or states are not written.
    LostWrite,
}

/// Bytes that a number takes in pinned memory, with what fills it up.
const NUMBER: usize = 64;

/// A GPU whose `at`-th call of the mistake's kind on that rank is mistaken.
#[derive(Debug)]
pub struct Damaged {
    gpu: Cuda,
    mistake: Option<Mistake>,
    at: u64,
    calls: Arc<AtomicU64>,
    streams: Cell<[usize; 2]>,
    comms: Cell<usize>,
    /// Where the word for wrong data is copied to.
    word: Cell<Option<usize>>,
    /// For each launch of a step whether it reads what the launch just before it wrote.
    follows: Arc<Vec<bool>>,
    /// Whether the host has asked for an event since one was recorded.
    asked: Cell<bool>,
    /// How many events there are, and those of the beginnings and ends of parts.
    events: Cell<usize>,
    begin: Cell<Option<Event>>,
    /// The event of a row that was recorded first in the part, and how many streams wait for it
    /// and for the beginning alike.
    opening: Cell<(Option<Event>, usize)>,
    end: Cell<Option<Event>>,
    /// How many launches there were.
    launches: Cell<usize>,
    /// What was copied last to each place.
    copied: RefCell<BTreeMap<u64, Vec<u8>>>,
    held: RefCell<Option<(Launch, Stream)>>,
}

/// Opens such GPUs: the mistake is one rank's.
#[derive(Debug)]
pub struct Opener {
    pub mistake: Mistake,
    pub rank: u64,
    pub at: u64,
    /// How many such calls there were.
    pub calls: Arc<AtomicU64>,
    /// For each launch of a step whether it reads what the launch just before it wrote.
    pub follows: Arc<Vec<bool>>,
}

impl Open<Damaged> for Opener {
    fn open(&self, libraries: &Libraries, rank: u64) -> Result<Damaged, Reason> {
        let gpu = Cuda::open(libraries, rank as u32)?;
        let mistake = Some(self.mistake).filter(|_| rank == self.rank);
        let (calls, streams, comms) = (self.calls.clone(), Cell::new([0; 2]), Cell::new(0));
        let (word, launches, copied, held) = (Cell::new(None), Cell::new(0), RefCell::default(), RefCell::new(None));
        let (follows, asked) = (self.follows.clone(), Cell::new(false));
        let (events, begin, end) = (Cell::new(0), Cell::new(None), Cell::new(None));
        let opening = Cell::new((None, 0));
        Ok(Damaged {
            gpu,
            mistake,
            at: self.at,
            calls,
            streams,
            comms,
            word,
            follows,
            asked,
            events,
            begin,
            opening,
            end,
            launches,
            copied,
            held,
        })
    }
}

impl Damaged {
    /// Whether this call is the one that is mistaken so.
    fn is(&self, mistake: Mistake) -> bool {
        if self.mistake != Some(mistake) {
            return false;
        }
        self.calls.fetch_add(1, Ordering::Relaxed) == self.at
    }

    fn other(&self, stream: Stream) -> Stream {
        let [main, comm] = self.streams.get();
        Stream(if stream.0 == main { comm } else { main })
    }

    /// Launches, each time, what came last; where the next one takes what that gave, the two are
    /// swapped by mistake.
    fn launch_behind(&self, launch: &Launch, stream: Stream) -> Result<(), Reason> {
        let number = self.launches.get();
        self.launches.set(number + 1);
        let mut next = (launch.clone(), stream);
        if let Some(mut last) = self.held.borrow_mut().take() {
            if self.follows[number % self.follows.len()] && self.is(Mistake::SwappedLaunches) {
                std::mem::swap(&mut last, &mut next);
            }
            self.gpu.launch(&last.0, last.1)?;
        }
        *self.held.borrow_mut() = Some(next);
        Ok(())
    }

    /// Makes the call that was held back.
    fn release(&self) -> Result<(), Reason> {
        let held = self.held.borrow_mut().take();
        match held {
            Some((launch, stream)) => self.gpu.launch(&launch, stream),
            None => Ok(()),
        }
    }
}

impl Device for Damaged {
    fn description(&self) -> &Description {
        self.gpu.description()
    }

    fn enter(&self) -> Result<(), Reason> {
        self.gpu.enter()
    }

    fn memory(&self) -> Result<Memory, Reason> {
        self.gpu.memory()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, Reason> {
        self.gpu.allocate(bytes)
    }

    fn free(&self, address: u64) -> Result<(), Reason> {
        self.gpu.free(address)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, Reason> {
        self.gpu.allocate_pinned(bytes)
    }

    fn free_pinned(&self, pinned: Pinned) -> Result<(), Reason> {
        self.gpu.free_pinned(pinned)
    }

    fn load(&self, cubin: &[u8]) -> Result<Module, Reason> {
        self.gpu.load(cubin)
    }

    fn function(&self, module: Module, entry: &str, shared: u32) -> Result<Function, Reason> {
        self.gpu.function(module, entry, shared)
    }

    fn unload(&self, module: Module) -> Result<(), Reason> {
        self.gpu.unload(module)
    }

    fn stream(&self) -> Result<Stream, Reason> {
        let stream = self.gpu.stream()?;
        let [main, comm] = self.streams.get();
        self.streams.set(match (main, comm) {
            (0, _) => [stream.0, 0],
            (_, 0) => [main, stream.0],
            _ => [main, comm],
        });
        Ok(stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), Reason> {
        self.gpu.destroy_stream(stream)
    }

    fn event(&self) -> Result<Event, Reason> {
        let event = self.gpu.event()?;
        // The first one is the beginning of a part, the second one its end.
        let events = self.events.get() + 1;
        self.events.set(events);
        if events == 1 {
            self.begin.set(Some(event));
        }
        if events == 2 {
            self.end.set(Some(event));
        }
        Ok(event)
    }

    fn destroy_event(&self, event: Event) -> Result<(), Reason> {
        self.gpu.destroy_event(event)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        // The other streams wait for the beginning of a part twice, by this and by the row of the
        // table that is recorded first, of which either suffices where they touch nothing that the
        // host has written.
        if self.begin.get() == Some(event) {
            self.opening.set((None, 0));
            return self.gpu.record(event, stream);
        }
        if self.end.get() != Some(event)
            && let (None, waits) = self.opening.get()
        {
            self.opening.set((Some(event), waits));
            return self.gpu.record(event, stream);
        }
        if self.end.get() == Some(event) {
            // The host waits for the first part of each step. The end of the second, which is
            // recorded behind such a wait, nobody misses before the next one.
            let is_second = self.asked.replace(false);
            return if !is_second && self.is(Mistake::LostEnd) { Ok(()) } else { self.gpu.record(event, stream) };
        }
        if self.is(Mistake::LostRecord) {
            return Ok(());
        }
        let stream = if self.is(Mistake::LateRecord) { self.other(stream) } else { stream };
        self.gpu.record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), Reason> {
        self.release()?;
        let (opening, waits) = self.opening.get();
        if self.begin.get() == Some(event) {
            self.opening.set((opening, waits + 1));
            return self.gpu.wait(stream, event);
        }
        if opening == Some(event) && waits > 0 {
            self.opening.set((opening, waits - 1));
            return self.gpu.wait(stream, event);
        }
        if self.is(Mistake::LostWait) { Ok(()) } else { self.gpu.wait(stream, event) }
    }

    fn has_come(&self, event: Event) -> Result<bool, Reason> {
        // What the host does not wait for it does not ask for.
        let has_asked = self.asked.replace(true);
        if !has_asked && self.is(Mistake::EarlyHost) { Ok(true) } else { self.gpu.has_come(event) }
    }

    fn synchronize(&self, stream: Stream) -> Result<(), Reason> {
        self.gpu.synchronize(stream)
    }

    fn write(&self, to: u64, bytes: &[u8], stream: Stream) -> Result<(), Reason> {
        if bytes.iter().any(|byte| *byte != 0) && self.is(Mistake::LostWrite) {
            Ok(())
        } else {
            self.gpu.write(to, bytes, stream)
        }
    }

    fn read(&self, from: u64, bytes: &mut [u8], stream: Stream) -> Result<(), Reason> {
        self.gpu.read(from, bytes, stream)
    }

    fn copy_in(&self, to: u64, from: &Pinned, range: Range<usize>, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        let bytes = from.bytes()[range.clone()].to_vec();
        let is_new = self.copied.borrow_mut().insert(to, bytes.clone()).is_none_or(|last| last != bytes);
        if is_new && self.is(Mistake::StaleInput) {
            return Ok(());
        }
        let is_short = range.len() > NUMBER && self.is(Mistake::ShortCopy);
        let range = if is_short { range.start..range.end - range.len() / 2 - 1 } else { range };
        self.gpu.copy_in(to, from, range, stream)
    }

    fn copy_out(&self, to: &Pinned, range: Range<usize>, from: u64, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        // The first one of a step is the word for wrong data, which no data here sets.
        let word = self.word.get().unwrap_or(range.start);
        self.word.set(Some(word));
        if range.start != word && self.is(Mistake::LostCopyOut) { Ok(()) } else { self.gpu.copy_out(to, range, from, stream) }
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        self.gpu.copy(to, from, bytes, stream)
    }

    fn clear(&self, to: u64, bytes: u64, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        self.gpu.clear(to, bytes, stream)
    }

    fn launch(&self, launch: &Launch, stream: Stream) -> Result<(), Reason> {
        if self.is(Mistake::LostLaunch) {
            return Ok(());
        }
        if self.is(Mistake::EarlyFree) {
            self.gpu.free(launch.parameters[0])?;
        }
        if self.mistake == Some(Mistake::SwappedLaunches) {
            return self.launch_behind(launch, stream);
        }
        let mut own = launch.clone();
        if own.grid[0] > 1 && self.is(Mistake::ShortGrid) {
            own.grid[0] /= 2;
        }
        if self.is(Mistake::OtherPlace) {
            own.parameters[0] += 256;
        }
        let stream = if self.is(Mistake::OtherStream) { self.other(stream) } else { stream };
        self.gpu.launch(&own, stream)
    }

    fn candidates(&self, product: &Described) -> Result<Vec<Candidate>, Reason> {
        self.gpu.candidates(product)
    }

    fn room(&self, product: &Described, algorithm: &Algorithm) -> Result<u64, Reason> {
        self.gpu.room(product, algorithm)
    }

    fn multiply(&self, product: &Described, with: &Algorithm, operands: &Operands, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        let mut own = *operands;
        if self.is(Mistake::ShortRoom) {
            own.room_bytes = 0;
        }
        if self.is(Mistake::OtherOperand) {
            own.a += 256;
        }
        self.gpu.multiply(product, with, &own, stream)
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), Reason> {
        self.gpu.begin_capture(stream)
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, Reason> {
        self.release()?;
        self.gpu.end_capture(stream)
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), Reason> {
        self.gpu.launch_graph(graph, stream)
    }

    fn destroy_graph(&self, graph: Graph) -> Result<(), Reason> {
        self.gpu.destroy_graph(graph)
    }

    fn comm_id(&self) -> Result<CommId, Reason> {
        self.gpu.comm_id()
    }

    fn join(&self, id: &CommId, ranks: u32, rank: u32, go_on: GoOn<'_>) -> Result<Comm, Reason> {
        let comm = self.gpu.join(id, ranks, rank, go_on)?;
        self.comms.set(comm.0);
        Ok(comm)
    }

    fn split(&self, comm: Comm, color: Option<u32>, key: u32, go_on: GoOn<'_>) -> Result<Option<Comm>, Reason> {
        self.gpu.split(comm, color, key, go_on)
    }

    fn state(&self, comm: Comm) -> Result<CommState, Reason> {
        self.gpu.state(comm)
    }

    fn begin_group(&self) -> Result<(), Reason> {
        if self.is(Mistake::MissingGroup) { Ok(()) } else { self.gpu.begin_group() }
    }

    fn end_group(&self) -> Result<(), Reason> {
        self.gpu.end_group()
    }

    fn call(&self, call: &Call, comm: Comm, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        if self.is(Mistake::LostCall) {
            return Ok(());
        }
        let mut own = call.clone();
        if self.is(Mistake::ShortCall) {
            own.count -= 1;
        }
        let comm = if comm.0 != self.comms.get() && self.is(Mistake::OtherComm) { Comm(self.comms.get()) } else { comm };
        self.gpu.call(&own, comm, stream)
    }

    fn exchange(&self, message: &Message, comm: Comm, stream: Stream) -> Result<(), Reason> {
        self.release()?;
        let mut own = message.clone();
        if self.is(Mistake::OtherPeer) {
            own.peer += 1;
        }
        self.gpu.exchange(&own, comm, stream)
    }

    fn leave(&self, comm: Comm) -> Result<(), Reason> {
        self.gpu.leave(comm)
    }

    fn abort(&self, comm: Comm) -> Result<(), Reason> {
        self.gpu.abort(comm)
    }
}
