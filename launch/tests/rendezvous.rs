//! Ranks that meet, and every way in which they do not.

mod support;

use shardc_launch::key::Key;
use shardc_launch::rendezvous::{Met, Rendezvous};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{join, listener, wish};

const SOON: Duration = Duration::from_millis(600);

/// The outcomes for the ranks of `wishes`, the first of which is rank 0.
fn outcomes(wishes: Vec<Rendezvous>) -> Vec<Result<Met, String>> {
    let (listener, address) = listener();
    let mut wishes = wishes.into_iter();
    let first = wishes.next().expect("a rank 0");
    let others: Vec<_> = wishes.map(|wish| join(wish, address)).collect();
    let first = first.host(listener, b"the id");
    [first].into_iter().chain(others.into_iter().map(|other| other.join().expect("no panic"))).collect()
}

fn error(outcome: &Result<Met, String>) -> &str {
    outcome.as_ref().map(|_| ()).expect_err("they do not meet")
}

#[test]
fn all_get_what_rank_0_hands_them() {
    let all: Vec<Met> = outcomes((0..5).map(|rank| wish(rank, 5)).collect()).into_iter().map(Result::unwrap).collect();
    for met in &all {
        assert_eq!(met.handed, b"the id");
        assert_eq!(met.control.world_size(), 5);
        assert_eq!(met.control.failure(), None);
    }
}

#[test]
fn one_rank_needs_nobody() {
    let met = wish(0, 1).meet("nowhere", b"id").unwrap();
    assert_eq!(met.control.all_gather(b"x", 1), Ok(vec![b"x".to_vec()]));
    assert_eq!(met.control.finish(), Ok(()));
}

#[test]
fn other_plans_are_named_with_both_hashes() {
    let other = Rendezvous { plans: [0xab; 32], ..wish(2, 3) };
    let first = Rendezvous { timeout: SOON, ..wish(0, 3) };
    let found = outcomes(vec![first, wish(1, 3), other]);
    assert_eq!(
        error(&found[2]),
        "rank 2 has plans abababababababab, and rank 0 has 0707070707070707: all ranks run the same job"
    );
    let all = "rank 2 did not come within 0.6 s; rank 2 came with plans abababababababab, and rank 0 has 0707070707070707";
    assert_eq!(error(&found[0]), all);
    assert_eq!(error(&found[1]), all);
}

#[test]
fn another_number_of_ranks_is_named() {
    let found = outcomes(vec![Rendezvous { timeout: SOON, ..wish(0, 2) }, wish(1, 3)]);
    assert_eq!(error(&found[1]), "rank 1 is one of 3 ranks, and rank 0 of 2");
    assert_eq!(error(&found[0]), "rank 1 did not come within 0.6 s; rank 1 was one of 3 ranks, not of 2");
}

#[test]
fn another_key_and_no_key_are_sent_away() {
    for key in [Key::of_text("another key, as long"), Key::default()] {
        let found = outcomes(vec![Rendezvous { timeout: SOON, ..wish(0, 2) }, Rendezvous { key, ..wish(1, 2) }]);
        assert!(error(&found[1]).starts_with("rank 1 does not have the key of rank 0 at 127.0.0.1:"), "{found:?}");
        assert_eq!(error(&found[0]), "rank 1 did not come within 0.6 s");
    }
}

#[test]
fn ranks_that_never_come_are_named_to_all() {
    let start = Instant::now();
    let found = outcomes(vec![Rendezvous { timeout: SOON, ..wish(0, 6) }, wish(1, 6), wish(3, 6)]);
    for outcome in &found {
        assert_eq!(error(outcome), "ranks 2, 4 and 5 did not come within 0.6 s");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "nobody waits for its own, longer timeout");
}

#[test]
fn a_rank_0_that_never_comes_is_told() {
    let (listener, address) = listener();
    drop(listener);
    let message = join(Rendezvous { timeout: SOON, ..wish(1, 2) }, address).join().unwrap().unwrap_err();
    assert!(message.starts_with(&format!("rank 1 did not reach rank 0 at {address} within 0.6 s: ")), "{message}");
}

#[test]
fn a_rank_0_that_says_nothing_is_told() {
    let (_open, address) = listener();
    let message = join(Rendezvous { timeout: SOON, ..wish(1, 2) }, address).join().unwrap().unwrap_err();
    assert!(message.ends_with("within 0.6 s: it took too long"), "{message}");
}

#[test]
fn of_two_that_claim_one_rank_the_first_stays() {
    let (listener, address) = listener();
    let host = std::thread::spawn(move || wish(0, 3).host(listener, b""));
    let mut twins: Vec<_> = (0..2).map(|_| join(wish(1, 3), address)).collect();
    // The one that came second is sent away before all are there.
    while !twins.iter().any(|twin| twin.is_finished()) {
        std::thread::yield_now();
    }
    let second = twins.iter().position(|twin| twin.is_finished()).unwrap();
    let second = twins.swap_remove(second).join().unwrap();
    assert_eq!(error(&second), "another process is rank 1 already");
    let third = join(wish(2, 3), address);
    assert!(host.join().unwrap().is_ok() && third.join().unwrap().is_ok());
    assert!(twins.remove(0).join().unwrap().is_ok());
}

#[test]
fn a_rank_that_left_may_come_again() {
    let (listener, address) = listener();
    let host = std::thread::spawn(move || wish(0, 3).host(listener, b""));
    let impatient = Rendezvous { timeout: Duration::ZERO, ..wish(1, 3) };
    assert!(join(impatient, address).join().unwrap().is_err());
    let others = [1, 2].map(|rank| join(wish(rank, 3), address));
    others.into_iter().for_each(|other| assert!(other.join().unwrap().is_ok()));
    assert!(host.join().unwrap().is_ok());
}

#[test]
fn other_machines_are_let_in_with_a_good_key_only() {
    let without = Rendezvous { key: Key::default(), ..wish(0, 2) };
    let message = without.meet("0.0.0.0:0", b"").unwrap_err();
    assert!(message.contains("0.0.0.0:0, which other machines may reach, needs a key: set SHARDC_RENDEZVOUS_KEY"), "{message}");
    let short = Rendezvous { key: Key::of_text("guess"), ..wish(1, 2) };
    assert!(short.meet("192.0.2.1:7", b"").unwrap_err().contains("needs a longer key"));
    assert!(wish(0, 2).bind("0.0.0.0:0").is_ok());
}

#[test]
fn addresses_that_are_none_are_told() {
    for address in ["", "x", "127.0.0.1", "127.0.0.1:70000", ":1"] {
        let message = wish(1, 2).meet(address, b"").unwrap_err();
        assert!(message.starts_with(&format!("`{address}` is no HOST:PORT")), "{message}");
    }
    let (_held, address) = listener();
    let message = wish(0, 2).meet(&address.to_string(), b"").unwrap_err();
    assert!(message.starts_with(&format!("rank 0 cannot wait for the other ranks at {address}: ")), "{message}");
    assert!(wish(0, 2).host(listener().0, &[0; 4097]).unwrap_err().contains("more than 4096"));
}

#[test]
fn who_is_asked_to_end_waits_no_longer() {
    let (listener, address) = listener();
    let start = Instant::now();
    let (first, second) = (wish(0, 3), wish(1, 3));
    let stops = [first.stop.clone(), second.stop.clone()];
    let host = std::thread::spawn(move || first.host(listener, b""));
    let guest = join(second, address);
    std::thread::sleep(Duration::from_millis(200));
    stops[1].store(15, Ordering::Relaxed);
    assert_eq!(error(&guest.join().unwrap()), "the end was asked for before all ranks had come");
    let third = join(wish(2, 3), address);
    std::thread::sleep(Duration::from_millis(200));
    stops[0].store(15, Ordering::Relaxed);
    for waits in [host, third] {
        assert_eq!(error(&waits.join().unwrap()), "the end was asked for before all ranks had come");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}
