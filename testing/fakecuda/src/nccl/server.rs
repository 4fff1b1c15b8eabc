//! Where ranks of several processes meet: a hub behind a socket, in the process that asked for the
//! identity of the communicator.

use super::hub::{Heard, Hub, Member, Told};
use super::wire;
use crate::settings;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The hub, and the connection of each rank.
#[derive(Default)]
struct Server {
    hub: Hub,
    routes: HashMap<Member, Arc<Mutex<TcpStream>>>,
}

/// The address of this process's server, which begins with the first call.
pub fn address() -> Result<SocketAddr, String> {
    static SERVER: OnceLock<Result<SocketAddr, String>> = OnceLock::new();
    SERVER.get_or_init(|| begin().map_err(|e| format!("no socket for ranks: {e}"))).clone()
}

/// Whether ranks may be other processes.
pub fn is_asked_for() -> bool {
    settings::text("NCCL").is_some_and(|way| way == "tcp" || way.starts_with("tcp:"))
}

fn begin() -> std::io::Result<SocketAddr> {
    let asked = settings::text("NCCL").unwrap_or_default();
    let host = asked.strip_prefix("tcp:").unwrap_or("127.0.0.1");
    let listener = TcpListener::bind((host, 0))?;
    let address = listener.local_addr()?;
    let server = Arc::new(Mutex::new(Server::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = server.clone();
            std::thread::spawn(move || serve(&server, stream));
        }
    });
    Ok(address)
}

/// Takes what the ranks of one connection tell, until it ends.
fn serve(server: &Mutex<Server>, mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(back) = stream.try_clone() else { return };
    let back = Arc::new(Mutex::new(back));
    let lock = || server.lock().unwrap_or_else(PoisonError::into_inner);
    while let Ok((member, told)) = wire::read::<(Member, Told)>(&mut stream) {
        let mut server = lock();
        server.routes.insert(member.clone(), back.clone());
        let heard = server.hub.tell(&member, told);
        server.deliver(heard);
    }
    let mut server = lock();
    let lost: Vec<Member> = server.routes.iter().filter(|(_, route)| Arc::ptr_eq(route, &back)).map(|(m, _)| m.clone()).collect();
    for member in lost {
        server.routes.remove(&member);
        let heard = server.hub.lost(&member);
        server.deliver(heard);
    }
}

impl Server {
    fn deliver(&mut self, heard: Vec<(Member, Heard)>) {
        for (member, heard) in heard {
            let Some(route) = self.routes.get(&member).cloned() else { continue };
            if let Heard::Split { new: Some((new, _)), .. } = &heard {
                self.routes.insert(new.clone(), route.clone());
            }
            // Whose connection is broken is lost, which its own thread sees.
            let _ = wire::write(&mut *route.lock().unwrap_or_else(PoisonError::into_inner), &(member, heard));
        }
    }
}
