//! The launcher of one machine: it starts ranks as processes of one program, and ends when all have
//! ended. When one fails, the others get a moment to end by themselves, for they hear of it, then
//! the signal to end, then no choice. None outlives the launcher.

mod output;
mod rank;

use crate::environment as names;
use crate::key::Key;
use crate::leash::LEASH;
use output::Output;
use rank::{Rank, Signal};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Ranks to be started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, the same for all.
    pub arguments: Vec<OsString>,
    /// How many ranks to start here.
    pub ranks: u64,
    /// The number of the first of them.
    pub first_rank: u64,
    /// How many ranks there are on all machines.
    pub world_size: u64,
    /// Where rank 0 waits; by default at a free port of this machine that no other one reaches.
    pub rendezvous: Option<String>,
    /// For how long ranks wait for one another at first.
    pub timeout: Duration,
    /// For how long the others may end by themselves when a rank has failed.
    pub moment: Duration,
    /// For how long they may go on after the signal to end.
    pub grace: Duration,
}

/// A process that was killed may be gone so long after those that have heard of it.
const SETTLING: Duration = Duration::from_millis(300);

/// Between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(10);

/// How far the end of the others has come, after a failure.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Not,
    Themselves(Instant),
    Asked(Instant),
    Killed,
}

impl Launcher {
    /// Starts all, passes on what comes from `signals`, and waits for the end of all; `tell` gets
    /// lines for people. Returns the exit code of the first rank that failed, or 0.
    ///
    /// # Errors
    /// If a process cannot be started; those that were are ended.
    pub fn run(&self, signals: &Receiver<i32>, tell: &mut dyn FnMut(&str)) -> Result<u8, String> {
        let mut ranks = self.start()?;
        let (mut received, mut code, mut ending) = (0, 0, Ending::Not);
        while ranks.iter().any(Rank::runs) {
            match signals.recv_timeout(PAUSE) {
                Ok(signal) => {
                    received += 1;
                    ranks.iter_mut().for_each(|rank| rank.signal(Signal::Given(signal)));
                    // After the second no step is waited for.
                    if received == 2 {
                        ending = Ending::Asked(Instant::now() + self.grace);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(PAUSE),
            }
            if let Some(failed) = first_failed(&mut ranks) {
                if code == 0 {
                    code = failed.code();
                }
                let was_asked = received > 0 && failed.code() > 128 && !failed.was_killed();
                if !was_asked && matches!(ending, Ending::Not) {
                    tell(&failed.how());
                    ending = Ending::Themselves(Instant::now() + self.moment);
                }
            }
            ending = self.end_more(&mut ranks, ending);
        }
        let mut shown = BTreeSet::new();
        ranks.sort_by_key(Rank::ended);
        for rank in ranks.into_iter().filter(|rank| rank.code() > 0) {
            let number = rank.number;
            // What several ranks say alike is said once.
            for line in rank.lines().into_iter().filter(|line| shown.insert(line.clone())) {
                tell(&format!("rank {number}: {line}"));
            }
        }
        Ok(code)
    }

    /// Ends what still runs, more strongly as time goes by.
    fn end_more(&self, ranks: &mut [Rank], ending: Ending) -> Ending {
        let now = Instant::now();
        match ending {
            Ending::Themselves(until) if now >= until => {
                ranks.iter_mut().for_each(|rank| rank.signal(Signal::End));
                Ending::Asked(now + self.grace)
            }
            Ending::Asked(until) if now >= until => {
                ranks.iter_mut().for_each(|rank| rank.signal(Signal::Kill));
                Ending::Killed
            }
            _ => ending,
        }
    }

    fn start(&self) -> Result<Vec<Rank>, String> {
        let address = match &self.rendezvous {
            Some(address) => address.clone(),
            None => format!("{}:{}", Ipv4Addr::LOCALHOST, free_port()?),
        };
        // One that is given is inherited.
        let key = if std::env::var_os(names::RENDEZVOUS_KEY).is_none() && self.rendezvous.is_none() {
            Some(Key::random_text()?)
        } else {
            None
        };
        let mut ranks: Vec<Rank> = vec![];
        for local in 0..self.ranks {
            let number = self.first_rank + local;
            let mut command = Command::new(&self.program);
            command.args(&self.arguments).env(LEASH, "1").stdin(Stdio::piped());
            command.env(names::RANK, number.to_string()).env(names::WORLD_SIZE, self.world_size.to_string());
            command.env(names::LOCAL_RANK, local.to_string()).env(names::RENDEZVOUS, &address);
            command.env(names::RENDEZVOUS_TIMEOUT, self.timeout.as_secs().to_string());
            command.envs(key.iter().map(|key| (names::RENDEZVOUS_KEY, key)));
            if number > 0 {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let started = rank::apart(&mut command).spawn().map_err(|e| e.to_string());
            match started.and_then(|mut child| Output::of(&mut child).map(|output| Rank::new(number, child, output))) {
                Ok(rank) => ranks.push(rank),
                Err(why) => {
                    ranks.iter_mut().for_each(|rank| rank.signal(Signal::Kill));
                    ranks.iter_mut().for_each(Rank::wait);
                    return Err(format!("rank {number} cannot be started: {why}"));
                }
            }
        }
        Ok(ranks)
    }
}

/// Of the ranks that have failed since the last call the one that was killed, if there is one: the
/// others may only have heard of it, and even so be gone before it.
fn first_failed(ranks: &mut [Rank]) -> Option<&Rank> {
    let mut failed = just_failed(ranks);
    if !failed.is_empty() && !failed.iter().any(|at| ranks[*at].was_killed()) {
        thread::sleep(SETTLING);
        failed.extend(just_failed(ranks));
    }
    let killed = failed.iter().find(|at| ranks[**at].was_killed());
    killed.or(failed.first()).map(|at| &ranks[*at])
}

/// The ranks that have failed since the last call, by position.
fn just_failed(ranks: &mut [Rank]) -> Vec<usize> {
    let failed = |(at, rank): (usize, &mut Rank)| (rank.has_just_ended() && rank.code() > 0).then_some(at);
    ranks.iter_mut().enumerate().filter_map(failed).collect()
}

/// A port that nobody listens at now, among those that the system gives to nobody who only
/// connects.
fn free_port() -> Result<u16, String> {
    /// Where a look begins is random; so many looks are enough on any machine.
    const LOOKS: u16 = 100;
    let random = crate::key::random()?;
    let begin = u16::from_le_bytes([random[0], random[1]]) % 10_000;
    let mut ports = (0..LOOKS).map(|look| 20_000 + (begin + look) % 10_000);
    let free = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.ok_or_else(|| "this machine has no free port for the ranks to meet at".to_string())
}
