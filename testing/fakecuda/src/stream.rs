//! Streams and events: what is enqueued, and what is ordered before what.

use crate::c::host;
use crate::clock::Clock;
use crate::codes::{
    Answer, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURED_EVENT, INVALID_HANDLE,
};
use crate::memory::POISON;
use crate::thread;
use crate::work::{End, Work};
use crate::world::World;
use std::collections::VecDeque;

/// A stream.
#[derive(Debug, Default)]
pub struct Stream {
    /// The device.
    pub device: usize,
    /// Whether it was destroyed; what it was given is still done.
    pub is_destroyed: bool,
    /// Whether it waits for the legacy default stream, and that one for it.
    pub is_blocking: bool,
    /// What is left to do.
    pub queue: VecDeque<Item>,
    /// Whether an operation of it runs outside of the lock.
    pub is_running: bool,
    /// What its next operation comes behind.
    pub clock: Clock,
    /// Its operations so far.
    pub number: u64,
    /// The capture that it takes part in.
    pub capture: Option<u64>,
    /// Its number in the trace, from 0 on each device.
    pub shown: u32,
    /// The row of its last operation in the trace, or those that it is to wait for.
    pub rows: Vec<u64>,
    /// The rows that its next operation waits for.
    pub waits: Vec<u64>,
}

/// An operation in a queue.
#[derive(Debug)]
pub struct Item {
    /// What is done.
    pub work: Work,
    /// What comes before.
    pub clock: Clock,
    /// Its number in the stream.
    pub number: u64,
    /// Its row in the trace.
    pub row: Option<u64>,
    /// Whether calls of communicators have told the others that they are here.
    pub has_arrived: bool,
}

/// An event, as it was last recorded.
#[derive(Debug, Clone, Default)]
pub struct Event {
    /// The record; 0 for none.
    pub mark: u64,
    /// What comes before it.
    pub clock: Clock,
    /// Rows of the trace that it stands for.
    pub rows: Vec<u64>,
    /// The capture in which it was recorded.
    pub capture: Option<u64>,
    /// The device of the stream.
    pub device: usize,
}

impl Item {
    /// Its name in reports.
    pub fn name(&self) -> String {
        self.row.map_or_else(|| self.work.name(), |row| format!("{} (row {row})", self.work.name()))
    }
}

impl Stream {
    /// Whether all is done.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_running
    }
}

impl World {
    /// A new stream.
    pub fn new_stream(&mut self, device: usize, is_blocking: bool) -> u64 {
        let shown = self.devices.entry(device).or_default().streams;
        self.devices.entry(device).or_default().streams += 1;
        let id = self.id();
        self.streams.insert(id, Stream { device, is_blocking, shown, ..Stream::default() });
        id
    }

    /// The stream of a handle: 0 and 1 are the legacy default stream of the current device.
    pub fn resolve(&mut self, handle: u64) -> Result<u64, u32> {
        let device = thread::device()?;
        if handle > 1 {
            let stream = self.streams.get(&handle).filter(|stream| !stream.is_destroyed);
            let stream = stream.ok_or(INVALID_HANDLE)?;
            if stream.device != device {
                return self.refuse(INVALID_HANDLE, format!("a stream of device {} where {device} is current", stream.device));
            }
            return Ok(handle);
        }
        // It would wait for streams that only record what they are given.
        let captured = self.streams.values().find(|s| s.device == device && s.is_blocking && s.capture.is_some());
        if let Some(capture) = captured.and_then(|stream| stream.capture) {
            self.invalidate(capture);
            return self.refuse(CAPTURE_IMPLICIT, "the legacy default stream is used while a blocking stream is captured".into());
        }
        if let Some(legacy) = self.devices.get(&device).and_then(|device| device.legacy) {
            return Ok(legacy);
        }
        let legacy = self.new_stream(device, false);
        self.devices.entry(device).or_default().legacy = Some(legacy);
        Ok(legacy)
    }

    /// Gives a stream something to do, or adds it to the stream's capture.
    pub fn enqueue(&mut self, stream: u64, work: Work) -> Answer {
        let device = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.device;
        if let Some(capture) = self.streams[&stream].capture {
            return self.captured(capture, stream, work);
        }
        self.healthy(device)?;
        self.order_with_legacy(stream, device);
        self.push(stream, work)
    }

    /// Orders the legacy default stream and blocking ones.
    fn order_with_legacy(&mut self, stream: u64, device: usize) {
        let Some(legacy) = self.devices.get(&device).and_then(|device| device.legacy) else { return };
        let before: Vec<u64> = if stream == legacy {
            self.streams.iter().filter(|(_, s)| s.device == device && s.is_blocking).map(|(id, _)| *id).collect()
        } else if self.streams[&stream].is_blocking {
            vec![legacy]
        } else {
            return;
        };
        for other in before {
            let number = self.streams[&other].number;
            if !self.streams[&stream].clock.covers(other, number) {
                let event = self.mark(other);
                self.follow(stream, &event);
            }
        }
    }

    /// Puts an operation at the end of a stream's queue.
    fn push(&mut self, stream: u64, mut work: Work) -> Answer {
        if let Work::Nccl(group) = &mut work {
            self.nccl.number(group);
        }
        let device = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.device;
        let host = self.host_clock(device);
        let row = self.traced(stream, &work);
        let Some(s) = self.streams.get_mut(&stream) else { return Err(INVALID_HANDLE) };
        s.clock.join(&host);
        s.number += 1;
        s.clock.reach(stream, s.number);
        if let Some(row) = row {
            s.rows = vec![row];
            s.waits.clear();
        }
        self.poison(&work);
        let Some(s) = self.streams.get_mut(&stream) else { return Err(INVALID_HANDLE) };
        let item = Item { work, clock: s.clock.clone(), number: s.number, row, has_arrived: false };
        s.queue.push_back(item);
        self.moved();
        Ok(())
    }

    /// Where a copy will come in pinned memory there is nothing to read before it has: unless what
    /// is there may still be copied elsewhere.
    fn poison(&self, work: &Work) {
        let Work::Copy { to: End::Pinned(at), bytes, .. } = work else { return };
        let meets = |item: &Item| match &item.work {
            Work::Copy { to: End::Pinned(other), bytes: length, .. }
            | Work::Copy { from: End::Pinned(other), bytes: length, .. } => at < &(other + length) && *other < at + bytes,
            _ => false,
        };
        let is_used = self.streams.values().any(|stream| stream.queue.iter().any(meets));
        if !is_used && self.memory.check_pinned(*at, *bytes).is_ok() {
            host::write(*at, &vec![POISON; *bytes as usize]);
        }
    }

    /// An event of all that a stream has so far.
    pub fn mark(&mut self, stream: u64) -> Event {
        let mark = self.id();
        self.pending.insert(mark);
        // The stream is there: callers looked.
        let _ = self.push(stream, Work::Record(mark));
        let s = &self.streams[&stream];
        let rows = s.rows.iter().chain(&s.waits).copied().collect();
        Event { mark, clock: s.clock.clone(), rows, capture: None, device: s.device }
    }

    /// A stream waits for an event.
    pub fn follow(&mut self, stream: u64, event: &Event) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        s.clock.join(&event.clock);
        if s.device == event.device {
            let new: Vec<u64> =
                event.rows.iter().filter(|row| !s.waits.contains(row) && !s.rows.contains(row)).copied().collect();
            s.waits.extend(new);
        }
        let _ = self.push(stream, Work::Wait(event.mark));
    }

    /// `cuEventRecord`
    pub fn record(&mut self, event: u64, stream: u64) -> Answer {
        if !self.events.contains_key(&event) {
            return Err(INVALID_HANDLE);
        }
        let device = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.device;
        let recorded = match self.streams[&stream].capture {
            Some(capture) => {
                let mark = self.id();
                self.captured(capture, stream, Work::Record(mark))?;
                Event { mark, capture: Some(capture), device, ..Event::default() }
            }
            None => {
                self.healthy(device)?;
                self.order_with_legacy(stream, device);
                self.mark(stream)
            }
        };
        self.events.insert(event, recorded);
        Ok(())
    }

    /// `cuStreamWaitEvent`
    pub fn wait(&mut self, stream: u64, event: u64) -> Answer {
        let event = self.events.get(&event).ok_or(INVALID_HANDLE)?.clone();
        let own = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.capture;
        if event.mark == 0 {
            return Ok(());
        }
        match (event.capture, own) {
            (None, None) => {
                self.healthy(self.streams[&stream].device)?;
                self.follow(stream, &event);
                Ok(())
            }
            (None, Some(capture)) => {
                self.invalidate(capture);
                self.refuse(CAPTURE_ISOLATION, "a captured stream waits for an event that was recorded outside".into())
            }
            (Some(other), _) if !self.captures.contains_key(&other) => {
                self.refuse(CAPTURED_EVENT, "a wait for an event of a capture that has ended".into())
            }
            (Some(other), Some(capture)) if other != capture => {
                self.invalidate(capture);
                self.invalidate(other);
                self.refuse(CAPTURE_MERGE, "a stream of one capture waits for an event of another".into())
            }
            (Some(capture), _) => {
                if self.captures[&capture].is_invalid {
                    return Err(CAPTURE_INVALIDATED);
                }
                if let Some(s) = self.streams.get_mut(&stream) {
                    s.capture = Some(capture);
                }
                self.captured(capture, stream, Work::Wait(event.mark))
            }
        }
    }
}
