//! Captures of streams, and graphs, which a launch unfolds into hidden streams.

use crate::clock::Clock;
use crate::codes::{
    Answer, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, INVALID_HANDLE,
    INVALID_VALUE,
};
use crate::stream::Event;
use crate::thread;
use crate::work::Work;
use crate::world::World;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Whom a capture keeps from calls that it does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All threads.
    Global,
    /// The thread that began it.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// A capture that goes on.
#[derive(Debug)]
pub struct Capture {
    /// The stream that it began with.
    origin: u64,
    mode: Mode,
    thread: u64,
    /// Whether something was done that it does not allow.
    pub is_invalid: bool,
    steps: Vec<(u64, Work)>,
    /// What each stream's next step comes behind.
    clocks: BTreeMap<u64, Clock>,
    records: HashMap<u64, Clock>,
}

/// What was captured: steps, each with its stream.
#[derive(Debug)]
pub struct Graph {
    device: usize,
    origin: u64,
    steps: Vec<(u64, Work)>,
    /// The streams, with their numbers in the trace.
    streams: BTreeMap<u64, u32>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct Executable {
    graph: Arc<Graph>,
    /// The hidden stream of each captured one.
    hidden: BTreeMap<u64, u64>,
}

impl World {
    /// Whether a call that may wait or allocate is allowed now; else captures that it breaks are
    /// invalid.
    pub fn allowed(&mut self, what: &str) -> Answer {
        let thread = thread::number();
        let breaks = |capture: &Capture| match capture.mode {
            Mode::Global => true,
            Mode::ThreadLocal => capture.thread == thread,
            Mode::Relaxed => false,
        };
        let broken: Vec<u64> = self.captures.iter().filter(|(_, capture)| breaks(capture)).map(|(id, _)| *id).collect();
        if broken.is_empty() {
            return Ok(());
        }
        broken.into_iter().for_each(|capture| self.invalidate(capture));
        self.refuse(CAPTURE_UNSUPPORTED, format!("{what} while a stream is captured"))
    }

    /// Makes a capture one that cannot end well.
    pub fn invalidate(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.is_invalid = true;
        }
    }

    /// `cuStreamBeginCapture`
    pub fn begin_capture(&mut self, stream: u64, mode: Mode) -> Answer {
        let s = self.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        if Some(stream) == self.devices.get(&s.device).and_then(|device| device.legacy) {
            return self.refuse(CAPTURE_UNSUPPORTED, "the legacy default stream cannot be captured".into());
        }
        if s.capture.is_some() {
            return self.refuse(INVALID_VALUE, "a capture begins on a stream that is captured".into());
        }
        let id = self.id();
        let clocks = BTreeMap::from([(stream, Clock::default())]);
        let capture = Capture {
            origin: stream,
            mode,
            thread: thread::number(),
            is_invalid: false,
            steps: vec![],
            clocks,
            records: HashMap::new(),
        };
        self.captures.insert(id, capture);
        if let Some(s) = self.streams.get_mut(&stream) {
            s.capture = Some(id);
        }
        Ok(())
    }

    /// Adds a step to a capture.
    pub fn captured(&mut self, capture: u64, stream: u64, work: Work) -> Answer {
        let Some(c) = self.captures.get_mut(&capture) else { return Err(INVALID_HANDLE) };
        if c.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        let clock = c.clocks.entry(stream).or_default();
        match &work {
            Work::Wait(mark) => {
                if let Some(record) = c.records.get(mark) {
                    clock.join(record);
                }
            }
            Work::Record(mark) => {
                c.records.insert(*mark, clock.clone());
            }
            _ => {}
        }
        if !matches!(work, Work::Record(_)) {
            clock.reach(stream, clock.of(stream) + 1);
        }
        c.steps.push((stream, work));
        Ok(())
    }

    /// `cuStreamEndCapture`
    pub fn end_capture(&mut self, stream: u64) -> Result<u64, u32> {
        let s = self.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        let Some(id) = s.capture else {
            return self.refuse(INVALID_VALUE, "a capture ends on a stream that is not captured".into());
        };
        let device = s.device;
        let capture = &self.captures[&id];
        if capture.origin != stream {
            self.invalidate(id);
            return self.refuse(CAPTURE_UNMATCHED, "a capture ends on another stream than it began with".into());
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread::number() {
            return self.refuse(CAPTURE_WRONG_THREAD, "a capture ends in another thread than it began in".into());
        }
        let Some(capture) = self.captures.remove(&id) else { return Err(INVALID_HANDLE) };
        for s in self.streams.values_mut().filter(|s| s.capture == Some(id)) {
            s.capture = None;
        }
        if capture.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        let end = &capture.clocks[&stream];
        let unjoined = capture.clocks.iter().find(|(other, clock)| !end.covers(**other, clock.of(**other)));
        if let Some((other, _)) = unjoined {
            let shown = self.streams.get(other).map_or(0, |s| s.shown);
            return self.refuse(CAPTURE_UNJOINED, format!("a capture ends while work of stream {shown} has not joined it"));
        }
        let shown = |id: &u64| (*id, self.streams.get(id).map_or(0, |s| s.shown));
        let streams = capture.clocks.keys().map(shown).collect();
        let graph = self.id();
        self.graphs.insert(graph, Arc::new(Graph { device, origin: stream, steps: capture.steps, streams }));
        Ok(graph)
    }

    /// `cuGraphInstantiate`
    pub fn instantiate(&mut self, graph: u64) -> Result<u64, u32> {
        let graph = self.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let mut hidden = BTreeMap::new();
        for (captured, shown) in &graph.streams {
            let id = self.new_stream(graph.device, false);
            if let Some(s) = self.streams.get_mut(&id) {
                s.shown = *shown;
            }
            if let Some(device) = self.devices.get_mut(&graph.device) {
                device.streams -= 1;
            }
            hidden.insert(*captured, id);
        }
        let id = self.id();
        self.executables.insert(id, Executable { graph, hidden });
        Ok(id)
    }

    /// Whether a graph that can be launched holds calls of a communicator.
    pub fn holds_calls(&self, comm: u64) -> bool {
        let mut steps = self.executables.values().flat_map(|executable| &executable.graph.steps);
        steps.any(|(_, work)| work.is_call_of(comm))
    }

    /// `cuGraphLaunch`: each captured stream is a hidden one between two events of `stream`.
    pub fn launch_graph(&mut self, executable: u64, stream: u64) -> Answer {
        let Executable { graph, hidden } = self.executables.get(&executable).ok_or(INVALID_HANDLE)?;
        let (graph, hidden) = (graph.clone(), hidden.clone());
        let s = self.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        if s.device != graph.device {
            return self.refuse(INVALID_HANDLE, "a graph is launched on another device than it was captured on".into());
        }
        if let Some(capture) = s.capture {
            self.invalidate(capture);
            return self.refuse(CAPTURE_UNSUPPORTED, "a graph is launched on a stream that is captured".into());
        }
        self.healthy(graph.device)?;
        if let Some(code) = self.fault("graph") {
            self.complain(graph.device, code, format!("fault {code} of a graph was asked for"));
            return Err(code);
        }
        // Launches of one graph come one after another, on whichever streams. What a captured
        // stream began with says what its first row waits for.
        let fork = self.mark(stream);
        let last = self.mark(hidden[&graph.origin]);
        for (captured, id) in &hidden {
            let begins = graph.steps.iter().find(|(stream, _)| stream == captured);
            let is_root = !matches!(begins, Some((_, Work::Wait(_))));
            for event in [&fork, &last] {
                let rows = if is_root { event.rows.clone() } else { vec![] };
                self.follow(*id, &Event { rows, ..event.clone() });
            }
        }
        let mut marks: HashMap<u64, Event> = HashMap::new();
        for (captured, work) in &graph.steps {
            let id = hidden[captured];
            match work {
                Work::Record(mark) => {
                    let event = self.mark(id);
                    marks.insert(*mark, event);
                }
                Work::Wait(mark) => {
                    if let Some(event) = marks.get(mark) {
                        self.follow(id, event);
                    }
                }
                work => self.enqueue(id, work.clone())?,
            }
        }
        // All captured streams have joined that one, and what the stream did before is before it.
        let end = self.mark(hidden[&graph.origin]);
        self.follow(stream, &end);
        if let Some(s) = self.streams.get_mut(&stream).filter(|_| !end.rows.is_empty()) {
            s.rows.clear();
            s.waits = end.rows;
        }
        Ok(())
    }
}
