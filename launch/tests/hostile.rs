//! A thousand connections that mean no good, of every kind, while four ranks meet: none of them
//! gets in, and the ranks meet as if nobody else were there.

mod support;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use shardc_launch::key::Key;
use shardc_launch::rendezvous::Rendezvous;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{join, listener, on_each, wish};

const SESSIONS: usize = 1000;
const THREADS: usize = 8;
const MAGIC: [u8; 8] = *b"shardc\0\x01";
const HELLO: usize = 88;
const CHALLENGE: usize = 40;
/// A byte of the answer that lets a guest in.
const WELCOME: u8 = 0;

/// The hello of a guest that wants to be rank 2.
fn hello(nonce: u8) -> Vec<u8> {
    let numbers = [2u64, 4].map(u64::to_le_bytes).concat();
    [&MAGIC[..], &numbers, &support::PLANS, &[nonce; 32]].concat()
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    Some(stream)
}

/// Whether what is read to the end of the connection begins with a challenge that is followed by a
/// welcome.
fn was_let_in(stream: &mut TcpStream) -> bool {
    let mut all = vec![];
    // A connection that is cut says as little.
    let _ = stream.read_to_end(&mut all);
    all.get(CHALLENGE) == Some(&WELCOME)
}

/// One session of the kind that follows from its number; says whether it was let in. The port is
/// closed once the ranks have met.
fn attack(address: SocketAddr, number: usize, recorded: &[u8]) -> bool {
    let Some(mut stream) = connect(address) else { return false };
    let seed = number as u8;
    // Where the other side has closed already, the rest is not said.
    let mut say = |bytes: &[u8]| stream.write_all(bytes).is_ok();
    match number % 10 {
        // A proof by another key, by none, and no proof.
        0 | 1 => {
            say(&hello(seed));
            let mut challenge = [0; CHALLENGE];
            if stream.read_exact(&mut challenge).is_err() {
                return false;
            }
            let key: &[u8] = if number.is_multiple_of(10) { b"another key" } else { b"" };
            let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
            for part in [&MAGIC[..], b"guest", &[seed; 32], &challenge[8..], &hello(seed)[8..56]] {
                mac.update(part);
            }
            let proof = mac.finalize().into_bytes();
            let _ = stream.write_all(&proof);
            let mut answer = [WELCOME + 1];
            stream.read_exact(&mut answer).is_ok() && answer[0] == WELCOME
        }
        2 => {
            say(&[&hello(seed)[..], &[0; 32]].concat());
            was_let_in(&mut stream)
        }
        // All that a good rank has said, once more.
        3 => {
            say(recorded);
            was_let_in(&mut stream)
        }
        4 => {
            say(&hello(seed)[..number % HELLO]);
            false
        }
        5 => {
            say(&vec![seed; 1 << 20]);
            was_let_in(&mut stream)
        }
        6 => {
            say(&[&MAGIC[..], &[0xff; 1 << 16]].concat());
            was_let_in(&mut stream)
        }
        // Nothing at all, and at once the end.
        7 => false,
        // A line of HTTP.
        8 => {
            say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            was_let_in(&mut stream)
        }
        // The right key and other plans.
        _ => {
            let plans = [seed.max(8); 32];
            let timeout = Duration::from_secs(2);
            join(Rendezvous { plans, timeout, ..wish(2, 4) }, address).join().expect("no panic").is_ok()
        }
    }
}

/// Sessions that stay open and say a byte now and then, or nothing, until `over`.
fn stay(address: SocketAddr, count: usize, over: &AtomicBool) {
    let mut open: Vec<TcpStream> = (0..count).filter_map(|_| connect(address)).collect();
    let mut at = 0;
    while !over.load(Ordering::SeqCst) {
        for stream in open.iter_mut().step_by(2) {
            let _ = stream.write_all(&hello(1)[at % HELLO..][..1]);
        }
        at += 1;
        thread::sleep(Duration::from_millis(20));
    }
}

/// Passes one connection on to `to`, and keeps what its guest says.
fn listen_in(listener: TcpListener, to: SocketAddr, heard: Arc<Mutex<Vec<u8>>>) {
    let (mut guest, _) = listener.accept().expect("a guest");
    let mut host = connect(to).expect("the port is open");
    let (mut back, mut forth) = (host.try_clone().expect("a handle"), guest.try_clone().expect("a handle"));
    thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut forth);
    });
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = guest.read(&mut bytes) {
        heard.lock().expect("no panic").extend_from_slice(&bytes[..count]);
        if host.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

#[test]
fn nobody_gets_in_and_nobody_is_harmed() {
    let (host_listener, address) = listener();
    let (proxy, through) = listener();
    let heard = Arc::new(Mutex::new(vec![]));
    let start = Instant::now();
    let host = thread::spawn(move || wish(0, 4).host(host_listener, b"the id"));
    let first = join(wish(1, 4), address);
    let kept = heard.clone();
    thread::spawn(move || listen_in(proxy, address, kept));
    let third = join(wish(3, 4), through);
    while heard.lock().unwrap().len() < HELLO + 32 {
        thread::yield_now();
    }
    let recorded = heard.lock().unwrap()[..HELLO + 32].to_vec();

    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let joined = thread::scope(|scope| {
        scope.spawn(|| stay(address, 200, &over));
        let attackers = [(); THREADS].map(|()| {
            scope.spawn(|| {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::SeqCst));
                let numbers = numbers.take_while(|_| !over.load(Ordering::SeqCst));
                numbers.filter(|number| attack(address, *number, &recorded)).collect::<Vec<_>>()
            })
        });
        // The place that all of them want is free until then, and they go on while it is taken.
        while next.load(Ordering::SeqCst) < SESSIONS {
            thread::sleep(Duration::from_millis(5));
        }
        let joined = [first, join(wish(2, 4), address), third].map(|rank| rank.join().unwrap());
        over.store(true, Ordering::SeqCst);
        for attacker in attackers {
            assert_eq!(attacker.join().expect("no panic"), Vec::<usize>::new(), "sessions that were let in");
        }
        joined.map(|met| met.expect("a good rank meets"))
    });
    let all = [host.join().unwrap().expect("rank 0 meets")].into_iter().chain(joined);
    let controls: Vec<_> = all.inspect(|met| assert_eq!(met.handed, b"the id")).map(|met| met.control).collect();
    let gathered = on_each(controls, |control| {
        let all = control.all_gather(&[control.rank() as u8], 1);
        control.finish().map(|()| all)
    });
    gathered.into_iter().for_each(|all| assert_eq!(all, Ok(Ok(vec![vec![0], vec![1], vec![2], vec![3]]))));
    assert!(start.elapsed() < Duration::from_secs(30), "within the timeout of the ranks");
}

#[test]
fn many_open_connections_keep_no_rank_out() {
    let (host_listener, address) = listener();
    let host = thread::spawn(move || wish(0, 2).host(host_listener, b""));
    // More than are looked at, all silent.
    let silent: Vec<TcpStream> = (0..400).filter_map(|_| connect(address)).collect();
    let start = Instant::now();
    let guest = join(Rendezvous { key: Key::of_text(support::KEY), ..wish(1, 2) }, address);
    assert!(guest.join().unwrap().is_ok() && host.join().unwrap().is_ok());
    assert!(start.elapsed() < Duration::from_secs(4), "no silent session has run out of its time by then");
    drop(silent);
}
