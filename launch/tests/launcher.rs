//! The launcher, with shells for ranks.
#![cfg(unix)]

use rustix::process::Signal;
use shardc_launch::local::Launcher;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Ranks that run `script`.
fn shells(ranks: u64, script: &str) -> Launcher {
    Launcher {
        program: PathBuf::from("/bin/sh"),
        arguments: vec!["-c".into(), script.into()],
        ranks,
        first_rank: 0,
        world_size: ranks,
        rendezvous: None,
        timeout: Duration::from_secs(9),
        moment: Duration::from_millis(200),
        grace: Duration::from_millis(300),
    }
}

/// Exit code, what was told, and how long it took; `act` may send signals.
fn run(launcher: &Launcher, act: impl FnOnce(Sender<i32>) + Send) -> (u8, Vec<String>, Duration) {
    let (sender, signals) = mpsc::channel();
    let (start, mut told) = (Instant::now(), vec![]);
    let code = thread::scope(|scope| {
        scope.spawn(move || act(sender));
        launcher.run(&signals, &mut |line| told.push(line.to_string())).expect("they start")
    });
    (code, told, start.elapsed())
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("an old folder can be removed");
    }
    fs::create_dir_all(&path).expect("a folder can be made");
    path
}

/// Waits until `count` files are in `folder`.
fn wait_for(folder: &Path, count: usize) {
    while fs::read_dir(folder).expect("the folder").count() < count {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_rank_is_told_who_it_is() {
    let folder = folder("who");
    let line =
        "$SHARDC_RANK $SHARDC_WORLD_SIZE $SHARDC_LOCAL_RANK $SHARDC_RENDEZVOUS_TIMEOUT $SHARDC_RENDEZVOUS $SHARDC_RENDEZVOUS_KEY";
    let script = format!("echo {line} > {}/$SHARDC_RANK", folder.display());
    let launcher = Launcher { first_rank: 2, world_size: 8, ..shells(3, &script) };
    let (code, told, _) = run(&launcher, drop);
    assert_eq!((code, told), (0, vec![]));
    let (mut places, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for local in 0..3 {
        let text = fs::read_to_string(folder.join((local + 2).to_string())).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..4], [&(local + 2).to_string(), "8", &local.to_string(), "9"].map(|s: &str| s));
        assert!(words[4].starts_with("127.0.0.1:") && words[5].len() == 64, "{text}");
        places.insert(words[4].to_string());
        keys.insert(words[5].to_string());
    }
    assert_eq!((places.len(), keys.len()), (1, 1), "all have the same");
}

#[test]
fn a_rank_that_fails_ends_all_with_its_code_and_its_words() {
    // One that listens to nothing, one that ends when it is asked, and one that fails.
    let script = "echo start $SHARDC_RANK >&2; case $SHARDC_RANK in
        0) trap '' TERM; while :; do sleep 0.05; done;;
        1) sleep 60;;
        2) sleep 0.2; echo the cause; exit 7;;
    esac";
    let (code, told, took) = run(&shells(3, script), drop);
    assert_eq!(code, 7);
    let expected =
        ["rank 2 ended with exit code 7; the others end too", "rank 2: start 2", "rank 2: the cause", "rank 1: start 1"];
    assert_eq!(told.iter().collect::<BTreeSet<_>>(), expected.map(String::from).iter().collect(), "rank 0's is not kept");
    assert_eq!(told[0], expected[0]);
    assert!(took > Duration::from_millis(700) && took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_rank_that_is_killed_is_named() {
    let (code, told, _) = run(&shells(2, "[ $SHARDC_RANK = 0 ] && sleep 60; kill -9 $$"), drop);
    assert_eq!((code, told), (137, vec!["rank 1 was ended by signal 9; the others end too".to_string()]));
}

#[test]
fn ranks_that_end_well_print_nothing() {
    let (code, told, _) = run(&shells(3, "[ $SHARDC_RANK = 0 ] || echo noise"), drop);
    assert_eq!((code, told), (0, vec![]));
}

#[test]
fn signals_are_passed_on_and_the_end_is_waited_for() {
    let folder = folder("signals");
    // One that shells of background jobs do not ignore, and the launcher does not send by itself. A
    // shell would say that it ended the child.
    let signal = Signal::USR1.as_raw();
    let script = format!(
        "exec 2>/dev/null; trap 'sleep 0.6; echo done > {0}/done$SHARDC_RANK; exit 130' USR1; touch {0}/$SHARDC_RANK; while :; do sleep 0.05; done",
        folder.display()
    );
    let (code, told, took) = run(&shells(3, &script), |sender| {
        wait_for(&folder, 3);
        sender.send(signal).unwrap();
    });
    assert_eq!((code, told), (130, vec![]), "that is what was asked for");
    assert!(took >= Duration::from_millis(600), "longer than a moment and grace: {took:?}");
    (0..3).for_each(|rank| assert!(folder.join(format!("done{rank}")).exists()));
}

#[test]
fn after_a_second_signal_nothing_is_waited_for() {
    let folder = folder("twice");
    let script = format!("trap '' INT TERM; touch {}/$SHARDC_RANK; while :; do sleep 0.05; done", folder.display());
    let (code, _, took) = run(&shells(2, &script), |sender| {
        wait_for(&folder, 2);
        sender.send(2).unwrap();
        thread::sleep(Duration::from_millis(100));
        sender.send(15).unwrap();
    });
    assert_eq!(code, 137);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn what_is_no_program_is_told() {
    let launcher = Launcher { program: "/no/program".into(), ..shells(2, "") };
    let (_sender, signals) = mpsc::channel();
    let message = launcher.run(&signals, &mut |_| {}).unwrap_err();
    assert!(message.starts_with("rank 0 cannot be started: "), "{message}");
}

#[test]
fn endless_output_of_a_rank_costs_no_memory() {
    let script = "[ $SHARDC_RANK = 0 ] || { yes | head -c 50000000; head -c 9000 /dev/zero; exit 1; }";
    let (code, told, _) = run(&shells(2, script), drop);
    assert_eq!(code, 1);
    assert!(told.len() <= 101 && told.iter().map(String::len).sum::<usize>() < 20_000, "{}", told.len());
}
