//! Faults that are made on purpose: each ends with words, or is found where replicas are compared.

use super::{DP, batch, program};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::inject::Injections;
use shardc_executor::load::LoadedSet;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_executor::wires::connect;
use shardc_executor::worker::on_cpu;
use shardc_executor::world::World;
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::set::PlanSet;
use shardc_launch::control::Settings;
use shardc_launch::key::Key;
use shardc_launch::rendezvous::Rendezvous;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Ranks as threads, with faults.
fn with_faults(ranks: u64, faults: &[&str]) -> Executor {
    let loaded = LoadedSet::new(program(Mesh::new([("dp".to_string(), ranks)], 2))).unwrap();
    let faults = Injections::parse(faults).unwrap();
    faults.check(&loaded.programs).unwrap();
    let world = Arc::new(World::default().with_faults(faults));
    let worker = |rank| on_cpu(loaded.of_rank(rank).clone(), rank, Threads(1), world.clone()).unwrap();
    let workers = (0..ranks).map(worker).collect();
    let mut executor = Executor::over(loaded, world, workers, Threads(1)).unwrap();
    executor.set_state("w", &Tensor::from_f64(&[3], &[1.0, 2.0, 3.0])).unwrap();
    executor
}

#[test]
fn a_flipped_bit_is_found_on_its_rank() {
    for (ranks, odd, replica, held) in [(2, 1, 0, (2, 1)), (4, 0, 1, (4, 3)), (4, 3, 0, (4, 3))] {
        let mut executor = with_faults(ranks, &[&format!("flip:rank={odd},step=2,state=w,bit=49")]);
        executor.step(batch()).unwrap();
        assert_eq!(executor.replicas().unwrap(), None);
        let calm = executor.get_state("w").unwrap().to_f32();
        executor.step(batch()).unwrap();
        let found = executor.replicas().unwrap().unwrap();
        assert_eq!((found.state.as_str(), found.rank, found.replica, found.held), ("w", odd, replica, held));
        assert_eq!((found.elements, found.first), ((3, 1), 1));
        let (a, b) = ((found.values.0 as f32).to_bits(), (found.values.1 as f32).to_bits());
        assert!(a ^ b == 1 << 17 && calm[1].to_bits() != b, "{found}");
        let says = format!("`w` on rank {odd} is not what it is on rank {replica}: 1 of 3 elements differ, the first at 1, ");
        assert!(found.to_string().starts_with(&says), "{found}");
    }
    let mut executor = with_faults(2, &["flip:rank=1,step=1,state=w,bit=96"]);
    let error = executor.step(batch()).unwrap_err().to_string();
    assert_eq!(error, "rank 1: step 1: no bit 96 to flip: this rank's part of `w` has 96 bits, from 0");
}

/// Parts of a line that differ are no replicas.
#[test]
fn parts_that_should_differ_are_not_compared() {
    let mut program = program(Mesh::new([("dp".to_string(), 2)], 2));
    program.tasks.clear();
    program.order.clear();
    program.buffers[1].sharding.flat = vec![DP];
    program.buffers[1].local = vec![2];
    let mut executor = Executor::new(program, 1).unwrap();
    executor.set_state("w", &Tensor::from_f64(&[3], &[1.0, 2.0, 3.0])).unwrap();
    assert_eq!(executor.get_state("w").unwrap().to_f32(), [1.0, 2.0, 3.0]);
    assert_eq!(executor.replicas().unwrap(), None);
}

#[test]
fn processes_find_the_rank_that_differs_all_alike() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let of_rank = |rank: u64| {
        let (timeout, settings) = (Duration::from_secs(30), Settings { silence: Duration::from_secs(5) });
        let wish =
            Rendezvous { rank, world_size: 2, key: Key::default(), plans: [1; 32], timeout, settings, stop: Arc::default() };
        let met = if rank == 0 { wish.host(listener.try_clone().unwrap(), b"") } else { wish.meet(&address, b"") };
        let control = Arc::new(met.unwrap().control);
        let loaded = LoadedSet::new(program(Mesh::new([("dp".to_string(), 2)], 1))).unwrap();
        let faults = Injections::parse(["flip:rank=1,step=1,state=w,bit=64"]).unwrap();
        let world = Arc::new(World::default().with_faults(faults));
        let worker = on_cpu(loaded.of_rank(rank).clone(), rank, Threads(1), world.clone()).unwrap();
        connect(&control, &world).unwrap();
        let mut executor = Executor::of_process(loaded, world, worker, Threads(1), control).unwrap();
        executor.set_state("w", &Tensor::from_f64(&[3], &[1.0, 2.0, 3.0])).unwrap();
        let before = executor.replicas().unwrap();
        executor.step(batch()).unwrap();
        let found = executor.replicas().unwrap();
        executor.part().unwrap();
        (before, found)
    };
    let found: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|rank| scope.spawn(move || of_rank(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(found[0], found[1]);
    let (before, found) = &found[0];
    let found = found.as_ref().unwrap();
    assert_eq!((before, found.rank, found.replica, found.elements, found.first), (&None, 1, 0, (3, 1), 2));
}

#[test]
fn a_rank_that_falls_silent_is_missed() {
    let mut executor = with_faults(2, &["drop:rank=1,step=2"]);
    executor.step(batch()).unwrap();
    let error = executor.step(batch()).unwrap_err();
    let says = "no rank can go on: rank 0 waits in a collective (AllReduce), rank 1 waits to receive from rank 1";
    assert!(error.step == Some(1) && error.message.contains(says), "{error}");
    let error = with_faults(1, &["drop:rank=0,step=1"]).step(batch()).unwrap_err();
    assert!(error.message.contains("rank 0 waits to receive from rank 0"), "{error}");
}

#[test]
fn late_and_slow_ranks_change_no_result() {
    let mut calm = with_faults(2, &[]);
    let mut late = with_faults(2, &["delay:rank=1,step=2,ms=300", "slow:rank=0,factor=3"]);
    for step in 1..=2 {
        let begun = Instant::now();
        assert_eq!(late.step(batch()).unwrap(), calm.step(batch()).unwrap());
        assert!(step == 1 || begun.elapsed() >= Duration::from_millis(900), "it waits 300 ms, and then twice that");
    }
    assert_eq!(late.get_state("w").unwrap(), calm.get_state("w").unwrap());
}

#[cfg(unix)]
#[test]
fn a_killed_rank_takes_its_process_with_it() {
    use std::os::unix::process::ExitStatusExt;
    const INSIDE: &str = "SHARDC_TEST_KILLED_RANK";
    if std::env::var_os(INSIDE).is_some() {
        let mut executor = with_faults(2, &["kill:rank=1,step=2"]);
        executor.step(batch()).unwrap();
        eprintln!("one step is done");
        executor.step(batch()).unwrap();
        eprintln!("it lives");
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["faults::a_killed_rank_takes_its_process_with_it", "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.signal() == Some(9) && told.contains("one step is done") && !told.contains("it lives"), "{told}");
}

#[test]
fn faults_of_what_is_not_there_are_refused() {
    let programs = PlanSet::from(program(Mesh::new([("dp".to_string(), 2)], 2)));
    let faults = Injections::parse(["kill:rank=2,step=1", "flip:rank=0,step=1,state=v,bit=0", "drop:rank=1,step=1"]).unwrap();
    let error = faults.check(&programs).unwrap_err().message;
    assert!(error.contains("there is no rank 2: the mesh has 2, from 0; rank 0 has no state variable `v`"), "{error}");
}
