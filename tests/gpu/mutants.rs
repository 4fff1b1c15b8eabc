//! Mistakes of an executor, one at a time, each of which the software CUDA finds: by a report, by an
//! error, or because training gives other bits.

use super::damage::{Mistake, Opener};
use super::fake::{is_full, is_inside};
use super::jobs::{Planned, Trained};
use shardc_fakecuda::control;
use shardc_gpu::start::OwnGpu;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STEPS: u64 = 3;

const MISTAKES: [Mistake; 22] = [
    Mistake::LostWait,
    Mistake::LostRecord,
    Mistake::LateRecord,
    Mistake::EarlyHost,
    Mistake::EarlyFree,
    Mistake::SwappedLaunches,
    Mistake::OtherStream,
    Mistake::ShortGrid,
    Mistake::OtherPlace,
    Mistake::LostLaunch,
    Mistake::MissingGroup,
    Mistake::ShortRoom,
    Mistake::OtherOperand,
    Mistake::LostClear,
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
fn found(job: &Planned, right: &Trained, mistake: Mistake, rank: u64, at: u64, calls: &Arc<AtomicU64>) -> Option<String> {
    for seed in 0..4 {
        control::reset(seed);
        calls.store(0, Ordering::Relaxed);
        let opener = Opener { mistake, rank, at, calls: calls.clone() };
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

fn damaged(model: &str, mesh: &str, microbatches: u64, lines: &str, each: u64) -> [usize; 2] {
    let job = Planned::new(model, mesh, microbatches, lines);
    control::reset(0);
    let right = job.started(&OwnGpu, true).and_then(|mut executor| job.train(&mut executor, STEPS)).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let (mut tried, mut lost) = (0, vec![]);
    for mistake in MISTAKES {
        // How many calls there are in which it can be made.
        assert_eq!(found(&job, &right, mistake, 0, u64::MAX, &calls), None, "{}: {mistake:?} is made nowhere", job.name);
        let all = calls.load(Ordering::Relaxed);
        for number in 0..each.min(all) {
            let at = all * (2 * number + 1) / (2 * each.min(all));
            tried += 1;
            match found(&job, &right, mistake, 0, at, &calls) {
                Some(why) => eprintln!("{}: {mistake:?} {at} of {all}: {why}", job.name),
                None => lost.push(format!("{}: {mistake:?} {at} of {all}", job.name)),
            }
        }
    }
    assert!(lost.is_empty(), "{} of {tried} mistakes are not found:\n{}", lost.len(), lost.join("\n"));
    [tried, tried - lost.len()]
}

#[test]
fn mistakes_are_found() {
    if is_inside("mutants::mistakes_are_found", &[("FAKE_CUDA_PATIENCE", "500")]) {
        let each = if is_full() { 6 } else { 2 };
        let mut sum = [0, 0];
        for (mesh, microbatches, lines) in
            [("dp=2", 1, "zero stage=3 axis=dp\n"), ("pp=2", 4, "pipeline axis=pp schedule=1f1b\n")]
        {
            let [tried, found] = damaged("gpt2", mesh, microbatches, lines, each);
            sum = [sum[0] + tried, sum[1] + found];
        }
        eprintln!("{} mistakes of an executor, {} found", sum[0], sum[1]);
    }
}
