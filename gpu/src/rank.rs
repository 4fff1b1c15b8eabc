//! One rank on a GPU: memory that lies as the launch table says, and steps that are told to the GPU
//! as the table has them.
//!
//! The first step is told row by row, which warms up the libraries; later ones are launched as
//! graphs that were captured from the same rows. The host looks at the norm of the gradients before
//! any parameter changes, so a step may have two parts, each told at once. The host has the results
//! of a step then, and does not wait for the second part: the next step is told behind it. It waits
//! for the end of a part by asking, so that it sees when a communicator or another rank fails
//! meanwhile.

use crate::choices::{Choices, check};
use crate::device::{Device, Event, Function, Graph, Module, Stream};
use crate::groups::Groups;
use crate::pinned::Pinned;
use crate::queue::{Queue, Queued, Resolver, Work};
use crate::start::check_memory;
use crate::watch;
use shardc_codegen::table::Table;
use shardc_cublaslt::{Algorithm, Described, Library, Operands};
use shardc_executor::comm::TrafficTable;
use shardc_executor::fault::Fault;
use shardc_executor::memory::{Bytes, Memory, Place};
use shardc_executor::oddity::Oddity;
use shardc_executor::worker::{Asked, Stepped, Worker};
use shardc_executor::world::World;
use shardc_ir::plan::{BufferId, Stream as Side};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The host asks without a pause for so long, and for so long before and after the moment at which
/// it waited to the last time, since then an end is near.
const EAGER: Duration = Duration::from_micros(200);

/// Between two questions after that.
const PAUSE: Duration = Duration::from_micros(50);

/// Between two looks at the communicators.
const LOOK: Duration = Duration::from_millis(2);

/// What a rank is made of, beside the GPU.
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    /// Which rank of which program.
    pub place: Place,
    /// Its launch table.
    pub table: &'a Table,
    /// The turn before which the host looks at the norm of the gradients, and the norm.
    pub guard: Option<(usize, BufferId)>,
    /// The machine code of each kernel text, with its entries and the shared memory of each.
    pub kernels: &'a [Code],
    /// Where the ranks meet.
    pub world: Arc<World>,
    /// Whether steps are captured as graphs.
    pub graphs: bool,
}

/// The machine code of a text.
#[derive(Debug, Clone)]
pub struct Code {
    /// The text's name.
    pub name: String,
    /// The machine code.
    pub cubin: Vec<u8>,
    /// Its kernels, each with the shared memory of a block.
    pub entries: Vec<(String, u32)>,
}

/// A rank on a GPU.
#[derive(Debug)]
pub struct GpuRank<D: Device> {
    device: D,
    place: Place,
    world: Arc<World>,
    guard: Option<(usize, BufferId)>,
    /// The arena, and what lies behind it.
    memory: u64,
    taken: u64,
    arena: u64,
    modules: Vec<Module>,
    groups: Groups,
    queue: Queue,
    products: Vec<Ready>,
    pinned: Option<Pinned>,
    main: Stream,
    /// The other streams, each with the event at which it joins where a part ends.
    others: Vec<(Side, Stream, Event)>,
    events: BTreeMap<usize, Event>,
    /// The beginning and the end of a part.
    marks: [Event; 2],
    /// Whether steps are captured, and what was.
    captures: bool,
    graphs: Vec<Graph>,
    is_warm: bool,
    /// Whether the end of a part was not waited for yet.
    is_under_way: Cell<bool>,
    /// How long the host waited for the results of the last step.
    waited: Cell<Duration>,
    /// Something failed, or the rank is not ready yet: others may never come to a proper end.
    has_failed: bool,
    /// What was sent in all whole steps.
    traffic: TrafficTable,
}

/// A product that is described, and how it is computed.
#[derive(Debug)]
struct Ready {
    described: Described,
    algorithm: Option<Algorithm>,
}

impl<D: Device> GpuRank<D> {
    /// A rank with memory all zero but for the constants. `groups` are its communicators, and
    /// `library` describes products.
    ///
    /// # Errors
    /// If the GPU has too little memory, or something fails.
    pub fn new(device: D, parts: Parts<'_>, groups: Groups, library: Option<&Library>) -> Result<GpuRank<D>, Reason> {
        let Parts { place, table, guard, kernels, world, graphs } = parts;
        device.enter()?;
        check_memory(&device, table)?;
        let marks = [device.event()?, device.event()?];
        let main = device.stream()?;
        let other = |side| Ok::<_, Reason>((side, device.stream()?, device.event()?));
        let sides: BTreeSet<Side> = table.sections.iter().flat_map(|section| &section.rows).map(|row| row.stream).collect();
        let others = sides.into_iter().filter(|side| *side != Side::Main).map(other).collect::<Result<_, _>>()?;
        let taken = table.bytes().max(1);
        let memory = device.allocate(taken)?;
        let mut rank = GpuRank {
            device,
            place,
            world,
            guard,
            memory,
            taken,
            arena: table.arena,
            modules: vec![],
            groups,
            queue: Queue::default(),
            products: vec![],
            pinned: None,
            main,
            others,
            events: BTreeMap::new(),
            marks,
            captures: graphs,
            graphs: vec![],
            is_warm: false,
            is_under_way: Cell::new(false),
            waited: Cell::new(Duration::ZERO),
            has_failed: true,
            traffic: TrafficTable::new(),
        };
        let functions = rank.load(kernels)?;
        let resolver = Resolver { place: &rank.place, memory, functions: &functions, groups: &rank.groups };
        rank.queue = resolver.queue(table, guard.map(|(turn, _)| turn))?;
        for row in rank.queue.awaited.clone() {
            rank.events.insert(row, rank.device.event()?);
        }
        rank.pinned = Some(rank.device.allocate_pinned(rank.queue.pinned.bytes.max(1))?);
        for (product, vector) in &rank.queue.products {
            let library = library.ok_or("products without cuBLASLt")?;
            rank.products.push(Ready { described: library.describe(product, *vector)?, algorithm: None });
        }
        Ok(rank)
    }

    /// Chooses an algorithm for each product, in memory that holds nothing yet; to tune, the
    /// fastest.
    ///
    /// # Errors
    /// If there is none for one.
    pub fn choose(&mut self, choices: &mut Choices, tune: bool) -> Result<(), Reason> {
        self.device.enter()?;
        let mut first: BTreeMap<usize, &Operands> = BTreeMap::new();
        for queued in &self.queue.all {
            if let Work::Multiply(number, operands) = &queued.work {
                first.entry(*number).or_insert(operands);
            }
        }
        for (number, operands) in first {
            let described = &self.products[number].described;
            choices.choose(&self.device, &self.queue.products[number].0, described, operands, self.main, tune)?;
        }
        self.clear()
    }

    /// Takes what was chosen, and writes the constants: the rank is ready.
    ///
    /// # Errors
    /// If a product has no algorithm that works here.
    pub fn begin(&mut self, choices: &Choices) -> Result<(), Reason> {
        self.device.enter()?;
        for (ready, (product, _)) in self.products.iter_mut().zip(&self.queue.products) {
            let algorithm = choices.of(product).ok_or("a product without an algorithm")?;
            check(&self.device, product, &ready.described, algorithm)?;
            ready.algorithm = Some(*algorithm);
        }
        let loaded = self.place.loaded.clone();
        for constant in &loaded.program().constants {
            self.write_bytes(constant.buffer, &constant.bytes)?;
        }
        self.has_failed = false;
        Ok(())
    }

    /// Its GPU.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Zeros everywhere.
    fn clear(&self) -> Result<(), Reason> {
        self.device.clear(self.memory, self.taken, self.main)?;
        self.device.synchronize(self.main)
    }

    fn load(&mut self, kernels: &[Code]) -> Result<HashMap<String, Function>, Reason> {
        let mut functions = HashMap::new();
        for Code { name, cubin, entries } in kernels {
            let module = self.device.load(cubin).map_err(|why| reason!("kernel `{name}`: {why}"))?;
            self.modules.push(module);
            for (entry, shared) in entries {
                let function = self.device.function(module, entry, *shared);
                functions.insert(entry.clone(), function.map_err(|why| reason!("kernel `{entry}`: {why}"))?);
            }
        }
        Ok(functions)
    }

    fn side(&self, side: Side) -> Stream {
        self.others.iter().find(|(other, ..)| *other == side).map_or(self.main, |(_, stream, _)| *stream)
    }

    /// Tells the GPU a part of the step.
    fn tell(&self, part: Range<usize>) -> Result<(), Reason> {
        let [begin, _] = self.marks;
        let rows = &self.queue.all[part];
        let is_used = |(side, ..): &&(Side, Stream, Event)| rows.iter().any(|queued| queued.stream == *side);
        let used: Vec<_> = self.others.iter().filter(is_used).collect();
        if !used.is_empty() {
            self.device.record(begin, self.main)?;
        }
        for (_, stream, _) in &used {
            self.device.wait(*stream, begin)?;
        }
        for queued in rows {
            self.tell_row(queued).map_err(|why| reason!("row {} of the launch table: {why}", queued.number))?;
        }
        for (_, stream, join) in used {
            self.device.record(*join, *stream)?;
            self.device.wait(self.main, *join)?;
        }
        Ok(())
    }

    fn tell_row(&self, queued: &Queued) -> Result<(), Reason> {
        let (device, stream) = (&self.device, self.side(queued.stream));
        for row in &queued.waits {
            device.wait(stream, *self.events.get(row).ok_or("a wait for a row without an event")?)?;
        }
        self.tell_work(&queued.work, stream)?;
        match self.events.get(&queued.number) {
            Some(event) => device.record(*event, stream),
            None => Ok(()),
        }
    }

    fn tell_work(&self, work: &Work, stream: Stream) -> Result<(), Reason> {
        let device = &self.device;
        match work {
            Work::Each(all) => all.iter().try_for_each(|work| self.tell_work(work, stream)),
            Work::Launch(launch) => device.launch(launch, stream),
            Work::Multiply(number, operands) => {
                let Ready { described, algorithm } = &self.products[*number];
                device.multiply(described, algorithm.as_ref().ok_or("a product without an algorithm")?, operands, stream)
            }
            Work::Call(calls, comm) => {
                device.begin_group()?;
                calls.iter().try_for_each(|call| device.call(call, *comm, stream))?;
                device.end_group()?;
                self.settle()
            }
            Work::Exchange(messages, comm) => {
                device.begin_group()?;
                messages.iter().try_for_each(|message| device.exchange(message, *comm, stream))?;
                device.end_group()?;
                self.settle()
            }
            Work::CopyIn { to, from } => device.copy_in(*to, self.pinned()?, from.clone(), stream),
            Work::Copy { to, from, bytes } => device.copy(*to, *from, *bytes, stream),
            Work::Clear { to, bytes } => device.clear(*to, *bytes, stream),
            Work::CopyOut { to, from } => device.copy_out(self.pinned()?, to.clone(), *from, stream),
        }
    }

    fn pinned(&self) -> Result<&Pinned, Reason> {
        self.pinned.as_ref().ok_or_else(|| "no pinned memory".into())
    }

    /// Waits until what communicators were told is under way.
    fn settle(&self) -> Result<(), Reason> {
        while !self.groups.are_ready(&self.device)? {
            others_run(&self.world)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Tells a part of the step; its end is waited for by [`GpuRank::finish`].
    fn begin_part(&mut self, number: usize) -> Result<(), Reason> {
        let part = self.queue.parts[number].clone();
        if self.captures && self.is_warm {
            if self.graphs.len() <= number {
                self.device.begin_capture(self.main)?;
                let told = self.tell(part);
                let graph = self.device.end_capture(self.main);
                told?;
                self.graphs.push(graph?);
            }
            self.device.launch_graph(self.graphs[number], self.main)?;
        } else {
            self.tell(part)?;
        }
        let [_, end] = self.marks;
        self.is_under_way.set(true);
        self.device.record(end, self.main)
    }

    /// Waits for the end of what is under way, while communicators and other ranks do not fail.
    fn finish(&self) -> Result<(), Reason> {
        if !self.is_under_way.get() {
            return Ok(());
        }
        let [_, end] = self.marks;
        let began = Instant::now();
        let mut looked = began;
        while !self.device.has_come(end)? {
            if looked.elapsed() > LOOK {
                self.groups.are_ready(&self.device)?;
                others_run(&self.world)?;
                looked = Instant::now();
            }
            let is_near = |moment: Duration| began.elapsed().abs_diff(moment) <= EAGER;
            if is_near(Duration::ZERO) || is_near(self.waited.get()) { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
        self.waited.set(began.elapsed());
        self.is_under_way.set(false);
        Ok(())
    }

    fn take_step(&mut self, asked: &Asked) -> Result<Stepped, Fault> {
        self.device.enter()?;
        let bytes = self.pinned.as_mut().ok_or("no pinned memory")?.bytes_mut();
        self.queue.pinned.write(&self.place, bytes, asked.number, &asked.batch)?;
        self.begin_part(0)?;
        self.finish()?;
        let results = |rank: &Self| rank.queue.pinned.results(&rank.place, rank.pinned()?.bytes(), &asked.outputs);
        let early = self.queue.has_results.then(|| results(self)).transpose()?;
        for part in 1..self.queue.parts.len() {
            if let Some((_, norm)) = self.guard.filter(|_| asked.guards.is_some())
                && Oddity::of(self.place.program().buffer(norm)?.dtype, &self.part(norm)?).is_some()
            {
                let outputs = asked.outputs.iter().map(|name| self.read(name)).collect::<Result<_, _>>()?;
                return Ok(Stepped { outputs, given_up: true, timed: None });
            }
            self.begin_part(part)?;
        }
        let outputs = match early {
            Some(outputs) => outputs,
            None => {
                self.finish()?;
                results(self)?
            }
        };
        self.is_warm = true;
        for (key, sent) in &self.queue.traffic {
            let total = self.traffic.entry(key.clone()).or_default();
            total.calls += sent.calls;
            total.bytes_sent += sent.bytes_sent;
        }
        Ok(Stepped { outputs, given_up: false, timed: None })
    }

    /// Gives everything back. Where something failed the communicators end whatever they do, and
    /// the rest ends with the process.
    fn end(&mut self) -> Result<(), Reason> {
        let entered = self.device.enter();
        if self.has_failed || entered.is_err() {
            for graph in self.graphs.drain(..) {
                // What a GPU that has failed does not give back ends with the process.
                let _ = self.device.destroy_graph(graph);
            }
            self.groups.end(&self.device, false);
            return entered;
        }
        let (streams, joins): (Vec<Stream>, Vec<Event>) = self.others.iter().map(|(_, stream, join)| (*stream, *join)).unzip();
        let streams = || [self.main].into_iter().chain(streams.iter().copied());
        streams().try_for_each(|stream| self.device.synchronize(stream))?;
        // A communicator does not end before the graphs that hold calls of it.
        for graph in self.graphs.drain(..) {
            self.device.destroy_graph(graph)?;
        }
        self.groups.end(&self.device, true);
        for event in std::mem::take(&mut self.events).into_values().chain(self.marks).chain(joins) {
            self.device.destroy_event(event)?;
        }
        streams().try_for_each(|stream| self.device.destroy_stream(stream))?;
        for module in self.modules.drain(..) {
            self.device.unload(module)?;
        }
        if let Some(pinned) = self.pinned.take() {
            self.device.free_pinned(pinned)?;
        }
        self.device.free(self.memory)
    }
}

impl<D: Device> Memory for GpuRank<D> {
    fn place(&self) -> &Place {
        &self.place
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Reason> {
        inside(&range, self.arena)?;
        self.device.enter()?;
        self.finish()?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.device.read(self.memory + range.start, &mut bytes, self.main)?;
        Ok(Bytes::Copied(bytes))
    }

    fn fill(&mut self, range: Range<u64>, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Reason> {
        inside(&range, self.arena)?;
        self.device.enter()?;
        self.finish()?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        fill(&mut bytes);
        self.device.write(self.memory + range.start, &bytes, self.main)
    }

    fn zero(&mut self, id: BufferId) -> Result<(), Reason> {
        self.device.enter()?;
        self.finish()?;
        for range in self.place.ranges(id)? {
            inside(&range, self.arena)?;
            self.device.clear(self.memory + range.start, range.end - range.start, self.main)?;
        }
        self.device.synchronize(self.main)
    }
}

impl<D: Device> Worker for GpuRank<D> {
    fn step(&mut self, asked: &Asked) -> Result<Stepped, Fault> {
        let stepped = self.take_step(asked);
        self.has_failed |= stepped.is_err();
        stepped
    }

    fn traffic(&self) -> TrafficTable {
        self.traffic.clone()
    }

    fn memory(&self) -> Option<(u64, u64)> {
        None
    }
}

impl<D: Device> Drop for GpuRank<D> {
    fn drop(&mut self) {
        self.has_failed |= self.world.has_failed();
        // Another thread may end the rank than the one that ran it.
        self.has_failed = self.has_failed || self.device.enter().and_then(|()| self.finish()).is_err();
        let message =
            format!("rank {} did not leave its GPU and NCCL in time; the process ends without them", self.place.number());
        watch::within_patience(message, || {
            // What a GPU that has failed does not give back ends with the process.
            let _ = self.end();
        });
    }
}

fn inside(range: &Range<u64>, arena: u64) -> Result<(), Reason> {
    if range.start <= range.end && range.end <= arena { Ok(()) } else { Err(reason!("bytes {range:?} are outside the arena")) }
}

/// An error once another rank has failed.
pub fn others_run(world: &World) -> Result<(), Reason> {
    match world.failure() {
        Some(failure) => Err(failure.fault.message.into()),
        None => Ok(()),
    }
}
