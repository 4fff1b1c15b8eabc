//! What ranks gather, and how all learn of the failure of one. Ranks that die or stop are
//! processes: this program, started once more.

mod support;

use shardc_launch::control::{Cause, Control, Failure, Place};
use std::env;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use support::{listener, met, on_each, wish};

fn at(step: u64, call: &str) -> Place {
    Place { step: Some(step), call: call.to_string() }
}

#[test]
fn all_ranks_gather_the_same_in_their_order() {
    for world_size in [2, 3, 7] {
        let gathered = on_each(met(world_size), |control| {
            let mut all = vec![];
            for size in [0, 1, 70_000] {
                let own = vec![control.rank() as u8; size * control.rank() as usize];
                all.push(control.all_gather(&own, 1 << 20).unwrap());
                control.barrier().unwrap();
                let word = [b"the word", &b"another"[..]][usize::from(control.rank() > 0)];
                assert_eq!(control.broadcast(word, 8).unwrap(), b"the word");
            }
            control.finish().map(|()| all)
        });
        let expected: Vec<Vec<Vec<u8>>> =
            [0, 1, 70_000].map(|size| (0..world_size).map(|r| vec![r as u8; size * r as usize]).collect()).to_vec();
        gathered.into_iter().for_each(|all| assert_eq!(all.as_ref(), Ok(&expected)));
    }
}

#[test]
fn large_data_come_whole_while_signs_of_life_go_on() {
    const SIZE: usize = 64 << 20;
    let gathered = on_each(met(3), |control| {
        let own: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8 ^ control.rank() as u8).collect();
        let all = control.all_gather(&own, SIZE as u64).unwrap();
        let good = all.iter().enumerate().all(|(r, part)| part.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8 ^ r as u8));
        control.finish().map(|()| good && all.len() == 3 && all.iter().all(|part| part.len() == SIZE))
    });
    assert_eq!(gathered, vec![Ok(true); 3]);
}

#[test]
fn a_failure_reaches_all_within_a_second() {
    let failing = 2;
    let seen = on_each(met(4), |control| {
        control.at(at(6, "all_reduce"));
        if control.rank() == failing {
            thread::sleep(Duration::from_millis(100));
            let failure = control.fail("its data are bad");
            return (failure, Duration::ZERO);
        }
        let (heard, hears) = mpsc::channel();
        control.watch(move |failure| heard.send((failure.clone(), Instant::now())).unwrap());
        let start = Instant::now();
        let failure = control.barrier().unwrap_err();
        let (watched, _) = hears.recv().unwrap();
        assert_eq!((&watched, control.failure().as_ref()), (&failure, Some(&failure)));
        assert_eq!(control.all_gather(b"", 0), Err(failure.clone()), "no call goes on");
        (failure, start.elapsed())
    });
    for (failure, took) in seen {
        assert_eq!(failure.to_string(), "rank 2: step 7: all_reduce: its data are bad");
        assert_eq!((failure.rank, failure.cause), (failing, Cause::Reported));
        assert!(took < Duration::from_millis(1100), "{took:?}");
    }
}

#[test]
fn rank_0_may_fail_as_others_may() {
    let seen = on_each(met(3), |control| match control.rank() {
        0 => control.fail("no memory"),
        _ => control.barrier().unwrap_err(),
    });
    seen.into_iter().for_each(|failure| assert_eq!(failure.to_string(), "rank 0: no memory"));
}

#[test]
fn a_goodbye_is_no_failure_and_to_leave_others_alone_is() {
    let watched = on_each(met(3), |control| {
        let (heard, hears) = mpsc::channel();
        control.watch(move |failure| heard.send(failure.clone()).unwrap());
        control.finish().unwrap();
        hears.recv_timeout(Duration::from_millis(200)).ok()
    });
    assert_eq!(watched, vec![None; 3]);
    let seen = on_each(met(3), |control| match control.rank() {
        1 => None,
        _ => Some(control.barrier().unwrap_err()),
    });
    seen.iter().flatten().for_each(|failure| assert_eq!((failure.rank, failure.cause), (1, Cause::Died)));
    assert_eq!(seen.iter().flatten().count(), 2);
}

#[test]
fn ranks_in_different_calls_are_told_so() {
    let seen: Vec<Failure> = on_each(met(2), |control| match control.rank() {
        0 => control.barrier().unwrap_err(),
        _ => control.all_gather(b"x", 1).unwrap_err(),
    });
    seen.iter()
        .for_each(|f| assert_eq!(f.to_string(), "rank 0: rank 0 is in call 1, `barrier`, and rank 1 in call 1, `all_gather`"));
}

#[test]
fn more_data_than_expected_are_refused() {
    let seen = on_each(met(2), |control| control.all_gather(&[0; 9], 8 + control.rank()).unwrap_err());
    assert_eq!(seen[0].to_string(), "rank 0: 9 bytes are more than `all_gather` takes, which are 8");
    assert_eq!(seen[0], seen[1]);
    let seen =
        on_each(met(2), |control| control.all_gather(&vec![0; 8 + control.rank() as usize], 8 + control.rank()).unwrap_err());
    assert_eq!(seen[0].to_string(), "rank 0: rank 1 has 9 bytes for `all_gather`, more than 8");
    assert_eq!(seen[0], seen[1]);
}

/// A process of its own that is rank `rank` of 3 of the run at `address`, in step 5.
struct Process(Child);

impl Process {
    fn start(rank: u64, address: &str) -> Process {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "as_a_rank", "--ignored", "--nocapture"]);
        command.env("AS_A_RANK", rank.to_string()).env("AT", address).stdout(Stdio::piped());
        Process(command.spawn().expect("it starts"))
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill starts").success());
    }

    /// The last line that it printed.
    fn end(mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().expect("its output").read_to_string(&mut text).expect("text");
        self.0.wait().expect("it ends");
        text.lines().find_map(|line| line.split("heard: ").nth(1)).unwrap_or_default().to_string()
    }
}

#[test]
#[ignore = "it is a part of other tests, which start it as a process"]
fn as_a_rank() {
    let Ok(rank) = env::var("AS_A_RANK") else { return };
    let control = wish(rank.parse().unwrap(), 3).meet(&env::var("AT").unwrap(), b"").unwrap().control;
    control.at(at(4, "send to rank 0"));
    control.barrier().unwrap();
    let (heard, hears) = mpsc::channel();
    control.watch(move |failure| heard.send(failure.to_string()).unwrap());
    println!("heard: {}", hears.recv().unwrap());
}

/// Three ranks, of which the last two are processes, after they have met.
fn with_processes() -> (Control, [Process; 2]) {
    let (listener, address) = listener();
    let processes = [1, 2].map(|rank| Process::start(rank, &address.to_string()));
    let control = wish(0, 3).host(listener, b"").expect("they meet").control;
    control.barrier().expect("all come");
    // A sign of life tells where they are.
    thread::sleep(Duration::from_millis(400));
    (control, processes)
}

#[test]
fn a_killed_process_is_missed_by_all_at_once() {
    let (control, [first, second]) = with_processes();
    let start = Instant::now();
    second.signal("KILL");
    let failure = control.barrier().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!((failure.rank, failure.cause), (2, Cause::Died));
    let text = "rank 2: step 5: send to rank 0: its process ended without a word";
    assert_eq!(failure.to_string(), text);
    assert_eq!(first.end(), text);
    assert!(start.elapsed() < Duration::from_secs(2));
    second.end();
}

#[test]
fn a_stopped_process_is_missed_by_all() {
    let (control, [first, second]) = with_processes();
    let start = Instant::now();
    second.signal("STOP");
    let failure = control.barrier().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5), "2 s of silence: {:?}", start.elapsed());
    assert_eq!(failure.to_string(), "rank 2: step 5: send to rank 0: its process has stopped, or cannot be reached");
    assert_eq!(first.end(), failure.to_string());
    second.signal("CONT");
    assert_eq!(second.end(), failure.to_string(), "it hears what the others say of it");
}

#[test]
fn a_stopped_rank_0_is_missed_too() {
    let (listener, address) = listener();
    let stopped = thread::spawn(move || {
        // Rank 0 that meets, and then says nothing: its connections stay open.
        wish(0, 2).host(listener, b"").map(|met| met.control)
    });
    let control = wish(1, 2).meet(&address.to_string(), b"").unwrap().control;
    let quiet = stopped.join().unwrap().unwrap();
    assert_eq!(control.failure(), None);
    drop(quiet);
    let failure = control.barrier().unwrap_err();
    assert_eq!((failure.rank, failure.cause), (0, Cause::Died));
}

#[test]
fn rank_0_gathers_alone_and_wires_lead_to_every_rank() {
    let seen = on_each(met(4), |control| {
        let own = control.rank();
        let gathered = control.gather(&[own as u8; 3], 3).unwrap();
        assert_eq!(gathered.len(), if own == 0 { 4 } else { 0 });
        assert!(gathered.iter().enumerate().all(|(rank, bytes)| *bytes == [rank as u8; 3]));
        let mut wires = shardc_launch::wires::lay(&control).unwrap();
        wires.iter_mut().for_each(|(to, stream)| stream.write_all(&[own as u8, *to as u8]).unwrap());
        for (from, stream) in &mut wires {
            // A rank may compute for longer than a handshake may take.
            assert_eq!((stream.read_timeout().unwrap(), stream.write_timeout().unwrap()), (None, None));
            let mut bytes = [0; 2];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, [*from as u8, own as u8]);
        }
        control.finish().map(|()| wires.iter().map(|(rank, _)| *rank).collect::<Vec<_>>())
    });
    for (own, ranks) in seen.into_iter().enumerate() {
        assert_eq!(ranks, Ok((0..4).filter(|rank| *rank != own as u64).collect()));
    }
}
