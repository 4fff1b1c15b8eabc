//! The ways from one process to the ranks that are others: a connection to each, with a thread that
//! puts what comes where this rank takes it. What comes early waits there, so no sender waits for
//! long, and no two wait for one another.

use crate::transfer::{Route, deliver};
use crate::world::World;
use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_launch::control::{Cause, Control, Failure};
use shardc_launch::wires;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Ways to ranks that are other processes.
pub trait Wires: Debug + Send + Sync {
    /// Sends `parts`, one after another, as one message, from the rank that is here.
    ///
    /// # Errors
    /// If the receiver is gone, or a rank of `world` failed.
    fn send(&self, world: &World, route: Route, dtype: DType, parts: &[&[u8]]) -> Result<(), Reason>;
}

/// Connections to all other ranks.
#[derive(Debug)]
struct Sockets(BTreeMap<u64, Mutex<TcpStream>>);

/// A write that is stuck looks so often whether a rank has failed.
const TICK: Duration = Duration::from_millis(100);
/// After a connection has broken, why becomes known within this time, or it is a failure by itself.
const GRACE: Duration = Duration::from_secs(2);
/// The purpose, the type and the number of bytes.
const HEAD: usize = 17;
const TYPES: [DType; 6] = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::Bool];

/// Connects the ranks of `control`, of which each is a process with a world of its own. From then
/// on a failure that any of them has ends all waits in all worlds.
///
/// # Errors
/// The failure of a rank.
pub fn connect(control: &Arc<Control>, world: &Arc<World>) -> Result<(), Failure> {
    let mut links = BTreeMap::new();
    for (peer, stream) in wires::lay(control)? {
        let failed = |e: io::Error| control.fail(format!("its connection to rank {peer} fails: {e}"));
        let reader = stream.try_clone().map_err(failed)?;
        stream.set_write_timeout(Some(TICK)).map_err(failed)?;
        let (control, weak) = (Arc::downgrade(control), Arc::downgrade(world));
        let read = move || read(peer, reader, &control, &weak);
        thread::Builder::new().name(format!("from rank {peer}")).spawn(read).map_err(failed)?;
        links.insert(peer, Mutex::new(stream));
    }
    world.connect(Box::new(Sockets(links)));
    hear(control, world);
    Ok(())
}

/// Lets the first failure of any of the ranks of `control` end all waits in `world`.
pub fn hear(control: &Control, world: &Arc<World>) {
    let weak = Arc::downgrade(world);
    control.watch(move |failure| {
        if let Some(world) = weak.upgrade() {
            world.fail(failure.rank, failure.what());
        }
    });
}

impl Wires for Sockets {
    fn send(&self, world: &World, route: Route, dtype: DType, parts: &[&[u8]]) -> Result<(), Reason> {
        let Route { to, purpose, .. } = route;
        let link = self.0.get(&to).ok_or_else(|| reason!("there is no connection to rank {to}"))?;
        let number = TYPES.iter().position(|known| *known == dtype).ok_or("a type without a number")?;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut head = purpose.to_le_bytes().to_vec();
        head.push(number as u8);
        head.extend((length as u64).to_le_bytes());
        let mut stream = link.lock().unwrap_or_else(PoisonError::into_inner);
        for mut bytes in [&head[..]].into_iter().chain(parts.iter().copied()) {
            while !bytes.is_empty() {
                if world.has_failed() {
                    return Err(world.reason().into());
                }
                match stream.write(bytes) {
                    Ok(count) => bytes = &bytes[count..],
                    Err(e) if is_wait(&e) => {}
                    // What has happened to the other end becomes known.
                    Err(_) => thread::sleep(TICK),
                }
            }
        }
        Ok(())
    }
}

/// The threads that read end with the connections.
impl Drop for Sockets {
    fn drop(&mut self) {
        for stream in self.0.values() {
            // It may be closed already.
            let _ = stream.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
        }
    }
}

/// Delivers what `peer` sends until the connection ends.
fn read(peer: u64, mut stream: TcpStream, control: &Weak<Control>, world: &Weak<World>) {
    let broken = loop {
        match next(&mut stream) {
            Ok((purpose, dtype, bytes)) => {
                let (Some(control), Some(world)) = (control.upgrade(), world.upgrade()) else { return };
                deliver(&world, Route { from: peer, to: control.rank(), purpose }, dtype, bytes);
            }
            Err(e) => break e,
        }
    };
    // That a rank has ended or failed is told by others, and whoever is gone here needs nobody.
    thread::sleep(GRACE);
    if world.strong_count() == 0 {
        return;
    }
    if let Some(control) = control.upgrade().filter(|control| !control.has_ended()) {
        control.fail(format!("its connection to rank {peer} broke: {broken}"));
    }
}

/// The next message.
fn next(stream: &mut TcpStream) -> io::Result<(u64, DType, Vec<u8>)> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let number = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let dtype = TYPES.get(usize::from(head[8])).ok_or(io::Error::other("it sent what means nothing"))?;
    // Memory is taken as bytes come.
    let (mut bytes, length) = (vec![], number(9));
    Read::take(stream, length).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == length {
        true => Ok((number(0), *dtype, bytes)),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Whether the rank that failed could not say why, so that where others waited for it says more.
pub(crate) fn was_silent(failure: &Failure) -> bool {
    failure.cause != Cause::Reported
}
