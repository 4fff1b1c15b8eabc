//! Mistakes of an executor, one at a time, each of which the software CUDA finds: by a report, by
//! an error, or because training gives other bits.

use super::damage::{Mistake, Opener};
use super::fake::{is_full, is_inside_software};
use super::jobs::{Planned, Trained};
use shardc_codegen::table::Work;
use shardc_fakecuda::control;
use shardc_gpu::start::{OwnGpu, tables};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STEPS: u64 = 3;

/// Orders of work under which a mistake may show.
const SEEDS: u64 = 4;

const MISTAKES: [Mistake; 20] = [
    Mistake::LostWait,
    Mistake::LostRecord,
    Mistake::LateRecord,
    Mistake::EarlyFree,
    Mistake::SwappedLaunches,
    Mistake::OtherStream,
    Mistake::ShortGrid,
    Mistake::OtherPlace,
    Mistake::LostLaunch,
    Mistake::MissingGroup,
    Mistake::ShortRoom,
    Mistake::OtherOperand,
    Mistake::StaleInput,
    Mistake::ShortCopy,
    Mistake::LostCopyOut,
    Mistake::ShortCall,
    Mistake::OtherComm,
    Mistake::OtherPeer,
    Mistake::LostCall,
    Mistake::LostWrite,
];

/// How a mistake shows under some seeds; `None` where it does not.
fn found(job: &Planned, right: &Trained, mistake: Mistake, at: u64, calls: &Arc<AtomicU64>, seeds: u64) -> Option<String> {
    let follows = Arc::new(follows(job));
    for seed in 0..seeds {
        control::reset(seed);
        calls.store(0, Ordering::Relaxed);
        let opener = Opener { mistake, rank: 0, at, calls: calls.clone(), follows: follows.clone() };
        let trained = job.started(&opener, seed % 2 == 0).and_then(|mut executor| job.train(&mut executor, STEPS));
        let reports = control::reports();
        match trained {
            _ if !reports.is_empty() => return reports.lines().next().map(str::to_string),
            Err(error) => return Some(error.to_string()),
            Ok(trained) if trained != *right => return Some("other bits".into()),
            Ok(_) => {}
        }
    }
    None
}

/// For each launch of a step of rank 0, whether it reads what the launch just before it wrote.
fn follows(job: &Planned) -> Vec<bool> {
    let (tables, _) = tables(&job.set).unwrap();
    let table = tables.of_rank(job.set.mesh(), 0);
    let mut last: Option<Vec<Range<u64>>> = None;
    let mut follows = vec![];
    for ran in table.runs(job.set.mesh().microbatches()) {
        let is_launch = matches!(&ran.row.work, Work::Launch { grid, .. } if !grid.contains(&0));
        let [reads, writes] = ran.touches();
        if is_launch {
            let meets = |written: &Range<u64>| reads.iter().any(|read| read.start < written.end && written.start < read.end);
            let written = last.iter().flatten().filter(|range| range.start != table.fault.start);
            follows.push({ written }.any(meets));
        }
        last = is_launch.then_some(writes);
    }
    follows
}

fn damaged(mistakes: &[Mistake], (mesh, microbatches, lines): (&str, u64, &str), each: u64) -> usize {
    let job = Planned::new("gpt2", mesh, microbatches, lines);
    control::reset(0);
    let right = job.started(&OwnGpu, true).and_then(|mut executor| job.train(&mut executor, STEPS)).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let (mut tried, mut lost) = (0, vec![]);
    for mistake in mistakes.iter().copied() {
        // How many calls there are in which it can be made.
        assert_eq!(found(&job, &right, mistake, u64::MAX, &calls, 1), None, "{}: {mistake:?} is made nowhere", job.name);
        let all = calls.load(Ordering::Relaxed);
        for number in 0..each.min(all) {
            let at = all * (2 * number + 1) / (2 * each.min(all));
            tried += 1;
            match found(&job, &right, mistake, at, &calls, SEEDS) {
                Some(why) => eprintln!("{}: {mistake:?} {at} of {all}: {why}", job.name),
                None => lost.push(format!("{}: {mistake:?} {at} of {all}", job.name)),
            }
        }
    }
    assert!(lost.is_empty(), "{} of {tried} mistakes are not found:\n{}", lost.len(), lost.join("\n"));
    tried
}

#[test]
fn mistakes_are_found() {
    if is_inside_software("mutants::mistakes_are_found", &[("FAKE_CUDA_PATIENCE", "500")]) {
        let each = if is_full() { 3 } else { 1 };
        // With one rank nobody else lets time pass while the host does not wait.
        let mut tried = damaged(&[Mistake::EarlyHost, Mistake::LostEnd], ("dp=1", 1, ""), each);
        tried += damaged(&MISTAKES, ("dp=2", 1, "zero stage=3 axis=dp\n"), each);
        if is_full() {
            tried += damaged(&MISTAKES, ("pp=2", 4, "pipeline axis=pp schedule=1f1b\n"), each);
            tried += damaged(&[Mistake::OtherComm, Mistake::ShortCall], ("dp=2 tp=2", 1, ""), each);
        }
        // Each kind is made somewhere.
        assert!(tried >= if is_full() { 3 * MISTAKES.len() } else { MISTAKES.len() }, "{tried} mistakes only");
        eprintln!("{tried} mistakes of an executor, all found");
    }
}
