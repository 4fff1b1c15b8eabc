//! Operations happen: one at a time, of a stream that is drawn among those that can go on.

use crate::c::host;
use crate::codes::{ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::memory::{Toucher, Way};
use crate::stream::Item;
use crate::work::{End, Work};
use crate::world::{Guard, World, lock};
use crate::{kernel, matmul};

/// Does one operation, if any can be done.
pub fn one(mut world: Guard) -> (Guard, bool) {
    world.listen();
    let ready: Vec<u64> = world.streams.keys().copied().filter(|stream| world.is_ready(*stream)).collect();
    if ready.is_empty() {
        return (world, false);
    }
    let id = ready[world.random.below(ready.len())];
    if world.arrives(id) {
        world.moved();
        return (world, true);
    }
    let Some(stream) = world.streams.get_mut(&id) else { return (world, false) };
    let (device, Some(item)) = (stream.device, stream.queue.pop_front()) else { return (world, false) };
    if world.healthy(device).is_err() {
        // What waits for it must see the error, not wait.
        if let Work::Record(mark) = item.work {
            world.pending.remove(&mark);
        }
        world.moved();
        return (world, true);
    }
    let what = item.name();
    let by = Toucher { stream: id, number: item.number, clock: &item.clock, what: &what };
    let problem = match &item.work {
        Work::Record(mark) => {
            world.pending.remove(mark);
            Ok(())
        }
        Work::Wait(_) => Ok(()),
        Work::Copy { to, from, bytes } => world.copy(device, &by, to, from, *bytes),
        Work::Set { to, value, bytes } => world.set(device, &by, *to, *value, *bytes),
        Work::Nccl(group) => world.finish(device, &by, group),
        Work::Kernel(launch) => {
            let launch = launch.clone();
            match world.prepare_kernel(device, &by, &launch) {
                Err(problem) => Err(problem),
                Ok(job) => {
                    let (guard, found) = apart(world, id, || kernel::run(&launch, &job));
                    world = guard;
                    let Some(found) = found else { return (world, true) };
                    world.finish_kernel(device, &launch, found)
                }
            }
        }
        Work::Product(call) => {
            let call = call.clone();
            match world.prepare_product(device, &by, &call) {
                Err(problem) => Err(problem),
                Ok(memory) => {
                    let (guard, found) = apart(world, id, || matmul::run(&call, memory));
                    world = guard;
                    let Some(found) = found else { return (world, true) };
                    world.finish_product(device, &call, found)
                }
            }
        }
    };
    if let Err((code, text)) = problem {
        world.complain(device, code, format!("{what}: {text}"));
    }
    world.moved();
    (world, true)
}

/// Computes something without the lock, so that others go on; nothing where the world is another
/// one behind it.
fn apart<T>(mut world: Guard, stream: u64, compute: impl FnOnce() -> T) -> (Guard, Option<T>) {
    let generation = world.generation;
    if let Some(stream) = world.streams.get_mut(&stream) {
        stream.is_running = true;
    }
    drop(world);
    let found = compute();
    let mut world = lock();
    if world.generation != generation {
        return (world, None);
    }
    if let Some(stream) = world.streams.get_mut(&stream) {
        stream.is_running = false;
    }
    (world, Some(found))
}

/// What is wrong with an operation: the device's error, and words.
pub type Problem = (u32, String);

/// An access that the device would not survive.
pub fn illegal(text: String) -> Problem {
    (ILLEGAL_ADDRESS, text)
}

/// Something that is wrong otherwise.
pub fn failed(text: String) -> Problem {
    (LAUNCH_FAILED, text)
}

impl World {
    fn is_ready(&self, stream: u64) -> bool {
        let stream = &self.streams[&stream];
        if stream.is_running {
            return false;
        }
        match stream.queue.front() {
            None => false,
            Some(_) if self.healthy(stream.device).is_err() => true,
            Some(Item { work: Work::Wait(mark), .. }) => !self.pending.contains(mark),
            Some(Item { work: Work::Nccl(group), has_arrived, .. }) => !has_arrived || self.nccl.is_complete(group),
            Some(_) => true,
        }
    }

    /// Tells the other ranks that a stream has come to its calls, if it has not yet.
    fn arrives(&mut self, id: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let device = stream.device;
        if self.devices.get(&device).is_some_and(|device| device.error.is_some()) {
            return false;
        }
        let Some(item) = stream.queue.front_mut() else { return false };
        let (Work::Nccl(group), false) = (&item.work, item.has_arrived) else { return false };
        item.has_arrived = true;
        let (group, clock, number, what) = (group.clone(), item.clock.clone(), item.number, item.name());
        let by = Toucher { stream: id, number, clock: &clock, what: &what };
        if let Err((code, text)) = self.begin(device, &by, &group) {
            self.complain(device, code, format!("{what}: {text}"));
        }
        true
    }

    /// Bytes of a device that an operation touches: bounds, and races.
    pub fn touch(&mut self, device: usize, by: &Toucher<'_>, at: u64, bytes: u64, way: Way) -> Result<(), Problem> {
        self.memory.check(device, at, bytes).map_err(illegal)?;
        self.memory.touch(by, at, bytes, way).map_err(failed)
    }

    fn copy(&mut self, device: usize, by: &Toucher<'_>, to: &End, from: &End, bytes: u64) -> Result<(), Problem> {
        if let Some(code) = self.fault("copy") {
            return Err((code, format!("fault {code} was asked for")));
        }
        let data = match from {
            End::Device(at) => {
                self.touch(device, by, *at, bytes, Way::Reads)?;
                self.memory.read(device, *at, bytes).map_err(illegal)?
            }
            End::Pinned(at) => {
                self.memory.check_pinned(*at, bytes).map_err(illegal)?;
                self.memory.touch(by, *at, bytes, Way::Reads).map_err(failed)?;
                host::read(*at, bytes)
            }
            End::Waiting(at) => host::read(*at, bytes),
            End::Taken(data) => data.to_vec(),
        };
        match to {
            End::Device(at) => {
                self.touch(device, by, *at, bytes, Way::Writes)?;
                self.memory.write(device, *at, &data).map_err(illegal)
            }
            End::Pinned(at) => {
                self.memory.check_pinned(*at, bytes).map_err(illegal)?;
                self.memory.touch(by, *at, bytes, Way::Writes).map_err(failed)?;
                host::write(*at, &data);
                Ok(())
            }
            End::Waiting(at) => {
                host::write(*at, &data);
                Ok(())
            }
            End::Taken(_) => Err(failed("a copy into nothing".into())),
        }
    }

    fn set(&mut self, device: usize, by: &Toucher<'_>, to: u64, value: u8, bytes: u64) -> Result<(), Problem> {
        if let Some(code) = self.fault("memset") {
            return Err((code, format!("fault {code} was asked for")));
        }
        self.touch(device, by, to, bytes, Way::Writes)?;
        self.memory.fill(device, to, bytes, value).map_err(illegal)
    }
}
